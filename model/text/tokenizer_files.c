/* Reads the files beside tokenizer.json (tokenizer_files.h) as PreTrainedTokenizerBase._from_pretrained and
 * the constructors behind it do, step by step. 'members' is their init_kwargs; tokens in it are objects of
 * tokenizer_added.h once a step has made them. */
#include "model/text/tokenizer_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/files/hub_json.h"
#include "model/text/tokenizer.h"
#include "model/text/tokenizer_added.h"
#include "model/text/tokenizer_class.h"

enum { FILE_JSON_DEPTH = 32 };

static const char config_name[] = "tokenizer_config.json";
static const char map_name[] = "special_tokens_map.json";
static const char added_name[] = "added_tokens.json";
static const char extra_key[] = "extra_special_tokens";
static const char additional_key[] = "additional_special_tokens";
static const char own_key[] = "model_specific_special_tokens";

/* The special tokens that every tokenizer of transformers has a name for, in transformers' order. */
static const char *const standard[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};
enum { STANDARD_COUNT = sizeof(standard) / sizeof(standard[0]) };

struct reading {
    json_t *members;  /* members of tokenizer_config.json, changed by what the other files say */
    json_t *from_map; /* keys that special_tokens_map.json has set */
    json_t *decoder;  /* tokens that the files give an id: id in decimal -> token */
    json_t *named;    /* name -> text or token, in transformers' order */
    json_t *extra;    /* further special tokens, texts or tokens */
};

static int tokenizer_files_no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "out of memory for the files beside tokenizer.json");
}

void tokenizer_names_fini(struct tokenizer_names *names)
{
    json_decref(names->special);
    json_decref(names->templates);
    *names = (struct tokenizer_names){0};
}

static bool is_standard(const char *name)
{
    bool found = false;
    for (size_t i = 0; i < STANDARD_COUNT && !found; i++)
        found = strcmp(standard[i], name) == 0;
    return found;
}

static bool ends_with_token(const char *name)
{
    size_t size = strlen(name);
    return size >= 6 && strcmp(name + size - 6, "_token") == 0;
}

/* Returns true for a value that is true in Python. */
static bool is_true(const json_t *value)
{
    return json_is_true(value) || json_string_length(value) > 0 || json_object_size(value) > 0 ||
           json_array_size(value) > 0 || (json_is_integer(value) && json_integer_value(value) != 0) ||
           (json_is_real(value) && json_real_value(value) != 0);
}

static const char *file_of(const struct reading *r, const char *key)
{
    return json_object_get(r->from_map, key) ? map_name : config_name;
}

/* ---- the members, in the order of the files ---- */

/* Move the special tokens of the model's own (names that end in "_token" and are not standard) from the
 * members into one object, which becomes the member model_specific_special_tokens. */
static int own_collect(struct reading *r, struct err *err)
{
    const char *name;
    json_t *value, *extra;
    void *next;
    json_t *own = json_object();
    int status = !own ? tokenizer_files_no_memory(err) : 0;
    json_object_foreach_safe (r->members, next, name, value) {
        if (status == 0 && !is_standard(name) && ends_with_token(name) && json_is_string(value)) {
            status = json_object_set(own, name, value) < 0 ? tokenizer_files_no_memory(err) : 0;
            json_object_del(r->members, name);
        }
    }
    extra = json_object_get(r->members, extra_key);
    if (status == 0 && json_is_object(extra)) {
        status = json_object_update(own, extra) < 0 ? tokenizer_files_no_memory(err) : 0;
        json_object_del(r->members, extra_key);
    }
    if (status == 0 && json_object_size(own) > 0 && json_object_set(r->members, own_key, own) < 0)
        status = tokenizer_files_no_memory(err);
    json_decref(own);
    return status;
}

static int config_read(struct reading *r, struct err *err)
{
    json_object_del(r->members, "add_bos_token"); /* tokenizer.json decides what is put around a text */
    json_object_del(r->members, "add_eos_token");
    json_t *additional = json_object_get(r->members, additional_key);
    if (additional && !is_true(json_object_get(r->members, extra_key))) {
        if (json_object_set(r->members, extra_key, additional) < 0)
            return tokenizer_files_no_memory(err);
        json_object_del(r->members, additional_key);
    }
    return own_collect(r, err);
}

