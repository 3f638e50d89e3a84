/* Random clusters and workloads for the oracle, and the list of its walks, one for each placement and
 * schedule. Of five workloads, three train adapters of a dense model, one trains a dense model whole, and one
 * trains adapters of a mixture of experts. */
#ifndef TEST_ORACLE_SCENE_H
#define TEST_ORACLE_SCENE_H

#include "planner/oracle_expert.h"
#include "planner/oracle_rows.h"
#include "planner/oracle_stages.h"
#include "planner/oracle_tensor.h"
#include "show/print.h"

#define MIB ((uint64_t)1 << 20)

struct scene {
    struct model_config config;
    struct workload workload;
    struct cluster *cluster;
    bool uniform; /* Any two devices differ by one factor in the times of all instructions. */
};

struct oracle_walk {
    const char *name;
    enum plan_placement kind;
    void (*run)(struct oracle *o);
};
static const struct oracle_walk oracle_walks[] = {
    {"single", PLACE_SINGLE, single_run},       {"data", PLACE_DATA, data_run},
    {"pipeline", PLACE_PIPELINE, pipeline_run}, {"interleaved", PLACE_PIPELINE, interleaved_run},
    {"split", PLACE_PIPELINE, split_run},       {"hybrid", PLACE_HYBRID, hybrid_run},
    {"tensor", PLACE_TENSOR, tensor_run},       {"server", PLACE_SERVER, server_run},
    {"expert", PLACE_EXPERT, expert_run},
};
#define ORACLE_WALKS (sizeof(oracle_walks) / sizeof(oracle_walks[0]))

static inline void scene_rows(struct scene *s, struct rand_stream *r, uint32_t least, uint32_t spread)
{
    for (uint32_t i = 0; i < s->workload.row_count; i++) {
        s->workload.rows[i].tokens = least + rand_stream_below(r, spread);
        s->workload.rows[i].labelled = 1 + s->workload.rows[i].tokens / 2;
    }
}

static inline void scene_links(struct scene *s, struct rand_stream *r, uint32_t nodes, double slowest)
{
    struct err err = {0};
    for (uint32_t a = 0; a < nodes; a++) {
        for (uint32_t b = 0; b < nodes; b++) {
            char from[16], to[16];
            snprintf(from, sizeof(from), "n%u", a);
            snprintf(to, sizeof(to), "n%u", b);
            if (a != b)
                fixture_link(s->cluster, from, to, 1e-5 * pow(10, 2.5 * rand_stream_unit(r)),
                             slowest * pow(10, 2 * rand_stream_unit(r)));
        }
        char node[16];
        snprintf(node, sizeof(node), "n%u", a);
        if (rand_stream_below(r, 4) == 0)
            assert_int_equal(
                cluster_set_nic(s->cluster, node, 2 * slowest * pow(10, rand_stream_unit(r)), &err), 0);
    }
}

static inline void scene_dense(struct scene *s, struct rand_stream *r, uint32_t devices, bool full, bool tiny)
{
    struct err err = {0};
    uint32_t per_node, most = devices == 5 ? 3 : devices == 4 ? 4 : ORACLE_ROWS - 2;
    s->config = fixture_config(1 + rand_stream_below(r, tiny ? 2 : 6));
    s->config.vocab = 512 << rand_stream_below(r, 6);
    s->workload = fixture_workload(&s->config, 2 * ORACLE_ROWS, 2 + rand_stream_below(r, tiny ? 2 : most));
    s->workload.method = full ? METHOD_FULL : METHOD_LORA;
    scene_rows(s, r, 20, 1 + rand_stream_below(r, 100));
    s->workload.recompute = rand_stream_below(r, 4) ? RECOMPUTE_AUTO : RECOMPUTE_NO;
    s->cluster = cluster_create(&err);
    per_node = 1 + rand_stream_below(r, 2);
    double tight = rand_stream_unit(r);
    /* The approximate memory of the whole model with one or two rows; the devices' memory limits are
     * multiples of it, below and above 1. */
    uint64_t layer = 3600000, table = 576ull * s->config.vocab;
    uint64_t whole = (full ? 18ull : 4ull) * (s->config.layers * layer + table) + 12 * MIB;
    for (uint32_t d = 0; d < devices; d++) {
        char name[40], node[16];
        snprintf(node, sizeof(node), "n%u", d / per_node);
        snprintf(name, sizeof(name), "n%u/%u", d / per_node, d);
        double share = 0.3 + 1.2 * rand_stream_unit(r) + (tight < 0.5 ? 0.8 : 0);
        fixture_device(s->cluster, name, node, (uint64_t)((double)whole * share),
                       0.2 + 1.8 * rand_stream_unit(r));
    }
    scene_links(s, r, (devices + per_node - 1) / per_node, full ? 1e8 : 1e7);
    s->uniform = true;
}

