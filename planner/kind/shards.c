/* Rows, times and memory of the members of one stage. */
#include "planner/kind/shards.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define UNITS_MAX 1024u /* most units into which the batch's rows are divided for splitting */
/* Micro-batches of up to this many units are tried in every size. Larger sizes are tried only if they are a
 * power of 2, or 1.5 times a power of 2. */
#define DENSE_UNITS 64u
#define FIRST_LIMIT 1.5 /* splits are first searched within this multiple of the least possible step time */

struct row_choice { /* a way to work on a number of rows; only its seconds differ from member to member */
    uint32_t total, size, count;
    bool recompute;
    uint64_t need[2]; /* bytes that the stage's first member needs, and any other; 0 for replicas, whose need
                         depends on the largest micro-batch only */
};

/* --- seconds of a step for one member --- */

static void overlap_add(struct shards *s, int computes, bool backward, double gathered, double reduced)
{
    for (uint32_t i = 0; i < s->overlap_count; i++) {
        struct overlap *o = &s->overlaps[i];
        if (o->computes == computes && o->backward == backward && o->gathered == gathered &&
            o->reduced == reduced) {
            o->times++;
            return;
        }
    }
    s->overlaps[s->overlap_count++] = (struct overlap){1, computes, backward, gathered, reduced};
}

/* Lists the overlaps of a step. Forward: while block b is computed, block b + 1 is gathered. Backward: while
 * block b is computed, the gradients of b + 1 are reduced, and the block that gets the buffer of b + 1 is
 * gathered. */
static void overlaps_layered(struct shards *s)
{
    const struct problem *p = s->p;
    int32_t last = p->block_count - 1, places = (int32_t)s->buffers.layers;
    bool full = p->workload->method == METHOD_FULL;
    overlap_add(s, -1, false, (double)memory_gathered_bytes(p, 0, 1), 0);
    for (int32_t b = 0; b <= last; b++)
        overlap_add(s, (int)cost_class_of(&p->blocks.blocks[b]), false,
                    b < last ? (double)memory_gathered_bytes(p, b + 1, b + 2) : 0, 0);
    for (int32_t b = last; b >= -1; b--) {
        bool frees = b < last && b >= 0 && b + 1 < s->buffers.ring_end, again = frees && b + 1 - places >= 1;
        overlap_add(s, b >= 0 ? (int)cost_class_of(&p->blocks.blocks[b]) : -1, true,
                    again ? (double)memory_gathered_bytes(p, b + 1 - places, b + 2 - places) : 0,
                    full && b < last ? (double)memory_trained_bytes(p, b + 1, b + 2) : 0);
    }
}

/* Lists the overlaps of a step that moves all blocks at once: all weights arrive, then all blocks are
 * computed, then all gradients leave. */
static void overlaps_at_once(struct shards *s)
{
    const struct problem *p = s->p;
    double adapters = s->whole ? 0 : (double)memory_trained_bytes(p, 0, p->block_count);
    overlap_add(s, -1, false, adapters, 0);
    for (int32_t b = 0; b < p->block_count; b++) {
        overlap_add(s, (int)cost_class_of(&p->blocks.blocks[b]), false, 0, 0);
        overlap_add(s, (int)cost_class_of(&p->blocks.blocks[b]), true, 0, 0);
    }
    overlap_add(s, -1, true, 0, adapters);
}

static double shards_larger(double a, double b) /* the same as fmax, which compilers do not inline */
{
    return a > b ? a : b;
}

static double moves_seconds(const struct overlap *x, const struct transfer_rates *moving)
{
    double in = x->gathered > 0 ? x->gathered * moving->gather_s + moving->gather_hop_s : 0;
    double out = x->reduced > 0 ? x->reduced * moving->reduce_s + moving->reduce_hop_s : 0;
    return moving->beside ? shards_larger(in, out) : in + out;
}

