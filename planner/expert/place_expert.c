/* expert: attention on some devices, experts on others (or on the same), in zebra order (HeterMoE).
 *
 * For every way to hand out the two roles that is looked at, rows are divided by attention's speed and
 * experts by water-filling, and the closed form (zebra.h) estimates a step. Up to EXPERT_ROLES_ALL devices
 * all ways are looked at; beyond that devices stand in a few orders, of which the front does attention and
 * the rest, or all, hold the experts, with none to all of the slowest left out. What fits memory and comes
 * near the best is proposed; the search simulates it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"
#include "planner/expert/expert.h"
#include "planner/search/polish.h"

#define EXPERT_DEVICES_MAX 256u
#define EXPERT_ROLES_ALL 5u /* devices up to which every way is looked at: 4^5 */
#define EXPERT_SHORT                                                                                         \
    500u /* layers · micro-batches · ranks up to which all that are near the best are proposed */
#define EXPERT_FINALISTS 8u /* proposals: their programs are long */
#define EXPERT_INSTRS_MAX                                                                                    \
    60000u               /* layers · micro-batches · ranks beyond which a micro-batch size is not tried */
#define SHARE_LEAST 0.02 /* of an expert a layer: less is not worth a rank */
#define DRAIN_WAVE                                                                                           \
    2u /* micro-batches up to which ranks with both are first tried finishing layer by layer                 \
        */
#define SECOND_ORDER 1.02 /* the other order is proposed behind it by this */
#define STEPS_SHORT 2u    /* priced steps when simulated in place of an estimate */
#define CUTOFF_SHORT                                                                                         \
    1.8             /* where simulating is cheap: rows of unlike length make estimates from means poor       \
                     */
#define CUTOFF 1.12 /* estimates this much above the best are not proposed */
#define FIT_TURNS 6 /* tries to get experts into memory */

enum { ROLE_ATTENTION = 1, ROLE_EXPERTS = 2 };

struct seeker {
    const struct problem *p;
    struct choice_list *list;
    struct expert_model model;
    struct err *err;
    uint64_t stop; /* evaluations at which the micro-batch size and order looked at have had their part */
    /* of the set of devices and roles looked at; attention first */
    uint32_t n, attending, rows, micro_batches;
    uint32_t device[EXPERT_DEVICES_MAX];
    uint8_t role[EXPERT_DEVICES_MAX];
    struct place_member members[EXPERT_DEVICES_MAX];
    struct expert_links links;
    /* per device of the cluster, at the micro-batch size looked at */
    double *attention_s, *experts_s[COST_WAYS]; /* all rows forward and back; all experts of a layer */
};

static bool expert_supports(const struct problem *problem, struct err *err)
{
    struct expert_model model;
    if (expert_model_init(&model, problem, err) < 0)
        return false;
    expert_model_fini(&model);
    return placement_stages(problem, 1, 1, err) &&
           placement_devices(problem, 2, "attention and experts apart take", err);
}

static bool expert_runnable(const struct problem *problem, const struct place_choice *choice)
{
    (void)problem;
    (void)choice;
    return false; /* the worker has neither routers nor experts yet */
}

/* --- one set of roles at one micro-batch size --- */

static double attention_seconds(const struct seeker *s, uint32_t device, enum cost_way way, double row_share)
{
    const struct cost_device *cost = &s->p->costs[device];
    struct cost_load load = expert_load_mean(s->p, s->micro_batches, row_share);
    return cost_part_seconds(cost, COST_PART_ATTENTION, way, &load) +
           cost_part_seconds(cost, COST_PART_ROUTER, way, &load);
}

/* Rows of a micro-batch by speed: in proportion, then one at a time from the slowest to the fastest while it
 * helps. */
