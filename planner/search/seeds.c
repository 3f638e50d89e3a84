/* Makes seeds. Devices are put in several orders: grouped by machine or not, fast or large devices first or
 * last. From each order come several sets of devices: all, the first half, quarter …, single machines, and
 * every set if there are few devices. */
#include "planner/search/seeds.h"

#include "planner/kind/cut.h"
#include "planner/kind/tight.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SETS_ALL 5u /* most devices for which placements of one stage try every set */
#define NEAR 1.3    /* a seed whose value exceeds this multiple of the best is not estimated to the end */
/* With more devices than this, stages are formed by dynamic programming first (cut_groups), because stages of
 * equal width seldom suit so many. */
#define GROUPS_FIRST 16u
#define SLACKS 3u
/* Most devices for which machines are ordered by their links, which compares all pairs. */
#define CHAINED_MAX 512u
/* Interleaved stages of several members are tried as two to five groups of devices with two to four ranges of
 * blocks each. */
#define GATHERED_GROUPS 4u
#define GATHERED_LAPS 3u
#define COVER_WIDEST 8u /* most devices of a stage in seeds; moves make wider stages */
/* micro-batches per stage that are tried first: filling the pipeline then takes a fifth of the step */
#define STAGE_MICRO 4u

struct device_rank {
    uint32_t link; /* position of the device's machine in the order of links_chain */
    uint32_t device, node;
    /* speed: micro-batches of one row per second; memory: bytes; machine: speeds of all devices of the
     * machine, summed */
    double speed, memory, machine;
    double key; /* the order that is being tried is by rising key, then by machine */
};

struct seeder {
    struct local_state *local;
    struct candidate_list *list;
    struct device_rank *ranks; /* [count]: the usable devices */
    uint32_t count;
    uint32_t *order; /* [count]: the devices in the order that is being tried */
    struct candidate c, trial;
    double best, last; /* least value of all seeds so far, and of the last set of devices */
};

enum seed_order { BY_MEMORY, BY_LINK, BY_LINK_BACK, BY_MACHINE, BY_SPEED, BY_SPEED_BACK, SEED_ORDERS };

static int by_machine(const void *left, const void *right)
{
    const struct device_rank *a = left, *b = right;
    if (a->machine != b->machine)
        return a->machine > b->machine ? -1 : 1;
    if (a->node != b->node)
        return a->node < b->node ? -1 : 1;
    if (a->speed != b->speed)
        return a->speed > b->speed ? -1 : 1;
    return a->device < b->device ? -1 : 1;
}

static int by_key(const void *left, const void *right)
{
    const struct device_rank *a = left, *b = right;
    return a->key != b->key ? (a->key < b->key ? -1 : 1) : by_machine(left, right);
}

/* Orders the machines so that neighbours have fast links: starts at the fastest machine and always goes on to
 * the one with the fastest link from the last (nearest neighbour). */
static int links_chain(struct seeder *s)
{
    const struct problem *p = s->local->bench->problem;
    uint32_t last = 0, place = 0;
    bool *done = calloc((size_t)p->cluster->node_count + 1, sizeof(*done));
    if (!done)
        return err_set(s->local->bench->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t i = 1; i < s->count; i++)
        last = by_machine(&s->ranks[i], &s->ranks[last]) < 0 ? i : last;
    for (bool more = s->count <= CHAINED_MAX; more;) {
        uint32_t next = place ? UINT32_MAX : last;
        double best = 0;
        if (place > 0) {
            for (uint32_t i = 0; i < s->count; i++) {
                double rate = problem_link(p, s->ranks[last].device, s->ranks[i].device).bytes_per_s;
                if (!done[s->ranks[i].node] &&
                    (rate > best || (rate == best && by_machine(&s->ranks[i], &s->ranks[next]) < 0))) {
                    best = rate;
                    next = i;
                }
            }
        }
        more = next != UINT32_MAX;
        if (!more)
            break;
        last = next;
        done[s->ranks[next].node] = true;
        for (uint32_t i = 0; i < s->count; i++)
            s->ranks[i].link = s->ranks[i].node == s->ranks[next].node ? place : s->ranks[i].link;
        place++;
    }
    free(done);
    return 0;
}

