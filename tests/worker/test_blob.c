/* Tests the artifact store's client over a connection that breaks: bytes that have arrived are not sent
 * again, and the transfer succeeds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>

#include "support/must.h"
#include "support/scratch.h"
#include "worker/session/blob.h"
#include "worker/blob_server.h"

enum { LIMIT_BYTES = 9 << 20 /* one part fits, two do not */, BLOB_BYTES = 20 << 20 };

/* A proxy that closes each connection after LIMIT_BYTES in either direction. */
struct link {
    int listener, port, target;
    pthread_t thread;
    atomic_uint cuts;
    atomic_ulong bytes;
};

static int connect_to(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 ? fd : -1;
}

static void forward(struct link *link, int client, int server)
{
    static char data[1 << 16];
    struct pollfd ends[2] = {{.fd = client, .events = POLLIN}, {.fd = server, .events = POLLIN}};
    size_t passed[2] = {0, 0};
    while (poll(ends, 2, 30000) > 0)
        for (int e = 0; e < 2; e++) {
            if (!ends[e].revents)
                continue;
            ssize_t got = read(ends[e].fd, data, sizeof(data));
            for (ssize_t at = 0, n; at < got; at += n)
                if ((n = write(ends[1 - e].fd, data + at, (size_t)(got - at))) <= 0)
                    return;
            if (got <= 0)
                return;
            atomic_fetch_add(&link->bytes, (unsigned long)got);
            passed[e] += (size_t)got;
            if (passed[e] >= LIMIT_BYTES) {
                atomic_fetch_add(&link->cuts, 1);
                return;
            }
        }
}

static void *link_main(void *arg)
{
    struct link *link = arg;
    for (int client; (client = accept(link->listener, NULL, NULL)) >= 0;) {
        int server = connect_to(link->target);
        if (server >= 0)
            forward(link, client, server);
        close(client);
        close(server);
    }
    return NULL;
}

static void link_open(struct link *link, int target)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof(address);
    memset(link, 0, sizeof(*link));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    link->target = target;
    link->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(link->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(link->listener, 8), 0);
    assert_int_equal(getsockname(link->listener, (struct sockaddr *)&address, &size), 0);
    link->port = ntohs(address.sin_port);
    assert_int_equal(pthread_create(&link->thread, NULL, link_main, link), 0);
}

static void link_close(struct link *link)
{
    shutdown(link->listener, SHUT_RDWR);
    pthread_join(link->thread, NULL);
    close(link->listener);
}

static void a_blob_passes_a_link_that_breaks_both_ways(void **state)
{
    (void)state;
    struct scratch scratch;
    struct blob_server store;
    struct link link;
    struct blobs *blobs = NULL;
    struct err err;
    struct buf back;
    char url[64], sha256[65];
    uint32_t *data = malloc(BLOB_BYTES);
    for (uint32_t i = 0; i < BLOB_BYTES / 4; i++)
        data[i] = i * 2654435761u;
    assert_int_equal(scratch_make(&scratch), 0);
    assert_int_equal(blob_server_start(&store, scratch.dir), 0);
    link_open(&link, (int)strtol(strrchr(store.url, ':') + 1, NULL, 10));
    snprintf(url, sizeof(url), "http://127.0.0.1:%d", link.port);
    struct blobs_options options = {.api = url, .patience_ns = 10000000000u};
    check(blobs_open(&options, &blobs, &err));
    buf_init(&back, BLOB_BYTES);
    check(blobs_put(blobs, data, BLOB_BYTES, sha256, &err));
    assert_true(atomic_load(&link.cuts) >= 2);
    atomic_store(&link.cuts, 0);
    atomic_store(&link.bytes, 0);
    check(blobs_get(blobs, sha256, &back, &err));
    assert_int_equal(back.size, BLOB_BYTES);
    assert_memory_equal(back.data, data, BLOB_BYTES);
    assert_true(atomic_load(&link.cuts) >= 2);
    assert_true(atomic_load(&link.bytes) < BLOB_BYTES + BLOB_BYTES / 2);
    buf_fini(&back);
    blobs_close(blobs);
    link_close(&link);
    blob_server_stop(&store);
    scratch_remove(&scratch);
    free(data);
}

/* A range is fetched, and a file that can be read only after a while is waited for. */
static void a_range_is_fetched_and_a_file_awaited(void **state)
{
    (void)state;
    struct scratch scratch;
    struct blob_server store;
    struct blobs *blobs = NULL;
    struct err err;
    char sha256[65];
    uint8_t data[5000], got[1000];
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 37 + i / 256);
    assert_int_equal(scratch_make(&scratch), 0);
    assert_int_equal(blob_server_start(&store, scratch.dir), 0);
    struct blobs_options options = {.api = store.url, .patience_ns = 10000000000u};
    check(blobs_open(&options, &blobs, &err));
    check(blobs_put(blobs, data, sizeof(data), sha256, &err));
    check(blobs_get_range(blobs, sha256, 3456, sizeof(got), got, &err));
    assert_memory_equal(got, data + 3456, sizeof(got));
    assert_int_equal(blobs_get_range(blobs, sha256, 4500, sizeof(got), got, &err), -1);
    atomic_store(&store.hidden, 3);
    check(blobs_await(blobs, sha256, &err));
    assert_int_equal(atomic_load(&store.hidden), 0);
    blobs_close(blobs);
    options.patience_ns = 1;
    check(blobs_open(&options, &blobs, &err));
    atomic_store(&store.hidden, 1);
    assert_int_equal(blobs_await(blobs, sha256, &err), -1);
    assert_int_equal(err.code, ERR_NOT_FOUND);
    blobs_close(blobs);
    blob_server_stop(&store);
    scratch_remove(&scratch);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_blob_passes_a_link_that_breaks_both_ways),
        cmocka_unit_test(a_range_is_fetched_and_a_file_awaited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
