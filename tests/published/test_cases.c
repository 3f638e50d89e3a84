/* Tests the published cases of Cephalo, Zorse and Sailor: the published results are reproduced exactly where
 * the formulas are known, and our plans are at least as good. */
#include "planner/plan_fixture.h"

#include <math.h>
#include <time.h>

#include "published/cases.h"

struct lines {
    json_t *list;
};

static int line_keep(void *context, const json_t *line, struct err *err)
{
    (void)err;
    return json_array_append(((struct lines *)context)->list, (json_t *)(uintptr_t)line);
}

static double now_s(void *context)
{
    struct timespec t;
    (void)context;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static json_t *load(const char *from, const char *file)
{
    char path[512];
    json_error_t why;
    snprintf(path, sizeof(path), "%s/planner/%s/%s", MOTLEY_TEST_DATA, from, file);
    json_t *json = json_load_file(path, 0, &why);
    if (!json)
        fail_msg("%s: %s", path, why.text);
    return json;
}

static json_t *documents(const char *from)
{
    json_t *all = json_object();
    for (const char *const *name = replay_import_files(from); *name; name++)
        json_object_set_new(all, *name, load(from, *name));
    return all;
}

static json_t *run_on(const char *from, const json_t *all, const json_t *cases)
{
    struct err err = {0};
    struct lines lines = {json_array()};
    struct replay_sink sink = {.line = line_keep, .context = &lines, .now_s = now_s};
    if (replay_import(from, all, cases, &sink, &err) < 0)
        fail_msg("%s", err.text);
    return lines.list;
}

static json_t *run(const char *from, const json_t *cases)
{
    json_t *all = documents(from), *lines = run_on(from, all, cases);
    json_decref(all);
    return lines;
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("%s is no number", key);
    return json_number_value(value);
}

static void close_to(double a, double b, double relative, const char *what)
{
    if (fabs(a - b) > relative * fabs(b))
        fail_msg("%s: %.17g, wanted %.17g", what, a, b);
}

static void cephalo_is_matched_and_solved_exactly(void **state)
{
    (void)state;
    json_t *cases = load("cephalo", "cases.json"), *list = json_object_get(cases, "cases");
    json_t *lines = run("cephalo", cases);
    assert_int_equal(json_array_size(lines), json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *line = json_array_get(lines, i), *one = json_array_get(list, i);
        const json_t *best = json_object_get(json_object_get(one, "exact_optimum_ours"), "with_memory_cap");
        const json_t *theirs = json_object_get(one, "dp_ga");
        const char *status = json_string_value(json_object_get(line, "status"));
        assert_string_equal(status, json_is_null(best) ? "infeasible" : "ok");
        if (json_is_number(json_object_get(theirs, "layer_ms")))
            close_to(number(line, "theirs_layer_ms"), number(theirs, "layer_ms"), 1e-9, "theirs_layer_ms");
        assert_true(number(line, "plan_s") < 0.05);
        if (json_is_null(best))
            continue;
        close_to(number(line, "layer_ms"), number(best, "layer_ms"), 1e-12, "layer_ms");
        const json_t *shares = json_object_get(line, "state_shares"),
                     *memory = json_object_get(line, "memory_gib");
        const json_t *limits = json_object_get(theirs, "gpu_memory_limit_gib");
        double sum = 0;
        for (size_t g = 0; g < json_array_size(shares); g++) {
            sum += json_number_value(json_array_get(shares, g));
            if (json_is_array(limits))
                assert_true(json_number_value(json_array_get(memory, g)) <=
                            json_number_value(json_array_get(limits, g)) * (1 + 1e-12));
        }
        close_to(sum, 1, 1e-12, "shares");
    }
    json_decref(cases);
    json_decref(lines);
}

static void cephalo_plans_64_gpus_in_milliseconds(void **state)
{
    (void)state;
    json_t *cases = load("cephalo", "cases.json");
    json_t *one = json_deep_copy(json_array_get(json_object_get(cases, "cases"), 0));
    json_t *inputs = json_object_get(one, "inputs"), *gpus = json_array(), *memory = json_array();
    for (size_t g = 0; g < 64; g++) {
        json_array_append(gpus, json_array_get(json_object_get(inputs, "gpus"), g % 4));
        json_array_append(memory, json_array_get(json_object_get(inputs, "gpu_memory_gib"), g % 4));
    }
    json_object_set_new(inputs, "gpus", gpus);
    json_object_set_new(inputs, "gpu_memory_gib", memory);
    json_object_set_new(inputs, "batch_size", json_integer(512));
    json_t *list = json_pack("[O,O,O]", one, one, one), *lines = run("cephalo", list);
    double fastest = 1;
    for (size_t i = 0; i < 3; i++)
        fastest = fmin(fastest, number(json_array_get(lines, i), "plan_s"));
    print_message("64 GPUs, batch 512: %.2f ms\n", fastest * 1e3);
    assert_true(number(json_array_get(lines, 0), "layer_ms") > 0);
    json_decref(one);
    json_decref(list);
    json_decref(lines);
    json_decref(cases);
}

static void zorse_is_matched_and_beaten_in_true_units(void **state)
{
    (void)state;
    json_t *cases = load("zorse", "cases.json"), *list = json_object_get(cases, "cases");
    json_t *lines = run("zorse", cases);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *line = json_array_get(lines, i),
                     *theirs = json_object_get(json_array_get(list, i), "zorse");
        if (strcmp(json_string_value(json_object_get(theirs, "status")), "ok") != 0)
            continue;
        close_to(number(line, "theirs_latency_ms"), number(theirs, "latency_ms"), 1e-6, "theirs_latency_ms");
        assert_true(number(line, "ours_step_s") <= number(line, "theirs_step_s"));
        uint32_t layers = 0, batch = 0;
        const json_t *ours = json_object_get(line, "ours"), *stages = json_object_get(ours, "stages");
        for (size_t s = 0; s < json_array_size(stages); s++) {
            const json_t *stage = json_array_get(stages, s), *range = json_object_get(stage, "layers");
            assert_int_equal(json_integer_value(json_array_get(range, 0)), layers);
            layers = (uint32_t)json_integer_value(json_array_get(range, 1));
            batch = 0;
            for (size_t r = 0; r < json_array_size(json_object_get(stage, "num_microbatches")); r++)
                batch += (uint32_t)json_integer_value(
                    json_array_get(json_object_get(stage, "num_microbatches"), r));
            batch *= (uint32_t)json_integer_value(json_object_get(ours, "microbatch_size"));
            const json_t *inputs = json_object_get(json_array_get(list, i), "inputs");
            assert_int_equal(batch, json_integer_value(json_object_get(inputs, "global_batch_size")));
        }
    }
    json_decref(cases);
    json_decref(lines);
}