/* Returns the seconds of a step for a member that works on `count` micro-batches of the given cost. */
static double member_seconds(const struct shards *s, const struct micro_cost *cost, uint32_t count,
                             bool recompute, const struct transfer_rates *moving)
{
    double seconds = 0;
    for (uint32_t i = 0; i < s->overlap_count; i++) {
        const struct overlap *x = &s->overlaps[i];
        double work = 0;
        if (x->computes >= 0 && count > 0)
            work = cost_pass_seconds(cost->seconds[x->computes], x->backward, recompute);
        seconds += x->times * shards_larger(count * work, moves_seconds(x, moving));
    }
    return seconds;
}

/* Returns what a micro-batch of that many mean rows costs on a device; borrowed until the next call. */
static const struct row_cost *rows_cost(struct workbench *bench, uint32_t device, uint32_t rows)
{
    const struct problem *p = bench->problem;
    struct row_cost *x = &bench->row_costs[(rows * p->device_count + device) & (ROW_COSTS_KEPT - 1)];
    if (x->rows == rows && x->device == device)
        return x;
    struct cost_load load = problem_mean_rows(p, rows);
    *x = (struct row_cost){.device = device, .rows = rows};
    micro_cost_load(&x->cost, p, device, &load);
    for (int again = 0; again < 2; again++)
        x->through_s[again] = (micro_forward(p, &x->cost, 0, p->block_count) +
                               micro_backward(p, &x->cost, 0, p->block_count, again)) *
                              (1 - PROBLEM_SAME);
    return x;
}

int shards_init(struct shards *s, struct workbench *bench, struct candidate *c)
{
    const struct problem *p = bench->problem;
    bool server = c->placement == PLACE_SERVER, full = p->workload->method == METHOD_FULL;
    *s = (struct shards){.bench = bench, .p = p, .c = c, .whole = !server && c->gathered_layers == 0};
    c->estimate_s = INFINITY;
    if (full && server && c->gathered_layers == 0)
        c->gathered_layers = 2;
    s->buffers = layered_buffers(p, server, c->gathered_layers);
    c->gathered_layers = s->whole ? 0 : s->buffers.layers ? s->buffers.layers : 1;
    ARENA_ARRAY(&s->arena, s->overlaps, 2 * (size_t)p->block_count + 4);
    if (!bench->row_costs)
        bench->row_costs = calloc(ROW_COSTS_KEPT, sizeof(*bench->row_costs));
    if (!s->overlaps || !bench->row_costs)
        return err_set(bench->err, ERR_NOMEM, "planner: out of memory");
    if (s->whole || s->buffers.layers == 0)
        overlaps_at_once(s);
    else
        overlaps_layered(s);
    return 0;
}

void shards_fini(struct shards *s)
{
    arena_fini(&s->arena);
    free(s->options);
}

/* --- bytes of one member --- */

/* Returns the bytes that a member needs if it keeps the part `kept` of the state. */
static uint64_t shards_part_need(const struct shards *s, uint32_t m, const struct member *as,
                                 struct flat_share kept)
{
    struct memory_need need;
    if (!s->whole) {
        layered_need(s->p, &s->buffers, layered_role(s->c, m), as, kept, &need);
        return need.total;
    }
    uint64_t key = 1ull << 62 | (uint64_t)s->most << 1 | as->recompute; /* no key of a stage in a pipeline */
    struct need_kept *known = need_slot(s->bench, key);
    if (known->key != key) {
        struct memory_stage stage = {.block_end = s->p->block_count,
                                     .window = 1,
                                     .micro_batch_rows = s->most,
                                     .recompute = as->recompute};
        memory_stage_need(s->p, &stage, &need);
        *known = (struct need_kept){.key = key, .total = need.total};
    }
    return known->total;
}

uint64_t shards_need(const struct shards *s, uint32_t m, const struct member *as)
{
    return shards_part_need(s, m, as, (struct flat_share){0});
}

/* The members that lack memory: the bytes that they have and need together, their number, and the device,
 * UINT32_MAX if there are several. */
struct lack {
    uint64_t has, needs;
    uint32_t device, count;
};

static void lack_add(struct lack *lack, uint32_t device, uint64_t has, uint64_t needs)
{
    if (needs <= has)
        return;
    lack->has += has;
    lack->needs += needs;
    lack->device = lack->count++ ? UINT32_MAX : device;
}

