/* `motley devices --code`: which cards this build has kernels for, as its worker tells. */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/process.h"

enum { ANSWER_BYTES_MAX = 1 << 20, ANSWER_SECONDS_MAX = 30 };

/* Read until the other side has ended. */
static int answer_read(int fd, struct buf *answer, struct err *err)
{
    uint64_t deadline = clock_mono_ns() + ANSWER_SECONDS_MAX * 1000000000ull;
    char piece[4096];
    for (;;) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        int left_ms = clock_left_ms(deadline, ANSWER_SECONDS_MAX * 1000);
        int ready = left_ms > 0 ? poll(&wait, 1, left_ms) : 0;
        if (ready == 0)
            return err_set(err, ERR_TIMEOUT, "motley-worker --code has not answered in %d s",
                           ANSWER_SECONDS_MAX);
        ssize_t got = ready < 0 ? -1 : read(fd, piece, sizeof piece);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(err, ERR_IO, errno, "motley-worker --code");
        if (got == 0)
            return 0;
        if (buf_append(answer, piece, (size_t)got, err) != 0)
            return -1;
    }
}

static int worker_ask(struct buf *answer, struct err *err)
{
    char program[4096];
    const char *argv[] = {program, "--code", NULL};
    int ends[2];
    pid_t pid;
    if (process_sibling("motley-worker", program, sizeof program, err) != 0)
        return -1;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return err_errno(err, ERR_IO, errno, "a pipe");
    struct process_options options = {
        .argv = argv, .stderr_path = "-", .stdio_fd = {0, ends[1], 0}, .die_with_parent = true};
    int result = process_spawn(&options, &pid, err);
    close(ends[1]);
    if (result == 0) {
        struct err ignored; /* it has ended, or is ended now */
        result = answer_read(ends[0], answer, err);
        process_stop(pid, 0, SIGTERM, 1000, &ignored);
    }
    close(ends[0]);
    return result;
}

static void told(const json_t *list)
{
    const json_t *object;
    size_t index;
    printf("compiled by %s\n%-5s %-8s %-6s %10s %10s  %s\n", show_str(list, "compiler"), "KIND", "ARCH",
           "FORM", "BYTES", "PACKED", "");
    json_array_foreach(json_object_get(list, "objects"), index, object)
    {
        const char *why = show_str(object, "why");
        if (why[0] != '\0')
            printf("%-5s %-8s %-6s %10s %10s  not inside: %s\n", show_str(object, "kind"),
                   show_str(object, "arch"), show_str(object, "form"), "-", "-", why);
        else
            printf("%-5s %-8s %-6s %10.0f %10.0f\n", show_str(object, "kind"), show_str(object, "arch"),
                   show_str(object, "form"), show_num(object, "bytes", 0),
                   show_num(object, "packed_bytes", 0));
    }
    printf(
        "\nNVIDIA's drivers translate PTX for newer cards, once, and keep the result; AMD's code is for one "
        "architecture each.\n");
}

int show_code(struct cli *cli, struct err *err)
{
    struct buf answer = {.limit = ANSWER_BYTES_MAX};
    json_t *list = NULL;
    int result = worker_ask(&answer, err);
    if (result == 0) {
        list = json_parse_limited(buf_str(&answer), answer.size, 16, err);
        result = list == NULL ? err_wrap(err, "motley-worker --code") : 0;
    }
    if (result == 0 && cli->json)
        result = show_json(list, err);
    else if (result == 0)
        told(list);
    json_decref(list);
    buf_fini(&answer);
    return result;
}
