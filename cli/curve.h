/* The curve of a value over a run's steps, for a terminal. Its memory is the same however long the run is.
 *
 * Each bucket keeps the minimum and the maximum over a range of steps, so a spike of a single step is always
 * drawn. When all buckets are used, pairs of neighbours are merged. Pure.
 */
#ifndef MOTLEY_CLI_CURVE_H
#define MOTLEY_CLI_CURVE_H

#include <stdint.h>
#include <stdio.h>

enum { CURVE_BUCKETS = 512, CURVE_COLUMNS_MAX = 240, CURVE_ROWS_MAX = 24 };

struct step_curve {
    int64_t width; /* steps a bucket, a power of two; 0: nothing was added yet */
    int64_t last;  /* the step added last */
    float least[CURVE_BUCKETS], most[CURVE_BUCKETS]; /* NaN: none of the bucket's steps has a value */
};

/* Adds a step's value; a value that is not finite leaves a gap. The values of later steps are removed,
 * because a run that resumed from a checkpoint repeats these steps. */
void curve_add(struct step_curve *curve, int64_t step, double value);
/* Draws the curve as lines of text, `columns` wide and `rows` high including the axes, in braille characters
 * of 2 x 4 dots. Returns the number of lines written: 0 if there are fewer than two steps or too little room.
 */
unsigned curve_draw(const struct step_curve *curve, unsigned columns, unsigned rows, FILE *out);

#endif
