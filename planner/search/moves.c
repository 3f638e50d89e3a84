/* One thing about a choice at a time. */
#include "planner/search/moves.h"

#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"
#include "planner/expert/expert_moves.h"
#include "planner/hybrid/deal_moves.h"
#include "planner/pipeline/lap_moves.h"
#include "planner/search/plain_moves.h"
#include "planner/sharded/sharded_moves.h"
#include "planner/tensor/tensor_moves.h"

#define WINDOW_VALUES 24u
#define SHARE_PARTS 8.0  /* of a micro-batch: as finely are shares set outright */
#define TENSOR_WIDTHS 4u /* of windows of tensor groups that are tried outright */
#define FEW_MEMBERS 8u   /* of tensor groups and interleaved pipelines, whose programs are long */

bool move_knows(const struct place_choice *c)
{
    if (c->placement == PLACE_SINGLE || c->placement == PLACE_DATA)
        return c->stage_count == 1;
    if (c->placement == PLACE_TENSOR || c->schedule == SCHEDULE_INTERLEAVED)
        return c->member_count <= FEW_MEMBERS;
    return true;
}

static bool is_data(const struct place_choice *c)
{
    return c->placement == PLACE_SINGLE || c->placement == PLACE_DATA;
}

static uint32_t window_of(const struct place_choice *c, uint32_t stage)
{
    return c->members[c->stages[stage].member_first].window;
}

static void window_set(struct place_choice *c, uint32_t stage, uint32_t window)
{
    const struct place_stage *s = &c->stages[stage];
    for (uint32_t m = 0; m < s->member_count; m++)
        c->members[s->member_first + m].window = window;
}

static uint32_t stage_of(const struct place_choice *c, uint32_t member)
{
    uint32_t s = 0;
    while (s + 1 < c->stage_count && c->stages[s + 1].member_first <= member)
        s++;
    return s;
}

/* Windows fall towards the tail: what is above an earlier one pulls that up. */
static void windows_settle(const struct problem *p, struct place_choice *c)
{
    uint32_t most = micro_count(p, c->micro_batch_rows);
    for (uint32_t s = c->stage_count; s-- > 0;) {
        uint32_t window = window_of(c, s), least = s + 1 < c->stage_count ? window_of(c, s + 1) : 1;
        window = window < least ? least : window;
        window_set(c, s, window < most ? window : most);
    }
}

static int window_move(const struct problem *p, struct place_choice *c, uint32_t stage, bool up)
{
    uint32_t most = micro_count(p, c->micro_batch_rows), first = stage, end = stage + 1;
    bool changed = false;
    if (stage == c->stage_count) {
        first = 0;
        end = c->stage_count - 1;
    }
    for (uint32_t s = first; s < end; s++) {
        uint32_t window = window_of(c, s);
        if (up ? window < most : window > 1) {
            window_set(c, s, up ? window + 1 : window - 1);
            changed = true;
        }
    }
    for (uint32_t s = first; !up && s + 1 < c->stage_count; s++) { /* down pulls the later ones along */
        if (window_of(c, s + 1) > window_of(c, s))
            window_set(c, s + 1, window_of(c, s));
    }
    windows_settle(p, c);
    return changed;
}

/* A stage's window as given; earlier ones are no smaller, later ones no larger. */
static int window_to(const struct problem *p, struct place_choice *c, uint32_t stage, uint32_t window)
{
    if (stage >= c->stage_count || window_of(c, stage) == window)
        return 0;
    window_set(c, stage, window);
    for (uint32_t s = stage; s + 1 < c->stage_count; s++) {
        if (window_of(c, s + 1) > window)
            window_set(c, s + 1, window);
    }
    windows_settle(p, c);
    return window_of(c, stage) == window;
}

/* Of a pipeline whose backwards are whole: splits them, with none put off but the member's by one. */
static int delay_move(const struct problem *p, struct place_choice *c, uint32_t member, bool up)
{
    if (c->schedule != SCHEDULE_SPLIT) {
        c->schedule = SCHEDULE_SPLIT;
        for (uint32_t m = 0; m < c->member_count; m++)
            c->members[m].delay = 0;
        if (!up)
            return member == 0;
    }
    uint32_t *delay = &c->members[member].delay;
    if (up ? *delay >= micro_count(p, c->micro_batch_rows) : *delay == 0)
        return 0;
    *delay = up ? *delay + 1 : *delay - 1;
    return 1;
}

