/* This file fills a tokenizer's tables: tokens by id and by text, merges by pair, added tokens by text. */
#include "model/text/tokenizer_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/text/text_characters.h"
#include "model/text/tokenizer_scratch.h"
#include "model/text/utf8.h"

/* SCORE_WORK_MAX bounds the sum of the squares of all tokens' sizes in bytes: finding the merges of a token
 * hashes it once for every place where it can be cut. */
enum { ARENA_BYTES_MAX = 1 << 30, MERGE_SIDE_BYTES = 4096, SCORE_WORK_MAX = 1 << 30 };

static uint64_t tokenizer_build_mix(uint64_t h)
{
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    return h ^ h >> 32;
}

static uint64_t hash_bytes(const uint8_t *bytes, size_t size)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ size;
    while (size >= 8) {
        uint64_t eight;
        memcpy(&eight, bytes, 8);
        h = tokenizer_build_mix(h ^ eight);
        bytes += 8;
        size -= 8;
    }
    uint64_t rest = 0;
    memcpy(&rest, bytes, size);
    return tokenizer_build_mix(h ^ rest);
}

/* Write the raw bytes that a text in GPT-2's alphabet stands for to out[0..size). Returns their number, or -1
 * when a character is outside the alphabet. */
static int unmap(const char *text, size_t size, uint8_t *out)
{
    int count = 0;
    for (size_t at = 0; at < size;) {
        uint32_t code = 0;
        unsigned bad;
        unsigned length = utf8_decode((const uint8_t *)text + at, size - at, &code, &bad, NULL);
        int byte = length > 0 ? alphabet_byte(code) : -1;
        if (byte < 0)
            return -1;
        out[count++] = (uint8_t)byte;
        at += length;
    }
    return count;
}

struct tokenizer *builder_create(struct err *err)
{
    struct tokenizer *t = calloc(1, sizeof(*t));
    if (!t) {
        err_set(err, ERR_NOMEM, "out of memory for a tokenizer");
        return NULL;
    }
    t->unknown = -1;
    t->bos = -1;
    t->eos = -1;
    t->lock_ready = pthread_mutex_init(&t->lock, NULL) == 0;
    t->splitter = splitter_create(err);
    if (!t->splitter || !t->lock_ready) {
        tokenizer_destroy(t);
        err_set(err, ERR_NOMEM, "out of memory for a tokenizer");
        return NULL;
    }
    return t;
}

void tokenizer_destroy(struct tokenizer *t)
{
    if (!t)
        return;
    for (unsigned i = 0; i < t->idle_count; i++)
        encode_scratch_destroy(t->idle[i]);
    if (t->lock_ready)
        pthread_mutex_destroy(&t->lock);
    splitter_destroy(t->splitter);
    text_steps_fini(&t->normal);
    decode_steps_fini(&t->decode);
    free(t->tokens);
    free(t->arena);
    free(t->text_slots);
    free(t->merges);
    free(t->added);
    json_decref(t->special);
    json_decref(t->templates);
    free(t);
}

static int vocab_reserve(struct tokenizer *t, uint32_t count, struct err *err)
{
    if (count <= t->vocab_capacity)
        return 0;
    uint32_t capacity = t->vocab_capacity == 0 ? 1024 : t->vocab_capacity;
    while (capacity < count)
        capacity *= 2;
    struct token *grown = realloc(t->tokens, capacity * sizeof(*grown));
    if (!grown)
        return err_set(err, ERR_NOMEM, "out of memory for %u tokens", capacity);
    memset(grown + t->vocab_capacity, 0, (capacity - t->vocab_capacity) * sizeof(*grown));
    t->tokens = grown;
    t->vocab_capacity = capacity;
    return 0;
}

static int arena_reserve(struct tokenizer *t, size_t more, struct err *err)
{
    if (t->arena_capacity - t->arena_size >= more)
        return 0;
    size_t capacity = t->arena_capacity == 0 ? 65536 : t->arena_capacity;
    while (capacity - t->arena_size < more)
        capacity *= 2;
    if (capacity > ARENA_BYTES_MAX)
        return err_set(err, ERR_TOO_BIG, "the tokenizer's texts are larger than %d bytes", ARENA_BYTES_MAX);
    uint8_t *grown = realloc(t->arena, capacity);
    if (!grown)
        return err_set(err, ERR_NOMEM, "out of memory for %zu bytes of tokens", capacity);
    t->arena = grown;
    t->arena_capacity = capacity;
    return 0;
}