struct sailor_group {
    const char *name;
    uint32_t count;
    double error, limit, predicted[64], measured[64];
};

/* Returns Spearman's rank correlation of two lists without equal values. */
static double rank_correlation(const double *a, const double *b, uint32_t count)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        double place = 0;
        for (uint32_t k = 0; k < count; k++)
            place += (a[k] < a[i]) - (b[k] < b[i]);
        sum += place * place;
    }
    return 1 - 6 * sum / (count * ((double)count * count - 1));
}

static void group_add(struct sailor_group *g, double predicted, double measured)
{
    assert_true(g->count < 64);
    g->predicted[g->count] = predicted;
    g->measured[g->count++] = measured;
    g->error += fabs(predicted / measured - 1);
}

/* Required are mean errors of at most 6 % for homogeneous and for mixed plans, 4 % for memory, and a rank
 * correlation of 0.95. Measured: homogeneous 5.4 % (OPT-350 2.0 %; GPT-Neo, to which nothing was fitted, 9.5
 * %, most of it from one step of a single micro-batch), mixed 5.9 %, memory 1.2 %. Three mixed plans are
 * public; in two of them the same RTX-3090 is the slowest stage, and its predicted time is 11 % too long in
 * one and 2 % too short in the other. */
static void sailor_is_predicted_within_six_percent(void **state)
{
    (void)state;
    json_t *cases = load("sailor", "plans.json"), *list = json_object_get(cases, "plans");
    json_t *lines = run("sailor", cases);
    struct sailor_group homogeneous = {.name = "homogeneous", .limit = 0.06},
                        opt = {.name = "OPT-350", .limit = 0.03}, neo = {.name = "GPT-Neo", .limit = 0.1},
                        mixed = {.name = "mixed", .limit = 0.06}, memory = {.name = "memory", .limit = 0.04};
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *line = json_array_get(lines, i), *one = json_array_get(list, i);
        const json_t *measured = json_object_get(one, "measured"), *quality = json_object_get(one, "quality");
        bool is_opt = strcmp(json_string_value(json_object_get(one, "model")), "OPT-350") == 0;
        bool same = json_is_true(json_object_get(one, "homogeneous"));
        if (json_is_true(json_object_get(quality, "time_ok"))) {
            group_add(is_opt ? (same ? &opt : &mixed) : &neo, number(line, "iter_s"),
                      number(measured, "iter_s"));
            if (same)
                group_add(&homogeneous, number(line, "iter_s"), number(measured, "iter_s"));
        }
        if (json_is_true(json_object_get(quality, "memory_ok")))
            group_add(&memory, number(line, "peak_mem_bytes"), number(measured, "peak_mem_bytes"));
    }
    const struct sailor_group *groups[] = {&homogeneous, &opt, &neo, &mixed, &memory};
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        const struct sailor_group *g = groups[i];
        double rank = rank_correlation(g->predicted, g->measured, g->count);
        print_message("%-12s %2u plans: mean error %.1f %%, rank correlation %.3f\n", g->name, g->count,
                      100 * g->error / g->count, rank);
        assert_true(g->error / g->count <= g->limit);
        assert_true(g == &memory || rank >= 0.95);
    }
    json_decref(cases);
    json_decref(lines);
}

