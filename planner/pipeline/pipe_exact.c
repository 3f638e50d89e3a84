/* Orders of devices and cuts, from the head, at every size of micro-batches.
 *
 * What no schedule shortens, from a micro-batch's arrival at a stage until its last backward has left it, all
 * later stages included (few.c has the same form over groups):
 *
 *     R[set][d][b] = min over e, d' of max(W(d, b, e),
 *                                          f₀ + h₀ + T[set − d][d'][e] + h₀' + Σ_k b_k,
 *                                          f₀ + h₀ + R[set − d][d'][e] + h_last + b_last)
 *
 * for device d with blocks [b, e) and devices of `set` after it: W all it computes, f₀ the first
 * micro-batch's forward, b_k the backwards, h the links, T the least time of the first micro-batch there and
 * back. All are means over the priced steps, which sums and maxima of means bound from below. */
#include "planner/pipeline/pipe_exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/pipeline/chain.h"
#include "planner/pipeline/pipe_exact_private.h"
#include "planner/search/polish.h"

#define SETS (1u << PIPE_EXACT_DEVICES)
#define SIMULATION                                                                                           \
    16u /* micro-batches through stages that may be followed while one is emitted and simulated */
#define SIZES_ALL 16u /* rows a step up to which every size of micro-batches is looked at */

struct walk {
    struct exact x;
    uint64_t needs[PIPE_EXACT_BLOCKS + 1][PIPE_EXACT_BLOCKS + 1]
                  [2]; /* of a stage at its least; [recomputes] */
    /* R and T: seconds; INFINITY: cannot be */
    double rest[SETS][PIPE_EXACT_DEVICES][PIPE_EXACT_BLOCKS + 1],
        trip[SETS][PIPE_EXACT_DEVICES][PIPE_EXACT_BLOCKS + 1];
};

/* What is known of the stages so far, means in seconds. */
struct head {
    double comes, leaves; /* before the next stage's first forward; after its last backward */
    double least;         /* some stage's own bound */
    double turns;         /* max over stages of (comes + f₀ + Σ b + leaves) − trip up to it */
    double trip;          /* of the first micro-batch through all of them */
};

uint64_t exact_need(const struct exact *x, int32_t begin, int32_t end, uint32_t window, bool recompute,
                    uint32_t buffers)
{
    struct memory_need need;
    const struct memory_stage stage = {.block_begin = begin,
                                       .block_end = end,
                                       .window = window,
                                       .micro_batch_rows = x->rows,
                                       .recompute = recompute,
                                       .boundary_buffers = buffers,
                                       .state_share = 1,
                                       .tensor_share = 1};
    memory_stage_need(x->p, &stage, &need);
    return need.total;
}

/* --- tables of one size --- */

static void cost_mean(struct micro_cost *sum, const struct micro_cost *cost, double part)
{
    for (int cls = 0; cls < COST_CLASSES; cls++) {
        for (int way = 0; way < COST_WAYS; way++)
            sum->seconds[cls][way] += part * cost->seconds[cls][way];
    }
}

static void costs_fill(struct exact *x)
{
    const struct problem *p = x->p;
    uint32_t count = x->micro_batches;
    for (uint32_t t = 0; t < x->steps; t++) {
        for (uint32_t k = 0; k < count; k++) {
            struct cost_load load =
                problem_load(p, problem_step_priced(p, t, x->steps), k * x->rows, (k + 1) * x->rows);
            x->bytes[(size_t)t * count + k] =
                load.rows > 0 ? floor(p->bytes_per_token * load.tokens * (1 - 1e-15)) : -1;
            for (uint32_t i = 0; i < x->count; i++) {
                uint32_t d = x->usable[i];
                struct micro_cost *cost = &x->cost[((size_t)t * p->device_count + d) * count + k];
                *cost = (struct micro_cost){0};
                if (load.rows > 0)
                    micro_cost_load(cost, p, d, &load);
                cost_mean(&x->all[d], cost, 1.0 / x->steps);
                if (k == 0)
                    cost_mean(&x->first[d], cost, 1.0 / x->steps);
                if (k + 1 == count)
                    cost_mean(&x->last[d], cost, 1.0 / x->steps);
            }
        }
    }
}

