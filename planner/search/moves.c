#include "planner/search/moves.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Number of sizes of the part of a member's state that MOVE_SHARE can give away. In tensor groups it gives
 * away columns (0) or a head (1). */
#define SHARES 3u
#define SHARE_PARTS 16u /* MOVE_SHARE gives away about a 16th of a member's columns */

/* A move that is being applied. */
struct move_case {
    const struct problem *p;
    const struct placement_kind *kind;
    struct candidate *c;
    uint32_t a, b;
    struct err *err;
};

static uint32_t moves_stage_of(const struct candidate *c, uint32_t member)
{
    uint32_t s = 0;
    while (member >= c->stages[s].member_first + c->stages[s].member_count)
        s++;
    return s;
}

/* --- moves that change which devices are in which stage --- */

static void firsts_fill(struct candidate *c)
{
    uint32_t first = 0;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        c->stages[s].member_first = first;
        first += c->stages[s].member_count;
    }
}

/* Removes a member, and its stage if it has no other member. */
static struct member member_remove(struct candidate *c, uint32_t member)
{
    uint32_t s = moves_stage_of(c, member);
    struct member out = c->members[member];
    memmove(&c->members[member], &c->members[member + 1],
            (c->member_count - member - 1) * sizeof(*c->members));
    c->member_count--;
    if (--c->stages[s].member_count == 0) {
        struct candidate_stage gone = c->stages[s];
        memmove(&c->stages[s], &c->stages[s + 1], (c->stage_count - s - 1) * sizeof(*c->stages));
        c->stage_count--;
        if (s < c->stage_count) /* a neighbour takes the stage's blocks */
            c->stages[s].block_begin = gone.block_begin;
        else if (s > 0)
            c->stages[s - 1].block_end = gone.block_end;
    }
    firsts_fill(c);
    return out;
}

/* Inserts a member into stage `to`. If `to` is stage_count or more, the member gets a new stage at position
 * to − stage_count. */
static int member_insert(struct candidate *c, const struct placement_kind *kind, struct member member,
                         uint32_t to, struct err *err)
{
    if (candidate_reserve(c, c->stage_count + 1, c->member_count + 1, err) < 0)
        return -1;
    if (to >= c->stage_count) {
        uint32_t at = to - c->stage_count;
        memmove(&c->stages[at + 1], &c->stages[at], (c->stage_count - at) * sizeof(*c->stages));
        c->stages[at] = (struct candidate_stage){.kind = kind->stage_kind};
        c->stage_count++;
        to = at;
        firsts_fill(c);
    }
    uint32_t at = c->stages[to].member_first + c->stages[to].member_count;
    memmove(&c->members[at + 1], &c->members[at], (c->member_count - at) * sizeof(*c->members));
    c->members[at] = member;
    c->member_count++;
    c->stages[to].member_count++;
    firsts_fill(c);
    return 0;
}

int move_append(struct candidate *c, const struct placement_kind *kind, const uint32_t *devices,
                uint32_t count, struct err *err)
{
    for (uint32_t i = 0; i < count; i++) {
        struct member member = {.device = devices[i], .window = 1, .state_share = 1};
        uint32_t to = i == 0 ? 2 * c->stage_count : c->stage_count - 1;
        if (member_insert(c, kind, member, to, err) < 0)
            return -1;
    }
    return 0;
}

bool move_shape_allowed(const struct problem *p, const struct placement_kind *kind, const struct candidate *c)
{
    uint32_t asked = p->workload->stages, most = 0;
    if (c->stage_count < kind->stages_least || c->stage_count > kind->stages_most ||
        c->stage_count > (uint32_t)p->block_count || (asked && c->stage_count != asked))
        return false;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        most = c->stages[s].member_count > most ? c->stages[s].member_count : most;
        if (c->stages[s].member_count > kind->members_most)
            return false;
    }
    return most >= kind->members_least;
}

/* Ends every move that changes members: forgets which member takes which micro-batch, and gives a single
 * stage all blocks. Returns MOVE_CUT, or MOVE_VOID when the placement does not allow the shape. */
