/* Tests stated bounds: no plan is faster than the lower bound, for rows of any lengths and devices with
 * different strengths, and no micro-batch holds more tokens than the bound for its rows. */
#include "planner/plan_fixture.h"

#include <math.h>

#include "model/job/order.h"
#include "planner/cost/bound.h"

#define MIB ((uint64_t)1 << 20)
#define SEEDS 60u

struct scene {
    struct model_config config;
    struct workload workload;
    struct cluster *cluster;
};

/* Draws rows of one to sixty tokens and one to three devices, which may be unlike. */
static void scene_init(struct scene *s, uint64_t seed)
{
    struct rand_stream r;
    struct err err = {0};
    rand_stream_init(&r, seed, 77);
    uint32_t devices = 1 + rand_stream_below(&r, 3), batch = 2 + rand_stream_below(&r, 7);
    s->config = fixture_config(3 + rand_stream_below(&r, 4));
    s->workload = fixture_workload(&s->config, 3 * batch, batch);
    for (uint32_t i = 0; i < 3 * batch; i++) {
        uint32_t tokens = 1 + rand_stream_below(&r, rand_stream_below(&r, 3) ? 6 : 60);
        s->workload.rows[i] = (struct workload_row){.tokens = tokens, .labelled = (tokens + 1) / 2};
    }
    s->cluster = cluster_create(&err);
    for (uint32_t d = 0; d < devices; d++) {
        char name[16], node[16];
        snprintf(node, sizeof(node), "n%u", d);
        snprintf(name, sizeof(name), "n%u/0", d);
        fixture_device(s->cluster, name, node, 4000 * MIB, 0.3 + 2 * rand_stream_unit(&r));
    }
    assert_int_equal(cluster_set_defaults(s->cluster, 1e-6, 1e11, 1e-6, 1e10, &err), 0);
}

static void scene_fini(struct scene *s)
{
    cluster_destroy(s->cluster);
    workload_fini(&s->workload);
}

static void no_plan_is_faster_than_the_lower_bound(void **state)
{
    (void)state;
    double nearest = INFINITY;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct scene s;
        struct problem problem;
        struct err err = {0};
        struct plan_options options = {.brief = true};
        struct plan_answer *answer = NULL;
        scene_init(&s, seed);
        assert_int_equal(problem_init(&problem, &s.workload, s.cluster, &err), 0);
        double bound = bound_time(&problem);
        problem_fini(&problem);
        if (plan_search(&s.workload, s.cluster, &options, &answer, &err) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
        assert_non_null(answer->plan);
        assert_true(bound > 0);
        assert_true(answer->lower_bound_s <= answer->step_s);
        if (answer->step_s < bound * (1 - 1e-9))
            fail_msg("seed %llu: %.9g s, the bound is %.9g", (unsigned long long)seed, answer->step_s, bound);
        nearest = fmin(nearest, answer->step_s / bound);
        plan_answer_destroy(answer);
        scene_fini(&s);
    }
    print_message("%u problems, the nearest %.4f of the bound\n", SEEDS, nearest);
    assert_true(nearest <
                1.02); /* The bound is tight: the nearest plan is 1.0021 times the bound (measured). */
}

/* With equal rows, equal devices and whole batches, the bound equals the formula of docs/PLANNER.md. */
static void the_bound_of_equal_rows_is_the_formula(void **state)
{
    (void)state;
    struct scene s;
    struct problem problem;
    struct err err = {0};
    scene_init(&s, 5);
    for (uint32_t i = 0; i < s.workload.row_count; i++)
        s.workload.rows[i] = (struct workload_row){.tokens = 40, .labelled = 20};
    assert_int_equal(problem_init(&problem, &s.workload, s.cluster, &err), 0);
    double rate = 0;
    for (uint32_t d = 0; d < problem.device_count; d++) {
        double best = INFINITY;
        for (uint32_t rows = 1; rows <= s.workload.batch_rows; rows++) {
            struct cost_load load = {rows, 40.0 * rows, 1600.0 * rows, 20.0 * rows};
            double each = problem_seconds(&problem, d, 0, problem.block_count, COST_FORWARD, &load) +
                          problem_seconds(&problem, d, 0, problem.block_count, COST_BACKWARD, &load);
            best = fmin(best, each / rows);
        }
        rate += 1 / best;
    }
    double formula = s.workload.batch_rows / rate, bound = bound_time(&problem);
    print_message("bound %.6g s, formula %.6g s\n", bound, formula);
    assert_true(bound <= formula * (1 + 1e-9));
    assert_true(bound > formula * 0.9);
    problem_fini(&problem);
    scene_fini(&s);
}

