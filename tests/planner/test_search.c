/* Tests what every answer of the search promises, on random clusters of 1 to 24 devices, dense models and
 * mixtures of experts, adapters and full fine-tuning, scarce and ample memory. The plan fits, the checker
 * accepts it, and simulating it again gives the stated step time, which is neither below the lower bound nor
 * above the time of any single device. The same question gives the same plan; names and order of devices do
 * not matter; the budget is kept; one device takes its best micro-batch size. MOTLEY_LONG runs 600 clusters;
 * MOTLEY_SEED is the first seed and MOTLEY_CASES the number of clusters. */
#include "planner/expert_fixture.h"

#include <math.h>
#include <time.h>

#define MIB ((uint64_t)1 << 20)
#define DEVICES_MOST 24u
#define EVALUATIONS 3000u /* A short search's budget; its promises are the same as a long one's. */
#define SAME 1e-9

struct scene {
    struct model_config config;
    struct workload workload;
    uint32_t devices, per_node;
    uint64_t memory[DEVICES_MOST];
    double speed[DEVICES_MOST], rate[DEVICES_MOST];
};

static void scene_init(struct scene *s, uint64_t seed)
{
    struct rand_stream r;
    rand_stream_init(&r, seed, 31);
    bool mixture = rand_stream_below(&r, 4) == 0, large = rand_stream_below(&r, 4) == 0;
    *s = (struct scene){.devices = 1 + rand_stream_below(&r, large ? DEVICES_MOST : 6),
                        .per_node = 1 + rand_stream_below(&r, 4)};
    uint32_t layers = 2 + rand_stream_below(&r, 11);
    s->config = mixture ? expert_config(layers, 4 + rand_stream_below(&r, 5), 2) : fixture_config(layers);
    s->config.vocab = 2048;
    s->config.tied = !mixture && rand_stream_below(&r, 2);
    s->workload = fixture_workload(&s->config, 64, 2 + rand_stream_below(&r, 31));
    s->workload.config = &s->config;
    bool full = rand_stream_below(&r, 3) == 0;
    s->workload.method = full ? METHOD_FULL : METHOD_LORA;
    s->workload.epochs = 0;
    s->workload.steps = 3;
    s->workload.seed = seed;
    /* The approximate memory of the model on one device. With `tight`, several devices are needed. */
    double whole =
        (full ? 18 : 4) * (layers * (mixture ? 1.5e6 : 3.6e6) + 576.0 * s->config.vocab) + 30 * (double)MIB;
    double least = rand_stream_below(&r, 2) ? 1.2 : 0.25;
    for (uint32_t d = 0; d < s->devices; d++) {
        s->memory[d] = (uint64_t)(whole * (least + rand_stream_unit(&r)));
        s->speed[d] = pow(10, -0.7 + 1.2 * rand_stream_unit(&r));
        s->rate[d] = 1e7 * pow(10, 2.5 * rand_stream_unit(&r));
    }
}

/* Turn 0 keeps the devices' names and order; other turns change both. */
static struct cluster *cluster_of(const struct scene *s, uint64_t turn)
{
    struct err err = {0};
    struct rand_stream r;
    struct cluster *cluster = cluster_create(&err);
    uint32_t order[DEVICES_MOST], nodes = (s->devices - 1) / s->per_node + 1;
    rand_stream_init(&r, turn, 32);
    for (uint32_t i = 0; i < s->devices; i++) {
        uint32_t other = turn ? rand_stream_below(&r, i + 1) : i;
        order[i] = order[other];
        order[other] = i;
    }
    for (uint32_t i = 0; i < s->devices; i++) {
        uint32_t d = order[i];
        char name[40], node[16];
        snprintf(node, sizeof(node), "%s%u", turn ? "x" : "n", (d / s->per_node * 7 + (uint32_t)turn) % 29);
        snprintf(name, sizeof(name), "%s/%u", node, turn ? 90 - d : d);
        fixture_device(cluster, name, node, s->memory[d], s->speed[d]);
    }
    for (uint32_t k = 0; k < nodes; k++) {
        uint32_t n = turn ? nodes - 1 - k : k;
        char from[16], to[16];
        snprintf(from, sizeof(from), "%s%u", turn ? "x" : "n", (n * 7 + (uint32_t)turn) % 29);
        snprintf(to, sizeof(to), "%s%u", turn ? "x" : "n", ((n + 1) % nodes * 7 + (uint32_t)turn) % 29);
        if (nodes > 1)
            fixture_link(cluster, from, to, 1e-4, s->rate[n]);
    }
    assert_int_equal(cluster_set_defaults(cluster, 1e-5, 1e10, 2e-4, 1e8, &err), 0);
    return cluster;
}

