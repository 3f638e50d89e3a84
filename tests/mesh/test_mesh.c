/* Tests that tensors arrive whole and in order, that no wait lasts for ever, and that unknown peers, stale
 * workers and invalid messages are refused. */
#include "mesh/mesh_pair.h"

#include "common/rand.h"
#include "mesh/conn.h"
#include "mesh/pace.h"
#include "mesh/wire.h"
#include "support/must.h"

/* Makes a struct mesh_post and gives its address. */
#define POST(rank, number, deadline, fn, a)                                                                  \
    (&(struct mesh_post){                                                                                    \
        .peer = (rank), .queue = (number), .deadline_ns = (deadline), .done = (fn), .arg = (a)})

static const struct mesh_meta no_meta;

/* ---- what arrives ---- */

enum { STORM_QUEUES = 5, STORM_MESSAGES = 40 };

struct storm {
    struct group *g;
    uint32_t from, to;
    struct tally sends, receives;
    uint8_t *out[STORM_QUEUES][STORM_MESSAGES], *in[STORM_QUEUES][STORM_MESSAGES];
    size_t size[STORM_QUEUES][STORM_MESSAGES];
};

static void storm_fill(struct storm *s, uint64_t seed)
{
    struct rand_stream rand;
    rand_stream_init(&rand, seed, s->from * 10 + s->to);
    for (int q = 0; q < STORM_QUEUES; q++)
        for (int i = 0; i < STORM_MESSAGES; i++) {
            uint32_t kind = rand_stream_below(&rand, 10);
            size_t size = kind == 0 ? 0
                                    : rand_stream_below(&rand, kind < 6   ? 300
                                                               : kind < 9 ? 40000
                                                                          : 600000);
            s->size[q][i] = size;
            s->out[q][i] = malloc(size + 1);
            s->in[q][i] = calloc(1, size + 1);
            for (size_t k = 0; k < size; k++)
                s->out[q][i][k] = (uint8_t)(k * 31 + (size_t)(q * 7 + i) + s->from);
        }
}

static void storm_send(struct storm *s, int q, int i)
{
    struct err err;
    struct mesh_meta meta = {.tag = mesh_tag((uint8_t)q, 1, 2, (uint32_t)i), .dtype = 3, .rank = 1};
    meta.shape[0] = (uint32_t)s->size[q][i];
    must(mesh_send(s->g->mesh[s->from], POST(s->to, (uint32_t)q, in_seconds(30), tally_done, &s->sends),
                   &meta, s->out[q][i], s->size[q][i], &err),
         &err);
}

static void storm_receive(struct storm *s, int q, int i)
{
    struct err err;
    must(mesh_recv(s->g->mesh[s->to], POST(s->from, (uint32_t)q, in_seconds(30), tally_done, &s->receives),
                   mesh_tag((uint8_t)q, 1, 2, (uint32_t)i), s->in[q][i], s->size[q][i] + (size_t)(i % 2),
                   &err),
         &err);
}

/* Sends and receives in a random order that keeps each queue's order. */
static void *storm_run(void *arg)
{
    struct storm *s = arg;
    struct rand_stream rand;
    int sent[STORM_QUEUES] = {0}, received[STORM_QUEUES] = {0}, left = 2 * STORM_QUEUES * STORM_MESSAGES;
    rand_stream_init(&rand, 77, s->from * 100 + s->to);
    while (left > 0) {
        int q = (int)rand_stream_below(&rand, STORM_QUEUES);
        if (rand_stream_below(&rand, 2) && sent[q] < STORM_MESSAGES) {
            storm_send(s, q, sent[q]++);
            left--;
        } else if (received[q] < STORM_MESSAGES) {
            storm_receive(s, q, received[q]++);
            left--;
        }
    }
    return NULL;
}

static void storm_check(struct storm *s)
{
    uint32_t all = STORM_QUEUES * STORM_MESSAGES;
    assert_true(tally_wait(&s->sends, all, 30) && tally_wait(&s->receives, all, 30));
    assert_int_equal(s->sends.failed + s->receives.failed, 0);
    for (int q = 0; q < STORM_QUEUES; q++)
        for (int i = 0; i < STORM_MESSAGES; i++) {
            assert_memory_equal(s->in[q][i], s->out[q][i], s->size[q][i]);
            assert_int_equal(s->in[q][i][s->size[q][i]], 0);
            free(s->in[q][i]);
            free(s->out[q][i]);
        }
    assert_int_equal(s->receives.last.meta.dtype, 3);
    assert_int_equal(s->receives.last.meta.shape[0], s->receives.last.size);
    assert_true(s->receives.last.end_ns >= s->receives.last.begin_ns);
}

