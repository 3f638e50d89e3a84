/* Curves of the parts of a layer, for models with experts.
 *
 * Best are measured points of attention, router and one expert. Where a profile knows whole layers only, a
 * part is the layer's time in proportion to the part's FLOPs. Where there is no profile it is estimated as
 * blocks are: the longer of computing and of reading the weights, one expert's weights for each expert that
 * gets a token. */
#include <stdlib.h>
#include <string.h>

#include "planner/cost/cost.h"

static const enum part_kind kind_of[COST_PARTS] = {[COST_PART_ATTENTION] = PART_ATTENTION,
                                                   [COST_PART_FFN] = PART_FFN,
                                                   [COST_PART_ROUTER] = PART_ROUTER,
                                                   [COST_PART_EXPERT] = PART_EXPERT};
static const enum profile_block profile_of[COST_PARTS] = {[COST_PART_ATTENTION] = PROFILE_ATTENTION,
                                                          [COST_PART_FFN] = PROFILE_FFN,
                                                          [COST_PART_ROUTER] = PROFILE_ROUTER,
                                                          [COST_PART_EXPERT] = PROFILE_EXPERT};

double cost_part_seconds(const struct cost_device *cost, enum cost_part part, enum cost_way way,
                         const struct cost_load *load)
{
    return cost_curve_seconds(&cost->parts[part], way, load);
}

double cost_experts_seconds(const struct cost_device *cost, enum cost_way way, double count, double tokens)
{
    if (count <= 0 || tokens <= 0)
        return 0;
    /* with less than a token each, that share of them gets one */
    struct cost_load load = {.rows = 1, .tokens = tokens < 1 ? 1 : tokens};
    double each = cost_curve_seconds(&cost->parts[COST_PART_EXPERT], way, &load);
    return cost->experts_overhead_s + count * (tokens < 1 ? tokens : 1) * each;
}

double cost_class_seconds(const struct cost_device *cost, enum cost_class cls, enum cost_way way,
                          const struct cost_load *load)
{
    if (cost->curves[cls].count || cost->experts == 0 || load->tokens <= 0)
        return cost_curve_seconds(&cost->curves[cls], way, load);
    if (cls != COST_LAYER && cls != COST_LAYER_SPARSE)
        return 0;
    double seconds = cost_part_seconds(cost, COST_PART_ATTENTION, way, load);
    if (cls == COST_LAYER)
        return seconds + cost_part_seconds(cost, COST_PART_FFN, way, load);
    return seconds + cost_part_seconds(cost, COST_PART_ROUTER, way, load) +
           cost_experts_seconds(cost, way, cost->experts,
                                load->tokens * cost->experts_active / cost->experts);
}

static const struct block *sparse_block(const struct block_list *blocks)
{
    for (uint32_t b = 0; b < blocks->count; b++) {
        if (cost_class_of(&blocks->blocks[b]) == COST_LAYER_SPARSE)
            return &blocks->blocks[b];
    }
    return NULL;
}

/* The part of any layer of the list; a dense layer's FFN is in another block than the experts. */
static const struct block_part *part_of(const struct block_list *blocks, enum cost_part part,
                                        const struct block **of)
{
    for (uint32_t b = 0; b < blocks->count; b++) {
        const struct block *block = &blocks->blocks[b];
        for (uint32_t i = 0; i < block->part_count; i++) {
            if (block->parts[i].kind == kind_of[part] &&
                (part == COST_PART_FFN || cost_class_of(block) == COST_LAYER_SPARSE)) {
                *of = block;
                return &block->parts[i];
            }
        }
    }
    return NULL;
}

static double part_flops(const struct block_part *part)
{
    return part->flops_per_token + part->lora_flops_per_token;
}

static int part_estimate(struct cost_curve *curve, enum cost_part kind, const struct block_part *part,
                         const struct catalogue_entry *entry, const struct workload *w, double threads,
                         struct err *err)
{
    static const double sizes[] = {1, 8, 32, 128, 512, 2048, 8192, 32768};
    double rate, bytes_per_s, flops = part_flops(part);
    cost_entry_rates(entry, w, threads, &rate, &bytes_per_s);
    double read = (double)part->params * (w->base == BASE_FP32 ? 4 : 2) / bytes_per_s;
    double overhead =
        kind == COST_PART_ATTENTION ? COST_KERNEL_OVERHEAD_S : 0; /* the layer's; the experts' apart */
    double back = w->method == METHOD_FULL ? 2 : 1;
    curve->per_token = 1;
    curve->per_square = flops > 0 ? COST_SQUARE_SLOWNESS * part->flops_per_square / flops : 0;
    curve->count = sizeof(sizes) / sizeof(sizes[0]);
    curve->points = calloc(curve->count, sizeof(*curve->points));
    if (!curve->points)
        return err_set(err, ERR_NOMEM, "costs: out of memory");
    for (uint32_t i = 0; i < curve->count; i++) {
        double compute = sizes[i] * flops / rate, forward = overhead + (compute > read ? compute : read);
        curve->points[i] =
            (struct cost_point){.work = sizes[i], .seconds = {forward, back * forward, forward}};
    }
    return 0;
}

