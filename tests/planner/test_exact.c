/* Tests that the slots and memory peaks of every plan of every kind equal what the engine takes, to the byte,
 * for random models, methods and clusters. */
#include "planner/any_candidate.h"
#include "planner/engine_memory.h"
#include "planner/expert_fixture.h"

#define MIB ((uint64_t)1 << 20)

static uint32_t times(uint32_t usual, uint32_t longer)
{
    return getenv("MOTLEY_LONG") ? longer : usual;
}

struct made {
    struct model_config config;
    struct workload workload;
    struct cluster *cluster;
};

static void config_make(struct model_config *c, struct rand_stream *r)
{
    *c = fixture_config(1 + rand_stream_below(r, 6));
    c->vocab = 500 + rand_stream_below(r, 1500);
    c->tied = rand_stream_below(r, 2);
    if (rand_stream_below(r, 3) == 0)
        return;
    c->heads = 2 * (1 + rand_stream_below(r, 4));
    c->kv_heads = c->heads / 2;
    c->head_dim = 16;
    c->hidden = 32 * (1 + rand_stream_below(r, 5));
    c->ffn = 48 * (1 + rand_stream_below(r, 6));
    if (rand_stream_below(r, 3))
        return;
    c->arch = MODEL_MIXTRAL;
    c->experts = 2 + rand_stream_below(r, 6);
    c->experts_active = 1 + rand_stream_below(r, 2);
    c->expert_ffn = c->ffn;
}

/* Draws random settings that the engine supports. */
static void workload_make(struct made *m, struct rand_stream *r, int place)
{
    struct workload *w = &m->workload;
    *w = fixture_workload(&m->config, 10 + rand_stream_below(r, 60), 2 + rand_stream_below(r, 14));
    w->method = rand_stream_below(r, 2) ? METHOD_LORA : METHOD_FULL;
    w->lora_rank = 1 + rand_stream_below(r, 16);
    w->lora_dropout = rand_stream_below(r, 2) ? 0.05 : 0;
    w->base = (enum workload_base)rand_stream_below(r, BASE_NF4 + 1);
    w->single_quant = rand_stream_below(r, 2);
    w->compute = (enum workload_compute)rand_stream_below(r, 3);
    w->boundary = w->compute == COMPUTE_FP32 || rand_stream_below(r, 2) ? PLAN_F32 : PLAN_BF16;
    w->moments8 = rand_stream_below(r, 3) == 0;
    w->moments_on_host = rand_stream_below(r, 3) == 0;
    w->saves_embedding = w->method == METHOD_LORA && rand_stream_below(r, 4) == 0;
    w->saves_head = w->saves_embedding && m->config.tied;
    w->router_loss = m->config.experts > 0 && w->method == METHOD_FULL && rand_stream_below(r, 2);
    w->recompute = (enum workload_recompute)rand_stream_below(r, 3);
    w->sample_tokens = rand_stream_below(r, 2) ? 96 : 0;
    w->prompt_tokens = w->sample_tokens / 2;
    w->place = place;
}

static void made_init(struct made *m, uint64_t seed, int place, struct rand_stream *r)
{
    struct err err = {0};
    rand_stream_init(r, seed, 11);
    config_make(&m->config, r);
    workload_make(m, r, place);
    uint32_t devices = place == PLACE_SINGLE ? 1 : 2 + (place == PLACE_HYBRID) + rand_stream_below(r, 4);
    m->cluster = cluster_create(&err);
    for (uint32_t d = 0; d < devices; d++) {
        char name[40], node[16];
        snprintf(node, sizeof(node), "n%u", d / 2);
        snprintf(name, sizeof(name), "n%u/%u", d / 2, d);
        fixture_device(m->cluster, name, node, (8 + rand_stream_below(r, 300)) * MIB,
                       0.3 + rand_stream_unit(r));
        if (d > 1 && d % 2 == 0)
            fixture_link(m->cluster, "n0", node, 1e-4, 2e7 + 2e9 * rand_stream_unit(r));
    }
}

