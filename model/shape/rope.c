/* Reads and writes rotary settings and computes their frequencies. Formulas and key names are those of
 * transformers' modeling_rope_utils.py. */
#include "model/shape/rope.h"

#include <math.h>
#include <string.h>

#include "common/json.h"

static const double two_pi = 6.283185307179586476925286766559;

/* --- reading --- */

/* Reads a list with one factor per frequency. */
static int factors_read(struct json_reader *r, const char *key, uint32_t *count, float *out)
{
    const json_t *array = NULL;
    if (jr_array(r, key, JR_REQUIRED, 1, ROPE_FACTORS_MAX, &array) <= 0)
        return -1;
    for (size_t i = 0; i < json_array_size(array); i++) {
        double value = json_number_value(json_array_get(array, i));
        if (!(value >= 1e-6 && value <= 1e9))
            return jr_fail(r, key, "item %zu must be a number from 1e-6 to 1e9", i);
        out[i] = (float)value;
    }
    if (*count > 0 && *count != json_array_size(array))
        return jr_fail(r, key, "has %zu numbers, and the other %u", json_array_size(array), *count);
    *count = (uint32_t)json_array_size(array);
    return 0;
}

double rope_magnitude(double scale, double multiplier)
{
    return scale <= 1 ? 1 : 0.1 * multiplier * log(scale) + 1;
}

static void yarn_read(struct json_reader *r, double ratio, struct rope_config *rope)
{
    double by_dim = 0, all_dim = 0;
    bool truncate = true;
    rope->kind = ROPE_YARN;
    rope->factor = ratio;
    rope->beta_fast = rope->beta_slow = 0;
    jr_f64(r, "factor", JR_OPTIONAL, 1e-6, 1e6, &rope->factor);
    jr_f64(r, "beta_fast", JR_OPTIONAL, 0, 1e6, &rope->beta_fast);
    jr_f64(r, "beta_slow", JR_OPTIONAL, 0, 1e6, &rope->beta_slow);
    jr_f64(r, "mscale", JR_OPTIONAL, 0, 1e6, &by_dim);
    jr_f64(r, "mscale_all_dim", JR_OPTIONAL, 0, 1e6, &all_dim);
    jr_bool(r, "truncate", JR_OPTIONAL, &truncate);
    rope->beta_fast = rope->beta_fast > 0 ? rope->beta_fast : 32;
    rope->beta_slow = rope->beta_slow > 0 ? rope->beta_slow : 1;
    rope->scores_mscale = all_dim;
    rope->ramp_exact = !truncate;
    rope->attention = by_dim > 0 && all_dim > 0
                          ? rope_magnitude(rope->factor, by_dim) / rope_magnitude(rope->factor, all_dim)
                          : rope_magnitude(rope->factor, 1);
    jr_f64(r, "attention_factor", JR_OPTIONAL, 1e-6, 1e6, &rope->attention);
}

static void longrope_read(struct json_reader *r, double ratio, struct rope_config *rope)
{
    rope->kind = ROPE_LONGROPE;
    memcpy(rope->kind_name, "longrope", 9);
    rope->factor = ratio;
    factors_read(r, "short_factor", &rope->factor_count, rope->short_factor);
    factors_read(r, "long_factor", &rope->factor_count, rope->long_factor);
    jr_f64(r, "factor", JR_OPTIONAL, 1e-6, 1e6, &rope->factor);
    double original = rope->original_max_positions;
    rope->attention = rope->factor <= 1 || original <= 1 ? 1 : sqrt(1 + log(rope->factor) / log(original));
    jr_f64(r, "attention_factor", JR_OPTIONAL, 1e-6, 1e6, &rope->attention);
}

static void llama3_read(struct json_reader *r, struct rope_config *rope)
{
    rope->kind = ROPE_LLAMA3;
    jr_f64(r, "factor", JR_REQUIRED, 1, 1e6, &rope->factor);
    jr_f64(r, "low_freq_factor", JR_REQUIRED, 1e-6, 1e6, &rope->low_freq_factor);
    jr_f64(r, "high_freq_factor", JR_REQUIRED, 1e-6, 1e6, &rope->high_freq_factor);
    if (!r->failed && rope->low_freq_factor >= rope->high_freq_factor)
        jr_fail(r, "low_freq_factor", "%g must be below high_freq_factor, %g", rope->low_freq_factor,
                rope->high_freq_factor);
}

/* Reads the number of tokens that the model was first trained for; `beside`, if above 0, takes precedence. */
static void original_read(struct json_reader *r, uint32_t max_positions, double beside, bool required,
                          struct rope_config *rope)
{
    double original = max_positions;
    jr_f64(r, "original_max_position_embeddings", required && !(beside > 0) ? JR_REQUIRED : JR_OPTIONAL, 1,
           1e9, &original);
    rope->original_max_positions = beside > 0 ? beside : original;
}

