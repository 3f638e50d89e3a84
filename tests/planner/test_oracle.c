/* The search against the best there is, found by looking at all there are.
 *
 * The walk below knows nothing of the planner's search: devices in every order, every split of blocks and of
 * rows, every window, recomputation on and off, each emitted and simulated. A branch is left early only where
 * a bound proves that nothing in it beats what is known: a rank's work, which no schedule shortens. The
 * planner's own enumeration of small clusters is off, so what is tested is what searches large ones.
 *
 * MOTLEY_LONG: 500 clusters; MOTLEY_SEED: where they start. */
#include "planner/plan_fixture.h"

#include <math.h>
#include <time.h>

#include "common/buf.h"
#include "planner/placement.h"

#define MIB ((uint64_t)1 << 20)
#define DEVICES 5
#define ROWS 8
#define BLOCKS 10
#define STEPS 2
#define LOOKED_AT_MAX 600000u /* choices of one placement; clusters with more are counted apart */

struct oracle {
    const struct problem *p;
    double best; /* seconds to beat */
    uint64_t simulated;
    struct place_choice found; /* the choice that did, if any; its arrays below */
    struct place_stage found_stages[DEVICES];
    struct place_member found_members[DEVICES];
    struct place_choice c; /* being built */
    struct place_stage stages[DEVICES];
    struct place_member members[DEVICES];
    bool taken[DEVICES];
    uint32_t micro_batches;
    double table[DEVICES][STEPS][ROWS][BLOCKS][COST_WAYS]; /* seconds of micro-batches, block by block */
};

static double seconds_of(const struct problem *p, const struct place_choice *choice)
{
    struct err err = {0};
    double seconds = INFINITY;
    struct plan *plan = placement_find(choice->placement)->emit(p, choice, true, &err);
    if (plan && price_plan(p, plan, WORKLOAD_SAMPLE_STEPS, &seconds, &err) < 0)
        seconds = INFINITY;
    plan_destroy(plan);
    return seconds;
}

static void leaf(struct oracle *o)
{
    o->simulated++;
    double seconds = seconds_of(o->p, &o->c);
    if (seconds >= o->best)
        return;
    o->best = seconds;
    memcpy(o->found_stages, o->stages, sizeof(o->stages));
    memcpy(o->found_members, o->members, sizeof(o->members));
    o->found = o->c;
    o->found.stages = o->found_stages;
    o->found.members = o->found_members;
}

static bool hopeless(const struct oracle *o, double lower)
{
    return lower >= o->best * (1 - 1e-12) || o->simulated > LOOKED_AT_MAX;
}

static void oracle_init(struct oracle *o, const struct problem *p, enum plan_placement kind, double best)
{
    *o = (struct oracle){.p = p, .best = best};
    o->c = (struct place_choice){.placement = kind, .stages = o->stages, .members = o->members};
}

/* Seconds of rows [begin, end) of a priced step through blocks on a device, there and back. */
static double work(const struct problem *p, uint32_t step, uint32_t device, int32_t from, int32_t to,
                   bool recompute, uint32_t begin, uint32_t end)
{
    struct cost_load load = problem_load(p, step, begin, end);
    if (load.rows <= 0)
        return 0;
    return problem_seconds(p, device, from, to, COST_FORWARD, &load) +
           problem_seconds(p, device, from, to, COST_BACKWARD, &load) +
           (recompute ? problem_seconds(p, device, from, to, COST_RECOMPUTE, &load) : 0);
}

static bool allowed(const struct problem *p, int recompute)
{
    enum workload_recompute asked = p->workload->recompute;
    return asked == RECOMPUTE_AUTO || recompute == (asked == RECOMPUTE_YES);
}

/* --- single and data: members one after the other, each with its rows --- */

