/* The placement expert: attention on some devices and experts on others (or both on the same), in zebra order
 * (HeterMoE). For every assignment of the two roles to devices that is tried, rows are divided by the speed
 * of attention and experts by water-filling (equal finishing times), in waves (groups of micro-batches that
 * pass all layers together) as long as memory allows; a step's time is estimated by the closed form
 * (zebra_seconds), then simulated. With at most ROLES_ALL devices all assignments are tried. With more,
 * devices are sorted by the speed of their attention relative to that of their experts; the first get
 * attention, and the others, or all, get experts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/fill.h"
#include "planner/cost/micro.h"
#include "planner/cost/ring.h"
#include "planner/emit/expert.h"
#include "planner/kind/expert_wave.h"

#define ROLES_ALL 4u     /* most devices for which all 3^n assignments of roles are tried */
#define DELAYS 3u        /* experts run 0 to 2 micro-batches behind attention */
#define NEARLY 1.1       /* the closed form's seconds are at most this factor too long */
#define SHARE_LEAST 0.02 /* a rank with less than this fraction of one expert in each layer gets none */

enum { ROLE_ATTENTION = 1, ROLE_EXPERTS = 2, ROLE_BOTH = ROLE_ATTENTION | ROLE_EXPERTS };

/* Bytes that a number of experts in every layer needs: a fixed part, and a part for each micro-batch of a
 * wave. */
struct expert_memory {
    double fixed, wave;
};

struct expert_device { /* facts about one device of the candidate */
    uint32_t device;
    uint64_t limit;
    double speed_s; /* seconds of attention's forward and backward in one layer, for all rows of a
                       micro-batch */
    double experts_s[COST_WAYS]; /* seconds of all experts of a layer, with even routing */
};

/* Facts about a candidate and its model that do not depend on the devices' roles. */
struct expert_facts {
    struct workbench *bench;
    struct arena arena; /* the arrays here and in struct expert_search */
    const struct problem *p;
    struct expert_model model;
    struct expert_links links;  /* indexed like devices[]; contains scratch memory */
    struct expert_memory *held; /* [experts + 1]: memory of 0, 1, 2, … experts */
    double gradient_bytes;
    double full_share; /* a step's mean work, in full micro-batches, divided by its number of micro-batches */
    uint32_t n, micro_batches, rows; /* rows: rows of a micro-batch */
    struct expert_device devices[SHARDS_MEMBERS_MAX];
};

/* The roles of the devices, and what each device does, which follows from role and struct expert_facts. */
struct expert_roles {
    uint8_t role[SHARDS_MEMBERS_MAX];
    bool again[SHARDS_MEMBERS_MAX]; /* true: the device recomputes attention */
    uint32_t rows[SHARDS_MEMBERS_MAX];
    uint32_t order[SHARDS_MEMBERS_MAX]; /* devices in the order of members: attention first */
    uint32_t attending;
    double tokens; /* most tokens that a device's rows of a micro-batch may have, summed over the devices
                      with attention */
    /* Seconds for the device's rows of a micro-batch: attention of one layer, and all blocks without experts.
     */
    double attention_s[SHARDS_MEMBERS_MAX][COST_WAYS], dense_s[SHARDS_MEMBERS_MAX][COST_WAYS];
    /* [device][recompute][0 or 1]: bytes of everything but experts; [0]: fixed, [1]: for each micro-batch of
     * a wave */
    double own[SHARDS_MEMBERS_MAX][2][2];
};

/* The search of roles and waves for a candidate, and the best members found. */
struct expert_search {
    struct expert_facts facts;
    struct candidate *c;
    struct expert_layer *even; /* [sparse_count] scratch memory */
    double *turn;              /* [2 · micro-batches] scratch memory */
    struct member *best;       /* [n] the best members found so far */
    double best_s;
};

