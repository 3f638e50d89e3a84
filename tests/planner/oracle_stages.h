/* Enumerates placements made of stages: contiguous pipelines, hybrids, pipelines with split backward passes,
 * and interleaved pipelines. */
#ifndef TEST_ORACLE_STAGES_H
#define TEST_ORACLE_STAGES_H

#include "planner/oracle.h"

/* Fills the table of seconds of every micro-batch of the current size, so that each is looked up once. */
static inline void table_fill(struct oracle *o)
{
    const struct problem *p = o->p;
    for (uint32_t t = 0; t < p->step_count; t++) {
        for (uint32_t k = 0; k < o->micro_batches; k++) {
            struct cost_load load =
                problem_load(p, t, k * o->c.micro_batch_rows, (k + 1) * o->c.micro_batch_rows);
            o->input[t][k] = 1;
            for (int32_t block = 0; block < p->block_count && load.rows > 0; block++)
                o->input[t][k] = fmin(o->input[t][k], 1 - micro_weight_share(p, block, block + 1, &load));
            for (uint32_t d = 0; d < p->device_count; d++) {
                for (int32_t block = 0; block < p->block_count; block++)
                    for (int way = 0; way < COST_WAYS; way++)
                        o->table[d][t][k][block][way] =
                            load.rows > 0 ? problem_seconds(p, d, block, block + 1, (enum cost_way)way, &load)
                                          : 0;
            }
        }
    }
}

static inline double looked_up(const struct oracle *o, uint32_t d, uint32_t t, uint32_t k,
                               const struct candidate_stage *stage, enum cost_way way)
{
    double seconds = 0;
    for (int32_t block = stage->block_begin; block < stage->block_end; block++)
        seconds += o->table[d][t][k][block][way];
    return seconds;
}

/* Returns a lower bound on a device's compute time a step when it runs all micro-batches through the stage.
 */
static inline double stage_work(const struct oracle *o, uint32_t device, const struct candidate_stage *stage,
                                bool recompute)
{
    double mean = 0;
    for (uint32_t t = 0; t < o->p->step_count; t++)
        for (uint32_t k = 0; k < o->micro_batches; k++)
            mean += (looked_up(o, device, t, k, stage, COST_FORWARD) +
                     looked_up(o, device, t, k, stage, COST_BACKWARD) +
                     (recompute ? looked_up(o, device, t, k, stage, COST_RECOMPUTE) : 0)) /
                    o->p->step_count;
    return mean;
}

/* Returns a lower bound on the time of one boundary transfer between a stage and the next. Where the next
 * stage's members are not known yet, `device` is a member of that stage or of a later one. */
static inline double hop_lower(const struct oracle *o, const struct candidate_stage *from,
                               const struct candidate_stage *to, uint32_t t, uint32_t device)
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
                link_of(o, back ? d : source, back ? source : d, &latency, &rate);
                least = fmin(least, latency + bytes / rate);
            }
        }
    }
    return least < INFINITY ? least : 0;
}

/* Returns lower bounds on a stage's synchronisation before and after the compute: all-reducing gradients over
 * the members chosen so far (a larger ring is no faster), or gathering weights and scattering gradients. */
static inline void sync_lower(const struct oracle *o, const struct candidate_stage *stage, double *before,
                              double *after)
{
    const struct problem *p = o->p;
    double bytes = 0, n = stage->member_count, slowest = 0;
    int32_t begin = p->blocks.tied && stage->block_begin == 0 ? 1 : stage->block_begin;
    *before = *after = 0;
    if (stage->member_count < 2)
        return;
    if (full_of(p)) {
        double level = (n - 1) / n / o->rate_best;
        for (int32_t b = begin; b < stage->block_end; b++) {
            *before += level * (double)memory_gathered_bytes(p, b, b + 1);
            *after += level * (double)memory_gradient_bytes(p, b, b + 1);
        }
        return;
    }
    for (int32_t b = stage->block_begin; b < stage->block_end; b++)
        bytes += 4 * (double)p->blocks.blocks[b].lora_params;
    for (uint32_t m = 0; m < stage->member_count; m++) {
        double best = INFINITY; /* the least time over this member's links to any other device */
        uint32_t here = o->members[stage->member_first + m].device;
        for (uint32_t d = 0; d < p->device_count; d++) {
            double latency, rate;
            if (d == here)
                continue;
            link_of(o, here, d, &latency, &rate);
            best = fmin(best, 2 * (n - 1) / n * bytes / rate);
        }
        slowest = fmax(slowest, best);
    }
    *after = slowest;
}

