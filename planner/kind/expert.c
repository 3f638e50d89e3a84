/* expert: attention on some devices, experts on others (or on the same), in zebra order (HeterMoE).
 *
 * For every assignment of the two roles that is tried, rows are divided by attention's speed and experts
 * by water-filling, in waves as long as memory allows, and the closed form (zebra_seconds) estimates a
 * step. With at most ROLES_ALL devices all assignments are tried. With more, devices are sorted by the
 * speed of their attention relative to that of their experts; the front gets attention, and the rest, or
 * all, get experts.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/fill.h"
#include "planner/cost/micro.h"
#include "planner/cost/ring.h"
#include "planner/emit/expert.h"
#include "planner/kind/shards.h"

#define ROLES_ALL 4u     /* most devices for which all 3^n assignments of roles are tried */
#define DELAYS 3u        /* delays tried for experts behind attention, in micro-batches: 0 to 2 */
#define LAYERS_SEEN 5u   /* layers simulated of a run; the last but one takes as long as any in the middle */
#define NEARLY 1.1       /* closed forms are at most this factor too long */
#define SHARE_LEAST 0.02 /* the least share of one expert per layer for which a rank is used */

enum { ROLE_ATTENTION = 1, ROLE_EXPERTS = 2, ROLE_BOTH = ROLE_ATTENTION | ROLE_EXPERTS };

/* Bytes of `count` experts of every layer: fixed + tokens · (token + wave · wave_token). */
struct expert_memory {
    double fixed, token, wave_token;
};

struct expert_device { /* one device of the candidate */
    uint32_t device;
    uint64_t limit;
    double speed_s; /* forward and backward of attention for all rows of a micro-batch, per layer */
    double experts_s[COST_WAYS]; /* all experts of a layer, with even routing */
    /* Set for the roles that are tried: seconds of the device's rows of a micro-batch, for attention in
     * one layer and for all dense blocks. */
    uint8_t role;
    bool again;
    uint32_t rows;
    double tokens, attention_s[COST_WAYS], dense_s[COST_WAYS];
    double own[2][2]; /* [again]: bytes of everything but experts: fixed, and per micro-batch of a wave */
    /* Set for the shares of experts that are tried: seconds per micro-batch [forward, backward]; free_s:
     * when the device is free in a simulated wave. */
    double attend[2], expert[2], dense, free_s;
};

struct expert_search {
    struct workbench *bench;
    const struct problem *p;
    struct candidate *c;
    struct expert_model model;
    struct expert_links links;             /* indexed like seats */
    struct expert_memory *held[2];         /* [recompute][experts + 1] */
    struct expert_layer *even;             /* [sparse_count] scratch */
    struct member *best;                   /* [n] members of the best candidate that fits */
    double best_s, gradient_bytes, tokens; /* tokens: bound for a micro-batch with the given rows */
    double filled;                         /* mean share of a step's micro-batches that are full */
    double exchange_s;                     /* seconds of one exchange */
    bool one_way;                          /* both directions use the same wire */
    double *turn;                          /* [2 · micro-batches] scratch */
    uint32_t n, attending, micro_batches;
    uint32_t *order; /* [n] seats in the order of members: attention first */
    struct expert_device seats[SHARDS_MEMBERS_MAX];
};

/* --- independent of roles --- */

static double attention_seconds(const struct cost_device *cost, enum cost_way way,
                                const struct cost_load *load)
{
    return cost_part_seconds(cost, COST_PART_ATTENTION, way, load) +
           cost_part_seconds(cost, COST_PART_ROUTER, way, load);
}

static double experts_bytes(const struct expert_search *s, uint32_t count, bool again, double tokens,
                            uint32_t wave)
{
    struct expert_need need;
    for (uint32_t l = 0; l < s->model.sparse_count; l++)
        s->even[l] = (struct expert_layer){count, (double)count / s->model.experts};
    expert_need_fill(s->p, &s->model, 0, s->even, tokens, wave, again, &need);
    return (double)need.all.total;
}

/* Memory is linear in tokens, with a slope linear in the wave's length; three evaluations give the
 * coefficients. */