static int experts_bytes(struct expert_search *s, uint32_t count, uint32_t wave, double *bytes)
{
    struct expert_facts *f = &s->facts;
    uint32_t tokens = problem_tokens_bound(f->p, f->rows);
    struct expert_role role = {.all_rows = f->rows,
                               .layers = s->even,
                               .routed_bytes = expert_routed_bytes(&f->model, tokens, ROUTED_TOKENS),
                               .wave = wave};
    struct expert_need need;
    for (uint32_t l = 0; l < f->model.sparse_count; l++)
        s->even[l] = (struct expert_layer){count, (double)count / f->model.experts};
    if (expert_need_fill(f->p, &f->model, &role, &need, f->bench->err) < 0)
        return -1;
    *bytes = (double)need.all.total;
    return 0;
}

/* Memory is linear in the wave's length: two evaluations give the coefficients. */
static int expert_memory_fill(struct expert_search *s)
{
    for (uint32_t count = 0; count <= s->facts.model.experts; count++) {
        double none, one;
        if (experts_bytes(s, count, 0, &none) < 0 || experts_bytes(s, count, 1, &one) < 0)
            return -1;
        s->facts.held[count] = (struct expert_memory){none, one - none};
    }
    return 0;
}

/* Returns the number of full micro-batches that take as long as a mean step, divided by the step's number of
 * micro-batches. A partly filled micro-batch counts as the mean of its rows' share and 1. */
static double full_share(const struct expert_facts *f)
{
    double count = 0;
    for (uint32_t k = 0; k < f->p->step_count; k++) {
        double full = (double)f->p->steps[k].rows / f->rows;
        count += (full + ceil(full)) / 2;
    }
    return count / f->p->step_count / f->micro_batches;
}

static int facts_init(struct expert_facts *f, struct workbench *bench, const struct candidate *c)
{
    uint32_t device[SHARDS_MEMBERS_MAX], n = c->member_count;
    struct expert_role role = {.rows = 1, .wave = 1};
    struct expert_need need;
    f->bench = bench;
    f->p = bench->problem;
    f->n = n;
    f->rows = c->micro_batch_rows;
    f->micro_batches = micro_count(f->p, f->rows);
    f->full_share = full_share(f);
    if (expert_model_init(&f->model, f->p, bench->err) < 0)
        return -1;
    ARENA_ARRAY(&f->arena, f->held, (size_t)f->model.experts + 1);
    if (!f->held)
        return err_set(bench->err, ERR_NOMEM, "planner: out of memory");
    role.all_rows = f->rows;
    if (expert_need_fill(f->p, &f->model, &role, &need, bench->err) < 0)
        return -1;
    f->gradient_bytes = (double)need.gradient_bytes;
    for (uint32_t i = 0; i < n; i++) {
        struct expert_device *x = &f->devices[i];
        struct cost_load load = problem_mean_rows(f->p, f->rows);
        device[i] = x->device = c->members[i].device;
        const struct cost_device *cost = &f->p->costs[x->device];
        x->limit = problem_limit(f->p, x->device);
        x->speed_s = cost_attention_seconds(cost, COST_FORWARD, &load) +
                     cost_attention_seconds(cost, COST_BACKWARD, &load);
        for (int way = 0; way < COST_WAYS; way++)
            x->experts_s[way] = cost_experts_seconds(cost, (enum cost_way)way, f->model.experts,
                                                     load.tokens * f->model.active / f->model.experts);
    }
    return expert_links_init(&f->links, f->p->cluster, device, n, bench->err);
}

static int expert_search_init(struct expert_search *s, struct workbench *bench, struct candidate *c)
{
    s->c = c;
    s->best_s = INFINITY;
    if (facts_init(&s->facts, bench, c) < 0)
        return -1;
    ARENA_ARRAY(&s->facts.arena, s->even, s->facts.model.sparse_count);
    ARENA_ARRAY(&s->facts.arena, s->best, c->member_count);
    ARENA_ARRAY(&s->facts.arena, s->turn, 2 * (size_t)s->facts.micro_batches);
    return s->facts.arena.failed ? err_set(bench->err, ERR_NOMEM, "planner: out of memory") : 0;
}

static void search_free(struct expert_search *s)
{
    if (!s)
        return;
    expert_model_fini(&s->facts.model);
    expert_links_fini(&s->facts.links);
    arena_fini(&s->facts.arena);
    free(s);
}

/* --- seconds of a layer and of a step --- */