int shards_short(struct shards *s, double state)
{
    struct lack lack = {0};
    double room = 0, row = INFINITY; /* row: the least bytes of one more row on a member that has rows */
    uint32_t rows = 0;
    uint64_t has = 0;
    s->most = 1;
    for (uint32_t m = 0; m < s->c->member_count; m++) {
        struct member least = {.rows = 1,
                               .count = s->c->placement != PLACE_SERVER || m > 0,
                               .recompute = s->p->workload->recompute != RECOMPUTE_NO};
        uint64_t need = shards_need(s, m, &least), limit = problem_limit(s->p, s->c->members[m].device);
        lack_add(&lack, s->c->members[m].device, limit, need);
        room += limit > need ? (double)(limit - need) : 0;
        has += limit;
        rows += least.count;
        if (least.count++ > 0)
            row = fmin(row, (double)(shards_need(s, m, &least) - need));
    }
    /* All micro-batches of a step are kept until a block is done with them (layered accumulation). */
    if (!s->whole && s->p->workload->batch_rows > rows && isfinite(row))
        state += (s->p->workload->batch_rows - rows) * row;
    if (lack.count == 0 || state > room)
        lack =
            (struct lack){has, has + lack.needs - lack.has + (uint64_t)fmax(1, state - room), UINT32_MAX, 1};
    shortage_note(&s->bench->shortage[s->c->placement], lack.device, lack.needs, lack.has);
    s->c->estimate_s = INFINITY;
    return 0;
}

int shards_estimate(struct shards *s, const struct transfer_rates *moving, double after_s)
{
    struct candidate *c = s->c;
    struct lack lack = {0};
    double slowest = 0;
    s->bench->spent += 10;
    c->micro_batch_rows = 1;
    for (uint32_t m = 0; m < c->member_count; m++)
        if (c->members[m].count && c->members[m].rows > c->micro_batch_rows)
            c->micro_batch_rows = c->members[m].rows;
    s->most = c->micro_batch_rows;
    for (uint32_t m = 0; m < c->member_count; m++) {
        const struct member *x = &c->members[m];
        struct flat_share part = s->whole ? (struct flat_share){0} : layered_part(c, m);
        const struct row_cost *cost = rows_cost(s->bench, x->device, x->count ? x->rows : 1);
        slowest = fmax(slowest, member_seconds(s, &cost->cost, x->count, x->recompute, moving));
        lack_add(&lack, x->device, problem_limit(s->p, x->device), shards_part_need(s, m, x, part));
    }
    c->estimate_s = lack.count ? INFINITY : slowest + after_s;
    if (lack.count)
        shortage_note(&s->bench->shortage[c->placement], lack.device, lack.needs, lack.has);
    return lack.count == 0;
}

/* --- dividing the batch's rows among the members --- */

static bool size_tried(const struct shards *s, uint32_t units)
{
    uint32_t power = 1, all = s->p->workload->batch_rows / s->unit;
    if (units <= DENSE_UNITS || all <= 2 * DENSE_UNITS)
        return true;
    while (power * 2 <= units)
        power *= 2;
    return units == power || units == power + power / 2 || units == all;
}

/* Lists all ways to work on rows, by their number of rows. Of several with as many, larger micro-batches come
 * first, because they are faster on most devices. A further micro-batch of a size needs the same number of
 * bytes more. */
static int ways_list(struct shards *s)
{
    uint32_t batch = s->p->workload->batch_rows;
    uint64_t(*need)[2][2] = arena_get(&s->arena, 2 * (size_t)s->size_count, sizeof(*need)); /* [0] of two */
    if (!need)
        return err_set(s->bench->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t i = 0; i < 2 * s->size_count && !s->whole; i++) {
        for (uint32_t m = 0; m < 2; m++) {
            struct member as = {.rows = s->sizes[i / 2], .count = 1, .recompute = i % 2};
            need[i][m][0] = shards_need(s, m, &as);
            as.count = 2;
            need[i][m][1] = shards_need(s, m, &as) - need[i][m][0];
        }
    }
    for (uint32_t total = s->unit; total <= batch; total += s->unit) {
        for (uint32_t size = s->size_count; size-- > 0;) {
            uint32_t rows = s->sizes[size], more = total / rows - 1;
            for (int again = 0; again < 2 && total % rows == 0; again++) {
                uint64_t(*of)[2] = need[2 * size + (uint32_t)again];
                if (micro_recompute_allowed(s->p, again))
                    s->ways[s->way_count++] =
                        (struct row_choice){.total = total,
                                            .size = size,
                                            .count = more + 1,
                                            .recompute = again,
                                            .need = {of[0][0] + more * of[0][1], of[1][0] + more * of[1][1]}};
            }
        }
    }
    return 0;
}

