/* Encoding: cut added tokens out, normalise, split, merge. */
#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "model/tokenizer_build.h"
#include "model/tokenizer_scratch.h"
#include "model/utf8.h"

struct encoding {
    const struct tokenizer *t;
    struct encode_scratch *scratch;
    struct ids *ids;
    unsigned flags;
};

void ids_fini(struct ids *ids)
{
    free(ids->data);
    *ids = (struct ids){0};
}

int ids_append(struct ids *ids, const int32_t *values, size_t count, struct err *err)
{
    if (count == 0) {
        return 0;
    }
    if (ids->capacity - ids->count < count) {
        size_t capacity = ids->capacity == 0 ? 64 : ids->capacity;
        while (capacity - ids->count < count) {
            capacity *= 2;
        }
        int32_t *grown = realloc(ids->data, capacity * sizeof(*grown));
        if (grown == NULL) {
            return err_set(err, ERR_NOMEM, "out of memory for %zu token ids", capacity);
        }
        ids->data = grown;
        ids->capacity = capacity;
    }
    memcpy(ids->data + ids->count, values, count * sizeof(*values));
    ids->count += count;
    return 0;
}

/* A scratch from the idle list, or a new one. */
static struct encode_scratch *scratch_take(const struct tokenizer *t, struct err *err)
{
    struct tokenizer *shared =
        (struct tokenizer *)t; /* the idle list is the one thing that changes, under its lock */
    struct encode_scratch *scratch = NULL;
    pthread_mutex_lock(&shared->lock);
    if (shared->idle_count > 0) {
        scratch = shared->idle[--shared->idle_count];
    }
    pthread_mutex_unlock(&shared->lock);
    if (scratch != NULL) {
        return scratch;
    }
    return encode_scratch_create(t->splitter, err);
}

static void scratch_return(const struct tokenizer *t, struct encode_scratch *scratch)
{
    struct tokenizer *shared = (struct tokenizer *)t;
    pthread_mutex_lock(&shared->lock);
    if (shared->idle_count < TOKENIZER_SCRATCH_MAX) {
        shared->idle[shared->idle_count++] = scratch;
        scratch = NULL;
    }
    pthread_mutex_unlock(&shared->lock);
    encode_scratch_destroy(scratch);
}

static bool candidate_before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->left < b->left;
}