/* Sets the seconds of attention and of blocks without experts for device i's rows. */
static void rows_price(const struct expert_facts *f, uint32_t i, struct expert_roles *r)
{
    const struct cost_device *cost = &f->p->costs[f->devices[i].device];
    struct cost_load load = problem_mean_rows(f->p, r->rows[i]);
    for (int way = 0; way < COST_WAYS; way++) {
        r->attention_s[i][way] = r->rows[i] ? cost_attention_seconds(cost, (enum cost_way)way, &load) : 0;
        r->dense_s[i][way] = 0;
        for (int cls = 0; cls < COST_CLASSES && r->rows[i]; cls++) {
            uint32_t count = f->p->prefix[f->p->block_count][cls];
            if (cls != COST_LAYER_SPARSE && count)
                r->dense_s[i][way] +=
                    count * cost_class_seconds(cost, (enum cost_class)cls, (enum cost_way)way, &load);
        }
    }
}

/* Fills *t with the seconds of a layer in which device i has the share x[i] of the experts. slow: factor on
 * the experts' seconds, for layers whose shares differ from the mean. */
static void layer_price(struct expert_facts *f, const struct expert_roles *r, const double *x, double slow,
                        struct expert_times *t)
{
    double tokens[SHARDS_MEMBERS_MAX], touched[SHARDS_MEMBERS_MAX];
    t->devices = f->n;
    t->layers = f->model.sparse_count;
    t->micro_batches = f->micro_batches;
    for (uint32_t i = 0; i < f->n; i++) {
        const struct expert_device *y = &f->devices[i];
        double once = x[i] > 0 ? (1 - x[i]) * f->p->costs[y->device].experts_overhead_s : 0;
        for (int back = 0; back < 2; back++) {
            t->attend[i][back] = cost_pass_seconds(r->attention_s[i], back, r->again[i]);
            t->expert[i][back] = slow * x[i] * cost_pass_seconds(y->experts_s, back, false) + once;
        }
        t->dense[i] = cost_pass_seconds(r->dense_s[i], false, false) +
                      cost_pass_seconds(r->dense_s[i], true, r->again[i]);
        t->attends[i] = r->rows[i] > 0;
        tokens[i] = r->rows[i] ? problem_mean_rows(f->p, r->rows[i]).tokens : 0;
        touched[i] = x[i] > 0 ? expert_touched(f->model.experts, f->model.active, x[i]) : 0;
    }
    t->exchange_s = expert_exchange_seconds(&f->links, tokens, touched, f->model.routed_bytes);
    t->one_way = expert_links_shared(&f->links);
}

/* Returns the seconds of a step outside its micro-batches: all-reduce of attention's gradients and of
 * scalars, and the optimiser. */
static double outside_seconds(const struct expert_facts *f, const struct expert_roles *r)
{
    double step = 0, latency = 0;
    uint32_t devices[SHARDS_MEMBERS_MAX], n = 0;
    for (uint32_t i = 0; i < f->n; i++) {
        const struct cost_device *cost = &f->p->costs[f->devices[i].device];
        double update = f->model.sparse_count *
                        (cost->part_step_s[COST_PART_ATTENTION] + cost->part_step_s[COST_PART_ROUTER]);
        if (r->rows[i] == 0)
            continue;
        for (int cls = 0; cls < COST_CLASSES; cls++)
            update += cls == COST_LAYER_SPARSE ? 0 : f->p->prefix[f->p->block_count][cls] * cost->step_s[cls];
        step = fmax(step, update);
        devices[n++] = f->devices[i].device;
    }
    struct ring_figures ring = ring_figures(f->p->cluster, devices, NULL, NULL, n);
    double sum = 2 * ring_pass_seconds(&ring, n, f->gradient_bytes);
    for (uint32_t i = 0; i < f->n; i++)
        latency = fmax(latency, f->links.latency_s[i * f->n + (i + 1) % f->n]);
    return sum + step + 4 * floor(log2(f->n)) * latency;
}

/* Fills *times for the candidate's whole experts and measured routing. Returns 1, or 0 if a member does not
 * fit in memory; −1 on ERR_NOMEM. Rounding to whole experts makes layers differ; the slowest member of each
 * layer counts, as a mean over the layers. */
