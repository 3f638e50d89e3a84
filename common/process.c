/* Starts processes by fork and exec: posix_spawn can set neither a parent-death signal nor another user, and
 * cannot close all other descriptors. Between fork and exec only async-signal-safe calls are made. */
#include "common/process.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/file.h"

enum { ENVIRONMENT_MAX = 1024 };

extern char **environ;

/* ---- starting a process ---- */

struct child_error {
    const char *what; /* the failed action: a literal, which has the same address in parent and child */
    int number;
};

static size_t name_length(const char *pair)
{
    return strcspn(pair, "=");
}

/* Returns the inherited environment (with `alone` an empty one) with 'changes' applied, as an array of
 * borrowed texts. */
static char **environment_make(const char *const *changes, bool alone, struct err *err)
{
    size_t count = 0;
    while (!alone && environ[count])
        count++;
    size_t added = 0;
    while (changes && changes[added])
        added++;
    if (count + added > ENVIRONMENT_MAX) {
        err_set(err, ERR_TOO_BIG, "an environment of %zu variables, the limit is %d", count + added,
                ENVIRONMENT_MAX);
        return NULL;
    }
    char **all = calloc(count + added + 1, sizeof(*all));
    if (!all) {
        err_set(err, ERR_NOMEM, "no memory for an environment");
        return NULL;
    }
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        bool replaced = false;
        for (size_t j = 0; j < added && !replaced; j++) {
            size_t length = name_length(changes[j]);
            replaced = name_length(environ[i]) == length && memcmp(environ[i], changes[j], length) == 0;
        }
        if (!replaced)
            all[used++] = environ[i];
    }
    for (size_t j = 0; j < added; j++)
        if (strchr(changes[j], '='))
            all[used++] = (char *)(uintptr_t)changes[j];
    return all;
}

static int output_open(const char *path)
{
    if (!path)
        return open("/dev/null", O_WRONLY);
    return open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
}

static int child_output(const struct process_options *options)
{
    int in = options->stdio_fd[0] > 2 ? options->stdio_fd[0] : open("/dev/null", O_RDONLY);
    if (in < 0 || dup2(in, STDIN_FILENO) < 0)
        return -1;
    const char *const paths[] = {options->stdout_path, options->stderr_path};
    for (int i = 0; i < 2; i++) {
        int given = options->stdio_fd[1 + i];
        if (given <= 2 && paths[i] && strcmp(paths[i], "-") == 0)
            continue;
        int fd = given > 2 ? given : output_open(paths[i]);
        if (fd < 0 || dup2(fd, STDOUT_FILENO + i) < 0)
            return -1;
        if (given <= 2 && fd > STDERR_FILENO) /* descriptors of the caller are closed with all others */
            close(fd);
    }
    return 0;
}

