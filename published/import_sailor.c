/* Sailor's measured plans: predicts step time and peak memory from its layer profiles and link fits.
 * Schema: the fixtures' README (eth-easl/sailor, MIT).
 *
 * The model follows the engine that was measured, that repository's deepspeed/pipe_engine.py and
 * engine.py.
 *
 * A layer takes its profiled forward and backward minus LAYER_S, or minus all of the profile that is not
 * arithmetic where that is less: the profile of one layer waits for the device at both ends, and a run does
 * not. The arithmetic is what twice the rows cost more (the profile of twice the micro-batch less the layer's
 * own). At 8 rows nothing remains to be subtracted.
 *
 * The order of work is DeepSpeed's schedule: forward and backward alternate. Before a forward a stage
 * sends the gradient it has and then receives activations; before a backward it receives a gradient and
 * then sends its activations. A stage waits for receives but not for sends, whose pieces (one per
 * tensor-parallel rank) fit in buffers. So in the long run a turn takes the longest of: a stage's layers,
 * both transfers with the previous stage, and the gradient from the next stage.
 *
 * Each exchange between two stages costs both of them MESSAGE_S: a description and a tensor in each
 * direction, while the host waits. It is independent of the bytes. A tensor arrives in parts, one per
 * tensor-parallel rank, and is gathered by them before the layers begin, at the speed of the all-reduces
 * in their profile.
 *
 * Each replica of the pipeline runs by itself. Then follow a barrier of all ranks and the gradients. Every
 * rank reduces all that it holds, so parameters that are not cut (norms, positions, some biases) are
 * reduced once per rank. A ring moves 2(k - 1)/k of a node's bytes through its link, which all its ranks
 * share, and through STAGING_GRADIENTS. Then follow the update and STEP_S (clipping, losses, logs).
 *
 * Memory = CONTEXT_BYTES + 24*parameters + FRAGMENTS*(micro-batches in flight)*activations. The 24 bytes
 * are Sailor's count (Adam 8, weights, gradients, communication and DeepSpeed's copy 4 each).
 *
 * tools/fit_sailor.py prints the named constants. They are fitted to the homogeneous OPT-350 plans alone:
 * STAGING_GRADIENTS to their gradient times, the other three times to their step times, the two of memory
 * to their peaks. Nothing was fitted to GPT-Neo or to mixed plans; the tool says how the form was chosen
 * and what was known of them then.
 */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "published/import.h"

#define LAYER_S 0.4028e-3
#define MESSAGE_S 4.367e-3
#define STAGING_GRADIENTS 46.47e9 /* bytes/s of the gradients' staging copies */
#define STEP_S 6.450e-3
#define CONTEXT_BYTES 4.083e9 /* bytes that driver, kernels and NCCL take on a GPU */
#define FRAGMENTS 1.124       /* allocated bytes per byte of activations */
#define STATE_BYTES 24.0      /* bytes per parameter: weights, gradients, moments and copies */
#define RUN_MAX 256           /* most micro-batches that are simulated; further ones add one period each */
#define BUCKET_BYTES 5e8      /* bytes of gradients that are reduced at a time */
#define STAGES_MAX 256u
#define REPLICAS_MAX 4096u
#define LAYERS_MAX 4096
#define PLAIN_LAYER 1 /* index in a profile of a transformer layer; 0 is the embedding */

static const char *const files[] = {"profiles.json", "network.json", NULL};

struct sailor_state {
    const json_t *models, *links; /* borrowed for the run */
};

struct sailor_plan {
    const char *id, *model;
    uint32_t stages, replicas, micro_batches;
    int64_t micro_rows, tensor;
    /* memory: the model's table at the plan's tensor parallelism; memory_whole: at tensor parallelism 1 */
    const json_t *stage_list, *memory, *memory_whole;
    const json_t *times;
    /* of one rank of each stage: parameters, and floats of activations per row of a micro-batch */
    double params[STAGES_MAX], activations[STAGES_MAX];
    struct {
        double forward, backward; /* seconds of the stage's layers, gathers included */
        double ahead, back;       /* transfers to the next stage, and from it back */
        double clock;
    } run[STAGES_MAX]; /* scratch for one replica, in seconds */
    double over_s;     /* time at which the last replica ends its last backward */
    double update_s;
};

