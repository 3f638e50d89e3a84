/* data: every device works on all blocks and takes a part of the rows in proportion to its speed.
 *
 * Replicas: everything is on every device, and gradients of trained parameters are all-reduced once per
 * step (for LoRA megabytes per step instead of per micro-batch). Shards (full fine-tuning; LoRA's base):
 * weights are gathered block by block over a ring, and a device may keep state and take no rows.
 *
 * Shards and rows depend on each other. The ring's time is the largest (1 − share)/rate of its links, so
 * for a given time each member must have room for the share that its link needs. A few times are tried;
 * for each the rows are split exactly, and the shares are then chosen from the room that is left.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/ring.h"
#include "planner/emit/pipeline.h"
#include "planner/emit/share.h"
#include "planner/kind/shards.h"

#define LEVELS 4u /* ring times per byte that are tried, between the shortest and the longest possible */
#define RING_SWAPPED 8u /* most members for which swapping pairs in the ring's order is tried */

/* --- the order of members in the ring --- */

static struct ring_figures data_ring_of(const struct candidate *c, const struct problem *p)
{
    uint32_t ring[SHARDS_MEMBERS_MAX];
    for (uint32_t m = 0; m < c->member_count; m++)
        ring[m] = c->members[m].device;
    return ring_figures(p->cluster, ring, NULL, NULL, c->member_count);
}

static void members_swap(struct member *a, struct member *b)
{
    struct member held = *a;
    *a = *b;
    *b = held;
}

/* True if device a comes before device b in the ring. The order is by machine, and in a machine by memory: a
 * machine's first member receives over the slow link from another machine, so the largest device is first,
 * which keeps the largest share of the state and receives the least. */
static bool comes_before(const struct planner_device *a, const struct planner_device *b)
{
    return a->node != b->node ? a->node < b->node : a->memory_limit_bytes > b->memory_limit_bytes;
}

/* Orders members by machine, so that the ring enters each machine once. With at most RING_SWAPPED members,
 * pairs are then swapped while that makes the ring's slowest link faster. */
static void data_ring_order(const struct problem *p, struct candidate *c)
{
    const struct planner_device *devices = p->cluster->devices;
    struct member *x = c->members;
    for (uint32_t i = 1; i < c->member_count; i++)
        for (uint32_t at = i; at > 0 && comes_before(&devices[x[at].device], &devices[x[at - 1].device]);
             at--)
            members_swap(&x[at - 1], &x[at]);
    double best = data_ring_of(c, p).bytes_per_s;
    bool better = c->member_count > 3 && c->member_count <= RING_SWAPPED;
    while (better) {
        better = false;
        for (uint32_t i = 1; i < c->member_count; i++) {
            for (uint32_t k = i + 1; k < c->member_count; k++) {
                members_swap(&x[i], &x[k]);
                double rate = data_ring_of(c, p).bytes_per_s;
                if (rate > best * (1 + PROBLEM_SAME)) {
                    best = rate;
                    better = true;
                } else {
                    members_swap(&x[i], &x[k]);
                }
            }
        }
    }
}

/* --- estimating a step --- */

static int whole_estimate(struct shards *s)
{
    struct ring_figures ring = data_ring_of(s->c, s->p);
    double update = 0;
    for (uint32_t m = 0; m < s->c->member_count; m++)
        update = fmax(update, problem_step_seconds(s->p, s->c->members[m].device, 0, s->p->block_count));
    double adapters = (double)memory_gradient_bytes(s->p, 0, s->p->block_count);
    return shards_estimate(s, &(struct transfer_rates){0},
                           update + 2 * ring_pass_seconds(&ring, s->c->member_count, adapters));
}

struct shard_ring {
    double in[SHARDS_MEMBERS_MAX], out[SHARDS_MEMBERS_MAX], latency_s;
    struct share_member members[SHARDS_MEMBERS_MAX];
};

/* Fills in the rates of the ring's links. LoRA's frozen base is only gathered, so only incoming links limit
 * its shares. */
