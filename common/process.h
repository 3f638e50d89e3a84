/* Child processes: starting, watching, recognising and stopping them. Thread: a watch belongs to its event
 * base's thread. */
#ifndef MOTLEY_COMMON_PROCESS_H
#define MOTLEY_COMMON_PROCESS_H

#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/err.h"

struct process_options {
    const char *const *argv; /* argv[0] is the program's path (or a name on PATH); NULL-terminated */
    const char *const *env;  /* changes to the inherited environment: "NAME=value" sets, "NAME" removes;
                                NULL-terminated; or NULL */
    bool env_alone;          /* `env` is the child's whole environment; nothing is inherited */
    const char *dir;         /* working folder, or NULL */
    const char *stdout_path; /* file to append standard output to, created with mode 0600; NULL: /dev/null;
                                "-": inherited */
    const char
        *stderr_path; /* file for standard error, with the rules of stdout_path; both may be one file */
    int stdio_fd[3];  /* a value above 2 becomes the child's descriptor 0, 1 or 2; else the fields above apply
                       */
    int pass_fd;      /* a descriptor above 2 that stays open in the child under the same number; else 0 */
    uid_t uid;        /* the child runs as this user and group if not 0 (needs root) */
    gid_t gid;
    bool no_new_privs;      /* programs that the child executes gain no privileges */
    const char *join_group; /* path of the cgroup.procs that the child joins, or NULL */
    bool own_group;   /* the child leads a process group, so process_kill_group reaches its children too */
    bool own_session; /* the child leads a session and survives the terminal (implies own_group) */
    bool die_with_parent; /* the child gets SIGKILL when the starting thread ends */
    /* Replaces the child by the program; NULL means execvpe. It runs between fork and exec after all of the
     * above, so it may make async-signal-safe calls only. It returns only on failure, with errno set and a
     * text that names the failed action ("execute") and is never freed. */
    const char *(*execute)(void *arg, const char *const *argv, char *const *env);
    void *execute_arg;
};

/* Starts the program. All other descriptors are closed, signals are default and unblocked, stdin is
 * /dev/null. A program that cannot be executed is an error here (ERR_NOT_FOUND, ERR_IO), not a child that
 * exits. */
int process_spawn(const struct process_options *options, pid_t *pid, struct err *err);

/* Runs the program to its end; blocks. ERR_IO names the program and how it ended unless it exited with 0;
 * ERR_TIMEOUT when it was killed, with its group, after so many seconds. */
int process_run(const struct process_options *options, unsigned seconds, struct err *err);

/* Watches a process by pidfd. 'exited' is called once. A child is reaped and 'status' is that of waitpid; for
 * a process that is not our child status is -1. */
struct process_watch;
typedef void process_exit_fn(void *arg, pid_t pid, int status);
struct process_watch *process_watch_create(struct event_base *base, pid_t pid, process_exit_fn *exited,
                                           void *arg, struct err *err);
void process_watch_destroy(struct process_watch *watch); /* may be called inside 'exited'; does not kill */

/* The start time of 'pid' in clock ticks after boot (/proc/PID/stat field 22); 0 if it does not run (or is a
 * zombie). A pid stored with it is recognised after a restart. */
uint64_t process_start_time(pid_t pid);
bool process_is(pid_t pid, uint64_t start_time);

/* Sends a signal to process 'pid' if it began at 'start_time' (0 is not checked), through a descriptor, so
 * that no other process that got its number meanwhile is hit. A process that has ended is a success. */
int process_signal(pid_t pid, uint64_t start_time, int signal_number, struct err *err);

/* Sends a signal to the group that our child leads, or else (also when it is not our child) to the process as
 * process_signal does. */
int process_kill_group(pid_t pid, uint64_t start_time, int signal_number, struct err *err);

/* Stops a process; blocks: sends 'signal_number', waits up to grace_ms, sends SIGKILL to its group, and
 * waits. start_time 0 is not checked. Reaps a child. ERR_TIMEOUT if the process still runs. */
int process_stop(pid_t pid, uint64_t start_time, int signal_number, uint32_t grace_ms, struct err *err);

/* Describes a waitpid status: "killed by signal 9 (Killed)", "exited with status 3". Returns out. */
char *process_status_text(int status, char out[64]);

/* Finds the program of our own build named 'name': in the folder of the running one, else on PATH. */
int process_sibling(const char *name, char *out, size_t size, struct err *err);

#endif