int builder_token(struct tokenizer *t, uint32_t id, const char *bytes, size_t size, bool bpe, struct err *err)
{
    if (id >= TOKENIZER_VOCAB_MAX)
        return err_set(err, ERR_TOO_BIG, "token id %u is not below %d", id, TOKENIZER_VOCAB_MAX);
    if (size > TOKENIZER_TOKEN_BYTES) {
        return err_set(err, ERR_TOO_BIG, "token %u has %zu bytes, more than %d", id, size,
                       TOKENIZER_TOKEN_BYTES);
    }
    if (vocab_reserve(t, id + 1, err) < 0 || arena_reserve(t, size, err) < 0)
        return -1;
    struct token *token = &t->tokens[id];
    if (token->there)
        return err_set(err, ERR_INVALID, "token id %u stands in the vocabulary twice", id);
    memcpy(t->arena + t->arena_size, bytes, size);
    *token = (struct token){
        .offset = (uint32_t)t->arena_size, .size = (uint16_t)size, .there = 1, .bpe = bpe && size > 0};
    t->arena_size += size;
    if (id >= t->vocab)
        t->vocab = id + 1;
    return 0;
}

int builder_token_vocab(struct tokenizer *t, uint32_t id, const char *text, size_t size, struct err *err)
{
    uint8_t stack[256];
    if (!t->bytes)
        return builder_token(t, id, text, size, true, err);
    if (size <= sizeof(stack)) {
        int count = unmap(text, size, stack);
        return count < 0 ? builder_token(t, id, text, size, false, err)
                         : builder_token(t, id, (const char *)stack, (size_t)count, true, err);
    }
    uint8_t *bytes = malloc(size);
    if (!bytes)
        return err_set(err, ERR_NOMEM, "out of memory for token %u", id);
    int count = size > TOKENIZER_TOKEN_BYTES ? -1 : unmap(text, size, bytes);
    int status = count < 0 ? builder_token(t, id, text, size, false, err)
                           : builder_token(t, id, (const char *)bytes, (size_t)count, true, err);
    free(bytes);
    return status;
}

int builder_token_raw(struct tokenizer *t, uint32_t id, const char *text, size_t size, struct err *err)
{
    if (id < t->vocab && t->tokens[id].there) {
        const struct token *old = &t->tokens[id];
        if (old->size == size && memcmp(t->arena + old->offset, text, size) == 0)
            return 0;
        t->tokens[id].there = 0;
    }
    return builder_token(t, id, text, size, false, err);
}

static uint32_t table_size(uint64_t entries)
{
    uint32_t size = 1024;
    while (size < entries * 2)
        size *= 2;
    return size;
}

int builder_index(struct tokenizer *t, struct err *err)
{
    if (t->vocab == 0)
        return err_set(err, ERR_INVALID, "the tokenizer has no tokens");
    uint32_t slots = table_size(t->vocab);
    t->text_slots = calloc(slots, sizeof(*t->text_slots));
    if (!t->text_slots)
        return err_set(err, ERR_NOMEM, "out of memory for a vocabulary of %u", t->vocab);
    t->text_mask = slots - 1;
    for (uint32_t id = 0; id < t->vocab; id++) {
        const struct token *token = &t->tokens[id];
        if (!token->bpe || tokenizer_lookup(t, t->arena + token->offset, token->size) >= 0)
            continue;
        uint32_t slot = (uint32_t)hash_bytes(t->arena + token->offset, token->size) & t->text_mask;
        while (t->text_slots[slot] != 0)
            slot = (slot + 1) & t->text_mask;
        t->text_slots[slot] = id + 1;
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        const uint8_t one = (uint8_t)byte;
        char code[8];
        snprintf(code, sizeof(code), "<0x%02X>", byte);
        t->byte_id[byte] = t->bytes ? tokenizer_lookup(t, &one, 1) : tokenizer_lookup(t, (uint8_t *)code, 6);
        if (byte < 0x80) { /* With an affix the token depends on the character's place in the piece. */
            const bool affixed = t->inner_prefix[0] != '\0' || t->end_suffix[0] != '\0';
            t->ascii_id[byte] = affixed ? -1 : tokenizer_lookup(t, &one, 1);
        }
    }
    return 0;
}

