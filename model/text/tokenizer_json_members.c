/* Reads single members of tokenizer.json's objects (tokenizer_json_private.h). */
#include "model/text/tokenizer_json_private.h"

#include <string.h>

#include "model/text/utf8.h"

const char *json_type_of(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "(none)";
}

bool json_is_type(const json_t *object, const char *type)
{
    return strcmp(json_type_of(object), type) == 0;
}

static int wrong(const json_t *object, const char *key, const char *wanted, struct err *err)
{
    return err_set(err, ERR_INVALID, "tokenizer.json: %s.%s is not %s", json_type_of(object), key, wanted);
}

int json_flag(const json_t *object, const char *key, enum json_absent absent, bool nullable, bool *flag,
              struct err *err)
{
    const json_t *value = json_object_get(object, key);
    if (!value || (nullable && json_is_null(value))) {
        *flag = absent == JSON_ABSENT_TRUE;
        return absent == JSON_ABSENT_ERROR ? wrong(object, key, "there", err) : 0;
    }
    *flag = json_is_true(value);
    return json_is_boolean(value) ? 0 : wrong(object, key, "true or false", err);
}

int json_text(const json_t *object, const char *key, const char **text, size_t *size, struct err *err)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value))
        return wrong(object, key, "a text", err);
    *text = json_string_value(value);
    *size = json_string_length(value);
    return 0;
}

int json_character(const json_t *object, const char *key, const char **text, size_t *size, struct err *err)
{
    uint32_t code;
    unsigned bad;
    if (json_text(object, key, text, size, err) < 0)
        return -1;
    return *size > 0 && utf8_decode((const uint8_t *)*text, *size, &code, &bad, NULL) == *size
               ? 0
               : wrong(object, key, "one character", err);
}

int json_count(const json_t *object, const char *key, uint32_t max, uint32_t *count, struct err *err)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > (json_int_t)max) {
        return err_set(err, ERR_INVALID, "tokenizer.json: %s.%s is not a whole number from 0 to %u",
                       json_type_of(object), key, max);
    }
    *count = (uint32_t)json_integer_value(value);
    return 0;
}

int json_list(const json_t *object, const char *key, const json_t **list, struct err *err)
{
    *list = json_object_get(object, key);
    return json_is_array(*list) ? 0 : wrong(object, key, "a list", err);
}

struct pattern *json_pattern(const json_t *object, const char **literal, size_t *literal_size,
                             struct err *err)
{
    const json_t *given = json_object_get(object, "pattern");
    const json_t *regex = json_object_get(given, "Regex");
    const json_t *text = json_object_get(given, "String");
    *literal = NULL;
    if (json_object_size(given) != 1 || !(json_is_string(regex) || json_is_string(text))) {
        wrong(object, "pattern", "{\"String\": text} or {\"Regex\": text}", err);
        return NULL;
    }
    struct pattern *pattern = json_is_string(regex)
                                  ? pattern_regex(json_string_value(regex), json_string_length(regex), err)
                                  : pattern_literal(json_string_value(text), json_string_length(text), err);
    if (!pattern) {
        err_wrap(err, "tokenizer.json: %s.pattern", json_type_of(object));
    } else if (json_is_string(text) && json_string_length(text) > 0) {
        *literal = json_string_value(text);
        *literal_size = json_string_length(text);
    }
    return pattern;
}

int json_metaspace(const json_t *object, struct metaspace *out, struct err *err)
{
    static const char *const schemes[] = {
        [METASPACE_ALWAYS] = "always", [METASPACE_FIRST] = "first", [METASPACE_NEVER] = "never"};
    const json_t *scheme = json_object_get(object, "prepend_scheme");
    bool old;
    *out = (struct metaspace){.prefix = METASPACE_ALWAYS};
    if (json_character(object, "replacement", &out->mark, &out->mark_size, err) < 0 ||
        json_flag(object, "add_prefix_space", JSON_ABSENT_TRUE, true, &old, err) < 0 ||
        json_flag(object, "split", JSON_ABSENT_TRUE, true, &out->split, err) < 0) {
        return -1;
    }
    if (scheme) {
        int found = -1;
        for (int i = METASPACE_ALWAYS; i <= METASPACE_NEVER && json_is_string(scheme); i++)
            found = strcmp(json_string_value(scheme), schemes[i]) == 0 ? i : found;
        if (found < 0)
            return wrong(object, "prepend_scheme", "\"always\", \"first\" or \"never\"", err);
        out->prefix = (enum metaspace_prefix)found;
    }
    return !old && out->prefix != METASPACE_NEVER
               ? wrong(object, "add_prefix_space",
                       "true as its prepend_scheme has it: write \"prepend_scheme\": \"never\"", err)
               : 0;
}
