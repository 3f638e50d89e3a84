/* tokenizer.json and tokenizer_config.json, as Hugging Face's `tokenizers` and `transformers` write them. */
#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "model/hub_json.h"
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
        if (builder_token_vocab(t, (uint32_t)json_integer_value(value), text, size, err) < 0) {
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

/* The text of a member, "" when it is none. */
static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* Its pattern's String, or NULL. */
static const char *literal_of(const json_t *object)
{
    return json_string_value(json_object_get(json_object_get(object, "pattern"), "String"));
}

static int normalizer_read(struct tokenizer *t, const json_t *normalizer, unsigned depth, struct err *err)
{
    static const char *const forms[] = {
        [TEXT_NFC] = "NFC", [TEXT_NFD] = "NFD", [TEXT_NFKC] = "NFKC", [TEXT_NFKD] = "NFKD"};
    if (normalizer == NULL || json_is_null(normalizer)) {
        return 0;
    }
    if (is_type(normalizer, "Sequence") && depth < 2) {
        const json_t *list = json_object_get(normalizer, "normalizers");
        for (size_t i = 0; i < json_array_size(list); i++) {
            if (normalizer_read(t, json_array_get(list, i), depth + 1, err) < 0) {
                return -1;
            }
        }
        return 0;
    }
    for (int form = TEXT_NFC; form <= TEXT_NFKD; form++) {
        if (is_type(normalizer, forms[form])) {
            return text_steps_add_form(&t->normal, (enum text_form)form, err);
        }
    }
    if (is_type(normalizer, "Prepend")) {
        return text_steps_add(&t->normal, TEXT_PREPEND, "", text_of(normalizer, "prepend"), err);
    }
    if (is_type(normalizer, "Replace") && literal_of(normalizer) != NULL) {
        return text_steps_add(&t->normal, TEXT_REPLACE, literal_of(normalizer),
                              text_of(normalizer, "content"), err);
    }
    return err_set(err, ERR_UNSUPPORTED,
                   "tokenizer.json: normaliser \"%.60s\" is not known; known: NFC, NFD, NFKC, NFKD, Prepend, "
                   "Replace of a String, Sequence, none",
                   type_of(normalizer));
}

static int split_read(struct tokenizer *t, const json_t *split, struct err *err)
{
    static const char *const hows[] = {[SPLIT_ISOLATED] = "Isolated",
                                       [SPLIT_WITH_PREVIOUS] = "MergedWithPrevious",
                                       [SPLIT_WITH_NEXT] = "MergedWithNext"};
    const json_t *regex = json_object_get(json_object_get(split, "pattern"), "Regex");
    const char *literal = literal_of(split);
    if (!json_is_string(regex) && (literal == NULL || literal[0] == '\0')) {
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.json: a Split pre-tokeniser without a Regex or a String");
    }
    const char *behavior = text_of(split, "behavior");
    for (int how = SPLIT_ISOLATED; how <= SPLIT_WITH_NEXT && !flag_of(split, "invert", false); how++) {
        if (strcmp(behavior, hows[how]) == 0) {
            return json_is_string(regex)
                       ? splitter_add(t->splitter, json_string_value(regex), json_string_length(regex),
                                      (enum split_how)how, false, err)
                       : splitter_add(t->splitter, literal, strlen(literal), (enum split_how)how, true, err);
        }
    }
    return err_set(err, ERR_UNSUPPORTED,
                   "tokenizer.json: a Split pre-tokeniser of behaviour \"%.40s\"%s; known: Isolated, "
                   "MergedWithPrevious, MergedWithNext, not inverted",
                   behavior, flag_of(split, "invert", false) ? ", inverted" : "");
}

/* Metaspace, of today (prepend_scheme, split) or of before 0.15 (add_prefix_space). */
static const char *metaspace_scheme(const json_t *object)
{
    const char *scheme = text_of(object, "prepend_scheme");
    return scheme[0] != '\0' ? scheme : flag_of(object, "add_prefix_space", true) ? "always" : "never";
}

static int metaspace_read(struct tokenizer *t, const json_t *stage, struct err *err)
{
    const char *mark = text_of(stage, "replacement");
    const char *scheme = metaspace_scheme(stage);
    const bool never = strcmp(scheme, "never") == 0;
    const bool first = strcmp(scheme, "first") == 0;
    if (mark[0] == '\0' || (!never && !first && strcmp(scheme, "always") != 0)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.json: a Metaspace with prepend_scheme \"%.40s\" and replacement \"%.40s\"",
                       scheme, mark);
    }
    if (text_steps_add(&t->before_split, TEXT_REPLACE, " ", mark, err) < 0 ||
        (!never && text_steps_add(&t->before_split, first ? TEXT_PREPEND_FIRST : TEXT_PREPEND_ONCE, mark,
                                  mark, err) < 0)) {
        return -1;
    }
    return flag_of(stage, "split", true)
               ? splitter_add(t->splitter, mark, strlen(mark), SPLIT_WITH_NEXT, true, err)
               : 0;
}

