/* Phrases for people. See words.h. */
#include "show/words.h"

#include <stdio.h>

#define SAME 0.0005  /* relative difference below which two times count as equal */
#define A_LITTLE 0.1 /* relative difference up to which it is written in per cent */

char *words_range(char *out, size_t size, int32_t begin, int32_t end, int32_t count)
{
    int32_t first = begin > 1 ? begin : 1, last = end < count ? end - 1 : count - 2;
    char layers[40] = "";
    if (begin <= 0 && end >= count) {
        snprintf(out, size, "everything");
        return out;
    }
    if (first == last)
        snprintf(layers, sizeof(layers), "layer %d", (int)first);
    else if (first < last)
        snprintf(layers, sizeof(layers), "layers %d-%d", (int)first, (int)last);
    snprintf(out, size, "%s%s%s%s%s", begin <= 0 ? "embedding" : "", begin <= 0 && *layers ? ", " : "",
             layers, end >= count && *layers ? ", " : "", end >= count ? "head" : "");
    return out;
}

char *words_ratio(char out[48], double seconds, double base)
{
    double ratio = seconds / base, percent = 100 * (ratio - 1);
    if (ratio > 1 - SAME && ratio < 1 + SAME)
        snprintf(out, 48, "the same");
    else if (ratio >= 1 && ratio < 1 + A_LITTLE)
        snprintf(out, 48, "%.1f %% more", percent);
    else if (ratio < 1 && ratio > 1 - A_LITTLE)
        snprintf(out, 48, "%.1f %% less", -percent);
    else if (ratio >= 10)
        snprintf(out, 48, "%.0f times as long", ratio);
    else
        snprintf(out, 48, "%.2f times as long", ratio);
    return out;
}
