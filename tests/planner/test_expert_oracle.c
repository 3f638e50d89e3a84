/* The expert placement against trying everything: all divisions of rows and whole experts among up to three
 * devices (of two: of the experts of all layers together, so that one may hold a single one of one layer),
 * all micro-batch sizes, waves and orders, emitted and simulated one by one. */
#include "expert_fixture.h"

#include <math.h>

struct trial {
    struct expert_case *c;
    uint32_t tried, experts;
    double best_s;
    struct place_choice best;
    struct place_member best_members[4];
};

static void choice_try(struct trial *t)
{
    struct err err = {0};
    double seconds = 0;
    struct place_choice *choice = &t->c->choice;
    struct plan *plan = expert_emit(&t->c->problem, choice, true, &err);
    t->tried++;
    if (!plan)
        return;
    if (price_plan(&t->c->problem, plan, WORKLOAD_SAMPLE_STEPS, &seconds, &err) < 0)
        fail_msg("%s", err.text);
    if (t->best_s == 0 || seconds < t->best_s) {
        t->best_s = seconds;
        t->best = *choice;
        memcpy(t->best_members, choice->members, choice->member_count * sizeof(*choice->members));
    }
    plan_destroy(plan);
}

/* Waves, orders and recomputation of one division. */
static void orders_try(struct trial *t, const uint32_t *rows, const uint32_t *experts, uint32_t devices)
{
    struct place_choice *choice = &t->c->choice;
    uint32_t n = 0, micro = 0, holds = 0;
    bool both = false;
    for (int second = 0; second < 2; second++) {
        for (uint32_t d = 0; d < devices; d++) {
            if ((rows[d] == 0 && experts[d] == 0) || (rows[d] == 0) != (second == 1))
                continue;
            t->c->members[n++] = (struct place_member){
                .device = d, .micro_rows = rows[d], .expert_share = (double)experts[d] / t->experts};
            micro += rows[d];
            holds += experts[d] > 0;
            both |= rows[d] > 0 && experts[d] > 0;
        }
    }
    if (n < 2 || holds == 0)
        return;
    t->c->stage.member_count = n;
    choice->member_count = n;
    choice->micro_batch_rows = micro;
    uint32_t count = (t->c->workload.batch_rows + micro - 1) / micro;
    for (uint32_t wave = 1; wave <= count; wave++) {
        for (uint32_t delay = both ? 0 : 1; delay < (both ? 3 : 2); delay++) {
            for (uint32_t again = 0; again < 1u << n; again++) {
                if (again && t->c->workload.recompute != RECOMPUTE_AUTO)
                    continue;
                for (uint32_t m = 0; m < n; m++) {
                    t->c->members[m].window = wave;
                    t->c->members[m].delay = delay;
                    t->c->members[m].recompute = again >> m & 1;
                }
                choice_try(t);
            }
        }
    }
}

static void experts_divide(struct trial *t, const uint32_t *rows, uint32_t *experts, uint32_t at,
                           uint32_t left, uint32_t devices)
{
    if (at + 1 == devices) {
        experts[at] = left;
        orders_try(t, rows, experts, devices);
        return;
    }
    for (uint32_t take = 0; take <= left; take++) {
        experts[at] = take;
        experts_divide(t, rows, experts, at + 1, left - take, devices);
    }
}

static void rows_divide(struct trial *t, uint32_t *rows, uint32_t at, uint32_t left, uint32_t devices)
{
    uint32_t experts[4];
    if (at + 1 == devices) {
        rows[at] = left;
        experts_divide(t, rows, experts, 0, t->experts, devices);
        return;
    }
    for (uint32_t take = 0; take <= left; take++) {
        rows[at] = take;
        rows_divide(t, rows, at + 1, left - take, devices);
    }
}

