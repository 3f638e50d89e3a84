/* Draws the frame of the picture: styles, title, text. */
#include "show/draw_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/units.h"

#define WORDS_LINES_MAX 5
#define TRIES_MAX 8 /* attempts, each with coarser shapes, to stay below the size limit */

/* Writes the styles. Most colours work on white and on near-black; those that must differ are set twice. */
static void styles(struct pen *pen)
{
    pen_put(pen, "<style>\n"
                 "svg{font:11px system-ui,'DejaVu Sans',sans-serif}\n"
                 ".bg{fill:#fff}.t{fill:#1c2126}.m{fill:#5c6670}.h{font-size:16px;font-weight:600}"
                 ".s{font-size:13px;font-weight:600}.n{fill:#fff;font-size:9px;text-anchor:middle}\n"
                 ".box{fill:#f4f6f8;stroke:#8a949e}.dev{fill:#fff;stroke:#b9c1c9}.out{opacity:.55}"
                 ".link{fill:none;stroke:#6b7680}.lk{paint-order:stroke;stroke:#fff;stroke-width:4px}.axis{"
                 "stroke:#8a949e;stroke-width:1}"
                 ".grid{stroke:#8a949e;stroke-opacity:.25}.lane{fill:#e9edf0}.hat{stroke:#b4bdc5}\n");
    pen_put(pen, ".f{fill:#2f78c4}.b{fill:#d9822b}.w{fill:#a8561a}.x{fill:#8d6e2f}.a{fill:#1f9e9e}"
                 ".st{fill:#3d9950}.g{fill:#c2477f}.se{fill:#7c5cc4}.re{fill:#9aa7b3}.o{fill:#707880}"
                 ".mem{fill:#4b8f5c}.full{fill:#c4553a}.cut{fill:#fff;stroke:#8a949e}\n");
    pen_put(pen, "@media(prefers-color-scheme:dark){.bg{fill:#14181c}.t{fill:#e4e8ec}.m{fill:#9aa5b0}"
                 ".box{fill:#1d2329;stroke:#5c6670}.dev{fill:#262d34;stroke:#4a545e}.lane{fill:#22292f}"
                 ".hat{stroke:#3c4650}.link{stroke:#9aa5b0}.lk{stroke:#14181c}.cut{fill:#14181c}}\n</style>\n"
                 "<defs><pattern id=\"idle\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
                 "patternTransform=\"rotate(45)\"><rect class=\"lane\" width=\"6\" height=\"6\"/><path "
                 "class=\"hat\" d=\"M0 0v6\"/></pattern></defs>\n");
}

/* Writes a text in lines of the picture's width; the last line shows when text was cut. */
static double words(struct pen *pen, const char *text, double y)
{
    size_t wide = (size_t)((DRAW_WIDTH - 2 * DRAW_MARGIN) / DRAW_CHAR);
    for (int line = 0; *text && line < WORDS_LINES_MAX; line++) {
        size_t size = strcspn(text, "\n"), take = size;
        if (take > wide) {
            take = wide;
            while (take > wide / 2 && text[take] != ' ')
                take--;
        }
        while (take > 0 && take < size && ((unsigned char)text[take] & 0xc0) == 0x80)
            take--;
        char piece[256];
        snprintf(piece, sizeof(piece), "%.*s%s", (int)(take < 240 ? take : 240), text,
                 line == WORDS_LINES_MAX - 1 && text[take] ? " …" : "");
        pen_put(pen, "<text class=\"t\" x=\"%.0f\" y=\"%.0f\">", DRAW_MARGIN, y);
        pen_text(pen, piece, sizeof(piece));
        pen_put(pen, "</text>\n");
        y += 16;
        text += take;
        text += strspn(text, " \n");
    }
    return y;
}

static double heading(struct pen *pen, const struct draw_input *input, double y)
{
    const struct plan *plan = input->plan;
    char step[32];
    pen_put(pen, "<text class=\"t h\" x=\"%.0f\" y=\"%.0f\">", DRAW_MARGIN, y);
    if (input->title) {
        pen_text(pen, input->title, 80);
        pen_put(pen, " · ");
    }
    pen_put(pen, "%s over %u %s: %s per step, %u micro-batch%s of %s%u row%s</text>\n",
            plan_placement_name(plan->placement), plan->rank_count, plan->rank_count == 1 ? "rank" : "ranks",
            units_seconds(step, input->step_s), plan->micro_batch_count,
            plan->micro_batch_count == 1 ? "" : "es", plan->rows_bound == 1 ? "" : "up to ", plan->rows_bound,
            plan->rows_bound == 1 ? "" : "s");
    return y + 20;
}

static int picture(const struct draw_input *input, double merge_px, struct buf *body, double *height,
                   struct err *err)
{
    struct pen pen = {.out = body, .err = err};
    double y = heading(&pen, input, 30);
    if (input->words)
        y = words(&pen, input->words, y);
    y = draw_topology(&pen, input, y + 8);
    y = draw_timeline(&pen, input, y + 12, merge_px);
    *height = y + DRAW_MARGIN;
    return pen.failed ? -1 : 0;
}

static int timeline_check(const struct draw_input *input, struct err *err)
{
    const struct plan *plan = input->plan;
    for (uint32_t i = 0; i < input->timeline->count; i++) {
        const struct trace_event *e = &input->timeline->events[i];
        if (e->rank >= plan->rank_count || e->program >= PROGRAM_KINDS ||
            e->instr >= plan->ranks[e->rank].programs[e->program].instr_count || e->end_ns < e->begin_ns ||
            e->begin_ns < 0)
            return err_set(err, ERR_INVALID, "drawing: event %u of the timeline is not of this plan", i);
    }
    if (!(input->step_s >= 0) || !isfinite(input->step_s))
        return err_set(err, ERR_INVALID, "drawing: a step of %g s", input->step_s);
    return 0;
}

int draw_svg(const struct draw_input *input, struct buf *out, struct err *err)
{
    struct buf body;
    double height = 0, merge_px = 0.3;
    int result = timeline_check(input, err);
    buf_init(&body, DRAW_BYTES_MAX - 8192);
    for (int tries = 0; result == 0 && tries < TRIES_MAX; tries++, merge_px *= 2) {
        buf_clear(&body);
        result = picture(input, merge_px, &body, &height, err);
        if (result == 0 || err->code != ERR_TOO_BIG || tries == TRIES_MAX - 1)
            break;
        result = 0; /* try again with coarser shapes */
    }
    if (result == 0) {
        struct pen pen = {.out = out, .err = err};
        pen_put(&pen,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                "viewBox=\"0 0 %.0f %.0f\">\n",
                DRAW_WIDTH, height, DRAW_WIDTH, height);
        styles(&pen);
        pen_put(&pen, "<rect class=\"bg\" width=\"%.0f\" height=\"%.0f\"/>\n", DRAW_WIDTH, height);
        result = pen.failed ? -1 : buf_append(out, body.data, body.size, err);
        if (result == 0)
            result = buf_text(out, "</svg>\n", err);
    }
    buf_fini(&body);
    return result;
}