int32_t tokenizer_lookup(const struct tokenizer *t, const uint8_t *bytes, size_t size)
{
    uint32_t slot = (uint32_t)hash_bytes(bytes, size) & t->text_mask;
    for (; t->text_slots[slot] != 0; slot = (slot + 1) & t->text_mask) {
        const struct token *token = &t->tokens[t->text_slots[slot] - 1];
        if (token->size == size && memcmp(t->arena + token->offset, bytes, size) == 0)
            return (int32_t)t->text_slots[slot] - 1;
    }
    return -1;
}

int builder_merges_reserve(struct tokenizer *t, uint64_t count, struct err *err)
{
    if (count > TOKENIZER_MERGES_MAX) {
        return err_set(err, ERR_TOO_BIG, "the tokenizer has %llu merges, more than %d",
                       (unsigned long long)count, TOKENIZER_MERGES_MAX);
    }
    uint32_t slots = table_size(count);
    t->merges = malloc(slots * sizeof(*t->merges));
    if (!t->merges)
        return err_set(err, ERR_NOMEM, "out of memory for %llu merges", (unsigned long long)count);
    memset(t->merges, 0xff, slots * sizeof(*t->merges));
    t->merge_mask = slots - 1;
    return 0;
}

static uint32_t merge_slot_of(const struct tokenizer *t, uint32_t left, uint32_t right)
{
    return (uint32_t)tokenizer_build_mix((uint64_t)left << 32 | right) & t->merge_mask;
}

const struct merge_slot *tokenizer_merge(const struct tokenizer *t, uint32_t left, uint32_t right)
{
    uint32_t slot = merge_slot_of(t, left, right);
    for (; t->merges[slot].rank != UINT32_MAX; slot = (slot + 1) & t->merge_mask)
        if (t->merges[slot].left == left && t->merges[slot].right == right)
            return &t->merges[slot];
    return NULL;
}

static void merge_insert(struct tokenizer *t, const struct merge_slot *merge)
{
    uint32_t slot = merge_slot_of(t, merge->left, merge->right);
    while (t->merges[slot].rank != UINT32_MAX) {
        if (t->merges[slot].left == merge->left && t->merges[slot].right == merge->right) {
            /* The last merge of a pair counts, as in Hugging Face's map. */
            t->merges[slot].rank = merge->rank;
            return;
        }
        slot = (slot + 1) & t->merge_mask;
    }
    t->merges[slot] = *merge;
    t->merge_count++;
}

/* Write one side of a merge as raw bytes to out[0..size). Returns their number, or -1 as unmap() does. */
static int merge_side(const struct tokenizer *t, const char *text, size_t size, uint8_t *out)
{
    if (t->bytes)
        return unmap(text, size, out);
    memcpy(out, text, size);
    return (int)size;
}

int builder_merge(struct tokenizer *t, uint32_t rank, const char *left, size_t left_size, const char *right,
                  size_t right_size, struct err *err)
{
    uint8_t bytes[2 * MERGE_SIDE_BYTES];
    if (left_size > MERGE_SIDE_BYTES || right_size > MERGE_SIDE_BYTES)
        return err_set(err, ERR_TOO_BIG, "merge %u has a side of more than %d bytes", rank, MERGE_SIDE_BYTES);
    int left_count = merge_side(t, left, left_size, bytes);
    int right_count = left_count < 0 ? -1 : merge_side(t, right, right_size, bytes + left_count);
    const size_t prefix = strlen(t->inner_prefix); /* the right side of a merge loses its prefix */
    int32_t left_id = left_count > 0 ? tokenizer_lookup(t, bytes, (size_t)left_count) : -1;
    int32_t right_id = right_count > 0 ? tokenizer_lookup(t, bytes + left_count, (size_t)right_count) : -1;
    int32_t merged = -1;
    if (left_id >= 0 && right_id >= 0 && (size_t)right_count >= prefix) {
        memmove(bytes + left_count, bytes + left_count + prefix, (size_t)right_count - prefix);
        merged = tokenizer_lookup(t, bytes, (size_t)(left_count + right_count) - prefix);
    }
    if (merged < 0) {
        return err_set(err, ERR_INVALID,
                       "merge %u (\"%.*s\" with \"%.*s\") speaks of a token that is not in the vocabulary",
                       rank, (int)(left_size < 40 ? left_size : 40), left,
                       (int)(right_size < 40 ? right_size : 40), right);
    }
    merge_insert(t, &(struct merge_slot){.left = (uint32_t)left_id,
                                         .right = (uint32_t)right_id,
                                         .rank = rank,
                                         .merged = (uint32_t)merged});
    return 0;
}

