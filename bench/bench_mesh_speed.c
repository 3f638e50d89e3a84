/* Measures the mesh on loopback against a plain OpenSSL loop, and how long a small frame waits behind a large
 * message.
 *
 *     bench_mesh_speed [rounds]      (default 5)
 *
 * For each size, a plain loop (one TLS 1.3 connection, AES-128-GCM, SSL_write from memory, SSL_read into
 * memory, 1 MiB per call) alternates with the mesh (one send and one posted receive, until the receiver has
 * the last byte). It prints medians, and the spread of the plain loop against itself. Then 1 KB frames are
 * sent on one queue of a pair, one per millisecond, while 64 MB messages use another queue: measured from
 * mesh_send() to the receiver's last byte. Exit status 1 if the mesh misses a goal (90 % of the plain loop,
 * p99 of 5 ms).
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bench/two_ranks.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/tls.h"
#include "mesh/mesh.h"

/* A struct mesh_post, as a pointer. */
#define POST(rank, number, deadline, fn, a)                                                                  \
    (&(struct mesh_post){                                                                                    \
        .peer = (rank), .queue = (number), .deadline_ns = (deadline), .done = (fn), .arg = (a)})

enum { ROUNDS_MAX = 64, CALL_BYTES = 1 << 20, SMALL = 1024, SMALLS = 400, LARGE = 64 << 20 };

