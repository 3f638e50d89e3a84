/* The common part of the Cephalo and Zorse files: latency curves by model, GPU, sequence length and dtype.
 * Only the files of published/ include this header. The schema is in the docs of `motley replay` and the
 * READMEs of the published data. */
#ifndef MOTLEY_PUBLISHED_IMPORT_GPU_H
#define MOTLEY_PUBLISHED_IMPORT_GPU_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

#define GPU_TABLE_MAX 4096u

/* Milliseconds of one transformer layer at batch m: from the tables as far as they reach, else slope·m +
 * intercept. */
struct gpu_curve {
    double slope[2], intercept[2]; /* [0] forward, [1] backward */
    uint32_t count[2];
    const json_t *table[2]; /* borrowed; index 0 is batch 1 */
};

/* Reads table[model][gpu][seq][dtype]. With `strict` an entry that is a pair of numbers (the old format) is
 * refused, as both planners do. ERR_INVALID naming the path. */
int gpu_curve_find(const json_t *latencies, const char *model, const char *gpu, int64_t sequence,
                   const char *dtype, struct gpu_curve *curve, struct err *err);
/* Appends sentences about times that fall as batches grow and, for a card of the catalogue, about rates
 * above its peak or a thousandth of it. `where`: the curve's path in the file; flops_per_row: of a layer's
 * forward, 0: unknown. */
void gpu_curve_doubts(const struct gpu_curve *curve, const char *where, const char *gpu, double flops_per_row,
                      json_t *warnings);
double gpu_curve_ms(const struct gpu_curve *curve, int way, uint32_t batch);

#endif