static int compare_scores(const void *a, const void *b, void *arg)
{
    const float *score = arg;
    const float x = score[*(const uint32_t *)a];
    const float y = score[*(const uint32_t *)b];
    return (x < y) - (x > y);
}

/* Count the merges that make token 'id'; with 'insert', put them into the table too. */
static uint64_t merges_of(struct tokenizer *t, uint32_t id, uint32_t rank, bool insert)
{
    const struct token *token = &t->tokens[id];
    const uint8_t *bytes = t->arena + token->offset;
    uint64_t count = 0;
    for (size_t cut = 1; token->bpe && cut < token->size; cut++) {
        if ((bytes[cut] & 0xc0) == 0x80)
            continue;
        const int32_t left = tokenizer_lookup(t, bytes, cut);
        const int32_t right = left >= 0 ? tokenizer_lookup(t, bytes + cut, token->size - cut) : -1;
        if (right < 0)
            continue;
        count++;
        if (insert) {
            merge_insert(t,
                         &(struct merge_slot){.left = (uint32_t)left,
                                              .right = (uint32_t)right,
                                              .rank = rank,
                                              .merged = (uint32_t)tokenizer_lookup(t, bytes, token->size)});
        }
    }
    return count;
}

int builder_merges_by_score(struct tokenizer *t, const float *score, struct err *err)
{
    uint64_t work = 0;
    uint64_t count = 0;
    for (uint32_t id = 0; id < t->vocab; id++) {
        work += (uint64_t)t->tokens[id].size * t->tokens[id].size;
        if (score[id] != score[id])
            return err_set(err, ERR_INVALID, "token %u has a score that is no number", id);
    }
    if (work > SCORE_WORK_MAX)
        return err_set(err, ERR_TOO_BIG, "the vocabulary's texts are too long to be taken apart");
    uint32_t *order = malloc(t->vocab * sizeof(*order));
    if (!order)
        return err_set(err, ERR_NOMEM, "out of memory for %u tokens in order", t->vocab);
    for (uint32_t id = 0; id < t->vocab; id++) {
        order[id] = id;
        count += merges_of(t, id, 0, false);
    }
    int status = builder_merges_reserve(t, count, err);
    if (status == 0)
        qsort_r(order, t->vocab, sizeof(*order), compare_scores, (void *)(uintptr_t)score);
    uint32_t rank = 0;
    for (uint32_t i = 0; i < t->vocab && status == 0; i++) {
        rank = i > 0 && score[order[i]] == score[order[i - 1]] ? rank : i;
        merges_of(t, order[i], rank, true);
    }
    free(order);
    return status;
}

int builder_spaces(struct tokenizer *t, bool prefix, bool fallback, struct err *err)
{
    static char mark[] = "\xe2\x96\x81";
    static char space[] = " ";
    const struct decode_step replace = {
        .kind = DECODE_REPLACE, .pattern = pattern_literal(mark, 3, err), .to = space, .to_size = 1};
    const struct decode_step bytes = {.kind = DECODE_BYTE_FALLBACK};
    const struct decode_step fuse = {.kind = DECODE_FUSE};
    const struct decode_step strip = {.kind = DECODE_STRIP, .from = space, .from_size = 1, .start = 1};
    t->byte_fallback = fallback;
    t->fuse_unknown = true;
    if (!replace.pattern || decode_steps_add(&t->decode, &replace, err) < 0 ||
        (fallback && decode_steps_add(&t->decode, &bytes, err) < 0) ||
        decode_steps_add(&t->decode, &fuse, err) < 0 ||
        (prefix && decode_steps_add(&t->decode, &strip, err) < 0) ||
        (prefix && text_steps_add(&t->normal, TEXT_PREPEND, "", 0, mark, 3, err) < 0)) {
        return -1;
    }
    return text_steps_add(&t->normal, TEXT_REPLACE, " ", 1, mark, 3, err);
}

