#include "planner/cost/curve.h"

#include <math.h>
#include <stdlib.h>

#define ESTIMATED_POINTS 8u /* points of an estimated curve, from one token to 32,768 by factors of 4 */

double cost_curve_work(const struct cost_curve *curve, const struct cost_load *load)
{
    return curve->per_token * load->tokens + curve->per_square * load->sum_sq +
           curve->per_labelled * load->labelled;
}

double cost_curve_seconds(const struct cost_curve *curve, enum cost_way way, const struct cost_load *load)
{
    double work = cost_curve_work(curve, load);
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
    if (work <= p[n - 1].work)
        return seconds;
    /* Seconds are convex in work: launches at first, then in proportion. So the line beyond the table rises
     * no less than the line from its first point to its last, even where noise has levelled its end. */
    double mean = (p[n - 1].seconds[way] - p[0].seconds[way]) / (p[n - 1].work - p[0].work);
    return p[n - 1].seconds[way] + (slope > mean ? slope : mean) * (work - p[n - 1].work);
}

/* Fits seconds ≈ c0 + c1·x + c2·y to the points by least squares of relative errors, where x is tokens and y
 * is Σ length² (for the head, x is labelled tokens and y is tokens). Returns kappa = c2/c1, or a negative
 * number if the points do not determine it. */
static double shape_ratio(const struct profile_point *points, uint32_t count, enum profile_block kind)
{
    double m[3][4] = {{0}};
    for (uint32_t i = 0; i < count; i++) {
        double seconds = points[i].forward_s + points[i].backward_s;
        double x = kind == PROFILE_HEAD ? points[i].labelled : points[i].tokens;
        double y = kind == PROFILE_HEAD ? points[i].tokens : points[i].sum_sq;
        double row[4] = {1 / seconds, x / seconds, y / seconds, 1};
        for (int a = 0; a < 3; a++)
            for (int b = 0; b < 4; b++)
                m[a][b] += row[a] * row[b];
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
        if (fabs(m[a][a]) < 1e-4) /* nearly singular: the points lie on a line */
            return -1;
        for (int b = a + 1; b < 3; b++) {
            double factor = m[b][a] / m[a][a];
            for (int c = a; c < 4; c++)
                m[b][c] -= factor * m[a][c];
        }
    }
    double c2 = m[2][3] / m[2][2];
    double c1 = (m[1][3] - m[1][2] * c2) / m[1][1];
    if (c2 < 0 && c2 > -1e-9 * c1) /* a rounding error, whose sign depends on the order of the points */
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

/* Makes the seconds of the curve rise with work. Where measured times fall, neighbours are averaged until
 * they rise (the closest rising curve by least squares; pool adjacent violators, Ayer et al. 1955). */
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
        curve->per_square = ratio >= 0 ? ratio : COST_SQUARE_SLOWNESS * flops_square_per_token;
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
            .work = cost_curve_work(curve, &load),
            .seconds = {points[i].forward_s, points[i].backward_s, points[i].recompute_s}};
    }
    curve->count = count;
    points_merge(curve);
    for (int way = 0; way < COST_WAYS; way++)
        points_level(curve, way);
    return 0;
}

int cost_curve_estimate(struct cost_curve *curve, double flops, double flops_per_s, double read_s,
                        double overhead_s, double back, struct err *err)
{
    curve->count = ESTIMATED_POINTS;
    curve->points = calloc(curve->count, sizeof(*curve->points));
    if (!curve->points)
        return err_set(err, ERR_NOMEM, "costs: out of memory");
    for (uint32_t i = 0; i < curve->count; i++) { /* points at 1, 8, 32, 128 … units of work */
        double work = i ? (double)(2u << 2 * i) : 1, compute = work * flops / flops_per_s;
        double forward = overhead_s + (compute > read_s ? compute : read_s);
        curve->points[i] = (struct cost_point){.work = work, .seconds = {forward, back * forward, forward}};
    }
    return 0;
}
