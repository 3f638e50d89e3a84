#include "planner/kind/tensor_group.h"

#include <math.h>

#include "planner/cost/micro.h"

#define LAYERS_SEEN 4u /* layers simulated; each further one takes as long as the last */

static void tensor_group_halves_init(const struct tensor_case *t, struct tensor_group *g, uint32_t i)
{
    static const enum tensor_half halves[HALVES] = {TENSOR_FIRST, TENSOR_SECOND};
    uint32_t device = g->members[i].device;
    for (int w = 0; w < COST_WAYS; w++) {
        enum cost_way way = (enum cost_way)w;
        double whole = g->cost[i].seconds[COST_LAYER][way];
        g->half_s[i][HALF_FIRST][way] = whole * tensor_attention(t->p, device, 1, way, &t->load);
        g->half_s[i][HALF_SECOND][way] = whole - g->half_s[i][HALF_FIRST][way];
        for (int h = 0; h < HALVES; h++)
            g->fixed[i][h][way] = tensor_fixed(t->p, device, halves[h], way, &t->load, g->half_s[i][h][way]);
    }
}

void tensor_group_init(const struct tensor_case *t, uint32_t s, struct tensor_group *g)
{
    const struct candidate_stage *stage = &t->c->stages[s];
    int32_t last = t->p->block_count - 1, after = stage->block_end < last ? stage->block_end : last;
    uint32_t devices[GROUP_MAX];
    double bytes = tensor_token_bytes(t->p) * t->load.tokens;
    g->stage = stage;
    g->s = s;
    g->members = &t->c->members[stage->member_first];
    g->count = stage->member_count;
    g->layer = stage->block_begin > 1 ? stage->block_begin : 1;
    g->layers = after > g->layer ? (uint32_t)(after - g->layer) : 0;
    g->embedding = stage->block_begin == 0;
    g->head = stage->block_end > last;
    for (uint32_t i = 0; i < g->count; i++) {
        devices[i] = g->members[i].device;
        micro_cost_init(&g->cost[i], t->p, devices[i], t->c->micro_batch_rows);
        g->share[i] = tensor_shares(t->p, &g->members[i].tensor);
        tensor_group_halves_init(t, g, i);
        g->host_s[i] = tensor_host_seconds(t->p, devices[i], g->count, bytes);
    }
    g->ring = ring_figures(t->p->cluster, devices, NULL, NULL, g->count);
    g->sum_s = tensor_sum_seconds(&g->ring, g->count, bytes);
    g->broadcast_s = tensor_broadcast_seconds(&g->ring, g->count, bytes);
}

/* Returns the seconds of a block of a class on a member that has its whole matrices: forward or backward. */
double tensor_whole_seconds(const struct tensor_group *g, uint32_t i, enum cost_class cls, bool back,
                            bool again)
{
    return cost_pass_seconds(g->cost[i].seconds[cls], back, again);
}

/* Returns the seconds of half a layer, forward or backward, on a member with that share of its heads or
 * columns. */
static double half_seconds(const struct tensor_group *g, uint32_t i, int half, bool back, bool again,
                           double share)
{
    const double *seconds = g->half_s[i][half], *fixed = g->fixed[i][half];
    if (!back)
        return tensor_shrink(seconds[COST_FORWARD], share, fixed[COST_FORWARD]);
    double sum = tensor_shrink(seconds[COST_BACKWARD], share, fixed[COST_BACKWARD]);
    return again ? sum + tensor_shrink(seconds[COST_RECOMPUTE], share, fixed[COST_RECOMPUTE]) : sum;
}

/* Writes a member's seconds of attention, FFN, embedding and head for a micro-batch, with its matrices. */
void tensor_member_seconds(const struct tensor_group *g, uint32_t i, bool back, bool again,
                           double seconds[PARTS])
{
    const struct tensor_shares *x = &g->share[i];
    seconds[PART_FIRST] = half_seconds(g, i, HALF_FIRST, back, again, x->heads);
    seconds[PART_SECOND] = half_seconds(g, i, HALF_SECOND, back, again, x->columns);
    seconds[PART_TABLE] = i == 0 ? tensor_whole_seconds(g, i, COST_EMBEDDING, back, again) : 0;
    seconds[PART_TOP] = i == 0 ? tensor_whole_seconds(g, i, COST_HEAD, back, again) : 0;
}

/* The simulation of a unit in a stage. free_s: when each member ends; queue_s: when the group's last transfer
 * ends; ready_s: when each micro-batch's last all-reduce ends. */
