/* Decoding, and what a tokenizer tells about itself. */
#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "model/tokenizer_build.h"
#include "model/utf8.h"

static const char replacement[] = "\xef\xbf\xbd";

/* Append bytes as UTF-8, one U+FFFD for each maximal invalid part. */
static int lossy_append(const uint8_t *bytes, size_t size, struct buf *text, struct err *err)
{
    for (size_t at = 0; at < size;) {
        uint32_t code;
        unsigned bad;
        const unsigned length = utf8_decode(bytes + at, size - at, &code, &bad, NULL);
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

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* The byte that "<0x0A>" stands for, or -1. */
static int byte_of(const char *text, size_t size)
{
    if (size != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') {
        return -1;
    }
    const int high = hex_digit(text[3]);
    const int low = hex_digit(text[4]);
    return high >= 0 && low >= 0 ? high << 4 | low : -1;
}

/* A text being put together from tokens; 'run' are bytes of tokens such as "<0x0A>" in a row. */
struct joining {
    const struct decode_rules *rules;
    struct buf run, *text;
    bool first;
};

/* A run of bytes is a text, or one U+FFFD for each of them. */
static int run_end(struct joining *j, struct err *err)
{
    const size_t size = j->run.size;
    int status = 0;
    if (utf8_check(buf_str(&j->run), size) == size) {
        status = buf_append(j->text, j->run.data, size, err);
    } else {
        for (size_t i = 0; i < size && status == 0; i++) {
            status = buf_append(j->text, replacement, sizeof(replacement) - 1, err);
        }
    }
    buf_clear(&j->run);
    return status;
}

static int token_join(struct joining *j, const char *text, size_t size, struct err *err)
{
    const struct decode_rules *rules = j->rules;
    const size_t from = strlen(rules->from);
    const char *to = rules->drop_in_first && j->first ? "" : rules->to;
    const int byte = rules->byte_fallback ? byte_of(text, size) : -1;
    j->first = false;
    if (byte >= 0) {
        const uint8_t one = (uint8_t)byte;
        return buf_append(&j->run, &one, 1, err);
    }
    if (run_end(j, err) < 0) {
        return -1;
    }
    for (size_t at = 0; at < size;) {
        const char *found = from > 0 ? memmem(text + at, size - at, rules->from, from) : NULL;
        const size_t end = found != NULL ? (size_t)(found - text) : size;
        if (buf_append(j->text, text + at, end - at, err) < 0 ||
            (found != NULL && buf_text(j->text, to, err) < 0)) {
            return -1;
        }
        at = found != NULL ? end + from : size;
    }
    return 0;
}

/* Take the strip character from both ends of text[begin..). */
static void strip_ends(const struct decode_rules *rules, struct buf *text, size_t begin)
{
    const size_t one = strlen(rules->strip);
    size_t from = begin;
    for (uint32_t n = 0; one > 0 && n < rules->strip_start && text->size - from >= one &&
                         memcmp(text->data + from, rules->strip, one) == 0;
         n++) {
        from += one;
    }
    for (uint32_t n = 0; one > 0 && n < rules->strip_stop && text->size - from >= one &&
                         memcmp(text->data + text->size - one, rules->strip, one) == 0;
         n++) {
        text->size -= one;
    }
    if (from > begin) {
        memmove(text->data + begin, text->data + from, text->size - from);
        text->size -= from - begin;
    }
    if (text->data != NULL) {
        text->data[text->size] = '\0'; /* as buf.h has it */
    }
}

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                     struct buf *text, struct err *err)
{
    const size_t begin = text->size;
    struct buf bytes = {.limit = text->limit};
    struct joining j = {.rules = &t->decode, .run = {.limit = text->limit}, .text = text, .first = true};
    int status = 0;
    for (size_t i = 0; i < count && status == 0; i++) {
        status = id_check(t, ids[i], err);
        if (status == 0 && !(skip_special && t->tokens[ids[i]].special)) {
            const struct token *token = &t->tokens[ids[i]];
            const char *own = (const char *)t->arena + token->offset;
            status =
                t->bytes ? buf_append(&bytes, own, token->size, err) : token_join(&j, own, token->size, err);
        }
    }
    if (status == 0) {
        status = t->bytes ? lossy_append(bytes.data, bytes.size, text, err) : run_end(&j, err);
    }
    if (status == 0) {
        strip_ends(&t->decode, text, begin);
    } else {
        text->size = begin;
    }
    buf_fini(&bytes);
    buf_fini(&j.run);
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
    if (id < 0 || (uint32_t)id >= t->vocab || !t->tokens[id].there) {
        return NULL;
    }
    *size = t->tokens[id].size;
    return (const char *)t->arena + t->tokens[id].offset;
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

int tokenizer_give_template(struct tokenizer *t, const char *text, struct err *err)
{
    char *copy = strdup(text);
    if (copy == NULL) {
        return err_set(err, ERR_NOMEM, "out of memory for a chat template");
    }
    free(t->chat_template);
    t->chat_template = copy;
    return 0;
}

void tokenizer_digest(const struct tokenizer *t, uint8_t digest[32])
{
    memcpy(digest, t->digest, sizeof(t->digest));
}
