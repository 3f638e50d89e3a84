/* Builds the models, data and clusters of the planner's tests. */
#ifndef TEST_PLAN_FIXTURE_H
#define TEST_PLAN_FIXTURE_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rand.h"
#include "planner/answer/plan.h"
#include "program/check/check.h"
#include "program/codec.h"

/* Returns SmolLM2-135M's shape with another number of layers. */
static inline struct model_config fixture_config(uint32_t layers)
{
    struct model_config c = {.arch = MODEL_LLAMA,
                             .hidden = 576,
                             .layers = layers,
                             .heads = 9,
                             .kv_heads = 3,
                             .head_dim = 64,
                             .ffn = 1536,
                             .vocab = 49152,
                             .max_positions = 8192,
                             .norm_eps = 1e-5,
                             .rope = {.theta = 1e5, .factor = 1},
                             .tied = true,
                             .bos = 1,
                             .pad = -1,
                             .eos_count = 1,
                             .eos = {2}};
    snprintf(c.rope.kind_name, sizeof(c.rope.kind_name), "default");
    return c;
}

static inline struct workload fixture_workload(const struct model_config *config, uint32_t rows,
                                               uint32_t batch)
{
    struct workload w = {.config = config,
                         .method = METHOD_LORA,
                         .lora_rank = 16,
                         .lora_dropout = 0.05,
                         .target_count = 4,
                         .targets = {"q_proj", "k_proj", "v_proj", "o_proj"},
                         .sequence_tokens = 128,
                         .batch_rows = batch,
                         .seed = 1,
                         .shuffle = true,
                         .epochs = 1,
                         .row_count = rows,
                         .sample_tokens = 96,
                         .prompt_tokens = 32,
                         .place = -1};
    struct rand_stream r;
    rand_stream_init(&r, 7, rows);
    w.rows = calloc(rows, sizeof(*w.rows));
    for (uint32_t i = 0; i < rows; i++) {
        w.rows[i].tokens = 30 + rand_stream_below(&r, 50);
        w.rows[i].labelled = w.rows[i].tokens / 2;
    }
    return w;
}

/* Share of the heads and columns in a profile's cut halves. */
#define FIXTURE_CUT 0.25

/* Appends points of a layer's attention and FFN, whose seconds are `share` and 1 - `share` of the layer's,
 * and points of cut halves, of which the share `fixed` does not shrink. */
static inline void fixture_halves(json_t *points, int rows, int tokens, double sum_sq, double layer_s,
                                  double share, double fixed)
{
    static const char *const names[] = {"attention", "ffn", "attention_cut", "ffn_cut"};
    for (int half = 0; half < 4; half++) {
        double seconds = layer_s * (half % 2 ? 1 - share : share);
        seconds *= half < 2 ? 1 : fixed + (1 - fixed) * FIXTURE_CUT;
        json_array_append_new(points,
                              json_pack("{s:s,s:i,s:i,s:f,s:f,s:f,s:f}", "block", names[half], "rows", rows,
                                        "tokens", tokens, "sum_sq", sum_sq, "forward_s", seconds,
                                        "backward_s", 1.2 * seconds, "recompute_s", seconds));
    }
}

/* Adds a device with a profile: seconds of a layer = (overhead + per_token·tokens + per_square·Σ
 * length²)/speed. `attention`: the share of a layer's time that the profile states for attention; 0: it has
 * no such points. `fixed`: the share of their times that does not shrink where heads or columns are cut. */
static inline void fixture_device_halves(struct cluster *cluster, const char *name, const char *node,
                                         uint64_t memory, double speed, double attention, double fixed)
{
    struct err err;
    struct cluster_device device = {.name = name, .node = node, .memory_limit_bytes = memory};
    assert_int_equal(cluster_add_device(cluster, &device, &err), 0);
    json_t *points = json_array();
    for (int tokens = 32; tokens <= 2048; tokens *= 2) {
        for (int rows = 1; rows <= 2; rows++) {
            double sq = (double)tokens * tokens / rows;
            double layer = (2e-5 + 8e-5 * tokens / 1.0 + 2e-8 * sq) / speed;
            double head = (5e-5 + 1e-3 * (tokens / 2)) / speed;
            json_array_append_new(points, json_pack("{s:s,s:i,s:i,s:i,s:f,s:f,s:f,s:f}", "block", "layer",
                                                    "rows", rows, "tokens", tokens, "labelled", tokens / 2,
                                                    "sum_sq", sq, "forward_s", layer, "backward_s",
                                                    1.2 * layer, "recompute_s", layer));
            if (attention > 0)
                fixture_halves(points, rows, tokens, sq, layer, attention, fixed);
            json_array_append_new(points, json_pack("{s:s,s:i,s:i,s:i,s:f,s:f,s:f}", "block", "head", "rows",
                                                    rows, "tokens", tokens, "labelled", tokens / 2, "sum_sq",
                                                    sq, "forward_s", head, "backward_s", head));
            json_array_append_new(points,
                                  json_pack("{s:s,s:i,s:i,s:f,s:f}", "block", "embedding", "rows", rows,
                                            "tokens", tokens, "forward_s", 1e-7 * tokens, "backward_s", 0.0));
        }
    }
    json_t *profile = json_pack("{s:s,s:o,s:f,s:{s:f},s:{s:f,s:f}}", "device", name, "points", points,
                                "base_process_bytes", 3e7, "step_s", "layer", 1e-4 / speed, "cut_share",
                                "attention_cut", FIXTURE_CUT, "ffn_cut", FIXTURE_CUT);
    if (cluster_add_profile(cluster, profile, &err) < 0)
        fail_msg("%s", err.text);
    json_decref(profile);
}

static inline void fixture_device(struct cluster *cluster, const char *name, const char *node,
                                  uint64_t memory, double speed)
{
    fixture_device_halves(cluster, name, node, memory, speed, 0, 0);
}

static inline void fixture_link(struct cluster *cluster, const char *from, const char *to, double latency_s,
                                double bytes_per_s)
{
    struct err err;
    json_t *link = json_pack("{s:s,s:s,s:f,s:f,s:b}", "from", from, "to", to, "latency_s", latency_s,
                             "bytes_per_s", bytes_per_s, "emulated", 0);
    assert_int_equal(cluster_add_link(cluster, link, &err), 0);
    json_decref(link);
}

/* Whether instruction i of a rank's training program may start after those marked as done; false when it is
 * done itself. */
static inline bool fixture_ready(const struct plan *plan, uint32_t rank, uint32_t i, const bool *done)
{
    const struct program *p = &plan->ranks[rank].programs[PROGRAM_TRAIN];
    const struct instr *x = &p->instrs[i];
    for (uint32_t k = 0; k < x->after_count; k++)
        if (!done[p->after[x->after_first + k]])
            return false;
    for (uint32_t k = i; k-- > 0;)
        if (!done[k] && instr_queue_index(plan, &p->instrs[k]) == instr_queue_index(plan, x))
            return false;
    return !done[i];
}

/* Searches, and returns the answer with its programs emitted. The caller releases it with
 * plan_answer_destroy. */
static inline struct plan_answer *fixture_search(const struct workload *w, const struct cluster *cluster)
{
    struct err err = {0};
    struct plan_options options = {.programs = true};
    struct plan_answer *answer = NULL;
    if (plan_search((struct workload[]){*w}, cluster, &options, &answer, &err) < 0)
        fail_msg("%s", err.text);
    return answer;
}

#endif
