#include "engine/stage/rope.h"

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

/* Frequency i under yarn: between the unchanged frequency and that divided by `factor`, along the ramp from
 * `first` to `last` (model_rope_ramp()). */
static float yarn_scaled(const struct rope_config *rope, float power, uint32_t i, double first, double last)
{
    float ramp = ((float)i - (float)first) / (float)(last - first);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    float kept = 1.0f - ramp;
    return 1.0f / ((float)rope->factor * power) * (1.0f - kept) + 1.0f / power * kept;
}

int rope_frequencies(const struct rope_config *rope, uint32_t width, uint32_t positions, float *inverse,
                     struct err *err)
{
    double first = 0, last = 1;
    const float *factors = positions > rope->original_max_positions ? rope->long_factor : rope->short_factor;
    if (model_rope_check(rope, positions, err) < 0)
        return -1;
    if (rope->kind == ROPE_LONGROPE && rope->factor_count != width / 2)
        return err_set(err, ERR_INVALID, "longrope: %u factors for %u frequencies", rope->factor_count,
                       width / 2);
    if (rope->kind == ROPE_YARN)
        model_rope_ramp(rope, width, &first, &last);
    for (uint32_t i = 0; i < width / 2; i++) {
        float exponent = (float)(2 * i) / (float)width;
        float power = (float)pow((double)(float)rope->theta, (double)exponent);
        inverse[i] = 1.0f / power;
        if (rope->kind == ROPE_LINEAR)
            inverse[i] /= (float)rope->factor;
        else if (rope->kind == ROPE_LLAMA3)
            inverse[i] = llama3_scaled(rope, inverse[i]);
        else if (rope->kind == ROPE_YARN)
            inverse[i] = yarn_scaled(rope, power, i, first, last);
        else if (rope->kind == ROPE_LONGROPE)
            inverse[i] = 1.0f / (factors[i] * power);
        else if (rope->kind == ROPE_PROPORTIONAL)
            inverse[i] = i < model_rope_rotated(rope, width) ? inverse[i] / (float)rope->factor : 0;
    }
    return 0;
}

float rope_scale(const struct rope_config *rope)
{
    return rope->attention > 0 ? (float)rope->attention : 1.0f;
}

void rope_row(const float *inverse, uint32_t width, uint32_t position, float scale, float *row)
{
    for (uint32_t i = 0; i < width / 2; i++) {
        float angle = (float)position * inverse[i];
        row[i] = (float)cos((double)angle) * scale;
        row[width / 2 + i] = (float)sin((double)angle) * scale;
    }
}
