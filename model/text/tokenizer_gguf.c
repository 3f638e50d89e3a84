/* This file makes tokenizers from GGUF metadata (tokenizer.ggml.*). */
#include "model/text/tokenizer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model/files/gguf.h"
#include "model/files/hub_json.h"
#include "model/shape/tensors.h"
#include "model/text/tokenizer_build.h"

enum { TEMPLATE_BYTES = 1 << 20 };

/* The values of tokenizer.ggml.token_type, as GGUF's specification numbers them. */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4, TYPE_UNUSED = 5, TYPE_BYTE = 6 };

/* The pre-tokeniser and settings that a value of tokenizer.ggml.pre stands for. */
struct pre_kind {
    const char *name;
    const char *patterns[2];
    bool ignore_merges, bos, nfc;
};

static const struct pre_kind pre_kinds[] = {
    {.name = "smollm", .patterns = {split_digit, split_gpt2}},
    {.name = "gpt-2", .patterns = {split_gpt2}},
    {.name = "olmo", .patterns = {split_gpt2}, .nfc = true},
    {.name = "llama-bpe", .patterns = {split_llama3}, .ignore_merges = true, .bos = true},
    {.name = "llama3", .patterns = {split_llama3}, .ignore_merges = true, .bos = true},
    {.name = "llama-v3", .patterns = {split_llama3}, .ignore_merges = true, .bos = true},
    {.name = "smaug-bpe", .patterns = {split_llama3}}, /* SmolLM3 and others have this name in their files */
    {.name = "tekken", .patterns = {split_tekken}, .ignore_merges = true, .bos = true},
    {.name = "qwen2", .patterns = {split_qwen2}, .nfc = true},
    {.name = "deepseek-r1-qwen", .patterns = {split_qwen2}, .nfc = true},
};

static int pre_read(struct tokenizer *t, const struct gguf *gguf, bool *add_bos, struct err *err)
{
    const char *name = "";
    size_t size = 0;
    gguf_string(gguf, "tokenizer.ggml.pre", &name, &size);
    for (size_t i = 0; i < sizeof(pre_kinds) / sizeof(pre_kinds[0]); i++) {
        const struct pre_kind *kind = &pre_kinds[i];
        if (strlen(kind->name) != size || memcmp(kind->name, name, size) != 0)
            continue;
        t->ignore_merges = kind->ignore_merges;
        *add_bos = kind->bos;
        if (kind->nfc && text_steps_add_form(&t->normal, TEXT_NFC, err) < 0)
            return -1;
        for (size_t p = 0; p < 2 && kind->patterns[p]; p++)
            if (splitter_add(t->splitter, kind->patterns[p], err) < 0)
                return -1;
        return 0;
    }
    return err_set(err, ERR_UNSUPPORTED,
                   "tokenizer.ggml.pre \"%.*s\" is not known; known: smollm, gpt-2, olmo, "
                   "llama-bpe, smaug-bpe, tekken, qwen2",
                   (int)(size < 60 ? size : 60), name);
}

static int tokens_read(struct tokenizer *t, const struct gguf *gguf, uint64_t count, struct err *err)
{
    for (uint64_t i = 0; i < count; i++) {
        const char *text = NULL;
        size_t size = 0;
        int64_t type = TYPE_NORMAL;
        if (!gguf_array_string(gguf, "tokenizer.ggml.tokens", i, &text, &size))
            return err_set(err, ERR_CORRUPT, "tokenizer.ggml.tokens[%" PRIu64 "] is not a text", i);
        gguf_array_i64(gguf, "tokenizer.ggml.token_type", i, &type);
        int status = type == TYPE_CONTROL || type == TYPE_USER
                         ? builder_token(t, (uint32_t)i, text, size, false, err)
                         : builder_token_vocab(t, (uint32_t)i, text, size, err);
        if (status < 0)
            return err_wrap(err, "tokenizer.ggml.tokens");
    }
    return 0;
}

/* Returns true for the special tokens of Phi-3 that swallow the white space behind them; GGUF has no key for
 * this flag. */