static void hops_fill(struct exact *x)
{
    uint32_t n = x->p->device_count, count = x->micro_batches;
    for (uint32_t i = 0; i < x->count * x->count; i++) {
        uint32_t a = x->usable[i / x->count], b = x->usable[i % x->count];
        double latency, rate;
        bool emulated;
        x->hop_first[a * n + b] = x->hop_last[a * n + b] = 0;
        if (a == b)
            continue;
        cluster_link(x->p->cluster, a, b, &latency, &rate, &emulated);
        for (uint32_t t = 0; t < x->steps; t++) {
            double first = x->bytes[(size_t)t * count], last = x->bytes[(size_t)t * count + count - 1];
            x->hop_first[a * n + b] += first < 0 ? 0 : (latency + first / rate) / x->steps;
            x->hop_last[a * n + b] += last < 0 ? 0 : (latency + last / rate) / x->steps;
        }
    }
}

static void needs_fill(struct walk *w)
{
    const uint32_t windows[3] = {1, 1, 1};
    for (int32_t b = 0; b < w->x.blocks; b++) {
        for (int32_t e = b + 1; e <= w->x.blocks; e++) {
            uint32_t buffers =
                chain_boundary_buffers(b > 0, 1 + (b > 0) + (e < w->x.blocks), windows, w->x.micro_batches);
            for (int recompute = 0; recompute < 2; recompute++)
                w->needs[b][e][recompute] = micro_recompute_allowed(w->x.p, recompute)
                                                ? exact_need(&w->x, b, e, 1, recompute, buffers)
                                                : UINT64_MAX;
        }
    }
}

/* One stage, at its least. */
struct stage_times {
    double all, backwards, first_forward, first_backward, last_backward;
};

static bool stage_times(const struct walk *w, uint32_t d, int32_t b, int32_t e, struct stage_times *out)
{
    const struct problem *p = w->x.p;
    uint64_t limit = p->cluster->devices[d].memory_limit_bytes;
    bool again = w->needs[b][e][0] > limit;
    if (again && w->needs[b][e][1] > limit)
        return false;
    out->backwards = micro_backward(p, &w->x.all[d], b, e, again);
    out->all = micro_forward(p, &w->x.all[d], b, e) + out->backwards;
    out->first_forward = micro_forward(p, &w->x.first[d], b, e);
    out->first_backward = micro_backward(p, &w->x.first[d], b, e, again);
    out->last_backward = micro_backward(p, &w->x.last[d], b, e, again);
    return true;
}

/* R and T of a stage whose end is known, over who comes next. */
static void next_least(const struct walk *w, uint32_t set, uint32_t i, int32_t e, const struct stage_times *s,
                       double *rest, double *trip)
{
    const struct exact *x = &w->x;
    uint32_t n = x->p->device_count, d = x->usable[i], left = set & ~(1u << i);
    *rest = *trip = INFINITY;
    for (uint32_t j = 0; j < x->count; j++) {
        uint32_t next = x->usable[j];
        if (!(left >> j & 1) || w->rest[left][j][e] >= INFINITY)
            continue;
        double there = x->hop_first[d * n + next];
        double turn = s->first_forward + there + w->trip[left][j][e] + x->hop_first[next * n + d];
        double all =
            s->first_forward + there + w->rest[left][j][e] + x->hop_last[next * n + d] + s->last_backward;
        *trip = fmin(*trip, turn + s->first_backward);
        *rest = fmin(*rest, fmax(s->all, fmax(turn + s->backwards, all)));
    }
}

static void rests_fill(struct walk *w)
{
    for (int32_t b = w->x.blocks - 1; b >= 0; b--) {
        for (uint32_t set = 1; set < 1u << w->x.count; set++) {
            for (uint32_t i = 0; i < w->x.count; i++) {
                double *rest = &w->rest[set][i][b], *trip = &w->trip[set][i][b];
                *rest = *trip = INFINITY;
                for (int32_t e = b + 1; e <= w->x.blocks && set >> i & 1; e++) {
                    struct stage_times s;
                    double all, turn;
                    if (!stage_times(w, w->x.usable[i], b, e, &s))
                        break;
                    if (e == w->x.blocks) {
                        all = b ? s.all : INFINITY; /* one stage is no pipeline */
                        turn = s.first_forward + s.first_backward;
                    } else {
                        next_least(w, set, i, e, &s, &all, &turn);
                    }
                    *rest = fmin(*rest, all);
                    *trip = fmin(*trip, turn);
                }
            }
        }
    }
}

