/* The bound, from the tail: R[s][b] is the least time from a micro-batch's arrival at stage s, which begins
 * at block b, until all is back from there, were nobody to wait but for the first and the last micro-batch:
 *
 *     R[s][b] = min over e of max(makespan_s(b, e), passage_s(b, e) + hops + R[s+1][e], wire)
 *
 * makespan: all micro-batches of a step dealt to the group's members by who is done first; passage: one of
 * them there and back on the fastest member; wire: all of them over the best link to the next group, or over
 * as many as good ones as there are pairs of members.
 *
 * Which groupings: a table over sets of devices says the least that R can be whoever is grouped how
 * (least_fill). A walk from the head puts a group behind those that stand, and keeps by how soon a first
 * micro-batch can be where; what cannot be within the bound looked for, by the table, is not gone into. The
 * bound is widened until there are enough. Devices that are alike in everything are taken in one order. */
#include "planner/few/few_bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/memory.h"
#include "planner/given/cluster_private.h"

#define WALK_CELLS 8000000u /* pairs of sets · places²: with more, stages begin at fewer places */
#define PLACES_ROUGH 9      /* of a first look at a size */
#define ROUGH_WITHIN 1.15   /* of the worst kept: sizes that look slower are let be */
#define FEW_SPARE 64u       /* groupings beyond FEW_KEPT until the worst are dropped */
#define WALK_LOOKS 1000000u /* groups looked at in all walks */
#define WIDER_FIRST 0.01    /* above the least bound */
#define WIDER 1.5
#define WIDER_LAST 1.0 /* and then whatever there is */

static uint32_t popcount(uint32_t set)
{
    return (uint32_t)__builtin_popcount(set);
}

static size_t cell(const struct few_bound *f, uint32_t row, int32_t begin, int32_t end)
{
    size_t side = (size_t)f->places + 1;
    return (row * side + (size_t)begin) * side + (size_t)end;
}

static uint64_t needed(const struct few_bound *f, const struct memory_stage *stage)
{
    struct memory_need need;
    memory_stage_need(f->p, stage, &need);
    return need.total;
}

void few_alone_fill(const struct few_bound *f, uint32_t d, int32_t block_begin, int32_t block_end,
                    double share, struct few_alone *alone)
{
    uint64_t limit = f->p->cluster->devices[f->sets.device[d]].memory_limit_bytes;
    *alone = (struct few_alone){.seconds = {INFINITY, INFINITY}};
    for (int again = 0; again < 2; again++) {
        struct memory_stage stage = {.block_begin = block_begin,
                                     .block_end = block_end,
                                     .window = 1,
                                     .micro_batch_rows = f->rows,
                                     .recompute = again,
                                     .boundary_buffers =
                                         4 * ((uint32_t)(block_begin > 0) + (block_end < f->p->block_count)),
                                     .state_share = share,
                                     .tensor_share = 1};
        if (!micro_recompute_allowed(f->p, again) || alone->room[0] >= f->micro_batches)
            continue;
        uint64_t one = needed(f, &stage);
        if (one > limit)
            continue;
        stage.window = f->micro_batches;
        uint64_t all = needed(f, &stage);
        alone->room[again] = f->micro_batches;
        if (all > limit && all > one)
            alone->room[again] =
                1 + (uint32_t)((double)(limit - one) * (f->micro_batches - 1) / (double)(all - one));
        alone->seconds[again] = micro_forward(f->p, &f->cost[d], block_begin, block_end) +
                                micro_backward(f->p, &f->cost[d], block_begin, block_end, again);
    }
}

double few_window(const struct few_bound *f, double share, uint32_t behind)
{
    double window = 1 + share * behind;
    return window < f->micro_batches ? window : f->micro_batches;
}

double few_alone_seconds(const struct few_alone *alone, double window, bool *recompute, uint32_t *held)
{
    uint32_t places = (uint32_t)(window + (1 - 1e-9)); /* rounded up */
    double best = INFINITY;
    for (int again = 0; again < 2; again++) {
        uint32_t room = alone->room[again] < places ? alone->room[again] : places;
        double seconds = room > 0 ? alone->seconds[again] * (room < window ? window / room : 1) : INFINITY;
        if (seconds < best) {
            best = seconds;
            *recompute = again;
            *held = room;
        }
    }
    return best;
}