static int decoder_put(struct reading *r, json_int_t id, json_t *token, struct err *err)
{
    char text[24];
    snprintf(text, sizeof(text), "%" JSON_INTEGER_FORMAT, id);
    return !token                                             ? -1
           : json_object_set_new(r->decoder, text, token) < 0 ? tokenizer_files_no_memory(err)
                                                              : 0;
}

static int tokenizer_files_decoder_read(struct reading *r, const json_t *decoder, struct err *err)
{
    const char *id;
    json_t *value;
    if (!json_is_object(decoder))
        return err_set(err, ERR_INVALID, "%s: added_tokens_decoder must be an object", config_name);
    json_object_foreach ((json_t *)decoder, id, value) {
        char *end = NULL;
        long number = strtol(id, &end, 10);
        if (*id == '\0' || *end != '\0' || number < 0 || number > INT32_MAX) {
            return err_set(err, ERR_INVALID, "%s: added_tokens_decoder: \"%.40s\" is no token id",
                           config_name, id);
        }
        if (!json_is_object(value)) {
            return err_set(err, ERR_INVALID, "%s: added_tokens_decoder: \"%.40s\" must be an object",
                           config_name, id);
        }
        if (decoder_put(r, number, added_token(value, -1, config_name, "added_tokens_decoder", err), err) < 0)
            return -1;
    }
    return 0;
}

/* Returns a new list: the list of extra special tokens, with those of the list in special_tokens_map.json
 * behind it that it lacks. NULL on errors. */
static json_t *extra_merge(const struct reading *r, const json_t *value, struct err *err)
{
    size_t i, k;
    json_t *item, *known;
    json_t *have = json_object_get(r->members, extra_key);
    json_t *merged = json_is_array(have) ? json_copy(have) : json_array();
    json_array_foreach (value, i, item) {
        json_t *token =
            json_is_object(item) ? added_token(item, 1, map_name, extra_key, err) : json_incref(item);
        if (json_object_get(item, "special")) {
            err_set(err, ERR_INVALID, "%s: %s: a token's \"special\" is not said there", map_name, extra_key);
            json_decref(token);
            token = NULL;
        }
        bool there = false;
        json_array_foreach (merged, k, known) {
            there = there || added_equal(known, token);
        }
        if (!token || (!there && json_array_append(merged, token) < 0)) {
            json_decref(merged);
            json_decref(token);
            return NULL;
        }
        json_decref(token);
    }
    return merged;
}

/* Apply special_tokens_map.json: each of its members replaces the member of tokenizer_config.json, and lists
 * of extra special tokens are joined. */
static int map_apply(struct reading *r, const json_t *map, struct err *err)
{
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)map, name, value) {
        if (strcmp(name, "add_bos_token") == 0 || strcmp(name, "add_eos_token") == 0) {
            return err_set(
                err, ERR_UNSUPPORTED,
                "%s: %s, which makes another post_processor of tokenizer.json's, is not done: take it "
                "away",
                map_name, name);
        }
        const bool extra = strcmp(name, extra_key) == 0;
        json_t *set = json_is_object(value) && !extra ? added_token(value, 1, map_name, name, err)
                      : json_is_array(value) && extra ? extra_merge(r, value, err)
                                                      : json_incref(value);
        if (!set || json_object_set_new(r->members, name, set) < 0 ||
            json_object_set_new(r->from_map, name, json_true()) < 0) {
            return !set ? -1 : tokenizer_files_no_memory(err);
        }
    }
    json_t *extra = json_object_get(r->members, extra_key);
    if (json_is_object(extra)) {
        json_t *own = json_object_get(r->members, own_key);
        own = !own ? json_object() : json_incref(own);
        if (!json_is_object(own) || json_object_update(own, extra) < 0 ||
            json_object_set(r->members, own_key, own) < 0) {
            json_decref(own);
            return err_set(err, ERR_INVALID, "%s: %s must be an object", file_of(r, own_key), own_key);
        }
        json_decref(own);
        json_object_del(r->members, extra_key);
    }
    return 0;
}

