/* The picture's two parts. For this room only. */
#ifndef MOTLEY_SHOW_DRAW_PRIVATE_H
#define MOTLEY_SHOW_DRAW_PRIVATE_H

#include "show/pen.h"

/* Draws from `y` on; returns the y below. */
double draw_topology(struct pen *pen, const struct draw_input *input, double y);
/* Lanes and their legend, likewise. Shapes of one kind nearer than merge_px are drawn as one. */
double draw_timeline(struct pen *pen, const struct draw_input *input, double y, double merge_px);

#endif