static void shards_costs_fill(struct shards *s)
{
    for (uint32_t m = 0; m < s->c->member_count; m++) {
        s->per_row[m] = INFINITY;
        for (uint32_t i = 0; i < s->size_count; i++) {
            size_t at = (size_t)m * s->size_count + i;
            s->costs[at] = *rows_cost(s->bench, s->c->members[m].device, s->sizes[i]);
            s->per_row[m] = fmin(s->per_row[m], s->costs[at].through_s[0] / s->sizes[i]);
        }
    }
}

int shards_prepare(struct shards *s)
{
    uint32_t batch = s->p->workload->batch_rows;
    size_t members = s->c->member_count, ways = 1;
    s->most = workload_rows_most(s->p->workload);
    for (s->unit = 1; s->unit < batch && (batch % s->unit || batch / s->unit > UNITS_MAX);)
        s->unit++;
    s->unit = s->unit * members > batch || s->unit > s->most ? 1 : s->unit;
    ARENA_ARRAY(&s->arena, s->sizes, (size_t)batch / s->unit + 1);
    for (uint32_t rows = s->unit; s->sizes && rows <= s->most; rows += s->unit) {
        if (!size_tried(s, rows / s->unit))
            continue;
        s->sizes[s->size_count++] = rows;
        ways += 2 * (size_t)(batch / rows);
    }
    ARENA_ARRAY(&s->arena, s->ways, ways);
    ARENA_ARRAY(&s->arena, s->costs, members * s->size_count);
    ARENA_ARRAY(&s->arena, s->per_row, members);
    ARENA_ARRAY(&s->arena, s->members, members);
    ARENA_ARRAY(&s->arena, s->chosen, members);
    s->options =
        malloc((members * ways + 1) * sizeof(*s->options)); /* large, and written before it is read */
    if (s->arena.failed || !s->options)
        return err_set(s->bench->err, ERR_NOMEM, "planner: out of memory");
    const struct member idle = {.rows = 1};
    if (!s->whole)
        s->ways[s->way_count++] =
            (struct row_choice){.need = {shards_need(s, 0, &idle), shards_need(s, 1, &idle)}};
    if (ways_list(s) < 0)
        return -1;
    shards_costs_fill(s);
    /* A table entry takes 1.3 µs, the median of 63 cases of 2 to 256 devices (0.3 to 6.1 µs). */
    s->bench->spent += members * s->size_count;
    return 0;
}

/* May a member have no rows? Under a server only the holder may. Otherwise only in full fine-tuning: with
 * LoRA all members keep the adapters and have to work. */
static bool may_idle(const struct shards *s, uint32_t m)
{
    return s->c->placement == PLACE_SERVER ? m == 0 : s->p->workload->method == METHOD_FULL;
}

/* True if the member already has an option of the same total that is at least as good in time and room. */
static bool option_beaten(const struct split_member *member, const struct split_option *option)
{
    for (uint32_t i = member->option_count; i-- > 0 && member->options[i].total == option->total;)
        if (member->options[i].seconds <= option->seconds && member->options[i].room >= option->room)
            return true;
    return false;
}

/* Lists a member's options that take at most `limit` seconds. Sets *all to false if an option was left out
 * for its time. */
