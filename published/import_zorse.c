/* Imports Zorse's cases: its recorded layout priced by its formula, and both its and our layouts simulated in
 * consistent units. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "published/import.h"
#include "published/import_gpu.h"
#include "published/zorse.h"

#define GIB 1073741824.0
#define EVALUATIONS 6000u

static const char *const files[] = {"model_latencies.json", NULL};

struct zorse_state {
    const json_t *latencies; /* borrowed for the run */
};

static void *zorse_begin(const json_t *documents, struct err *err)
{
    struct zorse_state *state = calloc(1, sizeof(*state));
    if (!state) {
        err_set(err, ERR_NOMEM, "zorse: out of memory");
        return NULL;
    }
    state->latencies = json_object_get(documents, files[0]);
    if (json_is_object(state->latencies))
        return state;
    err_set(err, ERR_INVALID, "%s: missing, or not an object", files[0]);
    free(state);
    return NULL;
}

static void zorse_end(void *state)
{
    free(state);
}

struct zorse_inputs {
    const char *id, *model, *autocast, *reduce;
    const json_t *machines, *memory, *within, *between, *within_latency, *between_latency;
    int64_t sequence;
    json_t *doubts; /* warnings about curves, by path, so that each is given once */
};

static double import_zorse_dtype_bytes(const char *name)
{
    return strcmp(name, "float16") == 0 || strcmp(name, "bfloat16") == 0 ? 2 : 4;
}

static int import_zorse_inputs_read(const json_t *one, struct zorse_inputs *in, struct zorse_problem *p,
                                    struct err *err)
{
    struct json_reader root, r;
    double reserved = 2;
    json_t *doubts = in->doubts;
    *in = (struct zorse_inputs){.autocast = "float16", .reduce = "float32", .doubts = doubts};
    memset(p, 0, sizeof(*p));
    jr_init(&root, one, "case", err);
    jr_str(&root, "id", JR_REQUIRED, 1, 128, &in->id);
    jr_sub(&root, "inputs", JR_REQUIRED, &r);
    jr_str(&r, "model", JR_REQUIRED, 1, 128, &in->model);
    jr_u32(&r, "global_batch_size", JR_REQUIRED, 1, 4096, &p->batch);
    jr_i64(&r, "sequence_length", JR_REQUIRED, 1, 1 << 24, &in->sequence);
    jr_str(&r, "autocast_dtype", JR_OPTIONAL, 1, 32, &in->autocast);
    jr_str(&r, "reduce_dtype", JR_OPTIONAL, 1, 32, &in->reduce);
    jr_f64(&r, "reserved_memory_gib", JR_OPTIONAL, 0, 1e6, &reserved);
    jr_array(&r, "machines", JR_REQUIRED, 1, ZORSE_MACHINES_MAX, &in->machines);
    size_t machines = json_array_size(in->machines);
    jr_array(&r, "intranode_bw_gb_s", JR_REQUIRED, machines, machines, &in->within);
    jr_array(&r, "internode_bw_gb_s", JR_REQUIRED, machines, machines, &in->between);
    jr_array(&r, "intranode_latency_ms", JR_REQUIRED, machines, machines, &in->within_latency);
    jr_array(&r, "internode_latency_ms", JR_REQUIRED, machines, machines, &in->between_latency);
    jr_object(&r, "gpu_memory_gib", JR_REQUIRED, &in->memory);
    jr_f64(&r, "hidden_size", JR_REQUIRED, 1, 1e9, &p->hidden);
    jr_u32(&r, "num_layers", JR_REQUIRED, 1, ZORSE_STAGES_MAX, &p->layers);
    jr_f64(&r, "params_per_layer", JR_REQUIRED, 1, 1e15, &p->params_per_layer);
    p->machine_count = (uint32_t)machines;
    p->sequence = (double)in->sequence;
    p->gather_bytes = import_zorse_dtype_bytes(in->autocast);
    p->scatter_bytes = import_zorse_dtype_bytes(in->reduce);
    p->message_bytes = import_zorse_dtype_bytes(in->autocast);
    p->reserved_bytes = reserved * GIB;
    return jr_finish_loose(&r);
}