static int split_price(struct expert_facts *f, const struct expert_roles *r, const struct candidate *c,
                       struct expert_times *times)
{
    struct expert_split split;
    double x[SHARDS_MEMBERS_MAX] = {0}, slowest = 0, most = 0;
    uint32_t layers = f->model.sparse_count;
    uint64_t has = 0, lacks = 0;
    if (expert_split_init(&split, &f->model, f->p->workload->expert_share, c->members, f->n, f->bench->err) <
        0)
        return -1;
    for (uint32_t l = 0; l < layers; l++) {
        double slow = 0;
        for (uint32_t m = 0; m < f->n; m++) {
            double load = split.layers[(size_t)m * layers + l].load;
            x[r->order[m]] += load / layers;
            slow = fmax(slow, load * f->devices[r->order[m]].experts_s[COST_FORWARD]);
        }
        slowest += slow / layers;
    }
    for (uint32_t m = 0; m < f->n; m++) {
        struct expert_need need;
        const struct expert_device *device = &f->devices[r->order[m]];
        if (expert_member_need(f->p, &f->model, c, &split, m, &need, f->bench->err) < 0) {
            expert_split_fini(&split);
            return -1;
        }
        most = fmax(most, x[r->order[m]] * device->experts_s[COST_FORWARD]);
        has += device->limit;
        lacks += need.all.total > device->limit ? need.all.total - device->limit : 0;
    }
    if (lacks)
        shortage_note(&f->bench->shortage[PLACE_EXPERT], UINT32_MAX, has + lacks, has);
    else
        layer_price(f, r, x, slowest / most, times);
    expert_split_fini(&split);
    return lacks == 0;
}

/* --- what each device computes --- */

/* Orders the devices by role and divides the rows among those with attention. Returns 1; 0 if attention or
 * experts are on no device, or a device with attention would have no row; -1 on ERR_NOMEM. */
static int roles_fill(struct expert_facts *f, struct expert_roles *r)
{
    double base[SHARDS_MEMBERS_MAX] = {0}, each[SHARDS_MEMBERS_MAX], cap[SHARDS_MEMBERS_MAX];
    uint32_t count[SHARDS_MEMBERS_MAX], at = 0;
    uint8_t all = 0;
    r->attending = 0;
    for (int second = 0; second < 2; second++) {
        for (uint32_t i = 0; i < f->n; i++) {
            if ((r->role[i] & ROLE_ATTENTION ? 0 : 1) != second)
                continue;
            all |= r->role[i];
            r->order[at++] = i;
            r->attending += second == 0;
        }
    }
    if (all != ROLE_BOTH || r->attending > f->rows)
        return 0;
    for (uint32_t m = 0; m < r->attending; m++) {
        each[m] = f->devices[r->order[m]].speed_s;
        cap[m] = 1;
    }
    fill_whole(r->attending, f->rows, 1, base, each, cap, count);
    r->tokens = 0;
    for (uint32_t m = 0; m < f->n; m++) {
        uint32_t i = r->order[m];
        r->rows[i] = m < r->attending ? count[m] : 0;
        r->tokens += r->rows[i] ? problem_tokens_bound(f->p, r->rows[i]) : 0;
        rows_price(f, i, r);
        for (int again = 0; again < 2; again++) {
            struct expert_need need[2];
            struct expert_role role = {
                .rows = r->rows[i], .all_rows = f->rows, .recompute = again, .samples = m == 0};
            for (; role.wave < 2; role.wave++)
                if (expert_need_fill(f->p, &f->model, &role, &need[role.wave], f->bench->err) < 0)
                    return -1;
            r->own[i][again][0] = (double)need[0].all.total;
            r->own[i][again][1] = (double)(need[1].all.total - need[0].all.total);
        }
    }
    return 1;
}

/* Returns the bytes of device i that attention leaves free for experts, in waves of `wave` micro-batches. */
static double device_room(const struct expert_facts *f, const struct expert_roles *r, uint32_t i,
                          uint32_t wave)
{
    const double *own = r->own[i][r->again[i]];
    return (double)f->devices[i].limit - own[0] - wave * own[1];
}

/* --- how many micro-batches pass all layers together --- */

