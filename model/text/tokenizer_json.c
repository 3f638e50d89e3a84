/* This file makes tokenizers from tokenizer.json and the files beside it, as Hugging Face's `tokenizers` and
 * `transformers` write them. */
#include "model/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "model/files/hub_json.h"
#include "model/text/tokenizer_added.h"
#include "model/text/tokenizer_files.h"
#include "model/text/tokenizer_json_private.h"

static int vocab_read(struct tokenizer *t, const json_t *vocab, struct err *err)
{
    if (!json_is_object(vocab))
        return err_set(err, ERR_INVALID, "tokenizer.json: model.vocab is not an object");
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
        if (builder_token_vocab(t, (uint32_t)json_integer_value(value), text, size, err) < 0)
            return err_wrap(err, "tokenizer.json: model.vocab");
    }
    return 0;
}

/* Reads one merge: "left right" or, in newer files, ["left", "right"]. */
static int merge_read(struct tokenizer *t, const json_t *merge, uint32_t rank, struct err *err)
{
    const char *left = json_string_value(merge);
    if (left) {
        const size_t size = json_string_length(merge);
        const char *space = memchr(left, ' ', size);
        if (!space || memchr(space + 1, ' ', size - (size_t)(space - left) - 1))
            return err_set(err, ERR_INVALID, "merge %u has not one space in it", rank);
        return builder_merge(t, rank, left, (size_t)(space - left), space + 1,
                             size - (size_t)(space - left) - 1, err);
    }
    const json_t *a = json_array_get(merge, 0);
    const json_t *b = json_array_get(merge, 1);
    if (json_array_size(merge) != 2 || !json_is_string(a) || !json_is_string(b))
        return err_set(err, ERR_INVALID, "merge %u is not a pair of texts", rank);
    return builder_merge(t, rank, json_string_value(a), json_string_length(a), json_string_value(b),
                         json_string_length(b), err);
}

static int tokenizer_json_merges_read(struct tokenizer *t, const json_t *merges, struct err *err)
{
    if (!json_is_array(merges))
        return err_set(err, ERR_INVALID, "tokenizer.json: model.merges is not a list");
    if (builder_merges_reserve(t, json_array_size(merges), err) < 0)
        return -1;
    const char *first = json_string_value(json_array_get(merges, 0));
    /* the list may begin with the line "#version …" of merges.txt */
    const size_t begin = first && strncmp(first, "#version", 8) == 0;
    for (size_t i = begin; i < json_array_size(merges); i++)
        if (merge_read(t, json_array_get(merges, i), (uint32_t)i, err) < 0)
            return err_wrap(err, "tokenizer.json: model.merges");
    return 0;
}

/* Read one entry of added_tokens, to which tokenizer_files_read() has given the id that the token has. */
static int added_item(const json_t *item, struct added_token *added, const char **content, size_t *size,
                      struct err *err)
{
    bool normalized;
    bool lstrip;
    bool rstrip;
    bool single_word;
    bool special;
    if (json_text(item, "content", content, size, err) < 0 ||
        json_count(item, "id", INT32_MAX, &added->id, err) < 0 ||
        json_flag(item, "normalized", JSON_ABSENT_ERROR, false, &normalized, err) < 0 ||
        json_flag(item, "lstrip", JSON_ABSENT_ERROR, false, &lstrip, err) < 0 ||
        json_flag(item, "rstrip", JSON_ABSENT_ERROR, false, &rstrip, err) < 0 ||
        json_flag(item, "single_word", JSON_ABSENT_ERROR, false, &single_word, err) < 0 ||
        json_flag(item, "special", JSON_ABSENT_ERROR, false, &special, err) < 0) {
        return -1;
    }
    added->normalized = normalized;
    added->shown_normalized = normalized || json_object_get(item, added_was_normalised);
    added->lstrip = lstrip;
    added->rstrip = rstrip;
    added->single_word = single_word;
    added->special = special;
    return 0;
}

/* With 'texts', set the texts of the added tokens, before the index is built. Without, add them to the tokens
 * that are cut out of texts. */
static int tokenizer_json_added_read(struct tokenizer *t, const json_t *root, bool texts, struct err *err)
{
    const json_t *list = json_object_get(root, "added_tokens");
    int status = 0;
    for (size_t i = 0; i < json_array_size(list) && status == 0; i++) {
        const char *content;
        size_t size;
        struct added_token added = {.id = 0};
        status = added_item(json_array_get(list, i), &added, &content, &size, err);
        if (status == 0) {
            status =
                texts ? builder_token_raw(t, added.id, content, size, err) : builder_added(t, &added, err);
        }
        if (status < 0)
            err_wrap(err, "tokenizer.json: added_tokens[%zu]", i);
    }
    return status;
}

/* Returns true when the last pre-tokeniser is a ByteLevel, so a text becomes bytes right before it is
 * merged. */