static int tokenizer_files_map_read(struct reading *r, const struct tokenizer_file *file, struct err *err)
{
    if (file->size == 0)
        return 0;
    json_t *map = hub_json_parse(file->text, file->size, FILE_JSON_DEPTH, err);
    int status = !map                   ? err_wrap(err, "%s", map_name)
                 : !json_is_object(map) ? err_set(err, ERR_INVALID, "%s: must be an object", map_name)
                                        : map_apply(r, map, err);
    json_decref(map);
    return status;
}

/* Returns true when some special token has that text. */
static bool is_named(const struct reading *r, const char *text)
{
    size_t i;
    json_t *item;
    bool found = false;
    for (size_t k = 0; k < STANDARD_COUNT && !found; k++) {
        const char *named = json_string_value(added_content(json_object_get(r->members, standard[k])));
        found = named && strcmp(named, text) == 0;
    }
    json_array_foreach (json_object_get(r->members, extra_key), i, item) {
        const char *named = json_string_value(added_content(item));
        found = found || (named && strcmp(named, text) == 0);
    }
    return found;
}

/* Read the tokens of added_tokens.json, an object of text -> id. */
static int added_apply(struct reading *r, const json_t *added, struct err *err)
{
    const char *text;
    json_t *id;
    if (!json_is_object(added))
        return err_set(err, ERR_INVALID, "%s: must be an object of token ids", added_name);
    json_object_foreach ((json_t *)added, text, id) {
        if (!json_is_integer(id))
            return err_set(err, ERR_INVALID, "%s: \"%.60s\" has no token id", added_name, text);
        json_t *content = json_string(text);
        json_t *token = !content ? NULL : added_token(content, is_named(r, text), added_name, text, err);
        json_decref(content);
        if (token && /* the flag is stated now, so that it stays when the token becomes special later */
            json_object_set_new(token, "normalized", json_boolean(!added_flag(token, "special"))) < 0) {
            json_decref(token);
            return tokenizer_files_no_memory(err);
        }
        if (decoder_put(r, json_integer_value(id), token, err) < 0)
            return !content ? tokenizer_files_no_memory(err) : -1;
    }
    return 0;
}

static int tokenizer_files_added_read(struct reading *r, const struct tokenizer_file *file, struct err *err)
{
    if (file->size == 0)
        return 0;
    json_t *added = hub_json_parse(file->text, file->size, FILE_JSON_DEPTH, err);
    int status = !added ? err_wrap(err, "%s", added_name) : added_apply(r, added, err);
    json_decref(added);
    return status;
}