static void child_signals(void)
{
    struct sigaction standard = {.sa_handler = SIG_DFL};
    for (int number = 1; number < NSIG; number++)
        sigaction(number, &standard, NULL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Closes all descriptors except 0-2, 'keep' and 'report'. */
static void child_close(int keep, int report)
{
    int low = keep < report ? keep : report;
    int high = keep < report ? report : keep;
    if (low > 3)
        syscall(SYS_close_range, 3, low - 1, 0);
    int from = low < 3 ? 3 : low + 1;
    if (high > from)
        syscall(SYS_close_range, from, high - 1, 0);
    syscall(SYS_close_range, high + 1, ~0u, 0);
}

static int group_join(const char *procs)
{
    const int fd = open(procs, O_WRONLY);
    const ssize_t wrote =
        fd >= 0 ? write(fd, "0", 1)
                : -1; /* "0" means the writing process; the descriptor is closed with all others */
    return wrote == 1 ? 0 : -1;
}

static void child_run(const struct process_options *options, char **env, pid_t parent, int report)
{
    struct child_error failed = {.what = "start"};
    child_signals();
    if (options->own_session)
        setsid();
    else if (options->own_group)
        setpgid(0, 0);
    if (options->join_group && group_join(options->join_group) < 0) {
        failed.what = "enter its control group";
        goto out;
    }
    if (options->no_new_privs && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) {
        failed.what = "forgo new privileges";
        goto out;
    }
    if (child_output(options) < 0) {
        failed.what = "open its output";
        goto out;
    }
    if (options->dir && chdir(options->dir) < 0) {
        failed.what = "change its folder";
        goto out;
    }
    if (options->uid != 0 &&
        (setgroups(0, NULL) < 0 || setgid(options->gid) < 0 || setuid(options->uid) < 0)) {
        failed.what = "change its user";
        goto out;
    }
    /* The parent-death signal is set after setuid, which clears it. getppid shows whether the parent had
     * ended before. */
    if (options->die_with_parent && (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent))
        goto out;
    child_close(options->pass_fd > 2 ? options->pass_fd : -1, report);
    if (options->pass_fd > 2)
        fcntl(options->pass_fd, F_SETFD, 0);
    failed.what = "execute";
    if (options->execute)
        failed.what = options->execute(options->execute_arg, options->argv, env);
    else
        execvpe(options->argv[0], (char *const *)(uintptr_t)options->argv, env);
out:
    failed.number = errno;
    ssize_t wrote = write(report, &failed, sizeof(failed));
    (void)wrote;
    _exit(127);
}

int process_spawn(const struct process_options *options, pid_t *pid, struct err *err)
{
    char **env = environment_make(options->env, options->env_alone, err);
    if (!env)
        return -1;
    int report[2];
    if (pipe2(report, O_CLOEXEC) < 0) {
        free(env);
        return err_errno(err, ERR_IO, errno, "could not make a pipe");
    }
    pid_t parent = getpid();
    /* No signal handler of ours may run in the child before its signals are reset. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t child = fork();
    if (child == 0)
        child_run(options, env, parent, report[1]);
    int number = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(report[1]);
    free(env);
    struct child_error failed;
    ssize_t got = 0;
    if (child > 0) {
        do {
            got = read(report[0], &failed, sizeof(failed));
        } while (got < 0 && errno == EINTR);
    }
    close(report[0]);
    if (child < 0)
        return err_errno(err, ERR_IO, number, "could not start \"%s\"", options->argv[0]);
    if (got == sizeof(failed)) {
        waitpid(child, NULL, 0);
        bool missing =
            failed.number == ENOSYS || failed.number == EOPNOTSUPP; /* the kernel lacks the feature */
        enum err_code code = failed.number == ENOENT ? ERR_NOT_FOUND : missing ? ERR_UNSUPPORTED : ERR_IO;
        return err_errno(err, code, failed.number, "\"%s\" could not %s", options->argv[0], failed.what);
    }
    *pid = child;
    return 0;
}

/* ---- watching a process ---- */

struct process_watch {
    struct event *event;
    int fd;
    pid_t pid;
    process_exit_fn *exited;
    void *arg;
};

static void watch_ready(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct process_watch *watch = arg;
    int status = -1;
    if (waitpid(watch->pid, &status, WNOHANG) != watch->pid)
        status = -1; /* not our child */
    event_del(watch->event);
    watch->exited(watch->arg, watch->pid, status); /* may destroy the watch */
}

struct process_watch *process_watch_create(struct event_base *base, pid_t pid, process_exit_fn *exited,
                                           void *arg, struct err *err)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0) {
        err_errno(err, errno == ESRCH ? ERR_NOT_FOUND : ERR_IO, errno, "could not watch process %d",
                  (int)pid);
        return NULL;
    }
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    struct process_watch *watch = calloc(1, sizeof(*watch));
    if (watch) {
        *watch = (struct process_watch){.fd = fd, .pid = pid, .exited = exited, .arg = arg};
        watch->event = event_new(base, fd, EV_READ | EV_PERSIST, watch_ready, watch);
    }
    if (!watch || !watch->event || event_add(watch->event, NULL) < 0) {
        if (watch && watch->event)
            event_free(watch->event);
        free(watch);
        close(fd);
        err_set(err, ERR_NOMEM, "could not watch process %d", (int)pid);
        return NULL;
    }
    return watch;
}

void process_watch_destroy(struct process_watch *watch)
{
    if (watch) {
        event_free(watch->event);
        close(watch->fd);
        free(watch);
    }
}

/* ---- recognising a process after a restart ---- */

uint64_t process_start_time(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    struct buf text;
    buf_init(&text, 4096);
    struct err err;
    uint64_t start = 0;
    if (file_read_all(path, 4000, &text, &err) == 0) {
        /* The format is "pid (name) state …". The name may contain anything, so fields are counted from the
         * last ')'. */
        const char *at = strrchr(buf_str(&text), ')');
        char state = at && at[1] == ' ' ? at[2] : 'X';
        int field = 2;
        while (at && field < 22) {
            at = strchr(at + 1, ' ');
            field++;
        }
        if (at && state != 'Z' && state != 'X')
            start = strtoull(at + 1, NULL, 10);
    }
    buf_fini(&text);
    return start;
}

bool process_is(pid_t pid, uint64_t start_time)
{
    return pid > 0 && start_time != 0 && process_start_time(pid) == start_time;
}

/* ---- stopping a process ---- */

