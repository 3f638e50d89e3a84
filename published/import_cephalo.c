/* Imports Cephalo's cases: its plan priced by its formulas, and the exact optimum of the same problem.
 *
 * Section numbers are those of the fixtures' README (benson-guo/cephalo, MIT). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "published/cephalo.h"
#include "published/import.h"
#include "published/import_gpu.h"

#define GIB 1073741824.0
#define ROUNDING 1e-14
#define GROWTH_POINTS 5 /* points for extrapolating memory (section 4) */
#define MEMORY_GIB_MAX 1e6
#define CELLS_MAX (1u << 24) /* most GPUs × batch: 128 MiB of table */

static const char *const files[] = {"model_latencies.json", "model_memory.json", NULL};

struct cephalo_state {
    const json_t *latencies, *memory; /* borrowed for the run */
};

/* One case with its tables. */
struct cephalo_case {
    const char *id, *model, *cluster, *dtype;
    int64_t sequence, bytes_per_param;
    double parameters, fraction, reserve_gib, layers;
    const json_t *gpus, *capacities;
    const char **kind_name;
    double *kind_cap;
    struct gpu_curve *curves;
    double *times; /* [kinds · 2 · (batch + 1)] */
    double *memory;
    uint32_t *kind_of;
    struct cephalo_kind *kinds;
    struct cephalo_part *parts, *theirs;
    double *room, *shares;
    struct cephalo_problem problem;
};

static void *cephalo_begin(const json_t *documents, struct err *err)
{
    struct cephalo_state *state = calloc(1, sizeof(*state));
    if (!state) {
        err_set(err, ERR_NOMEM, "cephalo: out of memory");
        return NULL;
    }
    state->latencies = json_object_get(documents, files[0]);
    state->memory = json_object_get(documents, files[1]);
    if (json_is_object(state->latencies) && json_is_object(state->memory))
        return state;
    err_set(err, ERR_INVALID, "%s: missing, or not an object",
            files[json_is_object(state->latencies) ? 1 : 0]);
    free(state);
    return NULL;
}

static void cephalo_end(void *state)
{
    free(state);
}

static void case_fini(struct cephalo_case *c)
{
    free(c->kind_name);
    free(c->kind_cap);
    free(c->curves);
    free(c->times);
    free(c->memory);
    free(c->kind_of);
    free(c->kinds);
    free(c->parts);
    free(c->theirs);
    free(c->room);
    free(c->shares);
}

static int import_cephalo_inputs_read(const json_t *one, struct cephalo_case *c, uint32_t *micro_max,
                                      struct err *err)
{
    struct json_reader root, in;
    struct cephalo_problem *p = &c->problem;
    *c = (struct cephalo_case){.fraction = 0.75, .reserve_gib = 2, .bytes_per_param = 16};
    *p = (struct cephalo_problem){.uneven_factor = 1.25, .accumulate_ms = 10};
    *micro_max = 10000;
    jr_init(&root, one, "case", err);
    jr_str(&root, "id", JR_REQUIRED, 1, 128, &c->id);
    jr_sub(&root, "inputs", JR_REQUIRED, &in);
    jr_array(&in, "gpus", JR_REQUIRED, 1, CEPHALO_GPUS_MAX, &c->gpus);
    size_t count = json_array_size(c->gpus);
    jr_array(&in, "gpu_memory_gib", JR_REQUIRED, count, count, &c->capacities);
    jr_str(&in, "model", JR_REQUIRED, 1, 128, &c->model);
    jr_str(&in, "memory_cluster_key", JR_REQUIRED, 1, 128, &c->cluster);
    jr_str(&in, "dtype", JR_REQUIRED, 1, 32, &c->dtype);
    jr_u32(&in, "batch_size", JR_REQUIRED, 1, CEPHALO_BATCH_MAX, &p->batch);
    jr_i64(&in, "seq_length", JR_REQUIRED, 1, 1 << 24, &c->sequence);
    jr_f64(&in, "parameters", JR_REQUIRED, 1, 1e15, &c->parameters);
    jr_f64(&in, "num_layers", JR_OPTIONAL, 1, 1e6, &c->layers);
    jr_f64(&in, "ag_ms", JR_OPTIONAL, 0, 1e9, &p->gather_ms);
    jr_f64(&in, "rs_ms", JR_OPTIONAL, 0, 1e9, &p->scatter_ms);
    jr_f64(&in, "max_alloc_frac", JR_OPTIONAL, 0.01, 1, &c->fraction);
    jr_f64(&in, "comm_mem_overhead_gib", JR_OPTIONAL, 0, 1e6, &c->reserve_gib);
    jr_i64(&in, "bytes_per_param_state", JR_OPTIONAL, 1, 1024, &c->bytes_per_param);
    jr_f64(&in, "uneven_comm_multiplier", JR_OPTIONAL, 0, 1e6, &p->uneven_factor);
    jr_f64(&in, "ga_overhead_ms", JR_OPTIONAL, 0, 1e9, &p->accumulate_ms);
    jr_u32(&in, "max_microbatch_size", JR_OPTIONAL, 1, UINT32_MAX, micro_max);
    p->gpu_count = (uint32_t)count;
    if (!in.failed && (uint64_t)p->batch * count > CELLS_MAX)
        jr_fail(&in, "batch_size", "%u rows on %zu GPUs; rows times GPUs must be at most %u", p->batch, count,
                CELLS_MAX);
    return jr_finish_loose(&in);
}