/* Reads name[index] of a list, or name[row][index] of a list of lists (row −1: none). */
static int number_at(const json_t *array, int row, size_t index, const char *name, double *out,
                     struct err *err)
{
    char at[32] = "";
    const json_t *value = json_array_get(array, index);
    if (!json_is_number(value) || !(json_number_value(value) >= 0)) {
        if (row >= 0)
            snprintf(at, sizeof(at), "[%d]", row);
        return err_set(err, ERR_INVALID, "case.inputs.%s%s[%zu]: not a number of at least 0", name, at,
                       index);
    }
    *out = json_number_value(value);
    return 0;
}

static int import_zorse_links_read(const struct zorse_inputs *in, struct zorse_problem *p, struct err *err)
{
    for (uint32_t a = 0; a < p->machine_count; a++) {
        const json_t *rates = json_array_get(in->between, a),
                     *delays = json_array_get(in->between_latency, a);
        if (number_at(in->within, -1, a, "intranode_bw_gb_s", &p->within_gib_s[a], err) < 0 ||
            number_at(in->within_latency, -1, a, "intranode_latency_ms", &p->within_latency[a], err) < 0)
            return -1;
        for (uint32_t b = 0; b < p->machine_count; b++)
            if (number_at(rates, (int)a, b, "internode_bw_gb_s", &p->between_gib_s[a][b], err) < 0 ||
                number_at(delays, (int)a, b, "internode_latency_ms", &p->between_latency[a][b], err) < 0)
                return -1;
    }
    return 0;
}

static int import_zorse_gpu_read(const struct zorse_state *state, const struct zorse_inputs *in,
                                 struct zorse_problem *p, const char *name, uint32_t machine, struct err *err)
{
    struct gpu_curve curve;
    char where[512];
    const json_t *memory = name ? json_object_get(in->memory, name) : NULL;
    uint32_t rank = p->gpu_count;
    if (rank >= ZORSE_GPUS_MAX)
        return err_set(err, ERR_TOO_BIG, "case.inputs.machines: more than %u GPUs", ZORSE_GPUS_MAX);
    if (!json_is_number(memory) || !(json_number_value(memory) > 0))
        return err_set(err, ERR_INVALID, "case.inputs.gpu_memory_gib: no size for %s", name ? name : "a GPU");
    if (gpu_curve_find(state->latencies, in->model, name, in->sequence, in->autocast, &curve, err) < 0)
        return -1;
    snprintf(where, sizeof(where), "%s.%s.%lld.%s", in->model, name, (long long)in->sequence, in->autocast);
    if (!json_object_get(in->doubts, where)) {
        json_t *doubts = json_array();
        gpu_curve_doubts(&curve, where, name, 2 * p->params_per_layer * p->sequence, doubts);
        json_object_set_new(in->doubts, where, doubts);
    }
    for (uint32_t k = 0; k < ZORSE_MICRO_SIZES; k++) {
        p->forward_ms[rank][k] = gpu_curve_ms(&curve, 0, 1u << k);
        p->backward_ms[rank][k] = gpu_curve_ms(&curve, 1, 1u << k);
        if (1u << k <= p->batch && !(p->forward_ms[rank][k] >= 0 && p->backward_ms[rank][k] >= 0 &&
                                     p->forward_ms[rank][k] + p->backward_ms[rank][k] > 0))
            return err_set(err, ERR_INVALID,
                           "model_latencies.json: %s.%s.%lld.%s makes a micro-batch of %u take %g and %g ms",
                           in->model, name, (long long)in->sequence, in->autocast, 1u << k,
                           p->forward_ms[rank][k], p->backward_ms[rank][k]);
    }
    p->memory_bytes[rank] = json_number_value(memory) * GIB;
    p->machine_of[rank] = machine;
    p->gpu_count++;
    return 0;
}

