/* A worker for tests of the daemon that does what its assignment's spec says ("do": steps:N, wait, stubborn,
 * crash, liar, quick-exit, stops:MS). It speaks the protocol of worker/worker.h. One thread. */
#ifndef MOTLEY_TESTS_FAKE_WORKER_H
#define MOTLEY_TESTS_FAKE_WORKER_H

#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/frame.h"

enum { SPOOL = 4096 };

struct fake {
    int listener, agent;
    json_t *fields;
    json_t *events[SPOOL]; /* [seq - 1] event of each number */
    int64_t last, acked;
    bool stubborn;
};

static inline void fake_send(struct fake *fake, json_t *document)
{
    struct err err;
    if (fake->agent >= 0 && frame_send(fake->agent, document, clock_mono_ns() + 2000000000u, &err) < 0) {
        close(fake->agent);
        fake->agent = -1;
    }
}

static inline void fake_emit(struct fake *fake, const char *type, json_t *event)
{
    json_object_set_new(event, "type", json_string(type));
    json_object_update(event, fake->fields);
    json_object_set_new(event, "at", json_integer(clock_wall_us()));
    json_object_set_new(event, "seq", json_integer(++fake->last));
    fake->events[fake->last - 1] = event;
    fake_send(fake, event);
}

static inline void fake_greet(struct fake *fake)
{
    json_t *hello =
        json_pack("{s:s, s:i, s:I}", "type", "worker_hello", "pid", (int)getpid(), "seq", fake->last);
    json_object_update(hello, fake->fields);
    fake_send(fake, hello);
    json_decref(hello);
    for (int64_t seq = fake->acked; seq < fake->last; seq++)
        fake_send(fake, fake->events[seq]);
}

/* Returns the next message other than ack, or NULL when 'until_acked' is set and every event is acknowledged.
 */
static inline json_t *fake_next(struct fake *fake, bool until_acked)
{
    uint64_t deadline_ns = clock_mono_ns() + 60000000000u;
    while (clock_left_ms(deadline_ns, 1) > 0 && !(until_acked && fake->acked == fake->last)) {
        struct pollfd fds[2] = {{.fd = fake->listener, .events = POLLIN},
                                {.fd = fake->agent, .events = POLLIN}};
        if (poll(fds, fake->agent >= 0 ? 2 : 1, 1000) <= 0)
            continue;
        if (fds[0].revents) {
            if (fake->agent >= 0)
                close(fake->agent);
            fake->agent = accept(fake->listener, NULL, NULL);
            fake_greet(fake);
        } else if (fake->agent >= 0 && fds[1].revents) {
            struct err err;
            json_t *message = NULL;
            if (frame_recv(fake->agent, &frame_limits_default, clock_mono_ns() + 2000000000u, &message,
                           &err) < 0) {
                close(fake->agent);
                fake->agent = -1;
            } else if (strcmp(json_string_value(json_object_get(message, "type")), "ack") == 0) {
                int64_t seq = json_integer_value(json_object_get(message, "seq"));
                fake->acked = seq > fake->acked ? seq : fake->acked;
                json_decref(message);
            } else {
                return message;
            }
        }
    }
    return NULL;
}

static inline void fake_steps(struct fake *fake, int from, int count)
{
    for (int i = 0; i < count; i++)
        fake_emit(fake, "step", json_pack("{s:i}", "step", from + i));
}

static inline int fake_finish(struct fake *fake, const char *type)
{
    fake_emit(fake, type, json_object());
    json_decref(fake_next(fake, true));
    return fake->acked == fake->last ? 0 : 1;
}

static volatile sig_atomic_t fake_termed;

static inline void fake_on_term(int number)
{
    (void)number;
    fake_termed = 1;
}

/* As a worker whose step takes so long: when SIGTERM comes the step under way ends, a checkpoint is stored,
 * and the run has stopped. */
