/* Tensor groups, one thing at a time. */
#include "planner/tensor/tensor_moves.h"

#include "planner/cost/micro.h"
#include "planner/search/plain_moves.h"
#include "planner/tensor/tensor.h"

#define MUCH 16u   /* of the columns or of the vocabulary */
#define LITTLE 96u /* parts of them; a rule of thumb, as fine as moves are worth looking at */

#define GIFT_HALF 2u  /* to oneself: half of the vocabulary */
#define GIFT_WORDS 3u /* much vocabulary */

static uint32_t units_of(const struct problem *p, const struct place_choice *c)
{
    uint32_t together = c->together ? c->together : 1;
    return (micro_count(p, c->micro_batch_rows) - 1) / together + 1;
}

static uint32_t part_of(uint32_t all, uint32_t parts)
{
    return all / parts ? all / parts : 1;
}

/* Moves what lies between two members: everyone in between shifts. Each keeps one at least. */
static bool shift(struct place_choice *c, uint32_t from, uint32_t to, uint32_t amount, uint32_t gift)
{
    uint32_t low = from < to ? from : to, high = from < to ? to : from;
    for (uint32_t m = low; m <= high; m++) {
        struct plan_tensor *t = &c->members[m].tensor;
        uint32_t *begin = gift == 0 ? &t->kv_head_begin : gift <= 2 ? &t->column_begin : &t->vocabulary_begin;
        uint32_t *end = gift == 0 ? &t->kv_head_end : gift <= 2 ? &t->column_end : &t->vocabulary_end;
        if (m == from && *end - *begin <= amount)
            return false;
        *begin += m == low ? 0 : from < to ? -amount : amount;
        *end += m == high ? 0 : from < to ? -amount : amount;
    }
    return true;
}

/* Half of the vocabulary becomes a member's; what the others share of the rest stays as it was among them. */
static bool words_set(struct place_choice *c, const struct place_stage *stage, uint32_t member,
                      uint32_t vocab)
{
    uint32_t n = stage->member_count, first = stage->member_first, at = 0, before = 0;
    const struct plan_tensor *own = &c->members[member].tensor;
    uint64_t held = own->vocabulary_end - own->vocabulary_begin, wanted = vocab / 2;
    if (n < 2 || wanted == held || wanted < 1 || vocab - wanted < n - 1 || held >= vocab)
        return false;
    for (uint32_t m = first; m < first + n; m++) {
        struct plan_tensor *t = &c->members[m].tensor;
        uint64_t words = t->vocabulary_end - before, later = first + n - 1 - m;
        before = t->vocabulary_end;
        words = m == member ? wanted : words * (vocab - wanted) / (vocab - held);
        words = words < 1 ? 1 : words;
        words = words > vocab - at - later ? vocab - at - later : words;
        t->vocabulary_begin = at;
        t->vocabulary_end = at = later ? at + (uint32_t)words : vocab;
    }
    return true;
}

int tensor_give(const struct problem *p, struct place_choice *c, uint32_t from, uint32_t to, uint32_t gift)
{
    const struct model_config *config = p->workload->config;
    const uint32_t amounts[TENSOR_GIFTS] = {1, part_of(config->ffn, MUCH), part_of(config->ffn, LITTLE),
                                            part_of(config->vocab, MUCH), part_of(config->vocab, LITTLE)};
    uint32_t s = 0;
    while (s + 1 < c->stage_count && c->stages[s + 1].member_first <= from)
        s++;
    const struct place_stage *stage = &c->stages[s];
    if (from == to && gift == GIFT_HALF)
        return words_set(c, stage, from, config->vocab) && tensor_level(p, c, s, c->together > 1, false);
    if (from == to) /* of a stage's first member: its columns, for one micro-batch at a time or for more */
        return from == stage->member_first && gift < 2 && stage->member_count > 1 &&
               tensor_level(p, c, s, gift == 1, false);
    if (to < stage->member_first || to >= stage->member_first + stage->member_count)
        return 0;
    if (!shift(c, from, to, amounts[gift], gift))
        return 0;
    if (gift == 0 || gift == GIFT_WORDS) /* columns make up for it, where memory lets them */
        tensor_level(p, c, s, c->together > 1, false);
    else if (gift > GIFT_WORDS)
        tensor_refit(p, c, false, true);
    return 1;
}

