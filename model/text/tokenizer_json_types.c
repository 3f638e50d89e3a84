/* This file checks the types of tokenizer.json's members that no reader of a section looks at. What
 * `tokenizers` refuses is refused, even if it decides nothing here. The types are those of the structures
 * that tokenizers 0.23 reads (truncation.rs, padding.rs, added_vocabulary.rs and processors/ there). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/files/hub_json.h"
#include "model/text/tokenizer_json_private.h"

enum member_type {
    MEMBER_TEXT,
    MEMBER_FLAG,
    MEMBER_ID,    /* an integer from 0 to 2^32 - 1 */
    MEMBER_COUNT, /* an integer from 0 to 2^63 - 1 */
    MEMBER_SIDE,  /* "Left" or "Right" */
    MEMBER_STRATEGY,
    MEMBER_PADDING,
    MEMBER_IDS,
    MEMBER_TEXTS,
    MEMBER_PAIR /* a list of a text and an id */
};

struct json_member {
    const char *key;
    enum member_type type;
    bool optional, nullable;
};

static bool is_count(const json_t *value, json_int_t max)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 && json_integer_value(value) <= max;
}

static bool tokenizer_json_types_is_one_of(const json_t *value, const char *const *names, size_t count)
{
    bool found = false;
    for (size_t i = 0; i < count && json_is_string(value); i++)
        found = found || strcmp(json_string_value(value), names[i]) == 0;
    return found;
}

/* Returns true for a list of ids, or of texts. */
static bool tokenizer_json_types_is_list(const json_t *list, bool ids)
{
    bool good = json_is_array(list);
    for (size_t i = 0; i < json_array_size(list) && good; i++) {
        const json_t *item = json_array_get(list, i);
        good = ids ? is_count(item, UINT32_MAX) : json_is_string(item);
    }
    return good;
}

static bool tokenizer_json_types_is_type(const json_t *value, enum member_type type)
{
    static const char *const sides[] = {"Left", "Right"};
    static const char *const strategies[] = {"LongestFirst", "OnlyFirst", "OnlySecond"};
    static const char *const paddings[] = {"BatchLongest"};
    switch (type) {
    case MEMBER_TEXT:
        return json_is_string(value);
    case MEMBER_FLAG:
        return json_is_boolean(value);
    case MEMBER_ID:
        return is_count(value, UINT32_MAX);
    case MEMBER_COUNT:
        return is_count(value, INT64_MAX);
    case MEMBER_SIDE:
        return tokenizer_json_types_is_one_of(value, sides, 2);
    case MEMBER_STRATEGY:
        return tokenizer_json_types_is_one_of(value, strategies, 3);
    case MEMBER_PADDING:
        return tokenizer_json_types_is_one_of(value, paddings, 1) ||
               (json_object_size(value) == 1 && is_count(json_object_get(value, "Fixed"), INT64_MAX));
    case MEMBER_IDS:
        return tokenizer_json_types_is_list(value, true);
    case MEMBER_TEXTS:
        return tokenizer_json_types_is_list(value, false);
    case MEMBER_PAIR:
        return json_array_size(value) == 2 && json_is_string(json_array_get(value, 0)) &&
               is_count(json_array_get(value, 1), UINT32_MAX);
    }
    return false;
}

static int members_check(const json_t *object, const char *where, const struct json_member *members,
                         size_t count, struct err *err)
{
    static const char *const words[] = {[MEMBER_TEXT] = "a text",
                                        [MEMBER_FLAG] = "true or false",
                                        [MEMBER_ID] = "a whole number from 0 to 4294967295",
                                        [MEMBER_COUNT] = "a whole number from 0",
                                        [MEMBER_SIDE] = "\"Left\" or \"Right\"",
                                        [MEMBER_STRATEGY] =
                                            "\"LongestFirst\", \"OnlyFirst\" or \"OnlySecond\"",
                                        [MEMBER_PADDING] = "\"BatchLongest\" or {\"Fixed\": a whole number}",
                                        [MEMBER_IDS] = "a list of token ids",
                                        [MEMBER_TEXTS] = "a list of texts",
                                        [MEMBER_PAIR] = "[text, token id]"};
    if (!json_is_object(object))
        return err_set(err, ERR_INVALID, "tokenizer.json: %s is not an object", where);
    for (size_t i = 0; i < count; i++) {
        const struct json_member *m = &members[i];
        const json_t *value = json_object_get(object, m->key);
        const bool none = !value ? m->optional : m->nullable && json_is_null(value);
        if (!none && !tokenizer_json_types_is_type(value, m->type)) {
            return err_set(err, ERR_INVALID, "tokenizer.json: %s.%s is not %s", where, m->key,
                           words[m->type]);
        }
    }
    return 0;
}

