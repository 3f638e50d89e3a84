/* tokenizer.json and tokenizer_config.json, as Hugging Face's `tokenizers` and `transformers` write them. */
#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "model/tokenizer_build.h"

static const char *type_of(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type != NULL ? type : "(none)";
}

static bool is_type(const json_t *object, const char *type)
{
    return strcmp(type_of(object), type) == 0;
}

/* A boolean member with its default. */
static bool flag_of(const json_t *object, const char *key, bool otherwise)
{
    const json_t *value = json_object_get(object, key);
    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

static int vocab_read(struct tokenizer *t, const json_t *vocab, struct err *err)
{
    if (!json_is_object(vocab)) {
        return err_set(err, ERR_INVALID, "tokenizer.json: model.vocab is not an object");
    }
    const char *text;
    size_t size;
    json_t *value;
    json_object_keylen_foreach((json_t *)vocab, text, size, value)
    {
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) >= TOKENIZER_VOCAB_MAX) {
            return err_set(err, ERR_INVALID,
                           "tokenizer.json: model.vocab: the id of \"%.60s\" is not a number from 0 to %d",
                           text, TOKENIZER_VOCAB_MAX - 1);
        }
        if (builder_token_mapped(t, (uint32_t)json_integer_value(value), text, size, err) < 0) {
            return err_wrap(err, "tokenizer.json: model.vocab");
        }
    }
    return 0;
}

/* A merge is "left right" or, in newer files, ["left", "right"]. */
static int merge_read(struct tokenizer *t, const json_t *merge, uint32_t rank, struct err *err)
{
    const char *left = json_string_value(merge);
    if (left != NULL) {
        const size_t size = json_string_length(merge);
        const char *space = memchr(left, ' ', size);
        if (space == NULL) {
            return err_set(err, ERR_INVALID, "merge %u has no space in it", rank);
        }
        return builder_merge(t, rank, left, (size_t)(space - left), space + 1,
                             size - (size_t)(space - left) - 1, err);
    }
    const json_t *a = json_array_get(merge, 0);
    const json_t *b = json_array_get(merge, 1);
    if (json_array_size(merge) != 2 || !json_is_string(a) || !json_is_string(b)) {
        return err_set(err, ERR_INVALID, "merge %u is not a pair of texts", rank);
    }
    return builder_merge(t, rank, json_string_value(a), json_string_length(a), json_string_value(b),
                         json_string_length(b), err);
}

static int merges_read(struct tokenizer *t, const json_t *merges, struct err *err)
{
    if (!json_is_array(merges)) {
        return err_set(err, ERR_INVALID, "tokenizer.json: model.merges is not a list");
    }
    if (builder_merges_reserve(t, json_array_size(merges), err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < json_array_size(merges); i++) {
        if (merge_read(t, json_array_get(merges, i), (uint32_t)i, err) < 0) {
            return err_wrap(err, "tokenizer.json: model.merges");
        }
    }
    return 0;
}

static int added_read(struct tokenizer *t, const json_t *list, bool texts, struct err *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const json_t *id = json_object_get(item, "id");
        const json_t *content = json_object_get(item, "content");
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= TOKENIZER_VOCAB_MAX || !json_is_string(content) ||
            json_string_length(content) == 0) {
            return err_set(err, ERR_INVALID, "tokenizer.json: added_tokens[%zu] needs an id and a content",
                           i);
        }
        const struct added_token added = {.id = (uint32_t)json_integer_value(id),
                                          .normalized = flag_of(item, "normalized", false),
                                          .lstrip = flag_of(item, "lstrip", false),
                                          .rstrip = flag_of(item, "rstrip", false),
                                          .single_word = flag_of(item, "single_word", false),
                                          .special = flag_of(item, "special", false)};
        int status = texts ? builder_token_raw(t, added.id, json_string_value(content),
                                               json_string_length(content), err)
                           : builder_added(t, &added, err);
        if (status < 0) {
            return err_wrap(err, "tokenizer.json: added_tokens[%zu]", i);
        }
    }
    return 0;
}

static int normalizer_read(struct tokenizer *t, const json_t *normalizer, struct err *err)
{
    if (normalizer == NULL || json_is_null(normalizer)) {
        return 0;
    }
    if (is_type(normalizer, "Sequence")) {
        const json_t *list = json_object_get(normalizer, "normalizers");
        if (json_array_size(list) > 1) {
            return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: a sequence of %zu normalisers",
                           json_array_size(list));
        }
        return json_array_size(list) == 0 ? 0 : normalizer_read(t, json_array_get(list, 0), err);
    }
    if (!is_type(normalizer, "NFC")) {
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.json: normaliser \"%.60s\" is not known; known: NFC, none",
                       type_of(normalizer));
    }
    t->nfc = true;
    return 0;
}