/* Returns the bytes that `count` experts of every layer need in waves of `wave` micro-batches. */
static double experts_held(const struct expert_facts *f, const struct expert_roles *r, uint32_t count,
                           uint32_t wave)
{
    double more = r->tokens - problem_tokens_bound(f->p, f->rows);
    return f->held[count].fixed + wave * (f->held[count].wave + more * f->model.routed_bytes);
}

/* Writes the largest share of every layer's experts that each device's memory holds beside its attention;
 * false if attention alone does not fit on a device, or all devices together hold too few experts. */
static bool caps_find(const struct expert_facts *f, const struct expert_roles *r, uint32_t wave, double *cap)
{
    uint32_t held = 0;
    for (uint32_t i = 0; i < f->n; i++) {
        double room = device_room(f, r, i, wave);
        uint32_t low = 0, high = r->role[i] & ROLE_EXPERTS ? f->model.experts : 0;
        if (room < 0)
            return false;
        while (low < high) {
            uint32_t middle = (low + high + 1) / 2;
            if (experts_held(f, r, middle, wave) <= room)
                low = middle;
            else
                high = middle - 1;
        }
        cap[i] = (double)low / f->model.experts;
        held += low;
    }
    return held >= f->model.experts;
}

/* Returns the most micro-batches of a wave that fit in memory, lowered so that waves are about equally long;
 * 0: none fits. */
static uint32_t wave_find(const struct expert_facts *f, const struct expert_roles *r, double *cap)
{
    uint32_t low = 0, high = f->micro_batches;
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        if (caps_find(f, r, middle, cap))
            low = middle;
        else
            high = middle - 1;
    }
    uint32_t waves = low ? (f->micro_batches + low - 1) / low : 1;
    return low ? (f->micro_batches + waves - 1) / waves : 0;
}

/* Records the bytes that all devices together lack with one micro-batch in a wave. */
static void shortage_fill(const struct expert_facts *f, const struct expert_roles *r)
{
    uint64_t has = 0;
    double needs = 0;
    for (uint32_t i = 0; i < f->n; i++) {
        has += f->devices[i].limit;
        needs += (double)f->devices[i].limit - device_room(f, r, i, 1);
    }
    needs += experts_held(f, r, f->model.experts, 1);
    shortage_note(&f->bench->shortage[PLACE_EXPERT], UINT32_MAX,
                  needs > (double)has ? (uint64_t)needs : has + 1, has);
}

/* Makes the candidate's members, those with attention first; device i has the share x[i] of the experts. */
static void members_fill(const struct expert_facts *f, const struct expert_roles *r, const double *x,
                         uint32_t wave, struct candidate *c)
{
    double least = SHARE_LEAST / f->model.experts, kept = 0;
    for (uint32_t m = 0; m < f->n; m++)
        kept += x[m] < least ? 0 : x[m];
    for (uint32_t m = 0; m < f->n; m++) {
        uint32_t i = r->order[m];
        c->members[m] = (struct member){.device = f->devices[i].device,
                                        .rows = r->rows[i],
                                        .window = wave,
                                        .recompute = r->again[i],
                                        .state_share = 1,
                                        .expert_share = x[i] < least ? 0 : x[i] / kept};
    }
}

static int expert_shares_try(struct expert_search *s, const struct expert_roles *r, const double *x,
                             uint32_t wave, double outside)
{
    struct expert_facts *f = &s->facts;
    struct expert_times times;
    bool both = false;
    layer_price(f, r, x, 1, &times);
    if (f->full_share * expert_times_closed(&times, wave) + outside >= s->best_s * NEARLY)
        return 0;
    members_fill(f, r, x, wave, s->c);
    for (uint32_t m = 0; m < f->n; m++) {
        const struct member *y = &s->c->members[m];
        both |= y->rows && y->expert_share > 0;
        if (y->rows == 0 && y->expert_share <= 0)
            return 0; /* roles that leave this idle device out are tried elsewhere */
    }
    int fits = split_price(f, r, s->c, &times);
    for (uint32_t delay = both ? 0 : 1; fits > 0 && delay < (both ? DELAYS : 2); delay++) {
        double seconds = f->full_share * expert_times_simulated(&times, wave, delay, s->turn) + outside;
        if (seconds >= s->best_s)
            continue;
        s->best_s = seconds;
        for (uint32_t m = 0; m < f->n; m++) {
            s->best[m] = s->c->members[m];
            s->best[m].delay = delay;
        }
    }
    return fits < 0 ? -1 : 0;
}