static void *sailor_begin(const json_t *documents, struct err *err)
{
    struct sailor_state *state = calloc(1, sizeof(*state));
    if (!state) {
        err_set(err, ERR_NOMEM, "sailor: out of memory");
        return NULL;
    }
    state->models = json_object_get(json_object_get(documents, files[0]), "models");
    state->links = json_object_get(json_object_get(documents, files[1]), "inter_node");
    if (json_is_object(state->models) && json_is_object(state->links))
        return state;
    err_set(err, ERR_INVALID, "%s",
            json_is_object(state->models) ? "network.json: no inter_node" : "profiles.json: no models");
    free(state);
    return NULL;
}

static void sailor_end(void *state)
{
    free(state);
}

static const json_t *by_number(const json_t *object, int64_t number)
{
    char key[32];
    snprintf(key, sizeof(key), "%lld", (long long)number);
    return json_object_get(object, key);
}

static int import_sailor_plan_read(const struct sailor_state *state, const json_t *one, struct sailor_plan *p,
                                   struct err *err)
{
    struct json_reader r;
    memset(p, 0, sizeof(*p));
    jr_init(&r, one, "case", err);
    jr_str(&r, "id", JR_REQUIRED, 1, 128, &p->id);
    jr_str(&r, "model", JR_REQUIRED, 1, 128, &p->model);
    jr_u32(&r, "pp", JR_REQUIRED, 1, STAGES_MAX, &p->stages);
    jr_u32(&r, "dp", JR_REQUIRED, 1, REPLICAS_MAX, &p->replicas);
    jr_i64(&r, "tp", JR_REQUIRED, 1, 64, &p->tensor);
    jr_i64(&r, "mbs", JR_REQUIRED, 1, 65536, &p->micro_rows);
    jr_u32(&r, "num_microbatches", JR_REQUIRED, 1, 1u << 20, &p->micro_batches);
    jr_array(&r, "stages", JR_REQUIRED, 1, STAGES_MAX, &p->stage_list);
    if (!r.failed && json_array_size(p->stage_list) != p->stages)
        jr_fail(&r, "stages", "%zu of them, pp is %u", json_array_size(p->stage_list), p->stages);
    if (jr_finish_loose(&r) < 0)
        return -1;
    const json_t *model = json_object_get(state->models, p->model),
                 *memory = json_object_get(model, "memory");
    p->times = json_object_get(model, "times");
    p->memory = by_number(memory, p->tensor);
    p->memory_whole = by_number(memory, 1);
    if (!json_is_object(p->times) || !json_is_object(p->memory) || !json_is_object(p->memory_whole))
        return err_set(err, ERR_INVALID, "profiles.json: no times, or no memory at tp %lld, of %s",
                       (long long)p->tensor, p->model);
    return 0;
}

static int import_sailor_number_of(const json_t *array, size_t index, const char *what, double *out,
                                   struct err *err)
{
    const json_t *value = json_array_get(array, index);
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= 0) || number > 1e18)
        return err_set(err, ERR_INVALID, "profiles.json: %s has no number of at least 0 for layer %zu", what,
                       index);
    *out = number;
    return 0;
}

/* Returns the seconds of one layer's forward and backward in a run. `sizes` has the GPU's profiles by rows,
 * `own` the seconds in the profile of these rows. */