/* All micro-batches by the members together, each given to who is done first: those that all would be done
 * with by the time that the mean of them takes, then one after the other. */
double few_makespan(const struct few_bound *f, const double *each, uint32_t members)
{
    double rate = 0, latest = 0, next[FEW_DEVICES];
    uint32_t given = 0;
    for (uint32_t m = 0; m < members; m++)
        rate += 1 / each[m];
    for (uint32_t m = 0; m < members; m++) {
        uint32_t count = (uint32_t)(f->micro_batches / rate / each[m]);
        given += count;
        next[m] = (count + 1) * each[m];
        latest = count * each[m] > latest ? count * each[m] : latest;
    }
    for (; given < f->micro_batches; given++) {
        uint32_t best = 0;
        for (uint32_t m = 1; m < members; m++)
            best = next[m] < next[best] ? m : best;
        latest = next[best] > latest ? next[best] : latest;
        next[best] += each[best];
    }
    return latest;
}

/* Can a set stand as a group? Only those have rows in the tables. */
static bool is_group(const struct few_bound *f, uint32_t set)
{
    return popcount(f->sets.set[set]) == 1 || !f->sets.single;
}

/* The tables' row of a group with so many devices behind it. */
static uint32_t row(const struct few_bound *f, const struct few_pair *pair, uint32_t behind)
{
    return f->row[pair->group_at] + behind;
}

/* A cell of a group's rows, for every number of devices behind it; all are alike where there is room. */
static void cell_fill(struct few_bound *f, const uint32_t *device, uint32_t members, size_t at, uint32_t rows)
{
    const struct few_alone *alone[FEW_DEVICES];
    double rate = 0, each[FEW_DEVICES];
    size_t stride = ((size_t)f->places + 1) * ((size_t)f->places + 1);
    bool tight = false, can = true;
    for (uint32_t m = 0; m < members; m++) {
        alone[m] = &f->alone[device[m] * stride + at % stride];
        each[m] = alone[m]->seconds[alone[m]->room[0] == 0];
        rate += 1 / each[m];
        can = can && each[m] < INFINITY;
    }
    for (uint32_t m = 0; m < members && !tight; m++)
        tight = alone[m]->room[0] < few_window(f, 1 / each[m] / rate, rows - 1);
    for (uint32_t behind = 0; behind < rows; behind++) {
        double least = INFINITY, all = INFINITY;
        if (behind > 0 && !(tight && can)) {
            f->makespan[at + behind * stride] = f->makespan[at];
            f->passage[at + behind * stride] = f->passage[at];
            continue;
        }
        for (uint32_t m = 0; m < members && can; m++) {
            bool recompute;
            uint32_t held;
            double window = few_window(f, 1 / alone[m]->seconds[alone[m]->room[0] == 0] / rate, behind);
            each[m] = few_alone_seconds(alone[m], window, &recompute, &held);
            least = each[m] < least ? each[m] : least;
        }
        if (can)
            all = few_makespan(f, each, members);
        f->makespan[at + behind * stride] = all;
        f->passage[at + behind * stride] = least;
    }
}

/* The same, of groups that are priced otherwise. */
static void cell_price(struct few_bound *f, uint32_t set, int32_t begin, int32_t end, uint32_t rows)
{
    size_t at = cell(f, f->row[set], begin, end);
    size_t stride = ((size_t)f->places + 1) * ((size_t)f->places + 1);
    for (uint32_t behind = 0; behind < rows; behind++, at += stride)
        f->prices->group(f->prices->with, f, f->sets.set[set], f->place[begin], f->place[end], behind,
                         &f->makespan[at], &f->passage[at]);
}

static void group_fill(struct few_bound *f, uint32_t set)
{
    uint32_t device[FEW_DEVICES], members = 0;
    for (uint32_t d = 0; d < f->sets.count; d++) {
        device[members] = d;
        members += f->sets.set[set] >> d & 1;
    }
    uint32_t rows = f->sets.count - members + 1;
    for (int32_t begin = 0; begin < f->places; begin++) {
        for (int32_t end = begin + 1; end <= f->places; end++) {
            if (f->prices)
                cell_price(f, set, begin, end, rows);
            else
                cell_fill(f, device, members, cell(f, f->row[set], begin, end), rows);
        }
    }
}