/* Read tokenizer.json's own added tokens, under the ids that it gives them. */
static int own_added_read(struct reading *r, const json_t *root, struct err *err)
{
    size_t i;
    json_t *item;
    const json_t *list = json_object_get(root, "added_tokens");
    if (root && !list) {
        return err_set(
            err, ERR_INVALID,
            "tokenizer.json: added_tokens is not there, and %s has no added_tokens_decoder: give an "
            "empty list",
            config_name);
    }
    json_array_foreach (list, i, item) {
        const json_t *id = json_object_get(item, "id");
        if (!json_is_integer(id))
            return err_set(err, ERR_INVALID, "tokenizer.json: added_tokens[%zu]: id must be an integer", i);
        if (decoder_put(r, json_integer_value(id),
                        added_token(item, -1, "tokenizer.json", "added_tokens", err), err) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Returns a new copy of 'value' in which every object with "__type": "AddedToken", at any depth, is a token;
 * NULL on errors. */
static json_t *tokens_made(const struct reading *r, json_t *value, const char *key, struct err *err)
{
    const char *name, *type = json_string_value(json_object_get(value, "__type"));
    json_t *item, *made;
    size_t i;
    if (added_is_token(value) || (!json_is_object(value) && !json_is_array(value)))
        return json_incref(value);
    if (type && strcmp(type, "AddedToken") == 0)
        return added_token(value, -1, file_of(r, key), key, err);
    json_t *out = json_is_object(value) ? json_object() : json_array();
    json_array_foreach (value, i, item) {
        made = tokens_made(r, item, key, err);
        if (!made || json_array_append_new(out, made) < 0) {
            json_decref(out);
            return NULL;
        }
    }
    json_object_foreach (value, name, item) {
        made = tokens_made(r, item, key, err);
        if (!made || json_object_set_new(out, name, made) < 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

static const json_t *decoder_find(const struct reading *r, const json_t *content)
{
    const char *id;
    json_t *token;
    const json_t *found = NULL;
    json_object_foreach (r->decoder, id, token) {
        found = content && json_equal(added_content(token), content) ? token : found;
    }
    return found;
}

/* Make the tokens of the members. A standard token becomes the decoder's token with the same content, where
 * there is one. */
static int members_finish(struct reading *r, struct err *err)
{
    static const char *const keys[] = {extra_key, additional_key, own_key};
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe (r->members, next, name, value) {
        bool wanted = ends_with_token(name);
        for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
            wanted = wanted || strcmp(name, keys[i]) == 0;
        json_t *made = wanted ? tokens_made(r, value, name, err) : json_incref(value);
        const json_t *known = wanted && is_standard(name) ? decoder_find(r, added_content(made)) : NULL;
        if (known) {
            json_decref(made);
            made = json_incref((json_t *)known);
        }
        if (!made || json_object_set_new(r->members, name, made) < 0)
            return !made ? -1 : tokenizer_files_no_memory(err);
    }
    return 0;
}

/* ---- special tokens, as the constructors read them ---- */

static int name_put(struct reading *r, const char *name, json_t *value, struct err *err)
{
    if (!added_content(value)) {
        return err_set(err, ERR_INVALID,
                       "%s: %.60s must be a text or an object with \"__type\": \"AddedToken\"",
                       file_of(r, name), name);
    }
    return json_object_set(r->named, name, value) < 0 ? tokenizer_files_no_memory(err) : 0;
}

static int tokenizer_files_names_of(struct reading *r, const json_t *object, struct err *err)
{
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)object, name, value) {
        if (name_put(r, name, value, err) < 0)
            return -1;
    }
    return 0;
}

static int extra_read(struct reading *r, struct err *err)
{
    const char *key = json_object_get(r->members, extra_key) ? extra_key : additional_key;
    const json_t *value = json_object_get(r->members, key);
    size_t i;
    json_t *item;
    if (json_is_object(value))
        return tokenizer_files_names_of(r, value, err);
    if (value && !json_is_null(value) && !json_is_array(value)) {
        return err_set(err, ERR_INVALID, "%s: %s must be a list of tokens or an object", file_of(r, key),
                       key);
    }
    json_array_foreach (value, i, item) {
        if (!added_content(item)) {
            return err_set(err, ERR_INVALID,
                           "%s: %s: a token must be a text or an object with \"__type\": "
                           "\"AddedToken\"",
                           file_of(r, key), key);
        }
        if (json_array_append(r->extra, item) < 0)
            return tokenizer_files_no_memory(err);
    }
    return 0;
}

/* Read the names of special tokens. 'defaults' (or NULL) are those that the tokenizer's class has where the
 * files are silent. 'padding' is tokenizer.json's, whose pad_token counts where neither names one. */
static int tokenizer_files_names_read(struct reading *r, const json_t *defaults, const json_t *padding,
                                      struct err *err)
{
    const char *name;
    json_t *value;
    for (size_t i = 0; i < STANDARD_COUNT; i++) {
        value = json_object_get(r->members, standard[i]);
        value = value ? value : json_object_get(defaults, standard[i]);
        if (!value && strcmp(standard[i], "pad_token") == 0)
            value = json_object_get(padding, "pad_token");
        if (value && !json_is_null(value) && name_put(r, standard[i], value, err) < 0)
            return -1;
    }
    if (extra_read(r, err) < 0)
        return -1;
    json_object_foreach (r->members, name, value) {
        if (!is_standard(name) && ends_with_token(name) && added_content(value) &&
            name_put(r, name, value, err) < 0) {
            return -1;
        }
    }
    const json_t *own = json_object_get(r->members, own_key);
    if (own && !json_is_null(own) && !json_is_object(own))
        return err_set(err, ERR_INVALID, "%s: %s must be an object", file_of(r, own_key), own_key);
    return tokenizer_files_names_of(r, own, err);
}

/* ---- templates and switches ---- */

static int template_put(json_t *templates, const char *name, const json_t *text, struct err *err)
{
    if (!name || !json_is_string(text)) {
        return err_set(err, ERR_INVALID,
                       "%s: chat_template: each template of several needs a name and a text", config_name);
    }
    return json_object_set(templates, name, (json_t *)text) < 0 ? tokenizer_files_no_memory(err) : 0;
}

static int templates_read(const struct reading *r, const struct tokenizer_files *files, json_t *templates,
                          struct err *err)
{
    const char *name;
    json_t *value;
    size_t i;
    json_t *own = json_object_get(r->members, "chat_template");
    if (files->templates && json_object_size(files->templates) > 0)
        return json_object_update(templates, (json_t *)files->templates) < 0 ? tokenizer_files_no_memory(err)
                                                                             : 0;
    if (json_is_string(own))
        return template_put(templates, "default", own, err);
    json_array_foreach (own, i, value) {
        if (template_put(templates, json_string_value(json_object_get(value, "name")),
                         json_object_get(value, "template"), err) < 0) {
            return -1;
        }
    }
    json_object_foreach (own, name, value) {
        if (template_put(templates, name, value, err) < 0)
            return -1;
    }
    return !own || json_is_null(own) || json_is_array(own) || json_is_object(own)
               ? 0
               : err_set(err, ERR_INVALID, "%s: chat_template must be a text, a list or an object",
                         config_name);
}

/* Refuse settings that change ids in transformers and that Motley does not implement, and values that
 * transformers refuses. */
static int switches_read(const struct reading *r, struct err *err)
{
    static const char *const undone[] = {"split_special_tokens", "fix_mistral_regex"};
    static const char *const sides[] = {"padding_side", "truncation_side"};
    static const char *const own[] = {"tokenizer_object", "tokenizer_padding", "tokenizer_truncation",
                                      "post_processor",   "init_inputs",       "_json_padding",
                                      "_json_truncation"};
    for (size_t i = 0; i < sizeof(undone) / sizeof(undone[0]); i++) {
        const json_t *value = json_object_get(r->members, undone[i]);
        if (is_true(value) || (i == 0 && value && !json_is_false(value))) {
            return err_set(err, ERR_UNSUPPORTED, "%s: %s is not done here but as false",
                           file_of(r, undone[i]), undone[i]);
        }
    }
    for (size_t i = 0; i < sizeof(sides) / sizeof(sides[0]); i++) {
        const json_t *value = json_object_get(r->members, sides[i]);
        const char *side = json_string_value(value);
        if (value && (!side || (strcmp(side, "left") != 0 && strcmp(side, "right") != 0))) {
            return err_set(err, ERR_INVALID, "%s: %s must be \"left\" or \"right\"", file_of(r, sides[i]),
                           sides[i]);
        }
    }
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        const json_t *value = json_object_get(r->members, own[i]);
        const bool none = strcmp(own[i], "init_inputs") == 0 && json_is_array(value) && !is_true(value);
        if (value && !none) {
            return err_set(err, ERR_UNSUPPORTED, "%s: %s is not read here: take it away", file_of(r, own[i]),
                           own[i]);
        }
    }
    return 0;
}

/* Returns true for the names of methods of transformers' tokenizer classes, which no member may have. */
static bool is_method(const char *name, bool with_model)
{
    static const char *const methods[] = {"_add_tokens",
                                          "_convert_encoding",
                                          "_convert_from_sentencepiece",
                                          "_convert_from_tiktoken",
                                          "_convert_id_to_token",
                                          "_convert_token_to_id_with_added_voc",
                                          "_decode",
                                          "_encode_plus",
                                          "_encode_without_added_tokens",
                                          "_eventual_warn_about_too_long_sequence",
                                          "_from_pretrained",
                                          "_get_control_tokens",
                                          "_get_files_timestamps",
                                          "_get_padding_truncation_strategies",
                                          "_mark_chat_inputs",
                                          "_pad",
                                          "_patch_mistral_regex",
                                          "_post_init",
                                          "_save_pretrained",
                                          "_set_model_specific_special_tokens",
                                          "_set_processor_class",
                                          "_tokenizer_json_has_byte_level",
                                          "_upload_modified_files",
                                          "add_special_tokens",
                                          "add_tokens",
                                          "apply_chat_template",
                                          "batch_decode",
                                          "clean_up_tokenization",
                                          "convert_added_tokens",
                                          "convert_ids_to_tokens",
                                          "convert_to_native_format",
                                          "convert_tokens_to_ids",
                                          "convert_tokens_to_string",
                                          "decode",
                                          "encode",
                                          "encode_message_with_chat_template",
                                          "from_pretrained",
                                          "get_added_vocab",
                                          "get_chat_template",
                                          "get_response_parser",
                                          "get_special_tokens_mask",
                                          "get_vocab",
                                          "num_special_tokens_to_add",
                                          "pad",
                                          "parse_response",
                                          "push_to_hub",
                                          "register_for_auto_class",
                                          "save_chat_templates",
                                          "save_pretrained",
                                          "save_vocabulary",
                                          "set_truncation_and_padding",
                                          "tokenize",
                                          "train_new_from_iterator",
                                          "update_post_processor"};
    const size_t size = strlen(name);
    bool found = (size > 4 && memcmp(name, "__", 2) == 0 && memcmp(name + size - 2, "__", 2) == 0) ||
                 (with_model && strcmp(name, "model") == 0);
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]) && !found; i++)
        found = strcmp(name, methods[i]) == 0;
    return found;
}

