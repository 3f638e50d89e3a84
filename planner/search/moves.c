#include "planner/search/moves.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SHARES 3u       /* amounts of a shared state, or kinds of matrices, that a move can shift */
#define SHARE_PARTS 16u /* columns and vocabulary rows move in 16ths of what the giver has */

enum move_level move_level(enum move_kind move)
{
    return move <= MOVE_ORDER ? MOVE_CUT : move <= MOVE_GATHER ? MOVE_SETTLE : MOVE_AS_IS;
}

static uint32_t stage_of(const struct candidate *c, uint32_t member)
{
    uint32_t s = 0;
    while (member >= c->stages[s].member_first + c->stages[s].member_count)
        s++;
    return s;
}

void move_range(const struct problem *p, const struct kind *kind, const struct candidate *c,
                enum move_kind move, uint32_t *a, uint32_t *b)
{
    uint32_t members = c->member_count, stages = c->stage_count;
    bool laps = stages > members, several = kind->stages_most > 1 && stages > 1;
    bool group = members > stages, replicas = kind->stage_kind == STAGE_REPLICAS;
    bool own = !replicas && kind->stage_kind != STAGE_TENSOR; /* members have rows of their own */
    uint32_t count = replicas ? micro_count(p, c->micro_batch_rows) : 0;
    const uint32_t ranges[MOVE_KINDS][2] = {
        [MOVE_SWAP] = {members, members},
        [MOVE_REPLACE] = {members, p->device_count},
        [MOVE_DROP] = {members, 1},
        [MOVE_ADD] = {p->device_count, 2 * stages + 1},
        [MOVE_REGROUP] = {several ? members : 0, 2 * stages + 1},
        [MOVE_ORDER] = {several ? stages : 0, stages},
        [MOVE_BLOCKS] = {several ? stages : 0, stages},
        [MOVE_MICRO] = {p->workload->micro_batch_rows ? 0 : 1, 4},
        [MOVE_GATHER] = {kind->stage_kind == STAGE_SHARDED, 3},
        [MOVE_WINDOW] = {2 * stages, 2},
        [MOVE_RECOMPUTE] = {members + 1, 2},
        [MOVE_OWNER] = {replicas && group ? stages * count : 0, 8},
        [MOVE_ROWS] = {own ? members : 0, 2 * members},
        [MOVE_PARTS] = {own && kind->stage_kind != STAGE_EXPERT ? members : 0, 2},
        [MOVE_PLACE] = {own || kind->stage_kind == STAGE_TENSOR ? members : 0, members},
        [MOVE_SHARE] = {replicas || kind->stage_kind == STAGE_SERVER ? 0 : members, SHARES * members},
        [MOVE_SCHEDULE] = {several && replicas ? (group ? 3 : 6) : 0, 1},
        [MOVE_DELAY] = {c->schedule == SCHEDULE_SPLIT || kind->stage_kind == STAGE_EXPERT ? members : 0, 2},
        [MOVE_TOGETHER] = {kind->stage_kind == STAGE_TENSOR, 2},
    };
    *a = ranges[move][0];
    *b = ranges[move][1];
    if (laps && move != MOVE_BLOCKS && move != MOVE_WINDOW && move != MOVE_RECOMPUTE && move != MOVE_SCHEDULE)
        *a = 0;
}

/* --- structure --- */

static void firsts_fill(struct candidate *c)
{
    uint32_t first = 0;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        c->stages[s].member_first = first;
        first += c->stages[s].member_count;
    }
}

