/* Encoding cuts added tokens out of the text, normalises the rest, splits it, and merges within each piece.
 * Between these stages a text is a view, which knows where each of its bytes stood in the given text. */
#include "model/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "model/text/text_steps.h"
#include "model/text/tokenizer_build.h"
#include "model/text/tokenizer_scratch.h"
#include "model/text/unicode_tables.h"
#include "model/text/utf8.h"

enum { SYMBOL_BYTES = 4 + 2 * TOKENIZER_AFFIX_BYTES }; /* a character of UTF-8 and both affixes */

struct encode_state {
    const struct tokenizer *t;
    struct encode_scratch *scratch;
    struct ids *ids, *begins, *ends; /* begins and ends are NULL if no places are wanted */
    const char *whole;               /* the text to encode */
    size_t size;
    unsigned flags;
};

void ids_fini(struct ids *ids)
{
    free(ids->data);
    *ids = (struct ids){0};
}

int ids_append(struct ids *ids, const int32_t *values, size_t count, struct err *err)
{
    if (count == 0)
        return 0;
    if (ids->capacity - ids->count < count) {
        size_t capacity = ids->capacity == 0 ? 64 : ids->capacity;
        while (capacity - ids->count < count)
            capacity *= 2;
        int32_t *grown = realloc(ids->data, capacity * sizeof(*grown));
        if (!grown)
            return err_set(err, ERR_NOMEM, "out of memory for %zu token ids", capacity);
        ids->data = grown;
        ids->capacity = capacity;
    }
    memcpy(ids->data + ids->count, values, count * sizeof(*values));
    ids->count += count;
    return 0;
}

/* Take a scratch from the idle list, or make a new one. */
static struct encode_scratch *scratch_take(const struct tokenizer *t, struct err *err)
{
    /* Only the idle list of a tokenizer changes, under its lock. */
    struct tokenizer *shared = (struct tokenizer *)t;
    struct encode_scratch *scratch = NULL;
    pthread_mutex_lock(&shared->lock);
    if (shared->idle_count > 0)
        scratch = shared->idle[--shared->idle_count];
    pthread_mutex_unlock(&shared->lock);
    if (scratch)
        return scratch;
    return encode_scratch_create(t->splitter, err);
}

static void scratch_return(const struct tokenizer *t, struct encode_scratch *scratch)
{
    struct tokenizer *shared = (struct tokenizer *)t;
    encode_scratch_trim(scratch);
    pthread_mutex_lock(&shared->lock);
    if (shared->idle_count < TOKENIZER_SCRATCH_MAX) {
        shared->idle[shared->idle_count++] = scratch;
        scratch = NULL;
    }
    pthread_mutex_unlock(&shared->lock);
    encode_scratch_destroy(scratch);
}

static bool candidate_before(const struct merge_candidate *a, const struct merge_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->left < b->left;
}

/* Adds a candidate to the heap, which has room: for a piece of n symbols it holds at most 2n candidates, n at
 * first and one more for each merge, which takes one candidate out and puts at most two in. */