static int methods_check(const struct reading *r, const struct tokenizer_class *class, struct err *err)
{
    const char *name;
    json_t *value;
    json_object_foreach (r->members, name, value) {
        if (is_method(name, class != NULL)) {
            return err_set(err, ERR_INVALID, "%s: %.60s is the name of a method of transformers' tokenizers",
                           file_of(r, name), name);
        }
    }
    return 0;
}

/* Check members that decide nothing here, and of which transformers accepts only some types. */
static int types_check(const struct reading *r, struct err *err)
{
    static const char *const lengths[] = {"model_max_length", "max_len"};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        const json_t *value = json_object_get(r->members, lengths[i]);
        if (json_is_string(value) || json_is_array(value) || json_is_object(value))
            return err_set(err, ERR_INVALID, "%s: %s must be a number", file_of(r, lengths[i]), lengths[i]);
    }
    const json_t *map = json_object_get(r->members, "auto_map");
    const json_t *code = json_is_object(map) ? json_object_get(map, "AutoTokenizer") : map;
    if (code && !(json_is_object(map) && json_is_null(code))) {
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: auto_map names a tokenizer's program, which is not run here: take it away if "
                       "tokenizer.json says the same",
                       config_name);
    }
    const json_t *control = json_object_get(r->members, "chat_control_tokens");
    if (control && !json_is_null(control) && !json_is_array(control)) {
        return err_set(err, ERR_INVALID, "%s: chat_control_tokens must be a list",
                       file_of(r, "chat_control_tokens"));
    }
    const json_t *inputs = json_object_get(r->members, "model_input_names");
    return !inputs || json_is_array(inputs) || json_is_string(inputs) || json_is_object(inputs)
               ? 0
               : err_set(err, ERR_INVALID, "%s: model_input_names must be a list",
                         file_of(r, "model_input_names"));
}

