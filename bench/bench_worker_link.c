/* Measures how long a boundary tensor takes between two CPU devices of one node: through TLS on loopback, and
 * directly from one device's memory to the other's, as in worker/program/transfer.c and
 * worker/program/local.c.
 *
 *     bench_worker_link [rounds]      (default 9)
 *
 * Through the mesh: a copy to the host, a message, a copy to the other device. Within the node: a "ready"
 * message one way, one copy into the imported buffer, a "written" message the other way. It prints medians
 * for one tensor at a time, from when the receiver is ready until its device has the tensor.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/two_ranks.h"
#include "common/clock.h"
#include "common/file.h"
#include "engine/device/backend.h"
#include "mesh/mesh.h"

/* A struct mesh_post, as a pointer. */
#define POST(rank, number, deadline, fn, a)                                                                  \
    (&(struct mesh_post){                                                                                    \
        .peer = (rank), .queue = (number), .deadline_ns = (deadline), .done = (fn), .arg = (a)})

enum { ROUNDS_MAX = 99, BYTES_MAX = 64 << 20, DATA_QUEUE = 1, READY_QUEUE = 2 };

/* Rank 0 sends, rank 1 receives. */
struct link_bench {
    struct pair pair;
    struct device *device[2];
    struct buffer *from, *to, *imported;
    uint8_t *host[2];
    size_t bytes;
    int rounds;
    bool local;
};

static void check_bytes(const struct link_bench *b)
{
    struct err err;
    must(buffer_read(b->to, 0, b->host[1], b->bytes, &err), &err);
    for (size_t i = 0; i < b->bytes; i += 4095)
        if (b->host[1][i] != (uint8_t)(i % 251)) {
            fprintf(stderr, "bench_worker_link: byte %zu is wrong\n", i);
            exit(2);
        }
}

static void *send_all(void *arg)
{
    struct link_bench *b = arg;
    struct mesh *mesh = b->pair.mesh[0];
    struct mesh_meta meta = {.tag = 1};
    struct err err;
    uint64_t deadline_ns = clock_mono_ns() + 120000000000u, word;
    for (int i = 0; i < b->rounds; i++) {
        must(mesh_recv_wait(mesh, POST(1, READY_QUEUE, deadline_ns, NULL, NULL), 1, &word, sizeof(word), NULL,
                            &err),
             &err);
        if (b->local)
            must(buffer_copy_on(DEVICE_OUT, b->imported, 0, b->from, 0, b->bytes, &err), &err);
        else
            must(buffer_read_on(DEVICE_OUT, b->from, 0, b->host[0], b->bytes, &err), &err);
        must(mesh_send_wait(mesh, POST(1, DATA_QUEUE, deadline_ns, NULL, NULL), &meta,
                            b->local ? (void *)&word : b->host[0], b->local ? sizeof(word) : b->bytes, NULL,
                            &err),
             &err);
    }
    return NULL;
}

/* Median seconds for one tensor. */
static double receive_all(struct link_bench *b)
{
    struct mesh *mesh = b->pair.mesh[1];
    struct mesh_meta meta = {.tag = 1};
    struct err err;
    pthread_t sender;
    double seconds[ROUNDS_MAX];
    uint64_t deadline_ns = clock_mono_ns() + 120000000000u, word = 1;
    pthread_create(&sender, NULL, send_all, b);
    for (int i = 0; i < b->rounds; i++) {
        uint64_t begin_ns = clock_mono_ns();
        must(mesh_send_wait(mesh, POST(0, READY_QUEUE, deadline_ns, NULL, NULL), &meta, &word, sizeof(word),
                            NULL, &err),
             &err);
        must(mesh_recv_wait(mesh, POST(0, DATA_QUEUE, deadline_ns, NULL, NULL), 1,
                            b->local ? (void *)&word : b->host[1], b->local ? sizeof(word) : b->bytes, NULL,
                            &err),
             &err);
        if (!b->local)
            must(buffer_write_on(DEVICE_IN, b->to, 0, b->host[1], b->bytes, &err), &err);
        seconds[i] = (double)(clock_mono_ns() - begin_ns) * 1e-9;
    }
    pthread_join(sender, NULL);
    check_bytes(b);
    return median(seconds, b->rounds);
}

static void open_devices(struct link_bench *b)
{
    struct device_options options = {.kind = "cpu", .name = "bench", .threads = 1};
    struct buffer_handle handle;
    struct err err;
    for (int i = 0; i < 2; i++) {
        void *memory;
        must(device_open(&options, &b->device[i], &err), &err);
        must(host_memory_create(b->device[i], BYTES_MAX, "a tensor", &memory, &err), &err);
        b->host[i] = memory;
    }
    must(buffer_create(b->device[0], BYTES_MAX, MEM_BUFFERS, "a tensor", &b->from, &err), &err);
    must(buffer_create_shared(b->device[1], BYTES_MAX, MEM_BUFFERS, "a tensor", &b->to, &err), &err);
    must(buffer_export(b->to, &handle, &err), &err);
    must(buffer_import(b->device[0], &handle, &b->imported, &err), &err);
    for (size_t i = 0; i < BYTES_MAX; i++)
        b->host[0][i] = (uint8_t)(i % 251);
    must(buffer_write(b->from, 0, b->host[0], BYTES_MAX, &err), &err);
}

static void close_devices(struct link_bench *b)
{
    buffer_destroy(b->imported);
    buffer_destroy(b->from);
    buffer_destroy(b->to);
    for (int i = 0; i < 2; i++) {
        host_memory_destroy(b->device[i], b->host[i], BYTES_MAX);
        device_close(b->device[i]);
    }
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {64 << 10, 1 << 20, 8 << 20, BYTES_MAX};
    struct link_bench b = {.rounds = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 9};
    struct rank_files files;
    struct err err;
    b.rounds = b.rounds < 3 ? 3 : b.rounds > ROUNDS_MAX ? ROUNDS_MAX : b.rounds;
    make_files(&files);
    open_devices(&b);
    pair_open(&b.pair, &files);
    for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
        b.bytes = sizes[s];
        b.local = false;
        double mesh_s = receive_all(&b);
        must(buffer_zero(b.to, 0, BYTES_MAX, &err), &err);
        b.local = true;
        double local_s = receive_all(&b);
        must(buffer_zero(b.to, 0, BYTES_MAX, &err), &err);
        printf("%8zu KiB: %9.3f ms by the mesh (%5.0f MB/s), %8.3f ms within the node (%5.0f MB/s), %.1f "
               "times\n",
               b.bytes >> 10, mesh_s * 1e3, (double)b.bytes / mesh_s / 1e6, local_s * 1e3,
               (double)b.bytes / local_s / 1e6, mesh_s / local_s);
    }
    mesh_destroy(b.pair.mesh[0]);
    mesh_destroy(b.pair.mesh[1]);
    close_devices(&b);
    file_remove_tree(files.dir, &err);
    return 0;
}
