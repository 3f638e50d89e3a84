/* Draws a curve in braille characters (U+2800 and following), in which each dot is one bit. */
#include "cli/curve.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { LABEL_COLUMNS = 11, LEAST_COLUMNS = 24, LEAST_ROWS = 4 };

/* A picture of braille characters, by row and column from its upper left corner; a cell has a bit per dot. */
struct dots {
    unsigned columns, rows; /* in characters */
    uint8_t cells[CURVE_ROWS_MAX][CURVE_COLUMNS_MAX];
};

static void join_neighbours(struct step_curve *curve)
{
    for (unsigned i = 0; i < CURVE_BUCKETS; i++) {
        bool there = 2 * i + 1 < CURVE_BUCKETS;
        curve->least[i] = there ? fminf(curve->least[2 * i], curve->least[2 * i + 1]) : NAN;
        curve->most[i] = there ? fmaxf(curve->most[2 * i], curve->most[2 * i + 1]) : NAN;
    }
    curve->width *= 2;
}

void curve_add(struct step_curve *curve, int64_t step, double value)
{
    if (step < 0 || step > INT64_MAX / 4)
        return;
    if (curve->width == 0) {
        curve->width = 1;
        for (unsigned i = 0; i < CURVE_BUCKETS; i++)
            curve->least[i] = curve->most[i] = NAN;
    }
    while (step / curve->width >= CURVE_BUCKETS)
        join_neighbours(curve);
    unsigned at = (unsigned)(step / curve->width);
    for (unsigned i = at + (step % curve->width != 0); step <= curve->last && i < CURVE_BUCKETS; i++)
        curve->least[i] = curve->most[i] = NAN;
    curve->last = step;
    if (!isfinite(value))
        return;
    curve->least[at] = fminf(curve->least[at], (float)value);
    curve->most[at] = fmaxf(curve->most[at], (float)value);
}

static void set_dot(struct dots *dots, unsigned x, unsigned y)
{
    static const uint8_t bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    if (x < 2 * dots->columns && y < 4 * dots->rows)
        dots->cells[y / 4][x / 2] |= bits[y % 4][x % 2];
}

/* Sets the dots of column x between two heights, which are in dots from the top. */
static void set_column(struct dots *dots, unsigned x, double a, double b)
{
    for (double y = floor(fmin(a, b) + 0.5); y <= fmax(a, b) + 0.5; y++)
        set_dot(dots, x, (unsigned)y);
}

static void set_line(struct dots *dots, double x0, double y0, double x1, double y1)
{
    for (double x = x0; x < x1; x++) {
        double end = fmin(x + 1, x1);
        set_column(dots, (unsigned)x, y0 + (x - x0) / (x1 - x0) * (y1 - y0),
                   y0 + (end - x0) / (x1 - x0) * (y1 - y0));
    }
}

static void set_dots(const struct step_curve *curve, unsigned count, float low, float high, struct dots *dots)
{
    double wide = 2.0 * dots->columns - 1, tall = 4.0 * dots->rows - 1, before_x = 0, before = NAN;
    double scale = high > low ? tall / ((double)high - low) : 0;
    for (unsigned i = 0; i < count; i++) {
        if (isnan(curve->most[i]))
            continue;
        double x = count > 1 ? floor(wide * i / (count - 1)) : 0;
        double top = (high - curve->most[i]) * scale, bottom = (high - curve->least[i]) * scale;
        set_column(dots, (unsigned)x, top, bottom);
        if (!isnan(before))
            set_line(dots, before_x, before, x, (top + bottom) / 2);
        before_x = x;
        before = (top + bottom) / 2;
    }
}

unsigned curve_draw(const struct step_curve *curve, unsigned columns, unsigned rows, FILE *out)
{
    struct dots dots = {0};
    float low = INFINITY, high = -INFINITY;
    unsigned count = curve->width > 0 ? (unsigned)(curve->last / curve->width) + 1 : 0;
    for (unsigned i = 0; i < count; i++) {
        low = fminf(low, curve->least[i]);
        high = fmaxf(high, curve->most[i]);
    }
    if (curve->last < 1 || !isfinite(low) || columns < LEAST_COLUMNS || rows < LEAST_ROWS)
        return 0;
    dots.columns = columns - LABEL_COLUMNS < CURVE_COLUMNS_MAX ? columns - LABEL_COLUMNS : CURVE_COLUMNS_MAX;
    dots.rows = rows - 1 < CURVE_ROWS_MAX ? rows - 1 : CURVE_ROWS_MAX;
    set_dots(curve, count, low, high, &dots);
    for (unsigned row = 0; row < dots.rows; row++) {
        char label[16] = "";
        if (row == 0 || row + 1 == dots.rows)
            snprintf(label, sizeof(label), "%.4g", row == 0 ? high : low);
        fprintf(out, "%9s ┤", label);
        for (unsigned column = 0; column < dots.columns; column++) {
            uint8_t bits = dots.cells[row][column];
            const char utf8[] = {'\xe2', (char)(0xa0 + (bits >> 6)), (char)(0x80 + (bits & 0x3f)), '\0'};
            fputs(bits ? utf8 : " ", out);
        }
        fputc('\n', out);
    }
    fprintf(out, "%9s └ step 1 to %" PRId64 "\n", "loss", curve->last + 1);
    return dots.rows + 1;
}
