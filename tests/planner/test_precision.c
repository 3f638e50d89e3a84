/* What a job without train.compute is computed in, and at what rate cards are taken to compute it. */
#include "planner/plan_fixture.h"

#include "common/buf.h"
#include "common/file.h"
#include "planner/given/catalogue.h"
#include "planner/given/inputs.h"

#include <math.h>

#define SEEDS 10u

static const enum workload_compute precisions[] = {COMPUTE_FP32, COMPUTE_BF16, COMPUTE_FP16};

static struct cluster *cluster_of(const char *const *likes, uint32_t count)
{
    struct err err = {0};
    json_t *nodes = json_array();
    for (uint32_t i = 0; i < count; i++) {
        char node[16], name[24];
        snprintf(node, sizeof(node), "n%u", i / 2);
        snprintf(name, sizeof(name), "n%u/%u", i / 2, i % 2);
        json_t *device = json_pack("{s:s, s:s}", "name", name, "like", likes[i]);
        if (i % 2 == 0)
            json_array_append_new(nodes, json_pack("{s:s, s:[]}", "name", node, "devices"));
        json_array_append_new(json_object_get(json_array_get(nodes, i / 2), "devices"), device);
    }
    json_t *file = json_pack("{s:o, s:{s:{s:f, s:f}}}", "nodes", nodes, "links", "between", "latency_s", 1e-4,
                             "bytes_per_s", 1.2e9);
    struct cluster *cluster = cluster_from_json(file, &err);
    if (!cluster)
        fail_msg("%s", err.text);
    json_decref(file);
    return cluster;
}

/* Plans in one precision, or in any (−1), and returns what was planned in. */
static struct plan_answer *planned(const struct workload *w, const struct cluster *cluster, int compute,
                                   struct workload *as)
{
    struct err err = {0};
    struct plan_answer *answer = NULL;
    const struct plan_options options = {.programs = true};
    *as = *w;
    as->boundary_open = true;
    as->compute_open = compute < 0;
    if (compute >= 0)
        workload_compute_set(as, (enum workload_compute)compute);
    if (plan_search(as, cluster, &options, &answer, &err) < 0)
        fail_msg("%s", err.text);
    assert_false(as->compute_open);
    return answer;
}

/* On random cards the plan is at most 1.02 times as long as the best one in a precision that was asked for,
 * and in 16 bits where a card of the plan multiplies these. */
static void the_precision_chosen_is_the_best_one_asked_for(void **state)
{
    static const char *const cards[] = {
        "rtx-4090", "rtx-3090", "rtx-2080ti", "rtx-2070", "t4",         "v100",    "a100x40", "gtx-1080ti",
        "titan-xp", "p40",      "l4",         "rtx-3060", "rx-7900xtx", "rx-6800", "h100",    "cpu"};
    uint32_t chosen[3] = {0};
    double worst = 0;
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct rand_stream r;
        const char *likes[4];
        rand_stream_init(&r, seed, 52);
        const uint32_t count = 1 + rand_stream_below(&r, 4);
        bool fast = false;
        for (uint32_t i = 0; i < count; i++) {
            likes[i] = cards[rand_stream_below(&r, sizeof(cards) / sizeof(*cards))];
            fast |= catalogue_fastest(catalogue_find(likes[i])) != COMPUTE_FP32;
        }
        struct model_config config = fixture_config(4 + 4 * (seed % 3));
        struct workload w = fixture_workload(&config, 64, 64), as, ignored;
        struct cluster *cluster = cluster_of(likes, count);
        struct plan_answer *answer = planned(&w, cluster, -1, &as);
        double best = INFINITY, fp32_s = 0;
        for (int i = 0; i < 3; i++) {
            struct plan_answer *asked = planned(&w, cluster, precisions[i], &ignored);
            best = fmin(best, asked->step_s);
            fp32_s = precisions[i] == COMPUTE_FP32 ? asked->step_s : fp32_s;
            if (precisions[i] == as.compute)
                assert_string_equal(asked->plan->digest, answer->plan->digest);
            plan_answer_destroy(asked);
        }
        assert_int_equal(answer->plan->compute, (enum plan_dtype)as.compute);
        if (answer->step_s > 1.02 * best || (!fast && as.compute != COMPUTE_FP32))
            fail_msg("seed %llu: %s in %s takes %g s, and %g s is possible", (unsigned long long)seed,
                     likes[0], plan_dtype_name(answer->plan->compute), answer->step_s, best);
        assert_int_equal(as.fp32_times > 0, as.compute != COMPUTE_FP32);
        if (as.fp32_times > 0 && fabs(as.fp32_times * answer->step_s / fp32_s - 1) > 0.15)
            fail_msg("seed %llu: fp32 is said to take %.2f times as long as %g s, and takes %g s",
                     (unsigned long long)seed, as.fp32_times, answer->step_s, fp32_s);
        assert_int_equal(strstr(answer->words, "fp32 would take") != NULL, as.compute != COMPUTE_FP32);
        chosen[as.compute]++;
        worst = fmax(worst, answer->step_s / best);
        plan_answer_destroy(answer);
        cluster_destroy(cluster);
        workload_fini(&w);
    }
    print_message("fp32 %u, bf16 %u, fp16 %u times; %.4f of the best at worst\n", chosen[0], chosen[1],
                  chosen[2], worst);
    assert_true(chosen[COMPUTE_BF16] > 0 && chosen[COMPUTE_FP16] > 0);
}