static void tokenizer_heap_push(struct encode_scratch *s, struct merge_candidate entry)
{
    size_t at = s->heap_count++;
    while (at > 0 && candidate_before(&entry, &s->heap[(at - 1) / 2])) {
        s->heap[at] = s->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    s->heap[at] = entry;
}

static struct merge_candidate tokenizer_heap_pop(struct encode_scratch *s)
{
    const struct merge_candidate top = s->heap[0];
    const struct merge_candidate last = s->heap[--s->heap_count];
    size_t at = 0;
    for (size_t child = 1; child < s->heap_count; child = 2 * at + 1) {
        if (child + 1 < s->heap_count && candidate_before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!candidate_before(&s->heap[child], &last))
            break;
        s->heap[at] = s->heap[child];
        at = child;
    }
    s->heap[at] = last;
    return top;
}

static int scratch_reserve(struct encode_scratch *s, size_t size, struct err *err)
{
    if (size <= s->symbol_capacity)
        return 0;
    size_t capacity = s->symbol_capacity == 0 ? 256 : s->symbol_capacity;
    while (capacity < size)
        capacity *= 2;
    if (capacity > INT32_MAX)
        return err_set(err, ERR_TOO_BIG, "a piece of %zu bytes cannot be merged", size);
    struct symbol *symbols = realloc(s->symbols, capacity * sizeof(*symbols));
    if (!symbols)
        return err_set(err, ERR_NOMEM, "out of memory for a piece of %zu bytes", size);
    s->symbols = symbols;
    struct merge_candidate *heap = realloc(s->heap, 2 * capacity * sizeof(*heap));
    if (!heap)
        return err_set(err, ERR_NOMEM, "out of memory for a piece of %zu bytes", size);
    s->heap = heap;
    s->symbol_capacity = capacity;
    return 0;
}

static void candidate_add(const struct tokenizer *t, struct encode_scratch *s, int32_t left)
{
    const struct symbol *symbol = &s->symbols[left];
    if (symbol->next < 0)
        return;
    const struct merge_slot *merge =
        tokenizer_merge(t, (uint32_t)symbol->id, (uint32_t)s->symbols[symbol->next].id);
    if (merge)
        tokenizer_heap_push(
            s, (struct merge_candidate){.rank = merge->rank, .merged = merge->merged, .left = left});
}

/* Merge symbols[0..count) until no pair of neighbours has a merge. */
static void symbols_merge(const struct tokenizer *t, struct encode_scratch *s, int32_t count)
{
    s->heap_count = 0;
    for (int32_t i = 0; i < count; i++)
        candidate_add(t, s, i);
    while (s->heap_count > 0) {
        const struct merge_candidate best = tokenizer_heap_pop(s);
        struct symbol *left = &s->symbols[best.left];
        if (left->id < 0 || left->next < 0)
            continue;
        struct symbol *right = &s->symbols[left->next];
        /* One of the two symbols may have changed since this candidate was found. */
        const struct merge_slot *merge = tokenizer_merge(t, (uint32_t)left->id, (uint32_t)right->id);
        if (!merge || merge->merged != best.merged)
            continue;
        left->id = (int32_t)merge->merged;
        left->end = right->end;
        right->id = -1;
        left->next = right->next;
        if (left->next >= 0)
            s->symbols[left->next].previous = best.left;
        candidate_add(t, s, best.left);
        if (left->previous >= 0)
            candidate_add(t, s, left->previous);
    }
}

/* The symbols that merging begins with, while they are listed from left to right. */
struct spelling {
    struct symbol *symbols;
    int32_t count;
    /* characters without a token, up to 'unknown_end', whose unknown token is not yet listed */
    bool unknown;
    int32_t unknown_end;
    /* With TOKENIZER_LIBRARY_PLACES: bytes of the characters so far that became no token. The tokenizers
     * library places all tokens behind such characters too early by this number. */
    int32_t lost;
};

static void spell(struct spelling *s, int32_t id, int32_t end)
{
    s->symbols[s->count] =
        (struct symbol){.id = id, .previous = s->count - 1, .next = s->count + 1, .end = end - s->lost};
    s->count++;
}

static void spell_unknown(struct spelling *s, const struct tokenizer *t)
{
    if (s->unknown)
        spell(s, t->unknown, s->unknown_end);
    s->unknown = false;
}

/* Returns the token that a symbol begins as: that of the byte piece[at], or that of the character
 * piece[at..end) with the inner prefix before it unless it is the first, and the end suffix behind it if it
 * is the last; -1 if there is none. For a character text[0..*text_size) is the text that was looked up. */
static int32_t symbol_id(const struct tokenizer *t, const struct text_view *piece, size_t at, size_t end,
                         uint8_t text[SYMBOL_BYTES], size_t *text_size)
{
    if (t->bytes)
        return t->byte_id[(unsigned char)piece->text[at]];
    const size_t prefix = at > 0 ? strlen(t->inner_prefix) : 0;
    const size_t suffix = end == piece->size ? strlen(t->end_suffix) : 0;
    memcpy(text, t->inner_prefix, prefix);
    memcpy(text + prefix, piece->text + at, end - at);
    memcpy(text + prefix + end - at, t->end_suffix, suffix);
    *text_size = prefix + end - at + suffix;
    return tokenizer_lookup(t, text, *text_size);
}

/* List the tokens of a text's bytes, each ending in the piece where its byte of the character at
 * piece[at..end) ends. Returns false, and lists none, if a byte has no token. */
static bool spell_bytes(struct spelling *s, const struct tokenizer *t, const uint8_t *text, size_t size,
                        size_t at, size_t end)
{
    for (size_t i = 0; i < size; i++)
        if (!t->byte_fallback || t->byte_id[text[i]] < 0)
            return false;
    for (size_t i = 0; i < size; i++)
        spell(s, t->byte_id[text[i]], (int32_t)(at + i + 1 < end && i + 1 < size ? at + i + 1 : end));
    return true;
}

/* List the symbols that merging begins with: the tokens of single bytes or characters. A character without a
 * token becomes the tokens of its bytes, else the unknown token, one for several such characters in a row
 * with fuse_unk. Returns the number of symbols, or -1. */
static int32_t piece_spell(const struct encode_state *e, const struct text_view *piece, struct err *err)
{
    const struct tokenizer *t = e->t;
    struct spelling s = {.symbols = e->scratch->symbols};
    for (size_t at = 0; at < piece->size;) {
        size_t end = at + 1;
        while (!t->bytes && end < piece->size && ((unsigned char)piece->text[end] & 0xc0) == 0x80)
            end++;
        uint8_t text[SYMBOL_BYTES];
        size_t text_size = 0;
        const unsigned char first = (unsigned char)piece->text[at];
        int32_t id = first < 0x80 ? t->ascii_id[first] : -1;
        if (id < 0)
            id = symbol_id(t, piece, at, end, text, &text_size);
        if (id >= 0) {
            spell_unknown(&s, t);
            spell(&s, id, (int32_t)end);
        } else if (!spell_bytes(&s, t, text, text_size, at, end)) {
            /* As in `tokenizers`, an unknown token that is not yet listed comes behind the tokens of bytes.
             */
            if (t->unknown_absent) {
                return err_set(
                    err, ERR_INVALID,
                    "tokenizer.json: model.unk_token is not in model.vocab, and a text has a character "
                    "without a token");
            }
            if (t->unknown >= 0 && !t->fuse_unknown)
                spell_unknown(&s, t);
            s.unknown = t->unknown >= 0;
            s.lost += !s.unknown && (e->flags & TOKENIZER_LIBRARY_PLACES) ? (int32_t)(end - at) : 0;
            s.unknown_end = (int32_t)end;
        }
        at = end;
    }
    spell_unknown(&s, t);
    return s.count;
}

/* Append the place in the given text of a token that stands for bytes [begin, end) of the view. As in the
 * tokenizers library, it holds the whole characters that these bytes came from, and a byte that was put in
 * came from the character behind it. With trim_offsets the library takes as many characters away on each side
 * as the token has spaces there. */
static int place_append(const struct encode_state *e, const struct text_view *view, size_t begin, size_t end,
                        struct err *err)
{
    const char *text = e->whole;
    const size_t first = begin < end || begin == 0 ? begin : end - 1, last = end > first ? end - 1 : first;
    size_t from = text_place(view, first), to = text_place(view, last);
    while (from > 0 && ((unsigned char)text[from] & 0xc0) == 0x80)
        from--;
    to += to < e->size;
    while (to < e->size && ((unsigned char)text[to] & 0xc0) == 0x80)
        to++;
    if ((e->flags & TOKENIZER_LIBRARY_PLACES) && e->t->trims_offsets) {
        for (size_t i = begin; i < end && view->text[i] == ' ' && from < to; i++)
            from++;
        for (size_t i = end; i > begin && view->text[i - 1] == ' ' && to > from; i--)
            to--;
    }
    const int32_t places[2] = {(int32_t)from, (int32_t)to};
    return ids_append(e->begins, &places[0], 1, err) < 0 ? -1 : ids_append(e->ends, &places[1], 1, err);
}

/* Append an id that stands for bytes [begin, end) of the piece, and its place if places are wanted. */
static int id_append(const struct encode_state *e, int32_t id, const struct text_view *piece, int32_t begin,
                     int32_t end, struct err *err)
{
    if (e->ends && place_append(e, piece, (size_t)begin, (size_t)end, err) < 0)
        return -1;
    return ids_append(e->ids, &id, 1, err);
}

/* Merge one piece and append its ids. The byte offsets at which the first 'ends_room' ids end in the piece go
 * to 'ends' too. */
static int piece_merge(const struct encode_state *e, const struct text_view *piece, uint8_t *ends,
                       unsigned ends_room, struct err *err)
{
    struct encode_scratch *s = e->scratch;
    const size_t room = piece->size + strlen(e->t->inner_prefix) * piece->size + strlen(e->t->end_suffix);
    if (scratch_reserve(s, room, err) < 0)
        return -1;
    const int32_t count = piece_spell(e, piece, err);
    if (count <= 0)
        return count;
    s->symbols[count - 1].next = -1;
    symbols_merge(e->t, s, count);
    unsigned n = 0;
    int32_t begin = 0;
    for (int32_t i = 0; i >= 0; i = s->symbols[i].next, n++) {
        if (n < ends_room)
            ends[n] = (uint8_t)s->symbols[i].end;
        if (id_append(e, s->symbols[i].id, piece, begin, s->symbols[i].end, err) < 0)
            return -1;
        begin = s->symbols[i].end;
    }
    return 0;
}

static uint32_t piece_hash(const char *piece, size_t size)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++)
        h = (h ^ (unsigned char)piece[i]) * 0x100000001b3u;
    return (uint32_t)(h ^ h >> 29);
}