/* Beyond 256 micro-batches the importer adds one period for each further micro-batch. That must be the time
 * that each micro-batch adds in a simulated run of fewer. */
static void long_runs_of_sailor_go_on_as_they_began(void **state)
{
    static const int counts[] = {1, 255, 256, 257, 300, 2000, 1 << 20};
    enum { COUNTS = sizeof(counts) / sizeof(counts[0]) };
    (void)state;
    json_t *cases = load("sailor", "plans.json"), *plan;
    size_t i;
    json_array_foreach (json_object_get(cases, "plans"), i, plan) {
        json_t *longer = json_array();
        for (size_t k = 0; k < COUNTS; k++) {
            json_t *one = json_deep_copy(plan);
            json_object_set_new(one, "num_microbatches", json_integer(counts[k]));
            json_array_append_new(longer, one);
        }
        json_t *lines = run("sailor", longer);
        double at[COUNTS];
        for (size_t k = 0; k < COUNTS; k++)
            at[k] = number(json_array_get(lines, k), "iter_s");
        double period = at[2] - at[1];
        assert_true(at[0] > 0 && period > 0 && at[0] + 255 * period >= at[2] * (1 - 1e-9));
        for (size_t k = 3; k < COUNTS; k++)
            assert_true(fabs((at[k] - at[2]) / (counts[k] - 256) / period - 1) < 1e-9);
        json_decref(longer);
        json_decref(lines);
    }
    json_decref(cases);
}

/* Returns the step time of a plan after the profiles of single GPUs for `rows` rows (NULL: all profiles of
 * single GPUs) were removed. */
static double sailor_without_singles(const json_t *plan, const char *rows)
{
    json_t *all = documents("sailor"), *cases = json_pack("[O]", plan), *times, *sizes;
    const char *gpu, *size;
    times = json_object_get(
        json_object_get(json_object_get(json_object_get(all, "profiles.json"), "models"), "OPT-350"),
        "times");
    json_object_foreach (times, gpu, sizes) {
        json_t *profiles;
        json_object_foreach (sizes, size, profiles) {
            if (!rows || strcmp(rows, size) == 0)
                json_object_del(profiles, "1");
        }
    }
    json_t *lines = run_on("sailor", all, cases);
    double seconds = number(json_array_get(lines, 0), "iter_s");
    json_decref(lines);
    json_decref(cases);
    json_decref(all);
    return seconds;
}

