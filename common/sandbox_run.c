/* Runs a program in the sandbox. Its input is a sealed memory file, so nothing is written to a pipe that
 * nobody reads. Its output and standard error are read until both end, under one deadline. */
#include "common/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/file.h"
#include "common/process.h"

enum {
    READABLE_MAX = 128,
    STDERR_BYTES = 4096, /* last bytes of standard error that are stored */
    LINE_BYTES = 160,
    SHEBANG_BYTES = 256,
    WORDS_MAX = 64,
    PIPE_BYTES = 1 << 20,
    REAP_MS = 5000, /* time to reap after SIGKILL */
};

const char *const sandbox_readable[] = {
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/bin",
    "/sbin",
    "/opt",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/alternatives",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/nsswitch.conf",
    "/dev/null",
    "/dev/zero",
    "/dev/urandom",
    "/dev/random",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system/cpu",
    "/sys/kernel/mm/transparent_hugepage",
    NULL,
};

struct running {
    const struct sandbox_command *command;
    struct sandbox_limits limits;
    const char *readable[READABLE_MAX + 1];
    size_t readable_count;
    glob_t python; /* folders /etc/python3*, where Debian keeps a part of Python's library */
    char program[4096], shebang[SHEBANG_BYTES], by_shebang[4096];
    const char *argv[WORDS_MAX + 2];
    pid_t pid;
    int pidfd, input, out[2], errors[2];
    char last[STDERR_BYTES];
    size_t last_size;
    bool exited;
    int status;
};

/* ---- before the program starts ---- */

/* Resolves "NAME" to "/usr/bin/NAME", in the folders of the sandbox's PATH. */
static int program_find(const char *name, char out[4096], struct err *err)
{
    static const char *const folders[] = {"/usr/local/bin", "/usr/bin", "/bin"};
    if (strchr(name, '/')) {
        if (name[0] != '/')
            return err_set(err, ERR_INVALID, "\"%.200s\" is neither an absolute path nor a name", name);
        if (access(name, X_OK) < 0) {
            return err_errno(err, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, errno,
                             "\"%.200s\" cannot be executed", name);
        }
        return file_path(out, 4096, err, "%s", name);
    }
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
        if (file_path(out, 4096, err, "%s/%s", folders[i], name) == 0 && access(out, X_OK) == 0)
            return 0;
    return err_set(err, ERR_NOT_FOUND, "there is no program \"%.200s\" in /usr/local/bin, /usr/bin or /bin",
                   name);
}

/* Resolves the NAME of "#!/usr/bin/env NAME" here, because env would need a second execve and only one is
 * allowed. */
static int shebang_resolve(struct running *run, size_t *words, struct err *err)
{
    static const char env[] = "#!/usr/bin/env ";
    const int fd = open(run->program, O_RDONLY | O_CLOEXEC);
    const ssize_t size = fd >= 0 ? read(fd, run->shebang, sizeof(run->shebang) - 1) : 0;
    if (fd >= 0)
        close(fd);
    run->shebang[size > 0 ? size : 0] = '\0';
    if (strncmp(run->shebang, env, sizeof(env) - 1) != 0)
        return 0;
    char *name = run->shebang + sizeof(env) - 1;
    name[strcspn(name, " \t\r\n")] = '\0';
    if (program_find(name, run->by_shebang, err) < 0)
        return err_wrap(err, "%.200s", run->program);
    memmove(run->argv + 1, run->argv, *words * sizeof(run->argv[0]));
    run->argv[0] = name;
    run->argv[1] = run->program;
    *words += 1;
    return 0;
}

static int words_take(struct running *run, struct err *err)
{
    const struct sandbox_command *command = run->command;
    size_t words = 0;
    while (command->argv[words]) {
        if (words == WORDS_MAX)
            return err_set(err, ERR_TOO_BIG, "a command of more than %d words", WORDS_MAX);
        run->argv[words] = command->argv[words];
        words++;
    }
    if (words == 0)
        return err_set(err, ERR_INVALID, "a command without words");
    if (program_find(run->argv[0], run->program, err) < 0 || shebang_resolve(run, &words, err) < 0)
        return -1;
    return 0;
}

static void readable_add(struct running *run, const char *path)
{
    if (run->readable_count < READABLE_MAX && path[0] == '/')
        run->readable[run->readable_count++] = path;
}