static void windows_bound(const struct problem *p, struct place_choice *c)
{
    uint32_t units = units_of(p, c);
    for (uint32_t m = 0; m < c->member_count; m++) {
        if (c->members[m].window > units)
            c->members[m].window = units;
    }
}

/* So many in turns from now on; windows, which count turns, hold about as many micro-batches more than the
 * last stage's as before. */
static void together_set(const struct problem *p, struct place_choice *c, uint32_t together)
{
    uint32_t old = c->together ? c->together : 1;
    for (uint32_t m = 0; m < c->member_count; m++) {
        uint32_t more = c->members[m].window ? c->members[m].window - 1 : 0;
        c->members[m].window = 1 + (more * old + together - 1) / together;
    }
    c->together = together;
    windows_bound(p, c);
}

int tensor_turns(const struct problem *p, struct place_choice *c, bool up)
{
    uint32_t together = c->together ? c->together : 1;
    if (up ? together >= micro_count(p, c->micro_batch_rows) : together < 2)
        return 0;
    together_set(p, c, up ? together + 1 : together - 1);
    tensor_refit(p, c, false, true);
    return 1;
}

int tensor_turns_to(const struct problem *p, struct place_choice *c, uint32_t together)
{
    if (together == 0 || together > micro_count(p, c->micro_batch_rows) ||
        together == (c->together ? c->together : 1))
        return 0;
    together_set(p, c, together);
    tensor_refit(p, c, false, true);
    return 1;
}

/* Bytes that a member of a stage lacks; below 0: has left. */
static int64_t member_lacks(const struct problem *p, const struct place_choice *c, uint32_t s, uint32_t m,
                            uint32_t count)
{
    const struct place_stage *stage = &c->stages[s];
    const struct place_member *x = &c->members[m];
    uint64_t live = (uint64_t)c->members[stage->member_first].window * (c->together ? c->together : 1);
    struct tensor_need need;
    tensor_stage_need(p, stage, &x->tensor, c->micro_batch_rows, x->recompute,
                      live < count ? (uint32_t)live : count, tensor_partials(c, s, count), &need);
    return (int64_t)need.need.total - (int64_t)p->cluster->devices[x->device].memory_limit_bytes;
}

static bool stage_fits(const struct problem *p, const struct place_choice *c, uint32_t s, uint32_t count)
{
    const struct place_stage *stage = &c->stages[s];
    bool fits = true;
    for (uint32_t m = stage->member_first; m < stage->member_first + stage->member_count && fits; m++)
        fits = member_lacks(p, c, s, m, count) <= 0;
    return fits;
}

/* Whoever of a stage lacks most, or has least left, and needs less so, recomputes from now on; false when
 * there is nobody. With few micro-batches under way recomputing may take more than it saves. */
static bool stage_again(const struct problem *p, struct place_choice *c, uint32_t s, uint32_t count)
{
    const struct place_stage *stage = &c->stages[s];
    uint32_t pick = UINT32_MAX;
    int64_t most = 0;
    for (uint32_t m = stage->member_first; m < stage->member_first + stage->member_count; m++) {
        int64_t lacks = member_lacks(p, c, s, m, count);
        if (c->members[m].recompute || (pick != UINT32_MAX && lacks <= most))
            continue;
        c->members[m].recompute = true;
        bool less = member_lacks(p, c, s, m, count) < lacks;
        c->members[m].recompute = false;
        most = less ? lacks : most;
        pick = less ? m : pick;
    }
    if (pick == UINT32_MAX || !micro_recompute_allowed(p, true))
        return false;
    c->members[pick].recompute = true;
    return true;
}