static struct plan_answer *asked(const struct scene *s, uint64_t turn, uint64_t evaluations, uint64_t seed)
{
    struct err err = {0};
    struct plan_options options = {.programs = true, .brief = true, .evaluations = evaluations};
    struct plan_answer *answer = NULL;
    struct cluster *cluster = cluster_of(s, turn);
    if (plan_search((struct workload[]){s->workload}, cluster, &options, &answer, &err) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
    cluster_destroy(cluster);
    return answer;
}

/* Returns the step's seconds on the fastest single device, or INFINITY when none fits. */
static double alone(const struct scene *s, uint64_t seed)
{
    struct scene one = *s;
    one.workload.place = PLACE_SINGLE;
    struct plan_answer *answer = asked(&one, 0, EVALUATIONS, seed);
    double seconds = answer->plan ? answer->step_s : INFINITY;
    plan_answer_destroy(answer);
    return seconds;
}

static void answer_right(const struct scene *s, const struct plan_answer *answer, uint64_t seed)
{
    struct err err = {0};
    struct problem problem;
    double seconds = 0;
    const struct plan *plan = answer->plan;
    struct cluster *cluster = cluster_of(s, 0);
    if (plan_check(plan, &err) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
    for (uint32_t r = 0; r < plan->rank_count; r++)
        assert_true(plan->ranks[r].memory_bytes <= plan->ranks[r].memory_limit_bytes);
    json_t *json = plan_to_json(plan, &err);
    struct plan *copy = plan_from_json(json, &err);
    if (!copy || problem_init(&problem, &s->workload, cluster, &err) < 0 ||
        price_plan(&problem, copy, problem.step_count, &seconds, &err) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
    if (fabs(seconds / answer->step_s - 1) > SAME)
        fail_msg("seed %llu: %.9g s answered, %.9g s simulated", (unsigned long long)seed, answer->step_s,
                 seconds);
    if (answer->step_s < answer->lower_bound_s * (1 - SAME))
        fail_msg("seed %llu: %.9g s, and the bound is %.9g s", (unsigned long long)seed, answer->step_s,
                 answer->lower_bound_s);
    plan_destroy(copy);
    json_decref(json);
    problem_fini(&problem);
    cluster_destroy(cluster);
}

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void every_answer_is_what_it_says(void **state)
{
    (void)state;
    uint64_t first = number_of("MOTLEY_SEED", 1);
    uint64_t count = number_of("MOTLEY_CASES", getenv("MOTLEY_LONG") ? 600 : 24);
    uint32_t fits = 0, several = 0, by_place[PLACE_COUNT] = {0};
    for (uint64_t seed = first; seed < first + count; seed++) {
        struct scene s;
        scene_init(&s, seed);
        struct plan_answer *answer = asked(&s, 0, EVALUATIONS, seed),
                           *again = asked(&s, 0, EVALUATIONS, seed),
                           *renamed = asked(&s, 1 + seed % 5, EVALUATIONS, seed);
        double single = alone(&s, seed);
        assert_int_equal(answer->plan != NULL, again->plan != NULL);
        assert_int_equal(answer->plan != NULL, renamed->plan != NULL);
        assert_true(answer->plan || single == INFINITY);
        if (answer->plan) {
            answer_right(&s, answer, seed);
            assert_memory_equal(answer->plan->digest, again->plan->digest, sizeof(answer->plan->digest));
            if (answer->step_s != renamed->step_s)
                fail_msg("seed %llu: %.9g s, by other names %.9g s", (unsigned long long)seed, answer->step_s,
                         renamed->step_s);
            if (answer->step_s > single * (1 + SAME))
                fail_msg("seed %llu: %.9g s, a device alone takes %.9g s", (unsigned long long)seed,
                         answer->step_s, single);
            fits++;
            several += answer->plan->rank_count > 1;
            by_place[answer->plan->placement]++;
        }
        plan_answer_destroy(answer);
        plan_answer_destroy(again);
        plan_answer_destroy(renamed);
        workload_fini(&s.workload);
    }
    print_message("%u of %llu fit, %u on several devices:", fits, (unsigned long long)count, several);
    for (int k = 0; k < PLACE_COUNT; k++)
        print_message(" %u %s", by_place[k], plan_placement_name((enum plan_placement)k));
    print_message("\n");
    assert_true(count < 10 || (fits > count / 2 && several > fits / 3));
}

/* Every placement.schedule can be requested where memory suffices, and the answer's plan has it. */
static void a_pipeline_has_the_order_that_is_asked_for(void **state)
{
    (void)state;
    uint32_t found = 0;
    for (uint64_t seed = 200; seed < 210; seed++) {
        struct scene s;
        scene_init(&s, seed);
        s.workload.place = PLACE_PIPELINE;
        for (uint32_t d = 0; d < s.devices; d++)
            s.memory[d] *= 4;
        struct plan_answer *any = asked(&s, 0, EVALUATIONS, seed);
        for (uint32_t order = 1; order <= SCHEDULE_COUNT && any->plan; order++) {
            s.workload.order = order;
            struct plan_answer *answer = asked(&s, 0, EVALUATIONS, seed);
            bool one = answer->plan && answer->plan->micro_batch_count ==
                                           1; /* With one micro-batch, GPipe and 1F1B are the same. */
            if (answer->plan && answer->plan->schedule != order - 1 && !one)
                fail_msg("seed %llu: %s asked for, %s found", (unsigned long long)seed,
                         plan_schedule_name((enum plan_schedule)(order - 1)),
                         plan_schedule_name(answer->plan->schedule));
            if (answer->plan)
                answer_right(&s, answer, seed);
            else
                print_message("seed %llu: no %s\n", (unsigned long long)seed,
                              plan_schedule_name((enum plan_schedule)(order - 1)));
            found += answer->plan != NULL;
            plan_answer_destroy(answer);
        }
        plan_answer_destroy(any);
        workload_fini(&s.workload);
    }
    print_message("%u plans of an order asked for\n", found);
    assert_true(found >= 20);
}

/* A tenth of the evaluations takes less time. The budget is exceeded only by the evaluation that is under way
 * when it ends. */
static void the_budget_is_kept(void **state)
{
    (void)state;
    static const uint64_t budgets[] = {500, 2000, 8000};
    double seconds[3] = {0};
    for (uint64_t seed = 100; seed < 106; seed++) {
        struct scene s;
        scene_init(&s, seed);
        for (int i = 0; i < 3; i++) {
            clock_t began = clock();
            struct plan_answer *answer = asked(&s, 0, budgets[i], seed);
            seconds[i] += (double)(clock() - began) / CLOCKS_PER_SEC;
            if (answer->evaluations > 2 * budgets[i])
                fail_msg("seed %llu: %llu evaluations of %llu", (unsigned long long)seed,
                         (unsigned long long)answer->evaluations, (unsigned long long)budgets[i]);
            plan_answer_destroy(answer);
        }
        workload_fini(&s.workload);
    }
    print_message("6 searches of 500, 2000 and 8000 evaluations: %.2f, %.2f and %.2f s\n", seconds[0],
                  seconds[1], seconds[2]);
    assert_true(seconds[0] < seconds[2]);
}

/* A device whose profile says that layers of at least a random number of tokens take 2 to 8 times as long
 * for a token, as where the threads of a busy machine wait for each other. */
static struct cluster *cluster_that_jumps(uint64_t seed)
{
    struct err err = {0};
    struct rand_stream r;
    rand_stream_init(&r, seed, 33);
    const int least = 32 << rand_stream_below(&r, 4);
    const double factor = 2 + 6 * rand_stream_unit(&r);
    struct cluster *cluster = cluster_create(&err);
    const struct cluster_device device = {.name = "n/0", .node = "n", .memory_limit_bytes = 4096 * MIB};
    assert_int_equal(cluster_add_device(cluster, &device, &err), 0);
    json_t *points = json_array();
    for (int tokens = 32; tokens <= 2048; tokens *= 2) {
        const double layer = (2e-4 + 8e-5 * tokens) * (tokens >= least ? factor : 1);
        json_array_append_new(points, json_pack("{s:s,s:i,s:i,s:i,s:f,s:f,s:f}", "block", "layer", "rows", 1,
                                                "tokens", tokens, "labelled", tokens / 2, "sum_sq",
                                                (double)tokens * tokens, "forward_s", layer, "backward_s",
                                                (0.8 + rand_stream_unit(&r)) * layer));
    }
    json_array_append_new(points, json_pack("{s:s,s:i,s:i,s:i,s:f,s:f,s:f}", "block", "head", "rows", 1,
                                            "tokens", 2048, "labelled", 1024, "sum_sq", 2048. * 2048,
                                            "forward_s", 1e-3, "backward_s", 1e-3));
    json_t *profile =
        json_pack("{s:s,s:o,s:f}", "device", "n/0", "points", points, "base_process_bytes", 3e7);
    if (cluster_add_profile(cluster, profile, &err) < 0)
        fail_msg("%s", err.text);
    json_decref(profile);
    return cluster;
}

/* One device's plan is as fast as that of the best micro-batch size, also where times are no smooth function
 * of the tokens and a size between the best and the worst is slower than both. */
static void one_device_takes_its_best_micro_batch(void **state)
{
    (void)state;
    uint32_t small = 0, whole = 0;
    for (uint64_t seed = 300; seed < 320; seed++) {
        struct err err = {0};
        const struct plan_options options = {.brief = true, .evaluations = EVALUATIONS};
        struct model_config config = fixture_config(4);
        struct workload w = fixture_workload(&config, 64, 16);
        struct cluster *cluster = cluster_that_jumps(seed);
        double least = INFINITY, chosen = 0;
        uint32_t rows = 0;
        w.place = PLACE_SINGLE;
        for (w.micro_batch_rows = 0; w.micro_batch_rows <= w.batch_rows; w.micro_batch_rows++) {
            struct plan_answer *answer = NULL;
            if (plan_search(&w, cluster, &options, &answer, &err) < 0 || !answer->plan)
                fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
            if (w.micro_batch_rows == 0)
                chosen = answer->step_s;
            else if (answer->step_s < least) {
                least = answer->step_s;
                rows = w.micro_batch_rows;
            }
            plan_answer_destroy(answer);
        }
        if (chosen > 1.01 * least)
            fail_msg("seed %llu: %.9g s, and %.9g s with micro-batches of %u rows", (unsigned long long)seed,
                     chosen, least, rows);
        small += rows <= 2;
        whole += rows >= 8;
        cluster_destroy(cluster);
        workload_fini(&w);
    }
    print_message("1 or 2 rows are best %u times of 20, 8 or more %u times\n", small, whole);
    assert_true(small >= 4 && whole >= 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_answer_is_what_it_says),
        cmocka_unit_test(a_pipeline_has_the_order_that_is_asked_for),
        cmocka_unit_test(the_budget_is_kept),
        cmocka_unit_test(one_device_takes_its_best_micro_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
