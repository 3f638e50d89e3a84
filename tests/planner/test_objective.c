/* Tests plans that minimise price or energy, and what answers say of both. */
#include "planner/plan_fixture.h"

#include <math.h>

#include "planner/answer/verdict.h"
#include "planner/candidate/objective.h"
#include "planner/given/cluster_private.h"
#include "planner/given/from_spec.h"

#define SIX 6u
#define SIX_SEEDS 2u

struct shape { /* the sizes of a random lab */
    uint32_t count;
    double speed[5], price[5], watts[5], idle[5];
    uint64_t memory[5];
    double rate;
};

static struct shape shape_of(uint64_t seed)
{
    struct rand_stream r;
    struct shape s = {0};
    rand_stream_init(&r, 23, seed);
    s.count = 2 + rand_stream_below(&r, 3);
    s.rate = 1e6 * pow(10, 2.5 * rand_stream_unit(&r));
    for (uint32_t i = 0; i < s.count; i++) {
        s.speed[i] = 0.3 + 2 * rand_stream_unit(&r);
        s.price[i] = 0.2 + 2 * rand_stream_unit(&r);
        s.watts[i] = 50 + 300 * rand_stream_unit(&r);
        s.idle[i] = rand_stream_below(&r, 2) ? 0.2 * s.watts[i] : 0;
        s.memory[i] = (uint64_t)(350 + rand_stream_below(&r, 400)) << 20;
    }
    return s;
}

static struct cluster *cluster_of(const struct shape *s)
{
    struct err err;
    struct cluster *cluster = cluster_create(&err);
    for (uint32_t i = 0; i < s->count; i++) {
        char name[24], node[16];
        snprintf(node, sizeof(node), "n%u", i);
        snprintf(name, sizeof(name), "n%u/0", i);
        fixture_device(cluster, name, node, s->memory[i], s->speed[i]);
        cluster->devices[i].price_per_hour = s->price[i];
        cluster->devices[i].watts = s->watts[i];
        cluster->devices[i].idle_watts = s->idle[i];
    }
    assert_int_equal(cluster_set_defaults(cluster, 1e-5, 1e9, 1e-3, s->rate, &err), 0);
    return cluster;
}

static struct plan_answer *search(struct workload *w, const struct cluster *cluster,
                                  enum workload_objective objective)
{
    struct err err = {0};
    struct plan_answer *answer = NULL;
    struct plan_options options = {.programs = true};
    w->objective = objective;
    if (plan_search(w, cluster, &options, &answer, &err) < 0)
        fail_msg("%s", err.text);
    return answer;
}

/* Returns the least price over all sets of devices, each searched for time. */
static double least_price(struct workload *w, const struct cluster *cluster)
{
    double least = INFINITY;
    char *names[5];
    for (uint32_t mask = 1; mask < 1u << cluster->device_count; mask++) {
        struct workload some = *w;
        struct plan_answer *answer;
        some.devices = names;
        for (uint32_t d = 0; d < cluster->device_count; d++)
            if (mask >> d & 1)
                names[some.device_count++] = cluster->devices[d].name;
        answer = search(&some, cluster, OBJECTIVE_TIME);
        if (answer->plan)
            least = fmin(least, plan_step_price(cluster, answer->plan, answer->step_s));
        plan_answer_destroy(answer);
    }
    return least;
}

static void the_cheapest_is_the_cheapest_of_all_sets(void **state)
{
    (void)state;
    uint32_t left_out = 0, found = 0;
    double worst = 0;
    for (uint64_t seed = 0; seed < 5; seed++) {
        struct model_config config = fixture_config(4 + (uint32_t)seed % 4);
        struct workload w = fixture_workload(&config, 60, 8);
        struct shape shape = shape_of(seed);
        struct cluster *cluster = cluster_of(&shape);
        double least = least_price(&w, cluster);
        struct plan_answer *answer = search(&w, cluster, OBJECTIVE_COST);
        assert_true((answer->plan != NULL) == isfinite(least));
        if (answer->plan) {
            double price = plan_step_price(cluster, answer->plan, answer->step_s);
            worst = fmax(worst, price / least);
            left_out += answer->plan->rank_count < cluster->device_count;
            found++;
            double millions = answer->tokens_per_s * answer->step_s / 1e6;
            assert_true(fabs(answer->cost_per_million_tokens / (price / millions) - 1) < 1e-12);
        }
        plan_answer_destroy(answer);
        cluster_destroy(cluster);
        workload_fini(&w);
    }
    printf("%u clusters, %u leave something out, worst price over the least of all sets %.6f\n", found,
           left_out, worst);
    assert_true(found > 2 && left_out > 0);
    /* The search of each set gets only a part of the budget. */
    assert_true(worst < 1.01);
}