static void made_fini(struct made *m)
{
    cluster_destroy(m->cluster);
    workload_fini(&m->workload);
}

static bool shares_state(const struct plan *plan)
{
    for (uint32_t r = 0; r < plan->rank_count; r++)
        for (uint32_t s = 0; s < plan->ranks[r].slot_count; s++)
            if (plan->ranks[r].slots[s].kind == SLOT_GATHERED && plan->ranks[r].block_begin == 0)
                return true;
    return false;
}

static void compare_kind(int place, uint32_t clusters, uint32_t least)
{
    uint32_t plans = 0, shared = 0, partly = 0;
    for (uint64_t seed = 0; seed < clusters; seed++) {
        struct made m;
        struct rand_stream r;
        struct err err = {0};
        made_init(&m, seed, place, &r);
        struct plan *plan = any_plan(&m.workload, m.cluster, place, &r, seed);
        if (plan && plan_check(plan, &err) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
        if (plan)
            engine_compare(&(struct engine_case){&m.workload, plan, seed});
        plans += plan != NULL;
        shared += plan && shares_state(plan);
        for (uint32_t k = 0; plan && k < plan->rank_count; k++)
            partly += plan->ranks[k].recompute_end > 0;
        plan_destroy(plan);
        made_fini(&m);
    }
    print_message("%s: %u plans of %u clusters, %u share state out, %u ranks recompute some blocks\n",
                  plan_placement_name(place), plans, clusters, shared, partly);
    assert_true(partly > 0 || (place != PLACE_SINGLE && place != PLACE_PIPELINE));
    assert_true(plans >= least);
}

static void one_device_and_chains_take_what_is_planned(void **state)
{
    (void)state;
    compare_kind(PLACE_SINGLE, times(100, 2000), 50);
    compare_kind(PLACE_PIPELINE, times(200, 3000), 100);
    compare_kind(PLACE_HYBRID, times(250, 3000), 100);
}

static void shared_state_takes_what_is_planned(void **state)
{
    (void)state;
    compare_kind(PLACE_DATA, times(300, 4000), 150);
    compare_kind(PLACE_SERVER, times(200, 3000), 100);
}

static void cut_layers_take_what_is_planned(void **state)
{
    (void)state;
    compare_kind(PLACE_TENSOR, times(300, 4000), 60);
}

/* Attention and experts apart: experts go to a random number of ranks with and without attention, in random
 * shares. */
static void experts_apart_take_what_is_planned(void **state)
{
    (void)state;
    uint32_t clusters = times(120, 2000), plans = 0, alone = 0;
    for (uint64_t seed = 0; seed < clusters; seed++) {
        struct expert_case c;
        struct err err = {0};
        expert_case_init(&c, seed);
        uint32_t count = candidate_micro_batches(&c.problem, &c.candidate);
        for (uint32_t m = 0; m < c.candidate.member_count;
             m++) /* settling limits windows to the micro-batches in the same way */
            c.members[m].window = c.members[m].window < count ? c.members[m].window : count;
        struct plan *plan = expert_emit(&c.problem, &c.candidate, true, &err);
        if (!plan || plan_check(plan, &err) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
        engine_compare(&(struct engine_case){&c.workload, plan, seed});
        for (uint32_t r = 0; r < plan->rank_count; r++)
            alone += plan->ranks[r].rows == 0;
        plans++;
        plan_destroy(plan);
        expert_case_fini(&c);
    }
    print_message("expert: %u plans, %u ranks with experts alone\n", plans, alone);
    assert_true(alone > plans / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_device_and_chains_take_what_is_planned),
        cmocka_unit_test(shared_state_takes_what_is_planned),
        cmocka_unit_test(cut_layers_take_what_is_planned),
        cmocka_unit_test(experts_apart_take_what_is_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