static void rows_divide(struct seeker *s)
{
    double rate = 0;
    uint32_t given = 0;
    for (uint32_t i = 0; i < s->attending; i++)
        rate += 1 / s->attention_s[s->device[i]];
    for (uint32_t i = 0; i < s->attending; i++) {
        double part = s->rows / (s->attention_s[s->device[i]] * rate);
        uint32_t most = s->rows - given - (s->attending - i - 1), take = part < 1 ? 1 : (uint32_t)part;
        s->members[i].micro_rows = take < most ? take : most;
        given += s->members[i].micro_rows;
    }
    for (; given < s->rows; given++) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < s->attending; i++) {
            if ((s->members[i].micro_rows + 1) * s->attention_s[s->device[i]] <
                (s->members[best].micro_rows + 1) * s->attention_s[s->device[best]])
                best = i;
        }
        s->members[best].micro_rows++;
    }
}

/* Of a member's rows of a micro-batch in a layer, forward or back. */
static double attention_pass(const struct seeker *s, uint32_t i, bool back)
{
    const struct place_member *x = &s->members[i];
    double share = (double)x->micro_rows / s->rows;
    if (x->micro_rows == 0)
        return 0;
    return attention_seconds(s, s->device[i], back ? COST_BACKWARD : COST_FORWARD, share) +
           (back && x->recompute ? attention_seconds(s, s->device[i], COST_RECOMPUTE, share) : 0);
}

/* What a layer costs with the rows as divided; experts by share x. */
struct layer_times {
    double attention_s[EXPERT_DEVICES_MAX]; /* forward and back */
    struct zebra forward, backward;
};

static void attention_times(const struct seeker *s, struct layer_times *t)
{
    t->forward = t->backward = (struct zebra){0};
    for (uint32_t i = 0; i < s->n; i++) {
        double f = attention_pass(s, i, false), b = attention_pass(s, i, true);
        t->attention_s[i] = f + b;
        t->forward.attention_s = fmax(t->forward.attention_s, f);
        t->backward.attention_s = fmax(t->backward.attention_s, b);
    }
}

static double experts_all(const struct seeker *s, uint32_t device, bool back, bool recompute)
{
    return s->experts_s[back ? COST_BACKWARD : COST_FORWARD][device] +
           (back && recompute ? s->experts_s[COST_RECOMPUTE][device] : 0);
}

static void experts_times(const struct seeker *s, const double *x, struct layer_times *t)
{
    for (int back = 0; back < 2; back++) {
        struct zebra *z = back ? &t->backward : &t->forward;
        z->experts_s = z->shared_s = 0;
        for (uint32_t i = 0; i < s->n; i++) {
            double each = x[i] * experts_all(s, s->device[i], back, s->members[i].recompute);
            z->experts_s = fmax(z->experts_s, each);
            if (x[i] > 0 && s->members[i].micro_rows > 0)
                z->shared_s = fmax(z->shared_s, each + attention_pass(s, i, back));
        }
    }
}

static void exchange_times(struct seeker *s, const double *x, struct layer_times *t)
{
    double tokens[EXPERT_DEVICES_MAX], touched[EXPERT_DEVICES_MAX];
    for (uint32_t i = 0; i < s->n; i++) {
        tokens[i] =
            expert_load_mean(s->p, s->micro_batches, (double)s->members[i].micro_rows / s->rows).tokens;
        touched[i] = x[i] > 0 ? expert_touched(s->model.experts, s->model.active, x[i]) : 0;
    }
    double seconds = expert_exchange_seconds(&s->links, tokens, touched, s->model.routed_bytes);
    t->forward.dispatch_s = t->forward.combine_s = t->backward.dispatch_s = t->backward.combine_s = seconds;
    t->forward.wire_s = t->backward.wire_s = expert_links_shared(&s->links) ? 2 * seconds : 0;
}

