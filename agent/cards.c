#include "agent/cards.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/process.h"

enum { ANSWER_BYTES_MAX = 1 << 20, ANSWER_SECONDS = 30, HELD_MAX = 64 };
static const uint64_t RESERVE_BYTES = 500000000; /* of a card, beside the share that plans use */
static const uint64_t STEP_BYTES = 64 << 20;     /* so that a few bytes more or less are no other device */

/* All that the program prints until it ends. */
static int read_all(int fd, struct buf *out, struct err *err)
{
    const int64_t deadline_ns = clock_mono_ns() + (int64_t)ANSWER_SECONDS * 1000000000;
    for (;;) {
        char piece[4096];
        int64_t left_ms = (deadline_ns - clock_mono_ns()) / 1000000;
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (left_ms <= 0 || poll(&ready, 1, (int)left_ms) <= 0) {
            return err_set(err, ERR_TIMEOUT, "the drivers have not answered in %d s", ANSWER_SECONDS);
        }
        ssize_t got = read(fd, piece, sizeof(piece));
        if (got < 0) {
            return err_errno(err, ERR_IO, errno, "the list of cards could not be read");
        }
        if (got == 0) {
            return 0;
        }
        if (buf_append(out, piece, (size_t)got, err) < 0) {
            return -1;
        }
    }
}

static int worker_ask(const char *worker, struct buf *out, struct err *err)
{
    const char *argv[] = {worker, "--devices", NULL};
    int ends[2];
    pid_t pid = 0;
    char text[64];
    if (pipe2(ends, O_CLOEXEC) < 0) {
        return err_errno(err, ERR_IO, errno, "no pipe to ask for cards");
    }
    struct process_options options = {.argv = argv,
                                      .stdio_fd = {0, ends[1], 0},
                                      .stderr_path = "-",
                                      .own_group = true,
                                      .die_with_parent = true};
    int result = process_spawn(&options, &pid, err);
    close(ends[1]);
    if (result == 0) {
        result = read_all(ends[0], out, err);
        if (result < 0) {
            kill(pid, SIGKILL);
        }
        int status = 0;
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        }
        if (result == 0 && status != 0) {
            result = err_set(err, ERR_PEER, "the drivers were asked in vain: %s",
                             process_status_text(status, text));
        }
    }
    close(ends[0]);
    return result;
}

json_t *cards_ask(const char *worker, struct err *err)
{
    struct buf text;
    struct err why;
    json_t *answer = NULL;
    buf_init(&text, ANSWER_BYTES_MAX);
    if (worker_ask(worker, &text, &why) == 0) {
        answer = json_loadb((const char *)text.data, text.size, 0, NULL);
    }
    if (!json_is_array(json_object_get(answer, "cards")) ||
        !json_is_array(json_object_get(answer, "drivers"))) {
        json_decref(answer);
        answer = json_pack("{s:[{s:s, s:s}], s:[]}", "drivers", "kind", "", "why",
                           text.size > 0 ? "the list of cards is no such list" : why.text, "cards");
    }
    buf_fini(&text);
    if (answer == NULL) {
        err_set(err, ERR_NOMEM, "no memory for a list of cards");
    }
    return answer;
}

const json_t *cards_find(const json_t *cards, const char *kind, uint32_t index)
{
    const json_t *card;
    size_t i;
    json_array_foreach((json_t *)json_object_get(cards, "cards"), i, card)
    {
        const char *own = json_string_value(json_object_get(card, "kind"));
        if (own != NULL && strcmp(own, kind) == 0 &&
            json_integer_value(json_object_get(card, "index")) == (json_int_t)index) {
            return card;
        }
    }
    return NULL;
}

uint64_t card_memory_default(const json_t *card)
{
    json_int_t available = json_integer_value(json_object_get(card, "free_bytes"));
    uint64_t share = available > 0 ? (uint64_t)available / 100 * 92 : 0;
    share = share > 2 * RESERVE_BYTES ? share - RESERVE_BYTES : share / 2;
    return share / STEP_BYTES * STEP_BYTES;
}

/* Locks of this process: their files stay open as long as it lives. */
static char held[HELD_MAX][128];
static uint32_t held_count;

int card_lock(const json_t *card, struct err *err)
{
    const char *uuid = json_string_value(json_object_get(card, "uuid"));
    const char *pci = json_string_value(json_object_get(card, "pci"));
    const char *id = uuid != NULL && *uuid != '\0' ? uuid : pci;
    char path[128];
    if (id == NULL || *id == '\0') {
        return 0; /* an emulated one: there are as many as one likes */
    }
    snprintf(path, sizeof(path), "/dev/shm/motley-card-%.80s", id);
    for (char *at = path + strlen("/dev/shm/"); *at != '\0'; at++) {
        *at = *at == '/' ? '-' : *at;
    }
    for (uint32_t i = 0; i < held_count; i++) {
        if (strcmp(held[i], path) == 0) {
            return 0;
        }
    }
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0) {
        close(fd);
        return err_set(err, ERR_CONFLICT, "another agent of this machine uses it");
    }
    if (fd >= 0 && held_count < HELD_MAX) { /* a file that cannot be made keeps nobody from training */
        snprintf(held[held_count++], sizeof(held[0]), "%s", path);
    }
    return 0;
}