int rope_parse(const json_t *object, const char *path, uint32_t max_positions, double beside,
               struct rope_config *rope, struct err *err)
{
    struct json_reader r;
    const char *kind = NULL;
    jr_init(&r, object, path, err);
    jr_str(&r, "type", JR_OPTIONAL, 1, 15, &kind); /* older name of rope_type */
    jr_str(&r, "rope_type", JR_OPTIONAL, 1, 15, &kind);
    jr_f64(&r, "rope_theta", JR_OPTIONAL, 1, 1e12, &rope->theta);
    const char *name = json_object_get(object, "rope_type") ? "rope_type" : "type";
    if (!r.failed && json_is_null(json_object_get(object, name)))
        jr_fail(&r, name, "must be a text, is null (of rope_scaling or rope_parameters)");
    if (!r.failed && json_is_null(json_object_get(object, "rope_theta")))
        jr_fail(&r, "rope_theta", "must be a number, is null");
    if (r.failed)
        return -1;
    kind = kind ? kind : "default";
    memset(rope->kind_name, 0, sizeof(rope->kind_name));
    memcpy(rope->kind_name, kind, strlen(kind));
    /* Phi-3's first files call longrope "su", or "yarn" with lists of factors. */
    bool factors = json_object_get(object, "short_factor") != NULL, yarn = strcmp(kind, "yarn") == 0;
    bool longrope = strcmp(kind, "longrope") == 0 || strcmp(kind, "su") == 0 || (yarn && factors),
         llama3 = strcmp(kind, "llama3") == 0;
    yarn = yarn && !factors;
    if (longrope || yarn)
        original_read(&r, max_positions, beside, false, rope);
    double ratio = longrope || yarn ? max_positions / rope->original_max_positions : 1;
    if (strcmp(kind, "default") == 0) {
        rope->kind = ROPE_DEFAULT;
    } else if (strcmp(kind, "linear") == 0) {
        rope->kind = ROPE_LINEAR;
        jr_f64(&r, "factor", JR_REQUIRED, 1, 1e6, &rope->factor);
    } else if (strcmp(kind, "dynamic") == 0) {
        rope->kind = ROPE_DYNAMIC;
        rope->original_max_positions = max_positions;
        jr_f64(&r, "factor", JR_REQUIRED, 1, 1e6, &rope->factor);
    } else if (strcmp(kind, "proportional") == 0) {
        rope->kind = ROPE_PROPORTIONAL;
        rope->partial = 1;
        jr_f64(&r, "partial_rotary_factor", JR_OPTIONAL, 0, 1, &rope->partial);
        jr_f64(&r, "factor", JR_OPTIONAL, 1e-6, 1e6, &rope->factor);
    } else if (llama3) {
        llama3_read(&r, rope);
        original_read(&r, max_positions, beside, true, rope);
    } else if (yarn) {
        yarn_read(&r, ratio, rope);
    } else if (longrope) {
        longrope_read(&r, ratio, rope);
    } else {
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: the rotary scaling \"%.64s\" is not known; known are default, linear, llama3, "
                       "yarn, longrope, dynamic and proportional",
                       path, kind);
    }
    return jr_finish_loose(&r);
}

int rope_check_factors(const struct rope_config *rope, uint32_t dim, struct err *err)
{
    if (rope->kind == ROPE_LONGROPE && rope->factor_count != dim / 2)
        return err_set(err, ERR_INVALID, "longrope: %u factors for the %u frequencies of a head",
                       rope->factor_count, dim / 2);
    return 0;
}

/* --- writing --- */

static json_t *factors_json(const float *factors, uint32_t count)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(array, json_real((double)factors[i]));
    return array;
}

json_t *rope_to_json(const struct rope_config *rope)
{
    json_t *object = json_object();
    bool original = rope->kind == ROPE_LLAMA3 || rope->kind == ROPE_YARN || rope->kind == ROPE_LONGROPE;
    json_object_set_new(object, "rope_theta", json_real(rope->theta));
    json_object_set_new(object, "rope_type", json_string(rope->kind_name));
    if (rope->kind == ROPE_PROPORTIONAL)
        json_object_set_new(object, "partial_rotary_factor", json_real(rope->partial));
    if (original || rope->kind == ROPE_LINEAR || rope->kind == ROPE_DYNAMIC ||
        rope->kind == ROPE_PROPORTIONAL)
        json_object_set_new(object, "factor", json_real(rope->factor));
    if (original)
        json_object_set_new(object, "original_max_position_embeddings",
                            json_integer((json_int_t)rope->original_max_positions));
    if (rope->kind == ROPE_LLAMA3) {
        json_object_set_new(object, "low_freq_factor", json_real(rope->low_freq_factor));
        json_object_set_new(object, "high_freq_factor", json_real(rope->high_freq_factor));
    }
    if (rope->kind == ROPE_YARN || rope->kind == ROPE_LONGROPE)
        json_object_set_new(object, "attention_factor", json_real(rope->attention));
    if (rope->kind == ROPE_YARN) {
        json_object_set_new(object, "beta_fast", json_real(rope->beta_fast));
        json_object_set_new(object, "beta_slow", json_real(rope->beta_slow));
        json_object_set_new(object, "truncate", json_boolean(!rope->ramp_exact));
        if (rope->scores_mscale > 0)
            json_object_set_new(object, "mscale_all_dim", json_real(rope->scores_mscale));
    }
    if (rope->query_beta > 0)
        json_object_set_new(object, "llama_4_scaling_beta", json_real(rope->query_beta));
    if (rope->kind == ROPE_LONGROPE) {
        json_object_set_new(object, "short_factor", factors_json(rope->short_factor, rope->factor_count));
        json_object_set_new(object, "long_factor", factors_json(rope->long_factor, rope->factor_count));
    }
    return object;
}