static void data_member(struct oracle *o, uint32_t row)
{
    const struct problem *p = o->p;
    uint32_t batch = p->workload->batch_rows, m = o->c.member_count;
    bool single = o->c.placement == PLACE_SINGLE;
    if (row == batch && m >= (single ? 1 : 2)) {
        o->stages[0] = (struct place_stage){.block_end = p->block_count, .member_count = m};
        o->c.stage_count = 1;
        o->c.micro_batch_rows = 1;
        for (uint32_t i = 0; i < m; i++) {
            if (o->members[i].micro_rows > o->c.micro_batch_rows)
                o->c.micro_batch_rows = o->members[i].micro_rows;
        }
        leaf(o);
    }
    if (row == batch || m == p->device_count || (single && m))
        return;
    for (uint32_t d = 0; d < p->device_count; d++) {
        for (uint32_t rows = single ? batch : 1; rows <= batch - row && !o->taken[d]; rows++) {
            for (uint32_t micro = 1; micro <= rows; micro++) {
                if (rows % micro && !single)
                    continue;
                for (int recompute = 0; recompute < 2; recompute++) {
                    double seconds = 0;
                    for (uint32_t t = 0; t < p->step_count; t++) {
                        for (uint32_t at = row; at < row + rows; at += micro) {
                            uint32_t end = at + micro < row + rows ? at + micro : row + rows;
                            seconds += work(p, t, d, 0, p->block_count, recompute, at, end) / p->step_count;
                        }
                    }
                    if (!allowed(p, recompute) || hopeless(o, seconds))
                        continue;
                    o->members[m] = (struct place_member){.device = d,
                                                          .micro_rows = micro,
                                                          .micro_count = (rows + micro - 1) / micro,
                                                          .state_share = 1,
                                                          .window = 1,
                                                          .recompute = recompute};
                    o->taken[d] = true;
                    o->c.member_count++;
                    data_member(o, row + rows);
                    o->c.member_count--;
                    o->taken[d] = false;
                }
            }
        }
    }
}

/* --- pipeline and hybrid: stages of members --- */

/* Seconds of every micro-batch of the size in hand, looked up once. */
static void table_fill(struct oracle *o)
{
    const struct problem *p = o->p;
    for (uint32_t d = 0; d < p->device_count; d++) {
        for (uint32_t t = 0; t < p->step_count; t++) {
            for (uint32_t k = 0; k < o->micro_batches; k++) {
                struct cost_load load =
                    problem_load(p, t, k * o->c.micro_batch_rows, (k + 1) * o->c.micro_batch_rows);
                for (int32_t block = 0; block < p->block_count; block++) {
                    for (int way = 0; way < COST_WAYS; way++)
                        o->table[d][t][k][block][way] =
                            load.rows > 0 ? problem_seconds(p, d, block, block + 1, (enum cost_way)way, &load)
                                          : 0;
                }
            }
        }
    }
}

static double looked_up(const struct oracle *o, uint32_t d, uint32_t t, uint32_t k,
                        const struct place_stage *stage, enum cost_way way)
{
    double seconds = 0;
    for (int32_t block = stage->block_begin; block < stage->block_end; block++)
        seconds += o->table[d][t][k][block][way];
    return seconds;
}

/* The least time of a micro-batch from one stage to the next, or back. The next stage's members may not be
 * known yet; `device` is one of them, or of a later stage's. */
static double hop_lower(const struct oracle *o, const struct place_stage *from, const struct place_stage *to,
                        uint32_t t, uint32_t device)
{
    const struct problem *p = o->p;
    double least = INFINITY, bytes = INFINITY;
    bool open = to == &o->stages[o->c.stage_count - 1];
    for (uint32_t k = 0; k < o->micro_batches; k++) {
        struct cost_load load =
            problem_load(p, t, k * o->c.micro_batch_rows, (k + 1) * o->c.micro_batch_rows);
        if (load.rows > 0)
            bytes = fmin(bytes, floor(p->bytes_per_token * load.tokens));
    }
    for (uint32_t a = 0; a < from->member_count; a++) {
        uint32_t source = o->members[from->member_first + a].device;
        for (uint32_t d = 0; d < p->device_count; d++) {
            bool there = open ? !o->taken[d] || d == device : false;
            for (uint32_t b = 0; b < to->member_count; b++)
                there = there || o->members[to->member_first + b].device == d;
            for (int back = 0; back < 2 && there && d != source; back++) {
                double latency, rate;
                bool emulated;
                cluster_link(p->cluster, back ? d : source, back ? source : d, &latency, &rate, &emulated);
                least = fmin(least, latency + bytes / rate);
            }
        }
    }
    return least < INFINITY ? least : 0;
}

