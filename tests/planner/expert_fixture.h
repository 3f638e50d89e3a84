/* Makes small models with experts, and random ways to divide them, for the tests of the expert placement. */
#ifndef TEST_EXPERT_FIXTURE_H
#define TEST_EXPERT_FIXTURE_H

#include "planner/plan_fixture.h"

#include "planner/cost/price.h"
#include "planner/emit/expert.h"
#include "planner/kind/kind.h"

#define GIB_OF(n) ((uint64_t)(n) << 30)

/* Returns a small model configuration of Qwen3-MoE's form. */
static inline struct model_config expert_config(uint32_t layers, uint32_t experts, uint32_t active)
{
    struct model_config c = {.arch = MODEL_QWEN3_MOE,
                             .hidden = 256,
                             .layers = layers,
                             .heads = 8,
                             .kv_heads = 2,
                             .head_dim = 32,
                             .ffn = 0,
                             .vocab = 4096,
                             .max_positions = 4096,
                             .norm_eps = 1e-6,
                             .rope = {.theta = 1e6, .factor = 1},
                             .qk_norm = 1,
                             .experts = experts,
                             .experts_active = active,
                             .expert_ffn = 192,
                             .router_renormalise = true,
                             .bos = 1,
                             .pad = -1,
                             .eos_count = 1,
                             .eos = {2}};
    snprintf(c.rope.kind_name, sizeof(c.rope.kind_name), "default");
    return c;
}

static inline void expert_layer_dense(struct model_config *c, uint32_t layer)
{
    c->ffn = 512;
    c->dense_layer[layer / 8] |= (uint8_t)(1u << (layer % 8));
}

static inline void expert_device(struct cluster *cluster, const char *name, const char *node,
                                 const char *like, uint64_t memory, double speed)
{
    struct err err;
    struct cluster_device device = {.name = name,
                                    .node = node,
                                    .kind = "cuda",
                                    .like = like,
                                    .memory_limit_bytes = memory,
                                    .speed = speed};
    if (cluster_add_device(cluster, &device, &err) < 0)
        fail_msg("%s", err.text);
}

/* A random mixture-of-experts model, random devices and a random division of its experts among them, valid as
 * input of expert_emit. */
struct expert_case {
    struct model_config config;
    struct workload workload;
    struct cluster *cluster;
    struct problem problem;
    struct candidate_stage stage;
    struct member members[8];
    struct candidate candidate;
};

static inline void expert_case_problem(struct expert_case *c)
{
    struct err err;
    if (problem_init(&c->problem, &c->workload, c->cluster, &err) < 0)
        fail_msg("%s", err.text);
}

static inline void expert_case_fini(struct expert_case *c)
{
    problem_fini(&c->problem);
    cluster_destroy(c->cluster);
    workload_fini(&c->workload);
}

static inline void expert_case_init(struct expert_case *c, uint64_t seed)
{
    static const char *const cards[] = {"a100x40", "v100", "t4", "rtx-3090", "l4"};
    struct rand_stream r;
    struct err err;
    rand_stream_init(&r, seed, 3);
    memset(c, 0, sizeof(*c));
    uint32_t layers = 1 + rand_stream_below(&r, 6), experts = 4 + rand_stream_below(&r, 13);
    c->config = expert_config(layers, experts, 1 + rand_stream_below(&r, 3));
    for (uint32_t l = 0; layers > 1 && l < layers; l++)
        if (rand_stream_below(&r, 4) == 0 && l + 1 < layers)
            expert_layer_dense(&c->config, l);
    c->workload = fixture_workload(&c->config, 10 + rand_stream_below(&r, 40), 2 + rand_stream_below(&r, 16));
    c->workload.sample_tokens = rand_stream_below(&r, 2) ? 96 : 0;
    c->workload.prompt_tokens = c->workload.sample_tokens / 2;
    c->workload.method = rand_stream_below(&r, 3) ? METHOD_LORA : METHOD_FULL;
    uint32_t n = 2 + rand_stream_below(&r, 4), attending = 1 + rand_stream_below(&r, n), rows = 0;
    c->cluster = cluster_create(&err);
    for (uint32_t d = 0; d < n; d++) {
        char name[32], node[16];
        snprintf(node, sizeof(node), "n%u", d / 2);
        snprintf(name, sizeof(name), "n%u/%u", d / 2, d);
        expert_device(c->cluster, name, node, cards[rand_stream_below(&r, 5)], GIB_OF(16), 1);
    }
    expert_case_problem(c);
    uint32_t batch = c->workload.batch_rows, weights[8], sum = 0, wave = 1 + rand_stream_below(&r, 6),
             delay = rand_stream_below(&r, 4);
    attending = attending < batch ? attending : batch;
    bool recompute = rand_stream_below(&r, 2), any = attending < n;
    for (uint32_t m = 0; m < n; m++) {
        bool also = m >= attending || rand_stream_below(&r, 3) == 0 || (m + 1 == attending && !any);
        any |= also;
        weights[m] = also ? 1 + rand_stream_below(&r, 9) : 0;
        sum += weights[m];
        c->members[m] = (struct member){
            .device = m, .window = wave, .delay = delay, .recompute = recompute, .state_share = 1};
        if (m < attending)
            c->members[m].rows = 1 + rand_stream_below(&r, 1 + (batch / attending - 1) / 2);
        rows += c->members[m].rows;
    }
    for (uint32_t m = 0; m < n; m++)
        c->members[m].expert_share = (double)weights[m] / sum;
    c->stage = (struct candidate_stage){
        .block_end = c->problem.block_count, .kind = STAGE_EXPERT, .member_count = n};
    c->candidate = (struct candidate){.placement = PLACE_EXPERT,
                                      .micro_batch_rows = rows,
                                      .stage_count = 1,
                                      .member_count = n,
                                      .stages = &c->stage,
                                      .members = c->members};
}

#endif
