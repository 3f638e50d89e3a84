#include "planner/kind/cut.h"

#include <math.h>
#include <stdlib.h>

#define TURNS 8u      /* most bisections */
#define DOUBLINGS 40u /* most doublings of the upper bound */
/* Bisection stops when its bounds of the period differ by less than this fraction; whole blocks make no finer
 * difference. */
#define PERIOD_SAME 2e-3
/* When another candidate's step time is to be beaten, bisection starts at this fraction of that candidate's
 * period: most periods that beat it are longer. */
#define NARROW 0.8

/* Returns the seconds to send a boundary tensor of mean size from one device to another, and its gradients
 * back; INFINITY if `links` parallel links cannot send one per period. */
static double hop_seconds(const struct workbench *bench, const struct candidate *c, uint32_t from,
                          uint32_t to, uint32_t links, double period)
{
    const struct problem *p = bench->problem;
    struct problem_link link = problem_link(p, from, to);
    double seconds =
        problem_boundary_bytes(p, p->mean_row.tokens, 1) * c->micro_batch_rows / link.bytes_per_s;
    return seconds > period * links ? INFINITY : 2 * (link.latency_s + seconds);
}

/* Returns the number of links between two neighbouring stages of that many replicas: each replica sends over
 * its own link, so the stage with fewer replicas decides. */
static uint32_t links_between(uint32_t members, uint32_t next)
{
    return members < next ? members : next;
}

static uint32_t cut_window_of(double stay, double period)
{
    double window = ceil(stay / period - 1e-9);
    return window < 1 ? 1 : window > 1e6 ? 1000000 : (uint32_t)window;
}

/* Returns the seconds that a stage may take for a micro-batch. Even cut: one period. Tilted cut: one period
 * plus `stay` (seconds that a micro-batch spends in later stages and transfers, there and back) over the
 * number of micro-batches. Earlier stages begin sooner in a step and end later, so they can have more work in
 * the same step. This shortens steps of few micro-batches, if memory holds the micro-batches in flight. */
static double seconds_allowed(const struct workbench *bench, const struct candidate *c, double period,
                              double stay)
{
    uint32_t together = c->together > 1 ? c->together : 1;
    return bench->even ? period : period + stay * together / micro_count(bench->problem, c->micro_batch_rows);
}

/* The search for a stage's first block, when its last block is known. */
struct begin_search {
    struct workbench *bench;
    const struct placement_kind *kind;
    struct candidate *c;
    uint32_t stage;
    int32_t low, end;    /* the smallest first block allowed, and the block after the stage's last */
    int32_t guess;       /* the search's first guess: the stage has this many blocks */
    double period, stay; /* seconds that the stage may take for a micro-batch; seconds of one in later stages
                            and transfers */
};

/* Returns the smallest first block with which the stage computes all blocks up to b->end within the period;
 * b->end if it can compute none. */
static int32_t begin_least(const struct begin_search *b, struct cut_stage *found)
{
    int32_t low = b->low, end = b->end, guess = b->guess;
    int32_t high = end, reach = 1; /* high: the smallest first block known to be possible */
    /* How long the stage itself takes is unknown yet; it may be a whole period, so one more micro-batch is in
     * flight. */
    uint32_t window = cut_window_of(b->stay + b->period, b->period);
    int32_t at = end - guess > low ? end - guess : low;
    while (low < high) {
        at = at < low ? low : at >= high ? high - 1 : at;
        struct cut_stage x = b->kind->look(b->bench, b->c, b->stage, at, end, window, b->period);
        if (x.period_s <= b->period) {
            high = at;
            *found = x;
            at -= reach;
        } else {
            low = at + 1;
            at = high == end ? low + (high - low) / 2 : at + reach;
        }
        reach *= 2;
    }
    return high;
}

static bool cover(struct workbench *bench, const struct placement_kind *kind, struct candidate *c,
                  double period)
{
    int32_t end = bench->problem->block_count;
    double stay = 0;
    bench->spent += c->member_count;
    for (uint32_t s = c->stage_count; s-- > 0;) {
        struct cut_stage x = {0};
        const struct candidate_stage *own = &c->stages[s], *next = own + 1;
        if (s + 1 < c->stage_count)
            stay += hop_seconds(bench, c, c->members[own->member_first].device,
                                c->members[next->member_first].device,
                                links_between(own->member_count, next->member_count), period);
        int32_t guess = c->stages[s].block_end - c->stages[s].block_begin;
        if (stay == INFINITY)
            return false;
        int32_t begin = begin_least(&(struct begin_search){.bench = bench,
                                                           .kind = kind,
                                                           .c = c,
                                                           .stage = s,
                                                           .low = (int32_t)s,
                                                           .end = end,
                                                           .guess = guess,
                                                           .period = seconds_allowed(bench, c, period, stay),
                                                           .stay = stay},
                                    &x);
        if (begin >= end)
            return false;
        c->stages[s].block_begin = begin;
        c->stages[s].block_end = end;
        stay += x.pass_s;
        end = begin;
    }
    return end == 0;
}