static void expert_memory_fill(struct expert_search *s)
{
    const double many = 65536;
    for (int again = 0; again < 2; again++) {
        for (uint32_t count = 0; count <= s->model.experts; count++) {
            double none = experts_bytes(s, count, again, 0, 0);
            double token = (experts_bytes(s, count, again, many, 0) - none) / many;
            double wave = (experts_bytes(s, count, again, many, 1) - none) / many - token;
            s->held[again][count] = (struct expert_memory){none, token, wave};
        }
    }
}

/* Mean number of full micro-batches that take as long as a step, divided by the number of micro-batches.
 * Half of what a partly filled one lacks counts. */
static double full_share(const struct expert_search *s)
{
    double count = 0;
    for (uint32_t k = 0; k < s->p->step_count; k++) {
        double full = (double)s->p->steps[k].rows / s->c->micro_batch_rows;
        count += (full + ceil(full)) / 2;
    }
    return count / s->p->step_count / s->micro_batches;
}

static int seek_init(struct expert_search *s, struct workbench *bench, struct candidate *c)
{
    uint32_t device[SHARDS_MEMBERS_MAX], n = c->member_count;
    struct expert_need need;
    s->bench = bench;
    s->p = bench->problem;
    s->c = c;
    s->n = n;
    s->micro_batches = micro_count(s->p, c->micro_batch_rows);
    s->filled = full_share(s);
    s->best_s = INFINITY;
    if (expert_model_init(&s->model, s->p, bench->err) < 0)
        return -1;
    s->even = calloc(s->model.sparse_count, sizeof(*s->even));
    s->held[0] = calloc(2 * ((size_t)s->model.experts + 1), sizeof(*s->held[0]));
    s->best = calloc(n, sizeof(*s->best));
    s->order = calloc(n, sizeof(*s->order));
    s->turn = calloc(2 * (size_t)s->micro_batches, sizeof(*s->turn));
    if (!s->even || !s->held[0] || !s->best || !s->order || !s->turn)
        return err_set(bench->err, ERR_NOMEM, "planner: out of memory");
    s->held[1] = s->held[0] + s->model.experts + 1;
    expert_need_fill(s->p, &s->model, 1, NULL, 0, 1, false, &need);
    s->gradient_bytes = (double)need.gradient_bytes;
    for (uint32_t i = 0; i < n; i++) {
        struct expert_device *x = &s->seats[i];
        struct cost_load load = problem_mean_rows(s->p, c->micro_batch_rows);
        device[i] = x->device = c->members[i].device;
        const struct cost_device *cost = &s->p->costs[x->device];
        x->limit = s->p->cluster->devices[x->device].memory_limit_bytes;
        x->speed_s =
            attention_seconds(cost, COST_FORWARD, &load) + attention_seconds(cost, COST_BACKWARD, &load);
        for (int way = 0; way < COST_WAYS; way++)
            x->experts_s[way] = cost_experts_seconds(cost, (enum cost_way)way, s->model.experts,
                                                     load.tokens * s->model.active / s->model.experts);
        s->order[i] = i;
    }
    return expert_links_init(&s->links, s->p->cluster, device, n, bench->err);
}

static void seek_free(struct expert_search *s)
{
    if (!s)
        return;
    expert_model_fini(&s->model);
    expert_links_fini(&s->links);
    free(s->even);
    free(s->held[0]);
    free(s->best);
    free(s->order);
    free(s->turn);
    free(s);
}

/* Seconds of a seat's rows of a micro-batch. */
static void seat_price(const struct expert_search *s, struct expert_device *x)
{
    const struct cost_device *cost = &s->p->costs[x->device];
    struct cost_load load = problem_mean_rows(s->p, x->rows);
    x->tokens = load.tokens;
    for (int way = 0; way < COST_WAYS; way++) {
        x->attention_s[way] = x->rows ? attention_seconds(cost, (enum cost_way)way, &load) : 0;
        x->dense_s[way] = 0;
        for (int cls = 0; cls < COST_CLASSES && x->rows; cls++) {
            uint32_t count = s->p->prefix[s->p->block_count][cls];
            if (cls != COST_LAYER_SPARSE && count)
                x->dense_s[way] +=
                    count * cost_class_seconds(cost, (enum cost_class)cls, (enum cost_way)way, &load);
        }
    }
}

static double pass_of(const double seconds[COST_WAYS], bool back, bool again)
{
    return back ? seconds[COST_BACKWARD] + (again ? seconds[COST_RECOMPUTE] : 0) : seconds[COST_FORWARD];
}