static int case_alloc(struct cephalo_case *c, struct err *err)
{
    size_t gpus = c->problem.gpu_count, batch = c->problem.batch + 1;
    c->kind_name = calloc(gpus, sizeof(*c->kind_name));
    c->kind_cap = calloc(gpus, sizeof(*c->kind_cap));
    c->curves = calloc(gpus, sizeof(*c->curves));
    c->memory = calloc(batch, sizeof(*c->memory));
    c->kind_of = calloc(gpus, sizeof(*c->kind_of));
    c->kinds = calloc(gpus, sizeof(*c->kinds));
    c->parts = calloc(gpus, sizeof(*c->parts));
    c->theirs = calloc(gpus, sizeof(*c->theirs));
    c->room = calloc(gpus, sizeof(*c->room));
    c->shares = calloc(gpus, sizeof(*c->shares));
    if (c->kind_name && c->kind_cap && c->curves && c->memory && c->kind_of && c->kinds && c->parts &&
        c->theirs && c->room && c->shares)
        return 0;
    return err_set(err, ERR_NOMEM, "cephalo: out of memory for %zu GPUs", gpus);
}

/* Finds the kinds of GPUs: those of one name and memory are one kind. */
static int kinds_find(const struct cephalo_state *state, struct cephalo_case *c, struct err *err)
{
    struct cephalo_problem *p = &c->problem;
    uint32_t count = 0;
    for (uint32_t g = 0; g < p->gpu_count; g++) {
        const char *name = json_string_value(json_array_get(c->gpus, g));
        const json_t *cap = json_array_get(c->capacities, g);
        if (!name)
            return err_set(err, ERR_INVALID, "case.inputs.gpus[%u]: not a name", g);
        if (json_is_number(cap) && json_number_value(cap) > MEMORY_GIB_MAX)
            return err_set(err, ERR_INVALID, "case.inputs.gpu_memory_gib[%u]: at most %g, is %g", g,
                           MEMORY_GIB_MAX, json_number_value(cap));
        if (!json_is_number(cap) || !(json_number_value(cap) > 0))
            return err_set(err, ERR_INVALID, "case.inputs.gpu_memory_gib[%u]: not a size above 0", g);
        uint32_t k = 0;
        while (k < count && (strcmp(c->kind_name[k], name) != 0 || c->kind_cap[k] != json_number_value(cap)))
            k++;
        if (k == count) {
            c->kind_name[k] = name;
            c->kind_cap[k] = json_number_value(cap);
            if (gpu_curve_find(state->latencies, c->model, name, c->sequence, c->dtype, &c->curves[k], err) <
                0)
                return -1;
            count++;
        }
        c->kind_of[g] = k;
        p->cap_gib += json_number_value(cap);
    }
    p->kind_count = count;
    p->cap_gib *= c->fraction;
    return 0;
}