static double paid(const struct cluster *cluster, const struct plan_answer *answer, bool energy)
{
    if (!answer->plan)
        return INFINITY;
    return energy ? plan_step_joules(cluster, answer->plan, answer->step_s)
                  : plan_step_price(cluster, answer->plan, answer->step_s);
}

/* No two devices hold the model. The two with the best value need a third: a fast expensive one, which the
 * search tries next, or a slow cheap one, which is enough to hold the embedding. The search must replace the
 * fast one by the slow one in a single change: adding the slow one first costs more, and removing the fast
 * one first leaves two devices, which do not hold the model. */
static void one_device_takes_the_place_of_another_where_that_is_cheaper(void **state)
{
    (void)state;
    static const double speed[SIX] = {3, 3, 3, 0.1, 1, 1}, price[SIX] = {0.5, 0.45, 0.6, 0.021, 5, 5};
    struct err err;
    struct model_config config = fixture_config(9);
    struct workload w = fixture_workload(&config, 30, 8);
    struct cluster *cluster = cluster_create(&err);
    double least = INFINITY;
    w.place = PLACE_PIPELINE;
    for (uint32_t i = 0; i < SIX; i++) {
        char name[24], node[16];
        snprintf(node, sizeof(node), "n%u", i);
        snprintf(name, sizeof(name), "n%u/0", i);
        fixture_device(cluster, name, node, (uint64_t)170 << 20, speed[i]);
        cluster->devices[i].price_per_hour = price[i];
    }
    assert_int_equal(cluster_set_defaults(cluster, 1e-5, 1e9, 1e-3, 1e8, &err), 0);
    struct plan_answer *answer = search(&w, cluster, OBJECTIVE_COST);
    for (uint32_t mask = 0; mask < 1u << 4; mask++) { /* All sets without the most expensive device. */
        struct workload some = w;
        char *names[4];
        some.devices = names;
        for (uint32_t i = 0; i < 4; i++)
            if (mask >> i & 1)
                names[some.device_count++] = cluster->devices[i].name;
        if (some.device_count < 2)
            continue;
        struct plan_answer *other = search(&some, cluster, OBJECTIVE_TIME);
        assert_true(some.device_count > 2 || !other->plan);
        least = fmin(least, paid(cluster, other, false));
        plan_answer_destroy(other);
    }
    printf("paid over the least of any of the first four: %.4f\n", paid(cluster, answer, false) / least);
    assert_true(isfinite(least));
    assert_true(paid(cluster, answer, false) <= least * 1.001);
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    workload_fini(&w);
}

/* Makes six devices on three machines; at least three devices are needed to hold the model. */
static struct cluster *machines_of(uint64_t seed)
{
    struct rand_stream r;
    struct err err;
    struct cluster *cluster = cluster_create(&err);
    rand_stream_init(&r, 29, seed);
    for (uint32_t i = 0; i < SIX; i++) {
        char name[24], node[16];
        snprintf(node, sizeof(node), "n%u", i / 2);
        snprintf(name, sizeof(name), "n%u/%u", i / 2, i % 2);
        fixture_device(cluster, name, node, (uint64_t)(110 + rand_stream_below(&r, 200)) << 20,
                       0.2 + 2 * rand_stream_unit(&r));
        cluster->devices[i].price_per_hour = 0.1 + 2 * rand_stream_unit(&r);
        cluster->devices[i].watts = 50 + 300 * rand_stream_unit(&r);
        cluster->devices[i].idle_watts = 0.3 * cluster->devices[i].watts * rand_stream_unit(&r);
    }
    assert_int_equal(cluster_set_defaults(cluster, 1e-5, 1e9, 1e-3, 2e7, &err), 0);
    return cluster;
}

/* The answer for six devices is not more expensive than the answer without one of them, or with a placement
 * that is asked for by name. */
static void neither_fewer_devices_nor_a_placement_by_name_are_cheaper(void **state)
{
    (void)state;
    static const enum plan_placement kinds[] = {PLACE_PIPELINE, PLACE_DATA, PLACE_HYBRID, PLACE_TENSOR};
    double worst = 0;
    for (uint64_t seed = 0; seed < SIX_SEEDS; seed++) {
        bool energy = seed % 2;
        enum workload_objective objective = energy ? OBJECTIVE_ENERGY : OBJECTIVE_COST;
        struct model_config config = fixture_config(5);
        struct workload w = fixture_workload(&config, 30, 4);
        struct cluster *cluster = machines_of(seed);
        struct plan_answer *all = search(&w, cluster, objective);
        double own = paid(cluster, all, energy), least = INFINITY;
        for (uint32_t other = 0; other < SIX + 4; other++) {
            struct workload some = w;
            char *names[SIX];
            some.devices = names;
            for (uint32_t d = 0; d < SIX && other < SIX; d++)
                if (d != other)
                    names[some.device_count++] = cluster->devices[d].name;
            if (other >= SIX)
                some.place = kinds[other - SIX];
            struct plan_answer *answer = search(&some, cluster, objective);
            least = fmin(least, paid(cluster, answer, energy));
            plan_answer_destroy(answer);
        }
        assert_true(isfinite(least));
        if (own > least * 1.001)
            printf("seed %llu: %.4f of the least\n", (unsigned long long)seed, own / least);
        worst = fmax(worst, own / least);
        plan_answer_destroy(all);
        cluster_destroy(cluster);
        workload_fini(&w);
    }
    printf("worst of %u: %.4f of the least\n", SIX_SEEDS, worst);
    assert_true(worst < 1.02);
}

