/* Stores rows in memory and in their binary file. The file is little-endian: "MTLYROWS", u32 version 1, u32
 * rows, u64 tokens, u64 offset[rows + 1], i32 ids[tokens], i32 labels[tokens], 32 bytes of SHA-256 over
 * everything before. */
#include "model/rows/rows_store.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/digest.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rows are written as they lie in memory");

enum { ROWS_VERSION = 1, ROWS_HEAD_BYTES = 24 };
static const char rows_magic[8] = {'M', 'T', 'L', 'Y', 'R', 'O', 'W', 'S'};

/* The public struct is the first member, since rows_destroy receives a pointer to it. */
struct rows_owned {
    struct rows rows;
    uint64_t *offset;
    int32_t *ids, *labels;
};

struct rows_store {
    uint64_t *offset;
    int32_t *ids, *labels;
    uint32_t count, count_capacity;
    uint64_t tokens, token_capacity;
    size_t bytes_max;
};

struct rows_store *rows_store_create(size_t bytes_max, struct err *err)
{
    struct rows_store *store = calloc(1, sizeof(*store));
    if (!store) {
        err_set(err, ERR_NOMEM, "out of memory for rows");
        return NULL;
    }
    store->bytes_max = bytes_max;
    return store;
}

void rows_store_destroy(struct rows_store *store)
{
    if (!store)
        return;
    free(store->offset);
    free(store->ids);
    free(store->labels);
    free(store);
}

static int store_reserve(struct rows_store *s, uint32_t more, struct err *err)
{
    if (s->tokens + more > s->bytes_max / (2 * sizeof(int32_t)) || s->count == ROWS_COUNT_MAX) {
        return err_set(err, ERR_TOO_BIG, "the encoded dataset is larger than %zu bytes or %d rows",
                       s->bytes_max, ROWS_COUNT_MAX);
    }
    if (s->count + 2 > s->count_capacity) {
        const uint32_t capacity = s->count_capacity == 0 ? 1024 : 2 * s->count_capacity;
        uint64_t *offset = realloc(s->offset, capacity * sizeof(*offset));
        if (!offset)
            return err_set(err, ERR_NOMEM, "out of memory for %u rows", capacity);
        s->offset = offset;
        s->count_capacity = capacity;
    }
    uint64_t capacity = s->token_capacity == 0 ? 65536 : s->token_capacity;
    while (capacity < s->tokens + more)
        capacity *= 2;
    if (capacity > s->token_capacity) {
        int32_t *ids = realloc(s->ids, capacity * sizeof(*ids));
        s->ids = ids ? ids : s->ids;
        int32_t *labels = ids ? realloc(s->labels, capacity * sizeof(*labels)) : NULL;
        s->labels = labels ? labels : s->labels;
        if (!labels)
            return err_set(err, ERR_NOMEM, "out of memory for %" PRIu64 " tokens", capacity);
        s->token_capacity = capacity;
    }
    return 0;
}

int rows_store_add(struct rows_store *s, const int32_t *ids, const int32_t *labels, uint32_t count,
                   struct err *err)
{
    if (store_reserve(s, count, err) < 0)
        return -1;
    memcpy(s->ids + s->tokens, ids, count * sizeof(*ids));
    memcpy(s->labels + s->tokens, labels, count * sizeof(*labels));
    s->offset[s->count] = s->tokens;
    s->tokens += count;
    s->count++;
    s->offset[s->count] = s->tokens;
    return 0;
}

/* Makes rows that own the three arrays. */
static int rows_wrap(uint32_t count, uint64_t *offset, int32_t *ids, int32_t *labels, struct rows **rows,
                     struct err *err)
{
    struct rows_owned *owned = malloc(sizeof(*owned));
    if (!owned) {
        free(offset);
        free(ids);
        free(labels);
        return err_set(err, ERR_NOMEM, "out of memory for rows");
    }
    *owned = (struct rows_owned){.rows = {.count = count, .offset = offset, .ids = ids, .labels = labels},
                                 .offset = offset,
                                 .ids = ids,
                                 .labels = labels};
    *rows = &owned->rows;
    return 0;
}

int rows_store_finish(struct rows_store *s, struct rows **rows, struct err *err)
{
    int status = rows_wrap(s->count, s->offset, s->ids, s->labels, rows, err);
    *s = (struct rows_store){.bytes_max = s->bytes_max};
    return status;
}

void rows_destroy(struct rows *rows)
{
    if (!rows)
        return;
    struct rows_owned *owned = (struct rows_owned *)rows;
    free(owned->offset);
    free(owned->ids);
    free(owned->labels);
    free(owned);
}

