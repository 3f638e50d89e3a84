/* Tests Cephalo's problem on random clusters: the importer's answer is the optimum. The test finds the
 * optimum with a solver of its own, written from the fixtures' README without code of the planner. */
#include "planner/plan_fixture.h"

#include <math.h>
#include <time.h>

#include "published/cases.h"

#define GIB 1073741824.0
#define GPUS_MAX 64u
#define BATCH_MAX 512u

static const struct {
    const char *name;
    double gib;
} cards[] = {{"a6000", 47.99}, {"l4", 22.50},   {"p40", 22.50},   {"t4", 15.0},        {"a10g", 22.49},
             {"p100", 12},     {"v100x16", 16}, {"v100x32", 32},  {"a100x40", 40},     {"a100x80", 80},
             {"h100-nvl", 94}, {"v100", 16},    {"rtx_3090", 24}, {"v100-pciex16", 16}};
#define CARD_COUNT (sizeof(cards) / sizeof(cards[0]))

static json_t *latencies, *memories;

static json_t *load(const char *file)
{
    char path[512];
    json_error_t why;
    snprintf(path, sizeof(path), "%s/planner/cephalo/%s", MOTLEY_TEST_DATA, file);
    json_t *json = json_load_file(path, 0, &why);
    if (!json)
        fail_msg("%s: %s", path, why.text);
    return json;
}

/* The case as numbers, which the test reads from the document by itself. */
struct puzzle {
    uint32_t gpus, batch, most[GPUS_MAX], even[GPUS_MAX];
    double forward[GPUS_MAX][BATCH_MAX + 1], backward[GPUS_MAX][BATCH_MAX + 1], memory[BATCH_MAX + 1];
    double cap[GPUS_MAX], gather, scatter, fraction, state, total, uneven, accumulate;
};

static double entry_ms(const json_t *entry, int way, uint32_t m)
{
    if (json_is_number(entry))
        return way ? 0 : json_number_value(entry) * m;
    const json_t *line = json_array_get(entry, (size_t)way), *table = json_array_get(entry, 2 + (size_t)way);
    if (m <= json_array_size(table))
        return json_number_value(json_array_get(table, m - 1));
    return json_number_value(json_array_get(line, 0)) * m + json_number_value(json_array_get(line, 1));
}

static const json_t *entry_at(const char *model, const char *gpu, const char *length, const char *dtype)
{
    const json_t *entry = json_object_get(json_object_get(latencies, model), gpu);
    entry = json_object_get(json_object_get(entry, length), dtype);
    bool flat = json_is_array(entry) &&
                json_is_number(json_array_get(
                    entry, 0)); /* the old format of latencies: one number list without tables */
    return flat ? NULL : entry;
}

static double spend(const struct puzzle *p, uint32_t g, uint32_t n, uint32_t m)
{
    double factor = m > p->even[g] ? p->uneven : 1, a = factor * p->gather, r = factor * p->scatter;
    double forward = n * p->forward[g][m], backward = (n - 1) * p->accumulate + n * p->backward[g][m];
    return fmax(a, forward) + fmax(a + r, forward + backward);
}

/* A Pareto front: pairs of time and memory, none of which is worse than another in both. The solver extends
 * such fronts GPU by GPU to find the least time. */
struct front {
    uint32_t count, capacity;
    struct pair {
        double ms, gib;
    } *items;
};

static void front_add(struct front *f, double ms, double gib)
{
    uint32_t keep = 0;
    for (uint32_t i = 0; i < f->count; i++)
        if (f->items[i].ms <= ms && f->items[i].gib <= gib)
            return;
    for (uint32_t i = 0; i < f->count; i++)
        if (!(ms <= f->items[i].ms && gib <= f->items[i].gib))
            f->items[keep++] = f->items[i];
    f->count = keep;
    if (f->count == f->capacity) {
        f->capacity = f->capacity ? 2 * f->capacity : 8;
        f->items = realloc(f->items, f->capacity * sizeof(*f->items));
    }
    f->items[f->count++] = (struct pair){ms, gib};
}

