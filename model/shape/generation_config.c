/* The checks are those of GenerationConfig.__init__ and validate() in transformers 5.24, found by trying
 * every key with values of every type. Keys that accept any value there are not checked. */
#include "model/shape/generation_config.h"

#include <stdio.h>
#include <string.h>

#include "model/files/hub_json.h"

enum { GENERATION_CONFIG_BYTES_MAX = 1 << 20, GENERATION_CONFIG_DEPTH_MAX = 32 };

static const char *const caches[] = {"static",
                                     "offloaded_static",
                                     "sliding_window",
                                     "hybrid",
                                     "hybrid_chunked",
                                     "offloaded_hybrid",
                                     "dynamic",
                                     "offloaded",
                                     "quantized",
                                     "offloaded_hybrid_chunked",
                                     NULL};

static bool is_cache(const json_t *value)
{
    for (size_t i = 0; json_is_string(value) && caches[i]; i++)
        if (strcmp(json_string_value(value), caches[i]) == 0)
            return true;
    return false;
}

/* Returns true for a number, or for true and false, which are the numbers 1 and 0 in Python. */
static bool generation_config_is_number(const json_t *value)
{
    return json_is_number(value) || json_is_boolean(value);
}

static double generation_config_number_of(const json_t *value)
{
    return json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
}

static bool generation_config_is_whole(const json_t *value)
{
    return json_is_integer(value);
}

static bool generation_config_is_end(const json_t *value)
{
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!json_is_integer(json_array_get(value, i)))
            return false;
    return json_is_integer(value) || json_is_array(value);
}

static bool is_weight(const json_t *value)
{
    return json_is_real(value) && json_real_value(value) > 0 && json_real_value(value) < 1;
}

static bool is_early(const json_t *value)
{
    return json_is_boolean(value) ||
           (json_is_string(value) && strcmp(json_string_value(value), "never") == 0) ||
           (json_is_integer(value) && (json_integer_value(value) | 1) == 1);
}

static bool is_positive(const json_t *value)
{
    return generation_config_is_number(value) && generation_config_number_of(value) > 0;
}

static bool generation_config_is_none(const json_t *value)
{
    (void)value;
    return false;
}

static bool generation_config_is_list(const json_t *value)
{
    return json_is_array(value);
}

static bool generation_config_is_empty(const json_t *value)
{
    return json_is_object(value) && json_object_size(value) == 0;
}

/* The types that a key accepts beside null. */
static const struct generation_key {
    const char *name;
    bool (*takes)(const json_t *value);
    const char *words;
} generation_keys[] = {
    {"assistant_ensemble_weight", is_weight, " or a number between 0 and 1"},
    {"cache_implementation", is_cache, " or the name of one of transformers' caches"},
    {"compile_config", generation_config_is_none, ""},
    {"early_stopping", is_early, ", true, false or \"never\""},
    {"eos_token_id", generation_config_is_end, ", a whole number or a list of them"},
    {"max_new_tokens", is_positive, " or a number above 0"},
    {"pad_token_id", generation_config_is_whole, " or a whole number"},
    {"suppress_tokens", generation_config_is_list, " or a list"},
    {"watermarking_config", generation_config_is_empty, ""},
};

/* Checks that several sequences are returned only by sampling or by at least that many beams. */
static int sequences_check(const json_t *document, struct err *err)
{
    const json_t *sequences = json_object_get(document, "num_return_sequences");
    if (!sequences || json_is_null(sequences) ||
        (generation_config_is_number(sequences) && generation_config_number_of(sequences) <= 1))
        return 0;
    const json_t *beams = json_object_get(document, "num_beams");
    const bool samples = json_is_true(json_object_get(document, "do_sample"));
    if (generation_config_is_number(sequences) && samples &&
        (!beams || (json_is_integer(beams) && generation_config_number_of(beams) == 1)))
        return 0;
    if (generation_config_is_number(sequences) && json_is_integer(beams) &&
        generation_config_number_of(beams) >= generation_config_number_of(sequences))
        return 0;
    return err_set(
        err, ERR_INVALID,
        "num_return_sequences: more than one takes do_sample: true, or num_beams of at least as many");
}

static int generation_config_keys_check(const json_t *document, struct err *err)
{
    for (size_t i = 0; i < sizeof(generation_keys) / sizeof(*generation_keys); i++) {
        const struct generation_key *key = &generation_keys[i];
        const json_t *value = json_object_get(document, key->name);
        if (value && !json_is_null(value) && !key->takes(value))
            return err_set(err, ERR_INVALID, "%s: must be null%s", key->name, key->words);
    }
    return sequences_check(document, err);
}

/* Replaces the config's end tokens by those end tokens of the document that are in the vocabulary. */
static int ends_take(const json_t *document, struct model_config *config, char *note, size_t size,
                     struct err *err)
{
    const json_t *value = json_object_get(document, "eos_token_id");
    const bool named = value && !json_is_null(value);
    const size_t count = !named ? 0 : json_is_array(value) ? json_array_size(value) : 1;
    int32_t ends[MODEL_EOS_MAX];
    uint32_t kept = 0;
    if (count > MODEL_EOS_MAX)
        return err_set(err, ERR_INVALID, "eos_token_id: names %zu tokens; at most %d are kept", count,
                       MODEL_EOS_MAX);
    for (size_t i = 0; i < count; i++) {
        json_int_t id = json_integer_value(json_is_array(value) ? json_array_get(value, i) : value);
        if (id >= 0 && id < (json_int_t)config->vocab)
            ends[kept++] = (int32_t)id;
    }
    if (kept == config->eos_count && memcmp(ends, config->eos, kept * sizeof(*ends)) == 0)
        return 0;
    memcpy(config->eos, ends, kept * sizeof(*ends));
    config->eos_count = kept;
    snprintf(
        note, size,
        "generation_config.json and config.json name other eos_token_id: a sample ends as the former says");
    return 0;
}

int generation_config_read(struct model_source *source, struct model_config *config, char *note, size_t size,
                           struct err *err)
{
    static const char name[] = "generation_config.json";
    struct buf text = {.limit = GENERATION_CONFIG_BYTES_MAX};
    struct err ignored;
    int status = 0;
    note[0] = '\0';
    if (model_source_find(source, name) < 0)
        return 0;
    if (model_source_read_file(source, name, GENERATION_CONFIG_BYTES_MAX, &text, err) < 0) {
        buf_fini(&text);
        return err_wrap(err, "%s", name);
    }
    json_t *document =
        hub_json_parse_settings((const char *)text.data, text.size, GENERATION_CONFIG_DEPTH_MAX, &ignored);
    if (!document)
        snprintf(note, size, "generation_config.json is no JSON and is passed over, as transformers does");
    else if (!json_is_object(document))
        status = err_set(err, ERR_INVALID, "must be an object");
    else if ((status = generation_config_keys_check(document, err)) == 0)
        status = ends_take(document, config, note, size, err);
    json_decref(document);
    buf_fini(&text);
    return status < 0 ? err_wrap(err, "%s", name) : 0;
}