/* Seconds of a layer for shares x of the experts; `slow`: factor for layers that differ from the mean. */
static void layer_price(struct expert_search *s, const double *x, double slow)
{
    double tokens[SHARDS_MEMBERS_MAX], touched[SHARDS_MEMBERS_MAX];
    for (uint32_t i = 0; i < s->n; i++) {
        struct expert_device *y = &s->seats[i];
        double once = x[i] > 0 ? (1 - x[i]) * s->p->costs[y->device].experts_overhead_s : 0;
        for (int back = 0; back < 2; back++) {
            y->attend[back] = pass_of(y->attention_s, back, y->again);
            y->expert[back] = slow * x[i] * pass_of(y->experts_s, back, y->again) + once;
        }
        y->dense = pass_of(y->dense_s, false, false) + pass_of(y->dense_s, true, y->again);
        tokens[i] = y->rows ? y->tokens : 0;
        touched[i] = x[i] > 0 ? expert_touched(s->model.experts, s->model.active, x[i]) : 0;
    }
    s->exchange_s = expert_exchange_seconds(&s->links, tokens, touched, s->model.routed_bytes);
    s->one_way = expert_links_shared(&s->links);
}

/* A step by the closed form without the optimiser and reductions; a lower estimate for comparing many
 * shares. */
static double zebra_step(const struct expert_search *s, uint32_t wave)
{
    double seconds = 0, dense = 0;
    for (int back = 0; back < 2; back++) {
        struct zebra z = {.dispatch_s = s->exchange_s,
                          .combine_s = s->exchange_s,
                          .wire_s = s->one_way ? 2 * s->exchange_s : 0};
        for (uint32_t i = 0; i < s->n; i++) {
            const struct expert_device *y = &s->seats[i];
            z.attention_s = fmax(z.attention_s, y->attend[back]);
            z.experts_s = fmax(z.experts_s, y->expert[back]);
            z.shared_s = fmax(z.shared_s, y->attend[back] + y->expert[back]);
            dense = fmax(dense, y->dense);
        }
        seconds += s->micro_batches / wave * zebra_seconds(&z, s->model.sparse_count, wave) +
                   zebra_seconds(&z, s->model.sparse_count, s->micro_batches % wave);
    }
    return s->filled * (seconds + s->micro_batches * dense);
}

/* --- simulation of a wave, as its programs run (emit/expert_program.c) --- */

struct wave_run {
    struct expert_search *s;
    uint32_t count, lag;
    bool drains;
    double *waits, waits_s; /* the exchange back that has not started: where its arrival will be written, and
                               when it was ready; NULL: none */
    double to_s, from_s;    /* times at which the queues to and from the experts are free */
    /* [count]: times at which a micro-batch arrives at its experts, and back at attention */
    double *there_s, *here_s;
};

/* All ranks with a role do their part of a micro-batch; returns the time at which the last is done. */
static double ranks_run(struct expert_search *s, bool experts, bool back, double ready)
{
    double end = ready;
    for (uint32_t i = 0; i < s->n; i++) {
        struct expert_device *x = &s->seats[i];
        double seconds = experts ? x->expert[back] : x->attend[back];
        if (seconds <= 0)
            continue;
        x->free_s = fmax(x->free_s, ready) + seconds;
        end = fmax(end, x->free_s);
    }
    return end;
}

/* Starts the waiting exchange back. If both directions share a wire, the order of readiness decides. */
static void exchange_back_start(struct wave_run *v)
{
    double *queue = v->s->one_way ? &v->to_s : &v->from_s;
    if (v->waits)
        *v->waits = *queue = fmax(*queue, v->waits_s) + v->s->exchange_s;
    v->waits = NULL;
}

static double go_there(struct wave_run *v, double ready)
{
    if (v->waits_s <= ready)
        exchange_back_start(v);
    return v->to_s = fmax(v->to_s, ready) + v->s->exchange_s;
}

static void wait_back(struct wave_run *v, double ready, double *arrival)
{
    exchange_back_start(v);
    v->waits = arrival;
    v->waits_s = ready;
}

/* The time of an arrival, whose exchange may still be waiting to start. */
static double arrived(struct wave_run *v, double *arrival)
{
    if (v->waits == arrival)
        exchange_back_start(v);
    return *arrival;
}

