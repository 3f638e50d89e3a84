/* The two parts of the picture. For this room only. */
#ifndef MOTLEY_SHOW_DRAW_PRIVATE_H
#define MOTLEY_SHOW_DRAW_PRIVATE_H

#include "show/pen.h"

/* Draws the topology from `y` downwards and returns the y below it. */
double draw_topology(struct pen *pen, const struct draw_input *input, double y);
/* Draws the lanes and their legend from `y` downwards and returns the y below them. Shapes of one kind that
 * are closer than merge_px are drawn as one. */
double draw_timeline(struct pen *pen, const struct draw_input *input, double y, double merge_px);

#endif