/* Returns a lower bound of the period in seconds, from the sum of all stages' speeds with one block. */
static double cut_period_least(struct workbench *bench, const struct placement_kind *kind,
                               struct candidate *c)
{
    double rate = 0, slowest = 0;
    int32_t middle = bench->problem->block_count / 2;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        struct cut_stage x = kind->look(bench, c, s, middle, middle + 1, 1, INFINITY);
        rate += x.period_s < INFINITY ? 1 / x.period_s : 0;
        slowest = x.period_s < INFINITY && x.period_s > slowest ? x.period_s : slowest;
    }
    return rate > 0 ? bench->problem->block_count / rate / 4 : 0;
}

int cut_blocks(struct workbench *bench, const struct placement_kind *kind, struct candidate *c)
{
    double low = cut_period_least(bench, kind, c), high = low;
    bool fits = false;
    if (low <= 0 || c->stage_count > (uint32_t)bench->problem->block_count)
        return 0;
    if (bench->rival_s < INFINITY &&
        bench->rival_s >
            0) { /* a step takes at least one period of the slowest stage for every micro-batch */
        uint32_t together = c->together > 1 ? c->together : 1;
        double most = bench->rival_s * together / micro_count(bench->problem, c->micro_batch_rows);
        if (most <= low || !cover(bench, kind, c, most))
            return 0;
        fits = true;
        high = most;
        for (low = most * NARROW; cover(bench, kind, c, low); low *= NARROW)
            high = low;
    }
    for (uint32_t i = 0; i < DOUBLINGS && !fits; i++) {
        low = high;
        high *= i < 4 ? 1.7 : 4;
        fits = cover(bench, kind, c, high);
    }
    for (uint32_t i = 0; i < TURNS && fits && high > low * (1 + PERIOD_SAME); i++) {
        double middle = (low + high) / 2;
        if (cover(bench, kind, c, middle))
            high = middle;
        else
            low = middle;
    }
    return fits && cover(bench, kind, c, high);
}

/* --- forming stages from devices in a given order --- */

/* The last blocks of the model, which the first devices of g->order compute within the period, divided into
 * stages. */
struct coverage {
    int32_t begin; /* index of the first covered block */
    double stay; /* seconds of a micro-batch's forward and backward pass from that block on, with transfers */
    uint32_t from, width; /* the earliest covered stage has devices order[from] … order[from + width − 1];
                             reach[from] describes the stages after it */
};

struct grouping {
    struct workbench *bench;
    const struct placement_kind *kind;
    struct candidate *trial; /* three stages, of which the middle one is priced */
    const uint32_t *order;
    uint32_t count, widest;
    struct coverage *reach; /* [count + 1]: entry i is the coverage of the first i devices */
};

static bool coverage_better(const struct coverage *a, const struct coverage *b)
{
    return a->begin != b->begin ? a->begin < b->begin : a->stay < b->stay;
}

/* Returns the coverage that results when a stage of devices order[i] … order[i + width − 1] is put before the
 * stages that reach[i] describes. */
static struct coverage coverage_extend(struct grouping *g, uint32_t i, uint32_t width, double period,
                                       int32_t guess)
{
    struct candidate *c = g->trial;
    struct coverage next = g->reach[i];
    struct cut_stage x = {0};
    c->stages[1] =
        (struct candidate_stage){.kind = g->kind->stage_kind, .member_first = 1, .member_count = width};
    c->stages[2].member_first = width + 1;
    for (uint32_t m = 0; m < width; m++)
        c->members[1 + m] = (struct member){.device = g->order[i + m], .window = 1, .state_share = 1};
    if (i > 0)
        next.stay += hop_seconds(g->bench, c, g->order[i], g->order[g->reach[i].from],
                                 links_between(width, g->reach[i].width), period);
    next.from = i;
    next.width = width;
    if (next.stay == INFINITY)
        return next;
    next.begin = begin_least(&(struct begin_search){.bench = g->bench,
                                                    .kind = g->kind,
                                                    .c = c,
                                                    .stage = 1,
                                                    .end = g->reach[i].begin,
                                                    .guess = guess,
                                                    .period = seconds_allowed(g->bench, c, period, next.stay),
                                                    .stay = next.stay},
                             &x);
    next.stay += x.pass_s;
    return next;
}

/* Fills reach[] for a period. Returns how many of the first devices of the order suffice for all blocks; 0:
 * even all of them do not. */
