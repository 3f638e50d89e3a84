/* The FFN's columns of a group by what they make of its time: whole heads and the rows of the vocabulary
 * leave members unlike, and columns are fine enough to make up for it. */
#include <math.h>

#include "planner/cost/micro.h"
#include "planner/tensor/tensor.h"

#define LEVEL_TURNS 50 /* of bisection */

/* A member's time with c columns is base + c · each; at most `most`. */
struct line {
    double base, each;
    uint32_t most, columns;
};

struct level {
    const struct problem *p;
    const struct place_choice *c;
    const struct place_stage *stage;
    struct cost_load load;
    int32_t layer; /* one of the stage's */
    uint32_t layers;
    struct line lines[TENSOR_GROUP_MAX];
};

static double half_seconds(const struct level *l, const struct place_member *x, uint32_t columns,
                           int32_t block, enum tensor_half half)
{
    struct plan_tensor part = x->tensor;
    double seconds = 0;
    part.column_begin = 0;
    part.column_end = columns;
    for (int way = 0; way < (x->recompute ? 3 : 2); way++)
        seconds += tensor_seconds(l->p, x->device, &part, block, half, (enum cost_way)way, &l->load);
    return seconds;
}

/* `whole`: all that the member does for a micro-batch; else a layer's second half. */
static void line_fill(struct level *l, uint32_t m, bool whole)
{
    const struct place_member *x = &l->c->members[l->stage->member_first + m];
    uint32_t ffn = l->p->workload->config->ffn, many = whole ? l->layers : 1;
    double one = half_seconds(l, x, 1, l->layer, TENSOR_SECOND);
    double each = (half_seconds(l, x, ffn, l->layer, TENSOR_SECOND) - one) / (ffn - 1);
    double base = one - each;
    if (whole)
        base += half_seconds(l, x, 1, l->layer, TENSOR_FIRST);
    base *= many;
    if (whole && l->stage->block_begin == 0)
        base += half_seconds(l, x, 1, 0, TENSOR_WHOLE);
    if (whole && l->stage->block_end == l->p->block_count)
        base += half_seconds(l, x, 1, l->p->block_count - 1, TENSOR_WHOLE);
    l->lines[m] = (struct line){.base = base, .each = each * many, .most = ffn - l->stage->member_count + 1};
}

static uint32_t within(const struct line *x, double level)
{
    double room = x->each > 0 ? (level - x->base) / x->each : level < x->base ? 1 : x->most;
    return room < 1 ? 1 : room > x->most ? x->most : (uint32_t)room;
}

/* The least level at which all columns are somewhere; each member keeps one at least. */
static bool columns_level(struct line *lines, uint32_t count, uint32_t ffn)
{
    double low = 0, high = 0;
    uint64_t all = 0;
    for (uint32_t i = 0; i < count; i++) {
        all += lines[i].most;
        high = fmax(high, lines[i].base + lines[i].most * lines[i].each);
    }
    if (all < ffn)
        return false;
    for (int turn = 0; turn < LEVEL_TURNS; turn++) {
        double level = (low + high) / 2;
        all = 0;
        for (uint32_t i = 0; i < count; i++)
            all += within(&lines[i], level);
        if (all >= ffn)
            high = level;
        else
            low = level;
    }
    all = 0;
    for (uint32_t i = 0; i < count; i++)
        all += lines[i].columns = within(&lines[i], high * (1 + 1e-12));
    while (all != ffn) { /* a few are over, where several members would have had one more */
        uint32_t pick = count;
        double worst = 0;
        for (uint32_t i = 0; i < count; i++) {
            double end = lines[i].base + lines[i].columns * lines[i].each;
            bool can = all > ffn ? lines[i].columns > 1 : lines[i].columns < lines[i].most;
            if (can && (pick == count || (all > ffn ? end > worst : end < worst))) {
                pick = i;
                worst = end;
            }
        }
        if (pick == count)
            return false;
        uint64_t off = all > ffn ? all - ffn : ffn - all, share = off / count + 1;
        uint64_t room =
            all > ffn ? lines[pick].columns - 1 : (uint64_t)lines[pick].most - lines[pick].columns;
        share = share < room ? share : room;
        lines[pick].columns += all > ffn ? -(uint32_t)share : (uint32_t)share;
        all += all > ffn ? -share : share;
    }
    return true;
}

static bool member_fits(const struct level *l, const struct place_member *x, uint32_t columns, uint32_t live,
                        uint32_t partials)
{
    struct plan_tensor part = x->tensor;
    struct tensor_need need;
    part.column_begin = 0;
    part.column_end = columns;
    tensor_stage_need(l->p, l->stage, &part, l->c->micro_batch_rows, x->recompute, live, partials, &need);
    return need.need.total <= l->p->cluster->devices[x->device].memory_limit_bytes;
}

/* Lowers what members may hold to what they can; 0: all hold what they have, 1: some had more, −1: one has no
 * room for a single column. */
static int lines_limit(struct level *l, uint32_t live, uint32_t partials)
{
    int result = 0;
    for (uint32_t i = 0; i < l->stage->member_count; i++) {
        const struct place_member *x = &l->c->members[l->stage->member_first + i];
        uint32_t low = 0, high = l->lines[i].columns;
        if (member_fits(l, x, high, live, partials))
            continue;
        while (low + 1 < high) {
            uint32_t middle = low + (high - low) / 2;
            if (member_fits(l, x, middle, live, partials))
                low = middle;
            else
                high = middle;
        }
        if (low == 0)
            return -1;
        l->lines[i].most = low;
        result = 1;
    }
    return result;
}

bool tensor_level(const struct problem *p, struct place_choice *c, uint32_t s, bool whole, bool anyhow)
{
    const struct place_stage *stage = &c->stages[s];
    uint32_t count = micro_count(p, c->micro_batch_rows), n = stage->member_count, at = 0;
    uint32_t ffn = p->workload->config->ffn;
    int32_t begin = stage->block_begin > 1 ? stage->block_begin : 1;
    int32_t end = stage->block_end < p->block_count ? stage->block_end : p->block_count - 1;
    struct level l = {.p = p, .c = c, .stage = stage, .layer = begin, .load = micro_load_mean(p, count)};
    if (n < 2 || n > TENSOR_GROUP_MAX || n > ffn || end <= begin)
        return true;
    uint64_t live = (uint64_t)c->members[stage->member_first].window * tensor_together(c, count);
    live = live < count ? live : count;
    l.layers = (uint32_t)(end - begin);
    for (uint32_t i = 0; i < n; i++)
        line_fill(&l, i, whole);
    int more = 1;
    for (uint32_t turn = 0; turn <= n && more > 0; turn++) {
        if (!columns_level(l.lines, n, ffn))
            return false;
        more = anyhow ? 0 : lines_limit(&l, (uint32_t)live, tensor_partials(c, s, count));
    }
    for (uint32_t i = 0; i < n && more == 0; i++) {
        struct plan_tensor *part = &c->members[stage->member_first + i].tensor;
        part->column_begin = at;
        part->column_end = at += l.lines[i].columns;
    }
    return more == 0;
}