/* By speed; otherwise if only that fits. */
static bool stage_deal(const struct problem *p, struct place_choice *c, uint32_t s, uint32_t count)
{
    const struct place_stage *stage = &c->stages[s];
    uint32_t devices[TENSOR_GROUP_MAX];
    struct plan_tensor parts[TENSOR_GROUP_MAX];
    bool fits = false;
    if (stage->member_count > TENSOR_GROUP_MAX)
        return false;
    for (uint32_t m = 0; m < stage->member_count; m++)
        devices[m] = c->members[stage->member_first + m].device;
    for (int turn = 0; turn <= TENSOR_WAYS && !fits; turn++) {
        enum tensor_by by = turn < TENSOR_WAYS ? (enum tensor_by)turn : TENSOR_BY_SPEED;
        if (!tensor_deal(p, devices, stage->member_count, c->micro_batch_rows, by, parts))
            return false;
        for (uint32_t m = 0; m < stage->member_count; m++) {
            struct place_member *x = &c->members[stage->member_first + m];
            x->tensor = parts[m];
            x->window = c->members[stage->member_first].window;
            x->micro_rows = c->micro_batch_rows;
            x->micro_count = count;
        }
        if (turn < TENSOR_WAYS)
            tensor_level(p, c, s, c->together > 1, false);
        fits = stage_fits(p, c, s, count);
    }
    return true;
}

void tensor_rings(const struct problem *p, struct place_choice *c)
{
    double bytes = p->bytes_per_token * p->mean_step.tokens / micro_count(p, c->micro_batch_rows);
    for (uint32_t s = 0; s < c->stage_count; s++) {
        struct place_member *members = &c->members[c->stages[s].member_first];
        uint32_t devices[TENSOR_RING], n = c->stages[s].member_count;
        for (uint32_t i = 0; i < n && n <= TENSOR_RING; i++)
            devices[i] = members[i].device;
        if (n <= TENSOR_RING)
            tensor_ring_best(p, devices, n, bytes);
        for (uint32_t i = 0; i < n && n <= TENSOR_RING; i++) {
            uint32_t at = i;
            while (members[at].device != devices[i])
                at++;
            struct place_member held = members[i];
            members[i] = members[at];
            members[at] = held;
        }
    }
}

/* What the member of a stage lacks that lacks most; below 0: the least that one has left. */
static int64_t stage_lacks(const struct problem *p, const struct place_choice *c, uint32_t s, uint32_t count)
{
    const struct place_stage *stage = &c->stages[s];
    int64_t most = INT64_MIN;
    for (uint32_t m = stage->member_first; m < stage->member_first + stage->member_count; m++) {
        int64_t lacks = member_lacks(p, c, s, m, count);
        most = lacks > most ? lacks : most;
    }
    return most;
}

/* Where a stage does not fit as it is cut, its blocks go, one by one, to the stage with most room. */
static void cuts_fit(const struct problem *p, struct place_choice *c, uint32_t count)
{
    for (int32_t turn = 0; turn < p->block_count && c->stage_count > 1; turn++) {
        uint32_t from = 0, to = 0;
        int64_t most = INT64_MIN, least = INT64_MAX;
        for (uint32_t s = 0; s < c->stage_count; s++) {
            int64_t lacks = stage_lacks(p, c, s, count);
            from = lacks > most ? s : from;
            to = lacks < least ? s : to;
            most = lacks > most ? lacks : most;
            least = lacks < least ? lacks : least;
        }
        const struct place_stage *full = &c->stages[from];
        if (most <= 0 || least >= 0 || full->block_end - full->block_begin < 2)
            return;
        if (!plain_cut(c, from < to ? from : to, (from < to ? to : from) - 1, from < to ? -1 : 1) ||
            !stage_deal(p, c, from, count) || !stage_deal(p, c, to, count))
            return;
    }
}

int tensor_settle(const struct problem *p, struct place_choice *c)
{
    uint32_t count = micro_count(p, c->micro_batch_rows);
    if (c->member_count <= c->stage_count ||
        (c->stage_count > 1 && p->workload->method == METHOD_FULL && p->blocks.tied))
        return 0;
    c->together = c->together > count ? count : c->together;
    windows_bound(p, c);
    for (uint32_t s = 0; s < c->stage_count; s++) {
        if (!stage_deal(p, c, s, count))
            return 0;
    }
    cuts_fit(p, c, count);
    return 1;
}