uint64_t rows_saved_bytes(const struct rows *rows)
{
    return ROWS_HEAD_BYTES + ((uint64_t)rows->count + 1) * sizeof(uint64_t) +
           rows->offset[rows->count] * 2 * sizeof(int32_t) + DIGEST_SIZE;
}

int rows_save_to(const struct rows *rows,
                 int (*put)(void *arg, const void *bytes, size_t size, struct err *err), void *arg,
                 struct err *err)
{
    const uint64_t tokens = rows->offset[rows->count];
    uint8_t head[ROWS_HEAD_BYTES], digest[DIGEST_SIZE];
    const uint32_t numbers[2] = {ROWS_VERSION, rows->count};
    memcpy(head, rows_magic, sizeof(rows_magic));
    memcpy(head + 8, numbers, sizeof(numbers));
    memcpy(head + 16, &tokens, sizeof(tokens));
    const struct {
        const void *bytes;
        size_t size;
    } parts[] = {{head, sizeof(head)},
                 {rows->offset, ((size_t)rows->count + 1) * sizeof(uint64_t)},
                 {rows->ids, tokens * sizeof(int32_t)},
                 {rows->labels, tokens * sizeof(int32_t)}};
    struct digest *whole = digest_create(err);
    int result = whole ? 0 : -1;
    for (size_t i = 0; result == 0 && i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (digest_update(whole, parts[i].bytes, parts[i].size, err) < 0 ||
            put(arg, parts[i].bytes, parts[i].size, err) < 0) {
            result = -1;
        }
    }
    if (result == 0)
        result = digest_final(whole, digest, err) < 0 ? -1 : put(arg, digest, sizeof(digest), err);
    digest_destroy(whole);
    return result;
}

static int put_buf(void *arg, const void *bytes, size_t size, struct err *err)
{
    return buf_append(arg, bytes, size, err);
}

int rows_save(const struct rows *rows, struct buf *out, struct err *err)
{
    const size_t begin = out->size;
    if (buf_reserve(out, rows_saved_bytes(rows), err) < 0 || rows_save_to(rows, put_buf, out, err) < 0) {
        out->size = begin;
        return -1;
    }
    return 0;
}

/* Checks the header's numbers against the file's size, before anything is allocated. */
static int rows_store_head_check(const uint8_t *bytes, size_t size, uint32_t *count, uint64_t *tokens,
                                 struct err *err)
{
    uint32_t head[2];
    if (size < ROWS_HEAD_BYTES + sizeof(uint64_t) + DIGEST_SIZE ||
        memcmp(bytes, rows_magic, sizeof(rows_magic)) != 0) {
        return err_set(err, ERR_CORRUPT, "%zu bytes are no file of encoded rows", size);
    }
    memcpy(head, bytes + 8, sizeof(head));
    memcpy(tokens, bytes + 16, sizeof(*tokens));
    *count = head[1];
    if (head[0] != ROWS_VERSION)
        return err_set(err, ERR_UNSUPPORTED, "encoded rows of version %u; known: %d", head[0], ROWS_VERSION);
    const uint64_t body = size - ROWS_HEAD_BYTES - DIGEST_SIZE;
    if (*count == 0 || *count > ROWS_COUNT_MAX || *tokens > body / (2 * sizeof(int32_t)) ||
        ((uint64_t)*count + 1) * sizeof(uint64_t) + *tokens * 2 * sizeof(int32_t) != body) {
        return err_set(err, ERR_CORRUPT, "encoded rows: %u rows of %" PRIu64 " tokens do not make %zu bytes",
                       *count, *tokens, size);
    }
    uint8_t digest[DIGEST_SIZE];
    if (digest_sha256(bytes, size - DIGEST_SIZE, digest, err) < 0)
        return -1;
    if (!digest_equal(digest, bytes + size - DIGEST_SIZE, DIGEST_SIZE))
        return err_set(err, ERR_CORRUPT, "encoded rows: the bytes do not hash as they should");
    return 0;
}

static int row_check(uint32_t row, uint64_t begin, uint64_t end, const int32_t *ids, const int32_t *labels,
                     int64_t limit, struct err *err)
{
    bool learns = false;
    for (uint64_t i = begin; i < end; i++) {
        const bool ignored = labels[i] == ROWS_IGNORE;
        if (ids[i] < 0 || ids[i] >= limit || (!ignored && (labels[i] < 0 || labels[i] >= limit))) {
            return err_set(err, ERR_CORRUPT,
                           "encoded rows: row %u, token %" PRIu64 ": id %d with label %d, not below %" PRId64,
                           row, i - begin, ids[i], labels[i], limit);
        }
        learns = learns || (i > begin && !ignored);
    }
    if (!learns)
        return err_set(err, ERR_CORRUPT, "encoded rows: row %u has nothing to learn", row);
    return 0;
}