struct unit_pass {
    uint32_t count, members;
    double seconds[GROUP_MAX][PARTS], free_s[GROUP_MAX], ready_s[TURNS_MAX], queue_s;
};

/* Simulates attention or FFN of a layer for the unit's micro-batches, one after the other. A micro-batch is
 * all-reduced when the last member has computed it. */
static void pass_step(struct unit_pass *v, int part, double sum_s)
{
    for (uint32_t k = 0; k < v->count; k++) {
        double end = v->queue_s;
        for (uint32_t i = 0; i < v->members; i++) {
            v->free_s[i] = fmax(v->free_s[i], v->ready_s[k]) + v->seconds[i][part];
            end = fmax(end, v->free_s[i]);
        }
        v->ready_s[k] = v->queue_s = end + sum_s;
    }
}

/* The first member alone computes embedding or head and, if broadcast_s > 0, broadcasts the results. */
static void pass_alone(struct unit_pass *v, int part, double broadcast_s)
{
    for (uint32_t k = 0; k < v->count; k++) {
        v->free_s[0] = fmax(v->free_s[0], v->ready_s[k]) + v->seconds[0][part];
        v->ready_s[k] = broadcast_s > 0 ? fmax(v->queue_s, v->free_s[0]) + broadcast_s : v->free_s[0];
        v->queue_s = fmax(v->queue_s, v->ready_s[k]);
    }
}

/* Simulates up to LAYERS_SEEN layers; each further layer takes as long as the last of them. */
static void tensor_group_pass_layers(struct unit_pass *v, uint32_t layers, bool back, double sum_s)
{
    double before = 0, more;
    for (uint32_t l = 0; l < layers && l < LAYERS_SEEN; l++) {
        before = v->queue_s;
        pass_step(v, back ? PART_SECOND : PART_FIRST, sum_s);
        pass_step(v, back ? PART_FIRST : PART_SECOND, sum_s);
    }
    more = layers > LAYERS_SEEN ? (layers - LAYERS_SEEN) * (v->queue_s - before) : 0;
    v->queue_s += more;
    for (uint32_t i = 0; i < v->members; i++)
        v->free_s[i] += more;
    for (uint32_t k = 0; k < v->count; k++)
        v->ready_s[k] += more;
}

/* Returns the seconds of the forward or backward pass of `count` micro-batches in turns. */
static double tensor_group_pass_seconds(const struct tensor_group *g, bool back, bool again, uint32_t count)
{
    struct unit_pass v = {.count = count, .members = g->count};
    for (uint32_t i = 0; i < g->count; i++) {
        tensor_member_seconds(g, i, back, again, v.seconds[i]);
        for (int part = PART_FIRST; part <= PART_SECOND; part++) /* in turns, one's sum is beside another */
            v.seconds[i][part] += count > 1 ? g->host_s[i] : 0;
    }
    for (uint32_t k = 0; k < count && (back ? !g->head : !g->embedding); k++)
        v.ready_s[k] = v.queue_s += g->broadcast_s;
    if (back ? g->head : g->embedding)
        pass_alone(&v, back ? PART_TOP : PART_TABLE, g->broadcast_s);
    tensor_group_pass_layers(&v, g->layers, back, g->sum_s);
    if (back ? g->embedding : g->head)
        pass_alone(&v, back ? PART_TABLE : PART_TOP, 0);
    return v.queue_s;
}

/* Returns the mean seconds of a unit (micro-batches in turns); a step's last unit may be shorter. */
static double unit_seconds(const struct tensor_case *t, const struct tensor_group *g, bool back, bool again)
{
    uint32_t rest = t->micro_batches - (t->units - 1) * t->together;
    double last = tensor_group_pass_seconds(g, back, again, rest);
    if (rest == t->together)
        return last;
    return (last + (t->units - 1) * tensor_group_pass_seconds(g, back, again, t->together)) / t->units;
}

void tensor_group_price(const struct tensor_case *t, const struct tensor_group *g, bool again,
                        struct stage_price *price)
{
    *price = (struct stage_price){.forward_s = unit_seconds(t, g, false, again),
                                  .backward_s = unit_seconds(t, g, true, again)};
}

/* Returns the seconds of half a layer, forward and backward. */
double tensor_both_ways(const struct tensor_group *g, uint32_t i, int half, bool again, double share)
{
    return half_seconds(g, i, half, false, again, share) + half_seconds(g, i, half, true, again, share);
}