static void messages_arrive_whole_and_in_order_whoever_posts_first(void **state)
{
    (void)state;
    struct group g;
    struct storm storms[6];
    pthread_t threads[6];
    int n = 0;
    group_start(&g, 3);
    for (uint32_t from = 0; from < 3; from++)
        for (uint32_t to = 0; to < 3; to++)
            if (from != to) {
                struct storm *s = &storms[n++];
                memset(s, 0, sizeof(*s));
                s->g = &g;
                s->from = from;
                s->to = to;
                tally_init(&s->sends);
                tally_init(&s->receives);
                storm_fill(s, 5);
            }
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, storm_run, &storms[i]), 0);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < n; i++)
        storm_check(&storms[i]);
    struct mesh_stats stats;
    struct err err;
    must(mesh_stats(g.mesh[0], MESH_RANK_NONE, &stats, &err), &err);
    assert_int_equal(stats.sent_messages, 2 * STORM_QUEUES * STORM_MESSAGES);
    assert_int_equal(stats.received_messages, 2 * STORM_QUEUES * STORM_MESSAGES);
    group_close(&g);
    for (uint32_t i = 0; i < 3; i++)
        if (g.status[i] < 0)
            fail_msg("%s", g.err[i].text);
    group_end(&g);
}

static void a_small_message_overtakes_a_large_one_on_another_queue(void **state)
{
    (void)state;
    struct group g;
    struct err err;
    struct tally large, small;
    enum { LARGE = 32 << 20 };
    uint8_t *out = calloc(1, LARGE), *in = malloc(LARGE), a[1024] = {1}, b[1024];
    group_start(&g, 2);
    tally_init(&large);
    tally_init(&small);
    must(mesh_recv(g.mesh[1], POST(0, 4, in_seconds(30), tally_done, &large), 0, in, LARGE, &err), &err);
    must(mesh_recv(g.mesh[1], POST(0, 5, in_seconds(30), tally_done, &small), 0, b, sizeof(b), &err), &err);
    must(mesh_send(g.mesh[0], POST(1, 4, in_seconds(30), tally_done, &large), &no_meta, out, LARGE, &err),
         &err);
    must(mesh_send(g.mesh[0], POST(1, 5, in_seconds(30), tally_done, &small), &no_meta, a, sizeof(a), &err),
         &err);
    assert_true(tally_wait(&small, 2, 30));
    uint64_t small_end = small.last.end_ns;
    assert_true(tally_wait(&large, 2, 30));
    assert_true(small_end < large.last.end_ns);
    assert_memory_equal(a, b, sizeof(a));
    group_end(&g);
    free(out);
    free(in);
}

static void a_sender_without_a_posted_receive_stops_at_the_window(void **state)
{
    (void)state;
    struct group g;
    struct err err;
    struct tally sends, receives;
    enum { SIZE = 100000, COUNT = 50, WINDOW = 1 << 20 };
    uint8_t *out = calloc(COUNT, SIZE), *in = malloc((size_t)COUNT * SIZE), x = 9, y = 0;
    group_init(&g, 2);
    g.options[0].window_bytes = g.options[1].window_bytes = WINDOW;
    group_open(&g);
    group_connect(&g);
    must(g.status[0], &g.err[0]);
    tally_init(&sends);
    tally_init(&receives);
    for (int i = 0; i < COUNT; i++) {
        memset(out + i * SIZE, i, SIZE);
        struct mesh_meta meta = {.tag = (uint64_t)i};
        must(mesh_send(g.mesh[0], POST(1, 0, in_seconds(30), tally_done, &sends), &meta, out + i * SIZE, SIZE,
                       &err),
             &err);
    }
    /* A message on another queue arrives although the sends on queue 0 have no receives yet. */
    must(mesh_send(g.mesh[0], POST(1, 1, in_seconds(30), tally_done, &receives), &no_meta, &x, 1, &err),
         &err);
    must(mesh_recv_wait(g.mesh[1], POST(0, 1, in_seconds(30), NULL, NULL), 0, &y, 1, NULL, &err), &err);
    assert_int_equal(y, 9);
    struct mesh_stats stats;
    assert_true(tally_wait(&sends, WINDOW / (SIZE + 256), 30));
    must(mesh_stats(g.mesh[1], 0, &stats, &err), &err);
    assert_true(stats.early_bytes <= WINDOW);
    assert_true(tally_wait(&receives, 1, 30));
    for (int i = 0; i < COUNT; i++)
        must(mesh_recv(g.mesh[1], POST(0, 0, in_seconds(30), tally_done, &receives), (uint64_t)i,
                       in + i * SIZE, SIZE, &err),
             &err);
    assert_true(tally_wait(&receives, COUNT + 1, 30) && tally_wait(&sends, COUNT, 30));
    assert_int_equal(receives.failed, 0);
    assert_memory_equal(in, out, (size_t)COUNT * SIZE);
    must(mesh_stats(g.mesh[1], 0, &stats, &err), &err);
    assert_true(stats.early_bytes_held_max <= WINDOW);
    must(mesh_stats(g.mesh[0], 1, &stats, &err), &err);
    assert_true(stats.send_wait_ns > 0);

    /* A message larger than the window is sent once its receive is posted. */
    must(mesh_send(g.mesh[0], POST(1, 2, in_seconds(30), tally_done, &sends), &no_meta, out,
                   (size_t)COUNT * SIZE, &err),
         &err);
    memset(in, 0, (size_t)COUNT * SIZE);
    must(mesh_recv_wait(g.mesh[1], POST(0, 2, in_seconds(30), NULL, NULL), 0, in, (size_t)COUNT * SIZE, NULL,
                        &err),
         &err);
    assert_memory_equal(in, out, (size_t)COUNT * SIZE);
    group_end(&g);
    free(out);
    free(in);
}

