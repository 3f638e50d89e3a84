/* What a group promises: a micro-batch's seconds by class of block, columns level, sums included, one
 * micro-batch at a time or more in turns, as long as its members hold the layers. The groupings that promise
 * most are arranged; the best of those by quick looks are settled by quick looks. */
#include "planner/tensor/tensor_few.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"
#include "planner/few/few_bound.h"
#include "planner/search/polish.h"
#include "planner/tensor/tensor_quick.h"

#define FEW_TRIED 96u   /* groupings arranged */
#define FEW_STEPS 2u    /* that quick looks price */
#define FEW_SETTLED 32u /* of them, by quick looks */
#define FEW_FOUND 256u  /* groupings kept before the best are settled */
#define FEW_ALONE 16u   /* single groups arranged */
#define FEW_SLACK 4u    /* windows so much wider than 1F1B asks for are tried, beside those of 1 */
#define FEW_SETS (1u << TENSOR_FEW_DEVICES)
#define FEW_WITHIN 1.3  /* of the best promise */
#define FEW_RIVAL 1.4   /* of the fastest of other placements: of what is slower before it is settled, */
#define FEW_LINE 12u    /* so many groupings are arranged */
#define LINE_SETTLED 4u /* and so many settled: it is only worth a line */
#define EDGES 4         /* with the embedding, with the head */

/* A group dealt in one way, without or with recomputation. */
struct few_dealt {
    double once[COST_CLASSES], turns[COST_CLASSES]; /* one micro-batch at a time; several in turns */
    double told;                                    /* a boundary tensor passed on to all members */
    int32_t most[EDGES][2]; /* layers that it holds, [none behind, some]; −1: none */
};

struct tensor_few {
    struct arrangement *a; /* the caller's */
    struct arrangement one;
    struct few_dealt dealt[FEW_SETS][2 * TENSOR_WAYS]; /* [set][way, and those again with recomputation] */
    uint32_t dealt_count[FEW_SETS];
    struct few_bound bound;
    struct few_node alone[FEW_ALONE]; /* single groups that promise most, best first */
    uint32_t alone_count;
    struct choice_list *list;             /* the caller's */
    struct place_choice found[FEW_FOUND]; /* estimate_s: of a quick look */
    uint32_t found_count;
    struct tensor_quick *quick;
};

/* Layers that a member holds beside those edges, with no stage behind it and with some; −1: not even the
 * edges and one. With some, two micro-batches' values are kept where there are so many. */
static void layers_most(const struct tensor_few *t, uint32_t m, int edges, bool recompute, int32_t most[2])
{
    const struct arrangement *a = &t->one;
    const struct problem *p = a->p;
    uint64_t need[2][2], limit = p->cluster->devices[a->device[m]].memory_limit_bytes;
    int32_t layers = p->block_count - 2, first = edges & 1 ? 0 : 1;
    uint32_t partials = 4 + (edges & 1 ? 0 : 2) + (edges & 2 ? 0 : 2);
    for (int32_t n = 0; n < 2; n++) {
        struct place_stage stage = {.block_begin = first, .block_end = 1 + (n < layers ? n : layers)};
        struct tensor_need out;
        if (edges & 2) { /* the last so many layers, and what is in front of them not at all */
            stage.block_begin = edges & 1 ? 0 : p->block_count - 1 - n;
            stage.block_end = p->block_count;
        }
        if (edges == 3)
            stage.block_end = p->block_count; /* all of it, or nothing */
        tensor_stage_need(p, &stage, &a->part[m], a->rows, recompute, 1, partials, &out);
        need[0][n] = out.need.total;
        need[1][n] = out.need.total + (a->micro_batches > 1 ? out.need.purpose[PURPOSE_ACTIVATIONS] : 0);
    }
    for (int behind = 0; behind < 2; behind++) {
        const uint64_t *own = need[behind];
        uint64_t held =
            own[1] > own[0] && own[0] <= limit ? (limit - own[0]) / (own[1] - own[0]) : UINT64_MAX;
        if (own[edges == 3] > limit)
            most[behind] = -1;
        else
            most[behind] = edges < 3 && held < (uint64_t)layers ? (int32_t)held : layers;
    }
}

