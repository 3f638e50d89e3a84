/* This file reads the normalizer and the pre_tokenizer of tokenizer.json. */
#include "model/text/tokenizer_json_private.h"

#include <string.h>

/* Refuse a type: with ERR_UNSUPPORTED if `tokenizers` has it, else with ERR_INVALID. */
static int not_known(const char *section, const json_t *item, const char *known, struct err *err)
{
    const bool theirs = json_is_type(item, "Precompiled") || json_is_type(item, "UnicodeScripts");
    return err_set(err, theirs ? ERR_UNSUPPORTED : ERR_INVALID,
                   "tokenizer.json: %s \"%.60s\" is not supported; supported: %s", section,
                   json_type_of(item), known);
}

/* --- normalisers --- */

static int tokenizer_json_steps_replace_read(struct text_steps *steps, const json_t *item, struct err *err)
{
    const char *to;
    size_t to_size;
    const char *literal;
    size_t literal_size = 0;
    if (json_text(item, "content", &to, &to_size, err) < 0)
        return -1;
    struct pattern *pattern = json_pattern(item, &literal, &literal_size, err);
    if (!pattern)
        return -1;
    if (!literal) {
        return text_steps_add_pattern(steps, pattern, to, to_size, err) < 0 ? err_wrap(err, "tokenizer.json")
                                                                            : 0;
    }
    pattern_destroy(pattern);
    return text_steps_add(steps, TEXT_REPLACE, literal, literal_size, to, to_size, err);
}

static int tokenizer_json_steps_strip_read(struct text_steps *steps, const json_t *item, struct err *err)
{
    bool left;
    bool right;
    if (json_flag(item, "strip_left", JSON_ABSENT_ERROR, false, &left, err) < 0 ||
        json_flag(item, "strip_right", JSON_ABSENT_ERROR, false, &right, err) < 0) {
        return -1;
    }
    return text_steps_add_strip(steps, left, right, err);
}

static int prepend_read(struct text_steps *steps, const json_t *item, struct err *err)
{
    const char *text;
    size_t size;
    if (json_text(item, "prepend", &text, &size, err) < 0)
        return -1;
    if (size == 0) {
        return err_set(
            err, ERR_UNSUPPORTED,
            "tokenizer.json: normalizer Prepend has an empty prepend, with which tokenizers writes a "
            "text's first character twice; leave the normalizer out");
    }
    return text_steps_add(steps, TEXT_PREPEND, "", 0, text, size, err);
}

static int bert_read(struct text_steps *steps, const json_t *item, struct err *err)
{
    bool clean;
    bool chinese;
    bool accents;
    bool lower;
    if (json_flag(item, "clean_text", JSON_ABSENT_ERROR, false, &clean, err) < 0 ||
        json_flag(item, "handle_chinese_chars", JSON_ABSENT_ERROR, false, &chinese, err) < 0 ||
        json_flag(item, "lowercase", JSON_ABSENT_ERROR, false, &lower, err) < 0 ||
        json_flag(item, "strip_accents", lower ? JSON_ABSENT_TRUE : JSON_ABSENT_FALSE, true, &accents, err) <
            0) {
        return -1;
    }
    if ((clean && text_steps_add_map(steps, MAP_BERT_CLEAN, err) < 0) ||
        (chinese && text_steps_add_map(steps, MAP_BERT_CHINESE, err) < 0) ||
        (accents && (text_steps_add_form(steps, TEXT_NFD, err) < 0 ||
                     text_steps_add_map(steps, MAP_BERT_ACCENTS, err) < 0))) {
        return -1;
    }
    return lower ? text_steps_add_map(steps, MAP_LOWER, err) : 0;
}

static int tokenizer_json_steps_map_read(struct text_steps *steps, const json_t *item, struct err *err)
{
    static const char *const maps[] = {[MAP_LOWER] = "Lowercase",
                                       [MAP_ACCENTS] = "StripAccents",
                                       [MAP_NMT] = "Nmt",
                                       [MAP_BYTE_LEVEL] = "ByteLevel"};
    for (size_t i = 0; i < sizeof(maps) / sizeof(maps[0]); i++)
        if (maps[i] && json_is_type(item, maps[i]))
            return text_steps_add_map(steps, (enum character_map)i, err);
    return not_known(
        "normalizer", item,
        "NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, StripAccents, Lowercase, Nmt, ByteLevel, "
        "BertNormalizer, Sequence, null",
        err);
}

static int tokenizer_json_steps_normalizer_read(struct text_steps *steps, const json_t *item, unsigned depth,
                                                struct err *err)
{
    static const char *const forms[] = {
        [TEXT_NFC] = "NFC", [TEXT_NFD] = "NFD", [TEXT_NFKC] = "NFKC", [TEXT_NFKD] = "NFKD"};
    if (json_is_type(item, "Sequence") && depth < SECTION_DEPTH_MAX) {
        const json_t *list;
        if (json_list(item, "normalizers", &list, err) < 0)
            return -1;
        for (size_t i = 0; i < json_array_size(list); i++)
            if (tokenizer_json_steps_normalizer_read(steps, json_array_get(list, i), depth + 1, err) < 0)
                return -1;
        return 0;
    }
    for (int form = TEXT_NFC; form <= TEXT_NFKD; form++)
        if (json_is_type(item, forms[form]))
            return text_steps_add_form(steps, (enum text_form)form, err);
    return json_is_type(item, "Prepend")          ? prepend_read(steps, item, err)
           : json_is_type(item, "Replace")        ? tokenizer_json_steps_replace_read(steps, item, err)
           : json_is_type(item, "Strip")          ? tokenizer_json_steps_strip_read(steps, item, err)
           : json_is_type(item, "BertNormalizer") ? bert_read(steps, item, err)
                                                  : tokenizer_json_steps_map_read(steps, item, err);
}