/* --- orders and cuts --- */

static double after_of(const struct exact *x)
{
    double most = 0, first = 0;
    for (uint32_t s = 0; s < x->stages; s++) {
        double step = problem_step_seconds(x->p, x->device[s], s ? x->end[s - 1] : 0, x->end[s]);
        first = s ? first : step;
        most = fmax(most, step);
    }
    return exact_after(x, most, first, x->device[x->stages - 1]);
}

static bool hopeless(const struct walk *w, double seconds)
{
    return seconds >= w->x.best * (1 - PIPE_EXACT_SAME);
}

/* The head with stage i of blocks [b, e) behind it. */
static struct head head_with(const struct walk *w, const struct head *h, uint32_t i,
                             const struct stage_times *s)
{
    const struct exact *x = &w->x;
    struct head next = *h;
    double there = 0, back = 0, home = 0;
    if (x->stages > 0) {
        uint32_t from = x->device[x->stages - 1], to = x->usable[i], n = x->p->device_count;
        there = x->hop_first[from * n + to];
        back = x->hop_first[to * n + from];
        home = x->hop_last[to * n + from];
    }
    next.comes += there;
    next.leaves += home;
    next.trip += there + back;
    next.least = fmax(next.least, next.comes + s->all + next.leaves);
    double turns = next.comes + s->first_forward + s->backwards + next.leaves;
    next.trip += s->first_forward + s->first_backward;
    next.turns = fmax(next.turns, turns - next.trip);
    next.comes += s->first_forward;
    next.leaves += s->last_backward;
    return next;
}

static void stages_walk(struct walk *w, uint32_t set, int32_t b, const struct head *h);

/* Stage i of blocks [b, e) is next; its bounds, and what may come after it. */
static void stage_put(struct walk *w, uint32_t set, uint32_t i, int32_t e, const struct head *h,
                      const struct stage_times *s)
{
    struct exact *x = &w->x;
    struct head next = head_with(w, h, i, s);
    double rest = 0, trip = 0, asked = x->p->workload->stages;
    x->left -= x->left > 0;
    if (e < x->blocks) {
        next_least(w, set, i, e, s, &rest, &trip);
        trip -= s->first_forward + s->first_backward; /* of what follows, its links among it */
        rest += next.comes - s->first_forward + next.leaves - s->last_backward;
    }
    if (hopeless(w, fmax(next.least, fmax(rest, next.turns + next.trip + trip))))
        return;
    x->device[x->stages] = x->usable[i];
    x->end[x->stages++] = e;
    if (e < x->blocks) {
        stages_walk(w, set & ~(1u << i), e, &next);
    } else if (asked <= 0 || x->stages == asked) {
        x->after = after_of(x);
        exact_windows(x);
    }
    x->stages--;
}

static void stages_walk(struct walk *w, uint32_t set, int32_t b, const struct head *h)
{
    struct exact *x = &w->x;
    for (uint32_t i = 0; i < x->count && !x->failed; i++) {
        for (int32_t e = b + 1; e <= x->blocks && set >> i & 1; e++) {
            struct stage_times s;
            if (!stage_times(w, x->usable[i], b, e, &s) || (b == 0 && e == x->blocks))
                break;
            if (x->left == 0) {
                x->cut_off = true;
                return;
            }
            stage_put(w, set, i, e, h, &s);
        }
    }
}

int exact_size_init(struct exact *x)
{
    size_t n = x->p->device_count, count = x->micro_batches;
    x->cost = malloc((x->steps * n * count + 3 * n) * sizeof(*x->cost));
    x->bytes = malloc((x->steps * count + 2 * n * n) * sizeof(*x->bytes));
    if (!x->cost || !x->bytes)
        return err_set(x->err, ERR_NOMEM, "planner: out of memory");
    x->all = x->cost + x->steps * n * count;
    x->first = x->all + n;
    x->last = x->first + n;
    memset(x->all, 0, 3 * n * sizeof(*x->all));
    x->hop_first = x->bytes + x->steps * count;
    x->hop_last = x->hop_first + n * n;
    costs_fill(x);
    hops_fill(x);
    return 0;
}

