/* Members are given rows one after the other, since whose rows come first decides which they are. For step t,
 *
 *     G_t[set][row] = min over d in set and end > row of max(w_t(d, row, end), G_t[set − d][end])
 *
 * is the least time of the slowest when rows from `row` on go to devices of `set`, in any order: the mean
 * over steps of max(what members so far take, G_t) bounds whatever comes of them. w is over the sizes of
 * micro-batches that divide the rows. All members hold places for the largest micro-batch there is, so the
 * largest size is an outer loop, and with it who recomputes: only who does not fit otherwise. */
#include "planner/sharded/replica_exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"
#include "planner/search/polish.h"

#define SAME 1e-9 /* relative: what is no faster than this is not looked at */
#define SETS (1u << REPLICA_EXACT_DEVICES)
#define SIMULATION 200u /* of the budget */

struct replicas { /* of arrays with [steps], the priced steps stand next to each other */
    const struct problem *p;
    struct err *err;
    uint32_t steps, batch, count, device[REPLICA_EXACT_DEVICES];
    uint64_t left;
    bool failed;
    double best;
    struct place_choice found;
    /* at the largest size in hand */
    uint32_t most; /* rows of a micro-batch */
    bool able[REPLICA_EXACT_DEVICES], recompute[REPLICA_EXACT_DEVICES];
    double *each;  /* [2][count][batch + 1: rows][batch + 1: first row][steps]: seconds of a micro-batch; with
                      recomputation */
    double *least; /* [SETS][batch + 1][steps]: G */
    double after;  /* of every choice: optimiser and sums, at least */
    struct place_member members[REPLICA_EXACT_DEVICES];
};

static double *each_of(const struct replicas *r, bool recompute, uint32_t i, uint32_t rows, uint32_t first)
{
    size_t side = (size_t)r->batch + 1;
    return &r->each[((((size_t)recompute * r->count + i) * side + rows) * side + first) * r->steps];
}

static double *least_of(const struct replicas *r, uint32_t set, uint32_t row)
{
    return &r->least[((size_t)set * (r->batch + 1) + row) * r->steps];
}

static void each_fill(struct replicas *r)
{
    const struct problem *p = r->p;
    for (uint32_t i = 0; i < r->count; i++) {
        for (uint32_t rows = 1; rows <= r->batch; rows++) {
            for (uint32_t first = 0; first + rows <= r->batch; first++) {
                for (uint32_t t = 0; t < r->steps; t++) {
                    struct cost_load load =
                        problem_load(p, problem_step_priced(p, t, r->steps), first, first + rows);
                    struct micro_cost cost = {0};
                    if (load.rows > 0)
                        micro_cost_load(&cost, p, r->device[i], &load);
                    double onward = micro_forward(p, &cost, 0, p->block_count);
                    for (int again = 0; again < 2; again++)
                        each_of(r, again, i, rows, first)[t] =
                            onward + micro_backward(p, &cost, 0, p->block_count, again);
                }
            }
        }
    }
}

static bool size_allowed(const struct replicas *r, uint32_t rows)
{
    uint32_t asked = r->p->workload->micro_batch_rows;
    return rows <= r->most && (!asked || rows == asked);
}

/* Seconds of device i for rows [first, end) in micro-batches of so many, step t. */
static double part_seconds(const struct replicas *r, uint32_t i, uint32_t first, uint32_t end, uint32_t rows,
                           uint32_t t)
{
    double seconds = 0;
    for (uint32_t at = first; at < end; at += rows)
        seconds += each_of(r, r->recompute[i], i, rows, at)[t];
    return seconds;
}

/* Who holds a replica with a place for the largest micro-batch, and who recomputes for it. Returns whether
 * any of that is another than before. */
