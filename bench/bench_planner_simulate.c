/* Measures how many instructions per second the simulator runs, on programs of pipelines and of pipelines of
 * groups. It counts CPU seconds of one core and takes the best of several runs, because others use the
 * machine, too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "planner/cost/price.h"
#include "planner/kind/kind.h"

#define RUNS 7

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct model_config model_of(uint32_t layers)
{
    struct model_config c = {.arch = MODEL_LLAMA,
                             .hidden = 4096,
                             .layers = layers,
                             .heads = 32,
                             .kv_heads = 8,
                             .head_dim = 128,
                             .ffn = 14336,
                             .vocab = 128256,
                             .max_positions = 8192,
                             .norm_eps = 1e-5,
                             .rope = {.theta = 5e5, .factor = 1},
                             .bos = 1,
                             .pad = -1,
                             .eos_count = 1,
                             .eos = {2}};
    snprintf(c.rope.kind_name, sizeof(c.rope.kind_name), "default");
    return c;
}

static struct cluster *cluster_of(uint32_t devices, double nic, struct err *err)
{
    struct cluster *cluster = cluster_create(err);
    for (uint32_t d = 0; cluster && d < devices; d++) {
        char name[32], node[16];
        snprintf(node, sizeof(node), "n%u", d / 2);
        snprintf(name, sizeof(name), "n%u/%u", d / 2, d % 2);
        struct cluster_device device = {.name = name,
                                        .node = node,
                                        .kind = "cuda",
                                        .like = "a100x80",
                                        .speed = 0.8 + 0.1 * (d % 5),
                                        .memory_limit_bytes = (uint64_t)1 << 42};
        if (cluster_add_device(cluster, &device, err) < 0 ||
            (nic > 0 && d % 2 && cluster_set_nic(cluster, node, nic, err) < 0)) {
            cluster_destroy(cluster);
            return NULL;
        }
    }
    return cluster;
}

/* Makes a plan with stages of `width` devices each and blocks shared evenly. */
static struct plan *plan_of(const struct problem *problem, uint32_t stages, uint32_t width, struct err *err)
{
    struct candidate c = {.placement = width > 1 ? PLACE_HYBRID : PLACE_PIPELINE, .micro_batch_rows = 1};
    uint32_t count = problem->workload->batch_rows;
    struct plan *plan = NULL;
    if (candidate_reserve(&c, stages, stages * width, err) < 0)
        return NULL;
    c.stage_count = stages;
    c.member_count = stages * width;
    for (uint32_t s = 0; s < stages; s++) {
        c.stages[s] = (struct candidate_stage){
            .block_begin = (int32_t)((uint64_t)problem->block_count * s / stages),
            .block_end = (int32_t)((uint64_t)problem->block_count * (s + 1) / stages),
            .member_first = s * width,
            .member_count = width};
        for (uint32_t m = 0; m < width; m++)
            c.members[s * width + m] =
                (struct member){.device = s * width + m, .state_share = 1, .window = stages - s + 2};
    }
    /* Micro-batches go to members in turn; in every other stage a member takes two in succession. */
    if (width == 1 || candidate_own(&c, count, err) == 0) {
        for (uint32_t i = 0; i < c.owner_count; i++)
            c.owner[i] = (uint8_t)(i % count / (1 + i / count % 2) % width);
        plan = kinds[c.placement]->emit(problem, &c, true, err);
    }
    candidate_fini(&c);
    return plan;
}

static uint64_t instructions_of(const struct plan *plan)
{
    uint64_t count = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++)
        count += plan->ranks[r].programs[PROGRAM_TRAIN].instr_count;
    return count;
}

/* Returns constant seconds, so that the simulator's loop itself is measured. */
static double constant_compute(void *context, uint32_t rank, const struct instr *x)
{
    (void)context;
    return x->op == INSTR_FORWARD ? 1e-3 + 1e-5 * rank : x->op == INSTR_BACKWARD ? 2e-3 : 1e-4;
}

static double constant_bytes(void *context, uint32_t rank, const struct instr *x)
{
    (void)context;
    (void)rank;
    (void)x;
    return 1e6;
}

static void constant_wire(void *context, uint32_t from, uint32_t to, struct sim_wire *wire)
{
    (void)context;
    (void)from;
    (void)to;
    *wire = (struct sim_wire){.latency_s = 1e-4, .bytes_per_s = 1e10};
}

