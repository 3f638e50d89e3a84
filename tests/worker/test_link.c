/* Tests the worker's side of its socket: numbers have no gaps, nothing is lost while the agent is away,
 * nothing is unbounded. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/frame.h"
#include "support/scratch.h"
#include "worker/session/link.h"

#define SECONDS(n) ((uint64_t)(n) * 1000000000u)

struct place {
    struct scratch scratch;
    struct worker_link *link;
    char path[300];
};

static void place_open(struct place *place, uint64_t spool_bytes, uint64_t alone_ns)
{
    struct err err;
    assert_int_equal(scratch_make(&place->scratch), 0);
    snprintf(place->path, sizeof(place->path), "%s/s", place->scratch.dir);
    struct worker_link_options options = {
        .path = place->path, .spool_bytes = spool_bytes, .alone_ns = alone_ns};
    assert_int_equal(worker_link_open(&options, &place->link, &err), 0);
}

static void place_close(struct place *place)
{
    worker_link_close(place->link);
    assert_false(file_exists(place->path));
    scratch_remove(&place->scratch);
}

static int dial(const struct place *place)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%.107s", place->path);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static json_t *receive(int fd)
{
    struct err err;
    json_t *message = NULL;
    if (frame_recv(fd, &frame_limits_default, clock_mono_ns() + SECONDS(20), &message, &err) < 0)
        fail_msg("nothing came: %s", err.text);
    return message;
}

static void expect(int fd, const char *type, json_int_t seq)
{
    json_t *message = receive(fd);
    assert_string_equal(json_string_value(json_object_get(message, "type")), type);
    assert_int_equal(json_integer_value(json_object_get(message, "seq")), seq);
    assert_int_equal(json_integer_value(json_object_get(message, "run")), 5);
    json_decref(message);
}

static void say(int fd, json_t *message)
{
    struct err err;
    assert_int_equal(frame_send(fd, message, clock_mono_ns() + SECONDS(20), &err), 0);
    json_decref(message);
}

static void identify(struct place *place)
{
    struct err err;
    json_t *fields = json_pack("{s:i, s:i, s:i}", "run", 5, "epoch", 2, "rank", 1);
    assert_int_equal(worker_link_identify(place->link, fields, &err), 0);
    json_decref(fields);
}

static void emit(struct place *place, const char *type, size_t size)
{
    struct err err;
    char *text = calloc(1, size + 1);
    memset(text, 'x', size);
    if (worker_link_emit(place->link, type, json_pack("{s:s}", "text", text), &err) < 0)
        fail_msg("%s", err.text);
    free(text);
}

static void what_is_not_acknowledged_comes_again_on_each_connection(void **state)
{
    (void)state;
    struct place place;
    struct err err;
    place_open(&place, 0, SECONDS(60));
    identify(&place);
    for (int i = 0; i < 5; i++)
        emit(&place, "step", 100);
    int fd = dial(&place);
    expect(fd, "worker_hello", 5);
    for (int i = 1; i <= 5; i++)
        expect(fd, "step", i);
    emit(&place, "eval", 10);
    expect(fd, "eval", 6);
    say(fd, json_pack("{s:s, s:i, s:i}", "type", "ack", "run", 4, "seq", 6)); /* this ack is of another run */
    say(fd, json_pack("{s:s, s:i, s:i}", "type", "ack", "run", 5, "seq", 3));
    say(fd, json_pack("{s:s}", "type",
                      "peers")); /* once the worker has taken this message, it has taken the acks before it */
    json_t *peers = worker_link_take(place.link, clock_mono_ns() + SECONDS(20), &err);
    assert_non_null(peers);
    json_decref(peers);
    close(fd);
    fd = dial(&place);
    expect(fd, "worker_hello", 6);
    for (int i = 4; i <= 5; i++)
        expect(fd, "step", i);
    expect(fd, "eval", 6);
    assert_int_equal(worker_link_flush(place.link, 1000000, &err), -1);
    assert_int_equal(err.code, ERR_TIMEOUT);
    say(fd, json_pack("{s:s, s:i, s:i}", "type", "ack", "run", 5, "seq",
                      600)); /* a number above the last acknowledges everything */
    assert_int_equal(worker_link_flush(place.link, SECONDS(20), &err), 0);
    emit(&place, "done", 1);
    expect(fd, "done", 7);
    close(fd);
    place_close(&place);
}

static void a_full_spool_drops_traces_first_and_then_waits(void **state)
{
    (void)state;
    struct place place;
    struct err err;
    place_open(&place, 10000, 50000000);
    identify(&place);
    for (int i = 0; i < 6; i++)
        emit(&place, "step", 1000);
    for (int i = 0; i < 100; i++)
        emit(&place, "trace", 1000); /* none of these gets a number */
    for (int i = 0; i < 4; i++)
        emit(&place, "step", 1000);
    json_t *more = json_pack("{s:s}", "text", "y");
    assert_int_equal(worker_link_emit(place.link, "step", more, &err),
                     -1); /* no agent is connected to acknowledge */
    assert_int_equal(err.code, ERR_TIMEOUT);
    int fd = dial(&place);
    expect(fd, "worker_hello", 10);
    for (int i = 1; i <= 10; i++)
        expect(fd, "step", i);
    say(fd, json_pack("{s:s, s:i, s:i}", "type", "ack", "run", 5, "seq", 10));
    emit(&place, "step", 1000);
    expect(fd, "step", 11);
    close(fd);
    place_close(&place);
}

static void a_frame_beyond_its_bound_ends_the_connection_only(void **state)
{
    (void)state;
    struct place place;
    place_open(&place, 0, SECONDS(60));
    identify(&place);
    static const uint8_t lies[][8] = {{0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4},
                                      {0, 0, 0, 4, 0xc1, 0xc1, 0xc1, 0xc1}};
    for (size_t l = 0; l < 2; l++) {
        int fd = dial(&place);
        char byte;
        expect(fd, "worker_hello", (json_int_t)l);
        for (size_t i = 1; i <= l; i++)
            expect(fd, "step", (json_int_t)i);
        assert_int_equal(send(fd, lies[l], 8, MSG_NOSIGNAL), 8);
        assert_true(recv(fd, &byte, 1, 0) <= 0); /* the worker closed the connection */
        close(fd);
        emit(&place, "step", 10);
    }
    int fd = dial(&place);
    expect(fd, "worker_hello", 2);
    expect(fd, "step", 1);
    expect(fd, "step", 2);
    close(fd);
    place_close(&place);
}

static void an_interrupt_wakes_who_waits(void **state)
{
    (void)state;
    struct place place;
    struct err err;
    place_open(&place, 0, SECONDS(60));
    worker_link_interrupt(place.link);
    assert_null(worker_link_take(place.link, clock_mono_ns() + SECONDS(20), &err));
    assert_int_equal(err.code, ERR_CANCELLED);
    assert_null(worker_link_take(place.link, 0, &err));
    assert_int_equal(err.code, ERR_TIMEOUT);
    place_close(&place);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_acknowledged_comes_again_on_each_connection),
        cmocka_unit_test(a_full_spool_drops_traces_first_and_then_waits),
        cmocka_unit_test(a_frame_beyond_its_bound_ends_the_connection_only),
        cmocka_unit_test(an_interrupt_wakes_who_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