/* Each arrival posts the next operation from its callback, in both directions. */
struct bounce {
    struct mesh *mesh;
    uint32_t peer, left;
    uint32_t value;
    struct tally *over;
};

static void bounce_sent(const struct mesh_done *done)
{
    (void)done;
}

static void bounce_arrived(const struct mesh_done *done)
{
    struct bounce *b = done->arg;
    struct err err;
    if (done->ok && b->left > 0) {
        b->left--;
        b->value++;
        if (mesh_recv(b->mesh, POST(b->peer, 0, in_seconds(30), bounce_arrived, b), 0, &b->value, 4, &err) ==
                0 &&
            mesh_send(b->mesh, POST(b->peer, 0, in_seconds(30), bounce_sent, NULL), &no_meta, &b->value, 4,
                      &err) == 0)
            return;
    }
    struct mesh_done end = *done;
    end.arg = b->over;
    tally_done(&end);
}

static void callbacks_may_post(void **state)
{
    (void)state;
    struct group g;
    struct err err;
    struct tally over;
    struct bounce a, b;
    group_start(&g, 2);
    tally_init(&over);
    a = (struct bounce){.mesh = g.mesh[0], .peer = 1, .left = 200, .over = &over};
    b = (struct bounce){.mesh = g.mesh[1], .peer = 0, .left = 200, .over = &over};
    must(mesh_recv(g.mesh[0], POST(1, 0, in_seconds(30), bounce_arrived, &a), 0, &a.value, 4, &err), &err);
    must(mesh_recv(g.mesh[1], POST(0, 0, in_seconds(30), bounce_arrived, &b), 0, &b.value, 4, &err), &err);
    uint32_t first = 0;
    must(mesh_send(g.mesh[0], POST(1, 0, in_seconds(30), bounce_sent, NULL), &no_meta, &first, 4, &err),
         &err);
    assert_true(tally_wait(&over, 1, 30));
    assert_int_equal(over.failed, 0);
    assert_true(a.value + b.value >= 400);
    group_end(&g);
}

/* ---- ends ---- */

static void the_last_message_is_delivered_when_the_sender_closes_at_once(void **state)
{
    (void)state;
    enum { SIZE = 6 << 20 };
    uint8_t *out = malloc(SIZE), *in = malloc(SIZE);
    memset(out, 0x5a, SIZE);
    for (int round = 0; round < 3; round++) {
        struct group g;
        struct err err;
        struct tally t;
        group_start(&g, 2);
        tally_init(&t);
        memset(in, 0, SIZE);
        must(mesh_recv(g.mesh[1], POST(0, 0, in_seconds(30), tally_done, &t), 0, in, SIZE, &err), &err);
        must(mesh_send(g.mesh[0], POST(1, 0, in_seconds(30), tally_done, &t), &no_meta, out, SIZE, &err),
             &err);
        group_close(&g);
        must(g.status[0], &g.err[0]);
        must(g.status[1], &g.err[1]);
        assert_true(tally_wait(&t, 2, 0));
        assert_int_equal(t.failed, 0);
        assert_memory_equal(in, out, SIZE);
        assert_int_equal(
            mesh_send(g.mesh[0], POST(1, 0, in_seconds(1), tally_done, &t), &no_meta, out, 1, &err), -1);
        group_end(&g);
    }
    free(out);
    free(in);
}

