/* Makes and loads a rank's shard of parameters and optimiser state. */
#include "worker/program/shares.h"

#include <stdlib.h>

/* --- making --- */

/* Blocks of other ranks, which lie between this rank's ranges of blocks, have size 0 here. */
static int cuts_make(struct state_shares *shares, const struct stage_options *options,
                     const struct plan *plan, uint32_t rank, struct err *err)
{
    const double whole = 1, *parts = &whole;
    if (shares->role == SHARES_MEMBER)
        parts = plan->groups[shares->group].shares;
    for (uint32_t b = shares->block_begin; b < shares->block_end; b++)
        if (plan_rank_holds(&plan->ranks[rank], (int32_t)b, (int32_t)b + 1) &&
            stage_area_cuts(options, b, shares->area, shares->count, parts,
                            &shares->cuts[(size_t)(b - shares->block_begin) * (shares->count + 1)], err) < 0)
            return -1;
    return 0;
}

/* Makes the shard of trained parameters with gradients and moments: a range of each block. */
static int trained_make(struct state_shares *shares, struct device *device,
                        const struct weight_source *source, const struct stage_options *options,
                        struct err *err)
{
    uint32_t blocks = shares->block_end - shares->block_begin;
    struct shard_range *ranges = calloc(blocks, sizeof(*ranges));
    if (!ranges)
        return err_set(err, ERR_NOMEM, "no memory for %u blocks", blocks);
    for (uint32_t i = 0; i < blocks; i++) {
        const uint64_t *cuts = shares_cuts(shares, shares->block_begin + i) + shares->position;
        ranges[i] = (struct shard_range){shares->block_begin + i, cuts[0], cuts[1]};
    }
    int result = shard_create(device, source, options, blocks, ranges, &shares->shard, err);
    free(ranges);
    return result;
}

/* Makes one buffer with this rank's shards of the blocks' frozen weights and loads them. */
static int frozen_make(struct state_shares *shares, struct device *device, const struct weight_source *source,
                       const struct stage_options *options, struct err *err)
{
    uint64_t bytes = 0;
    for (uint32_t b = shares->block_begin; b < shares->block_end; b++) {
        const uint64_t *cuts = shares_cuts(shares, b) + shares->position;
        shares->frozen_at[b - shares->block_begin] = bytes;
        bytes += (cuts[1] - cuts[0] + 63) / 64 * 64;
    }
    if (bytes == 0)
        return 0;
    if (buffer_create(device, bytes, MEM_WEIGHTS, "a share of the frozen weights", &shares->frozen, err) <
            0 ||
        buffer_zero(shares->frozen, 0, bytes, err) < 0)
        return -1;
    for (uint32_t b = shares->block_begin; b < shares->block_end; b++) {
        const uint64_t *cuts = shares_cuts(shares, b) + shares->position;
        struct area_range range = {b, AREA_FROZEN, cuts[0], cuts[1], shares_values(shares, b)};
        if (cuts[1] > cuts[0] && stage_area_load(device, source, options, &range, err) < 0)
            return -1;
    }
    return 0;
}

static int program_shares_fill(struct state_shares *shares, struct device *device,
                               const struct weight_source *source, const struct stage_options *options,
                               const struct plan *plan, uint32_t rank, struct err *err)
{
    if (cuts_make(shares, options, plan, rank, err) < 0)
        return -1;
    if (shares->role == SHARES_WORKER)
        return 0;
    return (shares->area == AREA_TRAINED ? trained_make : frozen_make)(shares, device, source, options, err);
}

int shares_create(struct device *device, const struct weight_source *source,
                  const struct stage_options *options, const struct plan *plan, uint32_t rank,
                  struct state_shares **out, struct err *err)
{
    const struct plan_rank *me = &plan->ranks[rank];
    int32_t group;
    enum plan_sharing role = plan_rank_sharing(me, &group);
    *out = NULL;
    if (role == SHARES_NONE)
        return 0;
    int position = role == SHARES_MEMBER ? plan_group_position(&plan->groups[group], rank) : 0;
    uint32_t count = role == SHARES_MEMBER ? plan->groups[group].rank_count : 1,
             blocks = (uint32_t)(me->block_end - me->block_begin);
    if (position < 0)
        return err_set(err, ERR_INVALID, "rank %u is no member of group %d", rank, (int)group);
    struct state_shares *shares = calloc(1, sizeof(*shares));
    if (!shares)
        return err_set(err, ERR_NOMEM, "no memory for a share of the state");
    struct stage_options own = *options;
    own.block_begin = shares->block_begin = (uint32_t)me->block_begin;
    own.block_end = shares->block_end = (uint32_t)me->block_end;
    own.micro_batches_in_flight = own.micro_batches_in_flight ? own.micro_batches_in_flight : 1;
    own.moments_on_host = me->moments_host_bytes > 0;
    shares->role = role;
    shares->group = group;
    shares->count = count;
    shares->position = (uint32_t)position;
    shares->computes = plan_rank_computes(me);
    shares->area = options->full || role != SHARES_MEMBER ? AREA_TRAINED : AREA_FROZEN;
    shares->cuts = calloc((size_t)blocks * (count + 1), sizeof(*shares->cuts));
    shares->frozen_at = calloc(blocks, sizeof(*shares->frozen_at));
    int result = shares->cuts && shares->frozen_at
                     ? program_shares_fill(shares, device, source, &own, plan, rank, err)
                     : err_set(err, ERR_NOMEM, "no memory for a share of %u blocks", blocks);
    if (result < 0) {
        shares_destroy(shares);
        return err_wrap(err, "rank %u's share of the state", rank);
    }
    *out = shares;
    return 0;
}

void shares_destroy(struct state_shares *shares)
{
    if (!shares)
        return;
    shard_destroy(shares->shard);
    buffer_destroy(shares->frozen);
    free(shares->cuts);
    free(shares->frozen_at);
    free(shares);
}

struct area_view shares_values(const struct state_shares *shares, uint32_t block)
{
    uint32_t i = block - shares->block_begin;
    if (shares->shard)
        return shard_values(shares->shard, i);
    return (struct area_view){shares->frozen, shares->frozen_at[i]};
}

struct area_view shares_gradients(const struct state_shares *shares, uint32_t block)
{
    return shares->shard ? shard_gradients(shares->shard, block - shares->block_begin)
                         : (struct area_view){0};
}