static uint32_t groups_cover(struct grouping *g, double period)
{
    for (uint32_t i = 0; i <= g->count; i++)
        g->reach[i] = (struct coverage){.begin = INT32_MAX};
    g->reach[0] = (struct coverage){.begin = g->bench->problem->block_count};
    g->bench->spent += (uint64_t)g->count * g->widest * (g->widest + 1) / 8;
    for (uint32_t i = 0; i < g->count; i++) {
        if (g->reach[i].begin == 0)
            return i;
        int32_t guess = 2;
        for (uint32_t width = 1; width <= g->widest && i + width <= g->count; width++) {
            struct coverage next = coverage_extend(g, i, width, period, guess);
            guess = g->reach[i].begin - next.begin + 1;
            if (next.begin < g->reach[i].begin && coverage_better(&next, &g->reach[i + width]))
                g->reach[i + width] = next;
        }
        if (!coverage_better(&g->reach[i + 1], &g->reach[i])) /* the device is left out */
            g->reach[i + 1] = g->reach[i];
    }
    return g->reach[g->count].begin == 0 ? g->count : 0;
}

/* Writes the stages that reach[end] stands for to *c, the model's first blocks first. */
static int groups_take(struct grouping *g, uint32_t end, struct candidate *c)
{
    const struct coverage *at = &g->reach[end];
    c->stage_count = c->member_count = c->owner_count = 0;
    for (int32_t begin = 0;; begin = c->stages[c->stage_count - 1].block_end) {
        uint32_t members = c->member_count + at->width;
        if (candidate_reserve(c, c->stage_count + 1, members, g->bench->err) < 0)
            return -1;
        c->stages[c->stage_count++] = (struct candidate_stage){.block_begin = begin,
                                                               .block_end = g->reach[at->from].begin,
                                                               .kind = g->kind->stage_kind,
                                                               .member_first = c->member_count,
                                                               .member_count = at->width};
        for (uint32_t m = 0; m < at->width; m++)
            c->members[c->member_count++] =
                (struct member){.device = g->order[at->from + m], .window = 1, .state_share = 1};
        if (at->from == 0 || g->reach[at->from].begin == g->bench->problem->block_count)
            return 1;
        at = &g->reach[at->from];
    }
}

/* Returns the shortest period in seconds with which the devices compute all blocks; 0 if nothing fits in
 * memory. */
static double groups_period(struct grouping *g, uint32_t micro_batch_rows)
{
    const struct problem *p = g->bench->problem;
    const struct micro_cost *costs = workbench_costs(g->bench, micro_batch_rows);
    double low = 0, high = 0, rate = 0;
    uint32_t end = 0;
    for (uint32_t i = 0; i < g->count && costs; i++) {
        const struct micro_cost *cost = &costs[g->order[i]];
        rate += 1 / (micro_forward(p, cost, 0, p->block_count) +
                     micro_backward(p, cost, 0, p->block_count, false));
    }
    high = rate > 0 ? 1 / rate : 0;
    for (uint32_t i = 0; i < DOUBLINGS && end == 0 && high > 0; i++) {
        low = high;
        high *= i < 4 ? 1.4 : 4;
        end = groups_cover(g, high);
    }
    for (uint32_t i = 0; i < TURNS && end && high > low * (1 + 5 * PERIOD_SAME); i++) {
        double middle = (low + high) / 2;
        if (groups_cover(g, middle))
            high = middle;
        else
            low = middle;
    }
    return end ? high : 0;
}

int cut_groups(struct workbench *bench, const struct placement_kind *kind, struct candidate *c,
               const uint32_t *order, uint32_t count, uint32_t widest, double *period)
{
    struct candidate trial = {
        .placement = c->placement, .micro_batch_rows = c->micro_batch_rows, .together = c->together};
    struct grouping g = {bench, kind, &trial, order, count, widest < count ? widest : count, NULL};
    int result = candidate_reserve(&trial, 3, g.widest + 2, bench->err);
    g.reach = malloc(((size_t)count + 1) * sizeof(*g.reach));
    if (result == 0 && !g.reach)
        result = err_set(bench->err, ERR_NOMEM, "planner: out of memory");
    if (result == 0) {
        trial.stage_count = 3;
        trial.member_count = g.widest + 2;
        trial.stages[0] = (struct candidate_stage){.kind = kind->stage_kind, .member_count = 1};
        trial.stages[2] = (struct candidate_stage){.kind = kind->stage_kind, .member_count = 1};
        *period = *period > 0 ? *period : groups_period(&g, c->micro_batch_rows);
        uint32_t end = *period > 0 ? groups_cover(&g, *period) : 0;
        result = end ? groups_take(&g, end, c) : 0;
    }
    candidate_fini(&trial);
    free(g.reach);
    return result;
}