static void ring_fill(const struct shards *s, struct shard_ring *ring)
{
    bool lora = s->p->workload->method == METHOD_LORA;
    uint32_t device[SHARDS_MEMBERS_MAX] = {0}, count = s->c->member_count;
    for (uint32_t m = 0; m < count; m++)
        device[m] = s->c->members[m].device;
    ring_rates(s->p->cluster, device, count, ring->in, ring->out, &ring->latency_s);
    for (uint32_t m = 0; m < count; m++)
        ring->members[m] =
            (struct share_member){.bytes_per_s = lora ? ring->in[m] : fmin(ring->in[m], ring->out[m]),
                                  .step_s = problem_step_seconds(s->p, device[m], 0, s->p->block_count)};
}

static int sharded_estimate(struct shards *s, const struct shard_ring *ring)
{
    bool full = s->p->workload->method == METHOD_FULL;
    double hop_s = (s->c->member_count - 1) * ring->latency_s;
    struct transfer_rates moving = {.gather_hop_s = hop_s, .reduce_hop_s = hop_s};
    double update = 0;
    for (uint32_t m = 0; m < s->c->member_count; m++) {
        double share = s->c->members[m].state_share;
        moving.gather_s = fmax(moving.gather_s, (1 - share) / ring->in[m]);
        moving.reduce_s = fmax(moving.reduce_s, (1 - share) / ring->out[m]);
        update = fmax(update, (full ? share : 1) * ring->members[m].step_s);
    }
    return shards_estimate(s, &moving, update);
}

static int data_estimate(struct workbench *bench, struct candidate *c)
{
    struct shards s;
    int result = shards_init(&s, bench, c);
    if (result == 0 && s.whole) {
        result = whole_estimate(&s);
    } else if (result == 0) {
        struct shard_ring ring;
        ring_fill(&s, &ring);
        result = sharded_estimate(&s, &ring);
    }
    shards_fini(&s);
    return result;
}

/* --- dividing rows and state among the members --- */

static void best_keep(const struct shards *s, struct member *best, double *best_s)
{
    if (s->c->estimate_s >= *best_s)
        return;
    *best_s = s->c->estimate_s;
    memcpy(best, s->c->members, s->c->member_count * sizeof(*best));
}

/* Returns the most rows of a micro-batch for which a replica fits on member m's device; 0: not even one row
 * does. */
static uint32_t replica_most(struct shards *s, uint32_t m, bool recompute)
{
    const struct member as = {.recompute = recompute};
    uint64_t limit = s->p->cluster->devices[s->c->members[m].device].memory_limit_bytes;
    uint32_t fits = 0, most = s->most, too_many = most + 1;
    while (fits + 1 < too_many && micro_recompute_allowed(s->p, recompute)) {
        s->most = (fits + too_many) / 2;
        if (shards_need(s, m, &as) <= limit)
            fits = s->most;
        else
            too_many = s->most;
    }
    s->most = most;
    return fits;
}

/* Splits the rows over whole replicas. All of them reserve memory for the plan's largest micro-batch, so a
 * smaller largest micro-batch only helps if some member then need not recompute. The sizes tried are
 * therefore those above which one more member has to recompute. */
static int whole_settle(struct shards *s, struct member *best, double *best_s)
{
    uint32_t count = s->c->member_count, caps[SHARDS_MEMBERS_MAX], most = s->most;
    for (uint32_t m = 0; m < count; m++) {
        uint32_t again = replica_most(s, m, true);
        caps[m] = replica_most(s, m, false);
        again = again > caps[m] ? again : caps[m];
        most = again < most ? again : most;
        s->c->members[m].state_share = 1;
    }
    for (bool recompute = true; most > 0 && recompute;) {
        uint32_t next = 0;
        s->most = most;
        int result = shards_split(s, &(struct transfer_rates){0}, NULL, 0, *best_s);
        if (result < 0)
            return -1;
        if (result > 0 && whole_estimate(s) > 0)
            best_keep(s, best, best_s);
        recompute = false;
        for (uint32_t m = 0; m < count; m++) {
            recompute = recompute || caps[m] < most;
            next = caps[m] < most && caps[m] > next ? caps[m] : next;
        }
        most = next;
    }
    return 0;
}

/* Divides the state over members whose rows are set, by every aim of share_state, and for links that limit
 * gathers, reductions or both; keeps the fastest. */