/* Returns a lower bound on the time of one micro-batch through all earlier stages, forward and backward, each
 * by its quickest member. */
static inline void passes_lower(const struct oracle *o, const struct candidate_stage *stage, uint32_t t,
                                uint32_t device, double *onward, double *back)
{
    *onward = *back = 0;
    for (const struct candidate_stage *before = o->stages; before < stage; before++) {
        double forward = INFINITY, backward = INFINITY;
        for (uint32_t m = 0; m < before->member_count; m++) {
            uint32_t d = o->members[before->member_first + m].device;
            for (uint32_t k = 0; k < o->micro_batches; k++) {
                double part = o->c.schedule == SCHEDULE_SPLIT ? o->input[t][k] : 1;
                forward = fmin(forward, looked_up(o, d, t, k, before, COST_FORWARD));
                backward = fmin(backward, part * looked_up(o, d, t, k, before, COST_BACKWARD));
            }
        }
        double hop = hop_lower(o, before, before + 1, t, device);
        *onward += forward + hop;
        *back += backward + hop;
    }
}

/* Returns a lower bound on a step's time by one member: it computes its micro-batches; before the first, one
 * micro-batch has passed the earlier stages, and after the last, it passes them again backwards (with split
 * backward passes: after the half that computes input gradients). */
static inline double member_lower(const struct oracle *o, const struct candidate_stage *stage,
                                  const struct member *member, uint32_t count)
{
    const struct problem *p = o->p;
    double mean = 0, gather, sum, own = 0;
    bool split = o->c.schedule == SCHEDULE_SPLIT;
    sync_lower(o, stage, &gather, &sum);
    for (uint32_t t = 0; t < p->step_count; t++) {
        double each[ORACLE_ROWS], weights = 0, onward, back, computes = 0;
        for (uint32_t k = 0; k < o->micro_batches; k++) {
            double backward = looked_up(o, member->device, t, k, stage, COST_BACKWARD);
            each[k] = looked_up(o, member->device, t, k, stage, COST_FORWARD) + backward;
            weights += split ? (1 - o->input[t][k]) * backward : 0;
            if (member->recompute)
                each[k] += looked_up(o, member->device, t, k, stage, COST_RECOMPUTE);
        }
        for (uint32_t n = 0; n < count; n++) {
            uint32_t least = n;
            for (uint32_t k = n; k < o->micro_batches; k++)
                least = each[k] < each[least] ? k : least;
            double swap = each[n];
            each[n] = each[least];
            each[least] = swap;
            computes += each[n];
        }
        passes_lower(o, stage, t, member->device, &onward, &back);
        back = split ? fmax(0, back - weights) : back;
        mean += (onward + computes + fmax(back, sum)) / p->step_count;
        own += (gather + computes + sum) / p->step_count;
    }
    return fmax(mean, own);
}

/* Returns a lower bound on the time of the remaining blocks, divided continuously among the remaining
 * devices. If the devices differ by one factor in layers and head, no device is relatively better at one of
 * them; otherwise each block is assumed to be on the device that is quickest for it. */
