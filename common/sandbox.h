/* Programs, and parsers of our own, that nobody needs to trust.
 *
 * A process in the sandbox computes on what it was given and answers on descriptors it already has. It reads
 * only the files named to it, and can neither write to the file system, nor reach the network or another
 * process, nor start one, nor leave its process group, nor gain a privilege, nor use more memory, processor
 * time or descriptors than it was given. That rests on four mechanisms, which work as root and as a plain
 * user, in containers too: no_new_privs without capabilities, resource limits, Landlock (what may be read;
 * Linux 5.13) and a seccomp filter that lets a list of system calls through and answers all others with
 * EPERM.
 *
 * A mechanism that is missing is an error (ERR_UNSUPPORTED, by name), never a sandbox with a hole. Landlock
 * alone can be done without, by saying that everything may be read ("/").
 *
 * One thing is not held back: how many threads a process of root's starts, since the kernel exempts root from
 * that limit. They end with the deadline. Run daemons as a user.
 */
#ifndef MOTLEY_COMMON_SANDBOX_H
#define MOTLEY_COMMON_SANDBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

enum {
    SANDBOX_FILES = 256,    /* descriptors at once, where nobody says */
    SANDBOX_THREADS = 4096, /* of all the user's processes together: the kernel counts no other way */
};

struct sandbox_limits {
    uint64_t memory_bytes; /* of address space; 0: no limit, for instrumented builds alone */
    uint32_t cpu_s;        /* of all its threads together, at least 1 */
    uint32_t files;        /* descriptors at once; 0: SANDBOX_FILES */
    bool threads;          /* may it start threads? Processes it may not start either way */
    /* Absolute paths of files and folders, with all in them, that it may read and map; a path that is not
     * there is passed over. NULL at the end. NULL: it opens nothing at all. "/": all that its user may read.
     */
    const char *const *readable;
};

/* Enters the sandbox; there is no way out but the end of the process. For a child process of ours, with one
 * thread, before it reads what it does not trust: it then answers through descriptors it has, and ends with
 * _exit. Makes async-signal-safe calls only, but for the text of an error. −1 with ERR_UNSUPPORTED (a
 * mechanism is missing, which one, and why) or ERR_IO: the process may then be half inside, and must end. */
int sandbox_enter(const struct sandbox_limits *limits, struct err *err);

/* The same on the way into another program: what execve is to be called with afterwards. It is the only
 * execve that the filter lets through. NULL on failure, with errno and *failed, what could not be done.
 * Async-signal safe; for sandbox.c. */
const char *sandbox_enter_program(const struct sandbox_limits *limits, const char *path, const char **failed);

struct sandbox_command {
    const char *const *argv; /* a program's path or its name on PATH, and its words; NULL at the end. Words
                                that are absolute paths of files may be read. It runs in the folder "/" */
    const char *const
        *readable;     /* more that may be read, beside the system's programs and libraries; or NULL */
    const void *input; /* what it finds on its standard input */
    size_t input_bytes, output_bytes_max;
    uint32_t deadline_ms; /* from now until it has ended */
    uint64_t memory_bytes;
    int cancel_fd; /* > 2: once readable, the program is killed and ERR_CANCELLED; else 0 */
    /* A program of ours, which calls sandbox_enter before it looks at what it does not trust: it is started
     * outside, with its standard error going nowhere else and memory_bytes for it to keep. */
    bool enters_itself;
    /* Takes its standard output instead of `out`, piece by piece as it comes; −1 ends the program and is the
     * result. NULL: `out`. */
    int (*take)(void *arg, const void *bytes, size_t size, struct err *err);
    void *take_arg;
};

/* Runs a program in the sandbox, blocking, and appends what it wrote on its standard output to `out`. Its
 * environment is PATH, LANG and HOME=/; it gets no descriptor but the three. It counts only if it ended by
 * itself with status 0; otherwise −1, it is gone with all its threads, and
 *   ERR_TIMEOUT     it was not done by the deadline, or used more processor time than there is until then
 *   ERR_TOO_BIG     it wrote more than output_bytes_max
 *   ERR_PEER        it was killed by a signal, or ended with another status: which, and the last line that it
 *                   wrote on its standard error, at most 160 bytes of it, anything but ASCII as "?"
 *   ERR_CANCELLED   cancel_fd
 *   ERR_NOT_FOUND, ERR_IO, ERR_UNSUPPORTED, ERR_NOMEM   it could not be started, or not in a sandbox */
int sandbox_run(const struct sandbox_command *command, struct buf *out, struct err *err);

#endif