/* Rows of a data choice's micro-batches: their largest is the choice's. */
static int data_settle(const struct problem *p, struct place_choice *c)
{
    uint32_t most = p->workload->micro_batch_rows;
    c->micro_batch_rows = 1;
    for (uint32_t m = 0; m < c->member_count; m++) {
        struct place_member *x = &c->members[m];
        if (x->micro_rows == 0 || x->micro_count == 0 || (most && x->micro_rows > most))
            return 0;
        if (x->micro_rows > c->micro_batch_rows)
            c->micro_batch_rows = x->micro_rows;
    }
    return c->placement == PLACE_SINGLE || c->member_count > 1;
}

/* So many rows in micro-batches of nearly `near` rows that divide them. */
static void data_rows_set(struct place_member *x, uint32_t rows, uint32_t near)
{
    uint32_t best = 1;
    for (uint32_t size = 1; size <= rows; size++) {
        uint32_t off = size > near ? size - near : near - size;
        uint32_t best_off = best > near ? best - near : near - best;
        if (rows % size == 0 && off < best_off)
            best = size;
    }
    x->micro_rows = best;
    x->micro_count = rows / best;
}

/* A member's part of its group's micro-batches to be `wanted` of them; the others keep theirs to each other.
 */
static int share_set(const struct problem *p, struct place_choice *c, uint32_t member, uint32_t wanted)
{
    const struct place_stage *s = &c->stages[stage_of(c, member)];
    uint32_t total = 0, count = micro_count(p, c->micro_batch_rows), own = c->members[member].micro_count;
    for (uint32_t m = 0; m < s->member_count; m++)
        total += c->members[s->member_first + m].micro_count;
    if (s->member_count < 2 || wanted + s->member_count > count + 1 || total == own)
        return 0;
    for (uint32_t m = s->member_first; m < s->member_first + s->member_count; m++) {
        double part =
            m == member ? wanted : (double)(count - wanted) * c->members[m].micro_count / (total - own);
        c->members[m].micro_count = (uint32_t)(SHARE_PARTS * part + 0.5);
        c->members[m].micro_count += c->members[m].micro_count == 0;
    }
    return 1;
}

/* From one member to another. Groups: one of the step's micro-batches, or a quarter, which may change who is
 * dealt which; beyond the members, the giver's share outright. Data: a micro-batch of the giver's, or one
 * row. */
static int rows_move(const struct problem *p, struct place_choice *c, uint32_t from, uint32_t to)
{
    bool one = to >= c->member_count;
    to = one ? to - c->member_count : to;
    if (from == to)
        return 0;
    if (to >= c->member_count)
        return share_set(p, c, from, to - c->member_count + 1);
    struct place_member *a = &c->members[from], *b = &c->members[to];
    if (is_data(c)) {
        uint32_t moved = one ? 1 : a->micro_rows, left = a->micro_rows * a->micro_count;
        uint32_t held = b->micro_rows * b->micro_count;
        if (left <= moved || (one && a->micro_rows == 1))
            return 0;
        data_rows_set(a, left - moved, a->micro_rows);
        data_rows_set(b, held + moved, b->micro_rows);
        return data_settle(p, c);
    }
    const struct place_stage *s = &c->stages[stage_of(c, from)];
    if (to < s->member_first || to >= s->member_first + s->member_count)
        return 0;
    uint32_t total = 0, count = micro_count(p, c->micro_batch_rows);
    for (uint32_t m = 0; m < s->member_count; m++)
        total += c->members[s->member_first + m].micro_count;
    uint32_t unit = total / count ? total / count : 1;
    if (one && unit < 4)
        return 0;
    unit = one ? unit / 4 : unit;
    if (a->micro_count <= unit)
        return 0;
    a->micro_count -= unit;
    b->micro_count += unit;
    return 1;
}

static int places_move(struct place_choice *c, uint32_t a, uint32_t b)
{
    struct place_member held = c->members[a];
    if (a >= b || stage_of(c, a) != stage_of(c, b))
        return 0;
    uint32_t window = c->members[b].window; /* the first member's is the stage's */
    c->members[a] = c->members[b];
    c->members[b] = held;
    c->members[a].window = held.window;
    c->members[b].window = window;
    deal_rename(c, stage_of(c, a), a, b); /* what is dealt stays: only the ring's order is another */
    return 1;
}

