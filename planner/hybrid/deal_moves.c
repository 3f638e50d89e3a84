/* Who takes which micro-batch, outright. */
#include "planner/hybrid/deal_moves.h"

#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"
#include "planner/hybrid/deal.h"

#define ORDER_REACH 3u /* events between two that change places, and one */

int deal_fix(const struct problem *p, struct place_choice *c, struct err *err)
{
    uint32_t count = micro_count(p, c->micro_batch_rows), cells = c->stage_count * count;
    struct deal deal;
    if (c->dealt)
        return 1;
    if (c->placement != PLACE_HYBRID || c->stage_count < 2 || cells > DEALT_CELLS ||
        c->member_count > UINT8_MAX)
        return 0;
    if (deal_init(&deal, p, c, count, err) < 0)
        return err->code == ERR_NOMEM ? -1 : 0;
    uint8_t *dealt = calloc((size_t)cells + 1, 1);
    uint32_t taken = 0;
    for (uint32_t cell = 0; dealt && cell < cells; cell++)
        dealt[cell] = (uint8_t)(deal.owner[cell] - c->stages[cell / count].member_first);
    for (uint32_t r = 0; r < deal.ranks; r++)
        taken += deal.first[r] < deal.first[r + 1];
    bool all = taken == deal.ranks;
    deal_fini(&deal);
    if (!dealt)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    if (!all) {
        free(dealt);
        return 0;
    }
    c->dealt = dealt;
    c->dealt_count = cells;
    return 1;
}

int deal_order_fix(const struct problem *p, struct place_choice *c, struct err *err)
{
    struct deal deal;
    if (c->order)
        return 1;
    if (!c->dealt)
        return 0;
    if (deal_init(&deal, p, c, c->dealt_count / c->stage_count, err) < 0)
        return err->code == ERR_NOMEM ? -1 : 0;
    c->order = calloc(2 * (size_t)c->dealt_count + 1, 1);
    for (uint32_t i = 0; c->order && i < 2 * c->dealt_count; i++)
        c->order[i] = deal.events[i].backward;
    deal_fini(&deal);
    return c->order ? 1 : err_set(err, ERR_NOMEM, "planner: out of memory");
}

void deal_order_drop(struct place_choice *c)
{
    free(c->order);
    c->order = NULL;
}

void deal_order_range(const struct place_choice *c, uint32_t *a_count, uint32_t *b_count)
{
    *a_count = c->order ? 2 * c->dealt_count : 0;
    *b_count = c->order ? ORDER_REACH : 0;
}

int deal_order_move(struct place_choice *c, uint32_t a, uint32_t b)
{
    uint32_t other = a + b + 1;
    if (other >= 2 * c->dealt_count || c->order[a] == c->order[other])
        return 0;
    c->order[a] = !c->order[a];
    c->order[other] = !c->order[other];
    return 1;
}

void deal_rename(struct place_choice *c, uint32_t stage, uint32_t a, uint32_t b)
{
    deal_order_drop(c);
    uint32_t count = c->dealt_count / c->stage_count, first = c->stages[stage].member_first;
    for (uint32_t k = 0; k < count; k++) {
        uint8_t *own = &c->dealt[(size_t)stage * count + k];
        if (*own == a - first)
            *own = (uint8_t)(b - first);
        else if (*own == b - first)
            *own = (uint8_t)(a - first);
    }
}

static uint32_t taken_by(const uint8_t *row, uint32_t count, uint32_t own)
{
    uint32_t taken = 0;
    for (uint32_t k = 0; k < count; k++)
        taken += row[k] == own;
    return taken;
}

void deal_leave(struct place_choice *c, uint32_t stage, uint32_t member)
{
    uint32_t gone = member - c->stages[stage].member_first, count = c->dealt_count / c->stage_count;
    uint8_t *row = c->dealt ? &c->dealt[(size_t)stage * count] : NULL;
    deal_order_drop(c);
    for (uint32_t k = 0; k < count && row; k++) {
        uint32_t least = UINT32_MAX, to = 0;
        if (row[k] != gone)
            continue;
        for (uint32_t m = 0; m < c->stages[stage].member_count; m++) {
            uint32_t taken = taken_by(row, count, m);
            if (m != gone && taken < least) {
                least = taken;
                to = m;
            }
        }
        row[k] = (uint8_t)to;
    }
    for (uint32_t k = 0; k < count && row; k++)
        row[k] = (uint8_t)(row[k] - (row[k] > gone));
}

