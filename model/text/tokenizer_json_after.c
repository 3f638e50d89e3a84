/* This file reads the decoder and the post_processor of tokenizer.json. */
#include "model/text/tokenizer_json_private.h"

#include <string.h>

/* --- decoders --- */

static int tokenizer_json_after_replace_read(struct decode_step *step, const json_t *item, struct err *err)
{
    const char *literal;
    const char *to;
    size_t literal_size;
    if (json_text(item, "content", &to, &step->to_size, err) < 0)
        return -1;
    step->kind = DECODE_REPLACE;
    step->to = (char *)to; /* decode_steps_add() copies the text */
    step->pattern = json_pattern(item, &literal, &literal_size, err);
    return step->pattern ? 0 : -1;
}

static int tokenizer_json_after_metaspace_read(struct decode_step *step, const json_t *item, struct err *err)
{
    struct metaspace m;
    if (json_metaspace(item, &m, err) < 0)
        return -1;
    step->kind = DECODE_METASPACE;
    step->from = (char *)m.mark;
    step->from_size = m.mark_size;
    step->flag = m.prefix != METASPACE_NEVER;
    return 0;
}

static int tokenizer_json_after_strip_read(struct decode_step *step, const json_t *item, struct err *err)
{
    const char *mark;
    step->kind = DECODE_STRIP;
    if (json_character(item, "content", &mark, &step->from_size, err) < 0 ||
        json_count(item, "start", UINT16_MAX, &step->start, err) < 0 ||
        json_count(item, "stop", UINT16_MAX, &step->stop, err) < 0) {
        return -1;
    }
    step->from = (char *)mark;
    return 0;
}

static int suffix_read(struct decode_step *step, const json_t *item, struct err *err)
{
    const char *text;
    step->kind = DECODE_BPE;
    if (json_text(item, "suffix", &text, &step->from_size, err) < 0)
        return -1;
    step->from = (char *)text;
    return 0;
}

static int ctc_read(struct decode_step *step, const json_t *item, struct err *err)
{
    const char *pad;
    const char *delimiter;
    step->kind = DECODE_CTC;
    if (json_text(item, "pad_token", &pad, &step->from_size, err) < 0 ||
        json_text(item, "word_delimiter_token", &delimiter, &step->to_size, err) < 0 ||
        json_flag(item, "cleanup", JSON_ABSENT_ERROR, false, &step->flag, err) < 0) {
        return -1;
    }
    step->from = (char *)pad;
    step->to = (char *)delimiter;
    return 0;
}

static int word_piece_read(struct decode_step *step, const json_t *item, struct err *err)
{
    const char *prefix;
    step->kind = DECODE_WORD_PIECE;
    if (json_text(item, "prefix", &prefix, &step->from_size, err) < 0 ||
        json_flag(item, "cleanup", JSON_ABSENT_ERROR, false, &step->flag, err) < 0) {
        return -1;
    }
    step->from = (char *)prefix;
    return 0;
}

static int tokenizer_json_after_byte_level_read(struct decode_step *step, const json_t *item, struct err *err)
{
    bool unused;
    step->kind = DECODE_BYTE_LEVEL;
    return json_flag(item, "add_prefix_space", JSON_ABSENT_ERROR, false, &unused, err) < 0 ||
                   json_flag(item, "trim_offsets", JSON_ABSENT_ERROR, false, &unused, err) < 0 ||
                   json_flag(item, "use_regex", JSON_ABSENT_TRUE, false, &unused, err) < 0
               ? -1
               : 0;
}

static int byte_fallback_read(struct decode_step *step, const json_t *item, struct err *err)
{
    (void)item;
    (void)err;
    step->kind = DECODE_BYTE_FALLBACK;
    return 0;
}

static int fuse_read(struct decode_step *step, const json_t *item, struct err *err)
{
    (void)item;
    (void)err;
    step->kind = DECODE_FUSE;
    return 0;
}