/* The first half of a position, and the second half some positions later. */
static void position_first(struct wave_run *v, uint32_t k, bool back)
{
    double here = arrived(v, &v->here_s[k]);
    if (back)
        wait_back(v, ranks_run(v->s, true, true, go_there(v, here)), &v->there_s[k]);
    else
        v->there_s[k] = go_there(v, ranks_run(v->s, false, false, here));
}

static void position_second(struct wave_run *v, uint32_t k, bool back)
{
    double end = ranks_run(v->s, !back, back, arrived(v, &v->there_s[k]));
    if (back)
        v->here_s[k] = end;
    else
        wait_back(v, end, &v->here_s[k]);
}

/* Simulates some layers in one direction and extrapolates to all layers. */
static void wave_pass(struct wave_run *v, bool back)
{
    uint32_t all = v->s->model.sparse_count, layers = all < LAYERS_SEEN ? all : LAYERS_SEEN;
    uint32_t places = layers * v->count, span = v->drains ? v->count : places;
    double through[3] = {0}; /* times at which the last layers ended */
    for (uint32_t from = 0; from < places; from += span) {
        for (uint32_t p = from; p < from + span + v->lag; p++) {
            if (p < from + span)
                position_first(v, p % v->count, back);
            if (p < from + v->lag)
                continue;
            position_second(v, (p - v->lag) % v->count, back);
            if ((p - v->lag + 1) % v->count == 0) { /* a layer has ended */
                through[0] = through[1];
                through[1] = through[2];
                through[2] = arrived(v, &v->here_s[v->count - 1]);
            }
        }
    }
    exchange_back_start(v);
    double more = all > layers ? (all - layers) * (through[1] - through[0]) : 0;
    v->to_s += more;
    v->from_s += more;
    for (uint32_t i = 0; i < v->s->n; i++)
        v->s->seats[i].free_s += more;
    for (uint32_t k = 0; k < v->count; k++)
        v->here_s[k] += more;
}

/* Seconds of forward and backward of `count` micro-batches, with dense blocks at the turn. */
static double wave_seconds(struct expert_search *s, uint32_t count, uint32_t delay)
{
    struct wave_run v = {
        .s = s, .count = count, .drains = delay == 0, .there_s = s->turn, .here_s = s->turn + count};
    double end = 0;
    v.lag = delay ? delay : 1;
    v.lag = v.lag < count ? v.lag : count - 1;
    for (uint32_t i = 0; i < s->n; i++)
        s->seats[i].free_s = 0;
    for (uint32_t k = 0; k < count; k++)
        v.here_s[k] = 0;
    if (count == 0)
        return 0;
    wave_pass(&v, false);
    for (uint32_t k = 0; k < count; k++) {
        double ready = v.here_s[k];
        for (uint32_t i = 0; i < s->n; i++) {
            struct expert_device *x = &s->seats[i];
            x->free_s = x->rows ? fmax(x->free_s, ready) + x->dense : x->free_s;
            v.here_s[k] = x->rows ? fmax(v.here_s[k], x->free_s) : v.here_s[k];
        }
    }
    wave_pass(&v, true);
    for (uint32_t k = 0; k < count; k++)
        end = fmax(end, v.here_s[k]);
    return end;
}

static double waves_seconds(struct expert_search *s, uint32_t wave, uint32_t delay)
{
    wave = wave < s->micro_batches ? wave : s->micro_batches; /* moves may set any window */
    return s->filled * (s->micro_batches / wave * wave_seconds(s, wave, delay) +
                        wave_seconds(s, s->micro_batches % wave, delay));
}

/* Seconds of the all-reduce of attention's gradients, of scalars and of the optimiser. */
static double outside_seconds(const struct expert_search *s)
{
    double step = 0, latency, sum = 0;
    uint32_t devices[SHARDS_MEMBERS_MAX], n = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        const struct expert_device *x = &s->seats[i];
        const struct cost_device *cost = &s->p->costs[x->device];
        double update = s->model.sparse_count *
                        (cost->part_step_s[COST_PART_ATTENTION] + cost->part_step_s[COST_PART_ROUTER]);
        if (x->rows == 0)
            continue;
        for (int cls = 0; cls < COST_CLASSES; cls++)
            update += cls == COST_LAYER_SPARSE ? 0 : s->p->prefix[s->p->block_count][cls] * cost->step_s[cls];
        step = fmax(step, update);
        devices[n++] = x->device;
    }
    if (n > 1) {
        double rate = ring_slowest(s->p->cluster, devices, n, &latency);
        sum = 2 * (n - 1) * (s->gradient_bytes / n / rate + latency);
    }
    latency = 0;
    for (uint32_t i = 0; i < s->n; i++)
        latency = fmax(latency, s->links.latency_s[i * s->n + (i + 1) % s->n]);
    return sum + step + 4 * floor(log2(s->n)) * latency;
}

