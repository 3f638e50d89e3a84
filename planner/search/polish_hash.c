/* Choices as numbers, to know again what was looked at. */
#include <string.h>

#include "planner/hybrid/deal_moves.h"
#include "planner/search/polish.h"

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
    hash *= 0xff51afd7ed558ccdu;
    return hash ^ (hash >> 32);
}

/* Two numbers below 2³² as one. */
static uint64_t both(uint64_t a, uint64_t b)
{
    return a << 32 | b;
}

static uint64_t bytes_mix(uint64_t hash, const uint8_t *bytes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i += 8) {
        uint64_t eight = 0;
        memcpy(&eight, &bytes[i], count - i < 8 ? count - i : 8);
        hash = mix(hash, eight);
    }
    return hash;
}

uint64_t polish_hash(const struct place_choice *c)
{
    uint64_t hash = mix(both(c->placement, c->schedule), both(c->micro_batch_rows, c->gathered_layers));
    hash = mix(hash, both(c->in_turn, c->together));
    for (uint32_t s = 0; s < c->stage_count; s++)
        hash = mix(hash, both((uint32_t)c->stages[s].block_end, c->stages[s].member_count));
    for (uint32_t m = 0, s = 0; m < c->member_count; m++) {
        const struct place_member *x = &c->members[m];
        uint32_t count = x->micro_count, window = x->window;
        uint64_t share;
        while (s + 1 < c->stage_count && c->stages[s + 1].member_first <= m)
            s++;
        if (c->placement == PLACE_HYBRID)
            deal_alike(c, m, s, &count, &window);
        double shares = x->state_share + 3 * x->expert_share; /* one of them is 1 or 0 */
        memcpy(&share, &shares, sizeof(share));
        hash = mix(mix(hash, both(x->device, x->micro_rows)), both(count, x->delay));
        hash = mix(mix(hash, 2 * (uint64_t)window + x->recompute), share);
        if (c->placement == PLACE_TENSOR)
            hash =
                mix(mix(hash, both(x->tensor.kv_head_end, x->tensor.column_end)), x->tensor.vocabulary_end);
    }
    hash = bytes_mix(hash, c->dealt, c->dealt_count);
    hash = bytes_mix(hash, c->order, c->order ? 2 * c->dealt_count : 0);
    return hash ? hash : 1;
}

uint64_t polish_hash_as(const struct place_choice *c, uint32_t as)
{
    return mix(polish_hash(c), (uint64_t)as + 1);
}