static bool able_fill(struct replicas *r)
{
    bool changed = false;
    for (uint32_t i = 0; i < r->count; i++) {
        bool able = false, again = false;
        for (int recompute = 0; recompute < 2 && !able; recompute++) {
            struct memory_need need;
            const struct memory_stage stage = {.block_end = r->p->block_count,
                                               .window = 1,
                                               .micro_batch_rows = r->most,
                                               .recompute = recompute,
                                               .state_share = 1,
                                               .tensor_share = 1};
            if (!micro_recompute_allowed(r->p, recompute))
                continue;
            memory_stage_need(r->p, &stage, &need);
            able = need.total <= r->p->cluster->devices[r->device[i]].memory_limit_bytes;
            again = recompute;
        }
        changed = changed || able != r->able[i] || (able && again != r->recompute[i]);
        r->able[i] = able;
        r->recompute[i] = again;
    }
    return changed;
}

static void least_fill(struct replicas *r)
{
    for (uint32_t set = 0; set < 1u << r->count; set++) {
        for (uint32_t t = 0; t < r->steps; t++)
            least_of(r, set, r->batch)[t] = 0;
    }
    for (uint32_t first = r->batch; first-- > 0;) {
        for (uint32_t set = 0; set < 1u << r->count; set++) {
            for (uint32_t t = 0; t < r->steps; t++)
                least_of(r, set, first)[t] = INFINITY;
        }
        for (uint32_t i = 0; i < r->count; i++) {
            for (uint32_t end = first + 1; end <= r->batch && r->able[i]; end++) {
                for (uint32_t t = 0; t < r->steps; t++) {
                    double least = INFINITY;
                    for (uint32_t rows = 1; rows <= end - first; rows++) {
                        if ((end - first) % rows == 0 && size_allowed(r, rows))
                            least = fmin(least, part_seconds(r, i, first, end, rows, t));
                    }
                    for (uint32_t set = 1; set < 1u << r->count; set++) {
                        double *at = &least_of(r, set, first)[t];
                        if (set >> i & 1)
                            *at = fmin(*at, fmax(least, least_of(r, set & ~(1u << i), end)[t]));
                    }
                }
            }
        }
    }
}

/* Twice round the ring of these members, with nothing else on its links. */
static double ring_seconds(const struct replicas *r, uint32_t count)
{
    double latency_most = 0, rate_least = INFINITY, bytes = 4 * (double)r->p->blocks.lora_params;
    for (uint32_t m = 0; m < count; m++) {
        double latency, rate;
        bool emulated;
        cluster_link(r->p->cluster, r->members[m].device, r->members[(m + 1) % count].device, &latency, &rate,
                     &emulated);
        latency_most = fmax(latency_most, latency);
        rate_least = fmin(rate_least, rate);
    }
    return 2 * ((double)(count - 1) / count * bytes / rate_least + (count - 1) * latency_most);
}

static double update_seconds(const struct replicas *r, uint32_t count)
{
    double most = 0;
    for (uint32_t m = 0; m < count; m++)
        most = fmax(most, problem_step_seconds(r->p, r->members[m].device, 0, r->p->block_count));
    return most;
}

/* What sums and optimiser take at least, whoever takes part. */
static void after_fill(struct replicas *r)
{
    double ring = INFINITY, step = INFINITY;
    for (uint32_t i = 0; i < r->count; i++) {
        step = fmin(step, problem_step_seconds(r->p, r->device[i], 0, r->p->block_count));
        for (uint32_t k = 0; k < r->count; k++) {
            double latency, rate;
            bool emulated;
            if (i == k)
                continue;
            cluster_link(r->p->cluster, r->device[i], r->device[k], &latency, &rate, &emulated);
            ring = fmin(ring, 2 * latency + 4 * (double)r->p->blocks.lora_params / rate);
        }
    }
    r->after = ring + step;
}

static void leaf(struct replicas *r, uint32_t count, double works)
{
    struct place_stage stage = {.block_end = r->p->block_count, .member_count = count};
    struct place_choice choice = {.placement = PLACE_DATA,
                                  .stage_count = 1,
                                  .member_count = count,
                                  .stages = &stage,
                                  .members = r->members},
                        copy;
    if (works + ring_seconds(r, count) + update_seconds(r, count) >= r->best * (1 - SAME))
        return;
    for (uint32_t m = 0; m < count; m++) {
        if (r->members[m].micro_rows > choice.micro_batch_rows)
            choice.micro_batch_rows = r->members[m].micro_rows;
    }
    double seconds = choice_simulate(r->p, &choice, r->steps, r->err);
    r->left -= r->left < SIMULATION ? r->left : SIMULATION;
    if (seconds <= 0 || seconds >= r->best * (1 - SAME))
        return;
    if (choice_copy(&copy, &choice, r->err) < 0) {
        r->failed = true;
        return;
    }
    choice_fini(&r->found);
    r->found = copy;
    r->found.estimate_s = r->best = seconds;
}