/* --- frequencies --- */

/* Applies Meta's scaling of Llama 3.1: wavelengths shorter than original/high are kept, longer than
 * original/low divided by factor, those between blended linearly in original/wavelength. */
static double scale_llama3(const struct rope_config *rope, double frequency)
{
    double wavelength = two_pi / frequency;
    if (wavelength < rope->original_max_positions / rope->high_freq_factor)
        return frequency;
    if (wavelength > rope->original_max_positions / rope->low_freq_factor)
        return frequency / rope->factor;
    double smooth = (rope->original_max_positions / wavelength - rope->low_freq_factor) /
                    (rope->high_freq_factor - rope->low_freq_factor);
    return (1 - smooth) * frequency / rope->factor + smooth * frequency;
}

/* Returns the index, which need not be whole, of the frequency that makes `turns` turns within
 * original_max_positions tokens. */
static double turning(const struct rope_config *rope, uint32_t dim, double turns)
{
    return dim * log(rope->original_max_positions / (turns * two_pi)) / (2 * log(rope->theta));
}

void model_rope_ramp(const struct rope_config *rope, uint32_t dim, double *first, double *last)
{
    double low = turning(rope, dim, rope->beta_fast), high = turning(rope, dim, rope->beta_slow);
    low = fmax(rope->ramp_exact ? low : floor(low), 0);
    high = fmin(rope->ramp_exact ? high : ceil(high), dim - 1.0);
    *first = low;
    *last = low == high ? high + 0.001 : high;
}

uint32_t model_rope_rotated(const struct rope_config *rope, uint32_t dim)
{
    return (uint32_t)floor(rope->partial * dim / 2);
}

int model_rope_check(const struct rope_config *rope, uint32_t positions, struct err *err)
{
    if (rope->kind == ROPE_OTHER)
        return err_set(err, ERR_UNSUPPORTED, "the rotary scaling \"%s\" can be planned but not run yet",
                       rope->kind_name);
    if (rope->kind == ROPE_DYNAMIC && positions > rope->original_max_positions)
        return err_set(err, ERR_UNSUPPORTED,
                       "rows of %u tokens: dynamic rotary scaling changes the model beyond its "
                       "max_position_embeddings, %.0f, and is not computed there",
                       positions, rope->original_max_positions);
    if (rope->query_beta > 0 && positions > rope->original_max_positions)
        return err_set(err, ERR_UNSUPPORTED,
                       "rows of %u tokens: llama_4_scaling_beta changes the model beyond "
                       "original_max_position_embeddings, %.0f, and is not computed there",
                       positions, rope->original_max_positions);
    return 0;
}

int model_rope_frequencies_of(const struct rope_config *rope, uint32_t dim, uint32_t positions,
                              double *inv_freq, struct err *err)
{
    double first = 0, last = 1;
    const float *factors = positions > rope->original_max_positions ? rope->long_factor : rope->short_factor;
    if (model_rope_check(rope, positions, err) < 0 || rope_check_factors(rope, dim, err) < 0)
        return -1;
    if (rope->kind == ROPE_YARN)
        model_rope_ramp(rope, dim, &first, &last);
    for (uint32_t i = 0; i < dim / 2; i++) {
        double frequency = pow(rope->theta, -2.0 * i / dim);
        double blend = fmin(fmax((i - first) / (last - first), 0), 1);
        if (rope->kind == ROPE_LINEAR)
            frequency /= rope->factor;
        else if (rope->kind == ROPE_LLAMA3)
            frequency = scale_llama3(rope, frequency);
        else if (rope->kind == ROPE_YARN)
            frequency *= 1 - blend + blend / rope->factor;
        else if (rope->kind == ROPE_LONGROPE)
            frequency /= (double)factors[i];
        else if (rope->kind == ROPE_PROPORTIONAL)
            frequency = i < model_rope_rotated(rope, dim) ? frequency / rope->factor : 0;
        inv_freq[i] = frequency;
    }
    return 0;
}
