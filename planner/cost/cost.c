/* Building and reading cost curves. */
#include "planner/cost/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Attention does less of the peak than matrix products; used only where no two measured points differ in
 * shape. */
#define SQUARE_SLOWNESS COST_SQUARE_SLOWNESS
#define KERNEL_OVERHEAD_S COST_KERNEL_OVERHEAD_S

enum cost_class cost_class_of(const struct block *block)
{
    if (block->kind == BLOCK_EMBEDDING)
        return COST_EMBEDDING;
    if (block->kind == BLOCK_HEAD)
        return COST_HEAD;
    for (uint32_t p = 0; p < block->part_count; p++) {
        if (block->parts[p].kind == PART_EXPERT)
            return COST_LAYER_SPARSE;
    }
    return COST_LAYER;
}

static double load_work(const struct cost_curve *curve, const struct cost_load *load)
{
    return curve->per_token * load->tokens + curve->per_square * load->sum_sq +
           curve->per_labelled * load->labelled;
}

double cost_curve_seconds(const struct cost_curve *curve, enum cost_way way, const struct cost_load *load)
{
    double work = load_work(curve, load);
    const struct cost_point *p = curve->points;
    uint32_t n = curve->count;
    if (load->tokens <= 0 || n == 0)
        return 0;
    if (n == 1)
        return p[0].seconds[way] * (work > 0 && p[0].work > 0 ? work / p[0].work : 1);
    uint32_t low = 0, high = n - 1;
    while (high - low > 1) {
        uint32_t mid = (low + high) / 2;
        if (p[mid].work <= work)
            low = mid;
        else
            high = mid;
    }
    double slope = (p[high].seconds[way] - p[low].seconds[way]) / (p[high].work - p[low].work);
    double seconds = p[low].seconds[way] + slope * (work - p[low].work);
    if (work < p[0].work) {
        double share = p[0].seconds[way] * work / p[0].work;
        return seconds > share ? seconds : share;
    }
    /* a table that falls at its end must not be followed below what was measured */
    return work > p[n - 1].work && seconds < p[n - 1].seconds[way] ? p[n - 1].seconds[way] : seconds;
}

/* Least squares of seconds/seconds = (c0 + c1·x + c2·y)/seconds: how much one unit of y costs in units of x.
 * Returns a negative number when the points do not tell. */
static double shape_ratio(const struct profile_point *points, uint32_t count, enum profile_block kind)
{
    double m[3][4] = {{0}};
    for (uint32_t i = 0; i < count; i++) {
        double seconds = points[i].forward_s + points[i].backward_s;
        double x = kind == PROFILE_HEAD ? points[i].labelled : points[i].tokens;
        double y = kind == PROFILE_HEAD ? points[i].tokens : points[i].sum_sq;
        double row[4] = {1 / seconds, x / seconds, y / seconds, 1};
        for (int a = 0; a < 3; a++) {
            for (int b = 0; b < 4; b++)
                m[a][b] += row[a] * row[b];
        }
    }
    double scale[3] = {sqrt(m[0][0]), sqrt(m[1][1]), sqrt(m[2][2])};
    for (int a = 0; a < 3; a++) {
        if (!(scale[a] > 0))
            return -1;
        for (int b = 0; b < 3; b++)
            m[a][b] /= scale[a] * scale[b];
        m[a][3] /= scale[a];
    }
    for (int a = 0; a < 3; a++) {
        if (fabs(m[a][a]) < 1e-4) /* as good as singular: the points lie on a line */
            return -1;
        for (int b = a + 1; b < 3; b++) {
            double factor = m[b][a] / m[a][a];
            for (int c = a; c < 4; c++)
                m[b][c] -= factor * m[a][c];
        }
    }
    double c2 = m[2][3] / m[2][2];
    double c1 = (m[1][3] - m[1][2] * c2) / m[1][1];
    if (c2 < 0 && c2 > -1e-9 * c1) /* rounding, whose sign depends on the order of the points */
        c2 = 0;
    return c1 > 0 && c2 >= 0 ? (c2 / scale[2]) / (c1 / scale[1]) : -1;
}

static int point_compare(const void *left, const void *right)
{
    const struct cost_point *a = left, *b = right;
    return a->work < b->work ? -1 : a->work > b->work;
}

static void points_merge(struct cost_curve *curve)
{
    uint32_t out = 0;
    qsort(curve->points, curve->count, sizeof(*curve->points), point_compare);
    for (uint32_t i = 0; i < curve->count;) {
        struct cost_point sum = {0};
        uint32_t n = 0;
        double first = curve->points[i].work;
        do {
            sum.work += curve->points[i].work;
            for (int w = 0; w < COST_WAYS; w++)
                sum.seconds[w] += curve->points[i].seconds[w];
            n++;
            i++;
        } while (i < curve->count && curve->points[i].work <= first * 1.02 + 1e-9);
        sum.work /= n;
        for (int w = 0; w < COST_WAYS; w++)
            sum.seconds[w] /= n;
        curve->points[out++] = sum;
    }
    curve->count = out;
}