static int seeder_init(struct seeder *s)
{
    const struct problem *p = s->local->bench->problem;
    const struct cluster *cluster = p->cluster;
    double *machine = calloc((size_t)cluster->node_count + 1, sizeof(*machine));
    s->ranks = calloc((size_t)p->device_count + 1, sizeof(*s->ranks));
    s->order = calloc((size_t)p->device_count + 1, sizeof(*s->order));
    int result = machine && s->ranks && s->order
                     ? 0
                     : err_set(s->local->bench->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t d = 0; d < p->device_count && result == 0; d++) {
        if (!p->usable[d])
            continue;
        double seconds = problem_seconds(p, d, 0, p->block_count, COST_FORWARD, &p->mean_row) +
                         problem_seconds(p, d, 0, p->block_count, COST_BACKWARD, &p->mean_row);
        s->ranks[s->count++] = (struct device_rank){.device = d,
                                                    .node = cluster->devices[d].node,
                                                    .speed = 1 / seconds,
                                                    .memory = (double)cluster->devices[d].memory_limit_bytes};
        machine[cluster->devices[d].node] += 1 / seconds;
    }
    for (uint32_t i = 0; i < s->count && result == 0; i++)
        s->ranks[i].machine = machine[s->ranks[i].node];
    free(machine);
    return result < 0 ? -1 : links_chain(s);
}

static void order_by(struct seeder *s, enum seed_order order)
{
    for (uint32_t i = 0; i < s->count; i++) {
        const struct device_rank *r = &s->ranks[i];
        const double keys[SEED_ORDERS] = {-r->memory, r->link, r->link, 0, -r->speed, -r->speed};
        s->ranks[i].key = keys[order];
    }
    qsort(s->ranks, s->count, sizeof(*s->ranks), by_key);
    for (uint32_t i = 0; i < s->count; i++)
        s->order[i] = s->ranks[order == BY_LINK_BACK || order == BY_SPEED_BACK ? s->count - 1 - i : i].device;
}

static void reverse(uint32_t *order, uint32_t count)
{
    for (uint32_t i = 0; i < count / 2; i++) {
        uint32_t held = order[i];
        order[i] = order[count - 1 - i];
        order[count - 1 - i] = held;
    }
}

/* --- making and estimating one seed --- */

static void candidate_begin(struct seeder *s, uint32_t micro_batch_rows)
{
    s->c.stage_count = s->c.member_count = s->c.owner_count = 0;
    s->c.placement = s->local->kind->placement;
    s->c.schedule = SCHEDULE_1F1B;
    s->c.micro_batch_rows = micro_batch_rows;
}

/* Estimates a candidate and lists it if it fits; lowers s->last and s->best to its value. */
static int seed_add(struct seeder *s, struct candidate *c, enum move_level level)
{
    double now = local_value(s->local, c, level, s->best * NEAR);
    if (now < 0 || (now < INFINITY && candidate_list_add(s->list, c, s->local->bench->err) < 0))
        return -1;
    s->last = fmin(s->last, now);
    s->best = fmin(s->best, now);
    return 0;
}

/* Estimates s->c with blocks divided evenly and tilted (local.h, enum local_cut). */
static int seed_value(struct seeder *s)
{
    bool both = s->c.stage_count > 2;
    for (int even = 0; even < (both ? 2 : 1); even++) {
        if (both && candidate_copy(&s->trial, &s->c, s->local->bench->err) < 0)
            return -1;
        s->local->cut = even ? CUT_EVEN : CUT_TILTED;
        if (seed_add(s, both ? &s->trial : &s->c, MOVE_CUT) < 0)
            return -1;
    }
    s->local->cut = CUT_EITHER;
    return 0;
}

/* Estimates s->c at one micro-batch size, then at larger and at smaller ones: a single stage at all of them,
 * since they are few and measured times can jump, several stages until two in a row are worse. Sets s->last
 * to the best value. */