/* Fills the memory M(m) of micro-batches of m = 1 to `batch` rows (section 4). */
static int memory_fill(const struct cephalo_state *state, struct cephalo_case *c, struct err *err)
{
    const json_t *table = json_object_get(json_object_get(state->memory, c->cluster), c->model);
    table = json_object_get(json_object_get(table, "profiled_compute_memory"), c->dtype);
    size_t length = json_array_size(table);
    if (length == 0)
        return err_set(err, ERR_INVALID, "model_memory.json: nothing at %s.%s.profiled_compute_memory.%s",
                       c->cluster, c->model, c->dtype);
    for (size_t i = 0; i < length; i++)
        if (!json_is_number(json_array_get(table, i)) || !(json_number_value(json_array_get(table, i)) >= 0))
            return err_set(err, ERR_INVALID,
                           "model_memory.json: %s.%s.profiled_compute_memory.%s[%zu] is no size", c->cluster,
                           c->model, c->dtype, i);
    size_t window = length < GROWTH_POINTS ? length : GROWTH_POINTS;
    double last = json_number_value(json_array_get(table, length - 1));
    double first = json_number_value(json_array_get(table, length - window));
    double growth = window > 1 ? (last - first) / (double)(window - 1) : 0;
    for (size_t m = 1; m <= c->problem.batch; m++)
        c->memory[m] = (m <= length ? json_number_value(json_array_get(table, m - 1))
                                    : last + growth * (double)(m - length)) +
                       c->reserve_gib;
    return 0;
}

static int curve_read(const struct cephalo_case *c, uint32_t kind, uint32_t rows, double *forward,
                      double *backward, struct err *err)
{
    *forward = gpu_curve_ms(&c->curves[kind], 0, rows);
    *backward = gpu_curve_ms(&c->curves[kind], 1, rows);
    if (*forward >= 0 && *backward >= 0 && *forward + *backward > 0 && *forward + *backward < 1e12)
        return 0;
    return err_set(err, ERR_INVALID,
                   "model_latencies.json: %s.%s.%lld.%s makes a micro-batch of %u take %g and %g ms",
                   c->model, c->kind_name[kind], (long long)c->sequence, c->dtype, rows, *forward, *backward);
}

static int kinds_fill(struct cephalo_case *c, uint32_t micro_max, struct err *err)
{
    struct cephalo_problem *p = &c->problem;
    size_t width = (size_t)p->batch + 1;
    c->times = calloc(2 * p->kind_count * width, sizeof(*c->times));
    if (!c->times)
        return err_set(err, ERR_NOMEM, "cephalo: out of memory");
    p->state_gib = c->parameters * (double)c->bytes_per_param / GIB;
    for (uint32_t k = 0; k < p->kind_count; k++) {
        double *forward = &c->times[2 * k * width], *backward = forward + width;
        double limit = c->fraction * c->kind_cap[k], even = limit - p->state_gib / p->gpu_count;
        struct cephalo_kind *kind = &c->kinds[k];
        *kind = (struct cephalo_kind){.forward_ms = forward, .backward_ms = backward};
        for (uint32_t m = 1; m <= p->batch; m++) {
            if (curve_read(c, k, m, &forward[m], &backward[m], err) < 0)
                return -1;
            kind->micro_max = c->memory[m] <= limit ? m : kind->micro_max;
            kind->even_max = c->memory[m] <= even ? m : kind->even_max;
        }
        kind->micro_max = kind->micro_max < micro_max ? kind->micro_max : micro_max;
    }
    p->kind_of = c->kind_of;
    p->kinds = c->kinds;
    p->memory_gib = c->memory;
    return 0;
}

/* Prices the recorded plan by Cephalo's formulas; null if the case has none. */
static json_t *theirs_json(const struct cephalo_case *c, const json_t *one)
{
    const struct cephalo_problem *p = &c->problem;
    const json_t *plan = json_object_get(one, "dp_ga");
    const json_t *counts = json_object_get(plan, "num_microbatches"),
                 *sizes = json_object_get(plan, "microbatch_sizes");
    double layer_ms = 0;
    if (json_array_size(counts) != p->gpu_count || json_array_size(sizes) != p->gpu_count)
        return json_null();
    for (uint32_t g = 0; g < p->gpu_count; g++) {
        json_int_t n = json_integer_value(json_array_get(counts, g)),
                   m = json_integer_value(json_array_get(sizes, g));
        if (n < 1 || m < 1 || m > p->batch || n > p->batch)
            return json_null();
        double ms = cephalo_gpu_ms(p, p->kind_of[g], (uint32_t)n, (uint32_t)m);
        layer_ms = ms > layer_ms ? ms : layer_ms;
    }
    return json_real(layer_ms);
}