static void a_deadline_ends_the_wait_and_names_the_peer(void **state)
{
    (void)state;
    struct group g;
    struct err err;
    struct tally t;
    uint8_t byte;
    group_start(&g, 2);
    tally_init(&t);
    must(mesh_recv(g.mesh[0], POST(1, 3, in_seconds(0.05), tally_done, &t), 0x1234, &byte, 1, &err), &err);
    must(mesh_recv(g.mesh[0], POST(1, 4, in_seconds(30), tally_done, &t), 0, &byte, 1, &err), &err);
    assert_true(tally_wait(&t, 2, 20));
    assert_int_equal(t.failed, 2); /* the peer counts as failed, so all receives from it end */
    assert_int_equal(t.last_failed.err.code, ERR_TIMEOUT);
    assert_non_null(strstr(t.last_failed.err.text, "rank 1 (agent:n1)"));
    assert_non_null(strstr(t.last_failed.err.text, "queue 3"));
    assert_int_equal(mesh_recv(g.mesh[0], POST(1, 5, in_seconds(1), tally_done, &t), 0, &byte, 1, &err), -1);
    assert_int_equal(err.code, ERR_TIMEOUT);
    /* The other rank learns that its peer gave up. */
    assert_int_equal(
        mesh_recv_wait(g.mesh[1], POST(0, 0, in_seconds(20), NULL, NULL), 0, &byte, 1, NULL, &err), -1);
    assert_int_equal(err.code, ERR_NET);
    assert_non_null(strstr(err.text, "rank 0 (agent:n0)"));
    group_end(&g);
}

static void a_peer_that_vanishes_ends_everything_with_its_name(void **state)
{
    (void)state;
    struct group g;
    struct err err;
    struct tally t, other;
    uint8_t byte, *big = calloc(1, 64 << 20);
    group_start(&g, 3);
    tally_init(&t);
    tally_init(&other);
    must(mesh_recv(g.mesh[0], POST(1, 0, in_seconds(30), tally_done, &t), 0, &byte, 1, &err), &err);
    must(mesh_send(g.mesh[0], POST(1, 0, in_seconds(30), tally_done, &t), &no_meta, big, 64 << 20, &err),
         &err);
    must(mesh_recv(g.mesh[0], POST(2, 0, in_seconds(30), tally_done, &other), 0, &byte, 1, &err), &err);
    mesh_abort(g.mesh[1]);
    assert_true(tally_wait(&t, 2, 20));
    assert_int_equal(t.failed, 2);
    assert_int_equal(t.last_failed.err.code, ERR_NET);
    assert_non_null(strstr(t.last_failed.err.text, "rank 1"));
    must(mesh_send(g.mesh[2], POST(0, 0, in_seconds(30), tally_done, &other), &no_meta, "x", 1, &err), &err);
    assert_true(tally_wait(&other, 2, 20)); /* rank 2 is not affected */
    assert_int_equal(other.failed, 0);
    group_end(&g);
    free(big);
}

static void closing_against_a_peer_that_does_not_ends_at_the_deadline(void **state)
{
    (void)state;
    struct group g;
    struct err err;
    group_start(&g, 2);
    assert_int_equal(mesh_close(g.mesh[0], in_seconds(0.1), &err), -1);
    assert_int_equal(err.code, ERR_TIMEOUT);
    assert_non_null(strstr(err.text, "rank 1"));
    group_end(&g);
}

/* ---- mistakes of programs ---- */