/* Where price is what counts, fp32 is compared by price: its cheapest plan is on the other card. */
static void what_fp32_would_cost_is_said_of_its_cheapest_plan(void **state)
{
    const struct cluster_device cards[] = {
        {.name = "a/0", .node = "a", .kind = "cuda", .like = "p40", .price_per_hour = 0.2},
        {.name = "a/1", .node = "a", .kind = "cuda", .like = "h100", .price_per_hour = 2}};
    struct err err = {0};
    struct model_config config = fixture_config(8);
    struct workload w = fixture_workload(&config, 64, 64), as, ignored;
    struct cluster *cluster = cluster_create(&err);
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        struct cluster_device card = cards[i];
        card.memory_limit_bytes = (uint64_t)16 << 30;
        card.speed = card.heat = 1;
        assert_int_equal(cluster_add_device(cluster, &card, &err), 0);
    }
    w.objective = OBJECTIVE_COST;
    struct plan_answer *any = planned(&w, cluster, -1, &as);
    struct plan_answer *asked = planned(&w, cluster, COMPUTE_FP32, &ignored);
    print_message("%s\n%s\n", any->words, asked->words);
    assert_int_not_equal(as.compute, COMPUTE_FP32);
    assert_true(fabs(asked->cost_per_million_tokens / any->cost_per_million_tokens / as.fp32_times - 1) <
                0.15);
    assert_true(fabs(asked->step_s / any->step_s / as.fp32_times - 1) > 0.5);
    assert_non_null(strstr(any->words, "fp32 would cost"));
    plan_answer_destroy(any);
    plan_answer_destroy(asked);
    cluster_destroy(cluster);
    workload_fini(&w);
}

/* A CPU gains nothing by 16 bits, so a plan on CPUs is the one that asks for fp32, to the digest. */
static void cpus_alone_compute_in_fp32(void **state)
{
    static const char *const likes[] = {"cpu-avx2", "cpu-amx", "cpu-avx512-bf16"};
    struct model_config config = fixture_config(6);
    struct workload w = fixture_workload(&config, 40, 16), as, ignored;
    struct cluster *cluster = cluster_of(likes, 3);
    struct plan_answer *any = planned(&w, cluster, -1, &as);
    struct plan_answer *asked = planned(&w, cluster, COMPUTE_FP32, &ignored);
    (void)state;
    assert_int_equal(as.compute, COMPUTE_FP32);
    assert_string_equal(any->plan->digest, asked->plan->digest);
    assert_int_equal(any->evaluations, asked->evaluations);
    assert_string_equal(any->words, asked->words);
    plan_answer_destroy(any);
    plan_answer_destroy(asked);
    cluster_destroy(cluster);
    workload_fini(&w);
}