static double layer_seconds(const json_t *sizes, int64_t rows, int64_t tensor, size_t layer, double own)
{
    const json_t *twice = by_number(by_number(sizes, 2 * rows), tensor);
    const json_t *forward = json_array_get(json_object_get(twice, "fwd"), layer),
                 *backward = json_array_get(json_object_get(twice, "bwd"), layer);
    double arithmetic = own, least = own > LAYER_S ? own - LAYER_S : 0;
    if (json_is_number(forward) && json_is_number(backward))
        arithmetic = json_number_value(forward) + json_number_value(backward) - own;
    arithmetic = arithmetic < own ? arithmetic : own;
    return arithmetic > least ? arithmetic : least;
}

static double forward_alone(const json_t *sizes, int64_t rows)
{
    const json_t *forward = json_object_get(by_number(by_number(sizes, rows), 1), "fwd");
    return fmax(0, json_number_value(json_array_get(forward, PLAIN_LAYER)));
}

/* Computes the seconds in which the tensor-parallel ranks gather a message. A layer's forward has two
 * all-reduces of as many bytes, and a ring's all-reduce moves twice what an all-gather does. So a gather
 * takes a quarter of the time by which the profile exceeds its share of one GPU's work. If one GPU has no
 * profile of so many rows, half as many are tried, and so on. */
static int gather_seconds(const json_t *sizes, int64_t rows, int64_t tensor, double *seconds, struct err *err)
{
    const json_t *forward = json_object_get(by_number(by_number(sizes, rows), tensor), "fwd");
    double cut, alone = 0;
    *seconds = 0;
    if (tensor < 2)
        return 0;
    if (import_sailor_number_of(forward, PLAIN_LAYER, "fwd", &cut, err) < 0)
        return -1;
    for (int64_t fewer = rows; fewer > 0 && !(alone > 0); fewer /= 2)
        alone = forward_alone(sizes, fewer) * (double)rows / (double)fewer;
    *seconds = alone > 0 ? fmax(0, cut - alone / (double)tensor) / 4 : 0;
    return 0;
}

static int replica_seconds(struct sailor_plan *p, const json_t *replica, uint32_t s, size_t begin, size_t end,
                           struct err *err)
{
    const char *gpu = json_string_value(json_object_get(replica, "gpu"));
    json_int_t tensor = json_integer_value(json_object_get(replica, "tp"));
    const json_t *sizes = gpu ? json_object_get(p->times, gpu) : NULL;
    const json_t *times = by_number(by_number(sizes, p->micro_rows), tensor);
    const json_t *forward = json_object_get(times, "fwd"), *backward = json_object_get(times, "bwd");
    double update = json_number_value(json_object_get(times, "update_s"));
    if (!times)
        return err_set(err, ERR_INVALID, "profiles.json: no times of %s on %s at mbs %lld, tp %lld", p->model,
                       gpu ? gpu : "?", (long long)p->micro_rows, (long long)tensor);
    p->run[s].forward = p->run[s].backward = 0;
    for (size_t layer = begin; layer < end; layer++) {
        double f, b;
        if (import_sailor_number_of(forward, layer, "fwd", &f, err) < 0 ||
            import_sailor_number_of(backward, layer, "bwd", &b, err) < 0)
            return -1;
        double both = layer_seconds(sizes, p->micro_rows, tensor, layer, f + b);
        p->run[s].backward += f + b > 0 ? both * b / (f + b) : 0;
        p->run[s].forward += f + b > 0 ? both * f / (f + b) : 0;
    }
    if (!(p->run[s].forward + p->run[s].backward > 0))
        return err_set(err, ERR_INVALID, "profiles.json: layers %zu to %zu of %s take no time on %s", begin,
                       end, p->model, gpu);
    double gather = 0;
    if (p->stages > 1 && gather_seconds(sizes, p->micro_rows, tensor, &gather, err) < 0)
        return -1;
    p->run[s].forward += s > 0 ? gather : 0;
    p->run[s].backward += s + 1 < p->stages ? gather : 0;
    p->update_s = update > p->update_s ? update : p->update_s;
    return 0;
}

