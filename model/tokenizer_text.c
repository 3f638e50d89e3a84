/* Decoding, and what a tokenizer tells about itself. */
#include "model/tokenizer.h"

#include <string.h>

#include "model/tokenizer_build.h"
#include "model/utf8.h"

static const char replacement[] = "\xef\xbf\xbd";

/* Append bytes as UTF-8, one U+FFFD for each maximal invalid part. With 'state', a character cut off at the
 * end is kept there instead. */
static int lossy_append(const uint8_t *bytes, size_t size, struct decode_state *state, struct buf *text,
                        struct err *err)
{
    for (size_t at = 0; at < size;) {
        uint32_t code;
        unsigned bad;
        bool cut;
        const unsigned length = utf8_decode(bytes + at, size - at, &code, &bad, &cut);
        if (length == 0 && cut && state != NULL) {
            memcpy(state->bytes, bytes + at, bad);
            state->count = (uint8_t)bad;
            return 0;
        }
        int status = length > 0 ? buf_append(text, bytes + at, length, err)
                                : buf_append(text, replacement, sizeof(replacement) - 1, err);
        if (status < 0) {
            return -1;
        }
        at += length > 0 ? length : bad;
    }
    return 0;
}

static int id_check(const struct tokenizer *t, int32_t id, struct err *err)
{
    if (id < 0 || (uint32_t)id >= t->vocab || !t->tokens[id].there) {
        return err_set(err, ERR_INVALID, "token id %d is not in the vocabulary of %u", id, t->vocab);
    }
    return 0;
}

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                     struct buf *text, struct err *err)
{
    const size_t begin = text->size;
    struct buf bytes = {.limit = text->limit};
    int status = 0;
    for (size_t i = 0; i < count && status == 0; i++) {
        status = id_check(t, ids[i], err);
        if (status == 0 && !(skip_special && t->tokens[ids[i]].special)) {
            status = buf_append(&bytes, t->arena + t->tokens[ids[i]].offset, t->tokens[ids[i]].size, err);
        }
    }
    if (status == 0) {
        status = lossy_append(bytes.data, bytes.size, NULL, text, err);
    }
    if (status < 0) {
        text->size = begin;
    }
    buf_fini(&bytes);
    return status;
}

int tokenizer_decode_next(const struct tokenizer *t, struct decode_state *state, int32_t id,
                          bool skip_special, struct buf *text, struct err *err)
{
    if (id_check(t, id, err) < 0) {
        return -1;
    }
    if (skip_special && t->tokens[id].special) {
        return 0;
    }
    struct buf bytes = {.limit = (size_t)TOKENIZER_TOKEN_BYTES + sizeof(state->bytes) + 1};
    int status = buf_append(&bytes, state->bytes, state->count, err);
    if (status == 0) {
        status = buf_append(&bytes, t->arena + t->tokens[id].offset, t->tokens[id].size, err);
    }
    if (status == 0) {
        state->count = 0;
        status = lossy_append(bytes.data, bytes.size, state, text, err);
    }
    buf_fini(&bytes);
    return status;
}

int tokenizer_decode_end(struct decode_state *state, struct buf *text, struct err *err)
{
    const uint8_t count = state->count;
    state->count = 0;
    return lossy_append(state->bytes, count, NULL, text, err);
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

uint32_t tokenizer_token_bytes(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->vocab ? t->tokens[id].size : 0;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t size)
{
    for (uint32_t i = 0; i < t->added_count; i++) {
        const struct token *token = &t->tokens[t->added[i].id];
        if (token->size == size && memcmp(t->arena + token->offset, text, size) == 0) {
            return (int32_t)t->added[i].id;
        }
    }
    return tokenizer_lookup(t, (const uint8_t *)text, size);
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->vocab && t->tokens[id].special;
}

const char *tokenizer_chat_template(const struct tokenizer *t)
{
    return t->chat_template;
}

void tokenizer_digest(const struct tokenizer *t, uint8_t digest[32])
{
    memcpy(digest, t->digest, sizeof(t->digest));
}