/* Where 16 bits are what makes a model fit, the answer says so. */
static void what_fits_in_16_bits_alone_is_planned_in_16_bits(void **state)
{
    struct model_config config = fixture_config(30);
    struct workload w = fixture_workload(&config, 40, 8), as;
    (void)state;
    w.sequence_tokens = 1024;
    for (uint32_t i = 0; i < w.row_count; i++)
        w.rows[i] = (struct workload_row){.tokens = 1024, .labelled = 1000};
    for (uint64_t mib = 300; mib < 3000; mib += mib / 50) {
        struct workload ignored;
        struct err err = {0};
        struct cluster *small = cluster_create(&err);
        struct cluster_device device = {
            .name = "a/0", .node = "a", .kind = "cuda", .like = "rtx-3060", .memory_limit_bytes = mib << 20};
        assert_int_equal(cluster_add_device(small, &device, &err), 0);
        struct plan_answer *full = planned(&w, small, COMPUTE_FP32, &ignored);
        struct plan_answer *any = planned(&w, small, -1, &as);
        const bool found = !full->plan && any->plan;
        if (found) {
            assert_int_equal(as.compute, COMPUTE_BF16);
            assert_non_null(strstr(any->words, "computed in bf16; in fp32 nothing fits"));
        }
        assert_true(any->plan || !full->plan);
        const bool fits = full->plan != NULL;
        plan_answer_destroy(full);
        plan_answer_destroy(any);
        cluster_destroy(small);
        if (found || fits) {
            assert_true(found);
            workload_fini(&w);
            return;
        }
    }
    fail_msg("nothing fits");
}

/* Returns the 16-bit formats that the kernels for this architecture multiply by matrix units, as
 * cmake/gpu_code.cmake compiles them: the last PTX that is not above it. */
static const char *units_of(const char *targets, long arch)
{
    static char units[32];
    units[0] = '\0';
    for (const char *at = targets; (at = strstr(at, "cuda:sm_")); at++) {
        long sm = 0;
        char form[16], matrix[32];
        if (sscanf(at, "cuda:sm_%ld:%15[^:]:%31[^ \n)]", &sm, form, matrix) == 3 && sm <= arch)
            snprintf(units, sizeof(units), "%s", matrix);
    }
    return units;
}

/* A card without bfloat16 products is priced in bf16 as the engine computes there: operands are rounded and
 * multiplied in fp32. In fp16 it has its 16-bit rate through our kernels (from sm_75 on), or, on older cards,
 * through cuBLAS. */
static void cards_are_priced_in_a_precision_as_the_engine_computes_it(void **state)
{
    size_t count;
    uint32_t turing = 0, later = 0;
    struct err err = {0};
    const struct catalogue_entry *entries = catalogue_entries(&count);
    struct buf text;
    buf_init(&text, 1 << 20);
    (void)state;
    if (file_read_all(MOTLEY_TEST_DATA "/../../cmake/gpu_code.cmake", 1 << 20, &text, &err) < 0)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < count; i++) {
        const struct catalogue_entry *e = &entries[i];
        const double full = e->flops_fp32 * e->efficiency, half = e->flops_16 * e->efficiency_16;
        const bool has_units = e->flops_16 > e->flops_fp32;
        assert_true(catalogue_rate(e, COMPUTE_FP32) == full);
        if (strcmp(e->kind, "cpu") == 0)
            assert_true(catalogue_rate(e, COMPUTE_BF16) == full && catalogue_rate(e, COMPUTE_FP16) == full);
        if (strcmp(e->kind, "cuda") != 0)
            continue;
        const char *units = units_of(buf_str(&text), strtol(e->arch + 3, NULL, 10));
        const bool bf16 = has_units && strstr(units, "bf16");
        if (catalogue_rate(e, COMPUTE_BF16) != (bf16 ? half : full) ||
            catalogue_rate(e, COMPUTE_FP16) != (has_units ? half : full))
            fail_msg("%s: bf16 at %g, fp16 at %g FLOP/s; kernels multiply %s", e->name,
                     catalogue_rate(e, COMPUTE_BF16), catalogue_rate(e, COMPUTE_FP16), units);
        turing += has_units && strcmp(units, "f16") == 0;
        later += bf16;
    }
    buf_fini(&text);
    assert_int_equal(catalogue_fastest(catalogue_find("rtx-2080ti")), COMPUTE_FP16);
    assert_int_equal(catalogue_fastest(catalogue_find("rtx-3090")), COMPUTE_BF16);
    assert_int_equal(catalogue_fastest(catalogue_find("gtx-1080ti")), COMPUTE_FP32);
    assert_int_equal(catalogue_fastest(NULL), COMPUTE_FP32);
    assert_true(turing > 5 && later > 20);
}