void deal_join(struct place_choice *c, uint32_t stage)
{
    uint32_t count = c->dealt_count / c->stage_count, last = c->stages[stage].member_count - 1;
    uint32_t most = 0, from = 0, at = 0;
    uint8_t *row = c->dealt ? &c->dealt[(size_t)stage * count] : NULL;
    deal_order_drop(c);
    for (uint32_t m = 0; m < last && row; m++) {
        uint32_t taken = taken_by(row, count, m);
        if (taken > most) {
            most = taken;
            from = m;
        }
    }
    if (most < 2) { /* somebody would be left without any */
        deal_drop(c);
        return;
    }
    for (uint32_t k = 0; k < count; k++)
        at = row[k] == from ? k : at;
    row[at] = (uint8_t)last;
}

void deal_drop(struct place_choice *c)
{
    deal_order_drop(c);
    free(c->dealt);
    c->dealt = NULL;
    c->dealt_count = 0;
}

static uint32_t members_most(const struct place_choice *c)
{
    uint32_t most = 0;
    for (uint32_t s = 0; s < c->stage_count; s++)
        most = c->stages[s].member_count > most ? c->stages[s].member_count : most;
    return most;
}

void deal_move_range(const struct place_choice *c, uint32_t *a_count, uint32_t *b_count)
{
    *a_count = c->dealt_count;
    *b_count = c->dealt ? members_most(c) + c->dealt_count / c->stage_count : 0;
}

int deal_move(struct place_choice *c, uint32_t a, uint32_t b)
{
    uint32_t count = c->dealt_count / c->stage_count, most = members_most(c), left = 0;
    const struct place_stage *stage = &c->stages[a / count];
    uint8_t *row = &c->dealt[a / count * count], *own = &c->dealt[a], held = *own;
    if (stage->member_count < 2)
        return 0;
    if (b >= most) {
        uint32_t other = b - most;
        if (other <= a % count || row[other] == held)
            return 0;
        *own = row[other];
        row[other] = held;
        return 1;
    }
    for (uint32_t k = 0; k < count; k++)
        left += row[k] == held;
    if (b >= stage->member_count || b == held || left < 2)
        return 0;
    *own = (uint8_t)b;
    deal_order_drop(c); /* of how many micro-batches */
    return 1;
}

uint32_t deal_taken(const struct place_choice *c, uint32_t stage, uint32_t member)
{
    uint32_t count = c->dealt_count / c->stage_count;
    return taken_by(&c->dealt[(size_t)stage * count], count, member);
}

uint32_t deal_order_find(const struct place_choice *c, uint32_t stage, uint32_t member)
{
    uint32_t count = c->dealt_count / c->stage_count, before = 0;
    const uint8_t *row = &c->dealt[(size_t)stage * count];
    for (uint32_t k = 0; k < count; k++)
        before += row[k] < member;
    return 2 * (stage * count + before);
}

/* Where the n-th of a member's forwards or backwards is among its events; behind all where there are fewer.
 */
static uint32_t event_find(const uint8_t *events, uint32_t length, uint8_t backward, uint32_t n)
{
    for (uint32_t i = 0; i < length; i++) {
        if (events[i] == backward && n-- == 0)
            return i;
    }
    return length;
}

/* Takes a member's n-th forward and backward out of the events from its own on. */
static void events_take(uint8_t *events, uint32_t length, uint32_t n)
{
    for (uint8_t backward = 0; backward < 2; backward++) {
        uint32_t at = event_find(events, length, backward, n);
        memmove(&events[at], &events[at + 1], --length - at);
    }
}

/* Puts one in again as a member's n-th, of `own` events now, behind the one before it and no later than the
 * one behind it, from `least` on. Returns where. */
static uint32_t event_put(uint8_t *events, uint32_t length, uint32_t own, uint8_t backward, uint32_t n,
                          uint32_t least, uint32_t place)
{
    uint32_t before = n ? event_find(events, own, backward, n - 1) + 1 : 0;
    uint32_t most = event_find(events, own, backward, n);
    least = least > before ? least : before;
    uint32_t at = least + place % (most - least + 1);
    memmove(&events[at + 1], &events[at], length - at);
    events[at] = backward;
    return at;
}