static void mismatch(uint64_t send_tag, size_t size, uint64_t receive_tag, size_t bound, bool post_first,
                     enum err_code code)
{
    struct group g;
    struct err err;
    struct tally t;
    uint8_t out[64] = {0}, in[64];
    group_start(&g, 2);
    tally_init(&t);
    struct mesh_meta meta = {.tag = send_tag};
    int posted = 0;
    if (post_first)
        must(mesh_recv(g.mesh[1], POST(0, 0, in_seconds(30), tally_done, &t), receive_tag, in, bound, &err),
             &err);
    must(mesh_send(g.mesh[0], POST(1, 0, in_seconds(30), tally_done, &t), &meta, out, size, &err), &err);
    if (!post_first) {
        struct mesh_stats stats;
        do /* until the message has arrived early */
            must(mesh_stats(g.mesh[1], 0, &stats, &err), &err);
        while (stats.received_messages == 0);
        posted =
            mesh_recv(g.mesh[1], POST(0, 0, in_seconds(30), tally_done, &t), receive_tag, in, bound, &err);
    }
    if (post_first) {
        assert_true(tally_wait(&t, 2, 20));
        err = t.last_failed.err;
    } else {
        assert_int_equal(posted, -1);
    }
    assert_int_equal(err.code, code);
    assert_non_null(strstr(err.text, "rank 0"));
    group_end(&g);
}

static void a_wrong_tag_or_a_message_beyond_the_bound_is_an_error(void **state)
{
    (void)state;
    mismatch(1, 10, 2, 10, true, ERR_INTERNAL);
    mismatch(1, 10, 2, 10, false, ERR_INTERNAL);
    mismatch(1, 11, 1, 10, true, ERR_TOO_BIG);
    mismatch(1, 11, 1, 10, false, ERR_TOO_BIG);
}

/* ---- who connects ---- */

/* With `turned` the higher rank opens the connections: the lower one needs no address of it. */
static void the_higher_rank_can_connect(void **state)
{
    (void)state;
    uint8_t byte = 7, got = 0;
    struct err err;
    struct group g;
    group_init(&g, 3);
    group_open(&g);
    g.peers[0][1].turned = g.peers[2][0].turned = true;
    g.peers[0][1].address = "192.0.2.1:1"; /* of no machine (RFC 5737) */
    group_connect(&g);
    for (uint32_t i = 0; i < g.count; i++)
        if (g.status[i] < 0)
            fail_msg("rank %u: %s", i, g.err[i].text);
    for (uint32_t from = 0; from <= 2; from += 2) {
        must(mesh_send_wait(g.mesh[from], POST(2 - from, 0, in_seconds(10), NULL, NULL), &no_meta, &byte, 1,
                            NULL, &err),
             &err);
        must(mesh_recv_wait(g.mesh[2 - from], POST(from, 0, in_seconds(10), NULL, NULL), 0, &got, 1, NULL,
                            &err),
             &err);
        assert_int_equal(got, byte);
        got = 0;
    }
    group_end(&g);
}

static void a_range_of_ports_is_kept_to(void **state)
{
    (void)state;
    struct err err;
    struct group g;
    char range[32], address[64];
    group_init(&g, 3);
    must(mesh_create(&g.options[0], &g.mesh[0], &err), &err);
    must(mesh_listen(g.mesh[0], "127.0.0.1:0", address, sizeof(address), &err), &err);
    const unsigned port = (unsigned)strtoul(strrchr(address, ':') + 1, NULL, 10);
    snprintf(range, sizeof(range), "127.0.0.1:%u-%u", port, port);
    must(mesh_create(&g.options[1], &g.mesh[1], &err), &err);
    assert_int_equal(mesh_listen(g.mesh[1], range, address, sizeof(address), &err), -1);
    assert_int_equal(err.code, ERR_NODE);
    assert_non_null(strstr(err.text, "these ports are in use"));
    snprintf(range, sizeof(range), "127.0.0.1:%u-65535", port);
    must(mesh_create(&g.options[2], &g.mesh[2], &err), &err);
    must(mesh_listen(g.mesh[2], range, address, sizeof(address), &err), &err);
    assert_true((unsigned)strtoul(strrchr(address, ':') + 1, NULL, 10) > port);
    group_end(&g);
}

static void both_ends_must_agree_who_connects(void **state)
{
    (void)state;
    struct group g;
    group_init(&g, 2);
    g.connect_deadline_ns[0] = g.connect_deadline_ns[1] = in_seconds(0.5);
    group_open(&g);
    g.peers[0][0].turned = true;
    group_connect(&g);
    for (uint32_t i = 0; i < g.count; i++) {
        assert_int_equal(g.status[i], -1);
        assert_int_equal(g.err[i].code, ERR_TIMEOUT);
    }
    group_end(&g);
}

/* ---- strangers ---- */