static int cached_append(const struct encode_state *e, const struct cached_piece *slot,
                         const struct text_view *piece, struct err *err)
{
    if (!e->ends)
        return ids_append(e->ids, slot->ids, slot->count, err);
    for (unsigned i = 0; i < slot->count; i++)
        if (id_append(e, slot->ids[i], piece, i > 0 ? slot->ends[i - 1] : 0, slot->ends[i], err) < 0)
            return -1;
    return 0;
}

static int piece_encode(void *arg, const struct text_view *piece, struct err *err)
{
    const struct encode_state *e = arg;
    const char *text = piece->text;
    const size_t size = piece->size;
    struct cached_piece *slot = NULL;
    /* The cache has one end for each id. Where characters can vanish, the ends depend on
     * TOKENIZER_LIBRARY_PLACES, so pieces are cached only without that flag. */
    if (size <= CACHE_PIECE &&
        (e->t->bytes || e->t->unknown >= 0 || !(e->flags & TOKENIZER_LIBRARY_PLACES))) {
        slot = &e->scratch->cache[piece_hash(text, size) % CACHE_SLOTS];
        if (slot->size == size && memcmp(slot->piece, text, size) == 0)
            return cached_append(e, slot, piece, err);
    }
    const size_t begin = e->ids->count;
    uint8_t ends[CACHE_IDS] = {(uint8_t)size};
    const int32_t whole = e->t->ignore_merges ? tokenizer_lookup(e->t, (const uint8_t *)text, size) : -1;
    const int status = whole >= 0 ? id_append(e, whole, piece, 0, (int32_t)size, err)
                                  : piece_merge(e, piece, ends, slot ? CACHE_IDS : 0, err);
    const size_t count = e->ids->count - begin;
    if (status == 0 && slot && count <= CACHE_IDS) {
        slot->size = (uint8_t)size;
        slot->count = (uint8_t)count;
        memcpy(slot->piece, text, size);
        memcpy(slot->ends, ends, sizeof(ends));
        if (count > 0)
            memcpy(slot->ids, e->ids->data + begin, count * sizeof(*slot->ids));
    }
    return status;
}