static void small_case(struct expert_case *c, uint64_t seed)
{
    static const char *const kinds[] = {"a100x40", "v100", "t4", "rtx-3090", "l4", "p100"};
    struct rand_stream r;
    struct err err;
    rand_stream_init(&r, seed, 5);
    memset(c, 0, sizeof(*c));
    uint32_t devices = 2 + rand_stream_below(&r, 2), batch = 1 + rand_stream_below(&r, 4);
    c->config = expert_config(1 + rand_stream_below(&r, 4), 3 + rand_stream_below(&r, 3),
                              1 + rand_stream_below(&r, 2));
    c->config.hidden = 1024;
    c->config.expert_ffn = 1024 << rand_stream_below(&r, 2);
    if (c->config.layers > 2 && rand_stream_below(&r, 3) == 0)
        expert_layer_dense(&c->config, 1);
    c->workload = fixture_workload(&c->config, 2 * batch, batch);
    c->workload.sequence_tokens = 2048;
    c->workload.recompute = rand_stream_below(&r, 4) ? RECOMPUTE_NO : RECOMPUTE_AUTO;
    for (uint32_t i = 0; i < c->workload.row_count; i++) {
        c->workload.rows[i].tokens = 100 + rand_stream_below(&r, 1900);
        c->workload.rows[i].labelled = c->workload.rows[i].tokens / 2;
    }
    c->cluster = cluster_create(&err);
    for (uint32_t d = 0; d < devices; d++) {
        char name[32], node[16];
        bool tight = rand_stream_below(&r, 3) == 0;
        snprintf(node, sizeof(node), "n%u", rand_stream_below(&r, 2) ? d : 0);
        snprintf(name, sizeof(name), "%s/%u", node, d);
        expert_device(c->cluster, name, node, kinds[rand_stream_below(&r, 6)],
                      tight ? ((uint64_t)(400 + rand_stream_below(&r, 600)) << 20) : GIB_OF(16),
                      0.5 + rand_stream_unit(&r));
    }
    for (uint32_t a = 0; a < 2; a++) {
        double rate = pow(10, 8.5 + 3 * rand_stream_unit(&r));
        assert_int_equal(cluster_set_defaults(c->cluster, 1e-5, 1e10, 1e-5, rate, &err), 0);
    }
    expert_case_problem(c);
    c->stage = (struct place_stage){.block_end = c->problem.block_count};
    c->choice = (struct place_choice){
        .placement = PLACE_EXPERT, .stage_count = 1, .stages = &c->stage, .members = c->members};
}

static void the_search_finds_what_trying_everything_finds(void **state)
{
    (void)state;
    uint32_t cases = getenv("MOTLEY_LONG") ? 400 : 40, compared = 0, tried = 0;
    double worst = 0, sum = 0;
    for (uint64_t seed = 0; seed < cases; seed++) {
        struct expert_case c;
        struct err err = {0};
        struct plan_answer *answer = NULL;
        struct plan_options options = {.exhaustive_off = true};
        small_case(&c, seed);
        struct trial t = {.c = &c, .experts = c.config.experts};
        if (c.problem.device_count == 2)
            t.experts *= c.problem.prefix[c.problem.block_count][COST_LAYER_SPARSE];
        uint32_t rows[4];
        for (uint32_t micro = 1; micro <= c.workload.batch_rows; micro++)
            rows_divide(&t, rows, 0, micro, c.problem.device_count);
        c.workload.place = PLACE_EXPERT;
        if (plan_search(&c.workload, c.cluster, &options, &answer, &err) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
        if ((answer->plan != NULL) != (t.best_s > 0))
            fail_msg("seed %llu: %s, by trying everything %s", (unsigned long long)seed,
                     answer->plan ? "fits" : "does not fit", t.best_s > 0 ? "fits" : "does not fit");
        if (answer->plan) {
            double ratio = answer->step_s / t.best_s;
            if (ratio > 1.001) {
                print_message("seed %llu: %.5f s, best %.5f s (%.4f): rows %u wave %u delay %u;",
                              (unsigned long long)seed, answer->step_s, t.best_s, ratio,
                              t.best.micro_batch_rows, t.best_members[0].window, t.best_members[0].delay);
                for (uint32_t m = 0; m < t.best.member_count; m++)
                    print_message(" %u: %u rows, %.0f experts%s;", t.best_members[m].device,
                                  t.best_members[m].micro_rows, t.best_members[m].expert_share * t.experts,
                                  t.best_members[m].recompute ? " again" : "");
                print_message("\n");
            }
            worst = fmax(worst, ratio);
            sum += ratio;
            compared++;
        }
        tried += t.tried;
        plan_answer_destroy(answer);
        expert_case_fini(&c);
    }
    print_message("%u cases, %u choices tried: mean ratio %.5f, worst %.4f\n", compared, tried,
                  sum / compared, worst);
    assert_true(compared > cases / 2 && sum / compared <= 1.002 && worst <= 1.03);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_search_finds_what_trying_everything_finds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
