/* Schedules of pipelines: the closed forms of docs/PLANNER.md against the simulator running emitted programs,
 * and what the other schedules promise. */
#include "planner/plan_fixture.h"

#include <math.h>

#include "planner/chain.h"
#include "planner/pipe_order.h"
#include "planner/pipeline.h"
#include "planner/polish.h"
#include "planner/simulate.h"

#define MIB ((uint64_t)1 << 20)
#define STAGES_MAX 8u

/* A pipeline of stages whose seconds are made up: the programs are real, the costs are not. */
struct made {
    uint32_t ranks, stages;
    double f[64], b[64], w[64]; /* of a stage */
    double latency[64], occupied[64];
    uint32_t window[STAGES_MAX], delay[STAGES_MAX];
    enum plan_schedule schedule;
};

static uint32_t stage_of(const struct made *m, const struct instr *x)
{
    (void)m;
    return (uint32_t)x->block_begin; /* a block a stage */
}

static double made_compute(void *context, uint32_t rank, const struct instr *x)
{
    const struct made *m = context;
    (void)rank;
    switch (x->op) {
    case OP_FORWARD:
        return m->f[stage_of(m, x)];
    case OP_BACKWARD:
    case OP_BACKWARD_INPUT:
        return m->b[stage_of(m, x)];
    case OP_BACKWARD_WEIGHT:
        return m->w[stage_of(m, x)];
    default:
        return 0;
    }
}

static double made_bytes(void *context, uint32_t rank, const struct instr *x)
{
    const struct made *m = context;
    (void)rank;
    return m->occupied[x->block_begin - 1];
}

static void made_wire(void *context, uint32_t from, uint32_t to, struct sim_wire *wire)
{
    const struct made *m = context;
    uint32_t low = from < to ? from : to;
    if (low == 0 && from + to == m->ranks - 1 && m->ranks > 2)
        low = m->ranks - 1; /* from the last back to the first */
    *wire = (struct sim_wire){.latency_s = m->latency[low], .bytes_per_s = 1};
}

static double made_collective(void *context, const struct plan_group *group, uint32_t rank,
                              const struct instr *x)
{
    (void)context;
    (void)group;
    (void)rank;
    (void)x;
    return 0;
}

/* The workload and devices that programs are made for; their costs are not used. */
struct bench {
    struct model_config config;
    struct workload workload;
    struct cluster *cluster;
    struct problem problem;
};

static void bench_init(struct bench *t, uint32_t blocks, uint32_t devices, uint32_t micro_batches)
{
    struct err err = {0};
    t->config = fixture_config(blocks - 2);
    t->config.vocab = 2048;
    t->workload = fixture_workload(&t->config, micro_batches, micro_batches);
    t->workload.sample_tokens = t->workload.prompt_tokens = 0;
    t->cluster = cluster_create(&err);
    for (uint32_t d = 0; d < devices; d++) {
        char name[40], node[16];
        snprintf(node, sizeof(node), "n%u", d);
        snprintf(name, sizeof(name), "n%u/0", d);
        fixture_device(t->cluster, name, node, 1 << 30, 1);
    }
    if (problem_init(&t->problem, &t->workload, t->cluster, &err) < 0)
        fail_msg("%s", err.text);
}

static void bench_fini(struct bench *t)
{
    problem_fini(&t->problem);
    cluster_destroy(t->cluster);
    workload_fini(&t->workload);
}