static void a_stale_epoch_is_refused_on_both_sides(void **state)
{
    (void)state;
    struct group g;
    group_init(&g, 2);
    g.options[0].epoch = 6;
    g.connect_deadline_ns[1] = in_seconds(1); /* short: rank 1 waits until then for the right peer */
    group_open(&g);
    group_connect(&g);
    assert_int_equal(g.status[0], -1);
    assert_int_equal(g.err[0].code, ERR_STALE);
    assert_non_null(strstr(g.err[0].text, "rank 1"));
    assert_int_equal(g.status[1], -1);
    assert_int_equal(g.err[1].code, ERR_TIMEOUT);
    assert_non_null(strstr(g.err[1].text, "epoch 6"));
    group_end(&g);
}

static void a_certificate_of_another_cluster_is_refused_on_both_sides(void **state)
{
    (void)state;
    for (uint32_t alien = 0; alien < 2; alien++) {
        struct group g;
        struct test_cluster theirs;
        struct test_cert cert;
        char dir[300];
        struct err err;
        group_init(&g, 2);
        snprintf(dir, sizeof(dir), "%s/other", g.scratch.dir);
        must(file_mkdirs(dir, 0700, &err), &err);
        test_cluster_make(&theirs, dir, "theirs");
        test_cert_make(&cert, &theirs, dir, g.identity[alien]);
        g.options[alien].cert_file = cert.cert_file;
        g.options[alien].key_file = cert.key_file;
        g.options[alien].ca_file = theirs.ca_file;
        g.connect_deadline_ns[1] = in_seconds(1); /* short: rank 1 waits until then for the right peer */
        group_open(&g);
        group_connect(&g);
        assert_int_equal(g.status[0], -1);
        assert_int_equal(g.status[1], -1);
        if (g.err[0].code != ERR_PEER)
            fail_msg("%s (%s)", g.err[0].text, err_code_name(g.err[0].code));
        assert_non_null(strstr(g.err[0].text, "rank 1"));
        assert_int_equal(g.err[1].code, ERR_TIMEOUT);
        test_cluster_fini(&theirs);
        group_end(&g);
    }
}

static void another_identity_of_the_same_cluster_is_refused(void **state)
{
    (void)state;
    for (uint32_t wrong = 0; wrong < 2; wrong++) {
        struct group g;
        group_init(&g, 2);
        g.connect_deadline_ns[1] = in_seconds(1); /* short: rank 1 waits until then for the right peer */
        group_open(&g);
        g.peers[wrong][0].identity = "agent:somebody-else";
        group_connect(&g);
        assert_int_equal(g.status[0], -1);
        assert_int_equal(g.status[1], -1);
        if (wrong == 0) {
            assert_int_equal(g.err[0].code, ERR_PEER);
            assert_non_null(strstr(g.err[0].text, "somebody-else"));
        }
        group_end(&g);
    }
}

/* Plays rank 0 by hand: connects in both directions as a worker does, then sends 'header' and checks rank 1's
 * answer. */
static void liar(void (*lie)(struct wire_frame *frame, uint8_t header[WIRE_HEADER_BYTES]), enum err_code code,
                 const char *word)
{
    struct group g;
    struct err err;
    struct mesh_conn *conn[2];
    group_init(&g, 2);
    group_open(&g);
    mesh_destroy(g.mesh[0]);
    g.mesh[0] = NULL;
    struct group_member member = {&g, 1};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, group_connect_run, &member), 0);
    struct tls_files files = {
        .ca_file = g.cluster.ca_file, .cert_file = g.certs[0].cert_file, .key_file = g.certs[0].key_file};
    SSL_CTX *context = tls_context_create(&files, TLS_ROLE_PEER, &err);
    assert_non_null(context);
    struct mesh_conn_options options = {.deadline_ns = in_seconds(20), .peer_silence_ns = 1000000000};
    for (int way = 0; way < 2; way++) {
        uint8_t hello[WIRE_HELLO_BYTES], answer[WIRE_ANSWER_BYTES];
        must(mesh_conn_dial(context, g.address[1], "rank 1", &options, &conn[way], &err), &err);
        wire_hello_encode(
            &(struct wire_hello){.run = 3, .epoch = 7, .from = 0, .to = 1, .dialler_sends = way == 0}, hello);
        must(mesh_conn_write(conn[way], hello, sizeof(hello), NULL, 0, &err), &err);
        must(mesh_conn_flush(conn[way], &err), &err);
        must(mesh_conn_read(conn[way], answer, sizeof(answer), &err), &err);
    }
    pthread_join(thread, NULL);
    must(g.status[1], &g.err[1]);
    struct tally t;
    uint8_t byte[8], header[WIRE_HEADER_BYTES];
    tally_init(&t);
    must(mesh_recv(g.mesh[1], POST(0, 9, in_seconds(20), tally_done, &t), 0, byte, sizeof(byte), &err), &err);
    struct wire_frame frame = {
        .kind = WIRE_DATA, .queue = 9, .payload_bytes = 8, .epoch = 7, .message_bytes = 8};
    wire_encode(&frame, header);
    lie(&frame, header);
    must(mesh_conn_write(conn[0], header, sizeof(header), "12345678", 8, &err), &err);
    must(mesh_conn_flush(conn[0], &err), &err);
    assert_true(tally_wait(&t, 1, 20));
    if (t.failed != 1 || t.last_failed.err.code != code || !strstr(t.last_failed.err.text, word))
        fail_msg("wanted \"%s\": %s (%s)", word, t.last_failed.err.text,
                 err_code_name(t.last_failed.err.code));
    assert_non_null(strstr(t.last_failed.err.text, "rank 0"));
    mesh_conn_close(conn[0]);
    mesh_conn_close(conn[1]);
    tls_context_free(context);
    group_end(&g);
}