static int gpus_read(const struct zorse_state *state, const struct zorse_inputs *in, struct zorse_problem *p,
                     struct err *err)
{
    for (uint32_t m = 0; m < p->machine_count; m++) {
        const json_t *gpus = json_array_get(in->machines, m);
        if (!json_is_array(gpus) || json_array_size(gpus) == 0)
            return err_set(err, ERR_INVALID, "case.inputs.machines[%u]: not a list of GPUs", m);
        for (size_t i = 0; i < json_array_size(gpus); i++)
            if (import_zorse_gpu_read(state, in, p, json_string_value(json_array_get(gpus, i)), m, err) < 0)
                return -1;
    }
    return 0;
}

static int theirs_group(const json_t *item, const struct zorse_problem *p, struct zorse_group *g,
                        struct err *err)
{
    const json_t *ranks = json_object_get(item, "ranks"), *micro = json_object_get(item, "microbatches");
    size_t count = json_array_size(ranks);
    if (count == 0 || count > ZORSE_GPUS_MAX || json_array_size(micro) != count)
        return err_set(err, ERR_INVALID,
                       "case.zorse.groups_in_pipeline_order: ranks and microbatches do not match");
    *g = (struct zorse_group){.count = (uint32_t)count};
    for (size_t i = 0; i < count; i++) {
        json_int_t rank = json_integer_value(json_array_get(ranks, i)),
                   n = json_integer_value(json_array_get(micro, i));
        if (rank < 0 || rank >= (json_int_t)p->gpu_count || n < 0 || n > (json_int_t)p->batch)
            return err_set(err, ERR_INVALID,
                           "case.zorse.groups_in_pipeline_order: rank or microbatches out of range");
        g->rank[i] = (uint32_t)rank;
        g->micro[i] = (uint32_t)n;
    }
    double *const times[4] = {&g->gather_ms, &g->scatter_ms, &g->next_ms, &g->previous_ms};
    for (size_t k = 0; k < 4; k++) {
        static const char *const names[4] = {"ag_as_used", "rs_as_used", "send_recv_next_ms",
                                             "send_recv_prev_ms"};
        const json_t *value = json_object_get(item, names[k]);
        if (k >= 2 && (!value || json_is_null(value))) /* there is no neighbouring group */
            continue;
        if (!json_is_number(value) || !(json_number_value(value) >= 0))
            return err_set(err, ERR_INVALID, "case.zorse.groups_in_pipeline_order: %s is no time", names[k]);
        *times[k] = json_number_value(value);
    }
    return 0;
}

/* Checks that a recorded layout does all of the work and has no GPU in two groups. */
static int theirs_check(const struct zorse_problem *p, const struct zorse_layout *l, struct err *err)
{
    bool taken[ZORSE_GPUS_MAX] = {false};
    for (uint32_t g = 0; g < l->group_count; g++) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < l->groups[g].count; i++) {
            uint32_t rank = l->groups[g].rank[i];
            if (taken[rank])
                return err_set(err, ERR_INVALID,
                               "case.zorse.groups_in_pipeline_order[%u].ranks: %u is there twice", g, rank);
            taken[rank] = true;
            sum += l->groups[g].micro[i];
        }
        if (sum != l->micro_batches)
            return err_set(err, ERR_INVALID,
                           "case.zorse.groups_in_pipeline_order[%u].microbatches: %llu in all, and %u rows "
                           "in pieces of %u are %u",
                           g, (unsigned long long)sum, p->batch, 1u << l->micro_shift, l->micro_batches);
    }
    return 0;
}