void few_size_set(struct few_bound *f, uint32_t rows)
{
    f->rows = rows;
    f->micro_batches = micro_count(f->p, rows);
    for (uint32_t d = 0; d < f->sets.count; d++)
        micro_cost_init(&f->cost[d], f->p, f->sets.device[d], rows);
}

static void places_set(struct few_bound *f, int32_t places)
{
    f->places = places < f->p->block_count ? places : f->p->block_count;
    for (int32_t i = 0; i <= f->places; i++)
        f->place[i] = (int32_t)((int64_t)i * f->p->block_count / f->places);
}

static int32_t places_most(const struct few_bound *f)
{
    uint64_t pairs = f->sets.first[f->sets.sets];
    int32_t places = f->p->block_count;
    while (places > PLACES_ROUGH && pairs * (uint64_t)places * (uint64_t)places / 2 > WALK_CELLS)
        places--;
    return places;
}

/* --- tables --- */

/* The least between members of two groups. */
struct way {
    double hop, wire; /* of one micro-batch there and back; of all, each of several pairs taking its part */
};

static struct way way_least(const struct few_bound *f, uint32_t from, uint32_t to)
{
    struct way least = {INFINITY, INFINITY};
    for (uint32_t a = from; a > 0; a &= a - 1) {
        for (uint32_t b = to; b > 0; b &= b - 1) {
            double hop = f->hop[__builtin_ctz(a)][__builtin_ctz(b)];
            double wire = f->wire[__builtin_ctz(a)][__builtin_ctz(b)];
            least.hop = hop < least.hop ? hop : least.hop;
            least.wire = wire < least.wire ? wire : least.wire;
        }
    }
    if (!f->prices || !f->prices->led)
        least.wire /= popcount(from) * popcount(to);
    return least;
}

/* Of all from a place on by a whole set; `grouped`: with a stage of several somewhere. */
static double *least_of(const struct few_bound *f, uint32_t set, bool grouped)
{
    return &f->least[(2 * (size_t)set + grouped) * ((size_t)f->places + 1)];
}

/* From a place on, with a group in front and others behind it, unless `best` is less. */
static double pair_from(const struct few_bound *f, const struct few_pair *pair, struct way way, int32_t begin,
                        bool grouped, double best)
{
    size_t at = cell(f, row(f, pair, popcount(pair->left)), begin, 0);
    const double *all = &f->makespan[at], *one = &f->passage[at];
    const double *behind = least_of(f, pair->left_at, grouped && popcount(pair->group) < 2);
    for (int32_t end = begin + 1; end < f->places && all[end] < best && way.wire < best; end++) {
        double last = one[end] + way.hop + behind[end], both = all[end] > last ? all[end] : last;
        both = both > way.wire ? both : way.wire;
        best = both < best ? both : best;
    }
    return best;
}

/* A set with one of its groups in front; `grouped`: with a group of several among them. What begins with such
 * a group is that already. */
static void least_pair(struct few_bound *f, uint32_t set, const struct few_pair *pair, struct way way)
{
    double *any = least_of(f, set, false), *grouped = f->sets.single ? any : least_of(f, set, true);
    bool several = popcount(pair->group) > 1;
    for (int32_t begin = 0; begin < f->places; begin++) {
        double now;
        if (!pair->left)
            now = f->makespan[cell(f, row(f, pair, 0), begin, f->places)];
        else
            now = pair_from(f, pair, way, begin, false, several ? grouped[begin] : any[begin]);
        any[begin] = fmin(any[begin], now);
        if (several)
            grouped[begin] = fmin(grouped[begin], now);
        else if (pair->left && !f->sets.single)
            grouped[begin] = pair_from(f, pair, way, begin, true, grouped[begin]);
    }
}