/* Bytes of a seat that attention leaves free for experts, in waves of that length. */
static double seat_room(const struct expert_device *x, uint32_t wave)
{
    return (double)x->limit - x->own[x->again][0] - wave * x->own[x->again][1];
}

static void seat_need(const struct expert_search *s, struct expert_device *x)
{
    for (int again = 0; again < 2; again++) {
        struct expert_need need[2];
        for (uint32_t wave = 0; wave < 2; wave++)
            expert_need_fill(s->p, &s->model, x->rows, NULL, 0, wave, again, &need[wave]);
        x->own[again][0] = (double)need[0].all.total;
        x->own[again][1] = (double)(need[1].all.total - need[0].all.total);
    }
}

/* Writes the largest share of every layer's experts that each seat holds beside its attention; false if
 * attention alone does not fit somewhere, or all seats together hold too few experts. */
static bool caps_find(const struct expert_search *s, uint32_t wave, double *cap)
{
    uint32_t held = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        const struct expert_device *x = &s->seats[i];
        double room = seat_room(x, wave);
        uint32_t low = 0, high = x->role & ROLE_EXPERTS ? s->model.experts : 0;
        if (room < 0)
            return false;
        while (low < high) {
            uint32_t middle = (low + high + 1) / 2;
            const struct expert_memory *h = &s->held[x->again][middle];
            if (h->fixed + s->tokens * (h->token + wave * h->wave_token) <= room)
                low = middle;
            else
                high = middle - 1;
        }
        cap[i] = (double)low / s->model.experts;
        held += low;
    }
    return held >= s->model.experts;
}

/* The longest wave that fits in memory, with waves of equal length; 0: none fits. */
static uint32_t wave_find(const struct expert_search *s, double *cap)
{
    uint32_t low = 0, high = s->micro_batches;
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        if (caps_find(s, middle, cap))
            low = middle;
        else
            high = middle - 1;
    }
    uint32_t waves = low ? (s->micro_batches + low - 1) / low : 1;
    return low ? (s->micro_batches + waves - 1) / waves : 0;
}

/* Records what all seats together lack with one micro-batch. */
static void shortage_fill(const struct expert_search *s)
{
    uint64_t has = 0;
    double needs = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        has += s->seats[i].limit;
        needs += (double)s->seats[i].limit - seat_room(&s->seats[i], 1);
    }
    const struct expert_memory *all = &s->held[s->seats[0].again][s->model.experts];
    needs += all->fixed + s->tokens * (all->token + all->wave_token);
    shortage_note(&s->bench->shortage[PLACE_EXPERT], UINT32_MAX,
                  needs > (double)has ? (uint64_t)needs : has + 1, has);
}

/* --- assignments --- */

/* Makes the candidate's members from the seats; attention first. */
static void members_fill(const struct expert_search *s, const double *x, uint32_t wave)
{
    double least = SHARE_LEAST / s->model.experts, kept = 0;
    for (uint32_t m = 0; m < s->n; m++)
        kept += x[m] < least ? 0 : x[m];
    for (uint32_t m = 0; m < s->n; m++) {
        const struct expert_device *y = &s->seats[s->order[m]];
        double share = x[s->order[m]];
        s->c->members[m] = (struct member){.device = y->device,
                                           .rows = y->rows,
                                           .window = wave,
                                           .recompute = y->again,
                                           .state_share = 1,
                                           .expert_share = share < least ? 0 : share / kept};
    }
}

/* Prices a layer with whole experts and measured routing: 1, or 0 if it does not fit; −1 on ERR_NOMEM.
 * Layers differ by the remainders of rounding; the mean over layers of the slowest member counts. */