/* Tries waves for the given roles and recomputation: the longest that fits, and shorter ones as long as
 * memory keeps a device from holding its balanced share of the experts. For each, once with the same whole
 * experts in every layer, once with fractions that are carried over to the next layer. */
static int waves_try(struct expert_search *s, const struct expert_roles *r)
{
    double base[SHARDS_MEMBERS_MAX], each[SHARDS_MEMBERS_MAX], cap[SHARDS_MEMBERS_MAX], x[SHARDS_MEMBERS_MAX],
        free_x[SHARDS_MEMBERS_MAX];
    struct expert_facts *f = &s->facts;
    struct expert_times times;
    uint32_t count[SHARDS_MEMBERS_MAX];
    for (uint32_t i = 0; i < f->n; i++) {
        const struct expert_device *y = &f->devices[i];
        base[i] = cost_pass_seconds(r->attention_s[i], false, false) +
                  cost_pass_seconds(r->attention_s[i], true, r->again[i]);
        each[i] =
            cost_pass_seconds(y->experts_s, false, false) + cost_pass_seconds(y->experts_s, true, false);
        cap[i] = r->role[i] & ROLE_EXPERTS ? 1 : 0;
    }
    double outside = outside_seconds(f, r);
    fill_level(f->n, base, each, cap, free_x);
    layer_price(f, r, free_x, 1, &times);
    if (f->full_share * expert_times_closed(&times, f->micro_batches) + outside >= s->best_s * NEARLY)
        return 0;
    uint32_t wave = wave_find(f, r, cap);
    if (wave == 0)
        shortage_fill(f, r);
    for (bool bound = true; wave > 0 && bound; wave /= 2) {
        if (!caps_find(f, r, wave, cap))
            break;
        bound = false;
        for (uint32_t i = 0; i < f->n; i++)
            bound |= free_x[i] > cap[i];
        bool whole = fill_whole(f->n, f->model.experts, 0, base, each, cap, count);
        for (uint32_t i = 0; i < f->n; i++)
            x[i] = (double)count[i] / f->model.experts;
        if (whole && expert_shares_try(s, r, x, wave, outside) < 0)
            return -1;
        if (fill_level(f->n, base, each, cap, x) && expert_shares_try(s, r, x, wave, outside) < 0)
            return -1;
    }
    return 0;
}

/* --- trying roles, rows and shares of experts --- */

/* Tries roles with and without recomputation of attention; experts never recompute. */
static int roles_try(struct expert_search *s, struct expert_roles *r)
{
    struct expert_facts *f = &s->facts;
    int possible = roles_fill(f, r);
    if (possible <= 0)
        return possible;
    f->bench->spent += 10 + f->n * f->model.sparse_count / 2;
    for (int again = 0; again < 2; again++) {
        if (!micro_recompute_allowed(f->p, again))
            continue;
        for (uint32_t m = 0; m < f->n; m++)
            r->again[r->order[m]] = again && m < r->attending;
        if (waves_try(s, r) < 0)
            return -1;
    }
    return 0;
}

static int all_roles(struct expert_search *s)
{
    uint32_t ways = (uint32_t)lround(pow(3, s->facts.n));
    struct expert_roles roles;
    for (uint32_t way = 0; way < ways; way++) {
        uint32_t code = way;
        for (uint32_t i = 0; i < s->facts.n; i++, code /= 3)
            roles.role[i] = (uint8_t)(ROLE_BOTH - code % 3);
        if (roles_try(s, &roles) < 0)
            return -1;
    }
    return 0;
}

/* Sorts the devices by the speed of their attention relative to that of their experts, and tries attention on
 * the first devices, for every number of them. */
