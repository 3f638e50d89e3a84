/* Tests the Redis client against a real server: plain, TLS, refusals, restarts, deadlines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <event2/event.h>
#include <sys/socket.h>

#include "common/redis.h"
#include "support/cluster.h"
#include "support/services.h"

static struct test_dir dir;
static struct test_redis server;

static int server_up(void **state)
{
    (void)state;
    test_dir_make(&dir);
    test_redis_start(&server, dir.path);
    return 0;
}

static int server_down(void **state)
{
    (void)state;
    test_redis_kill(&server);
    test_dir_remove(&dir);
    return 0;
}

struct probe {
    struct event_base *base;
    int waited;
    int good;
    int failed;
    int connected;
    int lost;
    enum err_code last;
    enum err_code why;
    char text[600];
    char value[64];
    int entries;
    size_t bytes;
};

static void probe_reply(void *arg, const redisReply *reply, const struct err *err)
{
    struct probe *probe = arg;
    assert_true((!reply) == (err->code != ERR_NONE));
    if (reply) {
        probe->good++;
        if (reply->str)
            snprintf(probe->value, sizeof(probe->value), "%s", reply->str);
    } else {
        probe->failed++;
        probe->last = err->code;
        snprintf(probe->text, sizeof(probe->text), "%s", err->text);
    }
    if (--probe->waited == 0)
        event_base_loopbreak(probe->base);
}

static void probe_connected(void *arg)
{
    struct probe *probe = arg;
    probe->connected++;
}

static void probe_lost(void *arg, const struct err *why)
{
    struct probe *probe = arg;
    probe->lost++;
    probe->why = why->code;
    snprintf(probe->text, sizeof(probe->text), "%s", why->text);
    if (probe->waited < 0)
        event_base_loopbreak(probe->base);
}

static const struct redis_events probe_events = {.connected = probe_connected, .disconnected = probe_lost};

static void too_late(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    (void)arg;
    fprintf(stderr, "nothing happened for too long\n");
    exit(1);
}

/* Frees the base after one more turn, in which libevent frees bufferevents. */
static void base_end(struct event_base *base)
{
    event_base_loop(base, EVLOOP_NONBLOCK);
    event_base_free(base);
}

static void loop(struct event_base *base, int timeout_ms)
{
    struct timeval wait = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};
    struct event *guard = evtimer_new(base, too_late, NULL);
    event_add(guard, &wait);
    event_base_dispatch(base);
    event_free(guard);
}

static struct redis *client(struct probe *probe, const struct redis_config *config)
{
    struct err err = {0};
    struct redis *redis = redis_create(probe->base, config, &probe_events, probe, &err);
    if (!redis)
        fail_msg("%s", err.text);
    return redis;
}

static void say(struct redis *redis, struct probe *probe, uint32_t timeout_ms, int argc,
                const char *const *argv)
{
    struct err err = {0};
    probe->waited++;
    assert_int_equal(redis_command(redis, timeout_ms, probe_reply, probe, argc, argv, NULL, &err), 0);
}

#define SAY(redis, probe, timeout_ms, ...)                                                                   \
    say(redis, probe, timeout_ms, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)),             \
        (const char *[]){__VA_ARGS__})

static void commands_are_answered_in_order(void **state)
{
    (void)state;
    struct probe probe = {.base = event_base_new()};
    struct redis *redis = client(&probe, &(struct redis_config){.address = server.address});
    assert_false(redis_is_connected(redis));
    SAY(redis, &probe, 0, "SET", "a", "1");
    for (int i = 0; i < 1000; i++)
        SAY(redis, &probe, 0, "INCR", "a");
    SAY(redis, &probe, 0, "GET", "a");
    loop(probe.base, 5000);
    assert_int_equal(probe.good, 1002);
    assert_string_equal(probe.value, "1001");
    assert_true(redis_is_connected(redis));
    SAY(redis, &probe, 0, "NONSENSE");
    loop(probe.base, 5000);
    assert_int_equal(probe.last, ERR_INVALID);
    redis_destroy(redis);
    base_end(probe.base);
}

