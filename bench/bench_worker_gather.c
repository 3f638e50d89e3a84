/* Measures collectives on emulated links: ALL_GATHER and REDUCE_SCATTER of one block whose state is shared
 * out unevenly, and ALL_REDUCE of one that replicas keep whole, beside the bound that the busiest link sets,
 * and a small ALL_REDUCE.
 *
 *     bench_worker_gather [rounds]      (default 7)
 *
 * Members with shares r of X bytes: the link into a member carries X(1 - r) in an ALL_GATHER, so no order of
 * messages takes less than X * max(1 - r) / rate. A REDUCE_SCATTER's links carry as much out of each member,
 * and each link of an ALL_REDUCE's ring 2X(n - 1)/n.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/two_ranks.h"
#include "common/clock.h"
#include "engine/device/backend.h"
#include "program/host.h"
#include "worker/program/ops.h"

enum { HIDDEN = 512, VOCAB = 32768, ROUNDS_MAX = 99 };
#define LINK_BYTES_PER_S 125e6 /* 1 Gbit/s */

struct gather_bench {
    struct plan *plan;
    struct model_config config;
    struct rank_files files;
    struct mesh *mesh[BENCH_RANKS_MAX];
    char address[BENCH_RANKS_MAX][64];
    uint32_t ranks;
    double bytes_per_s;
    int rounds;
    pthread_barrier_t barrier;
    double seconds[2][ROUNDS_MAX]; /* [instruction][round] seconds of the slowest rank */
    pthread_mutex_t lock;
};

static int read_values(void *context, const char *name, uint64_t begin, uint64_t end, float *dst,
                       struct err *err)
{
    const struct model_config *config = context;
    uint64_t columns = strstr(name, "norm") ? 1 : config->hidden;
    (void)err;
    for (uint64_t i = 0; i < (end - begin) * columns; i++)
        dst[i] = (float)((begin * columns + i) % 1000) * 1e-3f;
    return 0;
}

static void slot_set(struct plan_slot *slot, int kind, int lifetime, uint64_t bytes, int32_t begin,
                     int32_t end)
{
    *slot = (struct plan_slot){.kind = (uint8_t)kind,
                               .lifetime = (uint8_t)lifetime,
                               .purpose = PURPOSE_BUFFERS,
                               .ring_micro_batches = 1,
                               .ring_blocks = 1,
                               .block_begin = begin,
                               .block_end = end,
                               .bytes_fixed = bytes,
                               .bytes_bound = bytes,
                               .bytes_total = bytes};
}

enum { SLOT_KEPT, SLOT_SUMS, SLOT_WHOLE, SLOT_UNREDUCED, SLOTS };

/* Makes a plan with blocks [begin, end) on every rank and a training program of collectives alone. */
static struct plan *plan_make(uint32_t ranks, const double *shares, int32_t begin, int32_t end,
                              int32_t blocks)
{
    struct err err;
    struct plan *plan = plan_create(ranks, 2, ranks, 1, &err);
    if (!plan)
        exit(2);
    plan->block_count = blocks;
    plan->tokens_bound = plan->rows_bound = plan->labelled_bound = plan->sequence_bound = 16;
    struct plan_group *group = &plan->groups[1];
    group->rank_count = ranks;
    group->ranks = calloc(ranks, sizeof(*group->ranks));
    group->shares = calloc(ranks, sizeof(*group->shares));
    for (uint32_t r = 0; r < ranks; r++) {
        struct plan_rank *rank = &plan->ranks[r];
        struct program_builder b = {0};
        uint64_t bytes = (uint64_t)VOCAB * HIDDEN * 4;
        group->ranks[r] = r;
        group->shares[r] = shares ? shares[r] : 1.0 / ranks;
        rank->block_begin = begin;
        rank->block_end = end;
        rank->slot_count = SLOTS;
        rank->slots = calloc(SLOTS, sizeof(*rank->slots));
        slot_set(&rank->slots[SLOT_KEPT], SLOT_PARAMETERS, SLOT_FOR_RUN, 0, begin, end);
        slot_set(&rank->slots[SLOT_SUMS], SLOT_GRADIENTS, SLOT_FOR_RUN, 0, begin, end);
        slot_set(&rank->slots[SLOT_WHOLE], SLOT_GATHERED, SLOT_FOR_INSTRUCTIONS, bytes, begin, end);
        slot_set(&rank->slots[SLOT_UNREDUCED], SLOT_GRADIENTS, SLOT_FOR_INSTRUCTIONS, bytes, begin, end);
        struct instr x = instr_init(shares ? INSTR_ALL_GATHER : INSTR_ALL_REDUCE, QUEUE_GROUP);
        x.group = 1;
        x.tag = shares ? TAG_PARAMETERS : TAG_PARAMETER_GRADIENTS;
        x.block_begin = begin;
        x.block_end = end;
        x.slot_in = shares ? SLOT_KEPT : SLOT_SUMS;
        x.slot_out = shares ? SLOT_WHOLE : SLOT_SUMS;
        int32_t first = program_add(&b, &x, NULL, 0);
        if (shares) {
            x.op = INSTR_REDUCE_SCATTER;
            x.tag = TAG_PARAMETER_GRADIENTS;
            x.slot_in = SLOT_UNREDUCED;
            x.slot_out = SLOT_SUMS;
            program_add(&b, &x, &first, 1);
        }
        must(program_builder_take(&b, &rank->programs[PROGRAM_TRAIN], &err), &err);
    }
    return plan;
}