static int split_read(struct tokenizer *t, const json_t *split, struct err *err)
{
    const json_t *regex = json_object_get(json_object_get(split, "pattern"), "Regex");
    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    if (!json_is_string(regex)) {
        return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: a Split pre-tokeniser without a Regex");
    }
    if (behavior == NULL || strcmp(behavior, "Isolated") != 0 || flag_of(split, "invert", false)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.json: a Split pre-tokeniser that is not Isolated (\"%.40s\"%s)",
                       behavior != NULL ? behavior : "", flag_of(split, "invert", false) ? ", inverted" : "");
    }
    return splitter_add(t->splitter, json_string_value(regex), json_string_length(regex), err);
}

/* *bytes becomes true when the byte-level stage, which must be the last, was seen. */
static int stage_read(struct tokenizer *t, const json_t *stage, bool only, bool *bytes, struct err *err)
{
    if (*bytes) {
        return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: a pre-tokeniser behind ByteLevel");
    }
    if (is_type(stage, "Split")) {
        return split_read(t, stage, err);
    }
    if (is_type(stage, "Digits")) {
        const char *pattern = flag_of(stage, "individual_digits", false) ? split_digit : split_digits;
        return splitter_add(t->splitter, pattern, strlen(pattern), err);
    }
    if (!is_type(stage, "ByteLevel")) {
        return err_set(
            err, ERR_UNSUPPORTED,
            "tokenizer.json: pre-tokeniser \"%.60s\" is not known; known: ByteLevel, Split, Digits",
            type_of(stage));
    }
    *bytes = true;
    t->add_prefix_space = flag_of(stage, "add_prefix_space", true);
    if (t->add_prefix_space && !only) {
        return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: add_prefix_space behind another pre-tokeniser");
    }
    return flag_of(stage, "use_regex", true) ? splitter_add(t->splitter, split_gpt2, strlen(split_gpt2), err)
                                             : 0;
}

static int pre_tokenizer_read(struct tokenizer *t, const json_t *pre, struct err *err)
{
    bool bytes = false;
    if (is_type(pre, "Sequence")) {
        const json_t *list = json_object_get(pre, "pretokenizers");
        for (size_t i = 0; i < json_array_size(list); i++) {
            if (stage_read(t, json_array_get(list, i), json_array_size(list) == 1, &bytes, err) < 0) {
                return -1;
            }
        }
    } else if (stage_read(t, pre, true, &bytes, err) < 0) {
        return -1;
    }
    if (!bytes) {
        return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: the pre-tokeniser is not byte-level");
    }
    return 0;
}

/* The ids that stand for special token 'name' in a TemplateProcessing, into the list before or after the
 * text. */
static int around_add(struct tokenizer *t, const json_t *post, const char *name, bool after, struct err *err)
{
    const json_t *ids =
        json_object_get(json_object_get(json_object_get(post, "special_tokens"), name), "ids");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        uint32_t *count = after ? &t->after_count : &t->before_count;
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= (json_int_t)t->vocab || *count == TOKENIZER_AROUND_MAX) {
            return err_set(err, ERR_INVALID,
                           "tokenizer.json: post_processor: special token \"%.60s\" is wrong", name);
        }
        (after ? t->after : t->before)[(*count)++] = (int32_t)json_integer_value(id);
    }
    if (json_array_size(ids) == 0) {
        return err_set(err, ERR_INVALID, "tokenizer.json: post_processor: special token \"%.60s\" has no ids",
                       name);
    }
    return 0;
}