static int seed_sizes(struct seeder *s, uint32_t rows)
{
    const struct problem *p = s->local->bench->problem;
    uint32_t sizes[MICRO_SIZES_MAX], count = micro_sizes(p, sizes), first = 0;
    bool own = s->local->kind->stage_kind == STAGE_SHARDED || s->local->kind->stage_kind == STAGE_SERVER;
    const uint32_t worse_most = s->local->kind->stages_most > 1 ? 2 : MICRO_SIZES_MAX;
    double best = INFINITY;
    while (first + 1 < count && sizes[first] < rows)
        first++;
    for (int way = -1; way <= 1; way += 2) {
        uint32_t worse = 0;
        for (int64_t at = way < 0 ? first : (int64_t)first + 1;
             at >= 0 && at < count && worse < worse_most && s->local->spent < s->local->budget; at += way) {
            s->c.micro_batch_rows = sizes[at];
            s->last = INFINITY;
            if (seed_value(s) < 0)
                return -1;
            worse = s->last < best ? 0 : worse + (best < INFINITY);
            s->last = best = fmin(best, s->last);
            if (own) /* settle() gives members rows of their own: one size is enough */
                return 0;
        }
    }
    return 0;
}

/* Returns the micro-batch size to begin with: the largest that gives at least STAGE_MICRO micro-batches per
 * stage. */
static uint32_t size_first(const struct seeder *s, uint32_t stages)
{
    const struct problem *p = s->local->bench->problem;
    uint32_t sizes[MICRO_SIZES_MAX], count = micro_sizes(p, sizes), first = 0;
    uint32_t wanted = s->local->kind->stages_most > 1 ? STAGE_MICRO * stages : 1;
    while (first + 1 < count && micro_count(p, sizes[first + 1]) >= wanted)
        first++;
    return sizes[first];
}

/* Adds seeds with the first `count` devices of the order, in stages of `each` devices (0: one stage per
 * machine). */
static int seed_groups(struct seeder *s, uint32_t count, uint32_t each)
{
    const struct problem *p = s->local->bench->problem;
    const struct placement_kind *kind = s->local->kind;
    const struct planner_device *devices = p->cluster->devices;
    s->last = INFINITY;
    if (s->local->spent >= s->local->budget)
        return 0;
    candidate_begin(s, 0);
    for (uint32_t at = 0, width; at < count; at += width) {
        width = each;
        while (each == 0 && at + ++width < count &&
               devices[s->order[at + width]].node == devices[s->order[at]].node)
            ;
        width = at + width > count ? count - at : width;
        width = width > kind->members_most ? kind->members_most : width;
        if (move_append(&s->c, kind, &s->order[at], width, s->local->bench->err) < 0)
            return -1;
    }
    for (uint32_t g = 0; g < s->c.stage_count; g++) {
        s->c.stages[g].block_begin = (int32_t)((uint64_t)p->block_count * g / s->c.stage_count);
        s->c.stages[g].block_end = (int32_t)((uint64_t)p->block_count * (g + 1) / s->c.stage_count);
    }
    return move_shape_allowed(p, kind, &s->c) ? seed_sizes(s, size_first(s, s->c.stage_count)) : 0;
}

/* Adds seeds whose stages dynamic programming forms (cut_groups) over the order, from its end: for the
 * shortest period, and for longer periods, which take fewer stages, also at other micro-batch sizes. */
static int seed_cover(struct seeder *s, uint32_t widest, uint32_t slack_count, bool even)
{
    static const double slacks[SLACKS] = {1, 1.15, 1.5};
    struct local_state *l = s->local;
    uint32_t size = size_first(s, s->count);
    double least = 0, best = INFINITY;
    for (uint32_t i = 0; i < slack_count && l->spent < l->budget; i++) {
        uint64_t before = l->bench->spent;
        double period = least * slacks[i];
        candidate_begin(s, size);
        l->bench->even = even;
        int found = cut_groups(l->bench, l->kind, &s->c, s->order, s->count, widest, &period);
        least = i ? least : period;
        l->spent += l->bench->spent - before;
        if (found <= 0)
            return found;
        /* These numbers of stages and members make it another placement. */
        if (!move_shape_allowed(l->bench->problem, l->kind, &s->c))
            continue;
        s->last = INFINITY;
        if ((slack_count == 1 ? seed_add(s, &s->c, MOVE_SETTLE) : seed_sizes(s, size)) < 0)
            return -1;
        best = fmin(best, s->last);
    }
    s->last = best;
    return 0;
}