/* Plans for thirty devices, every second of which costs three times as much for its speed. */
static void among_many_devices_the_dear_ones_are_left_out(void **state)
{
    (void)state;
    struct err err;
    struct cluster *cluster = cluster_create(&err);
    for (uint32_t i = 0; i < 30; i++) {
        char name[24], node[16];
        snprintf(node, sizeof(node), "n%u", i);
        snprintf(name, sizeof(name), "n%u/0", i);
        fixture_device(cluster, name, node, (uint64_t)400 << 20, 0.5 + 0.05 * i);
        cluster->devices[i].price_per_hour = (0.5 + 0.05 * i) * (i % 2 ? 3 : 1);
        cluster->devices[i].watts = 100;
    }
    assert_int_equal(cluster_set_defaults(cluster, 1e-5, 1e9, 1e-3, 1e8, &err), 0);
    struct model_config config = fixture_config(8);
    struct workload w = fixture_workload(&config, 60, 32);
    struct plan_answer *cheap = search(&w, cluster, OBJECTIVE_COST),
                       *fast = search(&w, cluster, OBJECTIVE_TIME);
    assert_non_null(cheap->plan);
    double price = plan_step_price(cluster, cheap->plan, cheap->step_s);
    assert_true(price <= plan_step_price(cluster, fast->plan, fast->step_s) * (1 + 1e-9));
    for (uint32_t r = 0; r < cheap->plan->rank_count; r++) {
        uint32_t d = cluster_device_find(cluster, cheap->plan->ranks[r].device);
        assert_int_equal(d % 2, 0);
    }
    plan_answer_destroy(cheap);
    plan_answer_destroy(fast);
    workload_fini(&w);
    cluster_destroy(cluster);
}

static void energy_is_never_above_that_of_the_fastest(void **state)
{
    (void)state;
    double saved = 0;
    for (uint64_t seed = 0; seed < 5; seed++) {
        struct model_config config = fixture_config(4 + (uint32_t)seed % 4);
        struct workload w = fixture_workload(&config, 60, 8);
        struct shape shape = shape_of(100 + seed);
        struct cluster *cluster = cluster_of(&shape);
        struct plan_answer *fast = search(&w, cluster, OBJECTIVE_TIME);
        struct plan_answer *frugal = search(&w, cluster, OBJECTIVE_ENERGY);
        assert_true((fast->plan != NULL) == (frugal->plan != NULL));
        if (fast->plan) {
            double a = plan_step_joules(cluster, fast->plan, fast->step_s);
            double b = plan_step_joules(cluster, frugal->plan, frugal->step_s), by_hand = 0;
            assert_true(b <= a * (1 + 1e-9));
            assert_int_equal(plan_check(frugal->plan, &(struct err){0}), 0);
            for (uint32_t r = 0; r < frugal->plan->rank_count; r++) {
                uint32_t d = cluster_device_find(cluster, frugal->plan->ranks[r].device);
                double busy = frugal->plan->ranks[r].busy_s;
                by_hand += shape.watts[d] * busy + shape.idle[d] * (frugal->step_s - busy);
            }
            assert_true(fabs(by_hand / b - 1) < 1e-9);
            saved += 1 - b / a;
        }
        plan_answer_destroy(fast);
        plan_answer_destroy(frugal);
        cluster_destroy(cluster);
        workload_fini(&w);
    }
    printf("%.0f %% saved at the mean\n", 100 * saved / 5);
    assert_true(saved > 0);
}