static int structure_end(const struct move_case *m)
{
    struct candidate *c = m->c;
    c->owner_count = 0;
    if (c->stage_count == 1) {
        c->stages[0].block_begin = 0;
        c->stages[0].block_end = m->p->block_count;
    }
    return move_shape_allowed(m->p, m->kind, c) ? MOVE_CUT : MOVE_VOID;
}

static int member_swap(const struct move_case *m)
{
    struct member *a = &m->c->members[m->a], *b = &m->c->members[m->b];
    if (m->a >= m->b ||
        (moves_stage_of(m->c, m->a) == moves_stage_of(m->c, m->b) && m->kind->stages_most > 1))
        return MOVE_VOID;
    uint32_t device = a->device;
    a->device = b->device;
    b->device = device;
    return structure_end(m);
}

static bool device_free(const struct move_case *m, uint32_t device)
{
    return m->p->usable[device] && !candidate_uses(m->c, device);
}

static int member_replace(const struct move_case *m)
{
    if (!device_free(m, m->b))
        return MOVE_VOID;
    m->c->members[m->a].device = m->b;
    return structure_end(m);
}

static int member_drop(const struct move_case *m)
{
    if (m->c->member_count < 2)
        return MOVE_VOID;
    member_remove(m->c, m->a);
    return structure_end(m);
}

static int member_add(const struct move_case *m)
{
    struct member member = {.device = m->a, .window = 1, .state_share = 1};
    if (!device_free(m, m->a))
        return MOVE_VOID;
    return member_insert(m->c, m->kind, member, m->b, m->err) < 0 ? -1 : structure_end(m);
}

/* Moves member a to stage b, or, if b is stage_count or more, to a new stage at position b − stage_count.
 * Positions count before the member is removed. */
static int member_regroup(const struct move_case *m)
{
    struct candidate *c = m->c;
    uint32_t from = moves_stage_of(c, m->a), stages = c->stage_count;
    bool alone = c->stages[from].member_count == 1, own = m->b >= stages;
    uint32_t to = own ? m->b - stages : m->b;
    if ((!own && to == from) || (own && alone && (to == from || to == from + 1)))
        return MOVE_VOID;
    struct member member = member_remove(c, m->a);
    to -= alone && to > from;
    return member_insert(c, m->kind, member, own ? c->stage_count + to : to, m->err) < 0 ? -1
                                                                                         : structure_end(m);
}

/* Exchanges stages a and b with all their members. */
static int stages_swap(const struct move_case *m)
{
    struct candidate *c = m->c;
    uint32_t a = m->a, b = m->b;
    struct candidate other = {0};
    if (a >= b)
        return MOVE_VOID;
    if (candidate_copy(&other, c, m->err) < 0)
        return -1;
    uint32_t at = 0;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        const struct candidate_stage *from = &other.stages[s == a ? b : s == b ? a : s];
        memcpy(&c->members[at], &other.members[from->member_first], from->member_count * sizeof(*c->members));
        at += c->stages[s].member_count = from->member_count;
    }
    firsts_fill(c);
    c->owner_count = 0;
    candidate_fini(&other);
    return MOVE_CUT;
}

/* --- moves that change blocks, micro-batch size or gathered layers --- */

static int blocks_shift(const struct move_case *m)
{
    struct candidate *c = m->c;
    uint32_t a = m->a, b = m->b;
    if (a == b)
        return MOVE_VOID;
    for (uint32_t s = a < b ? a : b; s < (a < b ? b : a); s++) {
        c->stages[s].block_end += a < b ? -1 : 1;
        c->stages[s + 1].block_begin = c->stages[s].block_end;
    }
    for (uint32_t s = 0; s < c->stage_count; s++)
        if (c->stages[s].block_end <= c->stages[s].block_begin)
            return MOVE_VOID;
    return c->schedule == SCHEDULE_INTERLEAVED ? MOVE_AS_IS : MOVE_SETTLE;
}

