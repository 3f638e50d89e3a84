/* Child processes: start, watch, recognise, stop. Thread: watches belong to their event base's. */
#ifndef MOTLEY_COMMON_PROCESS_H
#define MOTLEY_COMMON_PROCESS_H

#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/err.h"

struct process_options {
    const char *const *argv; /* argv[0] is the program's path (or a name on PATH); NULL at the end */
    const char *const *env; /* "NAME=value" over the inherited environment ("NAME": removed), NULL; or NULL */
    bool env_alone;         /* `env` is all of the child's environment: nothing is inherited */
    const char *dir;        /* working folder, or NULL */
    const char *stdout_path; /* appended to, created 0600; NULL: /dev/null; "-": inherited */
    const char *stderr_path; /* the same; may equal stdout_path */
    int stdio_fd[3];         /* > 2: becomes the child's descriptor 0, 1 or 2; else as said above */
    int pass_fd;             /* > 2: stays open in the child under the same number; else 0 */
    uid_t uid;               /* run as this user and group when not 0 (needs root) */
    gid_t gid;
    bool no_new_privs;      /* what it executes gains no privilege */
    const char *join_group; /* path of a cgroup.procs that it enters, or NULL */
    bool own_group;         /* its own process group: process_kill_group reaches its children too */
    bool own_session;       /* setsid: survives the terminal (implies own_group) */
    bool die_with_parent;   /* SIGKILL when the starting thread dies */
    /* How the child becomes the program, NULL: execvpe. Runs between fork and exec with all of the above
     * done, so it may make async-signal-safe calls only. It returns only when it failed: errno, and what
     * could not be done ("execute"), a text that is never freed. */
    const char *(*execute)(void *arg, const char *const *argv, char *const *env);
    void *execute_arg;
};

/* Start it. All other descriptors are closed, signals are default and unblocked, stdin is /dev/null. A
 * program that cannot be executed is an error here (ERR_NOT_FOUND, ERR_IO), not a child that dies. */
int process_spawn(const struct process_options *options, pid_t *pid, struct err *err);

/* Watch a process (a child or not) by pidfd. 'exited' is called once: for a child it is reaped and 'status'
 * is what waitpid gives; for another's child status is -1. */
struct process_watch;
typedef void process_exit_fn(void *arg, pid_t pid, int status);
struct process_watch *process_watch_create(struct event_base *base, pid_t pid, process_exit_fn *exited,
                                           void *arg, struct err *err);
void process_watch_destroy(struct process_watch *watch); /* may be called inside 'exited'; does not kill */

/* Clock ticks after boot when 'pid' started (/proc/PID/stat field 22); 0 if it does not run (or is a zombie).
 * A pid noted with it is recognised after a restart. */
uint64_t process_start_time(pid_t pid);
bool process_is(pid_t pid, uint64_t start_time);

/* Signal the process's group (it must lead one) or, failing that, itself. Gone is success. */
int process_kill_group(pid_t pid, int signal_number, struct err *err);

/* Blocking: SIGTERM ('signal_number'), wait up to grace_ms, SIGKILL its group, wait. start_time 0: not
 * checked. Reaps a child. ERR_TIMEOUT if it lives on. */
int process_stop(pid_t pid, uint64_t start_time, int signal_number, uint32_t grace_ms, struct err *err);

/* "killed by signal 9 (Killed)", "exited with status 3": of a waitpid status. Returns out. */
char *process_status_text(int status, char out[64]);

/* Path of the program of our own build named 'name': beside the running one, else as found on PATH. */
int process_sibling(const char *name, char *out, size_t size, struct err *err);

#endif