/* Removes a member, and its stage if it was the only one. */
static struct member take_out(struct candidate *c, uint32_t member)
{
    uint32_t s = stage_of(c, member);
    struct member out = c->members[member];
    memmove(&c->members[member], &c->members[member + 1],
            (c->member_count - member - 1) * sizeof(*c->members));
    c->member_count--;
    if (--c->stages[s].member_count == 0) {
        struct stage gone = c->stages[s];
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

/* Inserts a member into stage `to`, or into a new stage at position to − stage_count. */
static int put_in(struct candidate *c, const struct kind *kind, struct member member, uint32_t to,
                  struct err *err)
{
    if (candidate_reserve(c, c->stage_count + 1, c->member_count + 1, err) < 0)
        return -1;
    if (to >= c->stage_count) {
        uint32_t at = to - c->stage_count;
        memmove(&c->stages[at + 1], &c->stages[at], (c->stage_count - at) * sizeof(*c->stages));
        c->stages[at] = (struct stage){.kind = kind->stage_kind};
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

int move_append(struct candidate *c, const struct kind *kind, const uint32_t *devices, uint32_t count,
                struct err *err)
{
    for (uint32_t i = 0; i < count; i++) {
        struct member member = {.device = devices[i], .window = 1, .state_share = 1};
        uint32_t to = i == 0 ? 2 * c->stage_count : c->stage_count - 1;
        if (put_in(c, kind, member, to, err) < 0)
            return -1;
    }
    return 0;
}

bool move_shape_allowed(const struct problem *p, const struct kind *kind, const struct candidate *c)
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

static int structure(const struct problem *p, const struct kind *kind, struct candidate *c,
                     enum move_kind move, uint32_t a, uint32_t b, struct err *err)
{
    struct member member = {.window = 1, .state_share = 1};
    uint32_t device = move == MOVE_ADD ? a : b;
    int result = 0;
    c->owner_count = 0;
    if ((move == MOVE_ADD || move == MOVE_REPLACE) && (!p->usable[device] || candidate_uses(c, device)))
        return MOVE_VOID;
    if (move == MOVE_SWAP) {
        if (a >= b || (stage_of(c, a) == stage_of(c, b) && kind->stages_most > 1))
            return MOVE_VOID;
        device = c->members[a].device;
        c->members[a].device = c->members[b].device;
        c->members[b].device = device;
    } else if (move == MOVE_REPLACE) {
        c->members[a].device = b;
    } else if (move == MOVE_DROP) {
        if (c->member_count < 2)
            return MOVE_VOID;
        take_out(c, a);
    } else if (move == MOVE_ADD) {
        member.device = a;
        result = put_in(c, kind, member, b, err);
    } else { /* MOVE_REGROUP: positions are counted before the member is removed */
        uint32_t from = stage_of(c, a), stages = c->stage_count;
        bool alone = c->stages[from].member_count == 1, own = b >= stages;
        uint32_t to = own ? b - stages : b;
        if ((!own && to == from) || (own && alone && (to == from || to == from + 1)))
            return MOVE_VOID;
        member = take_out(c, a);
        to -= alone && to > from;
        result = put_in(c, kind, member, own ? c->stage_count + to : to, err);
    }
    if (result < 0)
        return -1;
    if (c->stage_count == 1) {
        c->stages[0].block_begin = 0;
        c->stages[0].block_end = p->block_count;
    }
    return move_shape_allowed(p, kind, c) ? MOVE_CUT : MOVE_VOID;
}

/* Exchanges stages a and b with all their members. */
static int order(struct candidate *c, uint32_t a, uint32_t b, struct err *err)
{
    struct candidate other = {0};
    if (a >= b)
        return MOVE_VOID;
    if (candidate_copy(&other, c, err) < 0)
        return -1;
    uint32_t at = 0;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        const struct stage *from = &other.stages[s == a ? b : s == b ? a : s];
        memcpy(&c->members[at], &other.members[from->member_first], from->member_count * sizeof(*c->members));
        at += c->stages[s].member_count = from->member_count;
    }
    firsts_fill(c);
    c->owner_count = 0;
    candidate_fini(&other);
    return MOVE_CUT;
}

/* --- cuts and sizes --- */

static int blocks(struct candidate *c, uint32_t a, uint32_t b)
{
    if (a == b)
        return MOVE_VOID;
    for (uint32_t s = a < b ? a : b; s < (a < b ? b : a); s++) {
        c->stages[s].block_end += a < b ? -1 : 1;
        c->stages[s + 1].block_begin = c->stages[s].block_end;
    }
    for (uint32_t s = 0; s < c->stage_count; s++) {
        if (c->stages[s].block_end <= c->stages[s].block_begin)
            return MOVE_VOID;
    }
    return c->stage_count > c->member_count ? MOVE_AS_IS : MOVE_SETTLE;
}

static int micro(const struct problem *p, struct candidate *c, uint32_t b)
{
    uint32_t sizes[MICRO_SIZES_MAX], count = micro_sizes(p, sizes), now = c->micro_batch_rows, next = now;
    for (uint32_t i = 0; i < count; i++) {
        if (b == 0 && sizes[i] > now && (next == now || sizes[i] < next))
            next = sizes[i];
        if (b == 1 && sizes[i] < now && (next == now || sizes[i] > next))
            next = sizes[i];
    }
    if (b == 2)
        next = now < p->workload->batch_rows ? now + 1 : now;
    if (b == 3)
        next = now > 1 ? now - 1 : now;
    c->micro_batch_rows = next;
    c->owner_count = 0;
    return next == now ? MOVE_VOID : MOVE_SETTLE;
}

static int gather(const struct problem *p, struct candidate *c, uint32_t b)
{
    uint32_t now = c->gathered_layers, most = (uint32_t)p->block_count;
    uint32_t next = b == 2 ? 0 : b == 0 ? (now ? 2 * now : 2) : now / 2;
    c->gathered_layers = next > most ? most : next == 1 ? 2 : next;
    return c->gathered_layers == now ? MOVE_VOID : MOVE_SETTLE;
}

/* --- inner moves --- */

/* Changes the window of stage a, or of all stages up to a − stage_count. */
static int window(struct candidate *c, uint32_t a, uint32_t b)
{
    bool changed = false, all = a >= c->stage_count, laps = c->stage_count > c->member_count;
    uint32_t last = all ? a - c->stage_count : a;
    for (uint32_t m = 0; m < c->member_count; m++) {
        uint32_t *w = &c->members[m].window, s = laps ? m : stage_of(c, m);
        if ((all ? s > last : s != last) || (b && *w < 2))
            continue;
        *w += b ? -1u : 1;
        changed = true;
    }
    return changed ? MOVE_AS_IS : MOVE_VOID;
}

static int recompute(const struct problem *p, struct candidate *c, uint32_t a, bool on)
{
    bool changed = false;
    for (uint32_t m = 0; m < c->member_count && micro_recompute_allowed(p, on); m++) {
        if ((m == a || a == c->member_count) && c->members[m].recompute != on)
            changed = c->members[m].recompute = true;
        if (m == a || a == c->member_count)
            c->members[m].recompute = on;
    }
    return changed ? MOVE_AS_IS : MOVE_VOID;
}

static int owner(const struct problem *p, struct candidate *c, uint32_t a, uint32_t b)
{
    uint32_t count = micro_count(p, c->micro_batch_rows), s = a / count;
    if (c->owner_count != c->stage_count * count || b >= c->stages[s].member_count || c->owner[a] == b)
        return MOVE_VOID; /* owners that the schedule chooses cannot be changed; the search writes them down
                             first */
    c->owner[a] = (uint8_t)b;
    return MOVE_AS_IS;
}

/* Sets a member's rows, in micro-batches of the divisor that is closest to its present size. */
static void rows_set(struct member *m, uint32_t total)
{
    uint32_t best = total ? 1 : 0;
    bool all = m->window == m->count && total; /* a window of all micro-batches keeps covering all */
    for (uint32_t size = 1; size <= total; size++) {
        if (total % size == 0 && abs((int)size - (int)m->rows) < abs((int)best - (int)m->rows))
            best = size;
    }
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

static int rows(const struct problem *p, const struct kind *kind, struct candidate *c, uint32_t a, uint32_t b)
{
    struct member *from = &c->members[a], *to = &c->members[b % c->member_count];
    bool expert = kind->stage_kind == STAGE_EXPERT; /* rows are of every micro-batch */
    uint32_t most = expert ? from->rows : from->rows * from->count;
    uint32_t given = b / c->member_count ? (expert ? from->rows / 2 : from->rows) : 1;
    if (from == to || given == 0 || given > most || (b / c->member_count && given == 1))
        return MOVE_VOID;
    if (expert) {
        if (given == from->rows || to->rows == 0) /* a member's role does not change */
            return MOVE_VOID;
        from->rows -= given;
        to->rows += given;
        return MOVE_AS_IS;
    }
    bool keeps = kind->stage_kind == STAGE_SERVER
                     ? a == 0
                     : p->workload->method == METHOD_FULL && c->gathered_layers > 0;
    if (given == most && !keeps) /* a member without rows is useful only if it keeps state */
        return MOVE_VOID;
    rows_set(from, most - given);
    rows_set(to, to->rows * to->count + given);
    largest_set(c);
    return MOVE_AS_IS;
}

static int parts(struct candidate *c, uint32_t a, uint32_t b)
{
    struct member *m = &c->members[a];
    uint32_t total = m->rows * m->count, size = m->rows;
    bool all = m->window == m->count;
    do
        size = b ? size + 1 : size - 1;
    while (size > 0 && size <= total && total % size);
    if (size == 0 || size > total || total == 0)
        return MOVE_VOID;
    m->rows = size;
    m->count = total / size;
    m->window = all ? m->count : m->window;
    largest_set(c);
    return MOVE_AS_IS;
}

static int place(const struct kind *kind, struct candidate *c, uint32_t a, uint32_t b)
{
    struct member first = c->members[a], second = c->members[b];
    bool server = kind->stage_kind == STAGE_SERVER;
    if (a >= b || stage_of(c, a) != stage_of(c, b) || (server && (!first.count || !second.count)) ||
        (kind->stage_kind == STAGE_EXPERT && !first.rows != !second.rows))
        return MOVE_VOID; /* members with attention come first, and workers have rows */
    c->members[a] = second;
    c->members[b] = first;
    c->members[a].tensor = first.tensor; /* parts of matrices keep their order */
    c->members[b].tensor = second.tensor;
    if (server) { /* the server's first member holds all state */
        c->members[a].state_share = first.state_share;
        c->members[b].state_share = second.state_share;
    }
    return MOVE_AS_IS;
}

/* Moves `part` of a range from a member to its neighbour, whose range follows or precedes it. */
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

static int share_tensor(struct candidate *c, uint32_t a, uint32_t b, uint32_t what)
{
    struct plan_tensor *x = &c->members[a].tensor, *y = &c->members[b].tensor;
    uint32_t columns = x->column_end - x->column_begin, words = x->vocabulary_end - x->vocabulary_begin;
    bool forward = a < b, given = false;
    if (stage_of(c, a) != stage_of(c, b) || (a + 1 != b && b + 1 != a))
        return MOVE_VOID;
    if (what == 0)
        given = range_give(&x->column_begin, &x->column_end, &y->column_begin, &y->column_end,
                           columns / SHARE_PARTS + 1, forward);
    if (what == 1)
        given =
            range_give(&x->kv_head_begin, &x->kv_head_end, &y->kv_head_begin, &y->kv_head_end, 1, forward);
    if (what == 2)
        given = range_give(&x->vocabulary_begin, &x->vocabulary_end, &y->vocabulary_begin, &y->vocabulary_end,
                           words / SHARE_PARTS + 1, forward);
    return given ? MOVE_AS_IS : MOVE_VOID;
}

static int share(const struct problem *p, const struct kind *kind, struct candidate *c, uint32_t a,
                 uint32_t b)
{
    static const double parts_of[SHARES] = {8, 32, 256};
    uint32_t what = b / c->member_count;
    struct member *from = &c->members[a], *to = &c->members[b %= c->member_count];
    if (a == b)
        return MOVE_VOID;
    if (kind->stage_kind == STAGE_TENSOR)
        return share_tensor(c, a, b, what);
    if (kind->stage_kind == STAGE_EXPERT) { /* one expert of every layer, or a few */
        double part = (double)(1u << what) / p->workload->config->experts;
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

/* Interleaves: cuts each stage's blocks into `laps` parts and distributes them round the ranks. */
static int interleave(const struct problem *p, struct candidate *c, uint32_t laps, struct err *err)
{
    uint32_t ranks = c->stage_count, stages = ranks * laps;
    if (ranks != c->member_count || stages > (uint32_t)p->block_count ||
        candidate_reserve(c, stages, ranks, err) < 0)
        return ranks == c->member_count && stages <= (uint32_t)p->block_count ? -1 : MOVE_VOID;
    double *edge = calloc((size_t)ranks + 1, sizeof(*edge));
    if (!edge)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t s = 0; s < ranks; s++)
        edge[s] = c->stages[s].block_end;
    int32_t begin = 0;
    for (uint32_t s = 0; s < stages; s++) { /* lap l, rank r: ends after all earlier laps and its own part */
        uint32_t lap = s / ranks, r = s % ranks;
        double end = (lap * (double)p->block_count + edge[r]) / laps;
        int32_t least = begin + 1, most = p->block_count - (int32_t)(stages - s - 1),
                at = (int32_t)lround(end);
        at = at < least ? least : at > most ? most : at;
        c->stages[s] = (struct stage){begin, at, STAGE_REPLICAS, r, 1};
        begin = at;
    }
    free(edge);
    c->stage_count = stages;
    c->schedule = SCHEDULE_INTERLEAVED;
    return MOVE_AS_IS;
}

static int schedule(const struct problem *p, struct candidate *c, uint32_t a, struct err *err)
{
    bool plain = c->stage_count == c->member_count;
    if (a == 2 && c->member_count > c->stage_count) {
        c->eager = !c->eager;
        return MOVE_AS_IS;
    }
    if (!plain || a == 2)
        return MOVE_VOID;
    if (a >= 3)
        return interleave(p, c, a - 1, err);
    enum plan_schedule to = a ? SCHEDULE_SPLIT : SCHEDULE_1F1B;
    if (c->schedule == to)
        return MOVE_VOID;
    c->schedule = to;
    for (uint32_t m = 0; m < c->member_count; m++)
        c->members[m].delay =
            a ? m : 0; /* Qi et al. 2023: the nearer a rank is to the tail, the longer it can wait */
    return MOVE_AS_IS;
}

static int delay(struct candidate *c, uint32_t a, uint32_t b)
{
    uint32_t *d = &c->members[a].delay;
    if (b && *d == 0)
        return MOVE_VOID;
    *d += b ? -1u : 1;
    return MOVE_AS_IS;
}

int move_apply(const struct problem *p, const struct kind *kind, struct candidate *c, enum move_kind move,
               uint32_t a, uint32_t b, struct err *err)
{
    uint32_t as, bs;
    move_range(p, kind, c, move, &as, &bs);
    if (a >= as || b >= bs) /* the candidate may have changed since the move was listed */
        return MOVE_VOID;
    switch (move) {
    case MOVE_ORDER:
        return order(c, a, b, err);
    case MOVE_BLOCKS:
        return blocks(c, a, b);
    case MOVE_MICRO:
        return micro(p, c, b);
    case MOVE_GATHER:
        return gather(p, c, b);
    case MOVE_WINDOW:
        return window(c, a, b);
    case MOVE_RECOMPUTE:
        return recompute(p, c, a, b);
    case MOVE_OWNER:
        return owner(p, c, a, b);
    case MOVE_ROWS:
        return rows(p, kind, c, a, b);
    case MOVE_PARTS:
        return parts(c, a, b);
    case MOVE_PLACE:
        return place(kind, c, a, b);
    case MOVE_SHARE:
        return share(p, kind, c, a, b);
    case MOVE_SCHEDULE:
        return schedule(p, c, a, err);
    case MOVE_DELAY:
        return delay(c, a, b);
    case MOVE_TOGETHER:
        if ((c->together > 1) == (b == 1))
            return MOVE_VOID;
        c->together = b ? 2 : 1;
        return MOVE_AS_IS;
    default:
        return structure(p, kind, c, move, a, b, err);
    }
}