static int note_entry(void *arg, const char *stream, const char *id, const struct redis_entry *entry,
                      struct err *err)
{
    struct probe *probe = arg;
    (void)err;
    assert_true(stream[1] == '\0' && (stream[0] == 's' || stream[0] == 't'));
    assert_non_null(strchr(id, '-'));
    assert_non_null(entry->payload);
    assert_true(!entry->seal || memcmp(entry->seal, "seal", 4) == 0);
    probe->entries++;
    probe->bytes += entry->size + entry->seal_size;
    return 0;
}

static void stream_reply(void *arg, const redisReply *reply, const struct err *err)
{
    struct probe *probe = arg;
    struct err bad = {0};
    if (!reply)
        fail_msg("%s", err->text);
    assert_int_equal(redis_stream_entries(reply, note_entry, probe, &bad), 0);
    event_base_loopbreak(probe->base);
}

static void a_blocked_reader_gets_an_entry_at_once(void **state)
{
    (void)state;
    struct probe probe = {.base = event_base_new()};
    struct redis *reader = client(&probe, &(struct redis_config){.address = server.address});
    struct redis *writer = client(&probe, &(struct redis_config){.address = server.address});
    struct err err = {0};
    uint64_t start_ns = clock_mono_ns();
    const struct redis_position both[] = {{"t", "0"}, {"s", "0"}};
    assert_int_equal(redis_streams_read(reader, both, 2, 10, 4000, stream_reply, &probe, &err), 0);
    while (!redis_is_connected(reader))
        event_base_loop(probe.base, EVLOOP_ONCE);
    const struct redis_entry entry = {.payload = "\0binary\r\n", .size = 9};
    assert_int_equal(redis_stream_add(writer, "s", 100, &entry, 0, NULL, NULL, &err), 0);
    loop(probe.base, 6000);
    assert_int_equal(probe.entries, 1);
    assert_int_equal(probe.bytes, 9);
    assert_true(clock_mono_ns() - start_ns < 2000000000u);
    const struct redis_entry sealed = {.payload = "\0binary\r\n", .size = 9, .seal = "seal", .seal_size = 4};
    assert_int_equal(redis_stream_add(writer, "t", 100, &sealed, 0, NULL, NULL, &err), 0);
    assert_int_equal(redis_streams_read(reader, both, 2, 10, 4000, stream_reply, &probe, &err), 0);
    loop(probe.base, 6000);
    if (probe.entries == 2) { /* the read was answered before the second entry was written */
        assert_int_equal(redis_streams_read(reader, both, 2, 10, 4000, stream_reply, &probe, &err), 0);
        loop(probe.base, 6000);
    }
    assert_true(probe.entries >= 3 && probe.bytes >= 9 + 9 + 13);
    redis_destroy(reader);
    redis_destroy(writer);
    base_end(probe.base);
}

/* A reply with an entry of a million fields is cheap to send and expensive to read, so the client ends the
 * connection. */
static void an_entry_of_very_many_fields_is_no_reply(void **state)
{
    (void)state;
    struct probe probe = {.base = event_base_new()};
    struct redis *redis = client(&probe, &(struct redis_config){.address = server.address});
    const char *argv[1003] = {"XADD", "many", "*"};
    struct err err;
    for (int i = 3; i < 1003; i++)
        argv[i] = "f";
    probe.waited++;
    assert_int_equal(redis_command(redis, 0, probe_reply, &probe, 1003, argv, NULL, &err), 0);
    loop(probe.base, 5000);
    assert_int_equal(probe.good, 1);
    SAY(redis, &probe, 0, "XRANGE", "many", "-", "+");
    loop(probe.base, 5000);
    assert_int_equal(probe.good, 2); /* an answer of 1000 elements is allowed */
    SAY(redis, &probe, 0, "EVAL", "local t = {} for i = 1, 5000 do t[i] = i end return t", "0");
    loop(probe.base, 5000);
    assert_int_equal(probe.last, ERR_PEER);
    SAY(redis, &probe, 0, "PING");
    loop(probe.base, 5000);
    assert_int_equal(probe.good, 3); /* the next connection works */
    redis_destroy(redis);
    /* What a client allows is counted over the whole reply. */
    redis = client(&probe, &(struct redis_config){.address = server.address, .reply_bytes_max = 1 << 18});
    for (int count = 2; count <= 4; count += 2) {
        char number[2] = {(char)('0' + count)};
        probe.last = ERR_NONE;
        SAY(redis, &probe, 0, "EVAL",
            "local t = {} for i = 1, ARGV[1] do t[i] = string.rep('x', 100000) end return t", "0", number);
        loop(probe.base, 5000);
        assert_int_equal(probe.last, count == 2 ? ERR_NONE : ERR_PEER);
    }
    assert_int_equal(probe.good, 4);
    redis_destroy(redis);
    base_end(probe.base);
}