struct rank_thread {
    struct gather_bench *bench;
    uint32_t rank;
    pthread_t thread;
};

static void connect_mesh(struct gather_bench *b, uint32_t rank)
{
    struct mesh_peer peers[BENCH_RANKS_MAX];
    char identities[BENCH_RANKS_MAX][24];
    uint32_t count = 0;
    struct err err;
    for (uint32_t r = 0; r < b->ranks; r++) {
        snprintf(identities[r], sizeof(identities[r]), "agent:n%u", r);
        if (r != rank)
            peers[count++] = (struct mesh_peer){.rank = r,
                                                .address = b->address[r],
                                                .identity = identities[r],
                                                .link = {.bytes_per_s = b->bytes_per_s}};
    }
    must(mesh_connect(b->mesh[rank], peers, count, clock_mono_ns() + 10000000000u, NULL, &err), &err);
}

static void measure(struct gather_bench *b, struct ops *ops, uint32_t instrs)
{
    struct err err;
    struct batch batch = {0};
    for (int round = -1; round < b->rounds; round++) {
        struct ops_step step = {.step = (uint64_t)(round + 1)};
        pthread_barrier_wait(&b->barrier);
        must(ops_run(ops, PROGRAM_TRAIN, &batch, &step, &err), &err);
        const struct exec_time *times = ops_times(ops, PROGRAM_TRAIN);
        pthread_mutex_lock(&b->lock);
        for (uint32_t i = 0; i < instrs && round >= 0; i++) {
            double took = (double)(times[i].end_ns - times[i].begin_ns) * 1e-9;
            b->seconds[i][round] = took > b->seconds[i][round] ? took : b->seconds[i][round];
        }
        pthread_mutex_unlock(&b->lock);
    }
}

static void *rank_main(void *arg)
{
    struct rank_thread *me = arg;
    struct gather_bench *b = me->bench;
    struct err err;
    struct device *device;
    struct stages stages = {0};
    struct ops *ops;
    struct weight_source source = {.read = read_values, .context = &b->config};
    struct device_options cpu = {.kind = "cpu", .name = "bench", .threads = 1};
    struct stage_options options = {
        .config = &b->config, .full = true, .seed = 1, .tokens_max = 16, .micro_batches_in_flight = 1};
    connect_mesh(b, me->rank);
    must(device_open(&cpu, &device, &err), &err);
    must(stages_create(device, &source, &options, b->plan, me->rank, &stages, &err), &err);
    struct ops_options with = {.plan = b->plan,
                               .rank = me->rank,
                               .device = device,
                               .stages = &stages,
                               .mesh = b->mesh[me->rank],
                               .hidden = b->config.hidden,
                               .vocab = b->config.vocab,
                               .wait_ns = 60000000000u};
    must(ops_create(&with, &ops, &err), &err);
    must(ops_connect(ops, clock_mono_ns() + 10000000000u, &err), &err);
    measure(b, ops, b->plan->ranks[me->rank].programs[PROGRAM_TRAIN].instr_count);
    pthread_barrier_wait(&b->barrier);
    ops_stop(ops);
    must(mesh_close(b->mesh[me->rank], clock_mono_ns() + 10000000000u, &err), &err);
    mesh_destroy(b->mesh[me->rank]);
    ops_destroy(ops);
    stages_fini(&stages);
    device_close(device);
    return NULL;
}