static void data_shares_try(struct shards *s, struct shard_ring *ring, double state, struct member *best,
                            double *best_s)
{
    uint32_t count = s->c->member_count;
    double shares[SHARDS_MEMBERS_MAX];
    struct share_member members[SHARDS_MEMBERS_MAX];
    for (int links = 0; links < (s->p->workload->method == METHOD_LORA ? 1 : 3); links++) {
        for (uint32_t m = 0; m < count; m++) {
            members[m] = ring->members[m];
            members[m].room = (double)shards_room(s, m) / state;
            members[m].bytes_per_s = links == 0   ? members[m].bytes_per_s
                                     : links == 1 ? ring->in[m]
                                                  : ring->out[m];
        }
        for (int aim = 0; aim < SHARE_AIMS; aim++) {
            if (!share_state(members, count, (enum share_aim)aim, shares))
                continue;
            for (uint32_t m = 0; m < count; m++)
                s->c->members[m].state_share = shares[m];
            if (sharded_estimate(s, ring) > 0)
                best_keep(s, best, best_s);
        }
    }
}

/* Splits rows and state at LEVELS ring times per byte and keeps the fastest result, if it is faster than
 * *best_s. */
static int sharded_settle(struct shards *s, struct member *best, double *best_s)
{
    uint32_t count = s->c->member_count;
    struct shard_ring ring;
    int64_t least_room[SHARDS_MEMBERS_MAX];
    ring_fill(s, &ring);
    double state = layered_state_bytes(s->p), most = 0, hop_s = (count - 1) * ring.latency_s;
    double least = share_level_least(ring.members, count);
    for (uint32_t m = 0; m < count; m++)
        most = fmax(most, 1 / ring.members[m].bytes_per_s);
    for (uint32_t l = 0; l < (most > least ? LEVELS : 1); l++) {
        double level = least + (most - least) * l / (LEVELS - 1);
        struct transfer_rates moving = {level, level, hop_s, hop_s, false};
        for (uint32_t m = 0; m < count; m++)
            least_room[m] =
                (int64_t)fmax(0, (1 - level * (1 + PROBLEM_SAME) * ring.members[m].bytes_per_s) * state);
        int result = shards_split(s, &moving, least_room, state, *best_s);
        if (result < 0)
            return -1;
        if (result > 0)
            data_shares_try(s, &ring, state, best, best_s);
    }
    return 0;
}

static int data_settle(struct workbench *bench, struct candidate *c)
{
    struct member best[SHARDS_MEMBERS_MAX];
    struct shards s;
    double best_s = INFINITY;
    if (c->member_count > SHARDS_MEMBERS_MAX) {
        c->estimate_s = INFINITY;
        return 0;
    }
    data_ring_order(bench->problem, c);
    int result = shards_init(&s, bench, c);
    result = result == 0 ? shards_prepare(&s) : result;
    if (result == 0)
        result = s.whole ? whole_settle(&s, best, &best_s) : sharded_settle(&s, best, &best_s);
    if (result == 0 && isinf(best_s)) {
        result = shards_short(&s, s.whole ? 0 : layered_state_bytes(s.p));
    } else if (result == 0) {
        memcpy(c->members, best, c->member_count * sizeof(*best));
        result = data_estimate(bench, c);
    }
    shards_fini(&s);
    return result;
}

/* --- making a plan --- */

static struct plan *data_emit(const struct problem *problem, const struct candidate *candidate,
                              enum emit_programs programs, struct err *err)
{
    return candidate->gathered_layers ? layered_emit(problem, candidate, programs, err)
                                      : pipeline_emit(problem, candidate, programs, err);
}

const struct placement_kind kind_data = {.placement = PLACE_DATA,
                                         .stage_kind = STAGE_SHARDED,
                                         .stages_least = 1,
                                         .stages_most = 1,
                                         .members_least = 2,
                                         .members_most = SHARDS_MEMBERS_MAX,
                                         .devices_least = 2,
                                         .takes = "replicas take",
                                         .settle = data_settle,
                                         .estimate = data_estimate,
                                         .emit = data_emit,
                                         .from_plan = layered_from_plan};