/* Encode a text without added tokens: split it and merge each piece. */
static int plain_encode(struct encode_state *e, const struct text_view *view, struct err *err)
{
    return split_text(e->t->splitter, e->scratch->split, view, piece_encode, e, err);
}

/* Returns the longest added token of the wanted kind at text[at..size), or NULL; *twin is another one with
 * the same text, or NULL. The candidates with the same first byte are sorted, so each further byte narrows
 * one range. */
static const struct added_token *added_at(const struct encode_state *e, const char *text, size_t size,
                                          size_t at, bool normalized, const struct added_token **twin)
{
    const struct tokenizer *t = e->t;
    const unsigned char first = (unsigned char)text[at];
    uint32_t low = t->added_first[first];
    uint32_t high = t->added_first[first + 1];
    const struct added_token *best = NULL;
    *twin = NULL;
    for (size_t depth = 1; low < high; depth++) {
        while (low < high && t->added[low].size == depth) {
            const struct added_token *found = &t->added[low++];
            const bool wanted =
                found->normalized == normalized && !(found->special && (e->flags & TOKENIZER_IGNORE_SPECIAL));
            *twin = !wanted ? *twin : best != NULL && best->size == depth ? best : NULL;
            best = wanted ? found : best;
        }
        if (low == high || at + depth == size)
            break;
        const unsigned char byte = (unsigned char)text[at + depth];
        uint32_t from = low;
        uint32_t to = high;
        while (from < to) { /* finds the first candidate with this byte or a greater one */
            uint32_t middle = from + (to - from) / 2;
            if (t->arena[t->added[middle].offset + depth] < byte)
                from = middle + 1;
            else
                to = middle;
        }
        low = from;
        to = high;
        while (from < to) { /* finds the first candidate with a greater byte */
            uint32_t middle = from + (to - from) / 2;
            if (t->arena[t->added[middle].offset + depth] <= byte)
                from = middle + 1;
            else
                to = middle;
        }
        high = from;
    }
    return best;
}