#define CHECK(object, where, members, err)                                                                   \
    members_check(object, where, members, sizeof(members) / sizeof((members)[0]), err)

/* --- post-processors --- */

static int pieces_check(const json_t *post, const char *key, struct err *err)
{
    static const char *const sequences[] = {"A", "B"};
    const json_t *list = json_object_get(post, key);
    bool good = json_is_array(list);
    for (size_t i = 0; i < json_array_size(list) && good; i++) {
        const json_t *piece = json_array_get(list, i);
        const json_t *special = json_object_get(piece, "SpecialToken");
        const json_t *sequence = json_object_get(piece, "Sequence");
        const json_t *inner = special ? special : sequence;
        const json_t *id = json_object_get(inner, "id");
        good = json_object_size(piece) == 1 && is_count(json_object_get(inner, "type_id"), UINT32_MAX) &&
               (special ? json_is_string(id) : tokenizer_json_types_is_one_of(id, sequences, 2));
    }
    return good ? 0
                : err_set(
                      err, ERR_INVALID,
                      "tokenizer.json: post_processor: TemplateProcessing.%s is not a list of SpecialToken "
                      "and Sequence, each with an id and a type_id",
                      key);
}

static int tokenizer_json_types_template_check(const json_t *post, struct err *err)
{
    static const struct json_member token[] = {{.key = "id", .type = MEMBER_TEXT},
                                               {.key = "ids", .type = MEMBER_IDS},
                                               {.key = "tokens", .type = MEMBER_TEXTS}};
    const json_t *tokens = json_object_get(post, "special_tokens");
    const char *name;
    json_t *value;
    if (pieces_check(post, "single", err) < 0 || pieces_check(post, "pair", err) < 0)
        return -1;
    if (!json_is_object(tokens)) {
        return err_set(err, ERR_INVALID,
                       "tokenizer.json: post_processor: TemplateProcessing.special_tokens is not an object");
    }
    json_object_foreach ((json_t *)tokens, name, value) {
        if (CHECK(value, "post_processor.special_tokens", token, err) < 0)
            return -1;
    }
    return 0;
}

static int post_check(const json_t *post, unsigned depth, struct err *err)
{
    static const struct json_member bert[] = {{.key = "sep", .type = MEMBER_PAIR},
                                              {.key = "cls", .type = MEMBER_PAIR}};
    static const struct json_member bytes[] = {{.key = "add_prefix_space", .type = MEMBER_FLAG},
                                               {.key = "trim_offsets", .type = MEMBER_FLAG},
                                               {.key = "use_regex", .type = MEMBER_FLAG, .optional = true}};
    if (json_is_type(post, "Sequence") && depth < SECTION_DEPTH_MAX) {
        const json_t *list;
        int status = json_list(post, "processors", &list, err);
        for (size_t i = 0; i < json_array_size(list) && status == 0; i++)
            status = post_check(json_array_get(list, i), depth + 1, err);
        return status;
    }
    /* `tokenizers` reads a RobertaProcessing whose other members are wrong as a BertProcessing, so only those
     * of a BertProcessing are checked. */
    return json_is_type(post, "TemplateProcessing") ? tokenizer_json_types_template_check(post, err)
           : json_is_type(post, "BertProcessing") || json_is_type(post, "RobertaProcessing")
               ? CHECK(post, json_type_of(post), bert, err)
           : json_is_type(post, "ByteLevel")
               ? CHECK(post, "post_processor ByteLevel", bytes, err)
               : err_set(err, ERR_INVALID,
                         "tokenizer.json: post_processor \"%.60s\" is not known; known: ByteLevel, "
                         "TemplateProcessing, BertProcessing, RobertaProcessing, Sequence, null",
                         json_type_of(post));
}

/* --- U+0000 --- */

enum { PLACE_BYTES = 200 };

/* Find the first text or key of a document that has 'mark' in it, and write the path of keys to it into
 * 'place'. */
static bool mark_find(const json_t *value, const char *mark, const char *path, char place[PLACE_BYTES])
{
    char inner[PLACE_BYTES];
    const char *key;
    json_t *item;
    size_t i;
    const char *text = json_string_value(value);
    if (text && strstr(text, mark)) {
        snprintf(place, PLACE_BYTES, "%s", path);
        return true;
    }
    json_object_foreach ((json_t *)value, key, item) {
        const bool is_key = strstr(key, mark) != NULL;
        snprintf(inner, sizeof(inner), "%s%s%.60s", path, *path != '\0' && !is_key ? "." : "",
                 is_key ? "" : key);
        if (is_key || mark_find(item, mark, inner, place)) {
            if (is_key)
                snprintf(place, PLACE_BYTES, "%s", inner);
            return true;
        }
    }
    json_array_foreach (value, i, item) {
        snprintf(inner, sizeof(inner), "%.150s[%zu]", path, i);
        if (mark_find(item, mark, inner, place))
            return true;
    }
    return false;
}

