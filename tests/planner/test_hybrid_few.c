/* Hybrids of few devices: quick looks are near simulation, in LoRA and in full fine-tuning with state in
 * shards and tables tied; what is proposed passes the checker. */
#include "planner/few_world.h"

#include "planner/hybrid/few.h"
#include "planner/search/polish.h"

#define STEPS 3u

static void world_init(struct few_world *w, uint64_t seed, bool full)
{
    struct rand_stream r;
    rand_stream_init(&r, seed, 81);
    w->config = fixture_config(2 + rand_stream_below(&r, 6));
    w->config.vocab = 512 << rand_stream_below(&r, 5);
    w->config.tied = seed % 2;
    w->workload = fixture_workload(&w->config, 24, 2 + rand_stream_below(&r, 8));
    w->workload.method = full ? METHOD_FULL : METHOD_LORA;
    few_world_init(w, &r, 3 + seed % 3, (double)((full ? 300 : 120) * MIB), 200 * (double)MIB);
}

struct looks {
    uint32_t count, far;
    double off, worst;
};

static void choice_look(const struct few_world *m, const struct place_choice *c, struct polish *polish,
                        struct looks *l)
{
    struct err err = {0};
    double seconds = choice_simulate(&m->problem, c, STEPS, &err), looked = polish_quick(polish, c);
    assert_true(seconds > 0 && looked > 0);
    double own = fabs(seconds / looked - 1);
    l->count++;
    l->far += own > 0.06;
    l->off += own;
    l->worst = fmax(l->worst, own);
    struct plan *plan = place_hybrid.emit(&m->problem, c, true, &err);
    if (!plan || plan_check(plan, &err) < 0)
        fail_msg("%s", err.text);
    plan_destroy(plan);
}

static void quick_looks_are_near_simulation(void **state)
{
    (void)state;
    for (int full = 0; full < 2; full++) {
        struct looks l = {0};
        for (uint64_t seed = 0; seed < 24; seed++) {
            struct few_world m;
            struct err err = {0};
            world_init(&m, seed, full);
            struct choice_list *list = calloc(1, sizeof(*list));
            list->evaluations_max = 20000;
            assert_int_equal(few_propose(&m.problem, list, &err), 0);
            struct polish *polish = polish_create(&m.problem, STEPS, UINT64_MAX, 0, &err);
            for (uint32_t i = 0; i < list->count; i++)
                choice_look(&m, &list->choices[i], polish, &l);
            polish_destroy(polish);
            choice_list_fini(list);
            free(list);
            few_world_fini(&m);
        }
        print_message("%s: %u choices, off by %.2f %% at the mean, %.1f %% at worst, %u by more than 6 %%\n",
                      full ? "full fine-tuning" : "LoRA", l.count, 100 * l.off / l.count, 100 * l.worst,
                      l.far);
        assert_true(l.count > 150 && l.off / l.count < 0.03 && l.far < l.count / 6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quick_looks_are_near_simulation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