static bool swallows_behind(const struct gguf *gguf, const char *text, size_t size)
{
    static const char *const without[] = {"<unk>", "<s>", "<|endoftext|>"};
    const char *name = NULL;
    size_t name_size = 0;
    bool phi3 = gguf_string(gguf, "general.architecture", &name, &name_size) && name_size == 4 &&
                memcmp(name, "phi3", 4) == 0;
    for (size_t i = 0; i < sizeof(without) / sizeof(without[0]); i++)
        phi3 = phi3 && !(strlen(without[i]) == size && memcmp(without[i], text, size) == 0);
    return phi3;
}

static int tokenizer_gguf_added_read(struct tokenizer *t, const struct gguf *gguf, uint64_t count,
                                     struct err *err)
{
    for (uint64_t i = 0; i < count; i++) {
        int64_t type = TYPE_NORMAL;
        const struct token *token = &t->tokens[i];
        gguf_array_i64(gguf, "tokenizer.ggml.token_type", i, &type);
        const struct added_token added = {
            .id = (uint32_t)i,
            .special = type == TYPE_CONTROL,
            .rstrip =
                !t->bytes && swallows_behind(gguf, (const char *)t->arena + token->offset, token->size)};
        if ((type == TYPE_CONTROL || type == TYPE_USER) && token->size > 0 &&
            builder_added(t, &added, err) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Reads the scores that a SentencePiece vocabulary has instead of merges. */
static int scores_read(struct tokenizer *t, const struct gguf *gguf, uint64_t count, struct err *err)
{
    enum gguf_kind kind = GGUF_NONE;
    uint64_t scores = 0;
    if (!gguf_array(gguf, "tokenizer.ggml.scores", &kind, &scores) || scores != count) {
        return err_set(err, ERR_INVALID,
                       "tokenizer.ggml.scores has %" PRIu64 " entries for %" PRIu64 " tokens", scores, count);
    }
    float *score = malloc((size_t)count * sizeof(*score));
    if (!score)
        return err_set(err, ERR_NOMEM, "out of memory for %" PRIu64 " scores", count);
    int status = 0;
    for (uint64_t i = 0; i < count && status == 0; i++) {
        double value = 0;
        if (!gguf_array_f64(gguf, "tokenizer.ggml.scores", i, &value))
            status = err_set(err, ERR_INVALID, "tokenizer.ggml.scores[%" PRIu64 "] is not a number", i);
        score[i] = (float)value;
    }
    if (status == 0)
        status = builder_merges_by_score(t, score, err);
    free(score);
    return status;
}

static int tokenizer_gguf_merges_read(struct tokenizer *t, const struct gguf *gguf, struct err *err)
{
    enum gguf_kind kind = GGUF_NONE;
    uint64_t count = 0;
    if (!gguf_array(gguf, "tokenizer.ggml.merges", &kind, &count) || kind != GGUF_STRING)
        return err_set(err, ERR_INVALID, "tokenizer.ggml.merges is not a list of texts");
    if (builder_merges_reserve(t, count, err) < 0)
        return -1;
    for (uint64_t i = 0; i < count; i++) {
        const char *text = NULL;
        size_t size = 0;
        gguf_array_string(gguf, "tokenizer.ggml.merges", i, &text, &size);
        /* A side of a merge cannot contain a space, which GPT-2's alphabet writes as U+0120. */
        const char *space = text ? memchr(text, ' ', size) : NULL;
        if (!space)
            return err_set(err, ERR_INVALID, "tokenizer.ggml.merges[%" PRIu64 "] has no space in it", i);
        const size_t left = (size_t)(space - text);
        if (builder_merge(t, (uint32_t)i, text, left, space + 1, size - left - 1, err) < 0)
            return err_wrap(err, "tokenizer.ggml.merges");
    }
    return 0;
}

static int32_t special_of(const struct gguf *gguf, const char *key)
{
    int64_t id = -1;
    return gguf_i64(gguf, key, &id) && id >= 0 && id < TOKENIZER_VOCAB_MAX ? (int32_t)id : -1;
}

static int sentencepiece_read(struct tokenizer *t, const struct gguf *gguf, struct err *err)
{
    bool prefix = true;
    gguf_bool(gguf, "tokenizer.ggml.add_space_prefix", &prefix);
    t->unknown = special_of(gguf, "tokenizer.ggml.unknown_token_id");
    return builder_spaces(t, prefix, true, err);
}

static int tokenizer_gguf_settings_read(struct tokenizer *t, const struct gguf *gguf, struct err *err)
{
    bool add_bos = !t->bytes;
    bool add_eos = false;
    if ((t->bytes ? pre_read(t, gguf, &add_bos, err) : sentencepiece_read(t, gguf, err)) < 0)
        return -1;
    t->bos = special_of(gguf, "tokenizer.ggml.bos_token_id");
    t->eos = special_of(gguf, "tokenizer.ggml.eos_token_id");
    if (builder_special(t, "bos_token", t->bos, err) < 0 ||
        builder_special(t, "eos_token", t->eos, err) < 0 ||
        builder_special(t, "unk_token", t->unknown, err) < 0 ||
        builder_special(t, "pad_token", special_of(gguf, "tokenizer.ggml.padding_token_id"), err) < 0) {
        return -1;
    }
    gguf_bool(gguf, "tokenizer.ggml.add_bos_token", &add_bos);
    gguf_bool(gguf, "tokenizer.ggml.add_eos_token", &add_eos);
    if (add_bos && t->bos >= 0)
        t->before[t->before_count++] = t->bos;
    if (add_eos && t->eos >= 0)
        t->after[t->after_count++] = t->eos;
    const char *template = NULL;
    size_t size = 0;
    if (gguf_string(gguf, "tokenizer.chat_template", &template, &size) && size <= TEMPLATE_BYTES) {
        t->templates = json_pack("{s:s%}", "default", template, size);
        if (!t->templates)
            return err_set(err, ERR_INVALID, "tokenizer.chat_template is not valid UTF-8");
    }
    return 0;
}

static int metadata_read(struct tokenizer *t, const struct gguf *gguf, struct err *err)
{
    const char *model = NULL;
    size_t size = 0;
    if (!gguf_string(gguf, "tokenizer.ggml.model", &model, &size))
        return err_set(err, ERR_NOT_FOUND, "the GGUF file has no tokenizer");
    t->bytes = size == 4 && memcmp(model, "gpt2", 4) == 0;
    if (!t->bytes && (size != 5 || memcmp(model, "llama", 5) != 0)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.ggml.model \"%.*s\" is not known; known: gpt2 (byte-level BPE), llama "
                       "(SentencePiece BPE)",
                       (int)(size < 60 ? size : 60), model);
    }
    enum gguf_kind kind = GGUF_NONE;
    uint64_t count = 0;
    if (!gguf_array(gguf, "tokenizer.ggml.tokens", &kind, &count) || kind != GGUF_STRING)
        return err_set(err, ERR_INVALID, "tokenizer.ggml.tokens is not a list of texts");
    if (count > TOKENIZER_VOCAB_MAX) {
        return err_set(err, ERR_TOO_BIG, "tokenizer.ggml.tokens has %" PRIu64 " tokens, more than %d", count,
                       TOKENIZER_VOCAB_MAX);
    }
    uint64_t types = 0;
    if (gguf_array(gguf, "tokenizer.ggml.token_type", &kind, &types) && types != count) {
        return err_set(err, ERR_INVALID,
                       "tokenizer.ggml.token_type has %" PRIu64 " entries for %" PRIu64 " tokens", types,
                       count);
    }
    if (tokens_read(t, gguf, count, err) < 0 || builder_index(t, err) < 0 ||
        (t->bytes ? tokenizer_gguf_merges_read(t, gguf, err) : scores_read(t, gguf, count, err)) < 0 ||
        tokenizer_gguf_added_read(t, gguf, count, err) < 0) {
        return -1;
    }
    return tokenizer_gguf_settings_read(t, gguf, err);
}

int tokenizer_from_gguf(const struct gguf *gguf, struct tokenizer **tokenizer, struct err *err)
{
    struct tokenizer *t = builder_create(err);
    if (!t || metadata_read(t, gguf, err) < 0 || builder_finish(t, err) < 0) {
        tokenizer_destroy(t);
        return -1;
    }
    *tokenizer = t;
    return 0;
}