static double least_by_fronts(const struct puzzle *p)
{
    struct front *now = calloc(p->batch + 1, sizeof(*now)), *next = NULL;
    double best = INFINITY;
    front_add(&now[0], 0, 0);
    for (uint32_t g = 0; g < p->gpus; g++) {
        next = calloc(p->batch + 1, sizeof(*next));
        for (uint32_t j = 0; j <= p->batch; j++) {
            for (uint32_t i = 0; i < now[j].count; i++) {
                for (uint32_t m = 1; m <= p->most[g] && m + j <= p->batch; m++)
                    for (uint32_t n = 1; j + n * m <= p->batch; n++)
                        front_add(&next[j + n * m], fmax(now[j].items[i].ms, spend(p, g, n, m)),
                                  now[j].items[i].gib + p->memory[m]);
            }
        }
        for (uint32_t j = 0; j <= p->batch; j++)
            free(now[j].items);
        free(now);
        now = next;
    }
    for (uint32_t i = 0; i < now[p->batch].count; i++)
        if (now[p->batch].items[i].gib + p->state < p->total)
            best = fmin(best, now[p->batch].items[i].ms);
    for (uint32_t j = 0; j <= p->batch; j++)
        free(now[j].items);
    free(now);
    return best;
}

/* Returns the least memory with which all GPUs together process the batch within `ms`, or INFINITY if they
 * cannot, by a plain table of rows. */
static double memory_within(const struct puzzle *p, double ms)
{
    double *now = malloc((p->batch + 1) * sizeof(*now)), *next = malloc((p->batch + 1) * sizeof(*next));
    double *way = malloc((p->batch + 1) * sizeof(*way));
    for (uint32_t j = 0; j <= p->batch; j++)
        now[j] = j ? INFINITY : 0;
    for (uint32_t g = 0; g < p->gpus; g++) {
        for (uint32_t j = 0; j <= p->batch; j++)
            next[j] = way[j] = INFINITY;
        for (uint32_t m = 1; m <= p->most[g] && m <= p->batch; m++) {
            for (uint32_t n = 1; n * m <= p->batch; n++)
                if (spend(p, g, n, m) <= ms)
                    way[n * m] = fmin(way[n * m], p->memory[m]);
        }
        for (uint32_t t = 1; t <= p->batch; t++)
            for (uint32_t j = 0; way[t] < INFINITY && j + t <= p->batch; j++)
                next[j + t] = fmin(next[j + t], now[j] + way[t]);
        double *swap = now;
        now = next;
        next = swap;
    }
    double gib = now[p->batch];
    free(now);
    free(next);
    free(way);
    return gib;
}

/* Checks that `answer` is feasible and that no shorter time is; for INFINITY, that no time is feasible. */
static void checked_by_table(const struct puzzle *p, double answer)
{
    double slack = 1e-9; /* relative distance by which the test goes below `answer`; no other of the finitely
                            many times lies so near */
    if (answer < INFINITY && !(memory_within(p, answer * (1 + slack)) + p->state < p->total))
        fail_msg("%g ms cannot be done", answer);
    if (memory_within(p, answer < INFINITY ? answer * (1 - slack) : 1e300) + p->state < p->total)
        fail_msg("something faster than %g ms can be done", answer);
}

static const char *pick_model(struct rand_stream *r, const char **cluster, const char **length,
                              const char **dtype)
{
    static const char *const lengths[] = {"512", "1024", "2048"}, *const dtypes[] = {"float16", "float32"};
    for (;;) {
        uint32_t skip = rand_stream_below(r, (uint32_t)json_object_size(memories));
        void *at = json_object_iter(memories);
        while (skip--)
            at = json_object_iter_next(memories, at);
        json_t *models = json_object_iter_value(at);
        *cluster = json_object_iter_key(at);
        skip = rand_stream_below(r, (uint32_t)json_object_size(models));
        for (at = json_object_iter(models); skip--;)
            at = json_object_iter_next(models, at);
        *length = lengths[rand_stream_below(r, 3)];
        *dtype = dtypes[rand_stream_below(r, 2)];
        const json_t *table = json_object_get(json_object_iter_value(at), "profiled_compute_memory");
        uint32_t have = 0;
        for (size_t c = 0; c < CARD_COUNT; c++)
            have += entry_at(json_object_iter_key(at), cards[c].name, *length, *dtype) != NULL;
        if (json_array_size(json_object_get(table, *dtype)) > 0 && have >= 2)
            return json_object_iter_key(at);
    }
}