static int stage_range(const struct sailor_plan *p, uint32_t s, size_t *begin, size_t *end, struct err *err)
{
    const json_t *stage = json_array_get(p->stage_list, s), *layers = json_object_get(stage, "layers");
    json_int_t from = json_integer_value(json_array_get(layers, 0)),
               to = json_integer_value(json_array_get(layers, 1));
    const json_t *before = s ? json_object_get(json_array_get(p->stage_list, s - 1), "layers") : NULL;
    if (from < 0 || to <= from || to > LAYERS_MAX ||
        json_array_size(json_object_get(stage, "replicas")) != p->replicas)
        return err_set(
            err, ERR_INVALID,
            "case.stages[%u]: layers must be [first, end) within 0..%d and replicas %u (dp) in number", s,
            LAYERS_MAX, p->replicas);
    if (from != (before ? json_integer_value(json_array_get(before, 1)) : 0))
        return err_set(err, ERR_INVALID,
                       "case.stages[%u].layers: begins at %lld, which is not where the one before it ends", s,
                       (long long)from);
    *begin = (size_t)from;
    *end = (size_t)to;
    return 0;
}

static int import_sailor_stage_read(struct sailor_plan *p, uint32_t s, struct err *err)
{
    size_t begin, end;
    if (stage_range(p, s, &begin, &end, err) < 0)
        return -1;
    for (size_t layer = begin; layer < end; layer++) {
        double params, activations;
        if (import_sailor_number_of(json_object_get(p->memory, "param_floats"), layer, "param_floats",
                                    &params, err) < 0 ||
            import_sailor_number_of(json_object_get(p->memory, "act_mem_floats"), layer, "act_mem_floats",
                                    &activations, err) < 0)
            return -1;
        p->params[s] += params;
        p->activations[s] += activations;
    }
    return 0;
}

static const json_t *replica_at(const struct sailor_plan *p, uint32_t stage, uint32_t replica)
{
    return json_array_get(json_object_get(json_array_get(p->stage_list, stage), "replicas"), replica);
}

/* Computes the bytes/s between two replicas' nodes for messages of `bytes` bytes, summed over the sender's
 * tensor-parallel ranks. */
static int link_rate(const struct sailor_state *state, const json_t *from, const json_t *to, double bytes,
                     double *rate, struct err *err)
{
    const char *a = json_string_value(json_object_get(from, "gpu")),
               *b = json_string_value(json_object_get(to, "gpu"));
    json_int_t k = json_integer_value(json_object_get(from, "tp")),
               m = json_integer_value(json_object_get(to, "tp"));
    if (!a || !b)
        return err_set(err, ERR_INVALID, "case.stages: a replica without a gpu");
    const json_t *sender = json_object_get(state->links, a), *receiver = json_object_get(state->links, b);
    const json_t *fit = by_number(json_object_get(by_number(sender, k), b), m);
    fit = fit ? fit
              /* Only the other direction was measured. */
              : by_number(json_object_get(by_number(receiver, m), a), k);
    fit = fit ? fit : by_number(json_object_get(by_number(sender, 1), b), 1);
    double u = log2(bytes / 1e6), c[3];
    for (size_t i = 0; i < 3; i++) {
        const json_t *value = json_array_get(fit, i);
        if (!json_is_number(value))
            return err_set(err, ERR_INVALID, "network.json: no fit from %s to %s at %lld GPUs", a, b,
                           (long long)k);
        c[i] = json_number_value(value);
    }
    *rate = (c[0] * u * u + c[1] * u + c[2]) * 1e9;
    if (!(*rate > 1e3))
        return err_set(err, ERR_INVALID,
                       "network.json: from %s to %s a message of %.0f bytes would move at %.0f bytes/s", a, b,
                       bytes, *rate);
    return 0;
}