static int size_change(const struct move_case *m)
{
    uint32_t sizes[MICRO_SIZES_MAX], count = micro_sizes(m->p, sizes), b = m->b;
    uint32_t now = m->c->micro_batch_rows, next = now;
    for (uint32_t i = 0; i < count; i++) {
        if (b == 0 && sizes[i] > now && (next == now || sizes[i] < next))
            next = sizes[i];
        if (b == 1 && sizes[i] < now && (next == now || sizes[i] > next))
            next = sizes[i];
    }
    if (b == 2)
        next = now < m->p->workload->batch_rows ? now + 1 : now;
    if (b == 3)
        next = now > 1 ? now - 1 : now;
    m->c->micro_batch_rows = next;
    m->c->owner_count = 0;
    return next == now ? MOVE_VOID : MOVE_SETTLE;
}

static int gathered_change(const struct move_case *m)
{
    struct candidate *c = m->c;
    uint32_t now = c->gathered_layers, most = (uint32_t)m->p->block_count;
    bool groups = c->schedule == SCHEDULE_INTERLEAVED; /* interleaved stages of several members, which have to
                                                          share out a state that is trained in full */
    uint32_t next = m->b == 2 ? 0 : m->b == 0 ? (now ? 2 * now : 2) : now / 2;
    c->gathered_layers = next > most ? most : next == 1 ? 2 : next;
    if (c->gathered_layers == now || (groups && next == 0 && m->p->workload->method == METHOD_FULL))
        return MOVE_VOID;
    return groups ? MOVE_AS_IS : MOVE_SETTLE;
}

/* --- moves that change what settle() fills in --- */

/* Changes the micro-batches in flight in stage a. If a is stage_count or more, changes them in all stages up
 * to a − stage_count. */
static int window_change(const struct move_case *x)
{
    struct candidate *c = x->c;
    bool changed = false, all = x->a >= c->stage_count, laps = c->schedule == SCHEDULE_INTERLEAVED;
    uint32_t last = all ? x->a - c->stage_count : x->a;
    /* In interleaved groups all forwards of a step come before its backwards, so windows cannot be changed.
     */
    if (laps && c->member_count > candidate_groups(c))
        return MOVE_VOID;
    for (uint32_t m = 0; m < c->member_count; m++) {
        uint32_t *w = &c->members[m].window, s = laps ? m : moves_stage_of(c, m);
        if ((all ? s > last : s != last) || (x->b && *w < 2))
            continue;
        *w += x->b ? -1u : 1;
        changed = true;
    }
    return changed ? MOVE_AS_IS : MOVE_VOID;
}

static int recompute_set(const struct move_case *x)
{
    struct candidate *c = x->c;
    uint32_t a = x->a;
    bool changed = false, on = x->b;
    for (uint32_t m = 0; m < c->member_count && micro_recompute_allowed(x->p, on); m++) {
        if ((m == a || a == c->member_count) && c->members[m].recompute != on)
            changed = c->members[m].recompute = true;
        if (m == a || a == c->member_count)
            c->members[m].recompute = on, c->members[m].recompute_end = 0;
    }
    return changed ? MOVE_AS_IS : MOVE_VOID;
}

static int owner_set(const struct move_case *m)
{
    struct candidate *c = m->c;
    uint32_t count = micro_count(m->p, c->micro_batch_rows), s = m->a / count;
    if (c->owner_count != c->stage_count * count || m->b >= c->stages[s].member_count ||
        c->owner[m->a] == m->b)
        /* Without a full `owner` list scheduling chooses the members; owners_say() first writes its choice
         * into `owner`. */
        return MOVE_VOID;
    c->owner[m->a] = (uint8_t)m->b;
    return MOVE_AS_IS;
}

/* Gives a member `total` rows a step, in equal micro-batches whose size is nearest to the present one. */
static void rows_set(const struct problem *p, struct member *m, uint32_t total)
{
    uint32_t best = total ? 1 : 0;
    bool all = m->window == m->count && total; /* all micro-batches were in flight and stay so */
    for (uint32_t size = 1; size <= total && size <= workload_rows_most(p->workload); size++)
        if (total % size == 0 && abs((int)size - (int)m->rows) < abs((int)best - (int)m->rows))
            best = size;
    m->rows = best;
    m->count = total ? total / best : 0;
    m->window = all ? m->count : m->window;
}