static void member_remove(struct place_choice *c, uint32_t member)
{
    uint32_t s = stage_of(c, member);
    memmove(&c->members[member], &c->members[member + 1],
            (c->member_count - member - 1) * sizeof(*c->members));
    c->member_count--;
    c->stages[s].member_count--;
    for (uint32_t t = s + 1; t < c->stage_count; t++)
        c->stages[t].member_first--;
}

static void stage_remove(struct place_choice *c, uint32_t stage)
{
    memmove(&c->stages[stage], &c->stages[stage + 1], (c->stage_count - stage - 1) * sizeof(*c->stages));
    c->stage_count--;
}

/* An empty stage's blocks go to the one before it or after it. */
static int stage_close(struct place_choice *c, uint32_t stage, bool after)
{
    struct place_stage *s = &c->stages[stage];
    if (after ? stage + 1 == c->stage_count : stage == 0)
        return 0;
    if (after)
        c->stages[stage + 1].block_begin = s->block_begin;
    else
        c->stages[stage - 1].block_end = s->block_end;
    stage_remove(c, stage);
    return 1;
}

static bool shape_good(const struct place_choice *c)
{
    if (c->placement == PLACE_TENSOR)
        return c->member_count > c->stage_count;
    if (c->placement == PLACE_PIPELINE)
        return c->stage_count >= 2 && c->member_count == c->stage_count;
    return c->stage_count >= 2 && c->member_count > c->stage_count;
}

static int drop_move(const struct problem *p, struct place_choice *c, uint32_t member, uint32_t to)
{
    if (c->member_count < 2)
        return 0;
    if (is_data(c)) { /* its rows go to member `to` */
        if (to == member || to >= c->member_count)
            return 0;
        struct place_member *b = &c->members[to];
        uint32_t rows = c->members[member].micro_rows * c->members[member].micro_count;
        data_rows_set(b, b->micro_rows * b->micro_count + rows, b->micro_rows);
        member_remove(c, member);
        return data_settle(p, c);
    }
    uint32_t s = stage_of(c, member);
    if (to > 1)
        return 0;
    if (c->stages[s].member_count > 1)
        deal_leave(c, s, member);
    else
        deal_drop(c);
    member_remove(c, member);
    if (c->stages[s].member_count == 0 && !stage_close(c, s, to))
        return 0;
    windows_settle(p, c);
    return shape_good(c);
}

static int grow(struct place_choice *c, struct err *err)
{
    struct place_member *members = realloc(c->members, ((size_t)c->member_count + 2) * sizeof(*members));
    c->members = members ? members : c->members;
    struct place_stage *stages = realloc(c->stages, ((size_t)c->stage_count + 2) * sizeof(*stages));
    c->stages = stages ? stages : c->stages;
    return members && stages ? 1 : err_set(err, ERR_NOMEM, "planner: out of memory");
}

static void member_insert(struct place_choice *c, uint32_t stage, uint32_t at, const struct place_member *x)
{
    memmove(&c->members[at + 1], &c->members[at], (c->member_count - at) * sizeof(*c->members));
    c->members[at] = *x;
    c->member_count++;
    c->stages[stage].member_count++;
    for (uint32_t t = stage + 1; t < c->stage_count; t++)
        c->stages[t].member_first++;
}

/* A stage of one member before stage `at` (or at the end), which takes blocks from that side's neighbour:
 * half of the larger one's. */
static int stage_insert(struct place_choice *c, uint32_t at, const struct place_member *x)
{
    uint32_t from = at == 0 ? 0 : at == c->stage_count ? at - 1 : at;
    if (at > 0 && at < c->stage_count &&
        c->stages[at - 1].block_end - c->stages[at - 1].block_begin >
            c->stages[at].block_end - c->stages[at].block_begin)
        from = at - 1;
    int32_t begin = c->stages[from].block_begin, end = c->stages[from].block_end;
    int32_t middle = begin + (end - begin) / 2;
    if (end - begin < 2)
        return 0;
    struct place_stage new = {.block_begin = begin, .block_end = middle};
    if (from + 1 == at) {
        new.block_begin = middle;
        new.block_end = end;
        c->stages[from].block_end = middle;
    } else {
        c->stages[from].block_begin = middle;
    }
    new.member_first = at < c->stage_count ? c->stages[at].member_first : c->member_count;
    memmove(&c->stages[at + 1], &c->stages[at], (c->stage_count - at) * sizeof(*c->stages));
    c->stages[at] = new;
    c->stage_count++;
    member_insert(c, at, new.member_first, x);
    return 1;
}