static bool ends_in_bytes(const json_t *pre)
{
    for (unsigned depth = 0; depth < SECTION_DEPTH_MAX && json_is_type(pre, "Sequence"); depth++) {
        const json_t *list = json_object_get(pre, "pretokenizers");
        pre = json_array_get(list, json_array_size(list) - 1);
    }
    return json_is_type(pre, "ByteLevel");
}

/* Read a text member of the model; *text is NULL where it is absent or null. */
static int model_text(const json_t *model, const char *key, const char **text, size_t *size, struct err *err)
{
    *text = NULL;
    *size = 0;
    const json_t *value = json_object_get(model, key);
    return !value || json_is_null(value) ? 0 : json_text(model, key, text, size, err);
}

static int affix_read(const json_t *model, const char *key, char affix[TOKENIZER_AFFIX_BYTES],
                      struct err *err)
{
    const char *text;
    size_t size;
    if (model_text(model, key, &text, &size, err) < 0)
        return -1;
    if (size >= TOKENIZER_AFFIX_BYTES || (size > 0 && memchr(text, 0, size))) {
        return err_set(err, ERR_TOO_BIG, "tokenizer.json: model.%s has %zu bytes or a NUL, not less than %d",
                       key, size, TOKENIZER_AFFIX_BYTES);
    }
    memcpy(affix, text ? text : "", size);
    affix[size] = '\0';
    return 0;
}

static int model_check(struct tokenizer *t, const json_t *model, struct err *err)
{
    const json_t *dropout = json_object_get(model, "dropout");
    if (!json_is_object(model))
        return err_set(err, ERR_INVALID, "tokenizer.json: there is no model");
    /* In old files the model has vocab and merges but no type. */
    if (json_object_get(model, "type") && !json_is_type(model, "BPE")) {
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.json: model \"%.60s\" is not supported; supported: BPE",
                       json_type_of(model));
    }
    if (dropout && !json_is_null(dropout) &&
        !(json_is_number(dropout) && json_number_value(dropout) >= 0 && json_number_value(dropout) <= 1)) {
        return err_set(err, ERR_INVALID, "tokenizer.json: model.dropout is not a number from 0 to 1");
    }
    if (json_is_number(dropout) && json_number_value(dropout) != 0) {
        return err_set(
            err, ERR_UNSUPPORTED,
            "tokenizer.json: model.dropout makes ids random, which is not supported: set it to null");
    }
    return json_flag(model, "ignore_merges", JSON_ABSENT_FALSE, true, &t->ignore_merges, err) < 0 ||
                   json_flag(model, "byte_fallback", JSON_ABSENT_FALSE, true, &t->byte_fallback, err) < 0 ||
                   json_flag(model, "fuse_unk", JSON_ABSENT_FALSE, true, &t->fuse_unknown, err) < 0 ||
                   affix_read(model, "continuing_subword_prefix", t->inner_prefix, err) < 0 ||
                   affix_read(model, "end_of_word_suffix", t->end_suffix, err) < 0
               ? -1
               : 0;
}

/* Read the unknown token. One that has no id is an error only where a text needs it. */
static int unknown_read(struct tokenizer *t, const json_t *model, struct err *err)
{
    const char *text;
    size_t size;
    if (model_text(model, "unk_token", &text, &size, err) < 0)
        return -1;
    const json_t *id = text ? json_object_getn(json_object_get(model, "vocab"), text, size) : NULL;
    t->unknown = json_is_integer(id) ? (int32_t)json_integer_value(id) : -1;
    t->unknown_absent = text && t->unknown < 0;
    return 0;
}

/* Checks the truncation, which transformers applies: `tokenizers` refuses a stride of more than max_length
 * without the tokens that are put around a text. */
static int stride_check(const struct tokenizer *t, const json_t *root, struct err *err)
{
    const json_t *cut = json_object_get(root, "truncation");
    const json_int_t added = (json_int_t)(t->before_count + t->after_count);
    const json_int_t length = json_integer_value(json_object_get(cut, "max_length"));
    return length >= added && length - added < json_integer_value(json_object_get(cut, "stride"))
               ? err_set(err, ERR_INVALID,
                         "tokenizer.json: truncation.stride is more than truncation.max_length without the "
                         "tokens "
                         "that are put around a text")
               : 0;
}

