#include "planner/candidate/candidate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"

/* Reallocates an array to at least `count` items of `size` bytes; new items are zero. */
static int candidate_grow(void **array, uint32_t *capacity, uint32_t count, size_t size, struct err *err)
{
    if (count <= *capacity)
        return 0;
    void *grown = realloc(*array, count * size);
    if (!grown)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    memset((char *)grown + *capacity * size, 0, (count - *capacity) * size);
    *array = grown;
    *capacity = count;
    return 0;
}

int candidate_reserve(struct candidate *c, uint32_t stages, uint32_t members, struct err *err)
{
    void *stage = c->stages, *member = c->members;
    int result = candidate_grow(&stage, &c->stage_capacity, stages, sizeof(*c->stages), err);
    c->stages = stage;
    if (result == 0)
        result = candidate_grow(&member, &c->member_capacity, members, sizeof(*c->members), err);
    c->members = member;
    return result;
}

int candidate_own(struct candidate *c, uint32_t micro_batches, struct err *err)
{
    void *owner = c->owner;
    uint32_t count = c->stage_count * micro_batches;
    int result = candidate_grow(&owner, &c->owner_capacity, count, 1, err);
    c->owner = owner;
    c->owner_count = result == 0 ? count : 0;
    if (c->owner_count)
        memset(c->owner, 0, c->owner_count);
    return result;
}

int candidate_copy(struct candidate *to, const struct candidate *from, struct err *err)
{
    struct candidate kept = *to;
    void *owner = to->owner;
    if (candidate_reserve(&kept, from->stage_count, from->member_count, err) < 0 ||
        candidate_grow(&owner, &kept.owner_capacity, from->owner_count, 1, err) < 0) {
        *to = kept;
        return -1;
    }
    *to = *from;
    to->stages = kept.stages;
    to->stage_capacity = kept.stage_capacity;
    to->members = kept.members;
    to->member_capacity = kept.member_capacity;
    to->owner = owner;
    to->owner_capacity = kept.owner_capacity;
    if (from->stage_count)
        memcpy(to->stages, from->stages, from->stage_count * sizeof(*to->stages));
    if (from->member_count)
        memcpy(to->members, from->members, from->member_count * sizeof(*to->members));
    if (from->owner_count)
        memcpy(to->owner, from->owner, from->owner_count);
    return 0;
}

void candidate_fini(struct candidate *c)
{
    free(c->stages);
    free(c->members);
    free(c->owner);
    *c = (struct candidate){0};
}

bool candidate_uses(const struct candidate *c, uint32_t device)
{
    for (uint32_t m = 0; m < c->member_count; m++)
        if (c->members[m].device == device)
            return true;
    return false;
}

void candidate_members_reset(struct candidate *c, bool recompute)
{
    for (uint32_t m = 0; m < c->member_count; m++)
        c->members[m] = (struct member){.device = c->members[m].device,
                                        .rows = c->micro_batch_rows,
                                        .window = 1,
                                        .state_share = 1,
                                        .recompute = recompute};
}

static bool member_equal(const struct member *a, const struct member *b)
{
    return a->device == b->device && a->rows == b->rows && a->count == b->count && a->window == b->window &&
           a->delay == b->delay && a->next_count == b->next_count && a->recompute == b->recompute &&
           a->recompute_end == b->recompute_end && a->state_share == b->state_share &&
           a->expert_share == b->expert_share && memcmp(&a->tensor, &b->tensor, sizeof(a->tensor)) == 0;
}

static bool stage_equal(const struct candidate_stage *a, const struct candidate_stage *b)
{
    return a->block_begin == b->block_begin && a->block_end == b->block_end && a->kind == b->kind &&
           a->member_first == b->member_first && a->member_count == b->member_count;
}

bool candidate_has_order(const struct problem *problem, const struct candidate *candidate)
{
    uint32_t order = problem->workload->order, count = candidate_micro_batches(problem, candidate);
    bool turns = candidate->schedule == SCHEDULE_1F1B || candidate->schedule == SCHEDULE_GPIPE,
         all = count > 1;
    if (order == 0 || candidate->stage_count < 2)
        return true;
    for (uint32_t m = 0; m < candidate->member_count; m++)
        all = all && candidate->members[m].window >= count;
    if (order - 1 == SCHEDULE_1F1B || order - 1 == SCHEDULE_GPIPE)
        return turns && (count == 1 || all == (order - 1 == SCHEDULE_GPIPE));
    return order - 1 == (uint32_t)candidate->schedule;
}

bool candidate_runs_next(const struct candidate *c, uint32_t s, uint32_t k, uint32_t count)
{
    uint64_t share = candidate_next_count(c, (int32_t)s);
    return (k + 1) * share / count > k * share / count;
}

uint32_t candidate_groups(const struct candidate *c)
{
    for (uint32_t s = 0; s < c->stage_count && c->schedule == SCHEDULE_INTERLEAVED; s++)
        if (c->stages[s].member_first + c->stages[s].member_count == c->member_count)
            return s + 1;
    return c->stage_count;
}

uint32_t candidate_laps(const struct candidate *c)
{
    uint32_t groups = candidate_groups(c);
    return groups ? c->stage_count / groups : 1;
}

bool candidate_gathers(const struct candidate *c)
{
    return c->placement == PLACE_HYBRID && c->gathered_layers > 0;
}