static void run(struct gather_bench *b)
{
    struct rank_thread threads[BENCH_RANKS_MAX];
    struct err err;
    memset(b->seconds, 0, sizeof(b->seconds));
    pthread_barrier_init(&b->barrier, NULL, b->ranks);
    for (uint32_t r = 0; r < b->ranks; r++) {
        struct mesh_options options = {.rank = r,
                                       .epoch = 1,
                                       .cert_file = b->files.cert[r],
                                       .key_file = b->files.key[r],
                                       .ca_file = b->files.ca};
        must(mesh_create(&options, &b->mesh[r], &err), &err);
        must(mesh_listen(b->mesh[r], "127.0.0.1:0", b->address[r], sizeof(b->address[r]), &err), &err);
    }
    for (uint32_t r = 0; r < b->ranks; r++) {
        threads[r] = (struct rank_thread){.bench = b, .rank = r};
        pthread_create(&threads[r].thread, NULL, rank_main, &threads[r]);
    }
    for (uint32_t r = 0; r < b->ranks; r++)
        pthread_join(threads[r].thread, NULL);
    pthread_barrier_destroy(&b->barrier);
    plan_destroy(b->plan);
}

static struct model_config config_of(uint32_t hidden, uint32_t vocab)
{
    return (struct model_config){.arch = MODEL_LLAMA,
                                 .hidden = hidden,
                                 .layers = 1,
                                 .heads = 4,
                                 .kv_heads = 4,
                                 .head_dim = hidden / 4,
                                 .ffn = hidden,
                                 .vocab = vocab,
                                 .max_positions = 64,
                                 .norm_eps = 1e-5,
                                 .rope = {.theta = 10000, .kind = ROPE_DEFAULT, .factor = 1},
                                 .tied = true};
}

int main(int argc, char **argv)
{
    static const struct {
        uint32_t ranks;
        double shares[BENCH_RANKS_MAX];
    } cases[] = {{3, {4.0 / 7, 2.0 / 7, 1.0 / 7}}, {4, {0.4, 0.3, 0.3, 0}}, {2, {0.5, 0.5}}};
    struct gather_bench b = {.rounds = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 7};
    b.rounds = b.rounds < 1 ? 1 : b.rounds > ROUNDS_MAX ? ROUNDS_MAX : b.rounds;
    pthread_mutex_init(&b.lock, NULL);
    make_files(&b.files);
    double bytes = (double)VOCAB * HIDDEN * 4;
    printf("64 MiB in slices of %d KiB over 1 Gbit/s, median of %d\n", STREAM_SLICE_BYTES >> 10, b.rounds);
    for (size_t c = 0; c < sizeof(cases) / sizeof(*cases); c++) {
        double least = 1;
        for (uint32_t r = 0; r < cases[c].ranks; r++)
            least = cases[c].shares[r] < least ? cases[c].shares[r] : least;
        b.ranks = cases[c].ranks;
        b.bytes_per_s = LINK_BYTES_PER_S;
        b.config = config_of(HIDDEN, VOCAB);
        b.plan = plan_make(b.ranks, cases[c].shares, 0, 1, 3);
        run(&b);
        double bound = bytes * (1 - least) / LINK_BYTES_PER_S, gather = median(b.seconds[0], b.rounds),
               scatter = median(b.seconds[1], b.rounds);
        printf(
            "%u members, least share %.2f: bound %.3f s, ALL_GATHER %.3f s (%.1f %%), REDUCE_SCATTER %.3f s "
            "(%.1f %%)\n",
            b.ranks, least, bound, gather, 100 * bound / gather, scatter, 100 * bound / scatter);
    }
    for (b.ranks = 2; b.ranks <= 3; b.ranks++) {
        b.plan = plan_make(b.ranks, NULL, 0, 1, 3);
        run(&b);
        double bound = 2 * bytes * (b.ranks - 1) / b.ranks / LINK_BYTES_PER_S,
               sum = median(b.seconds[0], b.rounds);
        printf("%u members: bound %.3f s, ALL_REDUCE %.3f s (%.1f %%)\n", b.ranks, bound, sum,
               100 * bound / sum);
    }
    b.ranks = 4;
    b.bytes_per_s = 0;
    b.config = config_of(256, 64); /* the final norm: 256 values */
    b.plan = plan_make(4, NULL, 2, 3, 3);
    b.rounds = ROUNDS_MAX;
    run(&b);
    printf("ALL_REDUCE of 1 KiB on 4 ranks, no emulated link: %.3f ms\n",
           median(b.seconds[0], b.rounds) * 1e3);
    (void)!remove(b.files.dir);
    return 0;
}