static void readable_take(struct running *run)
{
    const struct sandbox_command *command = run->command;
    for (size_t i = 0; command->readable && command->readable[i]; i++)
        readable_add(run, command->readable[i]);
    for (size_t i = 0; sandbox_readable[i]; i++)
        readable_add(run, sandbox_readable[i]);
    if (glob("/etc/python3*", GLOB_NOSORT, NULL, &run->python) == 0)
        for (size_t i = 0; i < run->python.gl_pathc; i++)
            readable_add(run, run->python.gl_pathv[i]);
    readable_add(run, run->program);
    for (size_t i = 0; run->argv[i] != NULL; i++)
        if (strcmp(run->argv[i], "/") != 0)
            readable_add(run, run->argv[i]);
}

static int input_make(struct running *run, struct err *err)
{
    const struct sandbox_command *command = run->command;
    run->input = memfd_create("input", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (run->input < 0)
        return err_errno(err, ERR_IO, errno, "could not make an input of %zu bytes", command->input_bytes);
    if (file_pwrite_all(run->input, command->input, command->input_bytes, 0, "the input", err) < 0)
        return -1;
    if (fcntl(run->input, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
        return err_errno(err, ERR_IO, errno, "could not seal an input");
    return 0;
}

/* ---- starting the program ---- */

/* Runs in the child and executes the program. */
static const char *execute(void *arg, const char *const *argv, char *const *env)
{
    const struct running *run = arg;
    const char *failed = NULL;
    const char *path = run->by_shebang[0] != '\0' ? run->by_shebang : run->program;
    const char *hidden = sandbox_enter_program(&run->limits, path, &failed);
    if (!hidden)
        return failed;
    execve(hidden, (char *const *)(uintptr_t)argv, env);
    return "execute";
}

static int sandbox_run_start(struct running *run, struct err *err)
{
    static const char *const env[] = {"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "HOME=/",
                                      "PYTHONDONTWRITEBYTECODE=1", NULL};
    if (pipe2(run->out, O_CLOEXEC) < 0 || pipe2(run->errors, O_CLOEXEC) < 0)
        return err_errno(err, ERR_IO, errno, "could not make a pipe");
    const struct process_options options = {.argv = run->argv,
                                            .env = env,
                                            .env_alone = true,
                                            .dir = "/",
                                            .stdio_fd = {run->input, run->out[1], run->errors[1]},
                                            .own_group = true,
                                            .die_with_parent = true,
                                            .execute = run->command->enters_itself ? NULL : execute,
                                            .execute_arg = run};
    if (process_spawn(&options, &run->pid, err) < 0)
        return -1;
    run->pidfd = (int)syscall(SYS_pidfd_open, run->pid, 0);
    if (run->pidfd < 0)
        return err_errno(err, ERR_IO, errno, "could not watch process %d", (int)run->pid);
    fcntl(run->pidfd, F_SETFD, FD_CLOEXEC);
    for (int i = 0; i < 2; i++) {
        int *ends = i == 0 ? run->out : run->errors;
        close(ends[1]);
        ends[1] = -1;
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
    }
    fcntl(run->out[0], F_SETPIPE_SZ, PIPE_BYTES); /* if this fails the pipe keeps its size */
    return 0;
}

/* ---- while the program runs ---- */

/* Stores the last STDERR_BYTES of standard error. */
static void stderr_append(struct running *run, const char *bytes, size_t size)
{
    if (size >= STDERR_BYTES) {
        bytes += size - STDERR_BYTES;
        size = STDERR_BYTES;
    }
    const size_t keep = run->last_size + size > STDERR_BYTES ? STDERR_BYTES - size : run->last_size;
    memmove(run->last, run->last + run->last_size - keep, keep);
    memcpy(run->last + keep, bytes, size);
    run->last_size = keep + size;
}

/* Reads once from a pipe and closes it at its end. */
static int sandbox_run_take(struct running *run, int *fd, struct buf *out, size_t *taken, struct err *err)
{
    char bytes[65536];
    const ssize_t got = read(*fd, bytes, sizeof(bytes));
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (got <= 0) {
        close(*fd);
        *fd = -1;
        return 0;
    }
    if (fd == &run->errors[0]) {
        stderr_append(run, bytes, (size_t)got);
        return 0;
    }
    *taken += (size_t)got;
    if (*taken > run->command->output_bytes_max)
        return err_set(err, ERR_TOO_BIG, "wrote more than %zu bytes", run->command->output_bytes_max);
    const struct sandbox_command *command = run->command;
    return command->take ? command->take(command->take_arg, bytes, (size_t)got, err)
                         : buf_append(out, bytes, (size_t)got, err);
}

/* Reads until the program and both pipes have ended. */
static int sandbox_run_follow(struct running *run, struct buf *out, uint64_t deadline_ns, struct err *err)
{
    size_t taken = 0;
    while (!run->exited || run->out[0] >= 0 || run->errors[0] >= 0) {
        const int left_ms = (int)clock_left_ms(deadline_ns, 3600000);
        const int cancel = run->command->cancel_fd > 2 ? run->command->cancel_fd : -1;
        struct pollfd fds[4] = {{.fd = run->out[0], .events = POLLIN},
                                {.fd = run->errors[0], .events = POLLIN},
                                {.fd = run->exited ? -1 : run->pidfd, .events = POLLIN},
                                {.fd = cancel, .events = POLLIN}};
        if (left_ms <= 0)
            return err_set(err, ERR_TIMEOUT, "was not done within %g s", run->command->deadline_ms / 1000.0);
        if (poll(fds, 4, left_ms) < 0) {
            if (errno == EINTR)
                continue;
            return err_errno(err, ERR_IO, errno, "could not wait for it");
        }
        if (fds[3].revents != 0)
            return err_set(err, ERR_CANCELLED, "was stopped because nobody waits any more");
        if (fds[0].revents != 0 && sandbox_run_take(run, &run->out[0], out, &taken, err) < 0)
            return -1;
        if (fds[1].revents != 0 && sandbox_run_take(run, &run->errors[0], NULL, &taken, err) < 0)
            return -1;
        if (fds[2].revents != 0)
            run->exited = waitpid(run->pid, &run->status, WNOHANG) == run->pid;
    }
    return 0;
}

/* ---- after the program has ended ---- */

/* Writes the last line of standard error that is not empty; "" when there is none. */
static void last_line(const struct running *run, char out[LINE_BYTES + 3])
{
    size_t end = run->last_size;
    while (end > 0 && (unsigned char)run->last[end - 1] <= ' ')
        end--;
    size_t begin = end;
    while (begin > 0 && run->last[begin - 1] != '\n')
        begin--;
    size_t used = 0;
    if (end > begin) {
        out[used++] = ':';
        out[used++] = ' ';
    }
    for (size_t i = begin; i < end && used < LINE_BYTES + 2; i++) {
        const unsigned char c = (unsigned char)run->last[i];
        out[used++] = c >= ' ' && c < 0x7f ? (char)c : '?';
    }
    out[used] = '\0';
}

static int check_end(const struct running *run, struct err *err)
{
    char how[64], line[LINE_BYTES + 3];
    if (WIFEXITED(run->status) && WEXITSTATUS(run->status) == 0)
        return 0;
    if (WIFSIGNALED(run->status) && WTERMSIG(run->status) == SIGXCPU)
        return err_set(err, ERR_TIMEOUT, "used more than %u s of processor time", run->limits.cpu_s);
    last_line(run, line);
    return err_set(err, ERR_PEER, "%s%s%s", WIFSIGNALED(run->status) ? "was " : "",
                   process_status_text(run->status, how), line);
}

/* Kills the program and all its threads; none of them can have left its group. */
static void kill_group(struct running *run)
{
    struct pollfd gone = {.fd = run->pidfd, .events = POLLIN};
    if (run->pid > 0 && !run->exited) {
        kill(-run->pid, SIGKILL);
        kill(run->pid, SIGKILL);
        if (run->pidfd >= 0)
            poll(&gone, 1, REAP_MS);
        waitpid(run->pid, &run->status, WNOHANG);
    }
    const int fds[] = {run->pidfd, run->input, run->out[0], run->out[1], run->errors[0], run->errors[1]};
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    globfree(&run->python);
}

int sandbox_run(const struct sandbox_command *command, struct buf *out, struct err *err)
{
    const uint64_t deadline_ns = clock_mono_ns() + (uint64_t)command->deadline_ms * 1000000u;
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    const uint32_t processors = online > 0 && online < 4096 ? (uint32_t)online : 1;
    struct running *run = calloc(1, sizeof(*run));
    if (!run)
        return err_set(err, ERR_NOMEM, "no memory to run \"%.200s\"", command->argv[0]);
    *run = (struct running){.command = command,
                            .limits = {.memory_bytes = command->memory_bytes,
                                       .cpu_s = (command->deadline_ms / 1000 + 1) * processors,
                                       .threads = true},
                            .pidfd = -1,
                            .input = -1,
                            .out = {-1, -1},
                            .errors = {-1, -1}};
    run->limits.readable = run->readable;
    int result = words_take(run, err);
    if (result == 0) {
        readable_take(run);
        result = input_make(run, err) < 0 || sandbox_run_start(run, err) < 0 ||
                         sandbox_run_follow(run, out, deadline_ns, err) < 0 || check_end(run, err) < 0
                     ? -1
                     : 0;
    }
    kill_group(run);
    free(run);
    return result;
}