/* Emits the pipeline, one block a stage, and runs its step. */
static double made_run(const struct bench *t, const struct made *m)
{
    struct place_stage stages[64];
    struct place_member members[STAGES_MAX];
    struct err err = {0};
    memset(members, 0, sizeof(members));
    for (uint32_t j = 0; j < m->stages; j++)
        stages[j] =
            (struct place_stage){.block_begin = (int32_t)j,
                                 .block_end = j + 1 == m->stages ? t->problem.block_count : (int32_t)j + 1,
                                 .member_first = j % m->ranks,
                                 .member_count = 1};
    for (uint32_t r = 0; r < m->ranks; r++)
        members[r] = (struct place_member){
            .device = r, .micro_rows = 1, .state_share = 1, .window = m->window[r], .delay = m->delay[r]};
    struct place_choice choice = {.placement = PLACE_PIPELINE,
                                  .schedule = m->schedule,
                                  .micro_batch_rows = 1,
                                  .stage_count = m->stages,
                                  .member_count = m->ranks,
                                  .stages = stages,
                                  .members = members};
    struct plan *plan = chain_emit(&t->problem, &choice, true, &err);
    if (!plan)
        fail_msg("%s", err.text);
    struct sim *sim = NULL;
    double seconds = 0;
    struct sim_costs costs = {.context = (void *)(uintptr_t)m,
                              .compute_s = made_compute,
                              .bytes = made_bytes,
                              .wire = made_wire,
                              .collective_s = made_collective};
    if (sim_create(plan, PROGRAM_TRAIN, &sim, &err) < 0 ||
        sim_run(sim, &costs, &seconds, NULL, NULL, 0, &err) < 0)
        fail_msg("%s", err.text);
    sim_destroy(sim);
    plan_destroy(plan);
    return seconds;
}

/* A random uneven pipeline; windows fall to 1 at the tail. */
static void made_random(struct made *m, struct rand_stream *r)
{
    *m = (struct made){.ranks = 2 + rand_stream_below(r, 7)};
    m->stages = m->ranks;
    for (uint32_t s = m->stages; s-- > 0;) {
        m->f[s] = 0.2 + rand_stream_unit(r);
        m->b[s] = 0.2 + 2 * rand_stream_unit(r);
        m->occupied[s] = 0.5 * rand_stream_unit(r);
        m->latency[s] = rand_stream_unit(r);
        m->window[s] = s + 1 < m->stages ? m->window[s + 1] + rand_stream_below(r, 3) : 1;
    }
}

static double link_s(const struct made *m, uint32_t s)
{
    return m->latency[s] + m->occupied[s];
}

/* docs/PLANNER.md, 1F1B: P = max(max over s ≤ j of the cycle through s..j per micro-batch in it, max o). */
static double period_1f1b(const struct made *m)
{
    double period = 0;
    for (uint32_t s = 0; s < m->stages; s++) {
        double cycle = 0;
        for (uint32_t j = s; j < m->stages; j++) {
            cycle += m->f[j] + m->b[j] + (j > s ? 2 * link_s(m, j - 1) : 0);
            period = fmax(period, cycle / (m->window[s] - m->window[j] + 1));
        }
        period = s + 1 < m->stages ? fmax(period, m->occupied[s]) : period;
    }
    return period;
}

/* Micro-batches of two runs whose difference is the steady part: it begins after a few times the windows, and
 * repeats after as many micro-batches as the cycle that binds holds, 1 to 15, most of which divide 360. */
#define SHORT_RUN 144u
#define LONG_RUN 504u

static double period_simulated(const struct bench *s, const struct bench *l, const struct made *m)
{
    return (made_run(l, m) - made_run(s, m)) /
           (l->problem.workload->batch_rows - s->problem.workload->batch_rows);
}

static void the_period_of_1f1b_is_the_closed_form(void **state)
{
    (void)state;
    struct rand_stream r;
    struct bench s, l;
    struct made m;
    double worst = 0, mean = 0;
    const uint32_t turns = 4000;
    rand_stream_init(&r, 5, 0);
    bench_init(&s, STAGES_MAX, STAGES_MAX, SHORT_RUN);
    bench_init(&l, STAGES_MAX, STAGES_MAX, LONG_RUN);
    for (uint32_t turn = 0; turn < turns; turn++) {
        made_random(&m, &r);
        double error = fabs(period_simulated(&s, &l, &m) / period_1f1b(&m) - 1);
        worst = fmax(worst, error);
        mean += error / turns;
    }
    print_message("1F1B period, %u pipelines: mean error %.4f %%, worst %.3f %%\n", turns, 100 * mean,
                  100 * worst);
    bench_fini(&s);
    bench_fini(&l);
    assert_true(mean < 0.00006 && worst < 0.0046); /* as docs/PLANNER.md has them */
}