static int special_tell(const struct reading *r, struct tokenizer_names *names, struct err *err)
{
    const char *name;
    json_t *token;
    json_object_foreach (r->named, name, token) {
        if (json_object_set(names->special, name, added_content(token)) < 0)
            return tokenizer_files_no_memory(err);
    }
    return 0;
}

/* Find the tokenizer's class, which decides before everything else; *class NULL stands for tokenizer.json as
 * it is. */
static int class_find(const struct reading *r, const struct tokenizer_files *files, const json_t *root,
                      const struct tokenizer_class **class, struct err *err)
{
    const json_t *said = json_object_get(r->members, "tokenizer_class");
    if (said && !json_is_null(said) && !json_is_string(said))
        return err_set(err, ERR_INVALID, "%s: tokenizer_class must be a text", config_name);
    const struct tokenizer_class_words words = {
        .declared = json_string_value(said), .config = files->config_class, .model_type = files->model_type};
    return tokenizer_class_find(&words, root, class, err);
}

static int files_apply(struct reading *r, const struct tokenizer_files *files, const json_t *root,
                       struct err *err)
{
    const json_t *decoder = json_object_get(r->members, "added_tokens_decoder");
    if (config_read(r, err) < 0)
        return -1;
    if (decoder
            ? tokenizer_files_decoder_read(r, decoder, err) < 0
            : tokenizer_files_map_read(r, &files->special_map, err) < 0 ||
                  tokenizer_files_added_read(r, &files->added, err) < 0 || own_added_read(r, root, err) < 0) {
        return -1;
    }
    return members_finish(r, err);
}

