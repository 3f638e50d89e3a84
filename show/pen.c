/* The pen that writes the picture, and facts about a plan that several parts of the picture need. */
#include "show/pen.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void pen_put(struct pen *pen, const char *fmt, ...)
{
    char text[2001];
    va_list arguments;
    if (pen->failed)
        return;
    va_start(arguments, fmt);
    int size = vsnprintf(text, sizeof(text), fmt, arguments);
    va_end(arguments);
    if (size < 0 || (size_t)size >= sizeof(text))
        pen->failed = err_set(pen->err, ERR_INTERNAL, "drawing: a piece of %d bytes", size) < 0;
    else
        pen->failed = buf_append(pen->out, text, (size_t)size, pen->err) < 0;
}

void pen_text(struct pen *pen, const char *text, size_t most)
{
    size_t size = strlen(text), end = size;
    if (size > most) {
        end = most;
        while (end > 0 && ((unsigned char)text[end] & 0xc0) == 0x80)
            end--;
    }
    for (size_t i = 0; i < end && !pen->failed; i++) {
        const char *as = text[i] == '&'   ? "&amp;"
                         : text[i] == '<' ? "&lt;"
                         : text[i] == '>' ? "&gt;"
                         : text[i] == '"' ? "&quot;"
                                          : NULL;
        if (as)
            pen->failed = buf_text(pen->out, as, pen->err) < 0;
        else
            pen->failed =
                buf_append(pen->out, (unsigned char)text[i] < ' ' ? " " : &text[i], 1, pen->err) < 0;
    }
    if (end < size)
        pen_put(pen, "…");
}

const char *pen_px(char text[24], double px)
{
    long tenths = lround(px * 10);
    if (tenths % 10 == 0)
        snprintf(text, 24, "%ld", tenths / 10);
    else
        snprintf(text, 24, "%.1f", (double)tenths / 10);
    return text;
}

const char *draw_like(const struct draw_input *input, uint32_t rank)
{
    const struct plan_answer *answer = input->answer;
    return answer && answer->plan == input->plan && rank < answer->rank_like_count ? answer->rank_like[rank]
                                                                                   : NULL;
}

int32_t draw_blocks(const struct plan *plan)
{
    int32_t count = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++)
        count = plan->ranks[r].block_end > count ? plan->ranks[r].block_end : count;
    return count;
}