/* Micro-batches of a group by who is done first with one more: the least time of the slowest. */
void move_shares(const struct problem *p, struct place_choice *c)
{
    uint32_t count = micro_count(p, c->micro_batch_rows);
    for (uint32_t s = 0; s < c->stage_count && c->placement == PLACE_HYBRID; s++) {
        const struct place_stage *stage = &c->stages[s];
        struct place_member *members = &c->members[stage->member_first];
        for (uint32_t m = 0; m < stage->member_count; m++)
            members[m].micro_count = 0;
        for (uint32_t k = 0; k < count; k++) {
            uint32_t best = 0;
            double least = 0;
            for (uint32_t m = 0; m < stage->member_count; m++) {
                struct micro_cost cost;
                micro_cost_init(&cost, p, members[m].device, c->micro_batch_rows);
                double end =
                    (members[m].micro_count + 1) *
                    (micro_forward(p, &cost, stage->block_begin, stage->block_end) +
                     micro_backward(p, &cost, stage->block_begin, stage->block_end, members[m].recompute));
                if (m == 0 || end < least) {
                    least = end;
                    best = m;
                }
            }
            members[best].micro_count++;
        }
        for (uint32_t m = 0; m < stage->member_count; m++) /* in quarters: rows_move */
            members[m].micro_count = 4 * (members[m].micro_count + (members[m].micro_count == 0));
    }
}

/* What a member that joins a stage starts as: the mean of those there. */
static struct place_member joiner(const struct place_choice *c, uint32_t stage, uint32_t device)
{
    const struct place_stage *s = &c->stages[stage];
    struct place_member x = c->members[s->member_first];
    uint64_t total = 0;
    for (uint32_t m = 0; m < s->member_count; m++)
        total += c->members[s->member_first + m].micro_count;
    x.device = device;
    x.micro_count = (uint32_t)(total / s->member_count);
    x.micro_count = x.micro_count ? x.micro_count : 1;
    return x;
}

/* place: a stage to join (groups), then places for a stage of its own. Data: a member that gives half of its
 * rows, or one micro-batch. */
static int add_move(const struct problem *p, struct place_choice *c, uint32_t device, uint32_t place,
                    struct err *err)
{
    if (!p->usable[device] || choice_uses(c, device) || c->placement == PLACE_SINGLE || grow(c, err) < 0)
        return 0;
    if (is_data(c)) {
        bool half = place >= c->member_count;
        uint32_t giver = half ? place - c->member_count : place;
        if (giver >= c->member_count)
            return 0;
        struct place_member *a = &c->members[giver], x = *a;
        uint32_t rows = a->micro_rows * a->micro_count, moved = half ? rows / 2 : 1;
        if (rows < 2 || moved == 0)
            return 0;
        x.device = device;
        data_rows_set(a, rows - moved, a->micro_rows);
        data_rows_set(&x, moved, x.micro_rows);
        member_insert(c, 0, giver + 1, &x);
        return data_settle(p, c);
    }
    if (place < c->stage_count) {
        if (c->placement == PLACE_PIPELINE)
            return 0;
        struct place_member x = joiner(c, place, device);
        member_insert(c, place, c->stages[place].member_first + c->stages[place].member_count, &x);
        deal_join(c, place);
        return shape_good(c);
    }
    uint32_t at = place - c->stage_count;
    if (at > c->stage_count)
        return 0;
    struct place_member x = joiner(c, at < c->stage_count ? at : at - 1, device);
    deal_drop(c);
    if (!stage_insert(c, at, &x))
        return 0;
    windows_settle(p, c);
    return shape_good(c);
}

