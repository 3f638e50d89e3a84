/* A group where memory is all but full: what each member keeps of heads, columns and vocabulary by what it
 * can hold, however slow that is. */
#include <string.h>

#include "planner/cost/micro.h"
#include "planner/tensor/tensor.h"

#define DEALS_MAX 512u /* ways to deal heads that are looked at */

struct fit {
    const struct problem *p;
    struct place_choice *c;
    const struct place_stage *stage;
    uint32_t count, live, partials;
    uint32_t heads[TENSOR_GROUP_MAX], columns[TENSOR_GROUP_MAX], words[TENSOR_GROUP_MAX];
};

static bool holds(const struct fit *f, uint32_t m, uint32_t columns, uint32_t words)
{
    const struct place_member *x = &f->c->members[f->stage->member_first + m];
    struct plan_tensor part = {.kv_head_end = f->heads[m], .column_end = columns, .vocabulary_end = words};
    struct tensor_need need;
    tensor_stage_need(f->p, f->stage, &part, f->c->micro_batch_rows, x->recompute, f->live, f->partials,
                      &need);
    return need.need.total <= f->p->cluster->devices[x->device].memory_limit_bytes;
}

/* The most, up to `most`, of columns (words 1) or of vocabulary beside its columns that a member holds. */
static uint32_t holds_most(const struct fit *f, uint32_t m, bool words, uint32_t most)
{
    uint32_t low = 0, high = most + 1;
    while (low + 1 < high) {
        uint32_t middle = low + (high - low) / 2;
        if (words ? holds(f, m, f->columns[m], middle) : holds(f, m, middle, 1))
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* What is wanted of `all`, at least one and at most most[m] each; who has most room left gets what others
 * cannot take. */
static bool dealt_within(uint32_t *wanted, const uint32_t *most, uint32_t count, uint32_t all)
{
    uint64_t sum = 0, held = 0;
    for (uint32_t m = 0; m < count; m++) {
        held += most[m];
        wanted[m] = wanted[m] < 1 ? 1 : wanted[m];
        wanted[m] = wanted[m] < most[m] ? wanted[m] : most[m];
        sum += wanted[m];
        if (most[m] == 0)
            return false;
    }
    while (held >= all && sum != all) {
        uint32_t pick = count;
        for (uint32_t m = 0; m < count; m++) {
            uint32_t own = sum < all ? most[m] - wanted[m] : wanted[m] - 1;
            uint32_t best = pick == count ? 0 : sum < all ? most[pick] - wanted[pick] : wanted[pick] - 1;
            pick = own > best ? m : pick;
        }
        if (pick == count)
            return false;
        uint64_t off = sum < all ? all - sum : sum - all;
        uint64_t room = sum < all ? most[pick] - wanted[pick] : wanted[pick] - 1;
        off = off < room ? off : room;
        wanted[pick] += sum < all ? (uint32_t)off : -(uint32_t)off;
        sum += sum < all ? off : -off;
    }
    return sum == all;
}

/* Columns like heads, as what members keep alike is least then; vocabulary by the room that is left. */
static bool heads_fit(struct fit *f)
{
    const struct model_config *config = f->p->workload->config;
    uint32_t most[TENSOR_GROUP_MAX];
    uint64_t room = 0;
    for (uint32_t m = 0; m < f->count; m++) {
        f->columns[m] = (uint32_t)((uint64_t)config->ffn * f->heads[m] / config->kv_heads);
        most[m] = holds_most(f, m, false, config->ffn);
    }
    if (!dealt_within(f->columns, most, f->count, config->ffn))
        return false;
    for (uint32_t m = 0; m < f->count; m++) {
        most[m] = holds_most(f, m, true, config->vocab);
        room += most[m];
    }
    for (uint32_t m = 0; m < f->count && room > 0; m++)
        f->words[m] = (uint32_t)((uint64_t)config->vocab * most[m] / room);
    return dealt_within(f->words, most, f->count, config->vocab);
}

/* The next way to deal heads, each member one at least; false after the last. */
static bool heads_next(uint32_t *heads, uint32_t count)
{
    for (uint32_t m = 0; m + 1 < count; m++) {
        if (heads[m] > 1) {
            uint32_t left = heads[m] - 1; /* one goes on, the others start anew at the first */
            heads[m] = 1;
            heads[m + 1]++;
            heads[0] = left;
            return true;
        }
    }
    return false;
}

static void parts_fill(struct fit *f)
{
    uint32_t head = 0, column = 0, word = 0;
    for (uint32_t m = 0; m < f->count; m++) {
        f->c->members[f->stage->member_first + m].tensor =
            (struct plan_tensor){.kv_head_begin = head,
                                 .kv_head_end = head + f->heads[m],
                                 .column_begin = column,
                                 .column_end = column + f->columns[m],
                                 .vocabulary_begin = word,
                                 .vocabulary_end = word + f->words[m]};
        head += f->heads[m];
        column += f->columns[m];
        word += f->words[m];
    }
}

bool tensor_fit(const struct problem *p, struct place_choice *c, uint32_t s)
{
    const struct model_config *config = p->workload->config;
    const struct place_stage *stage = &c->stages[s];
    uint32_t micro_batches = micro_count(p, c->micro_batch_rows);
    uint64_t live = (uint64_t)c->members[stage->member_first].window * tensor_together(c, micro_batches);
    struct fit f = {.p = p,
                    .c = c,
                    .stage = stage,
                    .count = stage->member_count,
                    .live = live < micro_batches ? (uint32_t)live : micro_batches,
                    .partials = tensor_partials(c, s, micro_batches)};
    if (f.count < 2 || f.count > TENSOR_GROUP_MAX || f.count > config->kv_heads || f.count > config->ffn ||
        f.count > config->vocab)
        return false;
    for (uint32_t m = 0; m < f.count; m++)
        f.heads[m] = m ? 1 : config->kv_heads - f.count + 1;
    for (uint32_t deal = 0; deal < DEALS_MAX; deal++) {
        if (heads_fit(&f)) {
            parts_fill(&f);
            return true;
        }
        if (!heads_next(f.heads, f.count))
            return false;
    }
    return false;
}