static int tokenizer_json_after_decoder_read(struct decode_steps *steps, const json_t *item, unsigned depth,
                                             struct err *err)
{
    static const struct {
        const char *type;
        int (*read)(struct decode_step *, const json_t *, struct err *);
    } kinds[] = {{"ByteLevel", tokenizer_json_after_byte_level_read},
                 {"Metaspace", tokenizer_json_after_metaspace_read},
                 {"Replace", tokenizer_json_after_replace_read},
                 {"ByteFallback", byte_fallback_read},
                 {"Fuse", fuse_read},
                 {"Strip", tokenizer_json_after_strip_read},
                 {"BPEDecoder", suffix_read},
                 {"CTC", ctc_read},
                 {"WordPiece", word_piece_read}};
    if (json_is_type(item, "Sequence") && depth < SECTION_DEPTH_MAX) {
        const json_t *list;
        if (json_list(item, "decoders", &list, err) < 0)
            return -1;
        for (size_t i = 0; i < json_array_size(list); i++)
            if (tokenizer_json_after_decoder_read(steps, json_array_get(list, i), depth + 1, err) < 0)
                return -1;
        return 0;
    }
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (json_is_type(item, kinds[i].type)) {
            struct decode_step step = {.kind = DECODE_FUSE};
            return kinds[i].read(&step, item, err) < 0 ? -1 : decode_steps_add(steps, &step, err);
        }
    }
    return err_set(
        err, ERR_INVALID,
        "tokenizer.json: decoder \"%.60s\" is not supported; supported: ByteLevel, Metaspace, Replace, "
        "ByteFallback, Fuse, Strip, BPEDecoder, CTC, WordPiece, Sequence, null",
        json_type_of(item));
}

int json_decoder_read(struct tokenizer *t, const json_t *decoder, struct err *err)
{
    t->decode.spaced = !decoder || json_is_null(decoder);
    return t->decode.spaced ? 0 : tokenizer_json_after_decoder_read(&t->decode, decoder, 0, err);
}

/* --- post-processors --- */

/* The tokens that one post-processor puts around a text. */
struct around {
    int32_t before[TOKENIZER_AROUND_MAX], after[TOKENIZER_AROUND_MAX];
    uint32_t before_count, after_count;
};

static int around_id(const struct tokenizer *t, struct around *around, bool after, const json_t *id,
                     struct err *err)
{
    uint32_t *count = after ? &around->after_count : &around->before_count;
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= (json_int_t)t->vocab) {
        return err_set(err, ERR_INVALID,
                       "tokenizer.json: post_processor has an id that is not in the vocabulary");
    }
    if (*count == TOKENIZER_AROUND_MAX) {
        return err_set(err, ERR_TOO_BIG,
                       "tokenizer.json: post_processor puts more than %d tokens on one side of a text",
                       TOKENIZER_AROUND_MAX);
    }
    (after ? around->after : around->before)[(*count)++] = (int32_t)json_integer_value(id);
    return 0;
}

/* Add the ids that special token 'name' stands for in a TemplateProcessing. */
static int tokenizer_json_after_special_add(const struct tokenizer *t, struct around *around,
                                            const json_t *post, const char *name, bool after, struct err *err)
{
    const json_t *ids =
        json_object_get(json_object_get(json_object_get(post, "special_tokens"), name), "ids");
    for (size_t i = 0; i < json_array_size(ids); i++)
        if (around_id(t, around, after, json_array_get(ids, i), err) < 0)
            return -1;
    return json_is_array(ids)
               ? 0
               : err_set(err, ERR_INVALID,
                         "tokenizer.json: TemplateProcessing.special_tokens has no ids of \"%.60s\"", name);
}