/* Blocks without experts, the exchange of attention's gradients and the optimiser. */
static double outside_seconds(const struct seeker *s)
{
    double dense = 0, step = 0, latency = 0, byte_s = 0, bytes = 0;
    for (uint32_t i = 0; i < s->attending; i++) {
        struct cost_load load =
            expert_load_mean(s->p, s->micro_batches, (double)s->members[i].micro_rows / s->rows);
        const struct cost_device *cost = &s->p->costs[s->device[i]];
        double mine = 0, update = 0;
        for (int cls = 0; cls < COST_CLASSES; cls++) {
            uint32_t count = s->p->prefix[s->p->block_count][cls];
            if (cls == COST_LAYER_SPARSE || count == 0)
                continue;
            mine += count * (cost_class_seconds(cost, (enum cost_class)cls, COST_FORWARD, &load) +
                             cost_class_seconds(cost, (enum cost_class)cls, COST_BACKWARD, &load) +
                             (s->members[i].recompute
                                  ? cost_class_seconds(cost, (enum cost_class)cls, COST_RECOMPUTE, &load)
                                  : 0));
            update += count * cost->step_s[cls];
        }
        dense = fmax(dense, mine);
        step = fmax(step, update + s->model.sparse_count * cost->part_step_s[COST_PART_ATTENTION]);
        uint32_t next = (i + 1) % s->attending;
        latency = fmax(latency, s->links.latency_s[i * s->n + next]);
        byte_s = fmax(byte_s, s->links.byte_s[i * s->n + next]);
    }
    bool full = s->p->workload->method == METHOD_FULL;
    for (int32_t b = 0; b < s->p->block_count; b++) {
        const struct block *block = &s->p->blocks.blocks[b];
        for (uint32_t i = 0; i < block->part_count; i++) {
            if (block->parts[i].kind != PART_EXPERT)
                bytes += 4 * (double)(full ? block->parts[i].params : block->parts[i].lora_params);
        }
    }
    double n = s->attending;
    return s->micro_batches * dense + step +
           (n > 1 ? 2 * ((n - 1) / n * bytes * byte_s + (n - 1) * latency) : 0);
}

static double step_seconds(const struct seeker *s, const struct layer_times *t, uint32_t wave, double outside)
{
    double seconds = outside;
    for (uint32_t first = 0; first < s->micro_batches; first += wave) {
        uint32_t left = s->micro_batches - first, count = left < wave ? left : wave;
        seconds += zebra_seconds(&t->forward, s->model.sparse_count, count) +
                   zebra_seconds(&t->backward, s->model.sparse_count, count);
    }
    return seconds;
}

/* --- memory --- */

struct trial {
    struct place_stage stage;
    struct place_choice choice;
};

static void trial_init(struct seeker *s, struct trial *t, uint32_t wave)
{
    t->stage = (struct place_stage){.block_end = s->p->block_count, .member_count = s->n};
    t->choice = (struct place_choice){.placement = PLACE_EXPERT,
                                      .micro_batch_rows = s->rows,
                                      .stage_count = 1,
                                      .member_count = s->n,
                                      .stages = &t->stage,
                                      .members = s->members};
    for (uint32_t i = 0; i < s->n; i++) {
        s->members[i].device = s->device[i];
        s->members[i].micro_count = s->micro_batches;
        s->members[i].window = wave;
    }
}

/* Most experts of every layer that each member holds beside its attention; false when attention alone is too
 * much somewhere, or all together hold too few. */