static void set_deal(struct tensor_few *t, uint32_t set, enum tensor_by by, bool recompute)
{
    struct arrangement *a = &t->one;
    struct few_dealt *x = &t->dealt[set][t->dealt_count[set]];
    for (uint32_t together = 2; together > 0; together--) {
        a->together = together;
        if (!arrangement_price(a, by))
            return;
        for (int cls = 0; cls < COST_CLASSES; cls++)
            (together > 1 ? x->turns : x->once)[cls] = a->block_s[0][cls][recompute];
    }
    double bytes = a->p->bytes_per_token * a->p->mean_step.tokens / a->micro_batches;
    x->told = a->devices > 1 ? bytes / a->rate[0] + (a->devices - 1) * a->latency_s[0] : 0;
    for (int edges = 0; edges < EDGES; edges++) {
        x->most[edges][0] = x->most[edges][1] = INT32_MAX;
        for (uint32_t m = 0; m < a->devices; m++) {
            int32_t most[2];
            layers_most(t, m, edges, recompute, most);
            for (int behind = 0; behind < 2; behind++)
                x->most[edges][behind] =
                    most[behind] < x->most[edges][behind] ? most[behind] : x->most[edges][behind];
        }
    }
    t->dealt_count[set]++;
}

static void group_price(void *with, const struct few_bound *f, uint16_t set, int32_t begin, int32_t end,
                        uint32_t behind, double *all, double *one)
{
    const struct tensor_few *t = with;
    const struct problem *p = t->a->p;
    int edges = (begin == 0) + 2 * (end == p->block_count);
    int32_t layers = end - begin - (begin == 0) - (end == p->block_count);
    *all = *one = INFINITY;
    for (uint32_t i = 0; i < t->dealt_count[set] && isinf(*all); i++) {
        const struct few_dealt *x = &t->dealt[set][i];
        double once = ((begin > 0) + (end < p->block_count)) * x->told, turns = once;
        if (layers > x->most[edges][behind > 0])
            continue;
        for (int cls = 0; cls < COST_CLASSES; cls++) {
            double blocks = p->prefix[end][cls] - p->prefix[begin][cls];
            once += blocks * x->once[cls];
            turns += blocks * x->turns[cls];
        }
        *one = once;
        *all = f->micro_batches * fmin(once, turns);
    }
}

/* A single group of the size in hand, among the best. */
static void alone_note(struct tensor_few *t, const struct few_bound *f, uint32_t set)
{
    struct few_node node = {
        .rows = f->rows, .stages = 1, .group = {(uint16_t)set}, .end = {(uint16_t)t->a->p->block_count}};
    double one;
    uint32_t at = t->alone_count;
    group_price(t, f, (uint16_t)set, 0, t->a->p->block_count, 0, &node.bound, &one);
    for (uint32_t i = 0; i < t->alone_count; i++) {
        if (t->alone[i].rows == node.rows && t->alone[i].group[0] == set)
            return;
    }
    for (; at > 0 && node.bound < t->alone[at - 1].bound; at--) {
        if (at < FEW_ALONE)
            t->alone[at] = t->alone[at - 1];
    }
    if (at < FEW_ALONE && node.bound < INFINITY) {
        t->alone[at] = node;
        t->alone_count += t->alone_count < FEW_ALONE;
    }
}

static void size_set(void *with, const struct few_bound *f)
{
    struct tensor_few *t = with;
    for (uint32_t set = 1; set < 1u << f->sets.count; set++) {
        t->dealt_count[set] = 0;
        t->one.devices = 0;
        for (uint32_t d = 0; d < f->sets.count; d++) {
            if (set >> d & 1)
                t->one.device[t->one.devices++] = f->sets.device[d];
        }
        t->one.rows = f->rows;
        t->one.micro_batches = f->micro_batches;
        for (int way = 0; way < 2 * TENSOR_WAYS; way++) {
            bool again = way >= TENSOR_WAYS;
            if (micro_recompute_allowed(t->a->p, again) && (t->one.devices > 1 || way % TENSOR_WAYS == 0))
                set_deal(t, set, (enum tensor_by)(way % TENSOR_WAYS), again);
        }
        if (t->one.devices > 1)
            alone_note(t, f, set);
    }
}

/* What was arranged, by quick looks; the best of every grouping stays. */
static int found_run(struct tensor_few *t, struct choice_list *found, struct err *err)
{
    for (uint32_t i = 0; i < found->count; i++) {
        struct place_choice *c = &found->choices[i];
        uint32_t at = 0;
        c->estimate_s = tensor_quick_seconds(t->quick, c);
        while (at < t->found_count && !choice_same_groups(&t->found[at], c))
            at++;
        if (c->estimate_s <= 0 || at == FEW_FOUND ||
            (at < t->found_count && t->found[at].estimate_s <= c->estimate_s))
            continue;
        if (at < t->found_count)
            choice_fini(&t->found[at]);
        t->found_count += at == t->found_count;
        t->found[at] = *c;
        *c = (struct place_choice){0};
    }
    return err->code == ERR_NOMEM ? -1 : 0;
}

