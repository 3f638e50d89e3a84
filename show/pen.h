/* What the drawing's files share: the pen, measures, and what they ask of a plan. For this room only. */
#ifndef MOTLEY_SHOW_PEN_H
#define MOTLEY_SHOW_PEN_H

#include "show/draw.h"

#define DRAW_WIDTH 1240.0 /* px, of the whole picture */
#define DRAW_MARGIN 20.0  /* px */
#define DRAW_CHAR 6.1     /* px, mean width of a character at 11 px */

/* Writes text; after the first failure the rest does nothing. */
struct pen {
    struct buf *out;
    struct err *err;
    bool failed;
};

/* Appends by printf, at most 2,000 bytes a call. */
void pen_put(struct pen *pen, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Appends text with &, <, > and quotes escaped; control characters become spaces; at most `most` bytes of it
 * (cut at a character's end, "…" behind). */
void pen_text(struct pen *pen, const char *text, size_t most);
/* A number of px with one decimal at most, "12.5", "7". */
const char *pen_px(char text[24], double px);

/* The catalogue entry a rank's device is estimated as; NULL: none, or not known. */
const char *draw_like(const struct draw_input *input, uint32_t rank);
/* Blocks of the whole model. */
int32_t draw_blocks(const struct plan *plan);

#endif