/* Draws a job of a few rows, of which one is often long, and batches of up to four times as many rows. */
static struct workload rows_drawn(const struct model_config *config, struct rand_stream *r)
{
    uint32_t rows = 1 + rand_stream_below(r, 9), batch = 1 + rand_stream_below(r, 4 * rows);
    struct workload w = fixture_workload(config, rows, batch);
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t tokens = 1 + rand_stream_below(r, rand_stream_below(r, 3) ? 9 : 120);
        w.rows[i] = (struct workload_row){.tokens = tokens, .labelled = (tokens + 1) / 2};
    }
    w.seed = rand_stream_below(r, 1000);
    w.shuffle = rand_stream_below(r, 4) > 0;
    w.epochs = rand_stream_below(r, 4) == 0;
    w.steps = w.epochs ? 0 : 100;
    w.sample_tokens = w.prompt_tokens = 0;
    return w;
}

/* Checks all windows of a step, since a plan may cut a batch anywhere. Writes the largest of each number of
 * rows to most. */
static void windows_check(const struct problem *p, const uint32_t *numbers, uint32_t count, uint64_t *most)
{
    const struct workload *w = p->workload;
    for (uint32_t first = 0; first < count; first++) {
        uint64_t tokens = 0, labelled = 0;
        for (uint32_t i = first; i < count; i++) {
            uint32_t rows = i + 1 - first;
            tokens += w->rows[numbers[i]].tokens;
            labelled += w->rows[numbers[i]].labelled;
            most[rows] = tokens > most[rows] ? tokens : most[rows];
            if (tokens > problem_tokens_bound(p, rows) || labelled > problem_labelled_bound(p, rows))
                fail_msg("seed %u, %u rows, batches of %u: a micro-batch of %u rows holds %llu tokens, %llu "
                         "labelled; the bounds are %u and %u",
                         (unsigned)w->seed, w->row_count, w->batch_rows, rows, (unsigned long long)tokens,
                         (unsigned long long)labelled, problem_tokens_bound(p, rows),
                         problem_labelled_bound(p, rows));
        }
    }
}

static void no_micro_batch_holds_more_than_the_bound_for_its_rows(void **state)
{
    (void)state;
    struct scene s;
    uint32_t numbers[36], reached = 0, bounds = 0;
    struct rand_stream r;
    scene_init(&s, 1);
    rand_stream_init(&r, 20261129, 3);
    for (int turn = 0; turn < 300; turn++) {
        struct workload w = rows_drawn(&s.config, &r);
        struct problem problem;
        struct err err = {0};
        uint64_t most[37] = {0};
        const struct order order = {.seed = w.seed,
                                    .shuffle = w.shuffle,
                                    .row_count = w.row_count,
                                    .batch_rows = w.batch_rows,
                                    .steps = w.steps,
                                    .epochs = w.epochs};
        assert_int_equal(problem_init(&problem, &w, s.cluster, &err), 0);
        for (uint64_t step = 0; step < 300; step++)
            windows_check(&problem, numbers, order_step_rows(&order, step, numbers), most);
        for (uint32_t rows = 1; rows <= w.batch_rows; rows++) {
            bounds += most[rows] > 0; /* of as many rows there was a micro-batch */
            reached += most[rows] > 0 && most[rows] == problem_tokens_bound(&problem, rows);
        }
        problem_fini(&problem);
        workload_fini(&w);
    }
    print_message("%u of %u bounds are reached\n", reached, bounds);
    assert_true(reached > bounds / 2);
    scene_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_plan_is_faster_than_the_lower_bound),
        cmocka_unit_test(the_bound_of_equal_rows_is_the_formula),
        cmocka_unit_test(no_micro_batch_holds_more_than_the_bound_for_its_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