static int split_price(struct expert_search *s)
{
    struct expert_split split;
    const struct candidate *c = s->c;
    double x[SHARDS_MEMBERS_MAX] = {0}, slowest = 0, most = 0;
    uint32_t layers = s->model.sparse_count;
    uint64_t has = 0, lacks = 0;
    if (expert_split_init(&split, &s->model, s->p->workload->expert_share, c->members, s->n, s->bench->err) <
        0)
        return -1;
    for (uint32_t l = 0; l < layers; l++) {
        double slow = 0;
        for (uint32_t m = 0; m < s->n; m++) {
            double load = split.layers[(size_t)m * layers + l].load;
            x[s->order[m]] += load / layers;
            slow = fmax(slow, load * s->seats[s->order[m]].experts_s[COST_FORWARD]);
        }
        slowest += slow / layers;
    }
    for (uint32_t m = 0; m < s->n; m++) {
        struct expert_need need;
        uint64_t limit = s->seats[s->order[m]].limit;
        expert_member_need(s->p, &s->model, c, &split, m, &need);
        most = fmax(most, x[s->order[m]] * s->seats[s->order[m]].experts_s[COST_FORWARD]);
        has += limit;
        lacks += need.all.total > limit ? need.all.total - limit : 0;
    }
    if (lacks)
        shortage_note(&s->bench->shortage[PLACE_EXPERT], UINT32_MAX, has + lacks, has);
    else
        layer_price(s, x, slowest / most);
    expert_split_fini(&split);
    return lacks == 0;
}

static int shares_try(struct expert_search *s, const double *x, uint32_t wave, double outside)
{
    bool both = false;
    layer_price(s, x, 1);
    if (zebra_step(s, wave) + outside >= s->best_s * NEARLY)
        return 0;
    members_fill(s, x, wave);
    for (uint32_t m = 0; m < s->n; m++) {
        const struct member *y = &s->c->members[m];
        both |= y->rows && y->expert_share > 0;
        if (y->rows == 0 && y->expert_share <= 0)
            return 0; /* the same assignment with fewer devices is tried elsewhere */
    }
    int fits = split_price(s);
    for (uint32_t delay = both ? 0 : 1; fits > 0 && delay < (both ? DELAYS : 2); delay++) {
        double seconds = waves_seconds(s, wave, delay) + outside;
        if (seconds >= s->best_s)
            continue;
        s->best_s = seconds;
        for (uint32_t m = 0; m < s->n; m++) {
            s->best[m] = s->c->members[m];
            s->best[m].delay = delay;
        }
    }
    return fits < 0 ? -1 : 0;
}

/* Tries the given roles and recomputation: the longest wave, and shorter ones while memory limits the
 * experts of fast devices; the same experts in every layer, and fractions that are carried over. */
static int waves_try(struct expert_search *s)
{
    double base[SHARDS_MEMBERS_MAX], each[SHARDS_MEMBERS_MAX], cap[SHARDS_MEMBERS_MAX], x[SHARDS_MEMBERS_MAX],
        free_x[SHARDS_MEMBERS_MAX];
    uint32_t count[SHARDS_MEMBERS_MAX];
    for (uint32_t i = 0; i < s->n; i++) {
        const struct expert_device *y = &s->seats[i];
        base[i] = pass_of(y->attention_s, false, false) + pass_of(y->attention_s, true, y->again);
        each[i] = pass_of(y->experts_s, false, false) + pass_of(y->experts_s, true, y->again);
        cap[i] = y->role & ROLE_EXPERTS ? 1 : 0;
    }
    double outside = outside_seconds(s);
    fill_level(s->n, base, each, cap, free_x);
    layer_price(s, free_x, 1);
    if (zebra_step(s, s->micro_batches) + outside >= s->best_s * NEARLY)
        return 0;
    uint32_t wave = wave_find(s, cap);
    if (wave == 0)
        shortage_fill(s);
    for (bool bound = true; wave > 0 && bound; wave /= 2) {
        if (!caps_find(s, wave, cap))
            break;
        bound = false;
        for (uint32_t i = 0; i < s->n; i++)
            bound |= free_x[i] > cap[i];
        bool whole = fill_whole(s->n, s->model.experts, 0, base, each, cap, count);
        for (uint32_t i = 0; i < s->n; i++)
            x[i] = (double)count[i] / s->model.experts;
        if (whole && shares_try(s, x, wave, outside) < 0)
            return -1;
        if (fill_level(s->n, base, each, cap, x) && shares_try(s, x, wave, outside) < 0)
            return -1;
    }
    return 0;
}