static int reading_run(struct reading *r, const struct tokenizer_files *files, json_t *root,
                       struct tokenizer_names *names, struct err *err)
{
    const struct tokenizer_class *class = NULL;
    json_t *defaults = NULL;
    if ((root && class_find(r, files, root, &class, err) < 0) || files_apply(r, files, root, err) < 0 ||
        methods_check(r, class, err) < 0 || switches_read(r, err) < 0 || types_check(r, err) < 0) {
        return -1;
    }
    if (class) {
        defaults = tokenizer_class_defaults(class);
        if (!defaults)
            return tokenizer_files_no_memory(err);
    }
    int status = tokenizer_files_names_read(r, defaults, json_object_get(root, "padding"), err);
    json_decref(defaults);
    if (status < 0 || special_tell(r, names, err) < 0 || templates_read(r, files, names->templates, err) < 0)
        return -1;
    if (class && tokenizer_class_build(class, r->members, r->named, root, err) < 0)
        return -1;
    const struct added_names tokens = {.decoder = r->decoder,
                                       .named = r->named,
                                       .extra = r->extra,
                                       .keeps = !class,
                                       .repeats = tokenizer_class_repeats(class)};
    return root ? added_tokens_apply(&tokens, root, err) : 0;
}

int tokenizer_files_read(const struct tokenizer_files *files, json_t *root, struct tokenizer_names *names,
                         struct err *err)
{
    *names = (struct tokenizer_names){.special = json_object(), .templates = json_object()};
    struct reading r = {
        .from_map = json_object(), .named = json_object(), .extra = json_array(), .decoder = json_object()};
    r.members = files->config.size > 0
                    ? hub_json_parse(files->config.text, files->config.size, FILE_JSON_DEPTH, err)
                    : json_object();
    int status = 0;
    if (!r.members)
        status = err_wrap(err, "%s", config_name);
    else if (!json_is_object(r.members))
        status = err_set(err, ERR_INVALID, "%s: must be an object", config_name);
    else if (!names->special || !names->templates || !r.named || !r.extra || !r.decoder || !r.from_map)
        status = tokenizer_files_no_memory(err);
    if (status == 0)
        status = reading_run(&r, files, root, names, err);
    json_decref(r.members);
    json_decref(r.from_map);
    json_decref(r.named);
    json_decref(r.extra);
    json_decref(r.decoder);
    return status;
}