/* Adds seeds by cut_groups: every order once, then the best order thoroughly, with even and tilted cuts, and
 * with stages of at most a third of the width. */
static int seed_covers(struct seeder *s)
{
    uint32_t most = s->local->kind->members_most, widest = most < COVER_WIDEST ? most : COVER_WIDEST;
    int best = 0;
    double least = INFINITY;
    for (int look = 0; look < SEED_ORDERS + 4; look++) {
        bool first = look < SEED_ORDERS, third = look >= SEED_ORDERS + 2;
        order_by(s, (enum seed_order)(first ? look : best));
        reverse(s->order, s->count);
        if (seed_cover(s, third ? (widest + 2) / 3 : widest, first ? 1 : SLACKS, !first && look % 2 == 0) < 0)
            return -1;
        best = first && s->last < least ? look : best;
        least = fmin(least, s->last);
    }
    return 0;
}

/* --- sets of devices to make seeds from --- */

static int seed_widths(struct seeder *s, uint32_t count)
{
    const struct placement_kind *kind = s->local->kind;
    uint32_t asked = s->local->bench->problem->workload->stages;
    if (kind->stages_most == 1)
        return seed_groups(s, count, count);
    if (asked)
        return seed_groups(s, count, (count + asked - 1) / asked);
    if (kind->members_most == 1)
        return seed_groups(s, count, 1);
    for (uint32_t each = COVER_WIDEST; each > 1; each -= each > 4 ? each / 2 : 1)
        if (each <= count && each <= kind->members_most && seed_groups(s, count, each) < 0)
            return -1;
    return seed_groups(s, count, 0);
}

static int seed_every_set(struct seeder *s)
{
    order_by(s, BY_SPEED);
    uint32_t all[SETS_ALL], count = s->count;
    memcpy(all, s->order, count * sizeof(*all));
    for (uint32_t set = (1u << count) - 1; set > 0; set--) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < count; i++)
            if (set >> i & 1)
                s->order[n++] = all[i];
        for (uint32_t first = 0; first < n; first++) { /* each device of a server becomes its first member,
                                                          which holds the state */
            if (seed_groups(s, n, n) < 0)
                return -1;
            if (s->local->kind->stage_kind != STAGE_SERVER)
                break;
            uint32_t held = s->order[0];
            memmove(s->order, s->order + 1, (n - 1) * sizeof(*s->order));
            s->order[n - 1] = held;
        }
    }
    return 0;
}

/* Adds seeds with the devices of one machine. */
static int seed_machines(struct seeder *s)
{
    order_by(s, BY_MACHINE);
    for (uint32_t at = 0, n; at < s->count; at += n) {
        n = 1;
        while (at + n < s->count && s->ranks[at + n].node == s->ranks[at].node)
            n++;
        for (uint32_t i = 0; i < n; i++)
            s->order[i] = s->ranks[at + i].device;
        if (n > 1 && n < s->count && seed_widths(s, n) < 0)
            return -1;
    }
    return 0;
}

/* Adds seeds with the first devices of an order: all, half, a quarter …, then numbers between the best and
 * its neighbours. */
static int seed_prefix(struct seeder *s)
{
    uint32_t best = s->count;
    double least = INFINITY;
    for (uint32_t n = s->count; n > 1; n /= 2) {
        if (seed_groups(s, n, n) < 0)
            return -1;
        best = s->last < least ? n : best;
        least = fmin(least, s->last);
    }
    for (uint32_t step = best / 2; step > 0 && least < INFINITY; step /= 2) {
        for (int way = -1; way <= 1; way += 2) {
            uint32_t n = way < 0 ? best - step : best + step;
            if (n < 2 || n > s->count)
                continue;
            if (seed_groups(s, n, n) < 0)
                return -1;
            if (s->last < least) {
                least = s->last;
                best = n;
                break;
            }
        }
    }
    return 0;
}