static bool caps_find(struct seeker *s, uint32_t wave, double *cap)
{
    double tokens = 0;
    uint64_t held = 0, has = 0, lacks = 0, largest = 0;
    uint32_t worst = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        s->members[i].window = wave;
        tokens += s->members[i].micro_rows ? problem_tokens_bound(s->p, s->members[i].micro_rows) : 0;
    }
    for (uint32_t i = 0; i < s->n; i++) {
        uint64_t limit = s->p->cluster->devices[s->device[i]].memory_limit_bytes;
        uint64_t own = expert_attention_bytes(s->p, &s->model, &s->members[i]);
        uint32_t low = 0, high = s->role[i] & ROLE_EXPERTS ? s->model.experts : 0;
        has += limit;
        lacks += own > limit ? own - limit : 0;
        while (low < high) {
            uint32_t middle = (low + high + 1) / 2;
            if (own + expert_even_bytes(s->p, &s->model, &s->members[i], tokens, middle) <= limit)
                low = middle;
            else
                high = middle - 1;
        }
        cap[i] = (double)low / s->model.experts;
        held += low;
        if (s->role[i] & ROLE_EXPERTS && limit > largest) {
            largest = limit;
            worst = i;
        }
    }
    if (held >= s->model.experts && lacks == 0)
        return true;
    if (held < s->model.experts) { /* what the largest would need to take those that nobody has room for */
        uint32_t takes = (uint32_t)lround(cap[worst] * s->model.experts);
        uint32_t rest = s->model.experts - (uint32_t)held;
        uint64_t own = expert_attention_bytes(s->p, &s->model, &s->members[worst]) +
                       expert_even_bytes(s->p, &s->model, &s->members[worst], tokens, takes + rest);
        lacks += own > largest ? own - largest : 0;
    }
    choice_list_lacks(s->list, has, lacks);
    return false;
}

/* The longest wave that memory has room for: all micro-batches, or what bisection finds; 0: none. */
static uint32_t wave_find(struct seeker *s, double *cap)
{
    uint32_t low = 1, high = s->micro_batches;
    if (caps_find(s, high, cap))
        return high;
    if (!caps_find(s, 1, cap))
        return 0;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (caps_find(s, middle, cap))
            low = middle;
        else
            high = middle;
    }
    caps_find(s, low, cap);
    /* equal waves */
    uint32_t waves = (s->micro_batches + low - 1) / low;
    return (s->micro_batches + waves - 1) / waves;
}

/* Whole experts make some layers slower than others: the mean of what the slowest member takes. */
static void rounded_times(const struct seeker *s, const struct expert_split *split, struct layer_times *t)
{
    for (int back = 0; back < 2; back++) {
        struct zebra *z = back ? &t->backward : &t->forward;
        double alone[EXPERT_DEVICES_MAX], all[EXPERT_DEVICES_MAX];
        for (uint32_t i = 0; i < s->n; i++) {
            alone[i] = attention_pass(s, i, back);
            all[i] = experts_all(s, s->device[i], back, s->members[i].recompute);
        }
        z->experts_s = z->shared_s = 0;
        for (uint32_t l = 0; l < split->sparse_count; l++) {
            double slowest = 0, both = 0;
            for (uint32_t i = 0; i < s->n; i++) {
                double each = split->load[i * split->sparse_count + l] * all[i];
                slowest = fmax(slowest, each);
                both = each > 0 && alone[i] > 0 ? fmax(both, each + alone[i]) : both;
            }
            z->experts_s += slowest / split->sparse_count;
            z->shared_s += both / split->sparse_count;
        }
    }
}

/* Experts are whole and routing may be uneven: does what each would hold fit? 1 yes, and how long layers
 * take; 0 no, −1 out of memory. */
static int fits(struct seeker *s, const struct trial *t, struct layer_times *times)
{
    struct expert_split split;
    uint64_t has = 0, lacks = 0;
    int result;
    if (expert_split_init(&split, &s->model, s->p->workload->expert_share, s->members, s->n, s->err) < 0)
        return -1;
    for (uint32_t i = 0; i < s->n; i++) {
        struct expert_need need;
        uint64_t limit = s->p->cluster->devices[s->device[i]].memory_limit_bytes;
        expert_member_need(s->p, &s->model, &t->choice, &split, i, &need);
        has += limit;
        lacks += need.all.total > limit ? need.all.total - limit : 0;
    }
    choice_list_lacks(s->list, has, lacks);
    result = lacks == 0;
    if (result > 0)
        rounded_times(s, &split, times);
    expert_split_fini(&split);
    return result;
}

/* --- proposing --- */