/* Summing a stage's gradients over the members it has so far: a ring of more is no faster. */
static double sum_lower(const struct oracle *o, const struct place_stage *stage)
{
    const struct problem *p = o->p;
    double bytes = 0, n = stage->member_count, slowest = 0;
    for (int32_t b = stage->block_begin; b < stage->block_end; b++)
        bytes += 4 * (double)p->blocks.blocks[b].lora_params;
    for (uint32_t m = 0; m < stage->member_count && stage->member_count > 1; m++) {
        double best = INFINITY; /* of this member's links to any other device */
        uint32_t here = o->members[stage->member_first + m].device;
        for (uint32_t d = 0; d < p->device_count; d++) {
            double latency, rate;
            bool emulated;
            if (d == here)
                continue;
            cluster_link(p->cluster, here, d, &latency, &rate, &emulated);
            best = fmin(best, 2 * (n - 1) / n * bytes / rate);
        }
        slowest = fmax(slowest, best);
    }
    return slowest;
}

/* A member's part of a step at least: its micro-batches, whichever they are; before the first of them one has
 * passed the stages before, after the last one passes them again. */
static double member_lower(const struct oracle *o, const struct place_stage *stage,
                           const struct place_member *member)
{
    const struct problem *p = o->p;
    double mean = 0;
    for (uint32_t t = 0; t < p->step_count; t++) {
        double each[ROWS];
        for (uint32_t k = 0; k < o->micro_batches; k++) {
            each[k] = looked_up(o, member->device, t, k, stage, COST_FORWARD) +
                      looked_up(o, member->device, t, k, stage, COST_BACKWARD);
            if (member->recompute)
                each[k] += looked_up(o, member->device, t, k, stage, COST_RECOMPUTE);
        }
        for (uint32_t n = 0; n < member->micro_count; n++) {
            uint32_t least = n;
            for (uint32_t k = n; k < o->micro_batches; k++)
                least = each[k] < each[least] ? k : least;
            double swap = each[n];
            each[n] = each[least];
            each[least] = swap;
            mean += each[n] / p->step_count;
        }
        for (const struct place_stage *before = o->stages; before < stage; before++) {
            double forward = INFINITY, backward = INFINITY;
            for (uint32_t m = 0; m < before->member_count; m++) {
                uint32_t d = o->members[before->member_first + m].device;
                for (uint32_t k = 0; k < o->micro_batches; k++) {
                    forward = fmin(forward, looked_up(o, d, t, k, before, COST_FORWARD));
                    backward = fmin(backward, looked_up(o, d, t, k, before, COST_BACKWARD));
                }
            }
            mean += (forward + backward + 2 * hop_lower(o, before, before + 1, t, member->device)) /
                    p->step_count;
        }
    }
    return mean + sum_lower(o, stage);
}

/* What is left of the blocks, shared by the devices that are left as if it were water. These tests' devices
 * differ by one factor in layers and head, so that no device is better at some part of it. */
static double rest_lower(const struct oracle *o, int32_t begin)
{
    const struct problem *p = o->p;
    const struct place_stage rest = {.block_begin = begin ? begin : 1, .block_end = p->block_count};
    double mean = 0;
    for (uint32_t t = 0; t < p->step_count; t++) {
        double rate = 0;
        for (uint32_t d = 0; d < p->device_count; d++) {
            double all = 0;
            for (uint32_t k = 0; k < o->micro_batches && !o->taken[d]; k++)
                all +=
                    looked_up(o, d, t, k, &rest, COST_FORWARD) + looked_up(o, d, t, k, &rest, COST_BACKWARD);
            rate += all > 0 ? 1 / all : 0;
        }
        mean += rate > 0 ? 1 / rate / p->step_count : 0;
    }
    return mean;
}

/* One device a stage, all of them known. */
static double chain_lower(const struct oracle *o)
{
    double worst = 0;
    for (uint32_t s = 0; s < o->c.stage_count; s++)
        worst = fmax(worst, member_lower(o, &o->stages[s], &o->members[s]));
    return worst;
}