/* There is room: a piece of n symbols pushes at most 3n candidates, n at first and two for each merge. */
static void heap_push(struct encode_scratch *s, struct candidate entry)
{
    size_t at = s->heap_count++;
    while (at > 0 && candidate_before(&entry, &s->heap[(at - 1) / 2])) {
        s->heap[at] = s->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    s->heap[at] = entry;
}

static struct candidate heap_pop(struct encode_scratch *s)
{
    const struct candidate top = s->heap[0];
    const struct candidate last = s->heap[--s->heap_count];
    size_t at = 0;
    for (size_t child = 1; child < s->heap_count; child = 2 * at + 1) {
        if (child + 1 < s->heap_count && candidate_before(&s->heap[child + 1], &s->heap[child])) {
            child++;
        }
        if (!candidate_before(&s->heap[child], &last)) {
            break;
        }
        s->heap[at] = s->heap[child];
        at = child;
    }
    s->heap[at] = last;
    return top;
}

static int scratch_reserve(struct encode_scratch *s, size_t size, struct err *err)
{
    if (size <= s->symbol_capacity) {
        return 0;
    }
    size_t capacity = s->symbol_capacity == 0 ? 256 : s->symbol_capacity;
    while (capacity < size) {
        capacity *= 2;
    }
    if (capacity > INT32_MAX) {
        return err_set(err, ERR_TOO_BIG, "a piece of %zu bytes cannot be merged", size);
    }
    struct symbol *symbols = realloc(s->symbols, capacity * sizeof(*symbols));
    if (symbols == NULL) {
        return err_set(err, ERR_NOMEM, "out of memory for a piece of %zu bytes", size);
    }
    s->symbols = symbols;
    struct candidate *heap = realloc(s->heap, 3 * capacity * sizeof(*heap));
    if (heap == NULL) {
        return err_set(err, ERR_NOMEM, "out of memory for a piece of %zu bytes", size);
    }
    s->heap = heap;
    s->symbol_capacity = capacity;
    return 0;
}

static void candidate_add(const struct tokenizer *t, struct encode_scratch *s, int32_t left)
{
    const struct symbol *symbol = &s->symbols[left];
    if (symbol->next < 0) {
        return;
    }
    const struct merge_slot *merge =
        tokenizer_merge(t, (uint32_t)symbol->id, (uint32_t)s->symbols[symbol->next].id);
    if (merge != NULL) {
        heap_push(s, (struct candidate){.rank = merge->rank, .merged = merge->merged, .left = left});
    }
}

/* Merge symbols[0..count) until no pair of neighbours has a merge. */
static void symbols_merge(const struct tokenizer *t, struct encode_scratch *s, int32_t count)
{
    s->heap_count = 0;
    for (int32_t i = 0; i < count; i++) {
        candidate_add(t, s, i);
    }
    while (s->heap_count > 0) {
        const struct candidate best = heap_pop(s);
        struct symbol *left = &s->symbols[best.left];
        if (left->id < 0 || left->next < 0) {
            continue;
        }
        struct symbol *right = &s->symbols[left->next];
        /* One of the two may have changed since this candidate was found. */
        const struct merge_slot *merge = tokenizer_merge(t, (uint32_t)left->id, (uint32_t)right->id);
        if (merge == NULL || merge->merged != best.merged) {
            continue;
        }
        left->id = (int32_t)merge->merged;
        right->id = -1;
        left->next = right->next;
        if (left->next >= 0) {
            s->symbols[left->next].previous = best.left;
        }
        candidate_add(t, s, best.left);
        if (left->previous >= 0) {
            candidate_add(t, s, left->previous);
        }
    }
}

/* Append the ids of one piece by merging. */
static int piece_merge(const struct encoding *e, const char *piece, size_t size, struct err *err)
{
    struct encode_scratch *s = e->scratch;
    if (scratch_reserve(s, size, err) < 0) {
        return -1;
    }
    int32_t count = 0;
    for (size_t i = 0; i < size; i++) {
        int32_t id = e->t->byte_id[(unsigned char)piece[i]];
        id = id >= 0 ? id : e->t->unknown;
        if (id >= 0) {
            s->symbols[count] = (struct symbol){.id = id, .previous = count - 1, .next = count + 1};
            count++;
        }
    }
    if (count == 0) {
        return 0;
    }
    s->symbols[count - 1].next = -1;
    symbols_merge(e->t, s, count);
    for (int32_t i = 0; i >= 0; i = s->symbols[i].next) {
        if (ids_append(e->ids, &s->symbols[i].id, 1, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static uint32_t piece_hash(const char *piece, size_t size)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++) {
        h = (h ^ (unsigned char)piece[i]) * 0x100000001b3u;
    }
    return (uint32_t)(h ^ h >> 29);
}

static int piece_encode(void *arg, const char *piece, size_t size, struct err *err)
{
    const struct encoding *e = arg;
    struct cached *slot = NULL;
    if (size <= CACHE_PIECE) {
        slot = &e->scratch->cache[piece_hash(piece, size) % CACHE_SLOTS];
        if (slot->size == size && memcmp(slot->piece, piece, size) == 0) {
            return ids_append(e->ids, slot->ids, slot->count, err);
        }
    }
    const size_t begin = e->ids->count;
    int32_t whole = e->t->ignore_merges ? tokenizer_lookup(e->t, (const uint8_t *)piece, size) : -1;
    int status = whole >= 0 ? ids_append(e->ids, &whole, 1, err) : piece_merge(e, piece, size, err);
    const size_t count = e->ids->count - begin;
    if (status == 0 && slot != NULL && count <= CACHE_IDS) {
        slot->size = (uint8_t)size;
        slot->count = (uint8_t)count;
        memcpy(slot->piece, piece, size);
        if (count > 0) {
            memcpy(slot->ids, e->ids->data + begin, count * sizeof(*slot->ids));
        }
    }
    return status;
}

/* Text without added tokens: prefix, split, merge. */
static int plain_encode(const struct encoding *e, const char *text, size_t size, struct err *err)
{
    if (size == 0) {
        return 0;
    }
    struct buf prefixed = {.limit = ENCODE_BYTES_MAX};
    if (e->t->add_prefix_space && text[0] != ' ') {
        if (buf_append(&prefixed, " ", 1, err) < 0 || buf_append(&prefixed, text, size, err) < 0) {
            buf_fini(&prefixed);
            return -1;
        }
        text = (const char *)prefixed.data;
        size = prefixed.size;
    }
    struct encoding writable = *e;
    int status = split_text(e->t->splitter, e->scratch->split, text, size, piece_encode, &writable, err);
    buf_fini(&prefixed);
    return status;
}

/* The longest added token at text[at..size) of the wanted kind, or NULL. The candidates with the same first
 * byte are sorted, so each further byte narrows one range. */
static const struct added_token *added_at(const struct encoding *e, const char *text, size_t size, size_t at,
                                          bool normalized)
{
    const struct tokenizer *t = e->t;
    const unsigned char first = (unsigned char)text[at];
    uint32_t low = t->added_first[first];
    uint32_t high = t->added_first[first + 1];
    const struct added_token *best = NULL;
    for (size_t depth = 1; low < high; depth++) {
        while (low < high && t->tokens[t->added[low].id].size == depth) {
            const struct added_token *found = &t->added[low++];
            const bool wanted =
                found->normalized == normalized && !(found->special && (e->flags & TOKENIZER_IGNORE_SPECIAL));
            best = wanted ? found : best;
        }
        if (low == high || at + depth == size) {
            break;
        }
        const unsigned char byte = (unsigned char)text[at + depth];
        uint32_t from = low;
        uint32_t to = high;
        while (from < to) { /* first with that byte or more */
            uint32_t middle = from + (to - from) / 2;
            if (t->arena[t->tokens[t->added[middle].id].offset + depth] < byte) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        low = from;
        to = high;
        while (from < to) { /* first with more */
            uint32_t middle = from + (to - from) / 2;
            if (t->arena[t->tokens[t->added[middle].id].offset + depth] <= byte) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        high = from;
    }
    return best;
}

static bool is_word(uint32_t code)
{
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) || c == UTF8PROC_CATEGORY_PC;
}

/* The character before 'at' (at > 0), and where it begins. */
static uint32_t character_before(const char *text, size_t at, size_t *begin)
{
    size_t from = at - 1;
    while (from > 0 && ((unsigned char)text[from] & 0xc0) == 0x80) {
        from--;
    }
    uint32_t code = 0;
    unsigned bad;
    utf8_decode((const uint8_t *)text + from, at - from, &code, &bad, NULL);
    *begin = from;
    return code;
}

static uint32_t character_after(const char *text, size_t size, size_t at, size_t *end)
{
    uint32_t code = 0;
    unsigned bad;
    *end = at + utf8_decode((const uint8_t *)text + at, size - at, &code, &bad, NULL);
    return code;
}

static bool is_whole_word(const char *text, size_t size, size_t begin, size_t end)
{
    size_t unused;
    return (begin == 0 || !is_word(character_before(text, begin, &unused))) &&
           (end == size || !is_word(character_after(text, size, end, &unused)));
}

/* White space that the token swallows on its sides. */
static void added_strip(const struct added_token *added, const char *text, size_t size, size_t done,
                        size_t *begin, size_t *end)
{
    size_t at;
    while (added->lstrip && *begin > done && utf8_is_space(character_before(text, *begin, &at))) {
        *begin = at;
    }
    while (added->rstrip && *end < size && utf8_is_space(character_after(text, size, *end, &at))) {
        *end = at;
    }
}

static int segment_normalise(const struct encoding *e, const char *text, size_t size, struct err *err);

/* Cut the added tokens of one kind out of text; what lies between goes on: raw text to normalisation,
 * normalised text to the splitter. */
static int segment_cut(const struct encoding *e, const char *text, size_t size, bool normalized,
                       struct err *err)
{
    size_t done = 0;
    for (size_t at = 0; at <= size;) {
        const struct added_token *added = at < size ? added_at(e, text, size, at, normalized) : NULL;
        if (at < size && added == NULL) {
            at++;
            continue;
        }
        size_t begin = at;
        size_t end = added != NULL ? at + e->t->tokens[added->id].size : at;
        if (added != NULL && added->single_word && !is_whole_word(text, size, begin, end)) {
            at = end;
            continue;
        }
        if (added != NULL) {
            added_strip(added, text, size, done, &begin, &end);
        }
        int status = normalized ? plain_encode(e, text + done, begin - done, err)
                                : segment_normalise(e, text + done, begin - done, err);
        if (status < 0) {
            return -1;
        }
        if (added == NULL) {
            break;
        }
        const int32_t id = (int32_t)added->id;
        if (ids_append(e->ids, &id, 1, err) < 0) {
            return -1;
        }
        done = end;
        at = end;
    }
    return 0;
}

static bool is_ascii(const char *text, size_t size)
{
    unsigned char any = 0;
    for (size_t i = 0; i < size; i++) {
        any |= (unsigned char)text[i];
    }
    return any < 0x80;
}

/* Unicode normalisation form C where the model's tokenizer has it. */
static int segment_normalise(const struct encoding *e, const char *text, size_t size, struct err *err)
{
    utf8proc_uint8_t *normal = NULL;
    if (size == 0) {
        return 0;
    }
    if (e->t->nfc && !is_ascii(text, size)) {
        utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)size,
                                               &normal, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (length < 0) {
            return err_set(err, ERR_NOMEM, "could not normalise a text: %s", utf8proc_errmsg(length));
        }
        text = (const char *)normal;
        size = (size_t)length;
    }
    int status =
        e->t->has_normalized ? segment_cut(e, text, size, true, err) : plain_encode(e, text, size, err);
    free(normal);
    return status;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t size, unsigned flags,
                     struct ids *ids, struct err *err)
{
    if (size > ENCODE_BYTES_MAX) {
        return err_set(err, ERR_TOO_BIG, "a text of %zu bytes is more than %d", size, ENCODE_BYTES_MAX);
    }
    const size_t valid = utf8_check(text, size);
    if (valid != size) {
        return err_set(err, ERR_INVALID, "the text is not valid UTF-8 at byte %zu", valid);
    }
    struct encoding e = {.t = t, .ids = ids, .flags = flags};
    e.scratch = scratch_take(t, err);
    if (e.scratch == NULL) {
        return -1;
    }
    const size_t begin = ids->count;
    int status = 0;
    if (flags & TOKENIZER_ADD_BEGIN) {
        status = ids_append(ids, t->before, t->before_count, err);
    }
    if (status == 0) {
        status = t->added_count > 0 ? segment_cut(&e, text, size, false, err)
                                    : segment_normalise(&e, text, size, err);
    }
    if (status == 0 && (flags & TOKENIZER_ADD_END)) {
        status = ids_append(ids, t->after, t->after_count, err);
    }
    if (status < 0) {
        ids->count = begin;
    }
    scratch_return(t, e.scratch);
    return status;
}