static void largest_set(struct candidate *c)
{
    c->micro_batch_rows = 0;
    for (uint32_t m = 0; m < c->member_count; m++)
        c->micro_batch_rows =
            c->members[m].rows > c->micro_batch_rows ? c->members[m].rows : c->micro_batch_rows;
}

static int rows_give(const struct move_case *m)
{
    struct candidate *c = m->c;
    uint32_t a = m->a, b = m->b;
    struct member *from = &c->members[a], *to = &c->members[b % c->member_count];
    bool expert = m->kind->stage_kind == STAGE_EXPERT; /* in expert stages member.rows are rows of every
                                                          micro-batch */
    uint32_t most = expert ? from->rows : from->rows * from->count;
    uint32_t given = b / c->member_count ? (expert ? from->rows / 2 : from->rows) : 1;
    if (from == to || given == 0 || given > most || (b / c->member_count && given == 1))
        return MOVE_VOID;
    if (expert) {
        if (given == from->rows || to->rows == 0) /* a member keeps its role: attention or only experts */
            return MOVE_VOID;
        from->rows -= given;
        to->rows += given;
        return MOVE_AS_IS;
    }
    bool keeps = m->kind->stage_kind == STAGE_SERVER
                     ? a == 0
                     : m->p->workload->method == METHOD_FULL && c->gathered_layers > 0;
    if (given == most && !keeps) /* a member without rows is useful only if it keeps state */
        return MOVE_VOID;
    rows_set(m->p, from, most - given);
    rows_set(m->p, to, to->rows * to->count + given);
    largest_set(c);
    return MOVE_AS_IS;
}

static int rows_recut(const struct move_case *x)
{
    struct member *m = &x->c->members[x->a];
    uint32_t total = m->rows * m->count, size = m->rows;
    bool all = m->window == m->count;
    do
        size = x->b ? size + 1 : size - 1;
    while (size > 0 && size <= total && total % size);
    if (size == 0 || size > total || size > workload_rows_most(x->p->workload) || total == 0)
        return MOVE_VOID;
    m->rows = size;
    m->count = total / size;
    m->window = all ? m->count : m->window;
    largest_set(x->c);
    return MOVE_AS_IS;
}

static int positions_swap(const struct move_case *m)
{
    struct candidate *c = m->c;
    uint32_t a = m->a, b = m->b;
    struct member first = c->members[a], second = c->members[b];
    bool server = m->kind->stage_kind == STAGE_SERVER;
    if (a >= b || moves_stage_of(c, a) != moves_stage_of(c, b) ||
        (server && (!first.count || !second.count)) ||
        (m->kind->stage_kind == STAGE_EXPERT && !first.rows != !second.rows))
        /* Members with attention must come before the others, and a server's workers must have rows. */
        return MOVE_VOID;
    c->members[a] = second;
    c->members[b] = first;
    c->members[a].tensor = first.tensor; /* the parts of matrices stay at their positions */
    c->members[b].tensor = second.tensor;
    if (server) { /* the server's first member holds all state */
        c->members[a].state_share = first.state_share;
        c->members[b].state_share = second.state_share;
    }
    return MOVE_AS_IS;
}

/* Moves `part` heads or columns from a member to its neighbour, whose range follows (`forward`) or precedes.
 */
static bool range_give(uint32_t *from_begin, uint32_t *from_end, uint32_t *to_begin, uint32_t *to_end,
                       uint32_t part, bool forward)
{
    if (*from_end - *from_begin <= part)
        return false;
    if (forward)
        *to_begin = *from_end -= part;
    else
        *to_end = *from_begin += part;
    return true;
}

static int share_tensor(const struct problem *p, struct candidate *c, uint32_t a, uint32_t b, uint32_t what)
{
    struct plan_tensor *x = &c->members[a].tensor, *y = &c->members[b].tensor;
    uint32_t unit = p->column_unit ? p->column_unit : 1, units = (x->column_end - x->column_begin) / unit;
    bool forward = a < b, given = false;
    if (moves_stage_of(c, a) != moves_stage_of(c, b) || (a + 1 != b && b + 1 != a))
        return MOVE_VOID;
    if (what == 0)
        given = range_give(&x->column_begin, &x->column_end, &y->column_begin, &y->column_end,
                           unit * (units / SHARE_PARTS + 1), forward);
    if (what == 1)
        given =
            range_give(&x->kv_head_begin, &x->kv_head_end, &y->kv_head_begin, &y->kv_head_end, 1, forward);
    return given ? MOVE_AS_IS : MOVE_VOID;
}