/* Another size of micro-batches; windows hold about as many rows as before. */
static int micro_move(const struct problem *p, struct place_choice *c, uint32_t rows, uint32_t member)
{
    uint32_t old = c->micro_batch_rows;
    if (rows == 0 || p->workload->micro_batch_rows)
        return 0;
    if (is_data(c)) {
        struct place_member *x = &c->members[member];
        uint32_t all = x->micro_rows * x->micro_count;
        bool single = c->placement == PLACE_SINGLE;
        all = single ? p->workload->batch_rows : all;
        if (rows == x->micro_rows || rows > all || (all % rows && !single))
            return 0;
        x->micro_rows = rows;
        x->micro_count = (all + rows - 1) / rows;
        return data_settle(p, c);
    }
    if (rows == old || member > 0)
        return 0;
    uint32_t count = micro_count(p, rows), before = micro_count(p, old);
    c->micro_batch_rows = rows;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        uint32_t window = (window_of(c, s) * old + rows - 1) / rows, textbook = c->stage_count - s;
        window_set(c, s, window > textbook ? window : textbook);
        for (uint32_t m = 0; m < c->stages[s].member_count; m++) {
            struct place_member *x = &c->members[c->stages[s].member_first + m];
            x->micro_rows = rows;
            x->micro_count = c->placement == PLACE_PIPELINE ? count : x->micro_count;
        }
    }
    windows_settle(p, c);
    return count != before || rows != old;
}

/* A member with all that is its own to another place among its stage's. */
static int order_move(struct place_choice *c, uint32_t from, uint32_t to)
{
    struct place_member x = c->members[from];
    if (from == to)
        return 0;
    if (from < to)
        memmove(&c->members[from], &c->members[from + 1], (to - from) * sizeof(x));
    else
        memmove(&c->members[to + 1], &c->members[to], (from - to) * sizeof(x));
    c->members[to] = x;
    return 1;
}

/* A member of a group to another stage, to one of its own, or to its own stage's end. Data: to another place.
 */
static int regroup_move(const struct problem *p, struct place_choice *c, uint32_t member, uint32_t place,
                        struct err *err)
{
    uint32_t s = stage_of(c, member), device = c->members[member].device;
    if (c->placement == PLACE_DATA)
        return order_move(c, member, place);
    if (place == s) {
        deal_drop(c);
        return order_move(c, member, c->stages[s].member_first + c->stages[s].member_count - 1);
    }
    if ((c->placement != PLACE_HYBRID && c->placement != PLACE_TENSOR) || grow(c, err) < 0)
        return 0;
    if (place < c->stage_count) {
        struct place_member x = joiner(c, place, device);
        if (c->stages[s].member_count == 1)
            deal_drop(c);
        member_insert(c, place, c->stages[place].member_first + c->stages[place].member_count, &x);
        deal_join(c, place);
        deal_leave(c, s, member + (place < s));
        member_remove(c, member + (place < s));
        if (c->stages[s].member_count == 0 && !stage_close(c, s, place > s))
            return 0;
    } else {
        uint32_t at = place - c->stage_count;
        if (at > c->stage_count || c->stages[s].member_count < 2)
            return 0;
        struct place_member x = c->members[member];
        deal_drop(c);
        member_remove(c, member);
        if (!stage_insert(c, at, &x))
            return 0;
    }
    windows_settle(p, c);
    return shape_good(c);
}

/* Stages a..b in reverse, cuts staying where they are. */
static int stages_move(struct place_choice *c, uint32_t a, uint32_t b, struct err *err)
{
    if (a >= b || b >= c->stage_count)
        return 0;
    struct place_member *old = calloc(c->member_count, sizeof(*old));
    struct place_stage *stages = calloc(c->stage_count, sizeof(*stages));
    if (!old || !stages) {
        free(old);
        free(stages);
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    }
    memcpy(old, c->members, c->member_count * sizeof(*old));
    memcpy(stages, c->stages, c->stage_count * sizeof(*stages));
    for (uint32_t s = a, at = stages[a].member_first; s <= b; s++) {
        const struct place_stage *from = &stages[b - (s - a)];
        uint32_t window = old[stages[s].member_first].window;
        c->stages[s].member_first = at;
        c->stages[s].member_count = from->member_count;
        for (uint32_t m = 0; m < from->member_count; m++, at++) {
            c->members[at] = old[from->member_first + m];
            c->members[at].window = window;
        }
    }
    free(old);
    free(stages);
    return 1;
}

/* Windows, and parts of a group, that a move may set outright. */
static uint32_t window_values(const struct problem *p, const struct place_choice *c)
{
    uint32_t count = micro_count(p, c->micro_batch_rows);
    return count < WINDOW_VALUES ? count : WINDOW_VALUES;
}