static void windows_walk(struct oracle *o, uint32_t s)
{
    if (s == 0) {
        leaf(o);
        return;
    }
    const struct place_stage *stage = &o->stages[s - 1];
    uint32_t least = s < o->c.stage_count ? o->members[o->stages[s].member_first].window : 1;
    for (uint32_t window = least; window <= o->micro_batches; window++) {
        for (uint32_t m = 0; m < stage->member_count; m++)
            o->members[stage->member_first + m].window = window;
        windows_walk(o, s - 1);
    }
}

static void stage_open(struct oracle *o, int32_t begin);

/* One more member of the open stage, or the stage closed. `left`: micro-batches of it not given yet. */
static void member_add(struct oracle *o, uint32_t left)
{
    const struct problem *p = o->p;
    struct place_stage *stage = &o->stages[o->c.stage_count - 1];
    uint32_t m = o->c.member_count;
    if (left == 0) {
        if (stage->block_end < p->block_count)
            stage_open(o, stage->block_end);
        else if (o->c.stage_count >= 2 &&
                 (o->c.placement == PLACE_PIPELINE ? !hopeless(o, chain_lower(o))
                                                   : o->c.member_count > o->c.stage_count))
            windows_walk(o, o->c.stage_count);
        return;
    }
    for (uint32_t d = 0; d < p->device_count; d++) {
        for (uint32_t count = 1; count <= left && !o->taken[d]; count++) {
            if (o->c.placement == PLACE_PIPELINE && count < left)
                continue;
            for (int recompute = 0; recompute < 2; recompute++) {
                o->members[m] = (struct place_member){.device = d,
                                                      .micro_rows = o->c.micro_batch_rows,
                                                      .micro_count = count,
                                                      .state_share = 1,
                                                      .recompute = recompute};
                if (!allowed(p, recompute) || hopeless(o, member_lower(o, stage, &o->members[m])))
                    continue;
                o->taken[d] = true;
                stage->member_count++;
                o->c.member_count++;
                member_add(o, left - count);
                stage = &o->stages[o->c.stage_count - 1];
                stage->member_count--;
                o->c.member_count--;
                o->taken[d] = false;
            }
        }
    }
}

static void stage_open(struct oracle *o, int32_t begin)
{
    if (o->c.member_count == o->p->device_count || hopeless(o, rest_lower(o, begin)))
        return;
    for (int32_t end = begin + 1; end <= o->p->block_count; end++) {
        o->stages[o->c.stage_count++] =
            (struct place_stage){.block_begin = begin, .block_end = end, .member_first = o->c.member_count};
        member_add(o, o->micro_batches);
        o->c.stage_count--;
    }
}

static void oracle_run(struct oracle *o)
{
    if (o->c.placement == PLACE_SINGLE || o->c.placement == PLACE_DATA) {
        data_member(o, 0);
        return;
    }
    for (uint32_t rows = 1; rows <= o->p->workload->batch_rows; rows++) {
        o->c.micro_batch_rows = rows;
        o->micro_batches = (o->p->workload->batch_rows + rows - 1) / rows;
        table_fill(o);
        stage_open(o, 0);
    }
}

/* --- random cases --- */

struct scene {
    struct model_config config;
    struct workload workload;
    struct cluster *cluster;
};

