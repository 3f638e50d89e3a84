/* Makes curves of a device's blocks, measured or estimated, and of the parts of layers with experts.
 *
 * The best source of a part's curve is measured points of attention, FFN, router and one expert. If a profile
 * has whole layers only, a part takes the layer's time in proportion to the part's FLOPs. Without a profile a
 * part is estimated as blocks are: the longer of computing and of reading the weights, where the weights of
 * every expert that gets a token are read.
 */
#include "planner/cost/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/noise.h"

/* The head's work for a token without a label, in units of a token with one. Rule of thumb. */
#define HEAD_PER_TOKEN 0.002

enum cost_class cost_class_of(const struct block *block)
{
    if (block->kind == BLOCK_EMBEDDING)
        return COST_EMBEDDING;
    if (block->kind == BLOCK_HEAD)
        return COST_HEAD;
    for (uint32_t p = 0; p < block->part_count; p++)
        if (block->parts[p].kind == PART_EXPERT)
            return COST_LAYER_SPARSE;
    return COST_LAYER;
}

/* --- estimated curves --- */

/* Returns the block whose curve represents its class. If the matrices or adapters of the class's layers
 * differ, it is the layer whose work for a token is closest to their mean. */
static const struct block *block_of_class(const struct block_list *blocks, enum cost_class cls)
{
    const struct block *found = NULL;
    double sum = 0, count = 0;
    for (uint32_t b = 0; b < blocks->count; b++) {
        const struct block *block = &blocks->blocks[b];
        bool of_it = cost_class_of(block) == cls;
        sum += of_it ? block->flops_per_token : 0;
        count += of_it ? 1 : 0;
    }
    for (uint32_t b = 0; b < blocks->count; b++) {
        const struct block *block = &blocks->blocks[b];
        if (cost_class_of(block) == cls && (!found || fabs(block->flops_per_token - sum / count) <
                                                          fabs(found->flops_per_token - sum / count)))
            found = block;
    }
    return found;
}

static const struct catalogue_entry *cost_entry_of(const struct planner_device *device)
{
    if (device->like)
        return device->like;
    return strcmp(device->kind, "cpu") == 0 ? catalogue_find("cpu") : NULL;
}

/* Returns the mean FLOPs per squared row length of the class's blocks, of which those with gated delta nets
 * have none. */
static double class_squares(const struct block_list *blocks, enum cost_class cls)
{
    double sum = 0, count = 0;
    for (uint32_t b = 0; b < blocks->count; b++) {
        bool of_it = cost_class_of(&blocks->blocks[b]) == cls;
        sum += of_it ? blocks->blocks[b].flops_per_square : 0;
        count += of_it ? 1 : 0;
    }
    return count > 0 ? sum / count : 0;
}

/* Writes the FLOP/s and bytes/s that a catalogue entry is assumed to reach; `threads` is for CPUs. */
static void entry_rates(const struct catalogue_entry *entry, const struct workload *workload, double threads,
                        double *flops_per_s, double *bytes_per_s)
{
    *flops_per_s = catalogue_rate(entry, workload->compute) * threads;
    *bytes_per_s = entry->memory_bytes_per_s * threads;
}

/* Returns the seconds to unpack a block's matrices before a pass: packed values are read and values of the
 * compute dtype are written, anew in each pass (Dettmers et al. 2023, section 3). */
static double unpack_seconds(const struct block *block, const struct workload *w, double bytes_per_s)
{
    double moved = workload_matrix_bytes(w) + workload_value_bytes(w);
    return workload_packs(w) ? (double)block->matrix_params * moved / bytes_per_s : 0;
}

static int curve_estimate(struct cost_curve *curve, const struct block *block, enum cost_class cls,
                          const struct catalogue_entry *entry, const struct workload *w, double threads,
                          struct err *err)
{
    double rate, bytes_per_s, back = w->method == METHOD_FULL ? 2 : 1;
    entry_rates(entry, w, threads, &rate, &bytes_per_s);
    double overhead = COST_KERNEL_OVERHEAD_S + unpack_seconds(block, w, bytes_per_s);
    double flops = block->flops_per_token > 0 ? block->flops_per_token : 1;
    bool head = cls == COST_HEAD;
    curve->per_token = head ? HEAD_PER_TOKEN : 1;
    curve->per_labelled = head ? 1 : 0;
    curve->per_square = head ? 0 : COST_SQUARE_SLOWNESS * block->flops_per_square / flops;
    if (cls == COST_EMBEDDING) /* a look-up: one nanosecond per token */
        return cost_curve_estimate(curve, 1e-9, 1, 0, overhead, 0, err);
    double read = (double)block->params * workload_other_bytes(w) / bytes_per_s;
    return cost_curve_estimate(curve, flops, rate, read, overhead, back, err);
}