static void rows_divide(struct expert_search *s)
{
    double base[SHARDS_MEMBERS_MAX] = {0}, each[SHARDS_MEMBERS_MAX], cap[SHARDS_MEMBERS_MAX];
    uint32_t count[SHARDS_MEMBERS_MAX];
    for (uint32_t m = 0; m < s->attending; m++) {
        each[m] = s->seats[s->order[m]].speed_s;
        cap[m] = 1;
    }
    fill_whole(s->attending, s->c->micro_batch_rows, 1, base, each, cap, count);
    s->tokens = 0;
    for (uint32_t m = 0; m < s->n; m++) {
        struct expert_device *x = &s->seats[s->order[m]];
        x->rows = m < s->attending ? count[m] : 0;
        s->tokens += x->rows ? problem_tokens_bound(s->p, x->rows) : 0;
        seat_price(s, x);
        seat_need(s, x);
    }
}

/* Tries the seats' roles with and without recomputation. */
static int roles_try(struct expert_search *s)
{
    uint8_t all = 0;
    uint32_t at = 0;
    s->attending = 0;
    for (int second = 0; second < 2; second++) {
        for (uint32_t i = 0; i < s->n; i++) {
            if ((s->seats[i].role & ROLE_ATTENTION ? 0 : 1) != second)
                continue;
            all |= s->seats[i].role;
            s->order[at++] = i;
            s->attending += second == 0;
        }
    }
    if (all != ROLE_BOTH || s->attending > s->c->micro_batch_rows)
        return 0;
    s->bench->spent += 10 + s->n * s->model.sparse_count / 2;
    rows_divide(s);
    /* Bit 0: ranks with attention recompute; bit 1: ranks with experts alone do. */
    for (uint32_t mode = 0; mode < 4; mode++) {
        bool allowed = micro_recompute_allowed(s->p, mode & 1) && micro_recompute_allowed(s->p, mode >> 1);
        if (!allowed || (s->attending == s->n && mode >= 2))
            continue;
        for (uint32_t m = 0; m < s->n; m++)
            s->seats[s->order[m]].again = mode >> (m >= s->attending) & 1;
        if (waves_try(s) < 0)
            return -1;
    }
    return 0;
}

static int all_roles(struct expert_search *s)
{
    uint32_t ways = (uint32_t)lround(pow(3, s->n));
    for (uint32_t way = 0; way < ways; way++) {
        uint32_t code = way;
        for (uint32_t i = 0; i < s->n; i++, code /= 3)
            s->seats[i].role = (uint8_t)(ROLE_BOTH - code % 3);
        if (roles_try(s) < 0)
            return -1;
    }
    return 0;
}