/* Adds seeds of placements with one stage. */
static int seed_sets(struct seeder *s)
{
    static const uint32_t gathers[] = {0, 2, 4};
    const struct placement_kind *kind = s->local->kind;
    uint32_t variants = kind->stage_kind == STAGE_SHARDED ? 3 : 1;
    for (uint32_t v = 0; v < variants; v++) {
        s->c.gathered_layers = kind->stage_kind == STAGE_SERVER ? 2 : gathers[v];
        if (s->count <= SETS_ALL) {
            if (seed_every_set(s) < 0)
                return -1;
            continue;
        }
        for (int order = 0; order < SEED_ORDERS; order++) {
            order_by(s, (enum seed_order)order);
            if (seed_prefix(s) < 0)
                return -1;
        }
        if (seed_machines(s) < 0)
            return -1;
    }
    return 0;
}

static int seed_singles(struct seeder *s)
{
    order_by(s, BY_SPEED);
    for (uint32_t i = 0; i < s->count; i++) {
        s->order[0] = s->ranks[i].device;
        if (seed_groups(s, 1, 1) < 0)
            return -1;
    }
    return 0;
}

/* Adds seeds of pipelines with stages of equal width, with the first `most` devices of each order down to the
 * first `least`. */
static int seed_orders(struct seeder *s, uint32_t most, uint32_t least)
{
    for (int order = 0; order < SEED_ORDERS; order++) {
        order_by(s, (enum seed_order)order);
        for (uint32_t n = most; n >= least && n > 1; n = n > 16 ? n / 2 : n > 4 ? n - n / 4 : n - 1)
            if (seed_widths(s, n) < 0)
                return -1;
    }
    return 0;
}

/* Adds seeds whose blocks are divided by memory (tight_cut) for every sequence of the remaining devices after
 * the first `placed` ones. */
static int seed_tight_orders(struct seeder *s, uint32_t placed)
{
    uint32_t sizes[MICRO_SIZES_MAX], asked = s->local->bench->problem->workload->stages;
    double value;
    if (placed > 1 && (!asked || placed == asked)) {
        micro_sizes(s->local->bench->problem, sizes);
        candidate_begin(s, sizes[0]);
        for (uint32_t i = 0; i < placed; i++)
            if (move_append(&s->c, s->local->kind, &s->order[i], 1, s->local->bench->err) < 0)
                return -1;
        if (tight_cut(s->local->bench, &s->c)) {
            value = local_value(s->local, &s->c, MOVE_SETTLE, INFINITY);
            if (value < 0 ||
                (value < INFINITY && candidate_list_add(s->list, &s->c, s->local->bench->err) < 0))
                return -1;
        }
    }
    for (uint32_t i = placed; i < s->count && s->count <= SETS_ALL; i++) {
        uint32_t held = s->order[placed];
        s->order[placed] = s->order[i];
        s->order[i] = held;
        if (seed_tight_orders(s, placed + 1) < 0)
            return -1;
        s->order[i] = s->order[placed];
        s->order[placed] = held;
    }
    return 0;
}

/* Adds seeds whose blocks are divided by memory, for pipelines that do not fit with blocks divided by time.
 */
static int seed_tight(struct seeder *s)
{
    for (int order = 0; order < SEED_ORDERS; order++) {
        order_by(s, (enum seed_order)order);
        if (seed_tight_orders(s, s->count <= SETS_ALL ? 0 : s->count) < 0)
            return -1;
        if (s->count <= SETS_ALL)
            break;
    }
    return 0;
}

/* Interleaves s->c with `laps` ranges of blocks per rank, all recomputed, and lists it if it then fits. */
static int seed_interleaved(struct seeder *s, uint32_t laps)
{
    struct workbench *bench = s->local->bench;
    const struct problem *p = bench->problem;
    const struct placement_kind *kind = s->local->kind;
    struct err why = {0};
    candidate_members_reset(&s->c, micro_recompute_allowed(p, true));
    int level = move_apply(p, kind, &s->c, (struct move){MOVE_SCHEDULE, laps + 1, 0}, bench->err);
    if (level <= MOVE_VOID)
        return level < 0 ? -1 : 0;
    bool fits = false;
    for (int room = 2; room > 0 && !fits; room--) { /* tries to gather the weights of two ranges at a time,
                                                       then of one */
        struct plan *plan = kind->emit(p, &s->c, EMIT_NO_PROGRAMS, &why);
        fits = plan != NULL;
        plan_destroy(plan);
        s->c.gathered_layers = fits ? s->c.gathered_layers : 1;
    }
    double value = fits ? local_value(s->local, &s->c, MOVE_AS_IS, INFINITY) : INFINITY;
    return value < 0 ? -1 : value < INFINITY ? candidate_list_add(s->list, &s->c, bench->err) : 0;
}