static bool tokenizer_is_word(uint32_t code)
{
    return code_set_has(&unicode_word, code);
}

/* Returns the character that ends before 'at' (at > 0); *begin is where it begins. */
static uint32_t character_before(const char *text, size_t at, size_t *begin)
{
    size_t from = at - 1;
    while (from > 0 && ((unsigned char)text[from] & 0xc0) == 0x80)
        from--;
    uint32_t code;
    utf8_next(text, at, from, &code);
    *begin = from;
    return code;
}

static uint32_t character_after(const char *text, size_t size, size_t at, size_t *end)
{
    uint32_t code;
    *end = utf8_next(text, size, at, &code);
    return code;
}

static bool is_whole_word(const char *text, size_t size, size_t begin, size_t end)
{
    size_t unused;
    return (begin == 0 || !tokenizer_is_word(character_before(text, begin, &unused))) &&
           (end == size || !tokenizer_is_word(character_after(text, size, end, &unused)));
}

/* Extend [*begin, *end) by the white space that the token swallows on its sides, but not to before 'done'. */
static void added_strip(const struct added_token *added, const char *text, size_t size, size_t done,
                        size_t *begin, size_t *end)
{
    size_t at;
    while (added->lstrip && *begin > done && utf8_is_space(character_before(text, *begin, &at)))
        *begin = at;
    while (added->rstrip && *end < size && utf8_is_space(character_after(text, size, *end, &at)))
        *end = at;
}

static int segment_normalise(struct encode_state *e, const struct text_view *view, struct err *err);

/* Cut the added tokens of one kind out of a text and encode the texts between them: raw text is normalised,
 * normalised text is split. The search goes on behind the token itself, and not behind the white space that
 * it swallowed, as in Hugging Face's `tokenizers`. */