static void sailors_stages_wait_for_what_their_ranks_gather(void **state)
{
    (void)state;
    json_t *cases = load("sailor", "plans.json"), *plan;
    size_t i, seen = 0;
    json_array_foreach (json_object_get(cases, "plans"), i, plan) {
        if (strcmp(json_string_value(json_object_get(plan, "model")), "OPT-350") != 0 ||
            json_is_true(json_object_get(plan, "homogeneous")))
            continue;
        double all = sailor_without_singles(plan, "none"), halved = sailor_without_singles(plan, "2"),
               unknown = sailor_without_singles(plan, NULL);
        bool pipeline = number(plan, "pp") > 1;
        assert_true(fabs(halved / all - 1) < 1e-3);
        print_message("%s: %.2f ms a micro-batch\n", json_string_value(json_object_get(plan, "id")),
                      1e3 * (all - unknown) / number(plan, "num_microbatches"));
        /* The all-reduce moves 7/8 of 16.8 MB at less than 6 GB/s, which takes more than 2.4 ms in whichever
         * stage is the slowest. */
        assert_true(pipeline ? all - unknown > 2.4e-3 * number(plan, "num_microbatches") : all == unknown);
        seen += pipeline;
    }
    assert_true(seen > 0);
    json_decref(cases);
}

static void sailor_refused(json_t *one, const char *part)
{
    json_t *cases = json_pack("[o]", one), *lines = run("sailor", cases);
    const char *error = json_string_value(json_object_get(json_array_get(lines, 0), "error"));
    if (!error || !strstr(error, part))
        fail_msg("\"%s\" does not say \"%s\"", error ? error : "accepted", part);
    json_decref(cases);
    json_decref(lines);
}

