#include "common/program_json.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/process.h"

enum { DEPTH_MAX = 16, END_MS = 1000 };

/* Reads everything that the program prints until it closes its output. */
static int program_json_read_all(int fd, uint64_t deadline_ns, const char *program, struct buf *out,
                                 struct err *err)
{
    char piece[4096];
    for (;;) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        int left_ms = clock_left_ms(deadline_ns, INT32_MAX);
        int found = left_ms > 0 ? poll(&ready, 1, left_ms) : 0;
        if (found == 0)
            return err_set(err, ERR_TIMEOUT, "%s has not answered in time", program);
        ssize_t got = found < 0 ? -1 : read(fd, piece, sizeof(piece));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(err, ERR_IO, errno, "the answer of %s", program);
        if (got == 0)
            return 0;
        if (buf_append(out, piece, (size_t)got, err) < 0)
            return err_wrap(err, "the answer of %s", program);
    }
}

/* Waits for the program to end after it closed its output; stops one that does not. */
static int reap(pid_t pid, uint64_t deadline_ns, int *status, struct err *err)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    for (;;) {
        pid_t ended = waitpid(pid, status, WNOHANG);
        if (ended == pid)
            return 0;
        if (clock_left_ms(deadline_ns, INT32_MAX) <= 0)
            break;
        nanosleep(&pause, NULL);
    }
    struct err ignored; /* process_stop ends the program in any case */
    process_stop(pid, 0, SIGTERM, END_MS, &ignored);
    return err_set(err, ERR_TIMEOUT, "it has not ended in time");
}

static int program_json_run(const char *const *argv, uint32_t seconds, struct buf *out, struct err *err)
{
    uint64_t deadline_ns = clock_mono_ns() + (uint64_t)seconds * 1000000000u;
    int ends[2];
    pid_t pid = 0;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_errno(err, ERR_IO, errno, "no pipe to ask %s", argv[0]);
    struct process_options options = {.argv = argv,
                                      .stdio_fd = {0, ends[1], 0},
                                      .stderr_path = "-",
                                      .own_group = true,
                                      .die_with_parent = true};
    int result = process_spawn(&options, &pid, err);
    close(ends[1]);
    if (result == 0) {
        struct err late;
        char text[64];
        int status = 0;
        result = program_json_read_all(ends[0], deadline_ns, argv[0], out, err);
        int reaped = reap(pid, result < 0 ? 0 : deadline_ns, &status, &late);
        if (result == 0 && reaped < 0) {
            *err = late;
            result = err_wrap(err, "%s", argv[0]);
        } else if (result == 0 && status != 0) {
            result = err_set(err, ERR_PEER, "%s %s", argv[0], process_status_text(status, text));
        }
    }
    close(ends[0]);
    return result;
}

int program_text(const char *const *argv, uint32_t seconds, struct buf *out, struct err *err)
{
    buf_init(out, PROGRAM_ANSWER_BYTES_MAX);
    return program_json_run(argv, seconds, out, err);
}

json_t *program_json(const char *const *argv, uint32_t seconds, struct err *err)
{
    struct buf text;
    json_t *answer = NULL;
    buf_init(&text, PROGRAM_ANSWER_BYTES_MAX);
    if (program_json_run(argv, seconds, &text, err) == 0) {
        answer = json_parse_limited(buf_str(&text), text.size, DEPTH_MAX, err);
        if (!answer)
            err_wrap(err, "what %s prints", argv[0]);
    }
    buf_fini(&text);
    return answer;
}
