/* server: the first member, the holder, keeps the state; the others pull weights from it and push
 * gradients to it. Full fine-tuning moves them block by block, as shards are gathered. With LoRA workers
 * hold the frozen base, and all adapters are moved at once. The holder may take rows, too. */
#include <math.h>

#include "planner/kind/shards.h"

/* Returns how long a block takes from the holder to all workers and back. Sends overlap, limited by the
 * holder's network card; receives follow each other, because gradients are summed in a fixed order. */
static struct transfer_rates star(const struct shards *s)
{
    const struct cluster *cluster = s->p->cluster;
    const struct member *members = s->c->members;
    const struct planner_device *holder = &cluster->devices[members[0].device];
    struct transfer_rates moving = {.beside = true};
    uint32_t away = 0;
    for (uint32_t m = 1; m < s->c->member_count; m++) {
        struct cluster_link there = cluster_link(cluster, members[0].device, members[m].device),
                            back = cluster_link(cluster, members[m].device, members[0].device);
        moving.gather_s = fmax(moving.gather_s, 1 / there.bytes_per_s);
        moving.gather_hop_s = fmax(moving.gather_hop_s, there.latency_s);
        moving.reduce_s += 1 / back.bytes_per_s;
        moving.reduce_hop_s += back.latency_s;
        away += cluster->devices[members[m].device].node != holder->node;
    }
    double card = cluster->nodes[holder->node].nic_bytes_per_s;
    if (card > 0)
        moving.gather_s = fmax(moving.gather_s, away / card);
    return moving;
}

static int star_estimate(struct shards *s, const struct transfer_rates *moving)
{
    return shards_estimate(s, moving,
                           problem_step_seconds(s->p, s->c->members[0].device, 0, s->p->block_count));
}

static int server_estimate(struct workbench *bench, struct candidate *c)
{
    struct shards s;
    int result = shards_init(&s, bench, c);
    if (result == 0) {
        struct transfer_rates moving = star(&s);
        result = star_estimate(&s, &moving);
    }
    shards_fini(&s);
    return result;
}

static int server_settle(struct workbench *bench, struct candidate *c)
{
    struct shards s;
    int result = shards_init(&s, bench, c);
    result = result == 0 ? shards_prepare(&s) : result;
    if (result == 0) {
        struct transfer_rates moving = star(&s);
        for (uint32_t m = 0; m < c->member_count; m++)
            c->members[m].state_share = m == 0;
        result = shards_split(&s, &moving, NULL, 0, INFINITY);
        if (result == 0)
            result = shards_short(&s, 0);
        else if (result > 0)
            result = star_estimate(&s, &moving);
    }
    shards_fini(&s);
    return result;
}

const struct placement_kind kind_server = {.placement = PLACE_SERVER,
                                           .stage_kind = STAGE_SERVER,
                                           .stages_least = 1,
                                           .stages_most = 1,
                                           .members_least = 2,
                                           .members_most = SHARDS_MEMBERS_MAX,
                                           .devices_least = 2,
                                           .takes = "a holder and workers take",
                                           .settle = server_settle,
                                           .estimate = server_estimate,
                                           .emit = layered_emit,
                                           .from_plan = layered_from_plan};