static inline double rest_lower(const struct oracle *o, int32_t begin)
{
    const struct problem *p = o->p;
    const struct candidate_stage rest = {.block_begin = begin ? begin : 1, .block_end = p->block_count};
    double mean = 0;
    uint32_t left = 0;
    for (uint32_t d = 0; d < p->device_count; d++)
        left += !o->taken[d];
    for (uint32_t t = 0; t < p->step_count; t++) {
        double rate = 0, quickest = 0;
        for (uint32_t d = 0; d < p->device_count && o->uniform; d++) {
            double all = 0;
            for (uint32_t k = 0; k < o->micro_batches && !o->taken[d]; k++)
                all +=
                    looked_up(o, d, t, k, &rest, COST_FORWARD) + looked_up(o, d, t, k, &rest, COST_BACKWARD);
            rate += all > 0 ? 1 / all : 0;
        }
        for (int32_t b = rest.block_begin; b < rest.block_end && !o->uniform; b++) {
            const struct candidate_stage one = {.block_begin = b, .block_end = b + 1};
            for (uint32_t k = 0; k < o->micro_batches; k++) {
                double least = INFINITY;
                for (uint32_t d = 0; d < p->device_count; d++)
                    if (!o->taken[d])
                        least = fmin(least, looked_up(o, d, t, k, &one, COST_FORWARD) +
                                                looked_up(o, d, t, k, &one, COST_BACKWARD));
                quickest += least / left;
            }
        }
        mean += (rate > 0 ? 1 / rate : quickest) / p->step_count;
    }
    return mean;
}

/* Returns a lower bound on a step of a pipeline with one device a stage, when all stages are known. */
static inline double chain_lower(const struct oracle *o)
{
    double worst = 0;
    for (uint32_t s = 0; s < o->c.stage_count; s++)
        worst = fmax(worst, member_lower(o, &o->stages[s], &o->members[s], o->micro_batches));
    return worst;
}

/* --- windows and delays --- */

/* Tries larger windows for the leading stages whose windows already are all micro-batches. They cannot keep
 * more micro-batches in flight. But the more a stage's window exceeds the next stage's, the more buffers
 * there are for the tensors on the link between the two (planner/schedule/rings.c), so every round of the
 * loop gives each of these links one more buffer. */
static inline void rings_walk(struct oracle *o)
{
    uint32_t all = 0, held[ORACLE_DEVICES];
    for (uint32_t s = 0; s < o->c.stage_count; s++) {
        held[s] = o->members[s].window;
        all += held[s] == o->micro_batches;
    }
    for (uint32_t more = 1; more < o->micro_batches && all; more++) {
        for (uint32_t s = 0; s < all; s++) {
            uint32_t behind = all < o->c.stage_count ? all - s : all - s - 1;
            o->members[s].window = held[s] + behind * more;
        }
        leaf(o);
    }
    for (uint32_t s = 0; s < o->c.stage_count; s++)
        o->members[s].window = held[s];
}

static inline void delays_walk(struct oracle *o, uint32_t s)
{
    if (s == o->c.stage_count) {
        if (!exhausted(o))
            leaf(o);
        return;
    }
    for (uint32_t delay = 0; delay <= o->micro_batches; delay++) {
        o->members[s].delay = delay;
        delays_walk(o, s + 1);
    }
}

static inline void windows_walk(struct oracle *o, uint32_t s)
{
    if (exhausted(o))
        return;
    if (s == 0 && o->c.schedule == SCHEDULE_SPLIT) {
        delays_walk(o, 0);
        return;
    }
    if (s == 0) {
        leaf(o);
        rings_walk(o);
        return;
    }
    for (uint32_t window = s < o->c.stage_count ? o->members[s].window : 1; window <= o->micro_batches;
         window++) {
        o->members[s - 1].window = window;
        windows_walk(o, s - 1);
    }
}

/* For hybrids, tries every window of each member up to its number of micro-batches, in strict and in eager
 * order. */