/* Returns 1 with the layout that Zorse recorded, 0 if the case has none, −1 if it is invalid. */
static int theirs_read(const json_t *one, const struct zorse_problem *p, struct zorse_layout *l,
                       struct err *err)
{
    const json_t *z = json_object_get(one, "zorse"), *groups = json_object_get(z, "groups_in_pipeline_order");
    const json_t *stages = json_object_get(z, "stages");
    json_int_t ids[ZORSE_GROUPS_MAX], rows = json_integer_value(json_object_get(z, "microbatch_size"));
    const char *status = json_string_value(json_object_get(z, "status"));
    if (!status || strcmp(status, "ok") != 0)
        return 0;
    memset(l, 0, offsetof(struct zorse_layout, groups));
    while (l->micro_shift < ZORSE_MICRO_SIZES && (json_int_t)1 << l->micro_shift != rows)
        l->micro_shift++;
    if (l->micro_shift == ZORSE_MICRO_SIZES || json_array_size(groups) == 0 ||
        json_array_size(groups) > ZORSE_GROUPS_MAX || json_array_size(stages) > ZORSE_STAGES_MAX)
        return err_set(err, ERR_INVALID, "case.zorse: microbatch_size, groups or stages out of range");
    l->micro_batches = p->batch >> l->micro_shift;
    l->group_count = (uint32_t)json_array_size(groups);
    l->empty_groups = (uint32_t)json_array_size(json_object_get(z, "groups_without_layers"));
    for (uint32_t g = 0; g < l->group_count; g++) {
        ids[g] = json_integer_value(json_object_get(json_array_get(groups, g), "group_id"));
        if (theirs_group(json_array_get(groups, g), p, &l->groups[g], err) < 0)
            return -1;
    }
    json_int_t next = 0;
    for (size_t s = 0; s < json_array_size(stages); s++) {
        const json_t *stage = json_array_get(stages, s), *layers = json_object_get(stage, "layers");
        json_int_t begin = json_integer_value(json_array_get(layers, 0));
        json_int_t end = json_integer_value(json_array_get(layers, 1));
        uint32_t g = 0;
        while (g < l->group_count && ids[g] != json_integer_value(json_object_get(stage, "group_id")))
            g++;
        if (g == l->group_count || begin != next || end < begin || end > (json_int_t)p->layers)
            return err_set(err, ERR_INVALID,
                           "case.zorse.stages[%zu]: no such group, or its layers do not begin at %lld, where "
                           "those before it end, and end within 0..%u",
                           s, (long long)next, p->layers);
        next = end;
        l->stages[l->stage_count].group = g;
        l->stages[l->stage_count++].layers = (uint32_t)(end - begin);
    }
    if (next != (json_int_t)p->layers)
        return err_set(err, ERR_INVALID, "case.zorse.stages: they hold %lld of %u layers", (long long)next,
                       p->layers);
    return theirs_check(p, l, err) < 0 ? -1 : 1;
}

static json_t *ours_json(const struct zorse_layout *l)
{
    json_t *stages = json_array();
    uint32_t layer = 0;
    for (uint32_t s = 0; s < l->stage_count; s++) {
        const struct zorse_group *g = &l->groups[l->stages[s].group];
        json_t *ranks = json_array(), *micro = json_array();
        for (uint32_t i = 0; i < g->count; i++) {
            json_array_append_new(ranks, json_integer(g->rank[i]));
            json_array_append_new(micro, json_integer(g->micro[i]));
        }
        json_array_append_new(stages,
                              json_pack("{s:o,s:[i,i],s:o}", "ranks", ranks, "layers", (int)layer,
                                        (int)(layer + l->stages[s].layers), "num_microbatches", micro));
        layer += l->stages[s].layers;
    }
    return json_pack("{s:o,s:i}", "stages", stages, "microbatch_size", 1 << l->micro_shift);
}

