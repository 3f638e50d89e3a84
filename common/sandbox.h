/* A sandbox for programs, and for parsers of our own, that need not be trusted.
 *
 * A process in the sandbox computes on its input and answers on descriptors that it already has. It reads
 * only the files named to it. It can neither write to the file system, reach the network or another process,
 * start a process, leave its process group, gain a privilege, nor use more memory, processor time or
 * descriptors than allowed. This rests on four mechanisms, which work as root and as a plain user, in
 * containers too: no_new_privs without capabilities, resource limits, Landlock (restricts reading; Linux
 * 5.13) and a seccomp filter that allows a list of system calls and answers all others with EPERM.
 *
 * A missing mechanism is an error (ERR_UNSUPPORTED, by name), never a weaker sandbox. Only Landlock may be
 * missing, if the caller allows everything to be read ("/").
 *
 * One thing is not limited: the number of threads of a process of root, because the kernel exempts root from
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
    SANDBOX_FILES = 256, /* default number of open descriptors */
    SANDBOX_THREADS =
        4096, /* threads of all processes of the user together, because the kernel counts only these */
};

struct sandbox_limits {
    uint64_t memory_bytes; /* address space; 0: no limit, for instrumented builds only */
    uint32_t cpu_s;        /* processor time of all its threads together, at least 1 */
    uint32_t files;        /* open descriptors; 0 means SANDBOX_FILES */
    bool threads;          /* whether it may start threads; it can never start processes */
    /* Absolute paths of files and folders (with their content) that it may read and map, NULL-terminated; a
     * path that does not exist is ignored. NULL: it may open nothing. "/": it may read all that its user may
     * read. */
    const char *const *readable;
};

/* Paths of programs, libraries and the files that these read, NULL-terminated: no user's folder and nothing
 * secret. */
extern const char *const sandbox_readable[];

/* Enters the sandbox, which the process can never leave. For a child process of ours with one thread, before
 * it reads untrusted data; it then answers through descriptors that it has and ends with _exit. Makes
 * async-signal-safe calls only, except for the text of an error. −1 with ERR_UNSUPPORTED (names the missing
 * mechanism and why) or ERR_IO: the process may then be partly inside and must end. */
int sandbox_enter(const struct sandbox_limits *limits, struct err *err);

/* Enters the sandbox as sandbox_enter does, for a process that executes a program next. Returns the path to
 * call execve with, which is the only execve that the filter allows. NULL on failure, with errno, and *failed
 * names the failed action. Async-signal safe; for sandbox_run.c. */
const char *sandbox_enter_program(const struct sandbox_limits *limits, const char *path, const char **failed);

struct sandbox_command {
    const char *const
        *argv; /* a program's path or its name on PATH, and its arguments; NULL-terminated. Arguments that are
                  absolute paths of files may be read. It runs in the folder "/" */
    const char *const *readable; /* further paths that it may read, in addition to the system's programs and
                                    libraries; or NULL */
    const void *input;           /* the program's standard input */
    size_t input_bytes, output_bytes_max;
    uint32_t deadline_ms; /* the program must end within this time */
    uint64_t memory_bytes;
    int cancel_fd; /* a descriptor above 2: when it becomes readable the program is killed with ERR_CANCELLED;
                      else 0 */
    /* A program of ours that calls sandbox_enter itself before it reads untrusted data: it is started outside
     * the sandbox, with its standard error discarded, and must keep to memory_bytes itself. */
    bool enters_itself;
    /* Takes its standard output piece by piece instead of `out`; −1 ends the program and is the result. NULL:
     * `out` is used. */
    int (*take)(void *arg, const void *bytes, size_t size, struct err *err);
    void *take_arg;
};

/* Runs a program in the sandbox, blocking, and appends its standard output to `out`. Its environment is PATH,
 * LANG and HOME=/; it gets no descriptors but the three standard ones. It succeeds only if the program ends
 * by itself with status 0. Otherwise it returns −1, the program is killed with all its threads, and the error
 * is
 *   ERR_TIMEOUT     it missed the deadline, or used more processor time than the deadline allows
 *   ERR_TOO_BIG     it wrote more than output_bytes_max
 *   ERR_PEER        it was killed by a signal or ended with another status: the text says which and has the
 *                   last line of its standard error, at most 160 bytes, other than ASCII as "?"
 *   ERR_CANCELLED   cancel_fd became readable
 *   ERR_NOT_FOUND, ERR_IO, ERR_UNSUPPORTED, ERR_NOMEM   it could not be started, or not in a sandbox
 */
int sandbox_run(const struct sandbox_command *command, struct buf *out, struct err *err);

#endif