static int share_give(const struct move_case *m)
{
    struct candidate *c = m->c;
    uint32_t a = m->a, b = m->b;
    static const double parts_of[SHARES] = {8, 32, 256};
    uint32_t what = b / c->member_count;
    struct member *from = &c->members[a], *to = &c->members[b %= c->member_count];
    if (a == b)
        return MOVE_VOID;
    if (m->kind->stage_kind == STAGE_TENSOR)
        return share_tensor(m->p, c, a, b, what);
    if (m->kind->stage_kind == STAGE_EXPERT) { /* the move gives away one, two or four experts of every
                                                  layer */
        double part = (double)(1u << what) / m->p->workload->config->experts;
        if (from->expert_share <= part || to->expert_share <= 0)
            return MOVE_VOID;
        from->expert_share -= part;
        to->expert_share += part;
        return MOVE_AS_IS;
    }
    double part = from->state_share / parts_of[what];
    if (part <= 0 || c->gathered_layers == 0)
        return MOVE_VOID;
    from->state_share -= part;
    to->state_share += part;
    return MOVE_AS_IS;
}

/* Interleaved stages of several members: all micro-batches pass one range of blocks before the next. Members
 * share out the frozen weights or the trained state, and gather the weights of two ranges at a time. */
static void groups_gather(struct candidate *c)
{
    uint32_t most = 1;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        uint32_t blocks = (uint32_t)(c->stages[s].block_end - c->stages[s].block_begin);
        most = blocks > most ? blocks : most;
    }
    c->eager = c->whole = false;
    c->owner_count = 0;
    c->gathered_layers = 2 * most;
}

/* Makes the pipeline interleaved: each stage's members get `laps` ranges of blocks instead of one. */
static int interleave(const struct problem *p, struct candidate *c, uint32_t laps, struct err *err)
{
    uint32_t groups = c->stage_count, stages = groups * laps;
    if (stages > (uint32_t)p->block_count)
        return MOVE_VOID;
    if (candidate_reserve(c, stages, c->member_count, err) < 0)
        return -1;
    double *edge = calloc((size_t)groups + 1, sizeof(*edge));
    if (!edge)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t s = 0; s < groups; s++)
        edge[s] = c->stages[s].block_end;
    int32_t begin = 0;
    for (uint32_t s = 0; s < stages; s++) {
        /* Stage r's range of blocks in lap `lap` ends where r's range of a pipeline of one lap does, scaled
         * to a lap's blocks and moved behind all earlier laps. */
        uint32_t lap = s / groups, r = s % groups;
        double end = (lap * (double)p->block_count + edge[r]) / laps;
        int32_t least = begin + 1, most = p->block_count - (int32_t)(stages - s - 1),
                at = (int32_t)lround(end);
        at = at < least ? least : at > most ? most : at;
        c->stages[s] = (struct candidate_stage){begin, at, STAGE_REPLICAS, c->stages[r].member_first,
                                                c->stages[r].member_count};
        begin = at;
    }
    free(edge);
    c->stage_count = stages;
    c->schedule = SCHEDULE_INTERLEAVED;
    for (uint32_t m = 0; m < c->member_count; m++)
        c->members[m].recompute_end = 0;
    if (c->member_count > groups)
        groups_gather(c);
    return MOVE_AS_IS;
}

static int schedule_set(const struct move_case *x)
{
    struct candidate *c = x->c;
    uint32_t a = x->a;
    bool plain = c->stage_count == c->member_count, groups = c->member_count > c->stage_count;
    if (c->schedule == SCHEDULE_INTERLEAVED)
        return MOVE_VOID;
    if (a == 2 && groups) {
        c->eager = !c->eager;
        return MOVE_AS_IS;
    }
    if (a == 2 || (!plain && a < 3))
        return MOVE_VOID;
    for (uint32_t m = 0; m < c->member_count && a > 0; m++) /* only 1F1B shares layers between stages */
        c->members[m].next_count = 0;
    if (a >= 3)
        return interleave(x->p, c, a - 1, x->err);
    enum plan_schedule to = a ? SCHEDULE_SPLIT : SCHEDULE_1F1B;
    if (c->schedule == to)
        return MOVE_VOID;
    c->schedule = to;
    for (uint32_t m = 0; m < c->member_count; m++)
        c->members[m].delay = a ? m : 0; /* later stages can wait longer (Qi et al. 2023) */
    return MOVE_AS_IS;
}