int json_nul_name(const char *text, size_t size, struct err *err)
{
    static const char escape[] = "\\u0000";
    static const char mark[] = "\xef\xbf\xbf"; /* U+FFFF, a noncharacter, takes the place of U+0000 */
    struct err other = {0};
    char place[PLACE_BYTES] = "";
    char *copy = malloc(size + 1);
    if (!copy)
        return -1;
    memcpy(copy, text, size);
    bool any = false;
    for (size_t i = 0; i + 6 <= size; i++) {
        if (copy[i] == '\\' && memcmp(copy + i, escape, 6) == 0) {
            memcpy(copy + i, "\\uffff", 6);
            any = true;
        } else if (copy[i] == '\\') {
            i++;
        }
    }
    json_t *root = any ? hub_json_parse(copy, size, JSON_DEPTH, &other) : NULL;
    free(copy);
    if (root && mark_find(root, mark, "", place)) {
        err_set(err, ERR_UNSUPPORTED,
                "tokenizer.json: %s has a text with the character U+0000, which is not done", place);
    }
    json_decref(root);
    return -1;
}

/* --- the whole document --- */

static bool tokenizer_json_types_is_none(const json_t *value)
{
    return !value || json_is_null(value);
}

static int added_check(const json_t *list, struct err *err)
{
    static const struct json_member token[] = {{.key = "id", .type = MEMBER_ID},
                                               {.key = "content", .type = MEMBER_TEXT},
                                               {.key = "single_word", .type = MEMBER_FLAG},
                                               {.key = "lstrip", .type = MEMBER_FLAG},
                                               {.key = "rstrip", .type = MEMBER_FLAG},
                                               {.key = "normalized", .type = MEMBER_FLAG},
                                               {.key = "special", .type = MEMBER_FLAG}};
    int status = !list || json_is_array(list)
                     ? 0
                     : err_set(err, ERR_INVALID, "tokenizer.json: added_tokens is not a list");
    for (size_t i = 0; i < json_array_size(list) && status == 0; i++)
        status = CHECK(json_array_get(list, i), "added_tokens", token, err);
    return status;
}

static int tokenizer_json_types_keys_check(const json_t *root, struct err *err)
{
    static const char *const known[] = {"version",        "truncation", "padding",
                                        "added_tokens",   "normalizer", "pre_tokenizer",
                                        "post_processor", "decoder",    "model"};
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)root, key, value) {
        bool found = false;
        for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
            found = found || strcmp(key, known[i]) == 0;
        if (!found) {
            return err_set(err, ERR_INVALID, "tokenizer.json: \"%.60s\" is no key that tokenizers knows",
                           key);
        }
    }
    return 0;
}

int json_types_check(const json_t *root, struct err *err)
{
    static const struct json_member truncation[] = {
        {.key = "max_length", .type = MEMBER_COUNT},
        {.key = "stride", .type = MEMBER_COUNT},
        {.key = "strategy", .type = MEMBER_STRATEGY},
        {.key = "direction", .type = MEMBER_SIDE, .optional = true}};
    static const struct json_member padding[] = {
        {.key = "strategy", .type = MEMBER_PADDING},
        {.key = "direction", .type = MEMBER_SIDE},
        {.key = "pad_to_multiple_of", .type = MEMBER_COUNT, .optional = true, .nullable = true},
        {.key = "pad_id", .type = MEMBER_ID},
        {.key = "pad_type_id", .type = MEMBER_ID},
        {.key = "pad_token", .type = MEMBER_TEXT}};
    const json_t *cut = json_object_get(root, "truncation");
    const json_t *pad = json_object_get(root, "padding");
    const json_t *post = json_object_get(root, "post_processor");
    if (tokenizer_json_types_keys_check(root, err) < 0 ||
        (!tokenizer_json_types_is_none(cut) && CHECK(cut, "truncation", truncation, err) < 0) ||
        (!tokenizer_json_types_is_none(pad) && CHECK(pad, "padding", padding, err) < 0) ||
        added_check(json_object_get(root, "added_tokens"), err) < 0) {
        return -1;
    }
    return tokenizer_json_types_is_none(post) ? 0 : post_check(post, 0, err);
}