/* More work never takes less time: where measured times fall, neighbours are averaged until they do not (the
 * rising curve that is nearest by least squares; pool adjacent violators, Ayer et al. 1955). */
static void points_level(struct cost_curve *curve, int way)
{
    for (uint32_t end = 1; end < curve->count; end++) {
        if (curve->points[end].seconds[way] >= curve->points[end - 1].seconds[way])
            continue;
        double sum = curve->points[end].seconds[way];
        uint32_t begin = end;
        while (begin > 0 && curve->points[begin - 1].seconds[way] > sum / (end - begin + 1))
            sum += curve->points[--begin].seconds[way];
        for (uint32_t i = begin; i <= end; i++)
            curve->points[i].seconds[way] = sum / (end - begin + 1);
    }
}

int cost_curve_build(struct cost_curve *curve, const struct profile_point *points, uint32_t count,
                     enum profile_block kind, double flops_square_per_token, double flops_token_per_labelled,
                     struct err *err)
{
    *curve = (struct cost_curve){.per_token = 1};
    double ratio = kind == PROFILE_EMBEDDING || count < 4 ? -1 : shape_ratio(points, count, kind);
    if (kind == PROFILE_LAYER) {
        double limit = 50 * flops_square_per_token;
        curve->per_square = ratio >= 0 ? ratio : SQUARE_SLOWNESS * flops_square_per_token;
        curve->per_square = curve->per_square > limit ? limit : curve->per_square;
    } else if (kind == PROFILE_HEAD) {
        curve->per_labelled = 1;
        curve->per_token = ratio >= 0 && ratio < 1 ? ratio : flops_token_per_labelled;
    }
    curve->points = calloc((size_t)count + 1, sizeof(*curve->points));
    if (!curve->points)
        return err_set(err, ERR_NOMEM, "costs: out of memory");
    for (uint32_t i = 0; i < count; i++) {
        struct cost_load load = {points[i].rows, points[i].tokens, points[i].sum_sq, points[i].labelled};
        curve->points[i] = (struct cost_point){
            .work = load_work(curve, &load),
            .seconds = {points[i].forward_s, points[i].backward_s, points[i].recompute_s}};
    }
    curve->count = count;
    points_merge(curve);
    for (int way = 0; way < COST_WAYS; way++)
        points_level(curve, way);
    return 0;
}

/* --- estimated curves --- */

static const struct block *block_of_class(const struct block_list *blocks, enum cost_class cls)
{
    for (uint32_t b = 0; b < blocks->count; b++) {
        if (cost_class_of(&blocks->blocks[b]) == cls)
            return &blocks->blocks[b];
    }
    return NULL;
}

const struct catalogue_entry *cost_entry_of(const struct device *device)
{
    if (device->like)
        return device->like;
    return strcmp(device->kind, "cpu") == 0 ? catalogue_find("cpu") : NULL;
}

void cost_entry_rates(const struct catalogue_entry *entry, const struct workload *workload, double threads,
                      double *flops_per_s, double *bytes_per_s)
{
    bool half = workload->compute == COMPUTE_BF16 && entry->flops_16 > entry->flops_fp32;
    *flops_per_s =
        (half ? entry->flops_16 * entry->efficiency_16 : entry->flops_fp32 * entry->efficiency) * threads;
    *bytes_per_s = entry->memory_bytes_per_s * threads;
}

/* Seconds to unpack a block's matrices for a pass, before they are used: NF4 is read, values of the compute
 * type are written (each pass anew, Dettmers et al. 2023, section 3). */
static double unpack_seconds(const struct block *block, const struct workload *w, double bytes_per_s)
{
    double written = w->compute == COMPUTE_BF16 ? 2 : 4;
    return w->base == BASE_NF4 ? (double)block->matrix_params * (BLOCK_NF4_BYTES + written) / bytes_per_s : 0;
}

static int curve_estimate(struct cost_curve *curve, const struct block *block, enum cost_class cls,
                          const struct catalogue_entry *entry, const struct workload *w, double threads,
                          struct err *err)
{
    static const double sizes[] = {1, 8, 32, 128, 512, 2048, 8192, 32768};
    double rate, bytes_per_s;
    cost_entry_rates(entry, w, threads, &rate, &bytes_per_s);
    double weight_bytes = (double)block->params * (w->base == BASE_FP32 ? 4 : 2);
    double per_unit = block->flops_per_token > 0 ? block->flops_per_token : 1;
    bool head = cls == COST_HEAD;
    curve->per_token = head ? 0.002 : 1;
    curve->per_labelled = head ? 1 : 0;
    curve->per_square = head ? 0 : SQUARE_SLOWNESS * block->flops_per_square / per_unit;
    curve->count = sizeof(sizes) / sizeof(sizes[0]);
    curve->points = calloc(curve->count, sizeof(*curve->points));
    if (!curve->points)
        return err_set(err, ERR_NOMEM, "costs: out of memory");
    double unpack = unpack_seconds(block, w, bytes_per_s);
    double back = cls == COST_EMBEDDING ? 0 : w->method == METHOD_FULL ? 2 : 1;
    for (uint32_t i = 0; i < curve->count; i++) {
        double compute = sizes[i] * per_unit / rate, read = weight_bytes / bytes_per_s;
        if (cls == COST_EMBEDDING)
            compute = sizes[i] * 1e-9, read = 0;
        double forward = KERNEL_OVERHEAD_S + unpack + (compute > read ? compute : read);
        curve->points[i] =
            (struct cost_point){.work = sizes[i], .seconds = {forward, back * forward, forward}};
    }
    return 0;
}