static void waiting_commands_survive_a_restart_and_sent_ones_are_unknown(void **state)
{
    (void)state;
    struct probe probe = {.base = event_base_new()};
    struct redis *redis =
        client(&probe,
               &(struct redis_config){.address = server.address, .backoff_ms_min = 10, .backoff_ms_max = 50});
    SAY(redis, &probe, 0, "SET", "kept", "1");
    loop(probe.base, 5000);
    struct probe blocked = {.base = probe.base, .waited = 1};
    struct err err = {0};
    const char *block[] = {"BLPOP", "nothing", "0"};
    assert_int_equal(redis_command(redis, 60000, probe_reply, &blocked, 3, block, NULL, &err), 0);
    SAY(redis, &probe, 60000, "PING"); /* PING is sent behind the blocking command */
    event_base_loop(probe.base, EVLOOP_NONBLOCK);
    test_redis_kill(&server);
    loop(probe.base, 5000);
    if (blocked.failed == 0 || probe.failed == 0)
        loop(probe.base, 5000);
    assert_int_equal(blocked.last, ERR_NET);
    assert_int_equal(probe.last, ERR_NET);
    SAY(redis, &probe, 20000, "EXISTS", "kept");
    probe.value[0] = '\0';
    test_redis_start(&server, dir.path);
    loop(probe.base, 5000);
    assert_int_equal(probe.good, 2);
    assert_true(probe.connected >= 2);
    redis_destroy(redis);
    base_end(probe.base);
}

static void deadlines_hold_while_nobody_answers(void **state)
{
    (void)state;
    char address[160];
    snprintf(address, sizeof(address), "unix:%s/nobody", dir.path);
    struct probe probe = {.base = event_base_new()};
    struct redis *redis = client(&probe, &(struct redis_config){.address = address});
    uint64_t start_ns = clock_mono_ns();
    SAY(redis, &probe, 300, "PING");
    loop(probe.base, 5000);
    assert_int_equal(probe.last, ERR_TIMEOUT);
    assert_int_equal(probe.why, ERR_NET);
    assert_true(clock_mono_ns() - start_ns < 1500000000u);
    assert_true(probe.lost >= 2 && probe.lost < 10); /* the client tried again, with growing pauses */
    redis_destroy(redis);
    base_end(probe.base);
}

static void a_server_that_never_greets_is_left(void **state)
{
    (void)state;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(where);
    assert_int_equal(bind(listener, (struct sockaddr *)&where, sizeof(where)), 0);
    assert_int_equal(listen(listener, 4), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&where, &size), 0);
    char address[64];
    snprintf(address, sizeof(address), "127.0.0.1:%d", ntohs(where.sin_port));
    struct probe probe = {.base = event_base_new(), .waited = -1};
    struct redis *redis = client(&probe, &(struct redis_config){.address = address, .connect_ms = 100});
    loop(probe.base, 5000);
    assert_int_equal(probe.why, ERR_TIMEOUT);
    redis_destroy(redis);
    base_end(probe.base);
    close(listener);
}

/* Asks until the answer comes from this address, for at most 10 s. */
static void moves_to(struct redis *redis, struct probe *probe, const char *address)
{
    const uint64_t deadline_ns = clock_mono_ns() + 10000000000u;
    do {
        if (clock_mono_ns() > deadline_ns)
            fail_msg("it is at %s, not at %s: %s", redis_address(redis), address, probe->text);
        probe->good = 0;
        SAY(redis, probe, 500, "SET", "x", "1");
        loop(probe->base, 5000);
    } while (probe->good == 0 || strcmp(redis_address(redis), address) != 0);
}