static void scene_init(struct scene *s, uint64_t seed)
{
    struct rand_stream r;
    struct err err = {0};
    rand_stream_init(&r, seed, 3);
    uint32_t devices = 2 + rand_stream_below(&r, DEVICES - 1);
    s->config = fixture_config(1 + rand_stream_below(&r, 6));
    s->config.vocab = 512 << rand_stream_below(&r, 6);
    s->workload = fixture_workload(&s->config, 2 * ROWS,
                                   2 + rand_stream_below(&r, devices == 5   ? 3
                                                             : devices == 4 ? 4
                                                                            : ROWS - 2));
    s->workload.epochs = 0;
    s->workload.steps = STEPS;
    uint32_t spread = 1 + rand_stream_below(&r, 100);
    for (uint32_t i = 0; i < s->workload.row_count; i++) {
        s->workload.rows[i].tokens = 20 + rand_stream_below(&r, spread);
        s->workload.rows[i].labelled = 1 + s->workload.rows[i].tokens / 2;
    }
    s->workload.recompute = rand_stream_below(&r, 4) ? RECOMPUTE_AUTO : RECOMPUTE_NO;
    s->workload.sample_tokens = s->workload.prompt_tokens = 0;
    s->cluster = cluster_create(&err);
    uint32_t per_node = 1 + rand_stream_below(&r, 2);
    double tight = rand_stream_unit(&r);
    /* what the whole model takes with a row or two, roughly: limits are a part of it, or more */
    uint64_t whole = 4ull * s->config.layers * 3600000 + 4ull * 576 * s->config.vocab + 12 * MIB;
    for (uint32_t d = 0; d < devices; d++) {
        char name[40], node[16];
        snprintf(node, sizeof(node), "n%u", d / per_node);
        snprintf(name, sizeof(name), "n%u/%u", d / per_node, d);
        double share = 0.3 + 1.2 * rand_stream_unit(&r) + (tight < 0.5 ? 0.8 : 0);
        fixture_device(s->cluster, name, node, (uint64_t)((double)whole * share),
                       0.2 + 1.8 * rand_stream_unit(&r));
    }
    uint32_t nodes = (devices + per_node - 1) / per_node;
    for (uint32_t a = 0; a < nodes; a++) {
        for (uint32_t b = 0; b < nodes; b++) {
            char from[16], to[16];
            snprintf(from, sizeof(from), "n%u", a);
            snprintf(to, sizeof(to), "n%u", b);
            if (a != b)
                fixture_link(s->cluster, from, to, 1e-5 * pow(10, 2.5 * rand_stream_unit(&r)),
                             1e7 * pow(10, 2 * rand_stream_unit(&r)));
        }
        char node[16];
        snprintf(node, sizeof(node), "n%u", a);
        if (rand_stream_below(&r, 4) == 0)
            assert_int_equal(cluster_set_nic(s->cluster, node, 2e7 * pow(10, rand_stream_unit(&r)), &err), 0);
    }
}

static void scene_fini(struct scene *s)
{
    cluster_destroy(s->cluster);
    workload_fini(&s->workload);
}