static int device_estimate(struct cost_device *cost, const struct device *device,
                           const struct workload *workload, const struct block_list *blocks, struct err *err)
{
    const struct catalogue_entry *entry = cost_entry_of(device);
    if (!entry)
        return err_set(err, ERR_INVALID, "device %s: no profile, and no `like` to estimate it from",
                       device->name);
    double threads = strcmp(device->kind, "cpu") == 0 ? device->threads : 1;
    cost->origin = entry->origin;
    cost->uncertainty = entry->uncertainty;
    for (int cls = 0; cls < COST_CLASSES; cls++) {
        const struct block *block = block_of_class(blocks, (enum cost_class)cls);
        if (!block)
            continue;
        if (curve_estimate(&cost->curves[cls], block, (enum cost_class)cls, entry, workload, threads, err) <
            0)
            return -1;
        double trained = workload->method == METHOD_FULL ? (double)block->params : (double)block->lora_params;
        cost->step_s[cls] = trained > 0 ? KERNEL_OVERHEAD_S + trained * 28 / entry->memory_bytes_per_s : 0;
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

static int device_measured(struct cost_device *cost, const struct device *device,
                           const struct block_list *blocks, struct err *err)
{
    const struct profile *profile = &device->profile;
    cost->origin = profile->origin;
    cost->uncertainty = profile->origin == ORIGIN_MEASURED ? 0 : 0.1;
    for (int cls = 0; cls < COST_CLASSES; cls++) {
        enum profile_block kind = profile_of[cls];
        const struct block *block = block_of_class(blocks, (enum cost_class)cls);
        if (!block || profile->point_count[kind] == 0)
            continue;
        double per_token = block->flops_per_token > 0 ? block->flops_per_token : 1;
        if (cost_curve_build(&cost->curves[cls], profile->points[kind], profile->point_count[kind], kind,
                             block->flops_per_square / per_token, 0.002, err) < 0)
            return -1;
        cost->step_s[cls] = profile->step_s[kind];
    }
    return 0;
}

/* Layers are recomputed from their inputs; the embedding is looked up once, and the head keeps what its
 * backward pass needs (engine/README.md). */
static void recompute_layers_alone(struct cost_device *cost)
{
    static const enum cost_class once[] = {COST_EMBEDDING, COST_HEAD};
    for (size_t c = 0; c < sizeof(once) / sizeof(once[0]); c++) {
        for (uint32_t i = 0; i < cost->curves[once[c]].count; i++)
            cost->curves[once[c]].points[i].seconds[COST_RECOMPUTE] = 0;
    }
}

int cost_device_init(struct cost_device *cost, const struct device *device, const struct workload *workload,
                     const struct block_list *blocks, struct err *err)
{
    *cost = (struct cost_device){0};
    int result = device->profile.present ? device_measured(cost, device, blocks, err)
                                         : device_estimate(cost, device, workload, blocks, err);
    if (result == 0)
        result = cost_parts_init(cost, device, workload, blocks, err);
    if (result < 0) {
        cost_device_fini(cost);
        return -1;
    }
    recompute_layers_alone(cost);
    double factor = 1 / (device->speed * device->heat);
    for (int cls = 0; cls < COST_CLASSES; cls++) {
        struct cost_curve *curve = &cost->curves[cls];
        for (uint32_t i = 0; i < curve->count; i++) {
            for (int way = 0; way < COST_WAYS; way++)
                curve->points[i].seconds[way] *= factor;
        }
        cost->step_s[cls] *= factor;
    }
    for (int part = 0; part < COST_PARTS; part++) {
        struct cost_curve *curve = &cost->parts[part];
        for (uint32_t i = 0; i < curve->count; i++) {
            for (int way = 0; way < COST_WAYS; way++)
                curve->points[i].seconds[way] *= factor;
        }
        cost->part_step_s[part] *= factor;
    }
    cost->experts_overhead_s *= factor;
    return 0;
}

void cost_device_fini(struct cost_device *cost)
{
    for (int cls = 0; cls < COST_CLASSES; cls++)
        free(cost->curves[cls].points);
    for (int part = 0; part < COST_PARTS; part++)
        free(cost->parts[part].points);
    *cost = (struct cost_device){0};
}