/* Programs so short that simulating them costs little. */
static bool programs_short(const struct seeker *s)
{
    return s->model.sparse_count * s->micro_batches * s->n <= EXPERT_SHORT / 4;
}

static double limit_of(const struct seeker *s)
{
    bool small = programs_short(s);
    return s->list->count ? s->list->choices[0].estimate_s * (small ? CUTOFF_SHORT : CUTOFF) : INFINITY;
}

static int share_try(struct seeker *s, struct trial *t, struct layer_times *times, const double *x,
                     double outside)
{
    experts_times(s, x, times);
    exchange_times(s, x, times);
    t->choice.estimate_s = step_seconds(s, times, s->members[0].window, outside);
    /* where the exchange does not hide (HeterMoE's gate), a choice must be the best one to be looked into */
    double limit = limit_of(s) / (zebra_gate(&times->forward) ? 1 : CUTOFF);
    if (t->choice.estimate_s >= limit)
        return 0;
    for (uint32_t i = 0; i < s->n; i++) {
        s->members[i].expert_share = x[i] < SHARE_LEAST / s->model.experts ? 0 : x[i];
        if (s->members[i].micro_rows == 0 && s->members[i].expert_share <= 0)
            return 0; /* one of the other ways is this one */
    }
    int fit = fits(s, t, times);
    if (fit <= 0)
        return fit;
    t->choice.estimate_s = step_seconds(s, times, s->members[0].window, outside);
    if (t->choice.estimate_s >= limit)
        return 0;
    bool both = false;
    for (uint32_t i = 0; i < s->n; i++)
        both |= s->members[i].micro_rows > 0 && s->members[i].expert_share > 0;
    /* in which order a rank with both takes them, only simulation tells; short waves had better finish a
     * layer */
    for (uint32_t delay = both ? 0 : 1; delay < 2; delay++) {
        for (uint32_t i = 0; i < s->n; i++)
            s->members[i].delay = delay;
        struct place_choice choice = t->choice;
        choice.estimate_s *= both && delay != (s->members[0].window > DRAIN_WAVE) ? SECOND_ORDER : 1;
        double seconds = programs_short(s) ? choice_simulate(s->p, &choice, STEPS_SHORT, s->err) : 0;
        choice.estimate_s = seconds > 0 ? seconds : choice.estimate_s;
        if (choice_list_add(s->list, &choice, s->err) < 0)
            return -1;
    }
    return 0;
}

/* A wave whose caps are known: shares in whole experts, then in fractions that are carried from layer to
 * layer. */
static int wave_try(struct seeker *s, uint32_t wave, const double *base, const double *each,
                    const double *cap, double outside)
{
    struct trial t;
    struct layer_times times;
    double x[EXPERT_DEVICES_MAX];
    uint32_t count[EXPERT_DEVICES_MAX];
    attention_times(s, &times);
    trial_init(s, &t, wave);
    if (expert_fill_whole(s->n, s->model.experts, base, each, cap, count)) {
        for (uint32_t i = 0; i < s->n; i++)
            x[i] = (double)count[i] / s->model.experts;
        if (share_try(s, &t, &times, x, outside) < 0)
            return -1;
    }
    return expert_fill(s->n, base, each, cap, x) ? share_try(s, &t, &times, x, outside) : 0;
}