int process_signal(pid_t pid, uint64_t start_time, int signal_number, struct err *err)
{
    if (pid <= 1)
        return err_set(err, ERR_INTERNAL, "process %d is not to be signalled", (int)pid);
    /* The descriptor comes first: if the number is the wanted process's afterwards, so is the descriptor. */
    const int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    const bool wanted = fd >= 0 && (start_time == 0 || process_is(pid, start_time));
    const bool failed = fd < 0 || (wanted && syscall(SYS_pidfd_send_signal, fd, signal_number, NULL, 0) < 0);
    const int number = errno;
    if (fd >= 0)
        close(fd);
    if (!failed || number == ESRCH)
        return 0;
    return err_errno(err, ERR_IO, number, "could not signal process %d", (int)pid);
}

int process_kill_group(pid_t pid, uint64_t start_time, int signal_number, struct err *err)
{
    siginfo_t info;
    /* The number of a child is nobody else's until the child is reaped. A group has no descriptor. */
    const bool ours = pid > 1 && waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
    if (ours && kill(-pid, signal_number) == 0)
        return 0;
    return process_signal(pid, start_time, signal_number, err);
}

/* Waits until the process has ended and reaps it if it is our child. */
static bool process_wait_gone(pid_t pid, int fd, uint64_t deadline_ns)
{
    for (;;) {
        if (waitpid(pid, NULL, WNOHANG) == pid)
            return true;
        if (process_start_time(pid) == 0) {
            waitpid(pid, NULL, WNOHANG);
            return true;
        }
        int left = clock_left_ms(deadline_ns, 1000);
        if (left == 0)
            return false;
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        poll(&entry, 1, fd < 0 && left > 20 ? 20 : left);
    }
}

int process_stop(pid_t pid, uint64_t start_time, int signal_number, uint32_t grace_ms, struct err *err)
{
    if (pid <= 1)
        return err_set(err, ERR_INTERNAL, "process %d is not to be stopped", (int)pid);
    if (start_time != 0 && !process_is(pid, start_time)) {
        waitpid(pid, NULL, WNOHANG); /* it may be our zombie */
        return 0;
    }
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (process_signal(pid, start_time, signal_number, err) < 0) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    bool gone = process_wait_gone(pid, fd, clock_mono_ns() + (uint64_t)grace_ms * 1000000);
    int result = 0;
    if (!gone) {
        process_kill_group(pid, start_time, SIGKILL, err);
        gone = process_wait_gone(pid, fd, clock_mono_ns() + 5000000000u);
        result = gone ? 0 : err_set(err, ERR_TIMEOUT, "process %d lives on after SIGKILL", (int)pid);
    }
    if (fd >= 0)
        close(fd);
    return result;
}

int process_run(const struct process_options *options, unsigned seconds, struct err *err)
{
    pid_t pid = 0;
    int status = 0;
    char text[64];
    const uint64_t deadline_ns = clock_mono_ns() + (uint64_t)seconds * 1000000000u;
    if (process_spawn(options, &pid, err) < 0)
        return -1;
    pid_t got;
    while ((got = waitpid(pid, &status, WNOHANG)) == 0 && clock_left_ms(deadline_ns, 1) > 0)
        poll(NULL, 0, 5);
    if (got == 0) {
        process_stop(pid, 0, SIGKILL, 0, err);
        return err_set(err, ERR_TIMEOUT, "%s did not end within %u s", options->argv[0], seconds);
    }
    return status == 0 ? 0
                       : err_set(err, ERR_IO, "%s %s", options->argv[0],
                                 process_status_text(got < 0 ? -1 : status, text));
}

char *process_status_text(int status, char out[64])
{
    if (status >= 0 && WIFSIGNALED(status))
        snprintf(out, 64, "killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (status >= 0 && WIFEXITED(status))
        snprintf(out, 64, "exited with status %d", WEXITSTATUS(status));
    else
        snprintf(out, 64, "ended");
    return out;
}

int process_sibling(const char *name, char *out, size_t size, struct err *err)
{
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (length > 0) {
        self[length] = '\0';
        char *slash = strrchr(self, '/');
        if (slash) {
            *slash = '\0';
            if (file_path(out, size, err, "%s/%s", self, name) == 0 && access(out, X_OK) == 0)
                return 0;
        }
    }
    const char *path = getenv("PATH");
    while (path && *path != '\0') {
        size_t part = strcspn(path, ":");
        if (part > 0 && file_path(out, size, err, "%.*s/%s", (int)part, path, name) == 0 &&
            access(out, X_OK) == 0) {
            return 0;
        }
        path += part + (path[part] == ':');
    }
    return err_set(err, ERR_NOT_FOUND, "the program %s is neither beside this one nor on PATH", name);
}