void move_range(const struct problem *p, const struct place_choice *c, enum move_kind kind, uint32_t *a_count,
                uint32_t *b_count)
{
    if (c->gathered_layers) {
        sharded_move_range(p, c, kind, a_count, b_count);
        return;
    }
    if (c->placement == PLACE_EXPERT) {
        expert_move_range(p, c, kind, a_count, b_count);
        return;
    }
    if (c->schedule == SCHEDULE_INTERLEAVED) {
        lap_move_range(p, c, kind, a_count, b_count);
        return;
    }
    bool data = is_data(c), hybrid = c->placement == PLACE_HYBRID, tensor = c->placement == PLACE_TENSOR;
    uint32_t stages = c->stage_count, members = c->member_count;
    bool laps = c->placement == PLACE_PIPELINE && members <= FEW_MEMBERS;
    uint32_t micro_ways = tensor ? 2 : 1;
    if (data)
        micro_ways = members;
    const uint32_t ranges[MOVE_KINDS][2] = {
        [MOVE_CUT] = {stages - 1, 2 * (stages - 1)},
        [MOVE_WINDOW] = {data ? 0 : stages + 1, 2 + (hybrid + 2 * tensor) * window_values(p, c)},
        [MOVE_DELAY] = {c->placement == PLACE_PIPELINE ? members : 0, 2},
        [MOVE_RECOMPUTE] = {members + 1, tensor ? 3 : 2},
        [MOVE_ORDER] = {hybrid ? members : 0, members},
        [MOVE_ROWS] = {data || (hybrid && !c->dealt) || tensor ? members : 0,
                       (tensor ? TENSOR_GIFTS : 2) * members + (hybrid ? window_values(p, c) : 0)},
        [MOVE_SWAP] = {members, members},
        [MOVE_REPLACE] = {c->placement == PLACE_SINGLE ? 0 : members, p->device_count},
        [MOVE_DROP] = {members, data ? members : 2},
        [MOVE_ADD] = {p->device_count, data ? 2 * members : 2 * stages + 1},
        [MOVE_MICRO] = {p->workload->batch_rows + 1, micro_ways},
        [MOVE_STAGES] = {stages, stages},
        [MOVE_REGROUP] = {laps                       ? LAP_MOVES_MAX + 1
                          : hybrid || data || tensor ? members
                                                     : 0,
                          laps   ? 1
                          : data ? members
                                 : 2 * stages + 1},
    };
    *a_count = ranges[kind][0];
    *b_count = ranges[kind][1];
    if (kind == MOVE_DEAL)
        deal_move_range(c, a_count, b_count);
    if (kind == MOVE_TURN)
        deal_order_range(c, a_count, b_count);
}

static int apply(const struct problem *p, struct place_choice *c, enum move_kind kind, uint32_t a, uint32_t b,
                 struct err *err)
{
    switch (kind) {
    case MOVE_CUT:
        return plain_cut(c, a, b / 2, b % 2 ? 1 : -1);
    case MOVE_WINDOW:
        return b < 2 ? window_move(p, c, a, b == 0) : window_to(p, c, a, b - 1);
    case MOVE_DELAY:
        return delay_move(p, c, a, b == 0);
    case MOVE_RECOMPUTE:
        return plain_recompute(p, c, a, b);
    case MOVE_ORDER:
        return places_move(c, a, b);
    case MOVE_ROWS:
        return rows_move(p, c, a, b);
    case MOVE_SWAP:
        return plain_swap(c, a, b);
    case MOVE_REPLACE:
        return plain_replace(p, c, a, b);
    case MOVE_DROP:
        return drop_move(p, c, a, b);
    case MOVE_ADD:
        return add_move(p, c, a, b, err);
    case MOVE_MICRO:
        return micro_move(p, c, a, b);
    case MOVE_STAGES:
        return stages_move(c, a, b, err);
    case MOVE_DEAL:
        return deal_move(c, a, b);
    case MOVE_TURN:
        return deal_order_move(c, a, b);
    case MOVE_REGROUP:
        return c->placement == PLACE_PIPELINE ? lap_begin(p, c, a, err) : regroup_move(p, c, a, b, err);
    default:
        return 0;
    }
}

/* Micro-batches in turns, with windows as they are or, beyond window_values, as narrow as can be: memory has
 * room for one or the other. */