/* Times that were measured in one precision are converted to another by the catalogue, as estimates. */
static void measured_times_are_converted_between_precisions(void **state)
{
    const struct catalogue_entry *card = catalogue_find("rtx-2080ti");
    const double ratio = catalogue_rate(card, COMPUTE_FP16) / catalogue_rate(card, COMPUTE_FP32);
    static const char *const words[] = {"fp32", "bf16", "fp16"};
    struct model_config config = fixture_config(6);
    double step_s[3][3]; /* [measured in][planned in] */
    (void)state;
    for (int in = 0; in < 3; in++) {
        for (int as = 0; as < 3; as++) {
            struct workload w = fixture_workload(&config, 40, 8), ignored;
            struct err err = {0};
            struct cluster *cluster = cluster_create(&err);
            struct cluster_device device = {.name = "a/0",
                                            .node = "a",
                                            .kind = "cuda",
                                            .like = "rtx-2080ti",
                                            .memory_limit_bytes = 8ull << 30};
            json_t *points = json_array();
            assert_int_equal(cluster_add_device(cluster, &device, &err), 0);
            for (int tokens = 32; tokens <= 1024; tokens *= 2)
                for (int head = 0; head < 2; head++)
                    json_array_append_new(points,
                                          json_pack("{s:s,s:i,s:i,s:i,s:f,s:f,s:f,s:f}", "block",
                                                    head ? "head" : "layer", "rows", 1, "tokens", tokens,
                                                    "labelled", tokens / 2, "sum_sq", (double)tokens * tokens,
                                                    "forward_s", 1e-4 * tokens, "backward_s", 1e-4 * tokens,
                                                    "recompute_s", 1e-4 * tokens));
            json_t *profile =
                json_pack("{s:s, s:s, s:o}", "device", "a/0", "compute", words[in], "points", points);
            assert_int_equal(cluster_add_profile(cluster, profile, &err), 0);
            w.micro_batch_rows = 4;
            w.recompute = RECOMPUTE_NO;
            struct plan_answer *answer = planned(&w, cluster, as, &ignored);
            const struct plan_costs *costs = &answer->plan->costs;
            step_s[in][as] = answer->step_s;
            assert_true((costs->share_measured > 0.99) == ((in == COMPUTE_FP16) == (as == COMPUTE_FP16)));
            assert_true((answer->uncertainty > 0) == (costs->share_estimated > 0.99));
            plan_answer_destroy(answer);
            cluster_destroy(cluster);
            workload_fini(&w);
            json_decref(profile);
        }
    }
    assert_true(fabs(step_s[COMPUTE_FP32][COMPUTE_FP32] / step_s[COMPUTE_FP32][COMPUTE_FP16] / ratio - 1) <
                1e-9);
    assert_true(fabs(step_s[COMPUTE_FP16][COMPUTE_FP32] / step_s[COMPUTE_FP16][COMPUTE_FP16] / ratio - 1) <
                1e-9);
    assert_true(step_s[COMPUTE_FP32][COMPUTE_FP32] == step_s[COMPUTE_FP16][COMPUTE_FP16]);
    assert_true(step_s[COMPUTE_BF16][COMPUTE_BF16] == step_s[COMPUTE_BF16][COMPUTE_FP32]);
}

/* A job that ran is planned again in what it ran in, a plan given in what that says, and what a job asks for
 * comes before both. */
