/* Declarations that the drawing's files share: the pen, measures, and facts about a plan. For this room
 * only. */
#ifndef MOTLEY_SHOW_PEN_H
#define MOTLEY_SHOW_PEN_H

#include "show/draw.h"

#define DRAW_WIDTH 1240.0 /* width of the whole picture in px */
#define DRAW_MARGIN 20.0  /* px */
#define DRAW_CHAR 6.1     /* mean width of a character at 11 px, in px */

/* Writes text; after the first failure all calls do nothing. */
struct pen {
    struct buf *out;
    struct err *err;
    bool failed;
};

/* Appends formatted text, at most 2,000 bytes per call. */
void pen_put(struct pen *pen, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Appends text with &, <, > and quotes escaped and control characters replaced by spaces. At most `most`
 * bytes of it are appended; a longer text is cut at the end of a character and followed by "…". */
void pen_text(struct pen *pen, const char *text, size_t most);
/* Writes a number of px with at most one decimal: "12.5", "7". */
const char *pen_px(char text[24], double px);

/* Returns the catalogue entry from which a rank's device is estimated; NULL when it has none or is unknown.
 */
const char *draw_like(const struct draw_input *input, uint32_t rank);
/* Returns the number of blocks of the whole model. */
int32_t draw_blocks(const struct plan *plan);

#endif