/* Seconds of what the planner answers when asked for one kind (−1: any); INFINITY when nothing fits. */
static double planned(struct scene *s, int kind, uint64_t seed)
{
    struct err err = {0};
    struct plan_answer *answer = NULL;
    struct plan_options options = {.exhaustive_off = true, .brief = true};
    s->workload.place = kind;
    int result = plan_search(&s->workload, s->cluster, &options, &answer, &err);
    s->workload.place = -1;
    if (result < 0 && err.code == ERR_UNSUPPORTED)
        return INFINITY;
    if (result < 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
    double seconds = answer->plan ? answer->step_s : INFINITY;
    if (getenv("MOTLEY_SHOW") && answer->plan) {
        struct buf text;
        buf_init(&text, 1 << 20);
        answer_print(answer, &text, &err);
        print_message("%s", buf_str(&text));
        buf_fini(&text);
    }
    plan_answer_destroy(answer);
    return seconds;
}

struct tally {
    uint32_t cases, unfinished, above; /* above: over 1 + 1e-9 */
    double sum, worst;
    uint64_t worst_seed, simulated;
    double cpu_s;
};

static void tally_add(struct tally *t, double ours, double best, uint64_t seed)
{
    double ratio = ours / best;
    t->cases++;
    t->sum += ratio;
    t->above += ratio > 1 + 1e-9;
    if (ratio > t->worst) {
        t->worst = ratio;
        t->worst_seed = seed;
    }
}

static void choice_print(const struct place_choice *c, double seconds)
{
    print_message("    %s, micro-batches of %u rows, %.6f s:", plan_placement_name(c->placement),
                  c->micro_batch_rows, seconds);
    for (uint32_t s = 0; s < c->stage_count; s++) {
        print_message(" [%d..%d", c->stages[s].block_begin, c->stages[s].block_end);
        for (uint32_t m = 0; m < c->stages[s].member_count; m++) {
            const struct place_member *x = &c->members[c->stages[s].member_first + m];
            print_message(" dev%u %ux%u w%u%s", x->device, x->micro_count, x->micro_rows, x->window,
                          x->recompute ? " again" : "");
        }
        print_message("]");
    }
    print_message("\n");
}

static void the_search_finds_what_looking_at_everything_finds(void **state)
{
    (void)state;
    static const int kinds[] = {PLACE_SINGLE, PLACE_DATA, PLACE_PIPELINE, PLACE_HYBRID};
    struct tally by_kind[PLACE_COUNT] = {0}, all = {0};
    const char *start = getenv("MOTLEY_SEED"), *number = getenv("MOTLEY_CASES"),
               *only = getenv("MOTLEY_ONLY");
    uint64_t first = start ? strtoull(start, NULL, 10) : 1;
    uint32_t count = number ? (uint32_t)strtoul(number, NULL, 10) : getenv("MOTLEY_LONG") ? 500 : 10;
    for (uint64_t seed = first; seed < first + count; seed++) {
        struct scene s;
        struct problem problem;
        struct err err = {0};
        double best = INFINITY;
        scene_init(&s, seed);
        assert_int_equal(problem_init(&problem, &s.workload, s.cluster, &err), 0);
        for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
            static struct oracle o;
            struct tally *t = &by_kind[kinds[i]];
            if (only && strcmp(only, plan_placement_name(kinds[i])) != 0)
                continue;
            double ours = planned(&s, kinds[i], seed);
            clock_t began = clock();
            oracle_init(&o, &problem, (enum plan_placement)kinds[i], ours);
            oracle_run(&o);
            t->cpu_s += (double)(clock() - began) / CLOCKS_PER_SEC;
            t->simulated += o.simulated;
            t->unfinished += o.simulated > LOOKED_AT_MAX;
            if (getenv("MOTLEY_SHOW"))
                print_message("seed %llu %s: %llu in %.1f s\n", (unsigned long long)seed,
                              plan_placement_name(kinds[i]), (unsigned long long)o.simulated, t->cpu_s);
            if (o.best < INFINITY)
                tally_add(t, ours, o.best, seed);
            if (ours > o.best * (1 + 1e-9)) {
                print_message("seed %llu: %s %.6f, best %.6f, ratio %.5f\n", (unsigned long long)seed,
                              plan_placement_name(kinds[i]), ours, o.best, ours / o.best);
                choice_print(&o.found, o.best);
            }
            best = fmin(best, o.best);
        }
        double ours = planned(&s, -1, seed);
        if (best < INFINITY)
            tally_add(&all, ours, fmin(best, ours), seed);
        problem_fini(&problem);
        scene_fini(&s);
    }
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const struct tally *t = &by_kind[kinds[i]];
        print_message("%-8s %3u clusters: mean ratio %.5f, worst %.5f (seed %llu), %u not the best; %llu "
                      "simulated in %.1f s, %u not to the end\n",
                      plan_placement_name(kinds[i]), t->cases, t->cases ? t->sum / t->cases : 0, t->worst,
                      (unsigned long long)t->worst_seed, t->above, (unsigned long long)t->simulated, t->cpu_s,
                      t->unfinished);
    }
    print_message("all      %3u clusters: mean ratio %.5f, worst %.5f (seed %llu), %u not the best\n",
                  all.cases, all.sum / all.cases, all.worst, (unsigned long long)all.worst_seed, all.above);
    assert_true(all.sum / all.cases <= 1.002 && all.worst <= 1.03);
    assert_true(by_kind[PLACE_HYBRID].sum <= 1.002 * by_kind[PLACE_HYBRID].cases);
    assert_true(by_kind[PLACE_HYBRID].worst <= 1.03);
    assert_true(by_kind[PLACE_SINGLE].above == 0 && by_kind[PLACE_DATA].above == 0 &&
                by_kind[PLACE_PIPELINE].above == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_search_finds_what_looking_at_everything_finds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