static void what_was_decided_stays(void **state)
{
    static const struct {
        const char *compute, *before, *plan;
        int open;
        enum workload_compute want;
        enum plan_dtype boundary;
    } cases[] = {{NULL, NULL, NULL, true, COMPUTE_FP32, PLAN_F32},
                 {"auto", NULL, NULL, true, COMPUTE_FP32, PLAN_F32},
                 {NULL, "fp16", NULL, false, COMPUTE_FP16, PLAN_F16},
                 {NULL, "fp32", NULL, false, COMPUTE_FP32, PLAN_F32},
                 {"bf16", "fp16", NULL, false, COMPUTE_BF16, PLAN_BF16},
                 {NULL, NULL, "{\"compute\": \"bf16\"}", false, COMPUTE_BF16, PLAN_BF16},
                 {NULL, NULL, "{\"plan\": {\"compute\": \"bf16\"}}", false, COMPUTE_BF16, PLAN_BF16},
                 {NULL, NULL, "{\"ranks\": []}", false, COMPUTE_FP32, PLAN_F32},
                 {"fp32", NULL, "{\"compute\": \"bf16\"}", false, COMPUTE_FP32, PLAN_F32},
                 {NULL, "fp8", NULL, -1, COMPUTE_FP32, PLAN_F32},
                 {NULL, NULL, "{\"compute\": \"fp8\"}", -1, COMPUTE_FP32, PLAN_F32}};
    struct model_config config = fixture_config(4);
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct job_spec spec;
        struct workload w;
        struct err err = {0};
        json_t *train = json_object(),
               *document = json_pack("{s:s, s:{s:s}}", "model", "m", "data", "train", "t");
        if (cases[i].compute)
            json_object_set_new(train, "compute", json_string(cases[i].compute));
        json_object_set_new(document, "train", train);
        if (cases[i].plan)
            json_object_set_new(document, "placement",
                                json_pack("{s:o}", "plan", json_loads(cases[i].plan, 0, NULL)));
        if (spec_parse(document, &spec, &err) < 0)
            fail_msg("%s", err.text);
        const int rc =
            workload_from_spec(&spec, &config, &(struct plan_rows){.compute = cases[i].before}, &w, &err);
        assert_int_equal(rc, cases[i].open < 0 ? -1 : 0);
        if (rc < 0) {
            assert_non_null(strstr(err.text, cases[i].before ? "inputs.compute" : "placement.plan"));
        } else {
            assert_int_equal(w.compute_open, cases[i].open);
            assert_int_equal(w.compute, cases[i].want);
            assert_int_equal(w.boundary, cases[i].boundary);
            workload_fini(&w);
        }
        spec_fini(&spec);
        json_decref(document);
    }
}

/* A plan says what it is computed in, as a document too, and a search from it computes in the same. */
static void a_plan_says_what_it_is_computed_in(void **state)
{
    static const char *const likes[] = {"rtx-2080ti", "t4"};
    struct err err = {0};
    struct model_config config = fixture_config(6);
    struct workload w = fixture_workload(&config, 40, 16), as;
    struct cluster *cluster = cluster_of(likes, 2);
    struct plan_answer *answer = planned(&w, cluster, COMPUTE_FP32, &as), *again = NULL;
    json_t *document = plan_to_json(answer->plan, &err);
    (void)state;
    assert_null(json_object_get(document, "compute"));
    json_decref(document);
    plan_answer_destroy(answer);
    answer = planned(&w, cluster, COMPUTE_BF16, &as);
    document = plan_to_json(answer->plan, &err);
    assert_string_equal(json_string_value(json_object_get(document, "compute")), "bf16");
    struct plan *read = plan_from_json(document, &err);
    assert_non_null(read);
    assert_int_equal(read->compute, PLAN_BF16);
    struct plan_options options = {.programs = true, .from = read};
    as.compute_open = true;
    assert_int_equal(plan_search(&as, cluster, &options, &again, &err), 0);
    assert_int_equal(as.compute, COMPUTE_BF16); /* although fp16 is several times as fast here */
    assert_int_equal(again->plan->compute, PLAN_BF16);
    plan_answer_destroy(again);
    plan_answer_destroy(answer);
    plan_destroy(read);
    json_decref(document);
    cluster_destroy(cluster);
    workload_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_precision_chosen_is_the_best_one_asked_for),
        cmocka_unit_test(what_fp32_would_cost_is_said_of_its_cheapest_plan),
        cmocka_unit_test(cpus_alone_compute_in_fp32),
        cmocka_unit_test(what_fits_in_16_bits_alone_is_planned_in_16_bits),
        cmocka_unit_test(cards_are_priced_in_a_precision_as_the_engine_computes_it),
        cmocka_unit_test(measured_times_are_converted_between_precisions),
        cmocka_unit_test(what_was_decided_stays),
        cmocka_unit_test(a_plan_says_what_it_is_computed_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