static int rows_check(const struct rows *rows, uint64_t tokens, uint32_t vocab, struct err *err)
{
    const int64_t limit = vocab > 0 ? (int64_t)vocab : (int64_t)INT32_MAX + 1;
    if (rows->offset[0] != 0 || rows->offset[rows->count] != tokens)
        return err_set(err, ERR_CORRUPT, "encoded rows: the rows do not cover the tokens");
    /* All offsets are checked first, since a falling one would let a row reach outside of the arrays. */
    for (uint32_t r = 0; r < rows->count; r++) {
        const uint64_t begin = rows->offset[r];
        const uint64_t end = rows->offset[r + 1];
        if (end > tokens || begin > end || end - begin < 2 || end - begin > UINT32_MAX) {
            return err_set(err, ERR_CORRUPT,
                           "encoded rows: row %u lies at %" PRIu64 " to %" PRIu64 " of %" PRIu64, r, begin,
                           end, tokens);
        }
    }
    for (uint32_t r = 0; r < rows->count; r++)
        if (row_check(r, rows->offset[r], rows->offset[r + 1], rows->ids, rows->labels, limit, err) < 0)
            return -1;
    return 0;
}

static void *rows_store_copy_of(const uint8_t *bytes, size_t size)
{
    void *copy = malloc(size + 1); /* 0 bytes have an address, too */
    if (copy)
        memcpy(copy, bytes, size);
    return copy;
}

int rows_load(const void *data, size_t size, uint32_t vocab, struct rows **rows, struct err *err)
{
    const uint8_t *bytes = data;
    uint32_t count = 0;
    uint64_t tokens = 0;
    if (rows_store_head_check(bytes, size, &count, &tokens, err) < 0)
        return -1;
    const size_t offset_bytes = ((size_t)count + 1) * sizeof(uint64_t);
    const size_t token_bytes = (size_t)tokens * sizeof(int32_t);
    bytes += ROWS_HEAD_BYTES;
    uint64_t *offset = rows_store_copy_of(bytes, offset_bytes);
    int32_t *ids = rows_store_copy_of(bytes + offset_bytes, token_bytes);
    int32_t *labels = rows_store_copy_of(bytes + offset_bytes + token_bytes, token_bytes);
    if (!offset || !ids || !labels) {
        free(offset);
        free(ids);
        free(labels);
        return err_set(err, ERR_NOMEM, "out of memory for %" PRIu64 " tokens", tokens);
    }
    struct rows *loaded = NULL;
    if (rows_wrap(count, offset, ids, labels, &loaded, err) < 0)
        return -1;
    if (rows_check(loaded, tokens, vocab, err) < 0) {
        rows_destroy(loaded);
        return -1;
    }
    *rows = loaded;
    return 0;
}

void rows_sizes(const struct rows *rows, struct row_size *sizes)
{
    for (uint32_t r = 0; r < rows->count; r++) {
        sizes[r] = (struct row_size){.tokens = (uint32_t)(rows->offset[r + 1] - rows->offset[r])};
        for (uint64_t i = rows->offset[r] + 1; i < rows->offset[r + 1]; i++)
            sizes[r].labelled += rows->labels[i] != ROWS_IGNORE;
    }
}

void rows_histogram(const struct rows *rows, struct rows_histogram *histogram)
{
    *histogram = (struct rows_histogram){.rows = rows->count};
    for (uint32_t r = 0; r < rows->count; r++) {
        const uint64_t length = rows->offset[r + 1] - rows->offset[r];
        histogram->tokens += length;
        histogram->sum_sq += length * length;
        histogram->longest = length > histogram->longest ? (uint32_t)length : histogram->longest;
        for (uint64_t i = rows->offset[r] + 1; i < rows->offset[r + 1]; i++)
            histogram->labelled += rows->labels[i] != ROWS_IGNORE;
    }
    histogram->bin_tokens = histogram->longest / ROWS_HISTOGRAM_BINS + 1;
    histogram->bins = histogram->longest / histogram->bin_tokens + 1;
    for (uint32_t r = 0; r < rows->count; r++) {
        const uint64_t length = rows->offset[r + 1] - rows->offset[r];
        histogram->count[length / histogram->bin_tokens]++;
    }
}