static int delay_change(const struct move_case *m)
{
    uint32_t *d = &m->c->members[m->a].delay;
    if (m->b && *d == 0)
        return MOVE_VOID;
    *d += m->b ? -1u : 1;
    return MOVE_AS_IS;
}

static int together_set(const struct move_case *m)
{
    if ((m->c->together > 1) == (m->b == 1))
        return MOVE_VOID;
    m->c->together = m->b ? 2 : 1;
    return MOVE_AS_IS;
}

/* --- the table of moves --- */

/* The values that a or b of a move can have. */
enum move_operand {
    ONE,      /* the operand has one value, 0 */
    TWO,      /* 0 or 1, two choices that enum move_kind describes */
    MEMBER,   /* index of a member */
    MEMBERS,  /* a member, or member_count for all */
    DEVICE,   /* a device of the cluster */
    STAGE,    /* index of a stage */
    STAGES,   /* a stage; stage_count + s: all stages up to s */
    POSITION, /* a stage; stage_count + s: a new stage at position s */
    SIZE,     /* micro-batch size: 0 next larger, 1 next smaller, 2 one row more, 3 one row less */
    GATHERED, /* gathered layers: 0 doubled, 1 halved, 2 none */
    OWNED,    /* a micro-batch in a stage: stage · micro-batches + micro-batch */
    OWNER,    /* index of a member within its stage; indexes beyond the last do not apply */
    ROWS,     /* a member and how much: member + member_count · (0: one row, 1: one micro-batch) */
    SHARE,    /* a member and how much: member + member_count · (size of the part, or kind of matrix) */
    SCHEDULE, /* 0 1F1B, 1 split backwards, 2 eager or strict; from 3 on: interleaved with a − 1 ranges per
                 rank */
    OPERANDS
};

/* What a candidate must have so that a kind of move applies. */
enum move_need {
    SEVERAL_STAGES = 1u << 0,
    REPLICAS = 1u << 1,
    GROUPS = 1u << 2,     /* some stage has several members */
    OWN_ROWS = 1u << 3,   /* members have different rows */
    OWN_COUNTS = 1u << 4, /* members have different numbers of micro-batches */
    UNEQUAL = 1u << 5,    /* members of a stage are not replicas */
    SHARED = 1u << 6,     /* members have parts of the state, the experts or the matrices */
    GATHERS = 1u << 7,
    DELAYS = 1u << 8,
    TENSOR = 1u << 9,
    SIZE_FREE = 1u << 10, /* the job does not fix the micro-batch size */
};