/* Adds seeds whose stages gather weights range by range, if no candidate that keeps them whole fitted:
 * devices in order, in groups of equal size, with blocks in proportion to each group's memory. */
static int seed_gathered(struct seeder *s)
{
    const struct problem *p = s->local->bench->problem;
    uint32_t sizes[MICRO_SIZES_MAX], asked = p->workload->stages;
    micro_sizes(p, sizes);
    for (uint32_t i = 0; i < SEED_ORDERS * GATHERED_GROUPS * GATHERED_LAPS; i++) {
        uint32_t laps = 2 + i % GATHERED_LAPS, groups = 2 + i / GATHERED_LAPS % GATHERED_GROUPS;
        double memory = 0, all = 0;
        if (groups >= s->count || groups * laps > (uint32_t)p->block_count || (asked && asked != groups))
            continue;
        order_by(s, (enum seed_order)(i / (GATHERED_LAPS * GATHERED_GROUPS)));
        candidate_begin(s, sizes[0]);
        for (uint32_t d = 0; d < s->count; d++)
            all += (double)problem_limit(p, s->order[d]);
        for (uint32_t g = 0, from = 0; g < groups; g++) {
            uint32_t end = s->count * (g + 1) / groups;
            if (move_append(&s->c, s->local->kind, &s->order[from], end - from, s->local->bench->err) < 0)
                return -1;
            for (; from < end; from++)
                memory += (double)problem_limit(p, s->order[from]);
            struct candidate_stage *stage = &s->c.stages[g];
            int32_t begin = g ? stage[-1].block_end : 0, most = p->block_count - (int32_t)(groups - g - 1),
                    cut = (int32_t)lround(p->block_count * memory / all);
            stage->block_begin = begin;
            stage->block_end = cut <= begin ? begin + 1 : cut > most ? most : cut;
        }
        if (seed_interleaved(s, laps) < 0)
            return -1;
    }
    return 0;
}

static int seed_stages(struct seeder *s)
{
    const struct placement_kind *kind = s->local->kind;
    bool many = s->count > GROUPS_FIRST, cover = kind->stage_kind == STAGE_REPLICAS && s->count > 2;
    /* Placements of one stage begin with every set of up to SETS_ALL devices. */
    if (s->count <= SETS_ALL && kind->stages_least == 1 && seed_every_set(s) < 0)
        return -1;
    uint64_t budget = s->local->budget;
    s->local->budget = many ? budget / 2 : budget; /* half of the budget remains for stages of equal width,
                                                      which suit slow links */
    if (many && cover && seed_covers(s) < 0)
        return -1;
    s->local->budget = budget;
    if (seed_orders(s, s->count, s->count) < 0 || seed_machines(s) < 0)
        return -1;
    if (!many && cover && seed_covers(s) < 0)
        return -1;
    if (seed_orders(s, s->count / 2 + 1, 2) < 0)
        return -1;
    uint32_t order = s->local->bench->problem->workload->order;
    if (s->list->count > 0)
        return 0;
    if (kind->placement == PLACE_HYBRID && (!order || order == 1 + SCHEDULE_INTERLEAVED))
        return seed_gathered(s);
    return kind->placement == PLACE_PIPELINE ? seed_tight(s) : 0;
}

static int seed_all(struct seeder *s)
{
    const struct placement_kind *kind = s->local->kind;
    if (kind->look)
        return seed_stages(s);
    return kind->members_most == 1 ? seed_singles(s) : seed_sets(s);
}

int seeds_add(struct local_state *local, struct candidate_list *list)
{
    struct seeder s = {.local = local, .list = list, .best = INFINITY};
    int result = seeder_init(&s);
    if (result == 0)
        result = seed_all(&s);
    candidate_fini(&s.c);
    candidate_fini(&s.trial);
    free(s.ranks);
    free(s.order);
    return result;
}