static void lie_size(struct wire_frame *f, uint8_t *h)
{
    (void)f;
    h[4] = h[5] = h[6] = h[7] = 0xff;
}

static void lie_epoch(struct wire_frame *f, uint8_t *h)
{
    f->epoch = 6;
    wire_encode(f, h);
}

static void lie_version(struct wire_frame *f, uint8_t *h)
{
    (void)f;
    h[0] = 2;
}

static void lie_kind(struct wire_frame *f, uint8_t *h)
{
    (void)f;
    h[1] = 99;
}

static void lie_queue(struct wire_frame *f, uint8_t *h)
{
    f->queue = 5000;
    wire_encode(f, h);
}

static void lie_message(struct wire_frame *f, uint8_t *h)
{
    f->message_bytes = 1ull << 60;
    wire_encode(f, h);
}

static void lie_offset(struct wire_frame *f, uint8_t *h)
{
    f->message_bytes = 100;
    f->offset = UINT64_MAX - 4;
    wire_encode(f, h);
}

static void lie_sequence(struct wire_frame *f, uint8_t *h)
{
    f->sequence = 4;
    wire_encode(f, h);
}

static void lie_early(struct wire_frame *f, uint8_t *h)
{
    f->queue = 10; /* no receive is posted on this queue */
    f->message_bytes = 1ull << 30;
    wire_encode(f, h);
}

static void lie_posted(struct wire_frame *f, uint8_t *h)
{
    f->kind = WIRE_POSTED;
    f->payload_bytes = 0;
    f->message_bytes = 1ull << 40; /* claims to have consumed more than was sent */
    wire_encode(f, h);
}

static void frames_that_lie_are_refused_before_memory_is_touched(void **state)
{
    (void)state;
    liar(lie_size, ERR_PEER, "beyond the bound");
    liar(lie_epoch, ERR_STALE, "epoch 6");
    liar(lie_version, ERR_PEER, "version 2");
    liar(lie_kind, ERR_PEER, "kind 99");
    liar(lie_queue, ERR_PEER, "queue");
    liar(lie_message, ERR_TOO_BIG, "beyond the limit");
    liar(lie_offset, ERR_PEER, "outside its message");
    liar(lie_sequence, ERR_PEER, "message 4");
    liar(lie_early, ERR_PEER, "beyond the window");
    liar(lie_posted, ERR_PEER, "beyond what was sent");
}

/* ---- emulated links ---- */

static void a_paced_link_keeps_rate_and_latency_whatever_the_wakeups(void **state)
{
    (void)state;
    struct mesh_link link = {.bytes_per_s = 1e6, .latency_s = 0.010};
    struct mesh_pace *pace = mesh_pace_create(&link);
    uint8_t head[100] = {0}, body[900] = {0};
    struct rand_stream rand;
    rand_stream_init(&rand, 1, 1);
    uint64_t now = 1000000000, left_ns = 0, arrived = 0, last_arrival = 0;
    int tokens[100];
    uint32_t put = 0, left = 0;
    /* 100 frames of 1,000 bytes are ready at once; the thread looks at random moments */
    while (arrived < 100) {
        while (put < 100 && mesh_pace_free(pace, now))
            assert_true(mesh_pace_put(pace, now, 1000000000, head, 100, body, 900, &tokens[put++]));
        while (mesh_pace_left(pace, now, &left_ns))
            assert_int_equal(left_ns, 1000000000 + (uint64_t)++left * 1000000);
        for (struct mesh_paced *p; (p = mesh_pace_arrived(pace, now)); free(p)) {
            arrived++;
            last_arrival = p->arrive_ns;
        }
        now += 1 + rand_stream_below(&rand, 1500000);
    }
    assert_int_equal(left, 100);
    assert_int_equal(last_arrival, 1000000000 + 100000000 + 10000000);
    assert_true(mesh_pace_empty(pace));
    assert_true(mesh_pace_next(pace, false) == UINT64_MAX);
    /* idle time does not make later frames faster */
    now += 1000000000;
    assert_true(mesh_pace_put(pace, now, now, head, 100, body, 900, NULL));
    assert_int_equal(mesh_pace_next(pace, true), now + 1000000);
    mesh_pace_destroy(pace, NULL, NULL);
}