static double constant_collective(void *context, const struct plan_group *group, uint32_t rank,
                                  const struct instr *x)
{
    (void)context;
    (void)group;
    (void)rank;
    (void)x;
    return 1e-3;
}

static double best_run(struct sim *sim, const struct sim_costs *costs, double *seconds, struct err *err)
{
    double best = 0;
    for (int i = 0; i < RUNS; i++) {
        double began = cpu_s();
        if (sim_run(sim, costs, seconds, NULL, NULL, 0, err) < 0)
            return -1;
        double took = cpu_s() - began;
        best = i == 0 || took < best ? took : best;
    }
    return best;
}

static int measure(const char *what, const struct problem *problem, struct plan *plan, struct err *err)
{
    static const struct sim_costs flat = {.compute_s = constant_compute,
                                          .bytes = constant_bytes,
                                          .wire = constant_wire,
                                          .collective_s = constant_collective};
    struct price price;
    struct sim *sim = NULL;
    uint64_t count = instructions_of(plan);
    double seconds = 0, began = cpu_s();
    if (sim_create(plan, PROGRAM_TRAIN, &sim, err) < 0)
        return -1;
    double made = cpu_s() - began, loop = best_run(sim, &flat, &seconds, err);
    int result = price_init(&price, problem, plan, err);
    if (result == 0) {
        struct sim_costs costs = price_costs(&price);
        double priced = best_run(sim, &costs, &seconds, err);
        printf("%-34s %8llu  %6.1f M/s  %6.1f M/s  %7.1f ms  %8.1f ms\n", what, (unsigned long long)count,
               (double)count / loop / 1e6, (double)count / priced / 1e6, made * 1e3, priced * 1e3);
        price_fini(&price);
    }
    sim_destroy(sim);
    return result;
}

static int bench(uint32_t stages, uint32_t width, uint32_t micro_batches, bool ragged, double nic)
{
    struct err err = {0};
    struct model_config config = model_of(stages * 2);
    struct workload w = {.config = &config,
                         .lora_rank = 16,
                         .target_count = 2,
                         .targets = {"q_proj", "v_proj"},
                         .base = BASE_BF16,
                         .compute = COMPUTE_BF16,
                         .sequence_tokens = 512,
                         .batch_rows = micro_batches,
                         .seed = 1,
                         .steps = 1,
                         .place = -1};
    struct problem problem;
    char what[64];
    if (ragged) {
        w.row_count = micro_batches;
        w.rows = calloc(micro_batches, sizeof(*w.rows));
        for (uint32_t i = 0; w.rows && i < micro_batches; i++)
            w.rows[i] = (struct workload_row){.tokens = 100 + i * 37 % 400, .labelled = 50 + i * 17 % 50};
    }
    struct cluster *cluster = cluster_of(stages * width, nic, &err);
    int result = cluster ? problem_init(&problem, &w, cluster, &err) : -1;
    if (result == 0) {
        struct plan *plan = plan_of(&problem, stages, width, &err);
        snprintf(what, sizeof(what), "%u stages of %u, %u micro-batches%s%s", stages, width, micro_batches,
                 ragged ? ", ragged" : "", nic > 0 ? ", cards" : "");
        result = plan ? measure(what, &problem, plan, &err) : -1;
        plan_destroy(plan);
        problem_fini(&problem);
    }
    if (result < 0)
        printf("%s\n", err.text);
    cluster_destroy(cluster);
    workload_fini(&w);
    return result;
}

int main(void)
{
    printf("%-34s %8s  %10s  %10s  %10s  %11s\n", "", "instr.", "loop", "priced", "preparing", "running");
    int result = bench(4, 1, 64, true, 0) | bench(8, 1, 512, true, 0) | bench(8, 1, 8192, true, 0) |
                 bench(8, 1, 8192, false, 0) | bench(64, 1, 2048, false, 0) | bench(64, 1, 8192, false, 0) |
                 bench(8, 2, 4096, true, 0) | bench(8, 2, 4096, false, 0) | bench(8, 2, 4096, false, 2e10) |
                 bench(16, 2, 4096, true, 2e10);
    return result ? 1 : 0;
}
