/* The curve of a value over a run's steps, for a terminal, in a fixed space however long the run is.
 *
 * A bucket has the least and the most of its steps; when all are used, neighbours are joined. A spike of one
 * step is therefore in every picture. Pure.
 */
#ifndef MOTLEY_CLI_CURVE_H
#define MOTLEY_CLI_CURVE_H

#include <stdint.h>
#include <stdio.h>

enum { CURVE_BUCKETS = 512, CURVE_COLUMNS_MAX = 240, CURVE_ROWS_MAX = 24 };

struct step_curve {
    int64_t width; /* steps a bucket, a power of two; 0: nothing was added yet */
    int64_t last;  /* the last step */
    float least[CURVE_BUCKETS], most[CURVE_BUCKETS]; /* NaN: none of the bucket's steps has a value */
};

/* Adds a step's value. Steps after it, which a run that began again repeats, are forgotten; a value that is
 * not finite leaves a gap. */
void curve_add(struct step_curve *curve, int64_t step, double value);
/* Draws it as lines of text, `columns` wide and `rows` high with its axes: dots of braille, two by four a
 * character. Returns how many lines it wrote: 0 while there are fewer than two steps or there is too little
 * room. */
unsigned curve_draw(const struct step_curve *curve, unsigned columns, unsigned rows, FILE *out);

#endif
