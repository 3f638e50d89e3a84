/* Who takes which micro-batch, outright. */
#include "planner/deal_moves.h"

#include <stdlib.h>

#include "planner/deal.h"
#include "planner/micro.h"

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

void deal_rename(struct place_choice *c, uint32_t stage, uint32_t a, uint32_t b)
{
    uint32_t count = c->dealt_count / c->stage_count, first = c->stages[stage].member_first;
    for (uint32_t k = 0; k < count; k++) {
        uint8_t *own = &c->dealt[(size_t)stage * count + k];
        if (*own == a - first)
            *own = (uint8_t)(b - first);
        else if (*own == b - first)
            *own = (uint8_t)(a - first);
    }
}

void deal_drop(struct place_choice *c)
{
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
    return 1;
}