bool deal_hand_over(struct place_choice *c, uint32_t stage, uint32_t k, uint32_t to, uint32_t place)
{
    uint32_t count = c->dealt_count / c->stage_count, end = 2 * (stage + 1) * count;
    uint8_t *row = &c->dealt[(size_t)stage * count];
    uint32_t from = row[k], theirs = 2 * taken_by(row, count, to), n = taken_by(row, k, to);
    uint32_t at = deal_order_find(c, stage, from);
    if (from == to || taken_by(row, count, from) < 2)
        return false;
    events_take(&c->order[at], end - at, taken_by(row, k, from));
    at = deal_order_find(c, stage, to) - (to > from ? 2 : 0);
    uint8_t *events = &c->order[at];
    uint32_t forward = event_put(events, end - 2 - at, theirs, 0, n, 0, place);
    event_put(events, end - 1 - at, theirs + 1, 1, n, forward + 1, place / UINT16_MAX);
    row[k] = (uint8_t)to;
    return true;
}

void deal_trade(struct place_choice *c, uint32_t stage, uint32_t a, uint32_t b)
{
    struct place_member *members = &c->members[c->stages[stage].member_first], held = members[a];
    uint32_t count = c->dealt_count / c->stage_count, first = 2 * stage * count, at = first;
    uint8_t *row = &c->dealt[(size_t)stage * count], events[2 * DEALT_CELLS];
    memcpy(events, &c->order[first], 2 * count);
    for (uint32_t m = 0; m < c->stages[stage].member_count; m++) {
        uint32_t from = m == a ? b : m == b ? a : m, length = 2 * taken_by(row, count, from);
        memcpy(&c->order[at], &events[deal_order_find(c, stage, from) - first], length);
        at += length;
    }
    for (uint32_t k = 0; k < count; k++)
        row[k] = (uint8_t)(row[k] == a ? b : row[k] == b ? a : row[k]);
    uint32_t window = members[b].window; /* the first member's is the stage's */
    members[a] = members[b];
    members[b] = held;
    members[b].window = window;
    members[a].window = held.window;
}

uint32_t deal_ways(const struct place_choice *c, uint32_t stage)
{
    uint32_t count = c->dealt ? c->dealt_count / c->stage_count : 0, ways = 1;
    for (uint32_t k = 0; k < count; k++) {
        if (ways > UINT32_MAX / c->stages[stage].member_count)
            return UINT32_MAX;
        ways *= c->stages[stage].member_count;
    }
    return count ? ways : UINT32_MAX;
}

bool deal_way(struct place_choice *c, uint32_t stage, uint32_t way)
{
    uint32_t count = c->dealt_count / c->stage_count, members = c->stages[stage].member_count;
    uint8_t *row = &c->dealt[(size_t)stage * count];
    bool all = true;
    deal_order_drop(c);
    for (uint32_t k = 0; k < count; k++, way /= members)
        row[k] = (uint8_t)(way % members);
    for (uint32_t m = 0; m < members && all; m++)
        all = memchr(row, (int)m, count) != NULL;
    return all;
}

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void deal_alike(const struct place_choice *c, uint32_t member, uint32_t stage, uint32_t *share,
                uint32_t *window)
{
    const struct place_stage *s = &c->stages[stage];
    bool flows = !c->dealt && (c->in_turn || c->members[0].micro_count == 0);
    *share = c->members[member].micro_count;
    *window = c->members[member].window;
    if (flows || c->stage_count < 2)
        return;
    if (c->dealt) {
        uint32_t count = c->dealt_count / c->stage_count, own = 0;
        for (uint32_t k = 0; k < count; k++)
            own += c->dealt[(size_t)stage * count + k] == member - s->member_first;
        *share = c->members[0].micro_count > 0; /* quick looks ask */
        *window = deal_limit(c->members[s->member_first].window, own, count, s->member_count);
        *window = *window < own ? *window : own;
    } else {
        uint32_t divisor = 0;
        for (uint32_t m = 0; m < s->member_count; m++)
            divisor = common_divisor(divisor, c->members[s->member_first + m].micro_count);
        *share = s->member_count == 1 ? 1 : *share / (divisor ? divisor : 1);
    }
    if (stage + 1 == c->stage_count || c->order) /* its backwards follow its forwards at once */
        *window = 1;
}
