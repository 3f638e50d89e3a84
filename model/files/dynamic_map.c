#include "model/files/dynamic_map.h"

#include <math.h>

/* Returns point i of `count` evenly spaced ones from 0.1 to 1, computed from the nearer end and rounded once,
 * as PyTorch's linspace does. */
static float point(int i, int count)
{
    float step = (1.0f - 0.1f) / (float)(count - 1);
    return i < count / 2 ? fmaf(step, (float)i, 0.1f) : fmaf(-step, (float)(count - 1 - i), 1.0f);
}

void dynamic_map(bool with_sign, float *map)
{
    static const float decades[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
    int zero = with_sign ? 127 : 0, at = zero;
    map[at++] = 0;
    for (int decade = 0; decade < 7; decade++) {
        int count = with_sign ? 1 << decade : 2 << decade;
        for (int i = 0; i < count; i++)
            map[at++] = decades[decade] * ((point(i, count + 1) + point(i + 1, count + 1)) / 2.0f);
    }
    map[at] = 1;
    for (int i = 0; i < zero; i++)
        map[i] = -map[2 * zero - i];
}