/* docs/PLANNER.md, windows that hide the links: from the tail, as many as the cycles need at P*. */
static void windows_that_hide_the_links_reach_the_slowest_stage(void **state)
{
    (void)state;
    struct rand_stream r;
    struct bench s, l;
    struct made m;
    double worst = 0;
    const uint32_t turns = 4000;
    uint32_t reached = 0;
    rand_stream_init(&r, 6, 0);
    bench_init(&s, STAGES_MAX, STAGES_MAX, 60);
    bench_init(&l, STAGES_MAX, STAGES_MAX, 120);
    for (uint32_t turn = 0; turn < turns; turn++) {
        double best = 0;
        made_random(&m, &r);
        for (uint32_t k = 0; k < m.stages; k++)
            best = fmax(best, fmax(m.f[k] + m.b[k], k + 1 < m.stages ? m.occupied[k] : 0));
        for (uint32_t k = m.stages; k-- > 0;) {
            double cycle = m.f[k] + m.b[k];
            m.window[k] = k + 1 < m.stages ? m.window[k + 1] : 1;
            for (uint32_t j = k + 1; j < m.stages; j++) {
                cycle += m.f[j] + m.b[j] + 2 * link_s(&m, j - 1);
                uint32_t need = (uint32_t)ceil(cycle / best - 1e-9) - 1 + m.window[j];
                m.window[k] = need > m.window[k] ? need : m.window[k];
            }
        }
        double error = period_simulated(&s, &l, &m) / best - 1;
        worst = fmax(worst, error);
        reached += error < 0.005;
    }
    print_message("windows reach P* in %u of %u, worst %.3f %% above\n", reached, turns, 100 * worst);
    bench_fini(&s);
    bench_fini(&l);
    assert_int_equal(reached, turns);
}

/* docs/PLANNER.md: Σf + Σcf + (M − 1)·max(f, o), and the same backward. */
static void gpipe_takes_exactly_its_closed_form(void **state)
{
    (void)state;
    struct rand_stream r;
    struct bench t;
    struct made m;
    double worst = 0;
    const uint32_t turns = 2000, count = 24;
    rand_stream_init(&r, 7, 0);
    bench_init(&t, STAGES_MAX, STAGES_MAX, count);
    for (uint32_t turn = 0; turn < turns; turn++) {
        double all = 0, f = 0, b = 0;
        made_random(&m, &r);
        m.schedule = SCHEDULE_GPIPE;
        for (uint32_t s = m.stages; s-- > 0;) {
            all += m.f[s] + m.b[s] + (s + 1 < m.stages ? 2 * link_s(&m, s) : 0);
            f = fmax(f, fmax(m.f[s], s + 1 < m.stages ? m.occupied[s] : 0));
            b = fmax(b, fmax(m.b[s], s + 1 < m.stages ? m.occupied[s] : 0));
        }
        for (uint32_t s = m.stages; s-- > 0;) { /* rings as deep as the links are long */
            m.window[s] = count;
            if (s + 1 < m.stages)
                m.window[s] = m.window[s + 1] + (uint32_t)ceil((3 + link_s(&m, s)) / fmin(f, b));
        }
        double error = fabs(made_run(&t, &m) / (all + (count - 1) * (f + b)) - 1);
        worst = fmax(worst, error);
    }
    print_message("GPipe, %u pipelines: worst error %.2g\n", turns, worst);
    bench_fini(&t);
    assert_true(worst < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_period_of_1f1b_is_the_closed_form),
        cmocka_unit_test(windows_that_hide_the_links_reach_the_slowest_stage),
        cmocka_unit_test(gpipe_takes_exactly_its_closed_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