static void what_is_away_a_replica_or_without_the_beacon_is_left_for_the_next(void **state)
{
    (void)state;
    struct test_dir folder;
    struct test_redis other = {0};
    test_dir_make(&folder);
    test_redis_start(&other, folder.path);
    char addresses[600];
    snprintf(addresses, sizeof(addresses), "unix:%s/nobody,%s,%s", dir.path, server.address, other.address);
    struct probe probe = {.base = event_base_new()}, own = {.base = probe.base},
                 follows = {.base = probe.base};
    struct redis *first = client(&own, &(struct redis_config){.address = server.address});
    struct redis *second = client(&own, &(struct redis_config){.address = other.address});
    SAY(first, &own, 0, "SET", "here", "1");
    loop(probe.base, 5000);
    struct redis_config config = {.address = addresses, .beacon = "here", .backoff_ms_max = 100};
    struct redis *redis = client(&probe, &config);
    config.with = redis;
    struct redis *follower = client(&follows, &config);
    moves_to(redis, &probe, server.address);
    SAY(first, &own, 0, "REPLICAOF", "127.0.0.1", "1");
    loop(probe.base, 5000);
    probe.good = 0;
    SAY(redis, &probe, 3000, "SET", "x", "2");
    loop(probe.base, 5000);
    assert_int_equal(probe.last, ERR_BUSY);
    SAY(redis, &probe, 500, "SET", "x", "2"); /* the other one has no beacon yet */
    loop(probe.base, 5000);
    assert_int_equal(probe.good, 0);
    SAY(second, &own, 0, "SET", "here", "1");
    loop(probe.base, 5000);
    moves_to(redis, &probe, other.address);
    SAY(follower, &follows, 5000, "GET", "x");
    loop(probe.base, 6000);
    assert_string_equal(follows.value, "1");
    assert_string_equal(redis_address(follower), other.address);
    SAY(first, &own, 0, "REPLICAOF", "NO", "ONE");
    SAY(second, &own, 0, "DEL", "here");
    loop(probe.base, 5000);
    moves_to(redis, &probe, server.address);
    redis_destroy(redis);
    redis_destroy(follower);
    redis_destroy(first);
    redis_destroy(second);
    base_end(probe.base);
    test_redis_kill(&other);
    test_dir_remove(&folder);
}

static void a_full_queue_is_refused_and_destroy_answers_all(void **state)
{
    (void)state;
    struct probe probe = {.base = event_base_new()};
    struct redis *redis = client(&probe, &(struct redis_config){.address = server.address, .queue_max = 2});
    SAY(redis, &probe, 0, "PING");
    SAY(redis, &probe, 0, "PING");
    struct err err = {0};
    const char *ping[] = {"PING"};
    assert_int_equal(redis_command(redis, 0, NULL, NULL, 1, ping, NULL, &err), -1);
    assert_int_equal(err.code, ERR_BUSY);
    redis_destroy(redis);
    assert_int_equal(probe.failed, 2);
    assert_int_equal(probe.last, ERR_CANCELLED);
    const char *wrong[] = {"nonsense", "host:",   "host:99999",     "unix:",
                           ":1",       "host:1,", "host:1,,host:2", "a:1,b:2,c:3,d:4,e:5,f:6,g:7,h:8,i:9"};
    for (size_t i = 0; i < 5; i++) {
        assert_null(redis_create(probe.base, &(struct redis_config){.address = wrong[i]}, NULL, NULL, &err));
        assert_int_equal(err.code, ERR_INVALID);
    }
    base_end(probe.base);
}

static struct redis *victim;

static void destroy_inside(void *arg, const redisReply *reply, const struct err *err)
{
    struct probe *probe = arg;
    (void)reply;
    (void)err;
    redis_destroy(victim);
    victim = NULL;
    event_base_loopbreak(probe->base);
}