static inline void group_windows_walk(struct oracle *o, uint32_t s, uint32_t m)
{
    uint32_t own = 0;
    if (m == o->c.member_count) {
        for (int eager = 0; eager < 2 && !exhausted(o); eager++) {
            o->c.eager = eager;
            leaf(o);
        }
        return;
    }
    if (m == o->stages[s].member_first + o->stages[s].member_count)
        s++;
    for (uint32_t k = 0; k < o->micro_batches; k++)
        own += o->owner[s * o->micro_batches + k] == m - o->stages[s].member_first;
    for (uint32_t window = own; window > 0; window--) {
        o->members[m].window = window;
        group_windows_walk(o, s, m + 1);
    }
}

/* --- stages of members --- */

static inline void stage_open(struct oracle *o, int32_t begin);

static inline void stages_whole(struct oracle *o)
{
    bool chain = o->c.placement == PLACE_PIPELINE;
    if (o->c.stage_count < 2 || (chain ? hopeless(o, chain_lower(o)) : o->c.member_count <= o->c.stage_count))
        return;
    if (chain)
        windows_walk(o, o->c.stage_count);
    else
        group_windows_walk(o, 0, 0);
}

/* The open stage's members and their micro-batches are chosen: opens the next stage, or evaluates the
 * candidate. */
static inline void stage_next(struct oracle *o)
{
    if (o->stages[o->c.stage_count - 1].block_end < o->p->block_count)
        stage_open(o, o->stages[o->c.stage_count - 1].block_end);
    else
        stages_whole(o);
}

/* Deals the micro-batches from k on to the open stage's members in every way that gives each member at least
 * one. */
static inline void deal_walk(struct oracle *o, uint32_t k, uint32_t *counts)
{
    uint32_t s = o->c.stage_count - 1, n = o->stages[s].member_count, idle = 0;
    for (uint32_t m = 0; m < n; m++)
        idle += counts[m] == 0;
    if (idle > o->micro_batches - k || exhausted(o))
        return;
    if (k == o->micro_batches) {
        stage_next(o);
        return;
    }
    for (uint32_t m = 0; m < n; m++) {
        const struct member *member = &o->members[o->stages[s].member_first + m];
        counts[m]++;
        o->owner[s * o->micro_batches + k] = (uint8_t)m;
        if (n == 1 || !hopeless(o, member_lower(o, &o->stages[s], member, counts[m])))
            deal_walk(o, k + 1, counts);
        counts[m]--;
    }
}

static inline void stage_close(struct oracle *o)
{
    uint32_t counts[ORACLE_DEVICES] = {0};
    if (o->c.placement == PLACE_PIPELINE)
        stage_next(o);
    else
        deal_walk(o, 0, counts);
}

/* Closes the open stage, or adds one more member to it. */
static inline void member_add(struct oracle *o)
{
    const struct problem *p = o->p;
    struct candidate_stage *stage = &o->stages[o->c.stage_count - 1];
    uint32_t m = o->c.member_count, all = o->micro_batches;
    bool chain = o->c.placement == PLACE_PIPELINE;
    if (stage->member_count)
        stage_close(o);
    if (m == p->device_count || stage->member_count == (chain ? 1 : all))
        return;
    for (uint32_t d = 0; d < p->device_count; d++) {
        for (int recompute = 0; recompute < 2 && !o->taken[d]; recompute++) {
            o->members[m] = (struct member){
                .device = d, .rows = o->c.micro_batch_rows, .state_share = 1, .recompute = recompute};
            if (!allowed(p, recompute) ||
                hopeless(o, member_lower(o, stage, &o->members[m], chain ? all : 1)))
                continue;
            o->taken[d] = true;
            stage->member_count++;
            o->c.member_count++;
            member_add(o);
            stage->member_count--;
            o->c.member_count--;
            o->taken[d] = false;
        }
    }
}

static inline void stage_open(struct oracle *o, int32_t begin)
{
    if (o->c.member_count == o->p->device_count || hopeless(o, rest_lower(o, begin)))
        return;
    for (int32_t end = begin + 1; end <= o->p->block_count; end++) {
        o->stages[o->c.stage_count++] = (struct candidate_stage){
            .block_begin = begin, .block_end = end, .member_first = o->c.member_count};
        member_add(o);
        o->c.stage_count--;
    }
}