static int template_read(const struct tokenizer *t, struct around *around, const json_t *post,
                         struct err *err)
{
    const json_t *single;
    unsigned texts = 0;
    if (json_list(post, "single", &single, err) < 0)
        return -1;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i);
        const char *name = json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
        const char *text = json_string_value(json_object_get(json_object_get(item, "Sequence"), "id"));
        if (!name && (!text || strcmp(text, "A") != 0)) {
            return err_set(
                err, ERR_UNSUPPORTED,
                "tokenizer.json: TemplateProcessing.single[%zu] is neither a SpecialToken nor Sequence A", i);
        }
        texts += !name;
        if (name && tokenizer_json_after_special_add(t, around, post, name, texts > 0, err) < 0)
            return -1;
    }
    return texts == 1 ? 0
                      : err_set(err, ERR_UNSUPPORTED,
                                "tokenizer.json: TemplateProcessing.single has Sequence A %u times, not once",
                                texts);
}

/* Read a BertProcessing or RobertaProcessing: its "cls", such as ["<s>", 0], stands before a text and its
 * "sep", such as ["</s>", 2], behind it. */
static int tokenizer_json_after_pair_read(const struct tokenizer *t, struct around *around,
                                          const json_t *post, struct err *err)
{
    return around_id(t, around, false, json_array_get(json_object_get(post, "cls"), 1), err) < 0
               ? -1
               : around_id(t, around, true, json_array_get(json_object_get(post, "sep"), 1), err);
}

/* Put the tokens of the next post-processor around those of the earlier ones. Behind a TemplateProcessing
 * `tokenizers` puts them around each part of the template, which is refused here. 'parts': the post-processor
 * is a TemplateProcessing with other parts than the text. */
static int around_put(struct tokenizer *t, const struct around *around, bool parts, struct err *err)
{
    if (t->in_parts && around->before_count + around->after_count > 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.json: post_processor has one that adds tokens after a TemplateProcessing "
                       "that does; Sequence is supported with one of them");
    }
    t->in_parts |= parts;
    if (t->before_count + around->before_count > TOKENIZER_AROUND_MAX ||
        t->after_count + around->after_count > TOKENIZER_AROUND_MAX) {
        return err_set(err, ERR_TOO_BIG,
                       "tokenizer.json: post_processor puts more than %d tokens on one side of a text",
                       TOKENIZER_AROUND_MAX);
    }
    memmove(t->before + around->before_count, t->before, t->before_count * sizeof(*t->before));
    memcpy(t->before, around->before, around->before_count * sizeof(*t->before));
    memcpy(t->after + t->after_count, around->after, around->after_count * sizeof(*t->after));
    t->before_count += around->before_count;
    t->after_count += around->after_count;
    return 0;
}

static int post_read(struct tokenizer *t, const json_t *post, unsigned depth, struct err *err)
{
    struct around around = {.before_count = 0};
    const bool bytes = json_is_type(post, "ByteLevel");
    if (bytes || json_is_type(post, "RobertaProcessing"))
        t->trims_offsets |= !json_is_false(json_object_get(post, "trim_offsets"));
    if (bytes)
        return 0;
    if (json_is_type(post, "Sequence") && depth < SECTION_DEPTH_MAX) {
        const json_t *list;
        if (json_list(post, "processors", &list, err) < 0)
            return -1;
        for (size_t i = 0; i < json_array_size(list); i++)
            if (post_read(t, json_array_get(list, i), depth + 1, err) < 0)
                return -1;
        return 0;
    }
    if (json_is_type(post, "TemplateProcessing")) {
        return template_read(t, &around, post, err) < 0
                   ? -1
                   : around_put(t, &around, json_array_size(json_object_get(post, "single")) > 1, err);
    }
    if (json_is_type(post, "BertProcessing") || json_is_type(post, "RobertaProcessing"))
        return tokenizer_json_after_pair_read(t, &around, post, err) < 0 ? -1
                                                                         : around_put(t, &around, false, err);
    return err_set(err, ERR_UNSUPPORTED,
                   "tokenizer.json: post_processor \"%.60s\" is not supported; supported: ByteLevel, "
                   "TemplateProcessing, BertProcessing, RobertaProcessing, Sequence, null",
                   json_type_of(post));
}

int json_post_processor_read(struct tokenizer *t, const json_t *post, struct err *err)
{
    return !post || json_is_null(post) ? 0 : post_read(t, post, 0, err);
}