static void destroying_inside_a_callback_is_safe(void **state)
{
    (void)state;
    struct probe probe = {.base = event_base_new()};
    struct err err = {0};
    victim = client(&probe, &(struct redis_config){.address = server.address});
    const char *ping[] = {"PING"};
    assert_int_equal(redis_command(victim, 0, destroy_inside, &probe, 1, ping, NULL, &err), 0);
    SAY(victim, &probe, 0, "PING");
    loop(probe.base, 5000);
    assert_int_equal(probe.last, ERR_CANCELLED);
    base_end(probe.base);
}

/* ---- TLS and ACL: one server of its own ---- */

struct secure {
    struct test_dir dir;
    struct test_redis server;
    struct test_cluster ours;
    struct test_cluster theirs;
    struct test_cert node;
    struct test_cert stranger, poser;
    char address[64];
};

static int secure_up(void **state)
{
    struct secure *secure = calloc(1, sizeof(*secure));
    test_dir_make(&secure->dir);
    test_cluster_make(&secure->ours, secure->dir.path, "ours");
    test_cluster_make(&secure->theirs, secure->dir.path, "theirs");
    struct test_cert cert;
    test_cert_make(&cert, &secure->ours, secure->dir.path, "server:redis");
    test_cert_make(&secure->node, &secure->ours, secure->dir.path, "agent:left");
    test_cert_make(&secure->stranger, &secure->theirs, secure->dir.path, "agent:stranger");
    test_cert_make(&secure->poser, &secure->ours, secure->dir.path, "client:poser");
    int port = test_free_port();
    snprintf(
        secure->server.acl, sizeof(secure->server.acl),
        "tls-port %d\nbind 127.0.0.1\ntls-cert-file %s\ntls-key-file %s\ntls-ca-cert-file %s\n"
        "user left on >secret ~motley:agent:left ~motley:events:left +xread +xadd +ping\nuser default off\n",
        port, cert.cert_file, cert.key_file, secure->ours.ca_file);
    snprintf(secure->address, sizeof(secure->address), "127.0.0.1:%d", port);
    test_redis_start(&secure->server, secure->dir.path);
    *state = secure;
    return 0;
}

static int secure_down(void **state)
{
    struct secure *secure = *state;
    test_redis_kill(&secure->server);
    test_dir_remove(&secure->dir);
    test_cluster_fini(&secure->ours);
    test_cluster_fini(&secure->theirs);
    free(secure);
    return 0;
}

static SSL_CTX *context(const char *ca, const struct test_cert *cert)
{
    struct err err = {0};
    struct tls_files files = {.ca_file = ca, .cert_file = cert->cert_file, .key_file = cert->key_file};
    SSL_CTX *made = tls_context_create(&files, TLS_ROLE_CLIENT, &err);
    if (!made)
        fail_msg("%s", err.text);
    return made;
}

static void tls_and_acl_work_together(void **state)
{
    struct secure *secure = *state;
    struct probe probe = {.base = event_base_new()};
    SSL_CTX *tls = context(secure->ours.ca_file, &secure->node);
    struct redis_config config = {
        .address = secure->address, .user = "left", .password = "secret", .tls = tls};
    struct redis *redis = client(&probe, &config);
    SAY(redis, &probe, 0, "XADD", "motley:events:left", "*", "m", "x");
    loop(probe.base, 5000);
    assert_int_equal(probe.good, 1);
    char big[300000];
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    for (int i = 0; i < 30; i++)
        SAY(redis, &probe, 0, "XADD", "motley:events:left", "*", "m", big);
    loop(probe.base, 10000);
    assert_int_equal(probe.good, 31);
    SAY(redis, &probe, 0, "XADD", "motley:agent:right", "*", "m", "x");
    loop(probe.base, 5000);
    assert_int_equal(probe.last, ERR_DENIED);
    redis_destroy(redis);
    SSL_CTX_free(tls);
    base_end(probe.base);
}