static int device_estimate(struct cost_device *cost, const struct planner_device *device,
                           const struct workload *workload, const struct block_list *blocks, struct err *err)
{
    const struct catalogue_entry *entry = cost_entry_of(device);
    if (!entry)
        return err_set(
            err, ERR_INVALID,
            "nothing is known of its speed: it has no profile for such a job, and no `like` of the "
            "catalogue");
    double threads = strcmp(device->kind, "cpu") == 0 ? device->threads : 1;
    cost->origin = entry->origin;
    cost->uncertainty = entry->uncertainty;
    for (int cls = 0; cls < COST_CLASSES; cls++) {
        const struct block *block = block_of_class(blocks, (enum cost_class)cls);
        if (!block)
            continue;
        struct block mean = *block;
        mean.flops_per_square = class_squares(blocks, (enum cost_class)cls);
        if (curve_estimate(&cost->curves[cls], &mean, (enum cost_class)cls, entry, workload, threads, err) <
            0)
            return -1;
        double trained = workload->method == METHOD_FULL ? (double)block->params : (double)block->lora_params;
        cost->step_s[cls] =
            trained > 0 ? COST_KERNEL_OVERHEAD_S + trained * 28 / entry->memory_bytes_per_s : 0;
    }
    return 0;
}

/* --- measured curves --- */

static const enum profile_block profile_of[COST_CLASSES] = {
    [COST_EMBEDDING] = PROFILE_EMBEDDING,
    [COST_LAYER] = PROFILE_LAYER,
    [COST_LAYER_SPARSE] = PROFILE_LAYER,
    [COST_HEAD] = PROFILE_HEAD,
};

static int device_measured(struct cost_device *cost, const struct planner_device *device,
                           const struct block_list *blocks, struct err *err)
{
    const struct device_profile *profile = &device->profile;
    cost->origin = profile->origin;
    cost->noise = noise_of(profile, err);
    if (cost->noise < 0)
        return -1;
    cost->uncertainty = fmax(profile->origin == ORIGIN_MEASURED ? 0 : 0.1, cost->noise);
    for (int cls = 0; cls < COST_CLASSES; cls++) {
        enum profile_block kind = profile_of[cls];
        const struct block *block = block_of_class(blocks, (enum cost_class)cls);
        if (!block || profile->point_count[kind] == 0)
            continue;
        double per_token = block->flops_per_token > 0 ? block->flops_per_token : 1;
        if (cost_curve_build(&cost->curves[cls], profile->points[kind], profile->point_count[kind], kind,
                             class_squares(blocks, (enum cost_class)cls) / per_token, HEAD_PER_TOKEN,
                             err) < 0)
            return -1;
        cost->step_s[cls] = profile->step_s[kind];
    }
    return 0;
}

/* --- parts of layers --- */

static const enum part_kind kind_of[COST_PARTS] = {[COST_PART_ATTENTION] = PART_ATTENTION,
                                                   [COST_PART_FFN] = PART_FFN,
                                                   [COST_PART_ROUTER] = PART_ROUTER,
                                                   [COST_PART_EXPERT] = PART_EXPERT};
static const enum profile_block part_points[COST_PARTS] = {[COST_PART_ATTENTION] = PROFILE_ATTENTION,
                                                           [COST_PART_FFN] = PROFILE_FFN,
                                                           [COST_PART_ROUTER] = PROFILE_ROUTER,
                                                           [COST_PART_EXPERT] = PROFILE_EXPERT};

/* Finds a part in the first layer that has it (COST_PART_FFN: the first layer with a dense FFN; other parts:
 * the first layer with experts), and writes that layer to *of. */
static const struct block_part *cost_part_of(const struct block_list *blocks, enum cost_part part,
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
    double rate, bytes_per_s, flops = part_flops(part);
    entry_rates(entry, w, threads, &rate, &bytes_per_s);
    double read = (double)part->params * workload_other_bytes(w) / bytes_per_s;
    double overhead =
        /* A layer's kernel launches are counted with its attention; launches of experts are counted apart. */
        kind == COST_PART_ATTENTION ? COST_KERNEL_OVERHEAD_S : 0;
    curve->per_token = 1;
    curve->per_square = flops > 0 ? COST_SQUARE_SLOWNESS * part->flops_per_square / flops : 0;
    return cost_curve_estimate(curve, flops, rate, read, overhead, w->method == METHOD_FULL ? 2 : 1, err);
}