static inline int fake_stops(struct fake *fake, long ms)
{
    const struct timespec tick = {.tv_nsec = 2000000};
    signal(SIGTERM, fake_on_term);
    fake_emit(fake, "started", json_object());
    while (!fake_termed)
        nanosleep(&tick, NULL);
    const uint64_t ends_ns = clock_mono_ns() + (uint64_t)ms * 1000000u;
    while (clock_mono_ns() < ends_ns)
        nanosleep(&tick, NULL);
    fake_steps(fake, 0, 1);
    return fake_finish(fake, "stopped");
}

/* Does what an assignment's spec asks for. */
static inline int fake_run(struct fake *fake, const char *what)
{
    if (strcmp(what, "stubborn") == 0)
        signal(SIGTERM, SIG_IGN);
    fake_emit(fake, "worker_ready", json_pack("{s:s}", "address", "127.0.0.1:1"));
    if (strncmp(what, "steps:", 6) == 0) {
        fake_emit(fake, "started", json_object());
        fake_steps(fake, 0, (int)strtol(what + 6, NULL, 10));
        return fake_finish(fake, "done");
    }
    if (strncmp(what, "stops:", 6) == 0)
        return fake_stops(fake, strtol(what + 6, NULL, 10));
    if (strcmp(what, "crash") == 0) {
        fprintf(stderr, "the tensor was on fire\nand so was the card\n");
        raise(SIGKILL);
    }
    if (strcmp(what, "liar") == 0) { /* sends a length above every bound */
        ssize_t wrote = write(fake->agent, "\xff\xff\xff\xffxyz", 7);
        (void)wrote;
        json_decref(fake_next(fake, false));
    }
    if (strcmp(what, "quick-exit") == 0) { /* sends everything at once and exits without waiting */
        fake_emit(fake, "started", json_object());
        fake_steps(fake, 0, 500);
        fake_emit(fake, "done", json_object());
        return 0;
    }
    for (int step = 0;;) { /* "wait": ten steps for the first `peers` and for each later one, until stop */
        json_t *message = fake_next(fake, false);
        const char *type = !message ? "" : json_string_value(json_object_get(message, "type"));
        bool stop = strcmp(type, "stop") == 0 && strcmp(what, "stubborn") != 0;
        if (strcmp(type, "peers") == 0) {
            fake_emit(fake, "started", json_object());
            fake_steps(fake, step, 10);
            step += 10;
        }
        json_decref(message);
        if (stop)
            return fake_finish(fake, "stopped");
        if (!message)
            return 1;
    }
}

static inline int fake_main(const char *path)
{
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1)
        return 78; /* every worker must be started without a way to new privileges */
    struct fake fake = {.agent = -1, .fields = json_object()};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    fake.listener = socket(AF_UNIX, SOCK_STREAM, 0);
    unlink(path);
    if (bind(fake.listener, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fake.listener, 4) < 0)
        return 3;
    json_t *work = fake_next(&fake, false);
    if (!work)
        return 4;
    static const char *const keys[] = {"run", "epoch", "rank", "request"};
    for (int i = 0; i < 4; i++)
        json_object_set(fake.fields, keys[i], json_object_get(work, keys[i]));
    if (!getenv("MOTLEY_ISA") || !getenv("OPENBLAS_NUM_THREADS"))
        return 5;
    if (strcmp(json_string_value(json_object_get(work, "type")), "prove") == 0) {
        fake_emit(&fake, "proved", json_object());
        json_decref(fake_next(&fake, true));
        return 0;
    }
    if (strcmp(json_string_value(json_object_get(work, "type")), "profile") == 0) {
        if (strcmp(json_string_value(json_object_get(work, "method")), "crash") == 0)
            return 9;
        fake_emit(&fake, "profile",
                  json_pack("{s:{s:O}}", "document", "local", json_object_get(work, "local")));
        json_decref(fake_next(&fake, true));
        return 0;
    }
    return fake_run(&fake, json_string_value(json_object_get(json_object_get(work, "spec"), "do")));
}

#endif