int builder_added(struct tokenizer *t, const struct added_token *added, struct err *err)
{
    if (added->id >= t->vocab || !t->tokens[added->id].there || t->tokens[added->id].size == 0)
        return err_set(err, ERR_INVALID, "added token %u has no text in the vocabulary", added->id);
    const struct token *token = &t->tokens[added->id];
    if (utf8_check((const char *)t->arena + token->offset, token->size) != token->size)
        return err_set(err, ERR_CORRUPT, "token %u is cut out of texts and is not valid UTF-8", added->id);
    if (t->added_count == TOKENIZER_ADDED_MAX)
        return err_set(err, ERR_TOO_BIG, "more than %d added tokens", TOKENIZER_ADDED_MAX);
    if (t->added_count == t->added_capacity) {
        uint32_t capacity = t->added_capacity == 0 ? 64 : 2 * t->added_capacity;
        struct added_token *grown = realloc(t->added, capacity * sizeof(*grown));
        if (!grown)
            return err_set(err, ERR_NOMEM, "out of memory for %u added tokens", capacity);
        t->added = grown;
        t->added_capacity = capacity;
    }
    t->added[t->added_count++] = *added;
    t->tokens[added->id].special = added->special;
    t->has_normalized = t->has_normalized || added->normalized;
    return 0;
}

/* Set the text that the encoder looks for and the text that the token is decoded as: the token's own text, or
 * its normalised text where the flags say so. */
static int added_pattern(struct tokenizer *t, struct added_token *added, struct err *err)
{
    const struct token *token = &t->tokens[added->id];
    added->offset = token->offset;
    added->size = token->size;
    added->shown_offset = token->offset;
    added->shown_size = token->size;
    if (!added->shown_normalized || t->normal.count == 0 ||
        utf8_check((const char *)t->arena + token->offset, token->size) != token->size) {
        return 0;
    }
    struct text_room room = {
        .text = {{.limit = TOKENIZER_TOKEN_BYTES * 4}, {.limit = TOKENIZER_TOKEN_BYTES * 4}}};
    const struct text_view own = {.text = (const char *)t->arena + token->offset, .size = token->size};
    struct text_view normal;
    int status = text_steps_apply(&t->normal, &own, &room, &normal, err);
    if (status == 0 && normal.text != own.text && normal.size > 0 && normal.size <= TOKENIZER_TOKEN_BYTES) {
        status = arena_reserve(t, normal.size, err);
        if (status == 0) {
            memcpy(t->arena + t->arena_size, normal.text, normal.size);
            added->shown_offset = (uint32_t)t->arena_size;
            added->shown_size = (uint32_t)normal.size;
            added->offset = added->normalized ? added->shown_offset : added->offset;
            added->size = added->normalized ? added->shown_size : added->size;
            t->arena_size += normal.size;
            t->tokens[added->id].renamed = 1;
        }
    }
    text_room_fini(&room);
    return status;
}

static int compare_added(const void *a, const void *b, void *arg)
{
    const struct tokenizer *t = arg;
    const struct added_token *x = a;
    const struct added_token *y = b;
    size_t common = x->size < y->size ? x->size : y->size;
    int order = memcmp(t->arena + x->offset, t->arena + y->offset, common);
    return order != 0 ? order : (x->size > y->size) - (x->size < y->size);
}

/* Sort the added tokens by the text that the encoder looks for, and index them by its first byte. */
static int added_index(struct tokenizer *t, struct err *err)
{
    for (uint32_t i = 0; i < t->added_count; i++)
        if (t->added[i].size == 0 && added_pattern(t, &t->added[i], err) < 0)
            return -1;
    if (t->added_count > 0)
        qsort_r(t->added, t->added_count, sizeof(*t->added), compare_added, t);
    uint32_t at = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        t->added_first[byte] = at;
        while (at < t->added_count && t->arena[t->added[at].offset] == byte)
            at++;
    }
    t->added_first[256] = at;
    return 0;
}

int builder_finish(struct tokenizer *t, struct err *err)
{
    if (!t->merges && builder_merges_reserve(t, 0, err) < 0)
        return -1;
    const int32_t *const special[] = {&t->unknown, &t->bos, &t->eos};
    for (size_t i = 0; i < sizeof(special) / sizeof(special[0]); i++) {
        if (*special[i] >= 0 && ((uint32_t)*special[i] >= t->vocab || !t->tokens[*special[i]].there)) {
            return err_set(err, ERR_INVALID, "special token %d is not in the vocabulary of %u", *special[i],
                           t->vocab);
        }
    }
    return added_index(t, err);
}