/* The share of a measured layer that is one copy of this part, by FLOPs; work in tokens of the part. */
static int part_divide(struct cost_curve *curve, const struct cost_curve *layer, const struct block *block,
                       const struct block_part *part, struct err *err)
{
    double share = block->flops_per_token > 0 ? part_flops(part) * part->active / block->flops_per_token : 0;
    double tokens = (double)part->active / part->copies; /* a copy gets of each of the layer's */
    *curve = (struct cost_curve){.per_token = 1, .count = layer->count};
    if (part->kind == PART_ATTENTION && share > 0)
        curve->per_square = layer->per_square / share;
    curve->points = calloc((size_t)layer->count + 1, sizeof(*curve->points));
    if (!curve->points)
        return err_set(err, ERR_NOMEM, "costs: out of memory");
    for (uint32_t i = 0; i < layer->count; i++) {
        curve->points[i].work = layer->points[i].work * tokens;
        for (int way = 0; way < COST_WAYS; way++)
            curve->points[i].seconds[way] = layer->points[i].seconds[way] * share / part->copies;
    }
    return 0;
}

static double step_share(const struct workload *w, const struct block *block, const struct block_part *part)
{
    double all = w->method == METHOD_FULL ? (double)block->params : (double)block->lora_params;
    double own = w->method == METHOD_FULL ? (double)part->params : (double)part->lora_params;
    return all > 0 ? own / all : 0;
}

static int part_init(struct cost_device *cost, enum cost_part kind, const struct device *device,
                     const struct workload *workload, const struct block_list *blocks, struct err *err)
{
    const struct block *block = NULL;
    const struct block_part *part = part_of(blocks, kind, &block);
    const struct profile *profile = &device->profile;
    struct cost_curve *curve = &cost->parts[kind];
    if (!part)
        return 0;
    enum cost_class cls = cost_class_of(block);
    enum profile_block points = profile_of[kind];
    cost->part_step_s[kind] = cost->step_s[cls] * step_share(workload, block, part);
    if (!profile->present) {
        double threads = strcmp(device->kind, "cpu") == 0 ? device->threads : 1;
        return part_estimate(curve, kind, part, cost_entry_of(device), workload, threads, err);
    }
    if (profile->point_count[points]) {
        bool squares = kind == COST_PART_ATTENTION;
        double flops = part_flops(part) > 0 ? part_flops(part) : 1;
        if (profile->step_s[points] > 0)
            cost->part_step_s[kind] = profile->step_s[points];
        return cost_curve_build(curve, profile->points[points], profile->point_count[points],
                                squares ? PROFILE_LAYER : PROFILE_EMBEDDING, part->flops_per_square / flops,
                                0, err);
    }
    if (profile->point_count[PROFILE_LAYER])
        return part_divide(curve, &cost->curves[cls], block, part, err);
    if (kind == COST_PART_ROUTER) { /* a product of a few columns: by its share of attention's FLOPs */
        const struct cost_curve *attention = &cost->parts[COST_PART_ATTENTION];
        struct block fake = {.flops_per_token = part_flops(&block->parts[0])};
        return part_divide(curve, attention, &fake, part, err);
    }
    return err_set(err, ERR_INVALID, "device %s: its profile has no points of %s, and none of whole layers",
                   device->name,
                   kind == COST_PART_EXPERT ? "one expert"
                   : kind == COST_PART_FFN  ? "the dense FFN"
                                            : "attention");
}

int cost_parts_init(struct cost_device *cost, const struct device *device, const struct workload *workload,
                    const struct block_list *blocks, struct err *err)
{
    const struct block *sparse = sparse_block(blocks);
    if (!sparse)
        return 0;
    for (uint32_t i = 0; i < sparse->part_count; i++) {
        if (sparse->parts[i].kind == PART_EXPERT) {
            cost->experts = sparse->parts[i].copies;
            cost->experts_active = sparse->parts[i].active;
        }
    }
    if (!device->profile.present)
        cost->experts_overhead_s = COST_KERNEL_OVERHEAD_S;
    for (int kind = 0; kind < COST_PARTS; kind++) {
        if (part_init(cost, (enum cost_part)kind, device, workload, blocks, err) < 0)
            return -1;
    }
    /* layers are the sum of their parts */
    free(cost->curves[COST_LAYER_SPARSE].points);
    cost->curves[COST_LAYER_SPARSE] = (struct cost_curve){0};
    return 0;
}