/* Returns the number, or null for infinity, which stands for a link that is needed and does not exist. */
static json_t *real_json(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *infeasible_json(const struct zorse_inputs *in, const struct zorse_problem *p, json_t *latency)
{
    uint32_t most = zorse_capacity(p);
    double have = 0;
    char why[256];
    for (uint32_t r = 0; r < p->gpu_count; r++)
        have += p->memory_bytes[r];
    if (most >= p->layers)
        snprintf(why, sizeof(why), "%u GPUs hold %u layers, but only over links without bandwidth",
                 p->gpu_count, most);
    else
        snprintf(
            why, sizeof(why),
            "however the %u GPUs are grouped they hold at most %u of %u layers: 14 bytes a parameter are "
            "%.1f GiB, and "
            "all memory together is %.1f GiB, %.1f GiB a GPU of it reserved",
            p->gpu_count, most, p->layers, 14 * p->params_per_layer * p->layers / GIB, have / GIB,
            p->reserved_bytes / GIB);
    return json_pack("{s:s,s:s,s:O,s:n,s:n,s:n,s:s}", "id", in->id, "status", "infeasible",
                     "theirs_latency_ms", latency, "theirs_step_s", "ours_step_s", "ours", "why", why);
}

static void import_zorse_doubts_add(const struct zorse_inputs *in, json_t *line)
{
    json_t *warnings = json_array(), *doubts;
    const char *where;
    json_object_foreach (in->doubts, where, doubts) {
        json_array_extend(warnings, doubts);
    }
    if (json_array_size(warnings) > 0)
        json_object_set(line, "warnings", warnings);
    json_decref(warnings);
}

static json_t *zorse_line(void *opaque, const json_t *one, struct err *err)
{
    const struct zorse_state *state = opaque;
    struct zorse_inputs in = {.doubts = json_object()};
    struct zorse_problem *p = calloc(1, sizeof(*p));
    struct zorse_layout *theirs = calloc(1, sizeof(*theirs)), *ours = calloc(1, sizeof(*ours));
    json_t *line = NULL, *latency = NULL;
    double theirs_ms = NAN;
    if (!p || !theirs || !ours) {
        err_set(err, ERR_NOMEM, "zorse: out of memory");
        goto out;
    }
    if (import_zorse_inputs_read(one, &in, p, err) < 0 || import_zorse_links_read(&in, p, err) < 0 ||
        gpus_read(state, &in, p, err) < 0)
        goto out;
    int recorded = theirs_read(one, p, theirs, err);
    if (recorded < 0)
        goto out;
    latency = recorded ? real_json(zorse_formula_ms(p, theirs)) : json_null();
    if (recorded) {
        zorse_links_fill(p, theirs);
        theirs_ms = zorse_simulate_ms(p, theirs);
    }
    /* A recorded layout is a start only if it fits; the recorded cards may have had more memory. */
    bool fits = !recorded || zorse_fits(p, theirs), start = recorded && fits && isfinite(theirs_ms);
    if (!fits)
        json_object_set_new(in.doubts, "zorse",
                            json_pack("[s]",
                                      "zorse: by its own formula the recorded layout does not fit these "
                                      "GPUs; ours does not begin with it"));
    int found = zorse_search(p, start ? theirs : NULL, EVALUATIONS, ours, err);
    if (found < 0)
        goto out;
    line = !found ? infeasible_json(&in, p, latency)
                  : json_pack("{s:s,s:s,s:O,s:o,s:o,s:o}", "id", in.id, "status", "ok", "theirs_latency_ms",
                              latency, "theirs_step_s", real_json(theirs_ms / 1e3), "ours_step_s",
                              real_json(zorse_simulate_ms(p, ours) / 1e3), "ours", ours_json(ours));
    if (!line)
        err_set(err, ERR_NOMEM, "zorse: out of memory");
    else
        import_zorse_doubts_add(&in, line);
out:
    json_decref(in.doubts);
    json_decref(latency);
    free(p);
    free(theirs);
    free(ours);
    return line;
}

const struct importer import_zorse = {
    .name = "zorse", .files = files, .begin = zorse_begin, .line = zorse_line, .end = zorse_end};