static const struct move_row {
    enum move_operand a, b;
    uint32_t needs;   /* flags of enum move_need */
    bool interleaved; /* the move also applies to interleaved pipelines */
    int (*apply)(const struct move_case *m);
} rows[MOVE_KINDS] = {
    [MOVE_SWAP] = {MEMBER, MEMBER, .apply = member_swap},
    [MOVE_REPLACE] = {MEMBER, DEVICE, .apply = member_replace},
    [MOVE_DROP] = {MEMBER, ONE, .apply = member_drop},
    [MOVE_ADD] = {DEVICE, POSITION, .apply = member_add},
    [MOVE_REGROUP] = {MEMBER, POSITION, SEVERAL_STAGES, .apply = member_regroup},
    [MOVE_ORDER] = {STAGE, STAGE, SEVERAL_STAGES, .apply = stages_swap},
    [MOVE_BLOCKS] = {STAGE, STAGE, SEVERAL_STAGES, true, blocks_shift},
    [MOVE_MICRO] = {ONE, SIZE, SIZE_FREE, .apply = size_change},
    [MOVE_GATHER] = {ONE, GATHERED, GATHERS, true, gathered_change},
    [MOVE_WINDOW] = {STAGES, TWO, 0, true, window_change},
    [MOVE_RECOMPUTE] = {MEMBERS, TWO, 0, true, recompute_set},
    [MOVE_OWNER] = {OWNED, OWNER, REPLICAS | GROUPS, .apply = owner_set},
    [MOVE_ROWS] = {MEMBER, ROWS, OWN_ROWS, .apply = rows_give},
    [MOVE_PARTS] = {MEMBER, TWO, OWN_COUNTS, .apply = rows_recut},
    [MOVE_PLACE] = {MEMBER, MEMBER, UNEQUAL, .apply = positions_swap},
    [MOVE_SHARE] = {MEMBER, SHARE, SHARED, .apply = share_give},
    [MOVE_SCHEDULE] = {SCHEDULE, ONE, SEVERAL_STAGES | REPLICAS, true, schedule_set},
    [MOVE_DELAY] = {MEMBER, TWO, DELAYS, .apply = delay_change},
    [MOVE_TOGETHER] = {ONE, TWO, TENSOR, .apply = together_set},
};

static uint32_t operand_count(const struct problem *p, const struct candidate *c, enum move_operand operand)
{
    uint32_t members = c->member_count, stages = c->stage_count;
    const uint32_t counts[OPERANDS] = {
        [ONE] = 1,
        [TWO] = 2,
        [MEMBER] = members,
        [MEMBERS] = members + 1,
        [DEVICE] = p->device_count,
        [STAGE] = stages,
        [STAGES] = 2 * stages,
        [POSITION] = 2 * stages + 1,
        [SIZE] = 4,
        [GATHERED] = 3,
        [OWNED] = operand == OWNED ? stages * micro_count(p, c->micro_batch_rows) : 0,
        [OWNER] = 8,
        [ROWS] = 2 * members,
        [SHARE] = SHARES * members,
        [SCHEDULE] = 6,
    };
    return counts[operand];
}

static uint32_t needs_met(const struct problem *p, const struct placement_kind *kind,
                          const struct candidate *c)
{
    enum stage_kind stage = kind->stage_kind;
    bool own = stage != STAGE_REPLICAS && stage != STAGE_TENSOR;
    return (kind->stages_most > 1 && c->stage_count > 1 ? SEVERAL_STAGES : 0u) |
           (stage == STAGE_REPLICAS ? REPLICAS : UNEQUAL) |
           (c->member_count > candidate_groups(c) ? GROUPS : 0u) | (own ? OWN_ROWS : 0u) |
           (own && stage != STAGE_EXPERT ? OWN_COUNTS : 0u) |
           (stage != STAGE_REPLICAS && stage != STAGE_SERVER ? SHARED : 0u) |
           (stage == STAGE_SHARDED ||
                    (c->schedule == SCHEDULE_INTERLEAVED && c->member_count > candidate_groups(c))
                ? GATHERS
                : 0u) |
           (c->schedule == SCHEDULE_SPLIT || stage == STAGE_EXPERT ? DELAYS : 0u) |
           (stage == STAGE_TENSOR ? TENSOR : 0u) | (p->workload->micro_batch_rows ? 0u : SIZE_FREE);
}

struct move move_range(const struct problem *p, const struct placement_kind *kind, const struct candidate *c,
                       enum move_kind move)
{
    const struct move_row *row = &rows[move];
    bool met =
        !(row->needs & ~needs_met(p, kind, c)) && (c->schedule != SCHEDULE_INTERLEAVED || row->interleaved);
    return (struct move){move, met ? operand_count(p, c, row->a) : 0, operand_count(p, c, row->b)};
}

int move_apply(const struct problem *p, const struct placement_kind *kind, struct candidate *c,
               struct move move, struct err *err)
{
    struct move range = move_range(p, kind, c, move.kind);
    if (move.a >= range.a || move.b >= range.b) /* the candidate may have changed since the move was listed */
        return MOVE_VOID;
    return rows[move.kind].apply(&(struct move_case){p, kind, c, move.a, move.b, err});
}
