/* Tests that who connects and is no peer keeps no peer out. */
#include "mesh/mesh_pair.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mesh/conn.h"
#include "mesh/mesh_private.h"
#include "mesh/wire.h"
#include "support/must.h"

static int dial_plain(const char *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons((uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Opens more connections than the mesh handles at a time, half of them silent, half in an unfinished
 * handshake. */
static void strangers_that_stall_do_not_keep_the_right_ones_out(void **state)
{
    enum { STRANGERS = 80 };
    (void)state;
    struct group g;
    int held[STRANGERS];
    group_init(&g, 2);
    group_open(&g);
    for (int i = 0; i < STRANGERS; i++) {
        held[i] = dial_plain(g.address[1]);
        assert_true(held[i] >= 0);
        if (i % 2 == 1)
            assert_int_equal(send(held[i], "\x16\x03\x01", 3, MSG_NOSIGNAL), 3);
    }
    uint64_t begin_ns = clock_mono_ns();
    group_connect(&g);
    must(g.status[0], &g.err[0]);
    must(g.status[1], &g.err[1]);
    assert_true(clock_mono_ns() - begin_ns < 5000000000u);
    for (int i = 0; i < STRANGERS; i++)
        close(held[i]);
    group_end(&g);
}

/* As many connections as the mesh greets at a time, of a node of the same cluster that was given no rank of
 * this run, say hello before the peers are known, and go on waiting: no slot is left for the right peers.
 * They are refused when the peers are known, or hung up on when all of these are here, long before their 60 s
 * are over. */
static void hellos_of_others_end_when_the_peers_are_known(void **state)
{
    (void)state;
    struct group g;
    struct err err;
    struct mesh_conn *liars[MESH_GREETINGS];
    enum err_code code;
    uint64_t epoch;
    group_init(&g, 3);
    g.count = 2; /* the third is the liar */
    group_open(&g);
    struct tls_files files = {
        .ca_file = g.cluster.ca_file, .cert_file = g.certs[2].cert_file, .key_file = g.certs[2].key_file};
    SSL_CTX *context = tls_context_create(&files, TLS_ROLE_PEER, &err);
    assert_non_null(context);
    struct mesh_conn_options options = {.deadline_ns = in_seconds(50), .peer_silence_ns = 50000000000u};
    uint8_t hello[WIRE_HELLO_BYTES], answer[WIRE_ANSWER_BYTES];
    wire_hello_encode(&(struct wire_hello){.run = 3, .epoch = 7, .from = 0, .to = 1}, hello);
    for (int i = 0; i < MESH_GREETINGS; i++) {
        must(mesh_conn_dial(context, g.address[1], "rank 1", &options, &liars[i], &err), &err);
        must(mesh_conn_write(liars[i], hello, sizeof(hello), NULL, 0, &err), &err);
        must(mesh_conn_flush(liars[i], &err), &err);
    }
    uint64_t begin_ns = clock_mono_ns();
    group_connect(&g);
    must(g.status[0], &g.err[0]);
    must(g.status[1], &g.err[1]);
    assert_true(clock_mono_ns() - begin_ns < 20000000000u);
    for (int i = 0; i < MESH_GREETINGS; i++) {
        if (mesh_conn_read(liars[i], answer, sizeof(answer), &err) == 0) {
            must(wire_answer_decode(answer, &code, &epoch, &err), &err);
            assert_int_equal(code, ERR_PEER);
        } else {
            assert_int_equal(err.code, ERR_NET);
        }
        mesh_conn_close(liars[i]);
    }
    tls_context_free(context);
    group_end(&g);
}

/* When all ranks are connected the mesh stops listening. */
static void once_all_are_here_nobody_else_is_let_in(void **state)
{
    (void)state;
    struct group g;
    group_start(&g, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(dial_plain(g.address[i]), -1);
    group_close(&g);
    group_end(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_that_stall_do_not_keep_the_right_ones_out),
        cmocka_unit_test(hellos_of_others_end_when_the_peers_are_known),
        cmocka_unit_test(once_all_are_here_nobody_else_is_let_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