static void queues_share_an_emulated_link(void **state)
{
    (void)state;
    struct group g;
    struct err err;
    struct tally sends, receives;
    enum { SIZE = 500000 };
    uint8_t *out = calloc(1, SIZE), *in = malloc(2 * SIZE);
    group_init(&g, 2);
    group_open(&g);
    g.peers[0][0].link = (struct mesh_link){.bytes_per_s = 12.5e6, .latency_s = 0.02};
    group_connect(&g);
    must(g.status[0], &g.err[0]);
    tally_init(&sends);
    tally_init(&receives);
    for (uint32_t q = 0; q < 2; q++)
        must(mesh_recv(g.mesh[1], POST(0, q, in_seconds(30), tally_done, &receives), 0, in + q * SIZE, SIZE,
                       &err),
             &err);
    uint64_t begin = clock_mono_ns();
    for (uint32_t q = 0; q < 2; q++)
        must(mesh_send(g.mesh[0], POST(1, q, in_seconds(30), tally_done, &sends), &no_meta, out, SIZE, &err),
             &err);
    assert_true(tally_wait(&receives, 2, 30) && tally_wait(&sends, 2, 30));
    double sent = (double)(sends.last.end_ns - begin) / 1e9,
           received = (double)(receives.last.end_ns - begin) / 1e9;
    /* The transfer is never faster than the link; how much slower it is depends on the machine's load. */
    assert_true(sent >= 0.0799 && sent < 2);
    assert_true(received >= 0.0999 && received < 2);
    double latency, rate;
    must(mesh_measure(g.mesh[0], 1, 500000, in_seconds(30), &latency, &rate, &err), &err);
    assert_true(latency >= 0.01 && latency < 0.2); /* only one direction is slow: half of 20 ms */
    assert_true(rate > 1e6 && rate < 12.6e6);
    must(mesh_measure(g.mesh[1], 0, 0, in_seconds(30), &latency, &rate, &err), &err);
    assert_true(latency >= 0.01 && rate > 12.6e6);
    group_close(&g);
    must(g.status[0], &g.err[0]);
    group_end(&g);
    free(out);
    free(in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_arrive_whole_and_in_order_whoever_posts_first),
        cmocka_unit_test(a_small_message_overtakes_a_large_one_on_another_queue),
        cmocka_unit_test(a_sender_without_a_posted_receive_stops_at_the_window),
        cmocka_unit_test(callbacks_may_post),
        cmocka_unit_test(the_last_message_is_delivered_when_the_sender_closes_at_once),
        cmocka_unit_test(a_deadline_ends_the_wait_and_names_the_peer),
        cmocka_unit_test(a_peer_that_vanishes_ends_everything_with_its_name),
        cmocka_unit_test(closing_against_a_peer_that_does_not_ends_at_the_deadline),
        cmocka_unit_test(a_wrong_tag_or_a_message_beyond_the_bound_is_an_error),
        cmocka_unit_test(the_higher_rank_can_connect),
        cmocka_unit_test(a_range_of_ports_is_kept_to),
        cmocka_unit_test(both_ends_must_agree_who_connects),
        cmocka_unit_test(a_stale_epoch_is_refused_on_both_sides),
        cmocka_unit_test(a_certificate_of_another_cluster_is_refused_on_both_sides),
        cmocka_unit_test(another_identity_of_the_same_cluster_is_refused),
        cmocka_unit_test(frames_that_lie_are_refused_before_memory_is_touched),
        cmocka_unit_test(a_paced_link_keeps_rate_and_latency_whatever_the_wakeups),
        cmocka_unit_test(queues_share_an_emulated_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