int json_normalizer_read(struct tokenizer *t, const json_t *normalizer, struct err *err)
{
    return !normalizer || json_is_null(normalizer)
               ? 0
               : tokenizer_json_steps_normalizer_read(&t->normal, normalizer, 0, err);
}

/* --- pre-tokenisers --- */

static int behavior_read(const json_t *item, bool required, enum split_how *how, struct err *err)
{
    static const char *const hows[] = {[SPLIT_ISOLATED] = "Isolated",
                                       [SPLIT_REMOVED] = "Removed",
                                       [SPLIT_WITH_PREVIOUS] = "MergedWithPrevious",
                                       [SPLIT_WITH_NEXT] = "MergedWithNext",
                                       [SPLIT_CONTIGUOUS] = "Contiguous"};
    const char *text = NULL;
    size_t size;
    *how = SPLIT_ISOLATED;
    if (!required && !json_object_get(item, "behavior"))
        return 0;
    if (json_text(item, "behavior", &text, &size, err) < 0)
        return -1;
    for (int i = SPLIT_ISOLATED; i <= SPLIT_CONTIGUOUS; i++) {
        if (strcmp(text, hows[i]) == 0) {
            *how = (enum split_how)i;
            return 0;
        }
    }
    return err_set(err, ERR_INVALID,
                   "tokenizer.json: %s.behavior \"%.40s\" is none of Isolated, Removed, MergedWithPrevious, "
                   "MergedWithNext, Contiguous",
                   json_type_of(item), text);
}

static int split_read(struct splitter *splitter, const json_t *item, struct err *err)
{
    enum split_how how;
    bool invert;
    const char *literal;
    size_t literal_size;
    if (behavior_read(item, true, &how, err) < 0 ||
        json_flag(item, "invert", JSON_ABSENT_ERROR, false, &invert, err) < 0) {
        return -1;
    }
    return splitter_cut(splitter, json_pattern(item, &literal, &literal_size, err), how, invert, err);
}

static int tokenizer_json_steps_metaspace_read(struct splitter *splitter, const json_t *item, struct err *err)
{
    struct metaspace m;
    if (json_metaspace(item, &m, err) < 0)
        return -1;
    struct text_steps *steps = splitter_change(splitter, err);
    if (!steps || text_steps_add(steps, TEXT_REPLACE, " ", 1, m.mark, m.mark_size, err) < 0 ||
        (m.prefix != METASPACE_NEVER &&
         text_steps_add(steps, m.prefix == METASPACE_FIRST ? TEXT_PREPEND_FIRST : TEXT_PREPEND_ONCE, m.mark,
                        m.mark_size, m.mark, m.mark_size, err) < 0)) {
        return -1;
    }
    return m.split ? splitter_cut(splitter, pattern_literal(m.mark, m.mark_size, err), SPLIT_WITH_NEXT, false,
                                  err)
                   : 0;
}

/* Read a ByteLevel. With 'last' no stage follows it, so in a byte-level tokenizer bytes need not become
 * characters of GPT-2's alphabet. */
static int tokenizer_json_steps_byte_level_read(struct tokenizer *t, const json_t *item, bool last,
                                                struct err *err)
{
    bool prefix;
    bool trim;
    bool regex;
    if (json_flag(item, "add_prefix_space", JSON_ABSENT_ERROR, false, &prefix, err) < 0 ||
        json_flag(item, "trim_offsets", JSON_ABSENT_ERROR, false, &trim, err) < 0 ||
        json_flag(item, "use_regex", JSON_ABSENT_TRUE, false, &regex, err) < 0) {
        return -1;
    }
    struct text_steps *steps = prefix ? splitter_change(t->splitter, err) : NULL;
    if ((prefix && (!steps || text_steps_add(steps, TEXT_PREPEND_ONCE, " ", 1, " ", 1, err) < 0)) ||
        (regex && splitter_add(t->splitter, split_gpt2, err) < 0)) {
        return -1;
    }
    if (last && t->bytes)
        return 0;
    steps = splitter_change(t->splitter, err);
    return steps ? text_steps_add_map(steps, MAP_BYTE_LEVEL, err) : -1;
}