static void plans_of_sailor_that_contradict_themselves_are_refused_by_path(void **state)
{
    (void)state;
    json_t *cases = load("sailor", "plans.json"), *plan = NULL;
    const json_t *list = json_object_get(cases, "plans");
    for (size_t i = 0; !plan && i < json_array_size(list);
         i++) /* a plan of at least two stages, with two replicas or more */
        plan = json_number_value(json_object_get(json_array_get(list, i), "pp")) >= 2
                   ? json_array_get(list, i)
                   : NULL;
    static const struct {
        const char *key, *value, *part;
    } bad[] = {
        {"pp", "7", "[0].stages"},       {"pp", "0", "[0].pp"},
        {"dp", "3000", "[0].stages[0]"}, {"tp", "3", "profiles.json"},
        {"mbs", "-1", "[0].mbs"},        {"mbs", "3", "profiles.json"},
        {"model", "\"none\"", "none"},   {"num_microbatches", "0", "[0].num_microbatches"},
        {"stages", "[]", "[0].stages"},  {"stages", "[1, 2]", "[0].stages[0]"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        json_error_t why;
        json_t *one = json_deep_copy(plan);
        json_object_set_new(one, bad[i].key, json_loads(bad[i].value, JSON_DECODE_ANY, &why));
        sailor_refused(one, bad[i].part);
    }
    json_t *one = json_deep_copy(plan);
    json_t *stage = json_array_get(json_object_get(one, "stages"), 0);
    json_object_set_new(stage, "layers", json_pack("[i,i]", 5, 5));
    sailor_refused(one, "[0].stages[0]");
    one = json_deep_copy(plan);
    stage = json_array_get(json_object_get(one, "stages"), 1);
    json_int_t begin = json_integer_value(json_array_get(json_object_get(stage, "layers"), 0));
    json_array_set_new(json_object_get(stage, "layers"), 0,
                       json_integer(begin + 1)); /* one layer now belongs to no stage */
    sailor_refused(one, "[0].stages[1].layers");
    one = json_deep_copy(plan);
    stage = json_array_get(json_object_get(one, "stages"), 1);
    json_object_set_new(json_array_get(json_object_get(stage, "replicas"), 0), "gpu", json_string("abacus"));
    sailor_refused(one, "abacus");
    json_decref(cases);
}

/* Changes Zorse's first recorded layout so that it leaves work undone. It must be refused with the path of
 * the wrong value in the document. */
static void layouts_of_zorse_that_leave_work_undone_are_refused(void **state)
{
    (void)state;
    json_t *cases = load("zorse", "cases.json"), *good = NULL, *z = NULL;
    const json_t *list = json_object_get(cases, "cases");
    for (size_t i = 0; !z && i < json_array_size(list); i++) {
        good = json_array_get(list, i);
        z = strcmp(json_string_value(json_object_get(json_object_get(good, "zorse"), "status")), "ok") == 0
                ? json_object_get(good, "zorse")
                : NULL;
    }
    assert_non_null(z);
    static const char *const wanted[] = {NULL, "[0].zorse.stages: they hold",
                                         "[0].zorse.stages[0]:", "[0].microbatches:", "ag_as_used"};
    for (size_t k = 0; k < 5; k++) {
        json_t *one = json_deep_copy(good), *spoilt = json_object_get(one, "zorse");
        json_t *stages = json_object_get(spoilt, "stages");
        json_t *group = json_array_get(json_object_get(spoilt, "groups_in_pipeline_order"), 0);
        if (k == 1)
            json_array_remove(stages, json_array_size(stages) - 1);
        else if (k == 2)
            json_array_set_new(json_object_get(json_array_get(stages, 0), "layers"), 0, json_integer(1));
        else if (k == 3)
            json_array_set_new(json_object_get(group, "microbatches"), 0, json_integer(0));
        else if (k == 4)
            json_object_del(group, "ag_as_used");
        json_t *alone = json_pack("[o]", one), *lines = run("zorse", alone);
        const json_t *line = json_array_get(lines, 0);
        const char *error = json_string_value(json_object_get(line, "error"));
        assert_string_equal(json_string_value(json_object_get(line, "status")), k ? "error" : "ok");
        if (wanted[k] && !strstr(error, wanted[k]))
            fail_msg("\"%s\" does not say \"%s\"", error, wanted[k]);
        json_decref(alone);
        json_decref(lines);
    }
    /* With 15 % of the memory the recorded layout does not fit, and a warning says so. */
    json_t *one = json_deep_copy(good),
           *memory = json_object_get(json_object_get(one, "inputs"), "gpu_memory_gib");
    const char *gpu;
    json_t *size;
    void *next;
    json_object_foreach_safe (memory, next, gpu, size) {
        json_object_set_new(memory, gpu, json_real(0.15 * json_number_value(size)));
    }
    json_t *alone = json_pack("[o]", one), *lines = run("zorse", alone);
    const json_t *line = json_array_get(lines, 0);
    const char *warning = json_string_value(json_array_get(json_object_get(line, "warnings"), 0));
    if (!warning || !strstr(warning, "the recorded layout does not fit"))
        fail_msg("\"%s\" does not say that the record does not fit", warning ? warning : "nothing");
    json_decref(alone);
    json_decref(lines);
    json_decref(cases);
}

static void nonsense_gives_a_line_and_goes_on(void **state)
{
    (void)state;
    json_t *cases = load("cephalo", "cases.json"), *list = json_object_get(cases, "cases");
    json_t *one = json_deep_copy(json_array_get(list, 0));
    json_object_set_new(json_object_get(one, "inputs"), "batch_size", json_integer(-3));
    json_t *two = json_deep_copy(json_array_get(list, 0));
    json_object_set_new(json_object_get(two, "inputs"), "model", json_string("no-such-model"));
    json_t *three = json_deep_copy(json_array_get(list, 0));
    json_object_set_new(json_object_get(three, "inputs"), "batch_size", json_integer(2));
    json_t *spoilt = json_pack("[o,o,o,i]", one, two, three, 7), *lines = run("cephalo", spoilt);
    const char *wanted[] = {"[0].inputs.batch_size", "model_latencies.json", NULL, "[3]: must be an object"};
    for (size_t i = 0; i < 4; i++) {
        const json_t *line = json_array_get(lines, i);
        const char *status = json_string_value(json_object_get(line, "status"));
        assert_string_equal(status, wanted[i] ? "error" : "infeasible");
        if (wanted[i])
            assert_non_null(strstr(json_string_value(json_object_get(line, "error")), wanted[i]));
    }
    json_decref(spoilt);
    json_decref(lines);
    json_decref(cases);
}

static json_t *curve_of(json_t *all, const char *model, const char *gpu, const char *length)
{
    json_t *entry =
        json_object_get(json_object_get(json_object_get(all, "model_latencies.json"), model), gpu);
    return json_object_get(entry, length);
}

/* Runs the first case and checks that its first warning, or its error, contains the words (NULL: that there
 * is none). */
static void told(const json_t *all, const json_t *cases, const char *key, const char *words)
{
    json_t *lines = run_on("cephalo", all, cases);
    const json_t *value = json_object_get(json_array_get(lines, 0), key);
    const char *text = json_string_value(json_is_array(value) ? json_array_get(value, 0) : value);
    if (words ? !text || !strstr(text, words) : text != NULL)
        fail_msg("\"%s\", not \"%s\"", text ? text : "nothing", words ? words : "nothing");
    json_decref(lines);
}

static void tables_in_other_units_and_falling_ones_are_warned_of_and_holes_refused(void **state)
{
    (void)state;
    json_t *public = load("cephalo", "cases.json");
    json_t *cases = json_pack("[O]", json_array_get(json_object_get(public, "cases"), 0));
    const double factors[] = {1, 1e3, 1e-3};
    for (size_t k = 0; k < 3; k++) {
        json_t *all = documents("cephalo");
        json_t *entry = json_object_get(curve_of(all, "deepspeedgpt_2.7b", "l4", "512"), "float16");
        for (size_t part = 0; part < json_array_size(entry); part++) {
            json_t *numbers = json_array_get(entry, part);
            for (size_t i = 0; i < json_array_size(numbers); i++)
                json_array_set_new(numbers, i,
                                   json_real(factors[k] * json_number_value(json_array_get(numbers, i))));
        }
        told(all, cases, "warnings", k ? "deepspeedgpt_2.7b.l4.512.float16: forward would be" : NULL);
        json_decref(all);
    }
    json_t *all = documents("cephalo"), *curve = curve_of(all, "deepspeedgpt_2.7b", "l4", "512");
    json_object_set_new(curve, "float16",
                        json_pack("[[f,f],[f,f],[f,f],[f,f]]", 7.0, 1.0, 11.0, 5.0, 9.0, 8.0, 16.0, 27.0));
    told(all, cases, "warnings", "forward of a batch of 2 takes 8 ms, of a smaller one 9 ms");
    json_object_set_new(curve, "float16",
                        json_pack("[[f,f],[f,f],[f,f],[f]]", 7.0, 1.0, 11.0, 5.0, 8.0, 15.0, 16.0));
    told(all, cases, "error", "one of the tables has a hole");
    json_decref(all);
    json_decref(cases);
    json_decref(public);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cephalo_is_matched_and_solved_exactly),
        cmocka_unit_test(cephalo_plans_64_gpus_in_milliseconds),
        cmocka_unit_test(zorse_is_matched_and_beaten_in_true_units),
        cmocka_unit_test(sailor_is_predicted_within_six_percent),
        cmocka_unit_test(sailors_stages_wait_for_what_their_ranks_gather),
        cmocka_unit_test(long_runs_of_sailor_go_on_as_they_began),
        cmocka_unit_test(plans_of_sailor_that_contradict_themselves_are_refused_by_path),
        cmocka_unit_test(layouts_of_zorse_that_leave_work_undone_are_refused),
        cmocka_unit_test(nonsense_gives_a_line_and_goes_on),
        cmocka_unit_test(tables_in_other_units_and_falling_ones_are_warned_of_and_holes_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