static void a_wrong_password_is_told(void **state)
{
    struct secure *secure = *state;
    struct probe probe = {.base = event_base_new(), .waited = -1};
    SSL_CTX *tls = context(secure->ours.ca_file, &secure->node);
    struct redis_config config = {
        .address = secure->address, .user = "left", .password = "wrong", .tls = tls};
    struct redis *redis = client(&probe, &config);
    loop(probe.base, 5000);
    assert_int_equal(probe.why, ERR_AUTH);
    redis_destroy(redis);
    SSL_CTX_free(tls);
    base_end(probe.base);
}

static void another_clusters_certificate_is_refused_on_either_side(void **state)
{
    struct secure *secure = *state;
    struct probe probe = {.base = event_base_new(), .waited = -1};
    /* The client does not trust the server. */
    SSL_CTX *tls = context(secure->theirs.ca_file, &secure->stranger);
    struct redis_config config = {
        .address = secure->address, .user = "left", .password = "secret", .tls = tls};
    struct redis *redis = client(&probe, &config);
    loop(probe.base, 5000);
    assert_int_equal(probe.why, ERR_PEER);
    if (!strstr(probe.text, "another cluster"))
        fail_msg("%s", probe.text);
    redis_destroy(redis);
    SSL_CTX_free(tls);
    tls = context(secure->ours.ca_file, &secure->stranger); /* the server does not trust the client */
    config.tls = tls;
    redis = client(&probe, &config);
    loop(probe.base, 5000);
    assert_int_equal(probe.why, ERR_PEER);
    if (!strstr(probe.text, "another cluster"))
        fail_msg("%s", probe.text);
    redis_destroy(redis);
    SSL_CTX_free(tls);
    base_end(probe.base);
}

/* A machine of the cluster listens in place of Redis: its certificate names the host and has a chain to the
 * CA. */
static void another_certificate_of_the_cluster_cannot_pose_as_redis(void **state)
{
    struct secure *secure = *state;
    struct probe probe = {.base = event_base_new(), .waited = -1};
    struct test_redis poser = {0};
    struct test_dir folder;
    char address[64];
    int port = test_free_port();
    test_dir_make(&folder);
    snprintf(poser.acl, sizeof(poser.acl),
             "tls-port %d\nbind 127.0.0.1\ntls-cert-file %s\ntls-key-file %s\ntls-ca-cert-file %s\n", port,
             secure->poser.cert_file, secure->poser.key_file, secure->ours.ca_file);
    snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    test_redis_start(&poser, folder.path);
    SSL_CTX *tls = context(secure->ours.ca_file, &secure->node);
    struct redis_config config = {.address = address, .tls = tls};
    struct redis *redis = client(&probe, &config);
    loop(probe.base, 5000);
    assert_int_equal(probe.why, ERR_PEER);
    if (!strstr(probe.text, "no server of this cluster"))
        fail_msg("%s", probe.text);
    redis_destroy(redis);
    SSL_CTX_free(tls);
    base_end(probe.base);
    test_redis_kill(&poser);
    test_dir_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commands_are_answered_in_order),
        cmocka_unit_test(an_entry_of_very_many_fields_is_no_reply),
        cmocka_unit_test(a_blocked_reader_gets_an_entry_at_once),
        cmocka_unit_test(waiting_commands_survive_a_restart_and_sent_ones_are_unknown),
        cmocka_unit_test(deadlines_hold_while_nobody_answers),
        cmocka_unit_test(a_server_that_never_greets_is_left),
        cmocka_unit_test(what_is_away_a_replica_or_without_the_beacon_is_left_for_the_next),
        cmocka_unit_test(a_full_queue_is_refused_and_destroy_answers_all),
        cmocka_unit_test(destroying_inside_a_callback_is_safe),
    };
    const struct CMUnitTest secure_tests[] = {
        cmocka_unit_test(tls_and_acl_work_together),
        cmocka_unit_test(a_wrong_password_is_told),
        cmocka_unit_test(another_clusters_certificate_is_refused_on_either_side),
        cmocka_unit_test(another_certificate_of_the_cluster_cannot_pose_as_redis),
    };
    int failed = cmocka_run_group_tests(tests, server_up, server_down);
    return failed + cmocka_run_group_tests(secure_tests, secure_up, secure_down);
}