/* Makes a part's curve from a measured layer's: the share, by FLOPs, of one copy of the part (one expert).
 * The curve's work counts the tokens that the copy gets. */
static int part_divide(struct cost_curve *curve, const struct cost_curve *layer, const struct block *block,
                       const struct block_part *part, struct err *err)
{
    double share = block->flops_per_token > 0 ? part_flops(part) * part->active / block->flops_per_token : 0;
    /* Mean number of tokens that one copy gets for each token that passes the layer. */
    double tokens = (double)part->active / part->copies;
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

static int part_measured(struct cost_curve *curve, enum cost_part kind, enum profile_block points,
                         const struct block_part *part, const struct device_profile *profile, struct err *err)
{
    bool squares = kind == COST_PART_ATTENTION;
    double flops = part_flops(part) > 0 ? part_flops(part) : 1;
    return cost_curve_build(curve, profile->points[points], profile->point_count[points],
                            squares ? PROFILE_LAYER : PROFILE_EMBEDDING, part->flops_per_square / flops, 0,
                            err);
}

static int part_init(struct cost_device *cost, enum cost_part kind, const struct planner_device *device,
                     const struct workload *workload, const struct block_list *blocks, struct err *err)
{
    const struct block *block = NULL;
    const struct block_part *part = cost_part_of(blocks, kind, &block);
    const struct device_profile *profile = &device->profile;
    struct cost_curve *curve = &cost->parts[kind];
    if (!part)
        return 0;
    enum cost_class cls = cost_class_of(block);
    enum profile_block points = part_points[kind];
    cost->part_step_s[kind] = cost->step_s[cls] * step_share(workload, block, part);
    if (!profile->present) {
        double threads = strcmp(device->kind, "cpu") == 0 ? device->threads : 1;
        return part_estimate(curve, kind, part, cost_entry_of(device), workload, threads, err);
    }
    if (profile->point_count[points]) {
        if (profile->step_s[points] > 0)
            cost->part_step_s[kind] = profile->step_s[points];
        return part_measured(curve, kind, points, part, profile, err);
    }
    if (profile->point_count[PROFILE_LAYER])
        return part_divide(curve, &cost->curves[cls], block, part, err);
    if (kind == COST_PART_ROUTER) { /* the router is a matrix product with few columns: it takes attention's
                                       time in proportion to FLOPs */
        const struct cost_curve *attention = &cost->parts[COST_PART_ATTENTION];
        struct block fake = {.flops_per_token = part_flops(&block->parts[0])};
        return part_divide(curve, attention, &fake, part, err);
    }
    return err_set(err, ERR_INVALID, "its profile has no points of %s, and none of whole layers",
                   kind == COST_PART_EXPERT ? "one expert"
                   : kind == COST_PART_FFN  ? "the dense FFN"
                                            : "attention");
}

/* Makes the curves of attention and FFN of a dense model if the profile has points of both. */
static int cost_halves_init(struct cost_device *cost, const struct device_profile *profile,
                            const struct block_list *blocks, struct err *err)
{
    static const enum cost_part halves[] = {COST_PART_ATTENTION, COST_PART_FFN};
    static const enum profile_block cuts[] = {PROFILE_ATTENTION_CUT, PROFILE_FFN_CUT};
    const struct block *layer = block_of_class(blocks, COST_LAYER);
    if (!layer || !profile->point_count[PROFILE_ATTENTION] || !profile->point_count[PROFILE_FFN])
        return 0;
    for (uint32_t h = 0; h < 2; h++) {
        const struct block_part *part = layer->parts;
        enum cost_part kind = halves[h];
        while (part->kind != kind_of[kind])
            part++;
        if (part_measured(&cost->parts[kind], kind, part_points[kind], part, profile, err) < 0)
            return -1;
        double share = profile->cut_share[cuts[h]];
        if (profile->point_count[cuts[h]] == 0 || !(share > 0 && share < 1))
            continue;
        cost->cut_share[kind] = share;
        if (part_measured(&cost->cuts[kind], kind, cuts[h], part, profile, err) < 0)
            return -1;
    }
    return 0;
}

/* Returns the seconds of a layer with experts whose tokens are spread evenly. */
static double sparse_seconds(const struct cost_device *cost, enum cost_way way, const struct cost_load *load)
{
    return cost_attention_seconds(cost, way, load) +
           cost_experts_seconds(cost, way, cost->experts,
                                load->tokens * cost->experts_active / cost->experts);
}

/* Scales the curves of the parts of layers with experts so that their sum is as long as measured whole
 * layers, on average over the layers' points. */
static void parts_level(struct cost_device *cost, const struct device_profile *profile)
{
    const struct cost_curve *layer = &cost->curves[COST_LAYER_SPARSE];
    for (int way = 0; way < COST_WAYS; way++) {
        double whole = 0, sum = 0;
        for (uint32_t i = 0; i < profile->point_count[PROFILE_LAYER]; i++) {
            const struct profile_point *point = &profile->points[PROFILE_LAYER][i];
            struct cost_load load = {point->rows, point->tokens, point->sum_sq, point->labelled};
            whole += cost_curve_seconds(layer, (enum cost_way)way, &load);
            sum += sparse_seconds(cost, (enum cost_way)way, &load);
        }
        for (int part = 0; part < COST_PARTS && whole > 0 && sum > 0; part++)
            for (uint32_t i = 0; i < cost->parts[part].count; i++)
                cost->parts[part].points[i].seconds[way] *= whole / sum;
    }
}

static int parts_init(struct cost_device *cost, const struct planner_device *device,
                      const struct workload *workload, const struct block_list *blocks, struct err *err)
{
    const struct block *sparse = block_of_class(blocks, COST_LAYER_SPARSE);
    if (!sparse)
        return cost_halves_init(cost, &device->profile, blocks, err);
    for (uint32_t i = 0; i < sparse->part_count; i++) {
        if (sparse->parts[i].kind == PART_EXPERT) {
            cost->experts = sparse->parts[i].copies;
            cost->experts_active = sparse->parts[i].active;
        }
    }
    if (!device->profile.present)
        cost->experts_overhead_s = COST_KERNEL_OVERHEAD_S;
    for (int kind = 0; kind < COST_PARTS; kind++)
        if (part_init(cost, (enum cost_part)kind, device, workload, blocks, err) < 0)
            return -1;
    bool measured =
        device->profile.point_count[PROFILE_ATTENTION] && device->profile.point_count[PROFILE_EXPERT];
    if (measured && cost->curves[COST_LAYER_SPARSE].count)
        parts_level(cost, &device->profile);
    /* In a model with experts a dense layer costs the sum of measured attention and FFN, if both were
     * measured, because the layers of the profile may be layers with experts. */
    if (measured && device->profile.point_count[PROFILE_FFN]) {
        free(cost->curves[COST_LAYER].points);
        cost->curves[COST_LAYER] = (struct cost_curve){0};
    }
    /* A sparse layer is the sum of its parts, so its own curve is removed. */
    free(cost->curves[COST_LAYER_SPARSE].points);
    cost->curves[COST_LAYER_SPARSE] = (struct cost_curve){0};
    return 0;
}

/* Sets recomputation to 0 for embedding and head. Layers are recomputed from their inputs, but the
 * embedding is looked up once, and the head keeps what its backward pass needs (engine/README.md). */
static void recompute_layers_alone(struct cost_device *cost)
{
    static const enum cost_class once[] = {COST_EMBEDDING, COST_HEAD};
    for (size_t c = 0; c < sizeof(once) / sizeof(once[0]); c++)
        for (uint32_t i = 0; i < cost->curves[once[c]].count; i++)
            cost->curves[once[c]].points[i].seconds[COST_RECOMPUTE] = 0;
}

static void slow_down(struct cost_curve *curve, double factor)
{
    for (uint32_t i = 0; i < curve->count; i++)
        for (int way = 0; way < COST_WAYS; way++)
            curve->points[i].seconds[way] *= factor;
}

/* Returns how many times as long products take as where the device was measured, by the catalogue, if that
 * was in another precision than the workload's. Its times then count as estimates. */
static double precision_factor(struct cost_device *cost, const struct planner_device *device,
                               const struct workload *workload)
{
    const struct catalogue_entry *entry = cost_entry_of(device);
    const int measured = device->profile.compute;
    if (!device->profile.present || measured < 0 || measured == (int)workload->compute || !entry)
        return 1;
    const double factor =
        catalogue_rate(entry, (enum workload_compute)measured) / catalogue_rate(entry, workload->compute);
    if (factor != 1) {
        cost->origin = ORIGIN_ESTIMATED;
        cost->uncertainty = fmax(cost->uncertainty, entry->uncertainty);
    }
    return factor;
}

int cost_device_init(struct cost_device *cost, const struct planner_device *device,
                     const struct workload *workload, const struct block_list *blocks, struct err *err)
{
    *cost = (struct cost_device){0};
    int result = device->profile.present ? device_measured(cost, device, blocks, err)
                                         : device_estimate(cost, device, workload, blocks, err);
    if (result == 0)
        result = parts_init(cost, device, workload, blocks, err);
    if (result < 0) {
        cost_device_fini(cost);
        return -1;
    }
    recompute_layers_alone(cost);
    double factor = precision_factor(cost, device, workload) *
                    (device->profile.present ? device->profile.heat : 1) / (device->speed * device->heat);
    for (int cls = 0; cls < COST_CLASSES; cls++) {
        slow_down(&cost->curves[cls], factor);
        cost->step_s[cls] *= factor;
    }
    for (int part = 0; part < COST_PARTS; part++) {
        slow_down(&cost->parts[part], factor);
        cost->part_step_s[part] *= factor;
    }
    for (int part = 0; part <= COST_PART_FFN; part++)
        slow_down(&cost->cuts[part], factor);
    cost->experts_overhead_s *= factor;
    return 0;
}

void cost_device_fini(struct cost_device *cost)
{
    for (int cls = 0; cls < COST_CLASSES; cls++)
        free(cost->curves[cls].points);
    for (int part = 0; part < COST_PARTS; part++)
        free(cost->parts[part].points);
    for (int part = 0; part <= COST_PART_FFN; part++)
        free(cost->cuts[part].points);
    *cost = (struct cost_device){0};
}

double cost_part_seconds(const struct cost_device *cost, enum cost_part part, enum cost_way way,
                         const struct cost_load *load)
{
    return cost_curve_seconds(&cost->parts[part], way, load);
}

double cost_attention_seconds(const struct cost_device *cost, enum cost_way way, const struct cost_load *load)
{
    return cost_part_seconds(cost, COST_PART_ATTENTION, way, load) +
           cost_part_seconds(cost, COST_PART_ROUTER, way, load);
}

double cost_experts_seconds(const struct cost_device *cost, enum cost_way way, double count, double tokens)
{
    if (count <= 0 || tokens <= 0)
        return 0;
    /* With fewer than one token per expert on average, the share `tokens` of the experts gets one token each,
     * and the others get none. */
    struct cost_load load = {.rows = 1, .tokens = tokens < 1 ? 1 : tokens};
    double each = cost_curve_seconds(&cost->parts[COST_PART_EXPERT], way, &load);
    return cost->experts_overhead_s + count * (tokens < 1 ? tokens : 1) * each;
}

double cost_fixed_share(const struct cost_device *cost, enum cost_part part, enum cost_way way,
                        const struct cost_load *load)
{
    double share = cost->cut_share[part];
    double whole = share > 0 ? cost_part_seconds(cost, part, way, load) : 0;
    if (whole <= 0)
        return -1;
    double cut = cost_curve_seconds(&cost->cuts[part], way, load);
    return fmin(1, fmax(0, (cut / whole - share) / (1 - share)));
}

double cost_attention_share(const struct cost_device *cost, enum cost_way way, const struct cost_load *load)
{
    double attention = cost_part_seconds(cost, COST_PART_ATTENTION, way, load);
    double sum = attention + cost_part_seconds(cost, COST_PART_FFN, way, load);
    return cost->parts[COST_PART_FFN].count && sum > 0 ? attention / sum : -1;
}

double cost_class_seconds(const struct cost_device *cost, enum cost_class cls, enum cost_way way,
                          const struct cost_load *load)
{
    if (cost->curves[cls].count || cost->experts == 0 || load->tokens <= 0)
        return cost_curve_seconds(&cost->curves[cls], way, load);
    if (cls != COST_LAYER && cls != COST_LAYER_SPARSE)
        return 0;
    if (cls == COST_LAYER)
        return cost_part_seconds(cost, COST_PART_ATTENTION, way, load) +
               cost_part_seconds(cost, COST_PART_FFN, way, load);
    return sparse_seconds(cost, way, load);
}