/* Computes the seconds of both transfers between stages s and s + 1 of one replica. */
static int transfer_seconds(const struct sailor_state *state, struct sailor_plan *p, uint32_t s,
                            uint32_t replica, struct err *err)
{
    double floats = 0, ahead, back;
    if (import_sailor_number_of(json_object_get(p->memory_whole, "act_output_floats"), PLAIN_LAYER,
                                "act_output_floats", &floats, err) < 0)
        return -1;
    double bytes = 4 * (double)p->micro_rows * floats;
    const json_t *from = replica_at(p, s, replica), *to = replica_at(p, s + 1, replica);
    if (link_rate(state, from, to, bytes, &ahead, err) < 0 ||
        link_rate(state, to, from, bytes, &back, err) < 0)
        return -1;
    p->run[s].ahead = bytes / ahead;
    p->run[s].back = bytes / back;
    return 0;
}

/* Lets stages `last` - 1 and `last` exchange gradient and activations before half turn k, in which stage
 * `last` has a forward, and moves both clocks. */
static void stages_meet(struct sailor_plan *p, uint32_t last, int64_t k, int64_t micro_batches)
{
    int64_t gradient = (k + last) / 2 - p->stages, activations = (k - last) / 2;
    double *upper = &p->run[last].clock, *lower = &p->run[last - 1].clock;
    bool back = gradient >= 0 && gradient < micro_batches, ahead = k >= last && activations < micro_batches;
    if (back)
        *lower = fmax(*lower, *upper) + p->run[last - 1].back;
    if (ahead)
        *upper = fmax(*lower, *upper) + p->run[last - 1].ahead;
    *lower += back || ahead ? MESSAGE_S : 0;
    *upper += back || ahead ? MESSAGE_S : 0;
}

/* Returns the seconds until the last backward ends: M micro-batches take 2(M + stages - 1) half turns, one
 * forward or backward each; each micro-batch beyond RUN_MAX adds the period. */
static double pipeline_seconds(struct sailor_plan *p)
{
    int64_t stages = p->stages, count = p->micro_batches < RUN_MAX ? p->micro_batches : RUN_MAX;
    double period = 0, over = 0;
    for (uint32_t s = 0; s < p->stages; s++) {
        double turn = p->run[s].forward + p->run[s].backward;
        turn += s > 0 ? p->run[s - 1].ahead + p->run[s - 1].back + MESSAGE_S : 0;
        turn += s + 1 < p->stages ? p->run[s].back + MESSAGE_S : 0;
        period = fmax(period, turn);
        p->run[s].clock = 0;
    }
    for (int64_t k = 0; k < 2 * (count + stages - 1); k++) {
        for (uint32_t s = k % 2 == 0 ? 2 : 1; s < p->stages; s += 2)
            stages_meet(p, s, k, count);
        for (int64_t s = 0; s < stages; s++) {
            bool forward = (k - s) % 2 == 0;
            int64_t micro_batch = forward ? (k - s) / 2 : (k + s + 1) / 2 - stages;
            if (micro_batch >= 0 && micro_batch < count)
                p->run[s].clock += forward ? p->run[s].forward : p->run[s].backward;
        }
    }
    for (uint32_t s = 0; s < p->stages; s++)
        over = fmax(over, p->run[s].clock);
    return over + (double)(p->micro_batches - count) * period;
}

/* Runs one replica of the pipeline by itself; over_s becomes the latest end of all replicas. */
static int replica_run(const struct sailor_state *state, struct sailor_plan *p, uint32_t replica,
                       struct err *err)
{
    for (uint32_t s = 0; s < p->stages; s++) {
        size_t begin, end;
        if (stage_range(p, s, &begin, &end, err) < 0 ||
            replica_seconds(p, replica_at(p, s, replica), s, begin, end, err) < 0 ||
            (s + 1 < p->stages && transfer_seconds(state, p, s, replica, err) < 0))
            return -1;
    }
    p->over_s = fmax(p->over_s, pipeline_seconds(p));
    return 0;
}