/* Makes a random case as a document, and fills *p with the same numbers. */
static json_t *case_make(struct rand_stream *r, uint32_t gpus, uint32_t batch, struct puzzle *p)
{
    const char *cluster, *length, *dtype, *model = pick_model(r, &cluster, &length, &dtype);
    json_t *names = json_array(), *caps = json_array();
    const json_t *about = json_object_get(json_object_get(memories, cluster), model);
    const json_t *table = json_object_get(json_object_get(about, "profiled_compute_memory"), dtype);
    double parameters = json_number_value(json_object_get(about, "parameters")), reserve = 2;
    double shrink = 0.3 + rand_stream_unit(r) * 1.2;
    bool usual = rand_stream_below(r, 2) != 0,
         like = rand_stream_below(r, 4) == 0; /* usual: the puzzle keeps the importer's default settings */
    uint32_t most = usual ? 10000 : 1 + rand_stream_below(r, 12), bytes = usual ? 16 : 12;
    *p = (struct puzzle){.gpus = gpus, .batch = batch, .fraction = 0.75, .uneven = 1.25, .accumulate = 10};
    if (!usual) {
        p->fraction = 0.5 + 0.5 * rand_stream_unit(r);
        p->uneven = 1 + rand_stream_unit(r);
        p->accumulate = rand_stream_below(r, 2) ? 0 : 20 * rand_stream_unit(r);
        reserve = 3 * rand_stream_unit(r);
    }
    p->gather = rand_stream_below(r, 2) ? 0 : 40 * rand_stream_unit(r);
    p->scatter = p->gather * (1 + rand_stream_unit(r));
    p->state = parameters * bytes / GIB;
    size_t count = json_array_size(table), window = count < 5 ? count : 5;
    double last = json_number_value(json_array_get(table, count - 1)),
           first = json_number_value(json_array_get(table, count - window));
    for (uint32_t m = 1; m <= batch; m++)
        p->memory[m] =
            reserve + (m <= count   ? json_number_value(json_array_get(table, m - 1))
                       : window > 1 ? last + (last - first) / (double)(window - 1) * (double)(m - count)
                                    : last);
    uint32_t same = CARD_COUNT; /* below CARD_COUNT: all GPUs are this card */
    while (like && (same == CARD_COUNT || !entry_at(model, cards[same].name, length, dtype)))
        same = rand_stream_below(r, CARD_COUNT);
    for (uint32_t g = 0; g < gpus; g++) {
        const json_t *entry = NULL;
        uint32_t c = 0;
        while (!entry) {
            c = same < CARD_COUNT ? same : rand_stream_below(r, CARD_COUNT);
            entry = entry_at(model, cards[c].name, length, dtype);
        }
        p->cap[g] = cards[c].gib * (rand_stream_below(r, 4) ? 1 : shrink);
        p->total += p->cap[g];
        json_array_append_new(names, json_string(cards[c].name));
        json_array_append_new(caps, json_real(p->cap[g]));
        for (uint32_t m = 1; m <= batch; m++) {
            p->forward[g][m] = entry_ms(entry, 0, m);
            p->backward[g][m] = entry_ms(entry, 1, m);
            if (p->memory[m] <= p->fraction * p->cap[g])
                p->most[g] = m < most ? m : most;
            if (p->memory[m] <= p->fraction * p->cap[g] - p->state / gpus)
                p->even[g] = m;
        }
    }
    p->total *= p->fraction;
    json_t *inputs =
        json_pack("{s:o,s:o,s:s,s:s,s:s,s:i,s:i,s:f}", "gpus", names, "gpu_memory_gib", caps, "model", model,
                  "memory_cluster_key", cluster, "dtype", dtype, "batch_size", (int)batch, "seq_length",
                  (int)strtol(length, NULL, 10), "parameters", parameters);
    if (p->gather > 0 || !usual) {
        json_object_set_new(inputs, "ag_ms", json_real(p->gather));
        json_object_set_new(inputs, "rs_ms", json_real(p->scatter));
    }
    json_t *others =
        json_pack("{s:f,s:f,s:f,s:f,s:i,s:i}", "max_alloc_frac", p->fraction, "comm_mem_overhead_gib",
                  reserve, "uneven_comm_multiplier", p->uneven, "ga_overhead_ms", p->accumulate,
                  "bytes_per_param_state", (int)bytes, "max_microbatch_size", (int)most);
    if (!usual)
        json_object_update(inputs, others);
    json_decref(others);
    return json_pack("{s:s,s:o}", "id", "made", "inputs", inputs);
}

static int line_keep(void *context, const json_t *line, struct err *err)
{
    (void)err;
    return json_array_append(context, (json_t *)(uintptr_t)line);
}