/* The roles with ranks of one kind or the other computing twice, in waves that fit. */
static int recompute_try(struct seeker *s, uint32_t mode)
{
    struct layer_times times;
    double base[EXPERT_DEVICES_MAX], each[EXPERT_DEVICES_MAX], cap[EXPERT_DEVICES_MAX], x[EXPERT_DEVICES_MAX];
    for (uint32_t i = 0; i < s->n; i++)
        s->members[i].recompute = mode >> (i < s->attending ? 0 : 1) & 1;
    attention_times(s, &times);
    for (uint32_t i = 0; i < s->n; i++) {
        base[i] = s->role[i] == (ROLE_ATTENTION | ROLE_EXPERTS) ? times.attention_s[i] : 0;
        each[i] = experts_all(s, s->device[i], false, false) +
                  experts_all(s, s->device[i], true, s->members[i].recompute);
        cap[i] = s->role[i] & ROLE_EXPERTS ? 1 : 0;
    }
    double outside = outside_seconds(s);
    if (!expert_fill(s->n, base, each, cap, x))
        return 0;
    experts_times(s, x, &times);
    /* with no exchange, no rounding and all the memory one could wish for */
    if (step_seconds(s, &times, s->micro_batches, outside) >= limit_of(s))
        return 0;
    /* the longest wave, and shorter ones while memory keeps experts from where they would be run fastest */
    bool bound = true;
    for (uint32_t wave = wave_find(s, cap); wave > 0 && bound; wave /= 2) {
        if (!caps_find(s, wave, cap))
            break;
        bound = false;
        for (uint32_t i = 0; i < s->n; i++)
            bound |= x[i] > cap[i];
        if (wave_try(s, wave, base, each, cap, outside) < 0)
            return -1;
    }
    return 0;
}

static int rows_try(struct seeker *s)
{
    rows_divide(s);
    for (uint32_t mode = 0; mode < 4; mode++) { /* bit 0: ranks with attention, 1: ranks with experts alone */
        bool allowed = micro_recompute_allowed(s->p, mode & 1) && micro_recompute_allowed(s->p, mode >> 1);
        bool alone = s->attending < s->n || mode < 2;
        if (allowed && alone && recompute_try(s, mode) < 0)
            return -1;
    }
    return 0;
}

static void speeds_fill(struct seeker *s)
{
    for (uint32_t d = 0; d < s->p->device_count; d++) {
        if (!s->p->usable[d])
            continue;
        double tokens = expert_load_mean(s->p, s->micro_batches, 1).tokens;
        s->attention_s[d] =
            attention_seconds(s, d, COST_FORWARD, 1) + attention_seconds(s, d, COST_BACKWARD, 1);
        for (int way = 0; way < COST_WAYS; way++)
            s->experts_s[way][d] = cost_experts_seconds(&s->p->costs[d], (enum cost_way)way, s->model.experts,
                                                        tokens * s->model.active / s->model.experts);
    }
}

/* The devices in order, with their roles; members are put attention first. */
static int roles_try(struct seeker *s, const uint32_t *device, const uint8_t *role, uint32_t count)
{
    uint8_t all = 0;
    s->n = s->attending = 0;
    memset(s->members, 0, sizeof(s->members));
    for (int second = 0; second < 2; second++) {
        for (uint32_t i = 0; i < count; i++) {
            if (role[i] == 0 || (role[i] & ROLE_ATTENTION ? 0 : 1) != second)
                continue;
            all |= role[i];
            s->attending += second == 0;
            s->device[s->n] = device[i];
            s->role[s->n++] = role[i];
        }
    }
    if (s->n < 2 || all != (ROLE_ATTENTION | ROLE_EXPERTS) || s->attending > s->rows ||
        s->list->evaluations >= s->stop)
        return 0;
    s->list->evaluations += 1 + s->n / 16;
    if (expert_links_init(&s->links, s->p->cluster, s->device, s->n, s->err) < 0)
        return -1;
    int result = rows_try(s);
    expert_links_fini(&s->links);
    return result;
}

/* Two devices that nothing tells apart. */
static bool twins(const struct seeker *s, uint32_t a, uint32_t b)
{
    const struct device *x = &s->p->cluster->devices[a], *y = &s->p->cluster->devices[b];
    return x->node == y->node && x->memory_limit_bytes == y->memory_limit_bytes &&
           s->attention_s[a] == s->attention_s[b] &&
           s->experts_s[COST_FORWARD][a] == s->experts_s[COST_FORWARD][b] &&
           s->experts_s[COST_BACKWARD][a] == s->experts_s[COST_BACKWARD][b];
}