static int prefixes_try(struct expert_search *s)
{
    uint32_t sorted[SHARDS_MEMBERS_MAX], n = s->facts.n;
    double ratio[SHARDS_MEMBERS_MAX];
    struct expert_roles roles;
    for (uint32_t i = 0, at; i < n; i++) {
        ratio[i] = s->facts.devices[i].speed_s / s->facts.devices[i].experts_s[COST_FORWARD];
        for (at = i; at > 0 && ratio[sorted[at - 1]] > ratio[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = i;
    }
    for (uint32_t cut = n; cut > 0; cut--) {
        for (int both = cut == n; both < 2; both++) {
            for (uint32_t k = 0; k < n; k++)
                roles.role[sorted[k]] = k >= cut ? ROLE_EXPERTS : both ? ROLE_BOTH : ROLE_ATTENTION;
            if (roles_try(s, &roles) < 0)
                return -1;
        }
    }
    return 0;
}

/* Allocates the search of a candidate's roles. Returns 0, with *s NULL if the candidate's stages and members
 * cannot be an expert placement; −1 on error. */
static int search_begin(struct expert_search **s, struct workbench *bench, struct candidate *c)
{
    c->estimate_s = INFINITY;
    *s = NULL;
    if (c->stage_count != 1 || c->member_count < 2 || c->member_count > SHARDS_MEMBERS_MAX)
        return 0;
    *s = calloc(1, sizeof(**s));
    return *s ? expert_search_init(*s, bench, c) : err_set(bench->err, ERR_NOMEM, "planner: out of memory");
}

static int expert_settle(struct workbench *bench, struct candidate *c)
{
    struct expert_search *s;
    int result = search_begin(&s, bench, c);
    c->placement = PLACE_EXPERT;
    if (s && result == 0) {
        c->stages[0].kind = STAGE_EXPERT;
        result = expert_memory_fill(s);
    }
    if (s && result == 0)
        result = s->facts.n <= ROLES_ALL ? all_roles(s) : prefixes_try(s);
    if (s && result == 0 && isfinite(s->best_s)) {
        memcpy(c->members, s->best, s->facts.n * sizeof(*s->best));
        c->estimate_s = s->best_s;
        result = 1;
    }
    search_free(s);
    return result;
}

static int expert_estimate(struct workbench *bench, struct candidate *c)
{
    struct expert_search *s;
    struct expert_roles roles = {0};
    struct expert_times times;
    int result = search_begin(&s, bench, c);
    if (s && result == 0) {
        for (uint32_t i = 0; i < c->member_count; i++) {
            roles.order[i] = i;
            roles.rows[i] = c->members[i].rows;
            roles.again[i] = c->members[i].recompute;
            rows_price(&s->facts, i, &roles);
        }
        bench->spent += 10;
        result = split_price(&s->facts, &roles, c, &times);
    }
    if (result > 0) {
        const struct member *m = &c->members[0];
        c->estimate_s = s->facts.full_share * expert_times_simulated(&times, m->window, m->delay, s->turn) +
                        outside_seconds(&s->facts, &roles);
    }
    search_free(s);
    return result;
}

static bool expert_supports(const struct problem *p, struct err *err)
{
    struct expert_model model;
    if (expert_model_init(&model, p, err) < 0)
        return false;
    expert_model_fini(&model);
    const struct workload *w = p->workload;
    const char *lacks = w->router_loss
                            ? "the load-balancing loss (train.router_aux) is over all experts of a token"
                        : w->config->post_norms   ? "the outputs of this model's layers are normed as a whole"
                        : w->config->expert_bias  ? "this model's experts have biases"
                        : w->config->shared_ffn   ? "every token also passes a shared expert"
                        : w->boundary != PLAN_F32 ? "routed tokens travel in fp32 (placement.boundary)"
                                                  : NULL;
    if (lacks)
        err_set(err, ERR_UNSUPPORTED, "attention and experts are not put apart: %s", lacks);
    return !lacks;
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
        /* The ranks up to this one together have min(end, size) rows of every micro-batch; only the last
         * micro-batch is smaller. */
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
                                           .devices_least = 2,
                                           .takes = "attention and experts apart take",
                                           .supports = expert_supports,
                                           .settle = expert_settle,
                                           .estimate = expert_estimate,
                                           .emit = expert_emit,
                                           .from_plan = expert_from_plan};