static json_t *solved_json(struct cephalo_case *c, double layer_ms, json_t *theirs)
{
    const struct cephalo_problem *p = &c->problem;
    json_t *counts = json_array(), *sizes = json_array(), *shares = json_array(), *memory = json_array();
    /* tolerance, so that rounding does not overfill a full GPU */
    double hair = ROUNDING * (p->state_gib + p->cap_gib), all = 0;
    for (uint32_t g = 0; g < p->gpu_count; g++) {
        c->room[g] = c->fraction * c->kind_cap[p->kind_of[g]] - c->memory[c->parts[g].micro_rows];
        all += c->room[g] > hair ? c->room[g] - hair : 0;
    }
    for (uint32_t g = 0; g < p->gpu_count && all > p->state_gib; g++)
        c->room[g] -= hair;
    cephalo_shares(c->room, p->gpu_count, p->state_gib, c->shares);
    for (uint32_t g = 0; g < p->gpu_count; g++) {
        json_array_append_new(counts, json_integer(c->parts[g].micro_count));
        json_array_append_new(sizes, json_integer(c->parts[g].micro_rows));
        json_array_append_new(shares, json_real(c->shares[g]));
        json_array_append_new(memory,
                              json_real(c->memory[c->parts[g].micro_rows] + c->shares[g] * p->state_gib));
    }
    return json_pack("{s:s,s:s,s:f,s:o,s:o,s:o,s:o,s:o}", "id", c->id, "status", "ok", "layer_ms", layer_ms,
                     "num_microbatches", counts, "microbatch_sizes", sizes, "state_shares", shares,
                     "memory_gib", memory, "theirs_layer_ms", theirs);
}

/* Adds warnings about suspicious tables. */
static void import_cephalo_doubts_add(const struct cephalo_case *c, json_t *line)
{
    char where[512];
    json_t *warnings = json_array();
    double flops = c->layers > 0 ? 2 * c->parameters / c->layers * (double)c->sequence : 0;
    for (uint32_t k = 0; k < c->problem.kind_count; k++) {
        bool told = false; /* one card with two amounts of memory has one curve */
        for (uint32_t i = 0; i < k; i++)
            told = told || strcmp(c->kind_name[i], c->kind_name[k]) == 0;
        snprintf(where, sizeof(where), "%s.%s.%lld.%s", c->model, c->kind_name[k], (long long)c->sequence,
                 c->dtype);
        if (!told)
            gpu_curve_doubts(&c->curves[k], where, c->kind_name[k], flops, warnings);
    }
    if (json_array_size(warnings) > 0)
        json_object_set(line, "warnings", warnings);
    json_decref(warnings);
}

static json_t *cephalo_line(void *opaque, const json_t *one, struct err *err)
{
    const struct cephalo_state *state = opaque;
    struct cephalo_case c;
    uint32_t micro_max;
    double layer_ms = 0;
    json_t *line = NULL;
    if (import_cephalo_inputs_read(one, &c, &micro_max, err) < 0)
        return NULL;
    if (case_alloc(&c, err) < 0 || kinds_find(state, &c, err) < 0 || memory_fill(state, &c, err) < 0 ||
        kinds_fill(&c, micro_max, err) < 0)
        goto out;
    int solved = cephalo_solve(&c.problem, c.parts, &layer_ms, err);
    if (solved < 0)
        goto out;
    json_t *theirs = theirs_json(&c, one);
    line = solved ? solved_json(&c, layer_ms, theirs)
                  : json_pack("{s:s,s:s,s:n,s:n,s:n,s:n,s:n,s:o}", "id", c.id, "status", "infeasible",
                              "layer_ms", "num_microbatches", "microbatch_sizes", "state_shares",
                              "memory_gib", "theirs_layer_ms", theirs);
    if (!line)
        err_set(err, ERR_NOMEM, "cephalo: out of memory");
    else
        import_cephalo_doubts_add(&c, line);
out:
    case_fini(&c);
    return line;
}

const struct importer import_cephalo = {
    .name = "cephalo", .files = files, .begin = cephalo_begin, .line = cephalo_line, .end = cephalo_end};