uint32_t candidate_next_count(const struct candidate *c, int32_t s)
{
    return s < 0 || c->stages[s].member_count > 1 || c->schedule == SCHEDULE_INTERLEAVED
               ? 0
               : c->members[c->stages[s].member_first].next_count;
}

int32_t candidate_stage_end(const struct candidate *c, uint32_t s)
{
    return c->stages[s].block_end + (candidate_next_count(c, (int32_t)s) > 0);
}

bool candidate_equal(const struct candidate *a, const struct candidate *b)
{
    bool equal = a->placement == b->placement && a->schedule == b->schedule && a->eager == b->eager &&
                 a->micro_batch_rows == b->micro_batch_rows && a->gathered_layers == b->gathered_layers &&
                 a->whole == b->whole && a->together == b->together && a->stage_count == b->stage_count &&
                 a->member_count == b->member_count && a->owner_count == b->owner_count;
    for (uint32_t s = 0; equal && s < a->stage_count; s++)
        equal = stage_equal(&a->stages[s], &b->stages[s]);
    for (uint32_t m = 0; equal && m < a->member_count; m++)
        equal = member_equal(&a->members[m], &b->members[m]);
    return equal && (a->owner_count == 0 || memcmp(a->owner, b->owner, a->owner_count) == 0);
}

/* Mixes a value into the hash by SplitMix64's finaliser (Steele, Lea, Flood 2014). */
static void candidate_fold(uint64_t *hash, uint64_t value)
{
    uint64_t z = (*hash += value + 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    *hash = z ^ (z >> 31);
}

static void fold_double(uint64_t *hash, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    candidate_fold(hash, bits);
}

uint64_t candidate_hash(const struct candidate *c)
{
    uint64_t hash = c->placement;
    candidate_fold(&hash, (uint64_t)c->schedule << 1 | c->eager);
    candidate_fold(&hash, (uint64_t)c->micro_batch_rows << 32 | c->gathered_layers << 8 | c->together << 1 |
                              c->whole);
    for (uint32_t s = 0; s < c->stage_count; s++) {
        candidate_fold(&hash, (uint64_t)c->stages[s].block_end << 32 | c->stages[s].member_first);
        candidate_fold(&hash, (uint64_t)c->stages[s].member_count << 8 | c->stages[s].kind);
    }
    for (uint32_t m = 0; m < c->member_count; m++) {
        const struct member *x = &c->members[m];
        candidate_fold(&hash, (uint64_t)x->device << 32 | x->rows);
        candidate_fold(&hash, (uint64_t)x->count << 32 | x->window);
        candidate_fold(&hash, (uint64_t)x->next_count << 32 | x->delay << 1 | x->recompute);
        candidate_fold(&hash, (uint64_t)x->recompute_end);
        fold_double(&hash, x->state_share);
        fold_double(&hash, x->expert_share);
        candidate_fold(&hash, (uint64_t)x->tensor.kv_head_end << 32 | x->tensor.column_end);
    }
    for (uint32_t k = 0; k < c->owner_count; k++)
        candidate_fold(&hash, c->owner[k]);
    return hash;
}

uint32_t candidate_micro_batches(const struct problem *problem, const struct candidate *c)
{
    uint32_t count = 0;
    bool own = c->stage_count == 1 && c->member_count > 1 && c->stages[0].kind != STAGE_TENSOR &&
               c->stages[0].kind != STAGE_EXPERT;
    for (uint32_t m = 0; own && m < c->member_count; m++)
        count += c->members[m].count;
    return count ? count : micro_count(problem, c->micro_batch_rows);
}

uint64_t candidate_cells(const struct problem *problem, const struct candidate *c)
{
    uint64_t each = (uint64_t)c->member_count * candidate_micro_batches(problem, c),
             blocks = (uint32_t)problem->block_count;
    bool by_block = c->stages[0].kind == STAGE_TENSOR || c->stages[0].kind == STAGE_EXPERT;
    if (by_block) /* a layer has eight instructions, where a stage of replicas has four in all */
        return each * 2 * (blocks / c->stage_count + 1);
    if (c->gathered_layers) /* members run all micro-batches block by block, and gather and reduce each block
                               once */
        return (each + c->member_count) * blocks;
    return each;
}

int candidate_list_add(struct candidate_list *list, const struct candidate *c, struct err *err)
{
    uint32_t at = list->count;
    while (at > 0 && list->items[at - 1].estimate_s > c->estimate_s)
        at--;
    for (uint32_t i = at; i-- > 0 && list->items[i].estimate_s == c->estimate_s;)
        if (candidate_equal(&list->items[i], c))
            return 0;
    if (at >= CANDIDATES_MAX)
        return 0;
    struct candidate last = list->items[CANDIDATES_MAX - 1];
    if (list->count < CANDIDATES_MAX)
        last = list->items[list->count++];
    memmove(&list->items[at + 1], &list->items[at], (list->count - 1 - at) * sizeof(*list->items));
    list->items[at] = last;
    return candidate_copy(&list->items[at], c, err);
}

void candidate_list_fini(struct candidate_list *list)
{
    for (uint32_t i = 0; i < CANDIDATES_MAX; i++)
        candidate_fini(&list->items[i]);
    list->count = 0;
}

void shortage_note(struct shortage *s, uint32_t device, uint64_t needs, uint64_t has)
{
    uint64_t missing = needs > has ? needs - has : 0;
    if (missing == 0 || (s->missing_bytes && s->missing_bytes <= missing))
        return;
    *s = (struct shortage){missing, needs, has, device};
}