static int all_roles(struct seeker *s, const uint32_t *device, uint32_t count)
{
    uint8_t role[EXPERT_ROLES_ALL];
    for (uint32_t code = 1; code < 1u << (2 * count); code++) {
        bool fresh = true;
        for (uint32_t i = 0; i < count; i++) {
            role[i] = code >> (2 * i) & 3;
            for (uint32_t k = 0; k < i && fresh; k++) /* of twins the first has the larger role */
                fresh = role[k] >= role[i] || !twins(s, device[k], device[i]);
        }
        if (fresh && roles_try(s, device, role, count) < 0)
            return -1;
    }
    return 0;
}

static uint32_t fewer(uint32_t n)
{
    return n > 12 ? n - n / 6 : n - 1;
}

/* The first `cut` of the first `count` in this order do attention; the others hold the experts, or all do. */
static int cuts_try(struct seeker *s, const uint32_t *device, uint32_t total)
{
    uint8_t role[EXPERT_DEVICES_MAX];
    for (uint32_t count = total; count >= 2; count = fewer(count)) {
        for (uint32_t cut = count; cut >= 1; cut = cut > 1 ? fewer(cut) : 0) {
            for (int both = cut == count; both < 2; both++) {
                for (uint32_t i = 0; i < count; i++)
                    role[i] = (uint8_t)(i < cut ? ROLE_ATTENTION | (both ? ROLE_EXPERTS : 0) : ROLE_EXPERTS);
                if (roles_try(s, device, role, count) < 0)
                    return -1;
            }
        }
    }
    return 0;
}

struct ranked {
    double key;
    uint32_t device;
};

static int by_key(const void *left, const void *right)
{
    const struct ranked *a = left, *b = right;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->device < b->device ? -1 : a->device > b->device;
}

enum { ORDER_RATIO, ORDER_FAST, ORDER_SLOW, ORDER_MEMORY, ORDERS };

/* Attention goes to the front: whose attention is fast beside its experts, who is fast, who is slow, who is
 * small. */
static double order_key(const struct seeker *s, int order, uint32_t d)
{
    double experts = experts_all(s, d, false, false) + experts_all(s, d, true, false);
    switch (order) {
    case ORDER_RATIO:
        return s->attention_s[d] / experts;
    case ORDER_FAST:
        return s->attention_s[d] + experts;
    case ORDER_SLOW:
        return -(s->attention_s[d] + experts);
    default:
        return (double)s->p->cluster->devices[d].memory_limit_bytes;
    }
}

static uint64_t part_of(const struct choice_list *list, uint64_t end, uint32_t parts)
{
    return list->evaluations + (end > list->evaluations ? (end - list->evaluations + parts - 1) / parts : 0);
}

static int size_try(struct seeker *s, struct ranked *ranked, uint32_t *device, uint32_t count, uint64_t end)
{
    speeds_fill(s);
    for (int order = 0; order < ORDERS; order++) {
        s->stop = count <= EXPERT_ROLES_ALL ? end : part_of(s->list, end, (uint32_t)(ORDERS - order));
        for (uint32_t i = 0; i < count; i++)
            ranked[i].key = order_key(s, order, ranked[i].device);
        qsort(ranked, count, sizeof(*ranked), by_key);
        uint32_t most = count < EXPERT_DEVICES_MAX ? count : EXPERT_DEVICES_MAX;
        for (uint32_t i = 0; i < most; i++)
            device[i] = ranked[i].device;
        if (count <= EXPERT_ROLES_ALL)
            return all_roles(s, device, count);
        if (cuts_try(s, device, most) < 0)
            return -1;
    }
    return 0;
}

static uint64_t choice_instrs(const struct problem *p, const struct place_choice *choice)
{
    uint64_t layers = p->prefix[p->block_count][COST_LAYER_SPARSE];
    return layers * choice->member_count * micro_count(p, choice->micro_batch_rows);
}