static int byte_level_read(struct tokenizer *t, const json_t *stage, struct err *err)
{
    t->bytes = true;
    if (flag_of(stage, "add_prefix_space", true) &&
        text_steps_add(&t->before_split, TEXT_PREPEND_ONCE, " ", " ", err) < 0) {
        return -1;
    }
    return flag_of(stage, "use_regex", true)
               ? splitter_add(t->splitter, split_gpt2, strlen(split_gpt2), SPLIT_ISOLATED, false, err)
               : 0;
}

/* 'first': nothing stands before it that cuts, so that it may change the text. */
static int stage_read(struct tokenizer *t, const json_t *stage, bool first, struct err *err)
{
    if (t->bytes) {
        return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: a pre-tokeniser behind ByteLevel");
    }
    const bool changes = is_type(stage, "Metaspace") ||
                         (is_type(stage, "ByteLevel") && flag_of(stage, "add_prefix_space", true));
    if (changes && !first) {
        return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: %s behind another pre-tokeniser",
                       is_type(stage, "Metaspace") ? "Metaspace" : "add_prefix_space");
    }
    if (is_type(stage, "Split")) {
        return split_read(t, stage, err);
    }
    if (is_type(stage, "Digits")) {
        const char *pattern = flag_of(stage, "individual_digits", false) ? split_digit : split_digits;
        return splitter_add(t->splitter, pattern, strlen(pattern), SPLIT_ISOLATED, false, err);
    }
    if (is_type(stage, "Metaspace")) {
        return metaspace_read(t, stage, err);
    }
    if (is_type(stage, "ByteLevel")) {
        return byte_level_read(t, stage, err);
    }
    return err_set(
        err, ERR_UNSUPPORTED,
        "tokenizer.json: pre-tokeniser \"%.60s\" is not known; known: ByteLevel, Metaspace, Split, "
        "Digits, Sequence, none",
        type_of(stage));
}