static int tokenizer_json_document_read(struct tokenizer *t, const json_t *root, struct err *err)
{
    const json_t *model = json_object_get(root, "model");
    const json_t *pre = json_object_get(root, "pre_tokenizer");
    if (model_check(t, model, err) < 0)
        return -1;
    /* A tokenizer works on raw bytes where no later step looks at the characters that stand for them. */
    t->bytes = ends_in_bytes(pre) && json_is_type(json_object_get(root, "decoder"), "ByteLevel") &&
               !t->byte_fallback && t->inner_prefix[0] == '\0' && t->end_suffix[0] == '\0';
    if (json_pre_tokenizer_read(t, pre, err) < 0 ||
        json_decoder_read(t, json_object_get(root, "decoder"), err) < 0 ||
        vocab_read(t, json_object_get(model, "vocab"), err) < 0 ||
        tokenizer_json_added_read(t, root, true, err) < 0 || builder_index(t, err) < 0 ||
        tokenizer_json_merges_read(t, json_object_get(model, "merges"), err) < 0 ||
        tokenizer_json_added_read(t, root, false, err) < 0 ||
        json_normalizer_read(t, json_object_get(root, "normalizer"), err) < 0 ||
        json_post_processor_read(t, json_object_get(root, "post_processor"), err) < 0 ||
        stride_check(t, root, err) < 0) {
        return -1;
    }
    return unknown_read(t, model, err);
}

/* Returns true if 'status' is a failure other than ERR_UNSUPPORTED. The tokenizer's class may yet replace a
 * section that is not supported here. */
static bool is_wrong(int status, const struct err *err)
{
    return status < 0 && err->code != ERR_UNSUPPORTED;
}

struct section {
    const char *key, *list; /* key in the document, and key of the list in a Sequence */
    int (*read)(struct tokenizer *t, const json_t *item, struct err *err);
};

/* Check each item of a section, and each item of its Sequences, by itself, so that an unsupported item does
 * not hide an error behind it. */
static int section_check(struct tokenizer *t, const json_t *item, const struct section *section,
                         unsigned depth, struct err *err)
{
    const json_t *list = json_object_get(item, section->list);
    if (!json_is_type(item, "Sequence") || !json_is_array(list) || depth >= SECTION_DEPTH_MAX)
        return is_wrong(section->read(t, item, err), err) ? -1 : 0;
    int status = 0;
    for (size_t i = 0; i < json_array_size(list) && status == 0; i++) {
        status =
            json_is_null(json_array_get(list, i))
                ? err_set(err, ERR_INVALID, "tokenizer.json: %s: null in %s", section->key, section->list)
                : section_check(t, json_array_get(list, i), section, depth + 1, err);
    }
    return status;
}

/* Check tokenizer.json as it stands in the file: `tokenizers` has to accept it, whatever the files beside it
 * and the tokenizer's class then make of it. */
static int document_check(const json_t *root, struct err *err)
{
    static const struct section sections[] = {{"normalizer", "normalizers", json_normalizer_read},
                                              {"pre_tokenizer", "pretokenizers", json_pre_tokenizer_read},
                                              {"decoder", "decoders", json_decoder_read}};
    const json_t *version = json_object_get(root, "version");
    const json_t *model = json_object_get(root, "model");
    const char *unknown;
    size_t size;
    if (!json_is_object(root))
        return err_set(err, ERR_INVALID, "tokenizer.json: must be an object");
    if (version && (!json_is_string(version) || strcmp(json_string_value(version), "1.0") != 0))
        return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: version is not \"1.0\"");
    if (json_types_check(root, err) < 0)
        return -1;
    struct tokenizer *t = builder_create(err);
    bool wrong = !t || is_wrong(model_check(t, model, err), err) ||
                 is_wrong(model_text(model, "unk_token", &unknown, &size, err), err);
    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]) && !wrong; i++)
        wrong = section_check(t, json_object_get(root, sections[i].key), &sections[i], 0, err) < 0;
    tokenizer_destroy(t);
    return wrong ? -1 : 0;
}

int tokenizer_from_files(const char *tokenizer_json, size_t size, const struct tokenizer_files *files,
                         struct tokenizer **tokenizer, struct err *err)
{
    struct tokenizer_names names = {0};
    json_t *root = hub_json_parse(tokenizer_json, size, JSON_DEPTH, err);
    if (!root) {
        err_wrap(err, "tokenizer.json");
        return json_nul_name(tokenizer_json, size, err);
    }
    struct tokenizer *t = builder_create(err);
    int status = !t ? -1 : 0;
    if (status == 0)
        status = document_check(root, err);
    if (status == 0)
        status = tokenizer_files_read(files, root, &names, err);
    if (status == 0)
        status = tokenizer_json_document_read(t, root, err);
    json_decref(root);
    if (status == 0)
        status = builder_names(t, &names, err);
    tokenizer_names_fini(&names);
    if (status == 0)
        status = builder_finish(t, err);
    if (status < 0) {
        tokenizer_destroy(t);
        return -1;
    }
    *tokenizer = t;
    return 0;
}

int tokenizer_from_json(const char *tokenizer_json, size_t size, const char *config_json, size_t config_size,
                        struct tokenizer **tokenizer, struct err *err)
{
    const struct tokenizer_files files = {.config = {config_json, config_size}};
    return tokenizer_from_files(tokenizer_json, size, &files, tokenizer, err);
}