static const size_t sizes[] = {1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

/* ---- the plain loop ---- */

struct bare {
    SSL *send, *receive;
    uint8_t *from, *to;
    size_t size;
};

static void *bare_receive(void *arg)
{
    struct bare *b = arg;
    for (size_t at = 0; at < b->size;) {
        size_t left = b->size - at;
        int n = SSL_read(b->receive, b->to + at, left < CALL_BYTES ? (int)left : CALL_BYTES);
        if (n <= 0)
            exit(2);
        at += (size_t)n;
    }
    return NULL;
}

static double bare_once(struct bare *b, size_t size)
{
    pthread_t thread;
    b->size = size;
    uint64_t begin = clock_mono_ns();
    pthread_create(&thread, NULL, bare_receive, b);
    for (size_t at = 0; at < size;) {
        size_t left = size - at;
        int n = SSL_write(b->send, b->from + at, left < CALL_BYTES ? (int)left : CALL_BYTES);
        if (n <= 0)
            exit(2);
        at += (size_t)n;
    }
    pthread_join(thread, NULL);
    return (double)(clock_mono_ns() - begin) / 1e9;
}

static void *bare_accept(void *arg)
{
    if (SSL_accept(arg) != 1)
        exit(2);
    return NULL;
}

static void bare_open(struct bare *b, const struct rank_files *f)
{
    struct err err;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(at);
    struct tls_files server = {.ca_file = f->ca, .cert_file = f->cert[0], .key_file = f->key[0]};
    struct tls_files client = {.ca_file = f->ca, .cert_file = f->cert[1], .key_file = f->key[1]};
    SSL_CTX *one = tls_context_create(&server, TLS_ROLE_SERVER_MUTUAL, &err);
    SSL_CTX *two = tls_context_create(&client, TLS_ROLE_PEER, &err);
    int listener = socket(AF_INET, SOCK_STREAM, 0), out = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (!one || !two || bind(listener, (struct sockaddr *)&at, sizeof(at)) < 0 || listen(listener, 1) < 0 ||
        getsockname(listener, (struct sockaddr *)&at, &length) < 0 ||
        connect(out, (struct sockaddr *)&at, sizeof(at)) < 0)
        exit(2);
    int in = accept(listener, NULL, NULL);
    setsockopt(out, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    b->send = SSL_new(two);
    b->receive = SSL_new(one);
    SSL_set_fd(b->send, out);
    SSL_set_fd(b->receive, in);
    SSL_clear_mode(b->send, SSL_MODE_RELEASE_BUFFERS); /* buffers stay allocated between calls */
    SSL_clear_mode(b->receive, SSL_MODE_RELEASE_BUFFERS);
    pthread_t thread;
    pthread_create(&thread, NULL, bare_accept, b->receive);
    if (SSL_connect(b->send) != 1)
        exit(2);
    pthread_join(thread, NULL);
    close(listener);
}

/* ---- the mesh ---- */

static void ignore_done(const struct mesh_done *done)
{
    if (!done->ok) {
        fprintf(stderr, "bench_mesh_speed: %s\n", done->err.text);
        exit(2);
    }
}

struct arrival {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t count;
    uint64_t end_ns[SMALLS];
};

static void arrived(const struct mesh_done *done)
{
    struct arrival *a = done->arg;
    ignore_done(done);
    pthread_mutex_lock(&a->lock);
    if (a->count < SMALLS)
        a->end_ns[a->count] = done->end_ns;
    a->count++;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static void wait_count(struct arrival *a, uint32_t count)
{
    pthread_mutex_lock(&a->lock);
    while (a->count < count)
        pthread_cond_wait(&a->changed, &a->lock);
    pthread_mutex_unlock(&a->lock);
}

static double mesh_once(struct pair *p, uint8_t *from, uint8_t *to, size_t size)
{
    struct arrival a = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct mesh_meta meta = {.tag = 1};
    struct err err;
    uint64_t begin = clock_mono_ns(), deadline = begin + 60000000000u;
    must(mesh_recv(p->mesh[1], POST(0, 0, deadline, arrived, &a), 1, to, size, &err), &err);
    must(mesh_send(p->mesh[0], POST(1, 0, deadline, ignore_done, NULL), &meta, from, size, &err), &err);
    wait_count(&a, 1);
    return (double)(clock_mono_ns() - begin) / 1e9;
}

static bool bench_throughput(struct bare *bare, struct pair *pair, int rounds)
{
    bool good = true;
    printf("%8s %12s %12s %8s %24s\n", "MB", "bare MB/s", "mesh MB/s", "mesh/bare", "bare A against A");
    for (int s = 0; s < SIZES; s++) {
        double b[ROUNDS_MAX], m[ROUNDS_MAX], odd[ROUNDS_MAX], even[ROUNDS_MAX], mb = (double)sizes[s] / 1e6;
        int n = sizes[s] < 32 << 20 ? rounds * 4 : rounds;
        n = n > ROUNDS_MAX ? ROUNDS_MAX : n;
        bare_once(bare, sizes[s]);
        mesh_once(pair, bare->from, bare->to, sizes[s]);
        int odds = 0, evens = 0;
        for (int i = 0; i < n; i++) {
            b[i] = bare_once(bare, sizes[s]);
            m[i] = mesh_once(pair, bare->from, bare->to, sizes[s]);
            if (i % 2)
                odd[odds++] = b[i];
            else
                even[evens++] = b[i];
        }
        double spread = median(odd, odds) / median(even, evens);
        double ratio = median(b, n) / median(m, n);
        printf("%8.0f %12.0f %12.0f %8.3f %24.3f\n", mb, mb / median(b, n), mb / median(m, n), ratio, spread);
        good = good && ratio >= 0.9;
    }
    return good;
}

/* ---- small frames behind large messages ---- */

struct flood {
    struct pair *pair;
    uint8_t *from, *to;
    volatile bool stop;
    int count;
};

static void *flood_run(void *arg)
{
    struct flood *f = arg;
    while (!f->stop) {
        mesh_once(f->pair, f->from, f->to, LARGE);
        f->count++;
    }
    return NULL;
}

static bool bench_latency(struct pair *pair, uint8_t *from, uint8_t *to)
{
    struct arrival a = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct flood flood = {.pair = pair, .from = from, .to = to};
    static uint8_t in[SMALLS][SMALL], out[SMALL];
    static uint64_t begin[SMALLS];
    double ms[SMALLS];
    struct mesh_meta meta = {.tag = 2};
    struct err err;
    pthread_t thread;
    uint64_t deadline = clock_mono_ns() + 120000000000u;
    for (int i = 0; i < SMALLS; i++)
        must(mesh_recv(pair->mesh[1], POST(0, 7, deadline, arrived, &a), 2, in[i], SMALL, &err), &err);
    pthread_create(&thread, NULL, flood_run, &flood);
    for (int i = 0; i < SMALLS; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        begin[i] = clock_mono_ns();
        must(mesh_send(pair->mesh[0], POST(1, 7, deadline, ignore_done, NULL), &meta, out, SMALL, &err),
             &err);
    }
    wait_count(&a, SMALLS);
    flood.stop = true;
    pthread_join(thread, NULL);
    for (int i = 0; i < SMALLS; i++)
        ms[i] = (double)(a.end_ns[i] - begin[i]) / 1e6;
    qsort(ms, SMALLS, sizeof(double), compare_double);
    printf("1 KB frame during %d transfers of 64 MB on another queue: median %.2f ms, p99 %.2f ms, most %.2f "
           "ms\n",
           flood.count, ms[SMALLS / 2], ms[SMALLS * 99 / 100], ms[SMALLS - 1]);
    return ms[SMALLS * 99 / 100] < 5;
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 5;
    struct rank_files files;
    struct bare bare;
    struct pair pair;
    struct err err;
    size_t most = sizes[SIZES - 1];
    double latency, rate;
    rounds = rounds < 2 ? 2 : rounds > ROUNDS_MAX / 4 ? ROUNDS_MAX / 4 : rounds;
    make_files(&files);
    bare.from = malloc(most);
    bare.to = malloc(most);
    if (!bare.from || !bare.to)
        return 2;
    memset(bare.from, 7, most);
    memset(bare.to, 0, most);
    bare_open(&bare, &files);
    pair_open(&pair, &files);
    bool fast = bench_throughput(&bare, &pair, rounds);
    bool prompt = bench_latency(&pair, bare.from, bare.to);
    must(mesh_measure(pair.mesh[0], 1, 0, clock_mono_ns() + 10000000000u, &latency, &rate, &err), &err);
    printf("mesh_measure: %.3f ms, %.0f MB/s\n", latency * 1e3, rate / 1e6);
    mesh_destroy(pair.mesh[0]);
    mesh_destroy(pair.mesh[1]);
    file_remove_tree(files.dir, &err);
    printf("%s\n", fast && prompt ? "goals met" : "GOALS MISSED");
    return fast && prompt ? 0 : 1;
}