static inline void scene_sparse(struct scene *s, struct rand_stream *r, uint32_t devices, bool tiny)
{
    static const char *const cards[] = {"a100x40", "v100", "t4", "rtx-3090", "l4", "p100"};
    struct err err = {0};
    uint32_t layers = 1 + rand_stream_below(r, tiny ? 2 : 4), per_node = 1 + rand_stream_below(r, 2);
    s->config = expert_config(layers, 3 + rand_stream_below(r, tiny ? 1 : 3), 1 + rand_stream_below(r, 2));
    s->config.hidden = 1024;
    s->config.expert_ffn = 1024 << rand_stream_below(r, 2);
    if (layers > 2 && rand_stream_below(r, 3) == 0)
        expert_layer_dense(&s->config, 1);
    s->workload = fixture_workload(&s->config, 2 * ORACLE_ROWS, 2 + rand_stream_below(r, tiny ? 2 : 3));
    s->workload.sequence_tokens = 2048;
    scene_rows(s, r, 100, 1900);
    s->workload.recompute = rand_stream_below(r, 4) ? RECOMPUTE_NO : RECOMPUTE_AUTO;
    s->cluster = cluster_create(&err);
    for (uint32_t d = 0; d < devices; d++) {
        char name[32], node[16];
        bool tight = rand_stream_below(r, 3) == 0;
        snprintf(node, sizeof(node), "n%u", d / per_node);
        snprintf(name, sizeof(name), "n%u/%u", d / per_node, d);
        expert_device(s->cluster, name, node, cards[rand_stream_below(r, 6)],
                      tight ? (400 + rand_stream_below(r, 600)) * MIB : GIB_OF(16),
                      0.5 + rand_stream_unit(r));
    }
    assert_int_equal(cluster_set_defaults(s->cluster, 1e-5, 2e10, 1e-5, 1e10, &err), 0);
    scene_links(s, r, (devices + per_node - 1) / per_node, 3e8);
}

/* Draws 2 to 5 devices and 3 to 8 blocks. With `tiny` it draws 2 or 3 devices and 3 or 4 blocks, so that
 * every candidate can be simulated. */
static inline void scene_init(struct scene *s, uint64_t seed, bool tiny)
{
    struct rand_stream r;
    rand_stream_init(&r, seed, 3);
    *s = (struct scene){0};
    uint32_t devices = 2 + rand_stream_below(&r, tiny ? 2 : ORACLE_DEVICES - 1);
    if (seed % 5 == 1)
        scene_sparse(s, &r, devices, tiny);
    else
        scene_dense(s, &r, devices, seed % 5 == 0, tiny);
    s->workload.config = &s->config;
    s->workload.epochs = 0;
    s->workload.steps = ORACLE_STEPS;
    s->workload.sample_tokens = s->workload.prompt_tokens = 0;
}

static inline void scene_fini(struct scene *s)
{
    cluster_destroy(s->cluster);
    workload_fini(&s->workload);
}

/* Returns the step's seconds of the planner's answer for one kind (−1: any kind), or INFINITY when nothing
 * fits or the kind does not apply to this workload. */
static inline double planned(struct scene *s, int kind, uint64_t seed)
{
    struct err err = {0};
    struct plan_answer *answer = NULL;
    struct plan_options options = {.brief = true};
    s->workload.place = kind;
    int result = plan_search(&s->workload, s->cluster, &options, &answer, &err);
    s->workload.place = -1;
    if (result < 0 && err.code == ERR_UNSUPPORTED)
        return INFINITY;
    if (result < 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
    double seconds = answer->plan ? answer->step_s : INFINITY;
    if (getenv("MOTLEY_SHOW") && answer->plan) {
        struct buf text;
        buf_init(&text, 1 << 20);
        answer_print(answer, &text, &err);
        print_message("%s", buf_str(&text));
        buf_fini(&text);
    }
    plan_answer_destroy(answer);
    return seconds;
}

static inline void candidate_print(const struct candidate *c)
{
    print_message("    %s%s%s, micro-batches of %u rows", plan_placement_name(c->placement),
                  c->eager ? " eager" : "",
                  c->schedule == SCHEDULE_SPLIT         ? " split"
                  : c->schedule == SCHEDULE_INTERLEAVED ? " interleaved"
                                                        : "",
                  c->micro_batch_rows);
    if (c->together)
        print_message(" %u in turns", c->together);
    if (c->gathered_layers)
        print_message(" %u gathered", c->gathered_layers);
    print_message(":");
    for (uint32_t s = 0; s < c->stage_count; s++) {
        print_message(" [%d..%d", c->stages[s].block_begin, c->stages[s].block_end);
        for (uint32_t m = 0; m < c->stages[s].member_count; m++) {
            const struct member *x = &c->members[c->stages[s].member_first + m];
            print_message(" dev%u %ux%u w%u%s", x->device, x->count, x->rows, x->window,
                          x->recompute ? " again" : "");
            if (x->delay)
                print_message(" d%u", x->delay);
            if (c->gathered_layers)
                print_message(" share %.4f", x->state_share);
            if (x->expert_share > 0)
                print_message(" experts %.3f", x->expert_share);
            if (x->tensor.column_end)
                print_message(" heads %u columns %u", x->tensor.kv_head_end - x->tensor.kv_head_begin,
                              x->tensor.column_end - x->tensor.column_begin);
        }
        for (uint32_t k = 0; c->owner && k < c->owner_count / c->stage_count; k++)
            print_message("%s%u", k ? "" : " owners ", c->owner[s * (c->owner_count / c->stage_count) + k]);
        print_message("]");
    }
    print_message("\n");
}

#endif