/* Computes the seconds of the gradients' all-reduce as a ring over a stage's replicas, with all ranks of a
 * node at once. */
static int sync_seconds(const struct sailor_state *state, const struct sailor_plan *p, uint32_t s,
                        double *seconds, struct err *err)
{
    double bytes = 4 * (double)p->tensor * p->params[s], n = p->replicas;
    double piece = (bytes < BUCKET_BYTES ? bytes : BUCKET_BYTES) / n;
    *seconds = 0;
    for (uint32_t k = 0; k < p->replicas && p->replicas > 1; k++) {
        double rate;
        if (link_rate(state, replica_at(p, s, k), replica_at(p, s, (k + 1) % p->replicas), piece, &rate,
                      err) < 0)
            return -1;
        double each = 2 * (n - 1) / n * bytes * (1 / rate + 1 / STAGING_GRADIENTS);
        *seconds = each > *seconds ? each : *seconds;
    }
    return 0;
}

static json_t *memory_json(const struct sailor_plan *p, double *peak)
{
    json_t *list = json_array();
    *peak = 0;
    for (uint32_t s = 0; list && s < p->stages; s++) {
        uint32_t window = p->stages - s < p->micro_batches ? p->stages - s : p->micro_batches;
        double bytes = CONTEXT_BYTES + STATE_BYTES * p->params[s] +
                       FRAGMENTS * window * 4 * (double)p->micro_rows * p->activations[s];
        *peak = bytes > *peak ? bytes : *peak;
        json_array_append_new(list, json_real(bytes));
    }
    return list;
}

/* Warns where a recorded plan leaves out the model's last layers; it is priced as it is. */
static void import_sailor_doubts_add(const struct sailor_plan *p, json_t *line)
{
    const json_t *last = json_object_get(json_array_get(p->stage_list, p->stages - 1), "layers");
    json_int_t held = json_integer_value(json_array_get(last, 1));
    size_t all = json_array_size(json_object_get(p->memory, "param_floats"));
    char text[128];
    if (held >= (json_int_t)all)
        return;
    snprintf(text, sizeof(text), "stages: they hold %lld of the %zu layers of %.40s", (long long)held, all,
             p->model);
    json_object_set_new(line, "warnings", json_pack("[s]", text));
}

static json_t *sailor_line(void *opaque, const json_t *one, struct err *err)
{
    const struct sailor_state *state = opaque;
    struct sailor_plan *p = calloc(1, sizeof(*p));
    double sync = 0, peak = 0;
    json_t *line = NULL;
    if (!p) {
        err_set(err, ERR_NOMEM, "sailor: out of memory");
        return NULL;
    }
    if (import_sailor_plan_read(state, one, p, err) < 0)
        goto out;
    for (uint32_t s = 0; s < p->stages; s++)
        if (import_sailor_stage_read(p, s, err) < 0)
            goto out;
    for (uint32_t r = 0; r < p->replicas; r++)
        if (replica_run(state, p, r, err) < 0)
            goto out;
    for (uint32_t s = 0; s < p->stages; s++) {
        double each;
        if (sync_seconds(state, p, s, &each, err) < 0)
            goto out;
        sync = each > sync ? each : sync;
    }
    json_t *memory = memory_json(p, &peak);
    line = json_pack("{s:s,s:s,s:f,s:f,s:o,s:f}", "id", p->id, "status", "ok", "iter_s",
                     p->over_s + sync + p->update_s + STEP_S, "grad_sync_s", sync, "stage_mem_bytes", memory,
                     "peak_mem_bytes", peak);
    if (!line)
        err_set(err, ERR_NOMEM, "sailor: out of memory");
    else
        import_sailor_doubts_add(p, line);
out:
    free(p);
    return line;
}

const struct importer import_sailor = {
    .name = "sailor", .files = files, .begin = sailor_begin, .line = sailor_line, .end = sailor_end};