/* A grouping, cut as was promised and so that its slowest stage is done soonest. */
static int node_try(struct tensor_few *t, const struct few_node *node, struct err *err)
{
    static const uint32_t slacks[] = {1, FEW_SLACK};
    struct arrangement *a = t->a;
    struct choice_list found = {.evaluations = t->list->evaluations,
                                .evaluations_max = t->list->evaluations_max,
                                .must_use = t->list->must_use};
    int32_t cuts[FEW_DEVICES];
    int result = 0;
    a->list = &found;
    a->stages = node->stages;
    a->devices = 0;
    for (uint32_t s = 0; s < node->stages; s++) {
        cuts[s] = node->end[s];
        a->first[s] = a->devices;
        for (uint32_t d = 0; d < t->bound.sets.count; d++) {
            if (node->group[s] >> d & 1)
                a->device[a->devices++] = t->bound.sets.device[d];
        }
    }
    a->first[a->stages] = a->devices;
    for (int way = 0; way < 4 && result == 0; way++) {
        a->slack = slacks[way / 2];
        a->cuts = way % 2 ? NULL : cuts;
        result = arrangement_size(a, node->rows, err);
    }
    a->slack = 1;
    a->cuts = NULL;
    a->list = t->list;
    t->list->evaluations = found.evaluations;
    if (result == 0)
        result = found_run(t, &found, err);
    choice_list_fini(&found);
    return result;
}

/* So far behind other placements that it cannot be the answer. */
static bool few_lost(const struct tensor_few *t, double seconds)
{
    return t->list->rival_s > 0 && seconds > t->list->rival_s * FEW_RIVAL;
}

static int nodes_try(struct tensor_few *t, struct err *err)
{
    const struct problem *p = t->a->p;
    /* a tied embedding that is trained is cut alike on its owner and its copy, or not at all */
    bool pipelines = p->workload->method != METHOD_FULL || !p->blocks.tied;
    uint32_t most = t->bound.node_count < FEW_TRIED ? t->bound.node_count : FEW_TRIED;
    int result = 0;
    for (uint32_t i = 0; i < t->alone_count && p->workload->stages <= 1 && result == 0; i++)
        result = node_try(t, &t->alone[i], err);
    for (uint32_t i = 0; i < most && pipelines && result == 0; i++) {
        const struct few_node *node = &t->bound.nodes[i];
        if (node->bound > t->bound.nodes[0].bound * FEW_WITHIN ||
            (i >= FEW_LINE && t->found_count > 0 && few_lost(t, node->bound)) ||
            t->list->evaluations >= t->list->evaluations_max)
            break;
        result = node_try(t, node, err);
    }
    return result;
}

static int by_estimate(const void *left, const void *right)
{
    const struct place_choice *a = left, *b = right;
    uint64_t one = polish_hash(a), other = polish_hash(b);
    if (a->estimate_s != b->estimate_s)
        return a->estimate_s < b->estimate_s ? -1 : 1;
    return one < other ? -1 : one > other;
}

/* The best of them settled by quick looks: what starts well is not what ends well. */
static int found_settle(struct tensor_few *t, struct err *err)
{
    struct polish *polish = polish_create(t->a->p, FEW_STEPS, UINT64_MAX, 0, err);
    int result = polish ? 0 : -1;
    qsort(t->found, t->found_count, sizeof(*t->found), by_estimate);
    for (uint32_t i = 0; i < t->found_count && result == 0; i++) {
        struct place_choice *c = &t->found[i];
        if (i < (few_lost(t, c->estimate_s) ? LINE_SETTLED : FEW_SETTLED))
            polish_quick_settle(polish, c, &c->estimate_s, INFINITY);
        result = choice_list_add(t->list, c, err);
    }
    polish_destroy(polish);
    return result;
}

/* What stands in the caller's list is looked at likewise, as estimates and quick looks do not compare. */
static int all_try(struct tensor_few *t, struct err *err)
{
    struct choice_list before = *t->list;
    t->list->count = 0;
    int result = found_run(t, &before, err) < 0 || nodes_try(t, err) < 0 ? -1 : found_settle(t, err);
    for (uint32_t i = 0; i < before.count; i++)
        choice_fini(&before.choices[i]);
    return result;
}

int tensor_few_try(struct arrangement *a, struct err *err)
{
    struct tensor_few *t = calloc(1, sizeof(*t));
    if (!t)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    struct few_prices prices = {.with = t, .led = true, .size = size_set, .group = group_price};
    t->a = a;
    t->list = a->list;
    t->one = (struct arrangement){.p = a->p, .list = a->list};
    t->quick = tensor_quick_create(a->p, FEW_STEPS, err);
    int result = t->quick ? few_bound_walk(&t->bound, a->p, false, &prices, err) : -1;
    if (result > 0)
        result = all_try(t, err);
    for (uint32_t i = 0; i < t->found_count; i++)
        choice_fini(&t->found[i]);
    tensor_quick_destroy(t->quick);
    few_bound_fini(&t->bound);
    free(t);
    return result < 0 ? -1 : 0;
}