static int post_processor_read(struct tokenizer *t, const json_t *post, struct err *err)
{
    if (post == NULL || json_is_null(post) || is_type(post, "ByteLevel")) {
        return 0;
    }
    if (is_type(post, "Sequence")) {
        const json_t *list = json_object_get(post, "processors");
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *item = json_array_get(list, i);
            if (is_type(item, "Sequence") || post_processor_read(t, item, err) < 0) {
                return is_type(item, "Sequence")
                           ? err_set(err, ERR_UNSUPPORTED, "tokenizer.json: nested post-processors")
                           : -1;
            }
        }
        return 0;
    }
    if (!is_type(post, "TemplateProcessing")) {
        return err_set(
            err, ERR_UNSUPPORTED,
            "tokenizer.json: post-processor \"%.60s\" is not known; known: ByteLevel, TemplateProcessing",
            type_of(post));
    }
    const json_t *single = json_object_get(post, "single");
    bool after = false;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i);
        const char *name = json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
        if (name == NULL) {
            after = true;
        } else if (around_add(t, post, name, after, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int text_absent(const json_t *model, const char *key, struct err *err)
{
    const char *text = json_string_value(json_object_get(model, key));
    if (text != NULL && text[0] != '\0') {
        return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: model.%s \"%.40s\"", key, text);
    }
    return 0;
}

static int bpe_check(const json_t *root, const json_t *model, struct err *err)
{
    /* Old files have no type beside vocab and merges. */
    if (json_object_get(model, "type") != NULL && !is_type(model, "BPE")) {
        return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: model \"%.60s\" is not known; known: BPE",
                       type_of(model));
    }
    if (text_absent(model, "continuing_subword_prefix", err) < 0 ||
        text_absent(model, "end_of_word_suffix", err) < 0) {
        return -1;
    }
    if (flag_of(model, "byte_fallback", false)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.json: byte_fallback (a SentencePiece model); known: byte-level BPE");
    }
    const json_t *decoder = json_object_get(root, "decoder");
    if (json_is_object(decoder) && !is_type(decoder, "ByteLevel")) {
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.json: decoder \"%.60s\" is not known; known: ByteLevel", type_of(decoder));
    }
    return 0;
}

static int document_read(struct tokenizer *t, const json_t *root, struct err *err)
{
    const json_t *model = json_object_get(root, "model");
    const json_t *added = json_object_get(root, "added_tokens");
    if (!json_is_object(model)) {
        return err_set(err, ERR_INVALID, "tokenizer.json: there is no model");
    }
    if (bpe_check(root, model, err) < 0 || vocab_read(t, json_object_get(model, "vocab"), err) < 0 ||
        added_read(t, added, true, err) < 0 || builder_index(t, err) < 0 ||
        merges_read(t, json_object_get(model, "merges"), err) < 0 || added_read(t, added, false, err) < 0 ||
        normalizer_read(t, json_object_get(root, "normalizer"), err) < 0 ||
        pre_tokenizer_read(t, json_object_get(root, "pre_tokenizer"), err) < 0 ||
        post_processor_read(t, json_object_get(root, "post_processor"), err) < 0) {
        return -1;
    }
    t->ignore_merges = flag_of(model, "ignore_merges", false);
    const json_t *unknown = json_object_get(model, "unk_token");
    if (json_is_string(unknown)) {
        t->unknown =
            tokenizer_lookup(t, (const uint8_t *)json_string_value(unknown), json_string_length(unknown));
    }
    return 0;
}

/* "…" or {"content": "…"}; -1 when there is none. */
static int32_t special_of(const struct tokenizer *t, const json_t *config, const char *key)
{
    const json_t *value = json_object_get(config, key);
    if (json_is_object(value)) {
        value = json_object_get(value, "content");
    }
    if (!json_is_string(value) || json_string_length(value) == 0) {
        return -1;
    }
    return tokenizer_find(t, json_string_value(value), json_string_length(value));
}

/* The template, or the one named "default" of several. */
static const char *template_of(const json_t *config)
{
    const json_t *value = json_object_get(config, "chat_template");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name != NULL && strcmp(name, "default") == 0) {
            return json_string_value(json_object_get(item, "template"));
        }
    }
    return json_string_value(value);
}

static int config_read(struct tokenizer *t, const char *text, size_t size, struct err *err)
{
    if (size == 0) {
        return 0;
    }
    json_t *config = json_parse_limited(text, size, 32, err);
    if (config == NULL) {
        return err_wrap(err, "tokenizer_config.json");
    }
    t->bos = special_of(t, config, "bos_token");
    t->eos = special_of(t, config, "eos_token");
    const char *template = template_of(config);
    int status = 0;
    if (template != NULL) {
        t->chat_template = strdup(template);
        status = t->chat_template != NULL ? 0 : err_set(err, ERR_NOMEM, "out of memory for a chat template");
    }
    json_decref(config);
    return status;
}

int tokenizer_from_json(const char *tokenizer_json, size_t size, const char *config_json, size_t config_size,
                        struct tokenizer **tokenizer, struct err *err)
{
    json_t *root = json_parse_limited(tokenizer_json, size, 32, err);
    if (root == NULL) {
        return err_wrap(err, "tokenizer.json");
    }
    struct tokenizer *t = builder_create(err);
    int status = t != NULL ? document_read(t, root, err) : -1;
    json_decref(root);
    if (status == 0) {
        status = config_read(t, config_json, config_size, err);
    }
    if (status == 0) {
        status = builder_finish(t, err);
    }
    if (status < 0) {
        tokenizer_destroy(t);
        return -1;
    }
    *tokenizer = t;
    return 0;
}