/* Columns by the room there is, with more and more members that recompute until there is enough; then with
 * none of those that need not after all, the first one first. */
static void stage_room(const struct problem *p, struct place_choice *c, uint32_t s, uint32_t count)
{
    const struct place_stage *stage = &c->stages[s];
    bool was[TENSOR_GROUP_MAX], fits = false, whole = c->together > 1;
    if (stage->member_count > TENSOR_GROUP_MAX)
        return;
    for (uint32_t i = 0; i < stage->member_count; i++)
        was[i] = c->members[stage->member_first + i].recompute;
    while (!fits && stage_again(p, c, s, count))
        fits = tensor_level(p, c, s, whole, false) && stage_fits(p, c, s, count);
    for (uint32_t i = 0; i < stage->member_count && fits; i++) {
        struct place_member *x = &c->members[stage->member_first + i];
        if (was[i] || !x->recompute || !micro_recompute_allowed(p, false))
            continue;
        x->recompute = false;
        if (tensor_level(p, c, s, whole, false) && stage_fits(p, c, s, count))
            continue;
        x->recompute = true;
        tensor_level(p, c, s, whole, false);
    }
}

/* What was changed may have taken the room for the columns: then they are dealt anew by what is left; where
 * that is not enough and `again` says so, members recompute. */
void tensor_refit(const struct problem *p, struct place_choice *c, bool level, bool again)
{
    uint32_t count = micro_count(p, c->micro_batch_rows);
    for (uint32_t s = 0; s < c->stage_count; s++) {
        if (level)
            tensor_level(p, c, s, c->together > 1, false);
        if (!stage_fits(p, c, s, count) && !tensor_level(p, c, s, c->together > 1, false) && again)
            stage_room(p, c, s, count);
    }
}

/* Columns level again; where that does not fit, with the widest window that does, no smaller than the next
 * stage's. */
static void stage_refit(const struct problem *p, struct place_choice *c, uint32_t s, uint32_t count)
{
    const struct place_stage *stage = &c->stages[s];
    uint32_t least = s + 1 < c->stage_count ? c->members[c->stages[s + 1].member_first].window : 1;
    for (uint32_t window = c->members[stage->member_first].window; window >= least && window > 0; window--) {
        for (uint32_t m = 0; m < stage->member_count; m++)
            c->members[stage->member_first + m].window = window;
        tensor_level(p, c, s, c->together > 1, false);
        if (stage_fits(p, c, s, count))
            return;
    }
}

/* Of all stages; says whether all fit. */
static bool stages_refit(const struct problem *p, struct place_choice *c)
{
    uint32_t count = micro_count(p, c->micro_batch_rows);
    bool fits = true;
    for (uint32_t s = c->stage_count; s-- > 0;) {
        stage_refit(p, c, s, count);
        fits = fits && stage_fits(p, c, s, count);
    }
    return fits;
}

int tensor_relevel(const struct problem *p, struct place_choice *c)
{
    while (!stages_refit(p, c) && c->together > 1)
        together_set(p, c, c->together - 1);
    tensor_refit(p, c, false, true);
    return 1;
}

int tensor_micro(const struct problem *p, struct place_choice *c, uint32_t rows)
{
    uint32_t old = c->micro_batch_rows, count;
    if (rows == 0 || rows == old || p->workload->micro_batch_rows)
        return 0;
    count = micro_count(p, rows);
    c->micro_batch_rows = rows;
    c->together = ((c->together ? c->together : 1) * old + rows - 1) / rows;
    c->together = c->together > count ? count : c->together;
    for (uint32_t m = 0; m < c->member_count; m++) {
        c->members[m].micro_rows = rows;
        c->members[m].micro_count = count;
    }
    windows_bound(p, c);
    stages_refit(p, c);
    return 1;
}
