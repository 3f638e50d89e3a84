/* This file decodes token ids, and answers questions about a tokenizer. */
#include "model/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "model/text/tokenizer_build.h"

static bool has_id(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->vocab && t->tokens[id].there;
}

/* The text that a token is decoded as. */
struct decoded {
    const char *text;
    size_t size;
    bool raw; /* true: 'text' is raw bytes; false: its characters may stand for bytes */
    bool special;
    bool absent; /* the vocabulary has no such id, which is left out as in `tokenizers` */
};

/* Returns true when some special token has that text. */
static bool is_special_text(const struct tokenizer *t, const char *text, size_t size)
{
    for (uint32_t i = 0; i < t->added_count; i++) {
        const struct token *token = &t->tokens[t->added[i].id];
        if (token->special && token->size == size && memcmp(t->arena + token->offset, text, size) == 0)
            return true;
    }
    return false;
}

/* Returns the text that a token is decoded as. As in `tokenizers`, a normalised added token counts as special
 * if a special token has its normalised text. */
static struct decoded decoded_of(const struct tokenizer *t, int32_t id)
{
    if (!has_id(t, id))
        return (struct decoded){.absent = true};
    const struct token *token = &t->tokens[id];
    for (uint32_t i = 0; token->renamed && i < t->added_count; i++) {
        const struct added_token *added = &t->added[i];
        if (added->id == (uint32_t)id) {
            const char *text = (const char *)t->arena + added->shown_offset;
            return (struct decoded){.text = text,
                                    .size = added->shown_size,
                                    .special = is_special_text(t, text, added->shown_size)};
        }
    }
    return (struct decoded){.text = (const char *)t->arena + token->offset,
                            .size = token->size,
                            .raw = token->bpe,
                            .special = token->special};
}

static int decode_bytes(const struct tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                        struct buf *text, struct err *err)
{
    struct buf bytes = {.limit = text->limit};
    int status = 0;
    for (size_t i = 0; i < count && status == 0; i++) {
        const struct decoded token = decoded_of(t, ids[i]);
        if (!token.absent && !(skip_special && token.special)) {
            status = token.raw ? buf_append(&bytes, token.text, token.size, err)
                               : decode_alphabet(token.text, token.size, &bytes, err);
        }
    }
    if (status == 0)
        status = decode_lossy(bytes.data, bytes.size, text, err);
    buf_fini(&bytes);
    return status;
}

static int decode_texts(const struct tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                        struct buf *text, struct err *err)
{
    struct text_list list = {.text = {.limit = text->limit}};
    int status = 0;
    for (size_t i = 0; i < count && status == 0; i++) {
        const struct decoded token = decoded_of(t, ids[i]);
        if (!token.absent && !(skip_special && token.special))
            status = text_list_add(&list, token.text, token.size, err);
    }
    if (status == 0)
        status = decode_steps_apply(&t->decode, &list, text, err);
    text_list_fini(&list);
    return status;
}

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                     struct buf *text, struct err *err)
{
    const size_t begin = text->size;
    const int status = t->bytes ? decode_bytes(t, ids, count, skip_special, text, err)
                                : decode_texts(t, ids, count, skip_special, text, err);
    if (status < 0)
        text->size = begin;
    return status;
}

uint32_t tokenizer_vocab(const struct tokenizer *t)
{
    return t->vocab;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

const char *tokenizer_token_text(const struct tokenizer *t, int32_t id, size_t *size)
{
    *size = 0;
    if (!has_id(t, id))
        return NULL;
    *size = t->tokens[id].size;
    return (const char *)t->arena + t->tokens[id].offset;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t size)
{
    for (uint32_t i = 0; i < t->added_count; i++) {
        const struct token *token = &t->tokens[t->added[i].id];
        if (token->size == size && memcmp(t->arena + token->offset, text, size) == 0)
            return (int32_t)t->added[i].id;
    }
    return tokenizer_lookup(t, (const uint8_t *)text, size);
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->vocab && t->tokens[id].special;
}

const char *tokenizer_chat_template(const struct tokenizer *t)
{
    return tokenizer_template(t, "default");
}

const char *tokenizer_template(const struct tokenizer *t, const char *name)
{
    return json_string_value(json_object_get(t->templates, name));
}

const json_t *tokenizer_special_tokens(const struct tokenizer *t)
{
    return t->special;
}

int tokenizer_give_template(struct tokenizer *t, const char *text, struct err *err)
{
    json_t *templates = json_pack("{s:s}", "default", text);
    if (!templates)
        return err_set(err, ERR_INVALID, "the chat template is not valid UTF-8, or memory is out");
    json_decref(t->templates);
    t->templates = templates;
    return 0;
}