static double cpu_s(void *context)
{
    struct timespec t;
    (void)context;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static json_t *solve(const json_t *one)
{
    struct err err = {0};
    json_t *lines = json_array(), *cases = json_pack("[O]", one);
    json_t *documents =
        json_pack("{s:O,s:O}", "model_latencies.json", latencies, "model_memory.json", memories);
    struct replay_sink sink = {.line = line_keep, .context = lines, .now_s = cpu_s};
    if (replay_import("cephalo", documents, cases, &sink, &err) < 0)
        fail_msg("%s", err.text);
    json_t *line = json_incref(json_array_get(lines, 0));
    json_decref(lines);
    json_decref(cases);
    json_decref(documents);
    return line;
}

static double at(const json_t *line, const char *key, uint32_t g)
{
    const json_t *value = json_array_get(json_object_get(line, key), g);
    if (!json_is_number(value))
        fail_msg("%s[%u] is no number", key, g);
    return json_number_value(value);
}

/* Checks that the rows, times, memory and shares that a line states are consistent. Returns its layer_ms, or
 * INFINITY if it states that the case is infeasible. */
static double line_check(const struct puzzle *p, const json_t *line)
{
    const char *status = json_string_value(json_object_get(line, "status"));
    if (strcmp(status, "infeasible") == 0)
        return INFINITY;
    if (strcmp(status, "ok") != 0)
        fail_msg("%s: %s", status, json_string_value(json_object_get(line, "error")));
    double layer_ms = json_number_value(json_object_get(line, "layer_ms")), slowest = 0, held = 0, shares = 0,
           room = 0;
    uint32_t rows = 0;
    bool all_have_room = true;
    for (uint32_t g = 0; g < p->gpus; g++) {
        uint32_t n = (uint32_t)at(line, "num_microbatches", g), m = (uint32_t)at(line, "microbatch_sizes", g);
        assert_true(n >= 1 && m >= 1 && m <= p->most[g]);
        rows += n * m;
        slowest = fmax(slowest, spend(p, g, n, m));
        held += p->memory[m];
        shares += at(line, "state_shares", g);
        room += fmax(0, p->fraction * p->cap[g] - p->memory[m]);
        all_have_room &= p->memory[m] <= p->fraction * p->cap[g];
        assert_true(fabs(at(line, "memory_gib", g) - p->memory[m] - at(line, "state_shares", g) * p->state) <
                    1e-9);
    }
    assert_int_equal(rows, p->batch);
    assert_true(fabs(slowest / layer_ms - 1) < 1e-12 && held + p->state < p->total &&
                fabs(shares - 1) < 1e-12);
    for (uint32_t g = 0; g < p->gpus && all_have_room && room >= p->state; g++) {
        assert_true(at(line, "state_shares", g) >= 0);
        if (!(at(line, "memory_gib", g) <= p->fraction * p->cap[g]))
            fail_msg("GPU %u of %u: %.17g of %.17g GiB, room %g state %g", g, p->gpus,
                     at(line, "memory_gib", g), p->fraction * p->cap[g], room, p->state);
    }
    return layer_ms;
}

static void small_cases_are_the_optimum_of_exhaustive_fronts(void **state)
{
    (void)state;
    struct rand_stream r;
    struct puzzle *p = calloc(1, sizeof(*p));
    uint32_t feasible = 0, none = 0;
    rand_stream_init(&r, 41, 0);
    for (uint32_t turn = 0; turn < 300; turn++) {
        uint32_t gpus = 1 + rand_stream_below(&r, 5), batch = 1 + rand_stream_below(&r, gpus + 20);
        json_t *one = case_make(&r, gpus, batch, p), *line = solve(one);
        double ours = line_check(p, line), best = least_by_fronts(p);
        if (!(ours == best || fabs(ours / best - 1) < 1e-12))
            fail_msg("turn %u: %.17g ms, the best there is takes %.17g", turn, ours, best);
        feasible += best < INFINITY;
        none += best == INFINITY;
        json_decref(one);
        json_decref(line);
    }
    print_message("%u feasible, %u infeasible\n", feasible, none);
    assert_true(feasible > 60 && none > 20);
    free(p);
}

static void large_cases_cannot_be_beaten_and_take_milliseconds(void **state)
{
    (void)state;
    struct rand_stream r;
    struct puzzle *p = calloc(1, sizeof(*p));
    double slowest = 0;
    uint32_t feasible = 0, none = 0;
    rand_stream_init(&r, 42, 0);
    for (uint32_t turn = 0; turn < 120; turn++) {
        uint32_t gpus = turn % 3 == 0 ? 64 : 2 + rand_stream_below(&r, 62);
        uint32_t batch = turn % 3 == 0 ? 512 : gpus + rand_stream_below(&r, BATCH_MAX - gpus);
        json_t *one = case_make(&r, gpus, batch, p), *line = solve(one);
        double ours = line_check(p, line), took = json_number_value(json_object_get(line, "plan_s"));
        checked_by_table(p, ours);
        slowest = fmax(slowest, took);
        feasible += ours < INFINITY;
        none += ours == INFINITY;
        json_decref(one);
        json_decref(line);
    }
    print_message("%u feasible, %u infeasible; slowest %.2f ms\n", feasible, none, 1e3 * slowest);
    assert_true(feasible > 30 && none > 5);
    assert_true(slowest < 0.05); /* Required are 5 ms of an optimised build on a quiet core; builds with
                                    sanitizers are slower. */
    free(p);
}

static void tables_are_refused_by_path(void **state)
{
    static const struct {
        const char *entry, *part;
    } spoilt[] = {
        {"[1.0, 2.0]", "neither a number"},
        {"[[1.0, 0.0], [2.0, 0.0], [1.0, -3.0], [2.0, 2.0]]", "model_latencies.json: m.g.512.float16"},
        {"[[1.0, 0.0], [2.0, 0.0], [1.0, 0.0], [2.0, 2.0]]", "model_latencies.json: m.g.512.float16"},
        {"[[1.0, 0.0], [2.0, 0.0], [1.0, null], [2.0, 2.0]]", "model_latencies.json: m.g.512.float16"},
        {"[[1.0, -4.0], [2.0, 0.0]]", "model_latencies.json: m.g.512.float16"},
        {"[[-1.0, 4.0], [2.0, 0.0]]", "model_latencies.json: m.g.512.float16"},
        {"0", "model_latencies.json: m.g.512.float16"},
        {"\"fast\"", "model_latencies.json: m.g.512.float16"},
    };
    (void)state;
    json_t *kept = latencies, *kept_memory = memories;
    json_error_t why;
    memories =
        json_loads("{\"c\": {\"m\": {\"profiled_compute_memory\": {\"float16\": [1.0, 1.5]}}}}", 0, &why);
    json_t *one = json_loads(
        "{\"id\": \"x\", \"inputs\": {\"gpus\": [\"g\"], \"gpu_memory_gib\": [40], \"model\": \"m\","
        "\"memory_cluster_key\": \"c\", \"dtype\": \"float16\", \"batch_size\": 8,"
        "\"seq_length\": 512, \"parameters\": 1e9}}",
        0, &why);
    for (size_t i = 0; i < sizeof(spoilt) / sizeof(spoilt[0]); i++) {
        latencies = json_pack("{s:{s:{s:{s:o}}}}", "m", "g", "512", "float16",
                              json_loads(spoilt[i].entry, JSON_DECODE_ANY, &why));
        json_t *line = solve(one);
        const char *error = json_string_value(json_object_get(line, "error"));
        if (!error || !strstr(error, spoilt[i].part))
            fail_msg("%s: %s", spoilt[i].entry, error ? error : "accepted");
        json_decref(line);
        json_decref(latencies);
    }
    latencies = json_loads("{\"m\": {\"g\": {\"512\": {\"float16\": [[1.0, 0.5], [2.0, 0.5]]}}}}", 0, &why);
    json_t *line = solve(one);
    assert_string_equal(json_string_value(json_object_get(line, "status")), "ok");
    json_decref(line);
    json_t *inputs = json_object_get(one, "inputs"), *gpus = json_array(), *caps = json_array();
    for (int g = 0; g < 4096; g++) {
        json_array_append_new(gpus, json_string("g"));
        json_array_append_new(caps, json_integer(40));
    }
    json_object_set_new(inputs, "gpus", gpus);
    json_object_set_new(inputs, "gpu_memory_gib", caps);
    json_object_set_new(inputs, "batch_size", json_integer(65536));
    line = solve(one);
    assert_non_null(strstr(json_string_value(json_object_get(line, "error")), "at most"));
    json_decref(line);
    json_decref(one);
    json_decref(latencies);
    json_decref(memories);
    latencies = kept;
    memories = kept_memory;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_cases_are_the_optimum_of_exhaustive_fronts),
        cmocka_unit_test(large_cases_cannot_be_beaten_and_take_milliseconds),
        cmocka_unit_test(tables_are_refused_by_path),
    };
    latencies = load("model_latencies.json");
    memories = load("model_memory.json");
    int result = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(latencies);
    json_decref(memories);
    return result;
}
