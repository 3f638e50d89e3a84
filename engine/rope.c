#include "engine/rope.h"

#include <math.h>

static float llama3_scaled(const struct rope_config *rope, float inverse)
{
    const float turn = 6.28318530717958647692f;
    float low = (float)(rope->original_max_positions / rope->low_freq_factor);
    float high = (float)(rope->original_max_positions / rope->high_freq_factor);
    float wavelength = turn / inverse;
    if (wavelength > low)
        return inverse / (float)rope->factor;
    if (wavelength < high)
        return inverse;
    float smooth = ((float)rope->original_max_positions / wavelength - (float)rope->low_freq_factor) /
                   (float)(rope->high_freq_factor - rope->low_freq_factor);
    return (1.0f - smooth) * (inverse / (float)rope->factor) + smooth * inverse;
}

int rope_frequencies(const struct rope_config *rope, uint32_t width, float *inverse, struct err *err)
{
    if (rope->kind == ROPE_OTHER)
        return err_set(err, ERR_UNSUPPORTED, "rotary scaling '%s' is not computed", rope->kind_name);
    for (uint32_t i = 0; i < width / 2; i++) {
        float exponent = (float)(2 * i) / (float)width;
        inverse[i] = 1.0f / (float)pow((double)(float)rope->theta, (double)exponent);
        if (rope->kind == ROPE_LINEAR)
            inverse[i] /= (float)rope->factor;
        else if (rope->kind == ROPE_LLAMA3)
            inverse[i] = llama3_scaled(rope, inverse[i]);
    }
    return 0;
}

void rope_row(const float *inverse, uint32_t width, uint32_t position, float *row)
{
    for (uint32_t i = 0; i < width / 2; i++) {
        float angle = (float)position * inverse[i];
        row[i] = (float)cos((double)angle);
        row[width / 2 + i] = (float)sin((double)angle);
    }
}
