/* Compares the closed forms of docs/PLANNER.md for pipeline schedules with the simulation of emitted
 * programs, and tests the properties of the other schedules. */
#include "planner/plan_fixture.h"

#include <math.h>

#include "planner/cost/price.h"
#include "planner/emit/pipeline.h"
#include "planner/search/local.h"
#include "planner/simulate/simulate.h"

#define MIB ((uint64_t)1 << 20)
#define STAGES_MAX 8u

/* A pipeline with real programs and invented costs. */
struct made {
    uint32_t ranks, stages;
    double f[64], b[64],
        w[64]; /* [stage] seconds of forward, of the input gradients and of the weight gradients */
    double latency[64], occupied[64];
    uint32_t window[STAGES_MAX], delay[STAGES_MAX];
    enum plan_schedule schedule;
};

static uint32_t stage_of(const struct made *m, const struct instr *x)
{
    (void)m;
    return (uint32_t)x->block_begin; /* Each stage has one block. */
}

static double made_compute(void *context, uint32_t rank, const struct instr *x)
{
    const struct made *m = context;
    (void)rank;
    switch (x->op) {
    case INSTR_FORWARD:
        return m->f[stage_of(m, x)];
    case INSTR_BACKWARD:
    case INSTR_BACKWARD_INPUT:
        return m->b[stage_of(m, x)];
    case INSTR_BACKWARD_WEIGHT:
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
        low = m->ranks - 1; /* the link from the last rank back to the first */
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

/* The workload and devices of the programs. Their costs are not used. */
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
    struct candidate_stage stages[64];
    struct member members[STAGES_MAX];
    struct err err = {0};
    memset(members, 0, sizeof(members));
    for (uint32_t j = 0; j < m->stages; j++)
        stages[j] = (struct candidate_stage){.block_begin = (int32_t)j,
                                             .block_end =
                                                 j + 1 == m->stages ? t->problem.block_count : (int32_t)j + 1,
                                             .member_first = j % m->ranks,
                                             .member_count = 1};
    for (uint32_t r = 0; r < m->ranks; r++)
        members[r] =
            (struct member){.device = r, .state_share = 1, .window = m->window[r], .delay = m->delay[r]};
    struct candidate candidate = {.placement = PLACE_PIPELINE,
                                  .schedule = m->schedule,
                                  .micro_batch_rows = 1,
                                  .stage_count = m->stages,
                                  .member_count = m->ranks,
                                  .stages = stages,
                                  .members = members};
    struct plan *plan = pipeline_emit(&t->problem, &candidate, true, &err);
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

/* Draws a random uneven pipeline. Windows fall to 1 at the last stage. */
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

/* Returns the period that docs/PLANNER.md gives for 1F1B: the longest of all stages' cycles (a cycle runs
 * through stages s..j and back, and counts per micro-batch that it holds) and of all links' occupied times.
 */
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

/* The numbers of micro-batches of two runs whose difference is the steady state. It begins after a few times
 * the windows and repeats with the number of micro-batches in the binding cycle, 1 to 15, most of which
 * divide 360. */
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
    const uint32_t turns = getenv("MOTLEY_LONG") ? 4000 : 500;
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
    assert_true(mean < 0.00006 && worst < 0.0046); /* the figures stated in docs/PLANNER.md */
}

/* Each stage, from the last to the first, gets the smallest window with which no cycle through it and a later
 * stage takes longer per micro-batch than the slowest stage or link. The simulated period must then be that
 * of the slowest stage or link (docs/PLANNER.md, "Windows that hide the links"). */
static void windows_that_hide_the_links_reach_the_slowest_stage(void **state)
{
    (void)state;
    struct rand_stream r;
    struct bench s, l;
    struct made m;
    double worst = 0;
    const uint32_t turns = getenv("MOTLEY_LONG") ? 4000 : 1000;
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
        for (uint32_t s = m.stages; s-- > 0;) { /* The rings are deep enough to hide the links. */
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

/* Narayanan et al. 2021, section 2.2: with equal ranges and no links the bubble is 1/laps of 1F1B's. */
static void interleaving_divides_the_bubble_by_the_laps(void **state)
{
    (void)state;
    for (uint32_t ranks = 2; ranks <= 6; ranks++) {
        for (uint32_t laps = 1; laps <= 4; laps++) {
            struct made m = {.ranks = ranks, .stages = ranks * laps, .schedule = SCHEDULE_INTERLEAVED};
            struct bench t;
            const uint32_t count = 4 * ranks;
            bench_init(&t, ranks * laps < 3 ? 3 : ranks * laps, ranks, count);
            for (uint32_t j = 0; j < m.stages; j++) {
                m.f[j] = 1.0 / laps;
                m.b[j] = 2.0 / laps;
            }
            for (uint32_t r = 0; r < ranks; r++)
                m.window[r] = (laps - 1) * ranks + 2 * (ranks - 1 - r) + 1;
            if (laps == 1) { /* With one lap this is plain 1F1B. */
                m.schedule = SCHEDULE_1F1B;
                for (uint32_t r = 0; r < ranks; r++)
                    m.window[r] = ranks - r;
            }
            double wanted = 3.0 * count + 3.0 * (ranks - 1) / laps;
            double seconds = made_run(&t, &m);
            if (fabs(seconds / wanted - 1) > 1e-9)
                fail_msg("%u ranks, %u laps: %g, not %g", ranks, laps, seconds, wanted);
            bench_fini(&t);
        }
    }
}

/* Any number of micro-batches, ranks, laps, links and windows: the programs pass the checker and end. */
static void any_interleaved_pipeline_passes_the_checker(void **state)
{
    (void)state;
    struct rand_stream r;
    uint32_t plans = 0, impossible = 0;
    rand_stream_init(&r, 8, 0);
    for (uint32_t turn = 0; turn < 400; turn++) {
        uint32_t ranks = 2 + rand_stream_below(&r, 5), laps = 2 + rand_stream_below(&r, 3);
        uint32_t count = 1 + rand_stream_below(&r, 20), slack = rand_stream_below(&r, 2 * ranks);
        struct candidate_stage stages[64];
        struct member members[STAGES_MAX] = {0};
        struct err err = {0};
        struct bench t;
        bench_init(&t, ranks * laps, ranks, count);
        for (uint32_t j = 0; j < ranks * laps; j++)
            stages[j] = (struct candidate_stage){(int32_t)j, (int32_t)j + 1, STAGE_REPLICAS, j % ranks, 1};
        for (uint32_t k = 0; k < ranks; k++) {
            members[k].device = k;
            members[k].window = (laps - 1) * ranks + 2 * (ranks - 1 - k) + 1 + slack;
        }
        struct candidate candidate = {.placement = PLACE_PIPELINE,
                                      .schedule = SCHEDULE_INTERLEAVED,
                                      .micro_batch_rows = 1,
                                      .stage_count = ranks * laps,
                                      .member_count = ranks,
                                      .stages = stages,
                                      .members = members};
        struct plan *plan = pipeline_emit(&t.problem, &candidate, true, &err);
        if (plan && plan_check(plan, &err) < 0)
            fail_msg("%u ranks, %u laps, %u micro-batches: %s", ranks, laps, count, err.text);
        plans += plan != NULL;
        impossible += !plan;
        plan_destroy(plan);
        bench_fini(&t);
    }
    print_message("%u interleaved plans pass, %u orders cannot end and are not emitted\n", plans, impossible);
    assert_int_equal(impossible, 0);
}

/* With split backward passes of equal stages, the input gradient need not wait for the weight gradients. */
static void split_backwards_shorten_the_way_back(void **state)
{
    (void)state;
    for (uint32_t ranks = 2; ranks <= 8; ranks++) {
        struct made m = {.ranks = ranks, .stages = ranks, .schedule = SCHEDULE_SPLIT};
        struct bench t;
        const uint32_t count = 3 * ranks;
        bench_init(&t, ranks < 3 ? 3 : ranks, ranks, count);
        for (uint32_t s = 0; s < ranks; s++) {
            m.f[s] = m.b[s] = m.w[s] = 1;
            m.window[s] = ranks - s;
            m.delay[s] = s; /* This gives every stage as much memory as the first one has. */
        }
        double split = made_run(&t, &m), whole = 3.0 * (count + ranks - 1);
        double least =
            3.0 * count + ranks - 1; /* The last stage waits at least for the first forward passes. */
        if (split > whole - (ranks - 1) + 1e-9 || split < least - 1e-9)
            fail_msg("%u stages: %g; 1F1B %g, at least %g", ranks, split, whole, least);
        print_message("%u stages of f = b = w = 1, %u micro-batches: 1F1B %g, split %g, bound %g\n", ranks,
                      count, whole, split, least);
        bench_fini(&t);
    }
}

static size_t encoded_bytes(const struct plan *plan, uint64_t *instructions)
{
    struct err err = {0};
    json_t *json = plan_to_json(plan, &err);
    char *text = json_dumps(json, JSON_COMPACT);
    size_t bytes = strlen(text);
    *instructions = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++)
        for (int kind = 0; kind < PROGRAM_KINDS; kind++)
            *instructions += plan->ranks[r].programs[kind].instr_count;
    free(text);
    json_decref(json);
    return bytes;
}

/* For 64 stages and 256 micro-batches, regular parts of the programs are stored as loops. */
static void large_regular_programs_fold(void **state)
{
    (void)state;
    const enum plan_schedule schedules[] = {SCHEDULE_1F1B, SCHEDULE_GPIPE, SCHEDULE_SPLIT,
                                            SCHEDULE_INTERLEAVED};
    struct bench t;
    bench_init(&t, 128, 64, 256);
    for (uint32_t i = 0; i < 4; i++) {
        static struct candidate_stage stages[128];
        static struct member members[64];
        struct err err = {0};
        uint32_t laps = schedules[i] == SCHEDULE_INTERLEAVED ? 2 : 1, each = 128 / (64 * laps);
        uint64_t instructions = 0;
        for (uint32_t j = 0; j < 64 * laps; j++)
            stages[j] = (struct candidate_stage){(int32_t)(j * each), (int32_t)((j + 1) * each),
                                                 STAGE_REPLICAS, j % 64, 1};
        for (uint32_t r = 0; r < 64; r++)
            members[r] = (struct member){.device = r,
                                         .window = schedules[i] == SCHEDULE_GPIPE ? 256
                                                   : laps == 2                    ? 64 + 2 * (63 - r) + 1
                                                                                  : 64 - r,
                                         .delay = r};
        struct candidate candidate = {.placement = PLACE_PIPELINE,
                                      .schedule = schedules[i],
                                      .micro_batch_rows = 1,
                                      .stage_count = 64 * laps,
                                      .member_count = 64,
                                      .stages = stages,
                                      .members = members};
        struct plan *plan = pipeline_emit(&t.problem, &candidate, true, &err);
        if (!plan)
            fail_msg("%s", err.text);
        assert_int_equal(plan->schedule, schedules[i]);
        size_t bytes = encoded_bytes(plan, &instructions);
        print_message("64 stages x 256 micro-batches, %s: %llu instructions in %zu KiB of JSON\n",
                      plan_schedule_name(plan->schedule), (unsigned long long)instructions, bytes >> 10);
        assert_true(bytes < instructions * 12);
        plan_destroy(plan);
    }
    bench_fini(&t);
}

/* In full fine-tuning a split backward pass gains most, because half of it computes weight gradients. */
static void full_fine_tuning_gains_from_a_split_backward(void **state)
{
    (void)state;
    struct err err = {0};
    struct model_config config = fixture_config(10);
    config.vocab = 2048;
    struct workload w = fixture_workload(&config, 40, 8);
    w.method = METHOD_FULL;
    struct cluster *cluster = cluster_create(&err);
    for (uint32_t d = 0; d < 4; d++) {
        char name[40], node[16];
        snprintf(node, sizeof(node), "n%u", d);
        snprintf(name, sizeof(name), "n%u/0", d);
        fixture_device(cluster, name, node, 4096 * MIB, 1);
    }
    struct problem p;
    if (problem_init(&p, &w, cluster, &err) < 0)
        fail_msg("%s", err.text);
    const struct placement_kind *kind = kinds[PLACE_PIPELINE];
    struct workbench bench;
    struct candidate c = {.placement = PLACE_PIPELINE, .micro_batch_rows = 1};
    workbench_init(&bench, &p, &err);
    bench.rival_s = INFINITY;
    for (uint32_t d = 0; d < 4; d++) {
        assert_int_equal(move_append(&c, kind, &d, 1, &err), 0);
        c.stages[d].block_begin = (int32_t)(3 * d);
        c.stages[d].block_end = (int32_t)(3 * (d + 1));
    }
    assert_int_equal(kind->settle(&bench, &c), 1);
    double whole = candidate_simulate(&p, &c, 32, 0, NULL, &err);
    assert_int_equal(move_apply(&p, kind, &c, (struct move){MOVE_SCHEDULE, 1, 0}, &err), MOVE_AS_IS);
    assert_int_equal(c.schedule, SCHEDULE_SPLIT);
    double split = candidate_simulate(&p, &c, 32, 0, NULL, &err);
    print_message("full fine-tuning on 4 equal devices, 8 rows: 1F1B %.3f s, split %.3f\n", whole, split);
    assert_true(split < whole);
    candidate_fini(&c);
    workbench_fini(&bench);
    problem_fini(&p);
    cluster_destroy(cluster);
    workload_fini(&w);
}

/* The tied table's owner and copy exchange many bytes every step, so with several devices a node both ends
 * are placed on one node. */
static void the_ends_of_a_tied_pipeline_are_in_one_node(void **state)
{
    (void)state;
    struct err err = {0};
    struct model_config config = fixture_config(10);
    struct workload w = fixture_workload(&config, 16, 8);
    w.method = METHOD_FULL;
    w.place = PLACE_PIPELINE;
    struct cluster *cluster = cluster_create(&err);
    for (uint32_t d = 0; d < 8; d++) {
        char name[40], node[16];
        snprintf(node, sizeof(node), "n%u", d / 2);
        snprintf(name, sizeof(name), "n%u/%u", d / 2, d);
        fixture_device(cluster, name, node, 4096 * MIB, 1 + 0.05 * d);
    }
    struct plan_options options = {.programs = true};
    struct plan_answer *answer = NULL;
    if (plan_search(&w, cluster, &options, &answer, &err) < 0)
        fail_msg("%s", err.text);
    assert_non_null(answer->plan);
    assert_int_equal(plan_check(answer->plan, &err), 0);
    const struct plan_rank *first = &answer->plan->ranks[0];
    assert_string_equal(first->node, answer->plan->ranks[answer->plan->rank_count - 1].node);
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    workload_fini(&w);
}

/* A batch of nine rows in micro-batches of two is followed by one of six: on all schedules, empty
 * micro-batches take no time. */
static void a_short_last_batch_takes_less_on_every_schedule(void **state)
{
    (void)state;
    struct err err = {0};
    struct model_config config = fixture_config(10);
    config.vocab = 2048;
    struct workload w = fixture_workload(&config, 15, 9);
    struct cluster *cluster = cluster_create(&err);
    w.micro_batch_rows = 2;
    for (uint32_t d = 0; d < 3; d++) {
        char name[40], node[16];
        snprintf(node, sizeof(node), "n%u", d);
        snprintf(name, sizeof(name), "n%u/0", d);
        fixture_device(cluster, name, node, 4096 * MIB, 1);
    }
    struct problem p;
    if (problem_init(&p, &w, cluster, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(p.step_count, 2);
    for (int schedule = 0; schedule < SCHEDULE_COUNT; schedule++) {
        uint32_t laps = schedule == SCHEDULE_INTERLEAVED ? 2 : 1;
        struct candidate_stage stages[6];
        struct member members[3] = {0};
        for (uint32_t j = 0; j < 3 * laps; j++)
            stages[j] = (struct candidate_stage){(int32_t)(j * 4 / laps), (int32_t)((j + 1) * 4 / laps),
                                                 STAGE_REPLICAS, j % 3, 1};
        for (uint32_t r = 0; r < 3; r++)
            members[r] =
                (struct member){.device = r, .window = schedule == SCHEDULE_GPIPE ? 5 : 3 - r, .delay = r};
        struct candidate candidate = {.placement = PLACE_PIPELINE,
                                      .schedule = (enum plan_schedule)schedule,
                                      .micro_batch_rows = 2,
                                      .stage_count = 3 * laps,
                                      .member_count = 3,
                                      .stages = stages,
                                      .members = members};
        struct plan *plan = pipeline_emit(&p, &candidate, true, &err);
        struct price price;
        double seconds[2] = {0};
        if (!plan || plan_check(plan, &err) < 0 || price_init(&price, &p, plan, &err) < 0)
            fail_msg("%s", err.text);
        for (price.step = 0; price.step < 2; price.step++) {
            struct sim *sim = NULL;
            if (price_step(&price, &sim, &seconds[price.step], NULL, NULL, &err) < 0)
                fail_msg("%s", err.text);
            sim_destroy(sim);
        }
        assert_true(seconds[1] > 0 && seconds[1] < 0.9 * seconds[0]);
        price_fini(&price);
        plan_destroy(plan);
    }
    problem_fini(&p);
    cluster_destroy(cluster);
    workload_fini(&w);
}

static void refused(struct plan *plan, const char *text)
{
    struct err err = {0};
    if (plan_check(plan, &err) == 0)
        fail_msg("accepted, though \"%s\"", text);
    if (!strstr(err.text, text) || !strstr(err.text, "rank"))
        fail_msg("\"%s\" says nothing of \"%s\"", err.text, text);
}

static void unread(json_t *json, const char *text)
{
    struct err err = {0};
    struct plan *plan = plan_from_json(json, &err);
    if (plan || !strstr(err.text, text))
        fail_msg("\"%s\" says nothing of \"%s\"", plan ? "read" : err.text, text);
}

/* Block ranges that overlap, do not ascend or belong to other ranks are refused, as are documents with
 * malformed ranges. */
static void ranges_that_are_not_right_are_refused(void **state)
{
    (void)state;
    struct err err = {0};
    struct bench t;
    struct candidate_stage stages[4];
    struct member members[2] = {{.device = 0, .window = 5}, {.device = 1, .window = 3}};
    bench_init(&t, 4, 2, 4);
    for (uint32_t j = 0; j < 4; j++)
        stages[j] = (struct candidate_stage){(int32_t)j, (int32_t)j + 1, STAGE_REPLICAS, j % 2, 1};
    struct candidate candidate = {.placement = PLACE_PIPELINE,
                                  .schedule = SCHEDULE_INTERLEAVED,
                                  .micro_batch_rows = 1,
                                  .stage_count = 4,
                                  .member_count = 2,
                                  .stages = stages,
                                  .members = members};
    struct plan *plan = pipeline_emit(&t.problem, &candidate, true, &err);
    assert_non_null(plan);
    assert_int_equal(plan_check(plan, &err), 0);
    plan->ranks[0].ranges[1].begin = 1; /* The range touches the first, so both should be one range. */
    refused(plan, "range 1");
    plan->ranks[0].ranges[1] = (struct plan_range){2, 2};
    refused(plan, "range 1");
    plan->ranks[0].ranges[1] = (struct plan_range){2, 3};
    plan->ranks[0].block_end = 4;
    refused(plan, "range 1");
    plan->ranks[0].block_end = 3;
    struct instr *x = &plan->ranks[0].programs[PROGRAM_TRAIN].instrs[0];
    x->block_begin = 1; /* This block lies between the rank's ranges. */
    x->block_end = 2;
    refused(plan, "does not hold");
    x->block_begin = 0;
    x->block_end = 1;
    assert_int_equal(plan_check(plan, &err), 0);
    assert_int_equal(plan_seal(plan, &err), 0);
    json_t *json = plan_to_json(plan, &err), *rank = json_array_get(json_object_get(json, "ranks"), 0);
    struct plan *again = plan_from_json(json, &err);
    assert_non_null(again);
    assert_int_equal(again->ranks[0].range_count, 2);
    assert_int_equal(again->schedule, SCHEDULE_INTERLEAVED);
    plan_destroy(again);
    json_object_set_new(rank, "ranges", json_pack("[[i,i],[i]]", 0, 1, 2));
    unread(json, "ranges");
    json_object_set_new(rank, "ranges", json_pack("[[i,i],[i,i]]", 0, 1, 5, 2));
    unread(json, "ranges");
    json_object_set_new(rank, "ranges", json_pack("[[i,i]]", 0, 1));
    unread(json, "ranges");
    json_object_set_new(json, "schedule", json_string("zigzag"));
    unread(json, "zigzag");
    json_decref(json);
    plan_destroy(plan);
    bench_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_period_of_1f1b_is_the_closed_form),
        cmocka_unit_test(windows_that_hide_the_links_reach_the_slowest_stage),
        cmocka_unit_test(gpipe_takes_exactly_its_closed_form),
        cmocka_unit_test(interleaving_divides_the_bubble_by_the_laps),
        cmocka_unit_test(any_interleaved_pipeline_passes_the_checker),
        cmocka_unit_test(split_backwards_shorten_the_way_back),
        cmocka_unit_test(large_regular_programs_fold),
        cmocka_unit_test(full_fine_tuning_gains_from_a_split_backward),
        cmocka_unit_test(the_ends_of_a_tied_pipeline_are_in_one_node),
        cmocka_unit_test(a_short_last_batch_takes_less_on_every_schedule),
        cmocka_unit_test(ranges_that_are_not_right_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