static int turns_windows(const struct problem *p, struct place_choice *c, uint32_t turns)
{
    uint32_t values = window_values(p, c);
    for (uint32_t s = 0; s < c->stage_count && turns > values; s++)
        window_set(c, s, c->stage_count - s);
    return tensor_turns_to(p, c, turns > values ? turns - values : turns);
}

/* A stage's window as that of the next and 2, 4, 8 or 16 more, or as wide as can be: one wider at a time is
 * often worth nothing until all before it are, too. */
static int tensor_widen(const struct problem *p, struct place_choice *c, uint32_t s, uint32_t way)
{
    uint32_t units = (micro_count(p, c->micro_batch_rows) - 1) / (c->together ? c->together : 1) + 1;
    uint32_t next = s + 1 < c->stage_count ? window_of(c, s + 1) : 0;
    if (way > TENSOR_WIDTHS || next + (1u << way) / 2 >= units)
        return 0;
    if (!window_to(p, c, s, next + (1u << way) < units ? next + (1u << way) : units))
        return 0;
    tensor_refit(p, c, false, true);
    return 1;
}

/* Who is where changes as in groups of replicas; then the matrices are dealt anew. */
static int tensor_apply(const struct problem *p, struct place_choice *c, enum move_kind kind, uint32_t a,
                        uint32_t b, struct err *err)
{
    if (kind == MOVE_ROWS)
        return tensor_give(p, c, a, b % c->member_count, b / c->member_count);
    if (kind == MOVE_WINDOW && a == c->stage_count)
        return b < 2 ? tensor_turns(p, c, b == 0) : turns_windows(p, c, b - 1);
    bool level = b == 2; /* down, or to recompute, and columns for the room that leaves */
    if (kind == MOVE_WINDOW && b > 2)
        return tensor_widen(p, c, a, b - 2);
    if (kind == MOVE_RECOMPUTE && b > 2)
        return 0;
    b = level && (kind == MOVE_WINDOW || kind == MOVE_RECOMPUTE) ? 1 : b;
    if (kind == MOVE_MICRO && b == 1)
        return tensor_micro(p, c, a);
    int result = apply(p, c, kind, a, b, err);
    if (result > 0 && kind == MOVE_CUT)
        return tensor_relevel(p, c);
    if (result > 0 && (kind == MOVE_WINDOW || kind == MOVE_RECOMPUTE))
        tensor_refit(p, c, level, kind != MOVE_RECOMPUTE);
    if (result <= 0 || kind == MOVE_WINDOW || kind == MOVE_RECOMPUTE)
        return result;
    if (p->workload->stages && c->stage_count != p->workload->stages)
        return 0;
    if (kind != MOVE_REGROUP) /* which may want another order */
        tensor_rings(p, c);
    return tensor_settle(p, c);
}

int move_apply(const struct problem *p, struct place_choice *c, enum move_kind kind, uint32_t a, uint32_t b,
               struct err *err)
{
    uint32_t a_count, b_count;
    move_range(p, c, kind, &a_count, &b_count);
    if (a >= a_count || b >= b_count)
        return 0;
    if (c->gathered_layers)
        return sharded_move_apply(p, c, kind, a, b, err);
    if (c->placement == PLACE_EXPERT)
        return expert_move_apply(p, c, kind, a, b, err);
    if (c->schedule == SCHEDULE_INTERLEAVED)
        return lap_move_apply(p, c, kind, a, b, err);
    if (c->placement == PLACE_TENSOR)
        return tensor_apply(p, c, kind, a, b, err);
    if (c->schedule == SCHEDULE_GPIPE) /* which is 1F1B with windows of all micro-batches */
        c->schedule = SCHEDULE_1F1B;
    int result = apply(p, c, kind, a, b, err);
    if (kind != MOVE_CUT && kind != MOVE_RECOMPUTE && kind != MOVE_DEAL && kind != MOVE_TURN)
        deal_order_drop(c); /* it was said for others, or other windows */
    if (p->workload->stages && c->stage_count != p->workload->stages)
        return 0;
    if (result > 0 && kind != MOVE_ROWS && kind != MOVE_WINDOW && kind != MOVE_RECOMPUTE &&
        kind != MOVE_CUT && kind != MOVE_ORDER && kind != MOVE_DEAL && kind != MOVE_TURN) {
        if (kind == MOVE_MICRO || kind == MOVE_STAGES)
            deal_drop(c);
        move_shares(p, c);
    }
    return result;
}