static inline void stages_run(struct oracle *o, enum plan_placement kind, enum plan_schedule schedule)
{
    for (uint32_t rows = 1; rows <= o->p->workload->batch_rows; rows++) {
        candidate_start(o, kind);
        o->c.schedule = schedule;
        o->c.micro_batch_rows = rows;
        o->micro_batches = (o->p->workload->batch_rows + rows - 1) / rows;
        table_fill(o);
        stage_open(o, 0);
    }
}

static inline void pipeline_run(struct oracle *o)
{
    stages_run(o, PLACE_PIPELINE, SCHEDULE_1F1B);
}

static inline void split_run(struct oracle *o)
{
    stages_run(o, PLACE_PIPELINE, SCHEDULE_SPLIT);
}

static inline void hybrid_run(struct oracle *o)
{
    stages_run(o, PLACE_HYBRID, SCHEDULE_1F1B);
}

/* --- interleaved: devices go round, with several ranges each --- */

static inline void slacks_walk(struct oracle *o, uint32_t r)
{
    uint32_t ranks = o->c.member_count, laps = o->c.stage_count / ranks;
    if (r == ranks) {
        if (!exhausted(o))
            leaf(o);
        return;
    }
    uint32_t least = order_window_least(ranks, laps, o->micro_batches, r), most = o->micro_batches * laps;
    for (uint32_t window = least; window <= (most > least ? most : least); window++) {
        o->members[r].window = window;
        slacks_walk(o, r + 1);
    }
}

static inline void ranges_walk(struct oracle *o, uint32_t j, uint32_t laps, int32_t begin, double *works)
{
    uint32_t ranks = o->c.member_count, stages = ranks * laps, r = j % ranks;
    if (j == stages) {
        o->c.stage_count = stages;
        slacks_walk(o, 0);
        return;
    }
    int32_t last = o->p->block_count - (int32_t)(stages - j - 1), first = j + 1 == stages ? last : begin + 1;
    double before = works[r];
    for (int32_t end = first; end <= last; end++) {
        o->stages[j] = (struct candidate_stage){
            .block_begin = begin, .block_end = end, .member_first = r, .member_count = 1};
        works[r] = before + stage_work(o, o->members[r].device, &o->stages[j], o->members[r].recompute);
        if (!hopeless(o, works[r]))
            ranges_walk(o, j + 1, laps, end, works);
    }
    works[r] = before;
}

static inline void ranks_walk(struct oracle *o)
{
    uint32_t ranks = o->c.member_count;
    double works[ORACLE_DEVICES] = {0};
    for (uint32_t laps = 2; ranks >= 2 && (int32_t)(laps * ranks) <= o->p->block_count; laps++)
        ranges_walk(o, 0, laps, 0, works);
    for (uint32_t way = 0; way < 2 * o->p->device_count && !exhausted(o); way++) {
        uint32_t d = way / 2;
        if (o->taken[d] || !allowed(o->p, way % 2))
            continue;
        o->members[ranks] = (struct member){
            .device = d, .rows = o->c.micro_batch_rows, .state_share = 1, .recompute = way % 2};
        o->taken[d] = true;
        o->c.member_count++;
        ranks_walk(o);
        o->c.member_count--;
        o->taken[d] = false;
    }
}

static inline void interleaved_run(struct oracle *o)
{
    for (uint32_t rows = 1; rows < o->p->workload->batch_rows; rows++) {
        candidate_start(o, PLACE_PIPELINE);
        o->c.schedule = SCHEDULE_INTERLEAVED;
        o->c.micro_batch_rows = rows;
        o->micro_batches = (o->p->workload->batch_rows + rows - 1) / rows;
        if (o->micro_batches < 2)
            break;
        table_fill(o);
        ranks_walk(o);
    }
}

#endif