static void least_fill(struct few_bound *f)
{
    size_t side = (size_t)f->places + 1;
    for (size_t i = 0; i < 2 * f->sets.sets * side; i++)
        f->least[i] = INFINITY;
    for (uint32_t set = 0; set < f->sets.sets; set++)
        f->whole[set] = INFINITY;
    for (uint32_t set = 1; set < f->sets.sets; set++) {
        for (uint32_t i = f->sets.first[set]; i < f->sets.first[set + 1]; i++) {
            const struct few_pair *pair = &f->sets.pairs[i];
            struct way way = pair->left ? way_least(f, pair->group, pair->left) : (struct way){0};
            least_pair(f, set, pair, way);
            if (pair->left)
                f->whole[set] =
                    fmin(f->whole[set], pair_from(f, pair, way, 0, !f->sets.single, f->whole[set]));
        }
    }
}

/* Of two machines' network cards; INFINITY within one. */
static double cards_rate(const struct cluster *cluster, uint32_t from, uint32_t to)
{
    uint32_t a = cluster->devices[from].node, b = cluster->devices[to].node;
    double out = cluster->nodes[a].nic_bytes_per_s, in = cluster->nodes[b].nic_bytes_per_s;
    if (a == b)
        return INFINITY;
    return fmin(out > 0 ? out : INFINITY, in > 0 ? in : INFINITY);
}

/* The tables of the size in hand. */
static void tables_fill(struct few_bound *f)
{
    const struct problem *p = f->p;
    double bytes = p->bytes_per_token * p->mean_step.tokens / f->micro_batches;
    for (uint32_t d = 0; d < f->sets.count; d++) {
        for (uint32_t other = 0; other < f->sets.count; other++) {
            double latency, rate;
            bool emulated;
            f->hop[d][other] = f->wire[d][other] = 0;
            for (int back = 0; back < 2 && other != d; back++) {
                cluster_link(p->cluster, f->sets.device[back ? other : d], f->sets.device[back ? d : other],
                             &latency, &rate, &emulated);
                f->hop[d][other] += latency + bytes / rate;
                rate = fmin(rate, cards_rate(p->cluster, f->sets.device[back ? other : d],
                                             f->sets.device[back ? d : other]));
                f->wire[d][other] = fmax(f->wire[d][other], f->micro_batches * bytes / rate);
            }
        }
        for (int32_t begin = 0; begin < f->places; begin++) {
            for (int32_t end = begin + 1; end <= f->places && !f->prices; end++)
                few_alone_fill(f, d, f->place[begin], f->place[end], 1, &f->alone[cell(f, d, begin, end)]);
        }
    }
    if (f->prices)
        f->prices->size(f->prices->with, f);
    for (uint32_t set = 1; set < f->sets.sets; set++) {
        if (is_group(f, set))
            group_fill(f, set);
    }
    least_fill(f);
}

/* --- the walk --- */

/* R of a group put in front of `depth` stages, the first of which is `next`, of so many devices. */
static void front_put(struct few_bound *f, uint32_t depth, const struct few_pair *pair,
                      const struct few_pair *next, uint32_t devices)
{
    uint32_t at = row(f, pair, devices);
    const double *behind = depth ? f->rest[depth - 1] : NULL;
    struct way way = depth ? way_least(f, pair->group, next->group) : (struct way){0};
    for (int32_t begin = 0; begin < f->places; begin++) {
        double best = INFINITY;
        int32_t where = f->places;
        for (int32_t end = depth ? begin + 1 : f->places; end <= f->places - (depth > 0); end++) {
            double all = f->makespan[cell(f, at, begin, end)];
            if (all >= best)
                break;
            double last = behind ? f->passage[cell(f, at, begin, end)] + way.hop + behind[end] : 0;
            double most = fmax(fmax(all, last), way.wire);
            if (most < best) {
                best = most;
                where = end;
            }
        }
        f->rest[depth][begin] = best;
        f->cut[depth][begin] = where;
    }
}