/* takes[steps]: the slowest member so far. */
static void members_walk(struct replicas *r, uint32_t set, uint32_t count, uint32_t first,
                         const double *takes)
{
    double now[WORKLOAD_SAMPLE_STEPS];
    for (uint32_t i = 0; i < r->count; i++) {
        for (uint32_t end = first + 1; end <= r->batch && set >> i & 1 && r->able[i]; end++) {
            for (uint32_t rows = 1; rows <= end - first && r->left > 0 && !r->failed; rows++) {
                double mean = 0;
                if ((end - first) % rows || !size_allowed(r, rows))
                    continue;
                r->left--;
                for (uint32_t t = 0; t < r->steps; t++) {
                    now[t] = fmax(takes[t], part_seconds(r, i, first, end, rows, t));
                    mean += fmax(now[t], least_of(r, set & ~(1u << i), end)[t]) / r->steps;
                }
                if (mean + r->after >= r->best * (1 - SAME))
                    continue;
                r->members[count] = (struct place_member){.device = r->device[i],
                                                          .micro_rows = rows,
                                                          .micro_count = (end - first) / rows,
                                                          .state_share = 1,
                                                          .window = 1,
                                                          .recompute = r->recompute[i]};
                if (end < r->batch)
                    members_walk(r, set & ~(1u << i), count + 1, end, now);
                else if (count > 0)
                    leaf(r, count + 1, mean);
            }
        }
    }
}

static void sizes_look(struct replicas *r)
{
    const double none[WORKLOAD_SAMPLE_STEPS] = {0};
    for (r->most = r->batch; r->most > 0; r->most--) {
        bool changed = able_fill(r);
        if (!changed && r->most < r->batch) /* smaller sizes were looked at with the last */
            continue;
        least_fill(r);
        members_walk(r, (1u << r->count) - 1, 0, 0, none);
    }
}

int replica_exact(const struct problem *p, double beat_s, uint32_t steps_max, uint64_t budget,
                  struct place_choice *choice, double *seconds, struct err *err)
{
    struct replicas r = {
        .p = p, .err = err, .batch = p->workload->batch_rows, .left = budget, .best = beat_s};
    uint32_t usable = 0;
    *choice = (struct place_choice){0};
    for (uint32_t d = 0; d < p->device_count; d++) {
        if (p->usable[d] && usable++ < REPLICA_EXACT_DEVICES)
            r.device[r.count++] = d;
    }
    if (usable < 2 || usable > REPLICA_EXACT_DEVICES || r.batch > REPLICA_EXACT_ROWS ||
        p->workload->method != METHOD_LORA)
        return 0;
    r.steps = steps_max < p->step_count ? steps_max : p->step_count;
    r.steps = r.steps ? r.steps : 1;
    size_t side = (size_t)r.batch + 1;
    r.each = malloc(2 * r.count * side * side * r.steps * sizeof(*r.each));
    r.least = malloc(((size_t)1 << r.count) * side * r.steps * sizeof(*r.least));
    int result = r.each && r.least && r.steps <= WORKLOAD_SAMPLE_STEPS
                     ? 0
                     : err_set(err, ERR_NOMEM, "planner: out of memory");
    if (result == 0) {
        each_fill(&r);
        after_fill(&r);
        sizes_look(&r);
        result = r.failed ? -1 : r.found.member_count > 0;
    }
    if (result > 0) {
        *choice = r.found;
        *seconds = r.best;
    } else {
        choice_fini(&r.found);
    }
    free(r.each);
    free(r.least);
    return result;
}