/* Tries attention on prefixes of the devices, sorted by the speed of attention relative to experts. */
static int prefixes_try(struct expert_search *s)
{
    uint32_t sorted[SHARDS_MEMBERS_MAX];
    double ratio[SHARDS_MEMBERS_MAX];
    for (uint32_t i = 0, at; i < s->n; i++) {
        ratio[i] = s->seats[i].speed_s / s->seats[i].experts_s[COST_FORWARD];
        for (at = i; at > 0 && ratio[sorted[at - 1]] > ratio[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = i;
    }
    for (uint32_t cut = s->n; cut > 0; cut--) {
        for (int both = cut == s->n; both < 2; both++) {
            for (uint32_t k = 0; k < s->n; k++)
                s->seats[sorted[k]].role = k >= cut ? ROLE_EXPERTS : both ? ROLE_BOTH : ROLE_ATTENTION;
            if (roles_try(s) < 0)
                return -1;
        }
    }
    return 0;
}

/* Begins with a candidate; 0 and *s NULL if it cannot be an expert placement. */
static int seek_begin(struct expert_search **s, struct workbench *bench, struct candidate *c)
{
    c->estimate_s = INFINITY;
    *s = NULL;
    if (c->stage_count != 1 || c->member_count < 2 || c->member_count > SHARDS_MEMBERS_MAX)
        return 0;
    *s = calloc(1, sizeof(**s));
    return *s ? seek_init(*s, bench, c) : err_set(bench->err, ERR_NOMEM, "planner: out of memory");
}

static int expert_settle(struct workbench *bench, struct candidate *c)
{
    struct expert_search *s;
    int result = seek_begin(&s, bench, c);
    c->placement = PLACE_EXPERT;
    if (s && result == 0) {
        c->stages[0].kind = STAGE_EXPERT;
        expert_memory_fill(s);
        result = s->n <= ROLES_ALL ? all_roles(s) : prefixes_try(s);
    }
    if (s && result == 0 && isfinite(s->best_s)) {
        memcpy(c->members, s->best, s->n * sizeof(*s->best));
        c->estimate_s = s->best_s;
        result = 1;
    }
    seek_free(s);
    return result;
}

static int expert_estimate(struct workbench *bench, struct candidate *c)
{
    struct expert_search *s;
    int result = seek_begin(&s, bench, c);
    if (s && result == 0) {
        for (uint32_t i = 0; i < c->member_count; i++) {
            s->seats[i].rows = c->members[i].rows;
            s->seats[i].again = c->members[i].recompute;
            seat_price(s, &s->seats[i]);
        }
        bench->spent += 10;
        result = split_price(s);
    }
    if (result > 0)
        c->estimate_s = waves_seconds(s, c->members[0].window, c->members[0].delay) + outside_seconds(s);
    seek_free(s);
    return result;
}

static bool expert_supports(const struct problem *p, struct err *err)
{
    struct expert_model model;
    if (expert_model_init(&model, p, err) < 0)
        return false;
    expert_model_fini(&model);
    return shards_supports(p, "attention and experts apart take", err);
}

/* The worker has neither routers nor experts yet. */
static bool expert_runnable(const struct problem *p, const struct candidate *c)
{
    (void)p;
    (void)c;
    return false;
}

/* Rebuilds a candidate from a plan. Plans do not store the delay; it is set to 1. */
static int expert_from_plan(const struct problem *p, const struct plan *plan, struct candidate *c,
                            struct err *err)
{
    struct expert_model model;
    uint32_t n = plan->rank_count, count = plan->micro_batch_count, rows = 0, all_rows = 0;
    uint32_t rest = plan->micro_batch_start[count] - plan->micro_batch_start[count - 1];
    if (candidate_reserve(c, 1, n, err) < 0 || expert_model_init(&model, p, err) < 0)
        return -1;
    double all = (double)model.experts * model.sparse_count;
    expert_model_fini(&model);
    c->placement = PLACE_EXPERT;
    c->micro_batch_rows = plan->rows_bound;
    c->stage_count = 1;
    c->member_count = n;
    c->estimate_s = plan->costs.step_s;
    c->stages[0] =
        (struct candidate_stage){.block_end = p->block_count, .kind = STAGE_EXPERT, .member_count = n};
    for (uint32_t r = 0; r < n; r++) {
        const struct plan_rank *rank = &plan->ranks[r];
        double total = 0;
        /* Ranks up to this one have min(end, size) rows of every micro-batch; the last one is shorter. */
        all_rows += rank->rows;
        uint32_t end =
            all_rows <= count * rest || count == 1 ? all_rows / count : (all_rows - rest) / (count - 1);
        for (uint32_t i = 0; i < rank->expert_count; i++)
            total += rank->experts[i].end - rank->experts[i].begin;
        c->members[r] = (struct member){.device = cluster_device_find(p->cluster, rank->device),
                                        .rows = end - rows,
                                        .window = rank->window,
                                        .delay = 1,
                                        .recompute = rank->recompute,
                                        .state_share = 1,
                                        .expert_share = total / all};
        rows = end;
        if (c->members[r].device == UINT32_MAX)
            return err_set(err, ERR_INVALID, "%s is no longer there", rank->device);
    }
    if (rows != plan->rows_bound)
        return err_set(err, ERR_INVALID, "its micro-batches are divided otherwise");
    return 0;
}

const struct placement_kind kind_expert = {.placement = PLACE_EXPERT,
                                           .stage_kind = STAGE_EXPERT,
                                           .stages_least = 1,
                                           .stages_most = 1,
                                           .members_least = 2,
                                           .members_most = SHARDS_MEMBERS_MAX,
                                           .supports = expert_supports,
                                           .settle = expert_settle,
                                           .estimate = expert_estimate,
                                           .emit = expert_emit,
                                           .runnable = expert_runnable,
                                           .from_plan = expert_from_plan};