static int by_bound(const void *left, const void *right)
{
    const struct few_node *a = left, *b = right;
    if (a->bound != b->bound)
        return a->bound < b->bound ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

static void nodes_sort(struct few_bound *f)
{
    qsort(f->nodes, f->node_count, sizeof(*f->nodes), by_bound);
    if (f->node_count > FEW_KEPT)
        f->node_count = FEW_KEPT;
    if (f->node_count == FEW_KEPT)
        f->worst = f->nodes[FEW_KEPT - 1].bound;
}

/* The groups that stand from the head. */
static void node_add(struct few_bound *f, uint32_t stages)
{
    for (uint32_t depth = 0, devices = 0; depth < stages; depth++) {
        uint32_t s = stages - 1 - depth;
        front_put(f, depth, f->chosen[s], depth ? f->chosen[s + 1] : NULL, devices);
        devices += popcount(f->chosen[s]->group);
    }
    double bound = f->rest[stages - 1][0];
    if (!(bound < f->worst) || bound <= f->above || bound > f->within)
        return;
    struct few_node *node = &f->nodes[f->node_count++];
    *node = (struct few_node){.bound = bound, .number = f->created++, .rows = f->rows, .stages = stages};
    for (uint32_t s = 0, place = 0; s < stages; s++) {
        place = (uint32_t)f->cut[stages - 1 - s][place];
        node->group[s] = f->chosen[s]->group;
        node->end[s] = (uint16_t)f->place[place];
    }
    if (f->node_count == FEW_KEPT + FEW_SPARE)
        nodes_sort(f);
}

static double within(const struct few_bound *f)
{
    return fmin(f->within, f->worst);
}

/* May the group be the last, behind what stands? */
static bool ends_within(const struct few_bound *f, uint32_t depth, const struct few_pair *pair, double hop)
{
    for (int32_t begin = 0; begin < f->places; begin++) {
        if (f->arrive[depth][begin] + hop + f->makespan[cell(f, row(f, pair, 0), begin, f->places)] <=
            within(f))
            return true;
    }
    return false;
}

/* Puts it behind what stands: how soon a first micro-batch is past it. Can others, of those left, go on? */
static bool group_put(struct few_bound *f, uint32_t depth, const struct few_pair *pair, double hop,
                      bool grouped)
{
    const double *behind = least_of(f, pair->left_at, !grouped);
    double *next = f->arrive[depth + 1], most = within(f);
    uint32_t at = row(f, pair, popcount(pair->left));
    bool any = false;
    for (int32_t end = 0; end <= f->places; end++)
        next[end] = INFINITY;
    for (int32_t begin = 0; begin < f->places; begin++) {
        double from = f->arrive[depth][begin] + hop;
        const double *all = &f->makespan[cell(f, at, begin, 0)], *one = &f->passage[cell(f, at, begin, 0)];
        for (int32_t end = begin + 1; end < f->places && from + all[end] <= most; end++) {
            if (from + one[end] + behind[end] > most)
                continue;
            next[end] = from + one[end] < next[end] ? from + one[end] : next[end];
            any = true;
        }
    }
    return any;
}

static void groupings_walk(struct few_bound *f, uint32_t depth, uint32_t set, bool grouped)
{
    uint32_t asked = f->p->workload->stages, stages = depth + 1;
    for (uint32_t i = f->sets.first[set]; i < f->sets.first[set + 1] && f->looks < f->looks_most; i++) {
        const struct few_pair *pair = &f->sets.pairs[i];
        bool some = grouped || popcount(pair->group) > 1, last = pair->left == 0;
        if ((popcount(pair->group) > f->micro_batches && !f->prices) || (last && (stages < 2 || !some)) ||
            (asked && (last ? stages != asked : stages >= asked)) || (!last && (int32_t)stages >= f->places))
            continue;
        double hop = depth ? way_least(f, f->chosen[depth - 1]->group, pair->group).hop : 0;
        f->looks++;
        f->chosen[depth] = pair;
        if (last && ends_within(f, depth, pair, hop))
            node_add(f, stages);
        if (!last && group_put(f, depth, pair, hop, some))
            groupings_walk(f, stages, pair->left_at, some);
    }
}

/* Every set of devices that may be within the bound looked for. */
static void sets_walk(struct few_bound *f)
{
    for (uint32_t set = 1; set < f->sets.sets; set++) {
        if (f->whole[set] <= within(f))
            groupings_walk(f, 0, set, f->sets.single);
    }
}

static double least_all(const struct few_bound *f)
{
    double least = INFINITY;
    for (uint32_t set = 0; set < f->sets.sets; set++)
        least = fmin(least, f->whole[set]);
    return least;
}

/* Bounds wider and wider, until there are enough of this size or others are better. */
static void size_walk(struct few_bound *f)
{
    uint32_t before = f->created;
    double least = least_all(f);
    f->above = 0;
    f->looks_most = f->looks + (WALK_LOOKS - f->looks) / 2;
    for (int32_t i = 0; i <= f->places; i++)
        f->arrive[0][i] = i ? INFINITY : 0;
    for (double wider = WIDER_FIRST; least < f->worst; wider *= WIDER) {
        f->within = wider > WIDER_LAST ? INFINITY : least * (1 + wider);
        sets_walk(f);
        if (f->created - before >= FEW_KEPT || f->within >= f->worst || f->looks >= f->looks_most)
            return;
        f->above = f->within;
    }
}

static int few_alloc(struct few_bound *f)
{
    uint32_t sets = f->sets.sets;
    f->row = calloc(sets, sizeof(*f->row));
    for (uint32_t set = 0; f->row && set < sets; set++) {
        f->row[set] = f->rows_all;
        if (is_group(f, set))
            f->rows_all += f->sets.count - popcount(f->sets.set[set]) + 1;
    }
    places_set(f, places_most(f));
    size_t side = (size_t)f->places + 1, cells = side * side;
    f->alone = calloc(cells * f->sets.count, sizeof(*f->alone));
    f->makespan = calloc(cells * f->rows_all, sizeof(double));
    f->passage = calloc(cells * f->rows_all, sizeof(double));
    f->least = calloc(2 * side * sets, sizeof(double));
    f->whole = calloc(sets, sizeof(double));
    f->nodes = calloc(FEW_KEPT + FEW_SPARE, sizeof(*f->nodes));
    if (!f->row || !f->alone || !f->makespan || !f->passage || !f->least || !f->whole || !f->nodes)
        return err_set(f->err, ERR_NOMEM, "planner: out of memory");
    return 0;
}

struct few_size {
    uint32_t rows;
    double rough;
};

static int by_rough(const void *left, const void *right)
{
    const struct few_size *a = left, *b = right;
    if (a->rough != b->rough)
        return a->rough < b->rough ? -1 : 1;
    return a->rows < b->rows ? -1 : a->rows > b->rows;
}

/* Sizes that promise most first, by a look at few places. */
static void sizes_walk(struct few_bound *f)
{
    uint32_t sizes[MICRO_SIZES_MAX], size_count = micro_sizes(f->p, sizes), count = 0;
    struct few_size size[MICRO_SIZES_MAX];
    int32_t places = f->places;
    places_set(f, PLACES_ROUGH);
    for (uint32_t i = 0; i < size_count; i++) {
        if (!few_size_worth(f->p, sizes[i]))
            continue;
        few_size_set(f, sizes[i]);
        tables_fill(f);
        size[count++] = (struct few_size){.rows = sizes[i], .rough = least_all(f)};
    }
    places_set(f, places);
    qsort(size, count, sizeof(*size), by_rough);
    for (uint32_t i = 0; i < count; i++) {
        if (size[i].rough > f->worst * ROUGH_WITHIN)
            continue;
        few_size_set(f, size[i].rows);
        tables_fill(f);
        size_walk(f);
    }
    nodes_sort(f);
}

int few_bound_walk(struct few_bound *f, const struct problem *p, bool single, const struct few_prices *prices,
                   struct err *err)
{
    *f = (struct few_bound){.p = p, .prices = prices, .worst = INFINITY, .err = err};
    if (p->block_count < 2 || p->block_count > FEW_BLOCKS ||
        (p->workload->method != METHOD_LORA && !single && !prices))
        return 0;
    int result = few_sets_init(&f->sets, p, single, err);
    if (result <= 0)
        return result;
    if (few_alloc(f) < 0)
        return -1;
    sizes_walk(f);
    return 1;
}

void few_bound_fini(struct few_bound *f)
{
    few_sets_fini(&f->sets);
    free(f->row);
    free(f->alone);
    free(f->makespan);
    free(f->passage);
    free(f->least);
    free(f->whole);
    free(f->nodes);
}