static int cut_by_set(struct splitter *splitter, const json_t *item, struct err *err)
{
    if (json_is_type(item, "Digits")) {
        bool each;
        if (json_flag(item, "individual_digits", JSON_ABSENT_ERROR, false, &each, err) < 0)
            return -1;
        return splitter_cut(splitter, pattern_set(&unicode_numeric, false, err),
                            each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, false, err);
    }
    if (json_is_type(item, "Punctuation")) {
        enum split_how how;
        return behavior_read(item, false, &how, err) < 0
                   ? -1
                   : splitter_cut(splitter, pattern_set(&unicode_punctuation, false, err), how, false, err);
    }
    if (json_is_type(item, "Whitespace"))
        return splitter_cut(splitter, pattern_set(&unicode_word, true, err), SPLIT_REMOVED, true, err);
    if (splitter_cut(splitter, pattern_space(err), SPLIT_REMOVED, false, err) < 0)
        return -1;
    return json_is_type(item, "WhitespaceSplit")
               ? 0 /* the other type that comes here, BertPreTokenizer, also cuts at punctuation */
               : splitter_cut(splitter, pattern_set(&unicode_punctuation, false, err), SPLIT_ISOLATED, false,
                              err);
}

static int cut_by_size(struct splitter *splitter, const json_t *item, struct err *err)
{
    enum { LENGTH_DEFAULT = 5, LENGTH_MAX = 65535 }; /* characters; 5 is the default of `tokenizers` */
    uint32_t length = LENGTH_DEFAULT;
    if (json_object_get(item, "length") && json_count(item, "length", LENGTH_MAX, &length, err) < 0)
        return -1;
    if (length == 0)
        return err_set(err, ERR_INVALID, "tokenizer.json: FixedLength.length is 0");
    return splitter_cut(splitter, pattern_characters(length, err), SPLIT_ISOLATED, false, err);
}

static int delimiter_read(struct splitter *splitter, const json_t *item, struct err *err)
{
    const char *text;
    size_t size;
    return json_character(item, "delimiter", &text, &size, err) < 0
               ? -1
               : splitter_cut(splitter, pattern_literal(text, size, err), SPLIT_REMOVED, false, err);
}

static int tokenizer_json_steps_stage_read(struct tokenizer *t, const json_t *item, bool last, unsigned depth,
                                           struct err *err);

static int tokenizer_json_steps_stages_read(struct tokenizer *t, const json_t *item, bool last,
                                            unsigned depth, struct err *err)
{
    const json_t *list;
    if (json_list(item, "pretokenizers", &list, err) < 0)
        return -1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (tokenizer_json_steps_stage_read(t, json_array_get(list, i),
                                            last && i + 1 == json_array_size(list), depth + 1, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int tokenizer_json_steps_stage_read(struct tokenizer *t, const json_t *item, bool last, unsigned depth,
                                           struct err *err)
{
    static const char *const by_set[] = {"Digits", "Punctuation", "Whitespace", "WhitespaceSplit",
                                         "BertPreTokenizer"};
    for (size_t i = 0; i < sizeof(by_set) / sizeof(by_set[0]); i++)
        if (json_is_type(item, by_set[i]))
            return cut_by_set(t->splitter, item, err);
    if (json_is_type(item, "Sequence") && depth < SECTION_DEPTH_MAX)
        return tokenizer_json_steps_stages_read(t, item, last, depth, err);
    return json_is_type(item, "Split")       ? split_read(t->splitter, item, err)
           : json_is_type(item, "Metaspace") ? tokenizer_json_steps_metaspace_read(t->splitter, item, err)
           : json_is_type(item, "ByteLevel") ? tokenizer_json_steps_byte_level_read(t, item, last, err)
           : json_is_type(item, "CharDelimiterSplit") ? delimiter_read(t->splitter, item, err)
           : json_is_type(item, "FixedLength")
               ? cut_by_size(t->splitter, item, err)
               : not_known("pre_tokenizer", item,
                           "ByteLevel, Metaspace, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, "
                           "CharDelimiterSplit, FixedLength, BertPreTokenizer, Sequence, null",
                           err);
}

/* Returns true if a Metaspace with prepend_scheme "first" stands behind a ByteLevel: `tokenizers` then takes
 * every piece of the text's first character for the first piece. *bytes: a ByteLevel stood before. */
static bool first_behind_bytes(const json_t *stage, bool *bytes, unsigned depth)
{
    const json_t *list = json_object_get(stage, "pretokenizers");
    for (size_t i = 0; i < json_array_size(list) && depth < SECTION_DEPTH_MAX; i++)
        if (first_behind_bytes(json_array_get(list, i), bytes, depth + 1))
            return true;
    const char *scheme = json_string_value(json_object_get(stage, "prepend_scheme"));
    if (*bytes && json_is_type(stage, "Metaspace") && scheme && strcmp(scheme, "first") == 0)
        return true;
    *bytes |= json_is_type(stage, "ByteLevel");
    return false;
}

int json_pre_tokenizer_read(struct tokenizer *t, const json_t *pre, struct err *err)
{
    bool bytes = false;
    if (!pre || json_is_null(pre))
        return 0;
    if (first_behind_bytes(pre, &bytes, 0)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.json: pre_tokenizer has a Metaspace with prepend_scheme \"first\" behind a "
                       "ByteLevel, which is not supported");
    }
    return tokenizer_json_steps_stage_read(t, pre, true, 0, err);
}