static void what_is_not_known_is_asked_for_by_name(void **state)
{
    (void)state;
    struct model_config config = fixture_config(4);
    struct workload w = fixture_workload(&config, 60, 8);
    struct shape shape = shape_of(1);
    struct cluster *cluster = cluster_of(&shape);
    struct plan_answer *answer = NULL;
    struct err err = {0};
    char *exclude[] = {cluster->devices[1].name};
    cluster->devices[1].price_per_hour = 0;
    w.objective = OBJECTIVE_COST;
    assert_int_equal(plan_search(&w, cluster, NULL, &answer, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    assert_non_null(strstr(err.text, "n1/0"));
    assert_non_null(strstr(err.text, "price_per_hour"));
    cluster->devices[1].watts = 0;
    w.objective = OBJECTIVE_ENERGY;
    assert_int_equal(plan_search(&w, cluster, NULL, &answer, &err), -1);
    assert_non_null(strstr(err.text, "watts"));
    /* An excluded device needs no price. */
    w.exclude = exclude;
    w.exclude_count = 1;
    answer = search(&w, cluster, OBJECTIVE_COST);
    plan_answer_destroy(answer);
    /* When the objective is time, a missing price is only left out of the answer. */
    w.exclude = NULL;
    w.exclude_count = 0;
    answer = search(&w, cluster, OBJECTIVE_TIME);
    if (answer->plan && answer->plan->rank_count == cluster->device_count)
        assert_true(answer->cost_per_million_tokens == 0);
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    workload_fini(&w);
}

static void a_dear_device_is_left_out_with_both_prices(void **state)
{
    (void)state;
    struct model_config config = fixture_config(6);
    struct workload w = fixture_workload(&config, 60, 8);
    struct shape shape = {.count = 3,
                          .speed = {1, 1, 1},
                          .price = {1, 1, 50},
                          .watts = {100, 100, 100},
                          .memory = {(uint64_t)1 << 31, (uint64_t)1 << 31, (uint64_t)1 << 31},
                          .rate = 1e9};
    struct cluster *cluster = cluster_of(&shape);
    struct plan_answer *answer = search(&w, cluster, OBJECTIVE_COST);
    bool told = false;
    assert_non_null(answer->plan);
    for (uint32_t i = 0; i < answer->left_out_count; i++) {
        const struct plan_left_out *line = &answer->left_out[i];
        if (strcmp(line->device, "n2/0") == 0) {
            assert_true(line->step_s_with > 0 && line->step_s_with < answer->step_s);
            assert_non_null(strstr(line->why, "per million tokens with it"));
            told = true;
        }
    }
    assert_true(told);
    assert_non_null(strstr(answer->words, "per million tokens"));
    assert_non_null(strstr(answer->words, "The fastest found takes"));
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    workload_fini(&w);
}

static void a_specification_says_by_what(void **state)
{
    (void)state;
    struct err err = {0};
    struct plan_answer *answer = NULL;
    json_t *spec =
        json_pack("{s:s,s:{s:s,s:i},s:{s:i},s:{s:s}}", "model", "m", "data", "train", "d", "sequence_tokens",
                  128, "train", "batch_rows", 8, "placement", "objective", "cost");
    json_t *cluster =
        json_loads("{\"nodes\": [{\"name\": \"a\", \"devices\": [{\"name\": \"a/0\", \"like\": "
                   "\"t4\", \"price_per_hour\": 0.3}, {\"name\": \"a/1\", \"like\": \"t4\"}]}]}",
                   0, NULL);
    json_t *config = json_pack("{s:[s],s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:f,s:b}", "architectures",
                               "LlamaForCausalLM", "model_type", "llama", "hidden_size", 512,
                               "num_hidden_layers", 4, "num_attention_heads", 8, "num_key_value_heads", 8,
                               "intermediate_size", 1024, "vocab_size", 32000, "max_position_embeddings",
                               2048, "rms_norm_eps", 1e-5, "rope_theta", 1e4, "tie_word_embeddings", 0);
    assert_non_null(spec);
    assert_non_null(cluster);
    assert_non_null(config);
    assert_int_equal(plan_from_cluster(spec, cluster, config, NULL, &answer, &err), -1);
    assert_non_null(strstr(err.text, "a/1"));
    json_object_set_new(json_object_get(spec, "placement"), "objective", json_string("money"));
    assert_int_equal(plan_from_cluster(spec, cluster, config, NULL, &answer, &err), -1);
    assert_non_null(strstr(err.text, "placement.objective"));
    json_decref(spec);
    json_decref(cluster);
    json_decref(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cheapest_is_the_cheapest_of_all_sets),
        cmocka_unit_test(one_device_takes_the_place_of_another_where_that_is_cheaper),
        cmocka_unit_test(neither_fewer_devices_nor_a_placement_by_name_are_cheaper),
        cmocka_unit_test(among_many_devices_the_dear_ones_are_left_out),
        cmocka_unit_test(energy_is_never_above_that_of_the_fastest),
        cmocka_unit_test(what_is_not_known_is_asked_for_by_name),
        cmocka_unit_test(a_dear_device_is_left_out_with_both_prices),
        cmocka_unit_test(a_specification_says_by_what),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