void exact_size_fini(struct exact *x)
{
    free(x->cost);
    free(x->bytes);
    x->cost = NULL;
    x->bytes = NULL;
}

uint32_t exact_sizes(const struct problem *p, uint32_t sizes[MICRO_SIZES_MAX])
{
    uint32_t batch = p->workload->batch_rows;
    if (p->workload->micro_batch_rows || batch > SIZES_ALL)
        return micro_sizes(p, sizes);
    for (uint32_t rows = 1; rows <= batch; rows++)
        sizes[rows - 1] = rows;
    return batch;
}

bool exact_init(struct exact *x, const struct problem *p, double best_s, uint32_t steps_max, uint64_t budget,
                struct err *err)
{
    uint32_t usable = problem_usable_count(p);
    if (usable < 2 || usable > PIPE_EXACT_DEVICES || p->block_count > PIPE_EXACT_BLOCKS || p->block_count < 2)
        return false;
    *x = (struct exact){.p = p, .err = err, .left = budget, .best = best_s, .blocks = p->block_count};
    x->steps = steps_max < p->step_count ? steps_max : p->step_count;
    x->steps = x->steps ? x->steps : 1;
    for (uint32_t d = 0; d < p->device_count; d++) {
        if (p->usable[d])
            x->usable[x->count++] = d;
    }
    return true;
}

double exact_after(const struct exact *x, double most, double first, uint32_t last_device)
{
    double tied = chain_tied_seconds(x->p, x->device[0], last_device);
    return fmax(tied / 2 + most, tied > 0 ? tied + first : 0);
}

bool exact_take(struct exact *x, const struct place_choice *choice)
{
    struct place_choice copy;
    double seconds = choice_simulate(x->p, choice, x->steps, x->err);
    uint64_t spent = SIMULATION * x->steps * choice->stage_count * x->micro_batches;
    x->left -= x->left < spent ? x->left : spent;
    x->cut_off = x->cut_off || x->left == 0;
    if (seconds <= 0 || seconds >= x->best * (1 - PIPE_EXACT_SAME))
        return seconds > 0;
    if (choice_copy(&copy, choice, x->err) < 0) {
        x->failed = true;
        return true;
    }
    choice_fini(&x->found);
    x->found = copy;
    x->found.estimate_s = x->best = seconds;
    return true;
}

int exact_end(struct exact *x, int result, struct place_choice *choice, double *seconds)
{
    if (result < 0)
        choice_fini(&x->found);
    if (result < 0 || !x->found.member_count)
        return result;
    *choice = x->found;
    *seconds = x->best;
    return 1;
}

static int size_look(struct walk *w)
{
    const struct head none = {0};
    if (exact_size_init(&w->x) < 0 || exact_times_init(&w->x) < 0)
        return -1;
    needs_fill(w);
    rests_fill(w);
    w->x.stages = 0;
    stages_walk(w, (1u << w->x.count) - 1, 0, &none);
    return w->x.failed ? -1 : 0;
}

static int sizes_look(struct walk *w)
{
    struct exact *x = &w->x;
    uint32_t sizes[MICRO_SIZES_MAX], size_count = exact_sizes(x->p, sizes);
    int result = 0;
    for (uint32_t i = 0; i < size_count && result == 0; i++) {
        x->rows = sizes[i];
        x->micro_batches = micro_count(x->p, x->rows);
        if (x->micro_batches > PIPE_EXACT_MICRO) {
            x->cut_off = true;
            continue;
        }
        result = size_look(w);
        exact_size_fini(x);
        exact_times_fini(x);
    }
    return result;
}

int pipe_exact(const struct problem *p, double beat_s, uint32_t steps_max, uint64_t budget,
               struct place_choice *choice, double *seconds, bool *whole, struct err *err)
{
    struct walk *w = malloc(sizeof(*w));
    if (whole)
        *whole = false;
    *choice = (struct place_choice){0};
    if (!w)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    if (!exact_init(&w->x, p, beat_s, steps_max, budget, err)) {
        free(w);
        return 0;
    }
    int result = sizes_look(w);
    if (whole)
        *whole = result == 0 && !w->x.cut_off;
    result = exact_end(&w->x, result, choice, seconds);
    free(w);
    return result;
}