static void options_fill(struct shards *s, uint32_t m, const struct transfer_rates *moving,
                         int64_t least_room, int64_t state, double limit, bool *all)
{
    int64_t has = (int64_t)problem_limit(s->p, s->c->members[m].device) -
                  (int64_t)(state ? layered_state_slack(s->p) : 0);
    uint64_t replica[2] = {0};
    for (int recompute = 0; recompute < 2 && s->whole; recompute++)
        replica[recompute] = shards_need(s, m, &(struct member){.recompute = recompute});
    s->members[m] = (struct split_member){.options = &s->options[(size_t)m * s->way_count]};
    for (uint32_t i = 0; i < s->way_count; i++) {
        const struct row_choice *way = &s->ways[i];
        size_t at = (size_t)m * s->size_count + way->size;
        int64_t room = has - (int64_t)(s->whole ? replica[way->recompute] : way->need[m > 0]);
        if (way->total * s->per_row[m] > limit) { /* all further ways take longer than the limit, too */
            *all = false;
            return;
        }
        if (room < least_room || (way->count == 0 && !may_idle(s, m)) || s->sizes[way->size] > s->most)
            continue;
        struct split_option o = {.seconds = way->count * s->costs[at].through_s[way->recompute],
                                 .room = room < state ? room : state,
                                 .total = way->total,
                                 .rows = s->sizes[way->size],
                                 .count = way->count,
                                 .recompute = way->recompute};
        if (o.seconds <= limit && option_beaten(&s->members[m], &o)) /* an option that is at least as good
                                                                        is listed already */
            continue;
        if (o.seconds <= limit && !s->whole)
            o.seconds = member_seconds(s, &s->costs[at].cost, o.count, o.recompute, moving);
        if (!(o.seconds <= limit))
            *all = false;
        else if (!option_beaten(&s->members[m], &o))
            s->members[m].options[s->members[m].option_count++] = o;
    }
}

/* A quick test whether the members can have room for the state: as a lower bound, a member's bytes grow
 * linearly with its rows, from the least need of one unit to that of the whole batch. */
static bool room_may_do(const struct shards *s, double state)
{
    uint32_t batch = s->p->workload->batch_rows;
    double first = INFINITY, all = INFINITY, least = INFINITY, room = 0;
    for (uint32_t i = 0; i < s->way_count; i++) {
        double need = (double)s->ways[i].need[1];
        first = s->ways[i].total <= s->unit ? fmin(first, need) : first;
        all = s->ways[i].total == batch ? fmin(all, need) : all;
    }
    double row = all > first && isfinite(all) ? (all - first) / batch : 0;
    for (uint32_t i = 0; i < s->way_count; i++)
        least = fmin(least, (double)s->ways[i].need[1] - row * s->ways[i].total);
    for (uint32_t m = 0; m < s->c->member_count; m++)
        room += (double)problem_limit(s->p, s->c->members[m].device) - least;
    return room - row * batch >= state;
}

static void chosen_take(struct shards *s)
{
    for (uint32_t m = 0; m < s->c->member_count; m++) {
        const struct split_option *o = &s->chosen[m];
        struct member *x = &s->c->members[m];
        x->rows = o->count ? o->rows : 1;
        x->count = o->count;
        x->window = o->count && !s->whole && s->buffers.layers ? o->count : 1;
        x->recompute = o->recompute;
    }
}

int shards_split(struct shards *s, const struct transfer_rates *moving, const int64_t *least_room,
                 double state, double limit)
{
    uint32_t count = s->c->member_count, batch = s->p->workload->batch_rows;
    int64_t bytes = (int64_t)ceil(state);
    double rate = 0, moves = 0;
    if (state > 0 && !room_may_do(s, state))
        return 0;
    for (uint32_t m = 0; m < count; m++)
        rate += 1 / s->per_row[m];
    for (uint32_t i = 0; i < s->overlap_count; i++)
        moves += s->overlaps[i].times * moves_seconds(&s->overlaps[i], moving);
    for (double within = FIRST_LIMIT * fmax(moves, batch / rate);; within *= 2) {
        bool all = true, cut = within < limit;
        for (uint32_t m = 0; m < count; m++)
            options_fill(s, m, moving, least_room ? least_room[m] : 0, bytes, cut ? within : limit, &all);
        int result = split_solve(s->members, count, batch, bytes, s->chosen, s->bench->err);
        if (result > 0)
            chosen_take(s);
        if (result != 0 || all || !cut)
            return result;
    }
}