static int expert_propose(const struct problem *p, struct choice_list *list, struct err *err)
{
    struct seeker *s = calloc(1, sizeof(*s));
    struct ranked *ranked = calloc((size_t)p->device_count + 1, sizeof(*ranked));
    uint32_t *device = calloc((size_t)p->device_count + 1, sizeof(*device)), count = 0;
    double *seconds = calloc(4 * ((size_t)p->device_count + 1), sizeof(*seconds));
    uint32_t sizes[MICRO_SIZES_MAX], size_count = micro_sizes(p, sizes);
    int result = s && ranked && device && seconds ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    if (result == 0) {
        s->p = p;
        s->list = list;
        s->err = err;
        s->attention_s = seconds;
        for (int way = 0; way < COST_WAYS; way++)
            s->experts_s[way] = seconds + (size_t)(way + 1) * (p->device_count + 1);
        result = expert_model_init(&s->model, p, err);
    }
    for (uint32_t d = 0; d < p->device_count && result == 0; d++) {
        if (p->usable[d])
            ranked[count++].device = d;
    }
    bool possible = !p->runnable_only;
    for (uint32_t i = size_count; i-- > 0 && result == 0 && possible;) {
        s->rows = sizes[i];
        s->micro_batches = micro_count(p, sizes[i]);
        if ((uint64_t)s->model.sparse_count * s->micro_batches * 2 > EXPERT_INSTRS_MAX && size_count > 1)
            continue;
        result = size_try(s, ranked, device, count, part_of(list, list->evaluations_max, i + 1));
    }
    while (list->count > EXPERT_FINALISTS && choice_instrs(p, &list->choices[0]) > EXPERT_SHORT)
        choice_fini(&list->choices[--list->count]);
    if (s)
        expert_model_fini(&s->model);
    free(s);
    free(ranked);
    free(device);
    free(seconds);
    return result;
}

/* --- from a plan: all but how far experts run behind attention, which is polished anew --- */

static int expert_from_plan(const struct problem *p, const struct plan *plan, struct place_choice *choice,
                            struct err *err)
{
    struct expert_model model;
    uint32_t n = plan->rank_count, rows = 0;
    *choice = (struct place_choice){
        .placement = PLACE_EXPERT, .micro_batch_rows = plan->rows_bound, .stage_count = 1, .member_count = n};
    if (expert_model_init(&model, p, err) < 0)
        return -1;
    choice->stages = calloc(2, sizeof(*choice->stages));
    choice->members = calloc((size_t)n + 1, sizeof(*choice->members));
    int result = choice->stages && choice->members ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t r = 0; r < n && result == 0; r++) {
        const struct plan_rank *rank = &plan->ranks[r];
        struct place_member *m = &choice->members[r];
        double total = 0;
        for (uint32_t i = 0; i < rank->expert_count; i++)
            total += rank->experts[i].end - rank->experts[i].begin;
        m->device = cluster_device_find(p->cluster, rank->device);
        m->micro_rows = (uint32_t)lround(rank->rows_share * plan->rows_bound);
        m->micro_count = plan->micro_batch_count;
        m->expert_share = total / ((double)model.experts * model.sparse_count);
        m->window = rank->window;
        m->recompute = rank->recompute;
        rows += m->micro_rows;
        if (m->device == UINT32_MAX)
            result = err_set(err, ERR_INVALID, "%s is no longer there", rank->device);
    }
    expert_model_fini(&model);
    if (result == 0) {
        choice->stages[0] = (struct place_stage){.block_end = p->block_count, .member_count = n};
        if (rows != plan->rows_bound)
            result = err_set(err, ERR_INVALID, "its micro-batches are divided otherwise");
    }
    if (result < 0)
        choice_fini(choice);
    return result;
}

const struct placement place_expert = {.kind = PLACE_EXPERT,
                                       .supports = expert_supports,
                                       .propose = expert_propose,
                                       .emit = expert_emit,
                                       .runnable = expert_runnable,
                                       .from_plan = expert_from_plan};