static int segment_cut(struct encode_state *e, const struct text_view *view, bool normalized, struct err *err)
{
    size_t done = 0;
    const char *text = view->text;
    const size_t size = view->size;
    for (size_t at = 0; at <= size;) {
        const struct added_token *twin = NULL;
        const struct added_token *added = at < size ? added_at(e, text, size, at, normalized, &twin) : NULL;
        if (twin) {
            return err_set(
                err, ERR_UNSUPPORTED,
                "tokenizer.json: added_tokens %u and %u are the same text once they are normalised, and "
                "tokenizers takes either by chance: take one of them away",
                added->id, twin->id);
        }
        if (at < size && !added) {
            at++;
            continue;
        }
        size_t begin = added ? at : size;
        size_t end = added ? at + added->size : size;
        at = end;
        if (added && added->single_word && !is_whole_word(text, size, begin, end))
            continue;
        if (added)
            added_strip(added, text, size, done, &begin, &end);
        if (begin > done) {
            const struct text_view between = text_slice(view, done, begin);
            if ((normalized ? plain_encode(e, &between, err) : segment_normalise(e, &between, err)) < 0)
                return -1;
        }
        if (!added)
            break;
        if (id_append(e, (int32_t)added->id, view, (int32_t)begin, (int32_t)end, err) < 0)
            return -1;
        done = end;
    }
    return 0;
}

static int segment_normalise(struct encode_state *e, const struct text_view *view, struct err *err)
{
    struct text_view normal;
    if (text_steps_apply(&e->t->normal, view, &e->scratch->normal, &normal, err) < 0)
        return -1;
    return e->t->has_normalized ? segment_cut(e, &normal, true, err) : plain_encode(e, &normal, err);
}

/* Append the tokens that stand before or behind every text. Their place has no bytes: it begins and ends at
 * the text's beginning or at its end. */
static int around_append(const struct encode_state *e, const int32_t *around, uint32_t count, size_t place,
                         struct err *err)
{
    const int32_t end = (int32_t)place;
    for (uint32_t i = 0; i < count; i++) {
        if (ids_append(e->ids, &around[i], 1, err) < 0 ||
            (e->ends && (ids_append(e->begins, &end, 1, err) < 0 || ids_append(e->ends, &end, 1, err) < 0))) {
            return -1;
        }
    }
    return 0;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t size, unsigned flags,
                     struct ids *ids, struct err *err)
{
    return tokenizer_encode_placed(t, text, size, flags, ids, NULL, NULL, err);
}

int tokenizer_encode_placed(const struct tokenizer *t, const char *text, size_t size, unsigned flags,
                            struct ids *ids, struct ids *begins, struct ids *ends, struct err *err)
{
    if (size > ENCODE_BYTES_MAX)
        return err_set(err, ERR_TOO_BIG, "a text of %zu bytes is more than %d", size, ENCODE_BYTES_MAX);
    const size_t valid = utf8_check(text, size);
    if (valid != size)
        return err_set(err, ERR_INVALID, "the text is not valid UTF-8 at byte %zu", valid);
    const struct text_view view = {.text = text, .size = size};
    struct encode_state e = {
        .t = t, .ids = ids, .begins = begins, .ends = ends, .whole = text, .size = size, .flags = flags};
    e.scratch = scratch_take(t, err);
    if (!e.scratch)
        return -1;
    const size_t begin = ids->count;
    const size_t begins_before = begins ? begins->count : 0, ends_before = ends ? ends->count : 0;
    int status = 0;
    if (flags & TOKENIZER_ADD_BEGIN)
        status = around_append(&e, t->before, t->before_count, 0, err);
    if (status == 0 && size > 0)
        status = t->added_count > 0 ? segment_cut(&e, &view, false, err) : segment_normalise(&e, &view, err);
    if (status == 0 && (flags & TOKENIZER_ADD_END))
        status = around_append(&e, t->after, t->after_count, size, err);
    if (status < 0) {
        ids->count = begin;
        if (ends) {
            begins->count = begins_before;
            ends->count = ends_before;
        }
    }
    scratch_return(t, e.scratch);
    return status;
}