static int pre_tokenizer_read(struct tokenizer *t, const json_t *pre, struct err *err)
{
    if (pre == NULL || json_is_null(pre)) {
        return 0;
    }
    if (!is_type(pre, "Sequence")) {
        return stage_read(t, pre, true, err);
    }
    const json_t *list = json_object_get(pre, "pretokenizers");
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (stage_read(t, json_array_get(list, i), i == 0, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int strip_read(struct decode_rules *rules, const json_t *item, bool fused, struct err *err)
{
    const char *content = text_of(item, "content");
    const json_int_t start = json_integer_value(json_object_get(item, "start"));
    const json_int_t stop = json_integer_value(json_object_get(item, "stop"));
    if (!fused || rules->strip[0] != '\0' || strlen(content) >= sizeof(rules->strip) || start < 0 ||
        stop < 0 || start > UINT16_MAX || stop > UINT16_MAX) {
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.json: a Strip decoder that is not the only one, behind Fuse");
    }
    memcpy(rules->strip, content, strlen(content));
    rules->strip_start = (uint32_t)start;
    rules->strip_stop = (uint32_t)stop;
    return 0;
}

static int replace_rule(struct decode_rules *rules, const char *from, const char *to, bool drop,
                        struct err *err)
{
    if (rules->from[0] != '\0' || from[0] == '\0' || strlen(from) >= sizeof(rules->from) ||
        strlen(to) >= sizeof(rules->to)) {
        return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: a second or a long Replace among the decoders");
    }
    memcpy(rules->from, from, strlen(from));
    memcpy(rules->to, to, strlen(to));
    rules->drop_in_first = drop;
    return 0;
}

/* One decoder of a sequence that is not byte-level. They must come in the order in which token_join does
 * them: Replace, ByteFallback, Fuse, Strip. */
static int decoder_read(struct decode_rules *rules, const json_t *item, bool *fused, struct err *err)
{
    const bool late = *fused || rules->byte_fallback;
    if (is_type(item, "Replace") && literal_of(item) != NULL && !late) {
        return replace_rule(rules, literal_of(item), text_of(item, "content"), false, err);
    }
    if (is_type(item, "Metaspace") && !late) {
        return replace_rule(rules, text_of(item, "replacement"), " ",
                            strcmp(metaspace_scheme(item), "never") != 0, err);
    }
    if (is_type(item, "ByteFallback") && !*fused) {
        rules->byte_fallback = true;
        return 0;
    }
    if (is_type(item, "Fuse")) {
        *fused = true;
        return 0;
    }
    if (is_type(item, "Strip")) {
        return strip_read(rules, item, *fused, err);
    }
    return err_set(
        err, ERR_UNSUPPORTED,
        "tokenizer.json: decoder \"%.60s\" is not known in its place; known: ByteLevel, Metaspace, "
        "or Replace of a String, ByteFallback, Fuse, Strip in this order",
        type_of(item));
}

static int decoders_read(struct tokenizer *t, const json_t *decoder, struct err *err)
{
    bool fused = false;
    if (t->bytes && (decoder == NULL || json_is_null(decoder) || is_type(decoder, "ByteLevel"))) {
        return 0;
    }
    if (t->bytes) {
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.json: decoder \"%.60s\" of a byte-level tokenizer is not known; known: "
                       "ByteLevel",
                       type_of(decoder));
    }
    if (!is_type(decoder, "Sequence")) {
        return decoder_read(&t->decode, decoder, &fused, err);
    }
    const json_t *list = json_object_get(decoder, "decoders");
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (decoder_read(&t->decode, json_array_get(list, i), &fused, err) < 0) {
            return -1;
        }
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

static int bpe_check(const json_t *model, struct err *err)
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
    return 0;
}

static int document_read(struct tokenizer *t, const json_t *root, struct err *err)
{
    const json_t *model = json_object_get(root, "model");
    const json_t *added = json_object_get(root, "added_tokens");
    if (!json_is_object(model)) {
        return err_set(err, ERR_INVALID, "tokenizer.json: there is no model");
    }
    /* The pre-tokeniser says whether the vocabulary is one of bytes. */
    if (bpe_check(model, err) < 0 || pre_tokenizer_read(t, json_object_get(root, "pre_tokenizer"), err) < 0 ||
        decoders_read(t, json_object_get(root, "decoder"), err) < 0 ||
        vocab_read(t, json_object_get(model, "vocab"), err) < 0 || added_read(t, added, true, err) < 0 ||
        builder_index(t, err) < 0 || merges_read(t, json_object_get(model, "merges"), err) < 0 ||
        added_read(t, added, false, err) < 0 ||
        normalizer_read(t, json_object_get(root, "normalizer"), 0, err) < 0 ||
        post_processor_read(t, json_object_get(root, "post_processor"), err) < 0) {
        return -1;
    }
    t->ignore_merges = flag_of(model, "ignore_merges", false);
    t->byte_fallback = flag_of(model, "byte_fallback", false);
    if (t->bytes && t->byte_fallback) {
        return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: byte_fallback of a byte-level tokenizer");
    }
    t->fuse_unknown = flag_of(model, "fuse_unk", false);
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

int builder_config(struct tokenizer *t, const char *text, size_t size, struct err *err)
{
    if (size == 0) {
        return 0;
    }
    json_t *config = hub_json_parse(text, size, 32, err);
    if (config == NULL) {
        return err_wrap(err, "tokenizer_config.json");
    }
    t->bos = special_of(t, config, "bos_token");
    t->eos = special_of(t, config, "eos_token");
    const char *template = template_of(config);
    int status = 0;
    if (template != NULL) {
        status = tokenizer_give_template(t, template, err);
    }
    json_decref(config);
    return status;
}

int tokenizer_from_json(const char *tokenizer_json, size_t size, const char *config_json, size_t config_size,
                        struct tokenizer **tokenizer, struct err *err)
{
    json_t *root = hub_json_parse(tokenizer_json, size, 32, err);
    if (root == NULL) {
        return err_wrap(err, "tokenizer.json");
    }
    struct tokenizer *t = builder_create(err);
    int status = t != NULL ? document_read(t, root, err) : -1;
    json_decref(root);
    if (status == 0) {
        status = builder_config(t, config_json, config_size, err);
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
