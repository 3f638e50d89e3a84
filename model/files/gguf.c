/* Reads a GGUF header. No field states the header's length, so a growing piece of the file's beginning is
 * parsed from the start until it holds the whole header. Every count and length is compared with what the
 * file can hold before memory is allocated for it. */
#include "model/files/gguf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/files/by_name.h"
#include "model/files/file_kind.h"

enum { FIRST_BYTES = 4 << 20, KEY_BYTES_MAX = 65535, NAME_BYTES_MAX = 64, ALIGNMENT_MAX = 1 << 20 };

/* The types of metadata values, with the numbers that stand in files. */
enum value_type {
    V_U8,
    V_I8,
    V_U16,
    V_I16,
    V_U32,
    V_I32,
    V_F32,
    V_BOOL,
    V_STRING,
    V_ARRAY,
    V_U64,
    V_I64,
    V_F64,
    V_COUNT
};

static const uint8_t value_bytes[V_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

static const struct {
    const char *name;
    int type; /* enum tensor_type, or -1 for types that are not read */
} ggml_types[] = {
    [0] = {"F32", TENSOR_F32},
    [1] = {"F16", TENSOR_F16},
    [2] = {"Q4_0", TENSOR_Q4_0},
    [3] = {"Q4_1", TENSOR_Q4_1},
    [4] = {"Q4_2", -1},
    [5] = {"Q4_3", -1},
    [6] = {"Q5_0", TENSOR_Q5_0},
    [7] = {"Q5_1", TENSOR_Q5_1},
    [8] = {"Q8_0", TENSOR_Q8_0},
    [9] = {"Q8_1", -1},
    [10] = {"Q2_K", -1},
    [11] = {"Q3_K", -1},
    [12] = {"Q4_K", TENSOR_Q4_K},
    [13] = {"Q5_K", TENSOR_Q5_K},
    [14] = {"Q6_K", TENSOR_Q6_K},
    [15] = {"Q8_K", -1},
    [16] = {"IQ2_XXS", -1},
    [17] = {"IQ2_XS", -1},
    [18] = {"IQ3_XXS", -1},
    [19] = {"IQ1_S", -1},
    [20] = {"IQ4_NL", -1},
    [21] = {"IQ3_S", -1},
    [22] = {"IQ2_S", -1},
    [23] = {"IQ4_XS", -1},
    [24] = {"I8", TENSOR_I8},
    [25] = {"I16", TENSOR_I16},
    [26] = {"I32", TENSOR_I32},
    [27] = {"I64", TENSOR_I64},
    [28] = {"F64", TENSOR_F64},
    [29] = {"IQ1_M", -1},
    [30] = {"BF16", TENSOR_BF16},
    [31] = {NULL, -1},
    [32] = {NULL, -1},
    [33] = {NULL, -1},
    [34] = {"TQ1_0", -1},
    [35] = {"TQ2_0", -1},
    [36] = {NULL, -1},
    [37] = {NULL, -1},
    [38] = {NULL, -1},
    [39] = {"MXFP4", TENSOR_MXFP4},
};

struct entry {
    char *key;
    uint8_t type, element; /* enum value_type of the value and of an array's elements */
    uint64_t count;        /* number of an array's elements; 1 for other values */
    size_t at;       /* offset in data of the value, of a string's length, or of an array's first element */
    size_t *strings; /* for an array of strings, the offset of each element's length */
};

struct gguf {
    uint8_t *data; /* the header's bytes */
    size_t size;
    uint32_t version, entry_count, tensor_count;
    struct entry *entries;
    struct gguf_tensor *tensors;
    struct by_name *by_name; /* sorted list of the tensors */
    struct by_name *by_key;  /* sorted list of the metadata entries */
};

enum outcome { PARSED, FAILED, NEEDS_MORE };

struct cursor {
    const uint8_t *data;
    size_t size, at;
    uint64_t file_size;
    bool short_of_bytes; /* set when parsing needed bytes that lie beyond 'size' but within the file */
    struct err *err;
};

/* Returns whether n more bytes are there, and sets the error if they are not. */
static bool has_bytes(struct cursor *c, uint64_t n, const char *what)
{
    if (n <= c->size - c->at)
        return true;
    if (n <= c->file_size - c->at && c->size < GGUF_HEADER_MAX && c->at + n <= GGUF_HEADER_MAX)
        c->short_of_bytes = true;
    else if (n <= c->file_size - c->at)
        err_set(c->err, ERR_CORRUPT, "gguf: %s at byte %zu goes beyond the header's limit of %d bytes", what,
                c->at, GGUF_HEADER_MAX);
    else
        err_set(c->err, ERR_CORRUPT, "gguf: %s at byte %zu goes beyond the file's %llu bytes", what, c->at,
                (unsigned long long)c->file_size);
    return false;
}

static uint64_t load(const uint8_t *p, unsigned bytes)
{
    uint64_t v = 0;
    for (unsigned i = bytes; i-- > 0;)
        v = v << 8 | p[i];
    return v;
}

static bool gguf_take(struct cursor *c, unsigned bytes, uint64_t *value, const char *what)
{
    if (!has_bytes(c, bytes, what))
        return false;
    *value = load(c->data + c->at, bytes);
    c->at += bytes;
    return true;
}

/* Reads a length and as many bytes, and copies them as a NUL-terminated text of at most 'most' bytes. */
static bool take_name(struct cursor *c, size_t most, char *out, size_t *length, const char *what)
{
    uint64_t n;
    if (!gguf_take(c, 8, &n, what))
        return false;
    if (n == 0 || n > most) {
        err_set(c->err, ERR_CORRUPT, "gguf: %s at byte %zu has %llu bytes; 1..%zu are allowed", what,
                c->at - 8, (unsigned long long)n, most);
        return false;
    }
    if (!has_bytes(c, n, what))
        return false;
    if (memchr(c->data + c->at, 0, (size_t)n)) {
        err_set(c->err, ERR_CORRUPT, "gguf: %s at byte %zu holds a zero byte", what, c->at);
        return false;
    }
    memcpy(out, c->data + c->at, (size_t)n);
    out[n] = 0;
    *length = (size_t)n;
    c->at += (size_t)n;
    return true;
}

static bool skip_string(struct cursor *c, const char *key)
{
    uint64_t n;
    if (!gguf_take(c, 8, &n, key) || !has_bytes(c, n, key))
        return false;
    c->at += (size_t)n;
    return true;
}

static bool parse_array(struct cursor *c, struct entry *e)
{
    uint64_t element, count, bytes;
    if (!gguf_take(c, 4, &element, e->key) || !gguf_take(c, 8, &count, e->key))
        return false;
    if (element >= V_COUNT || element == V_ARRAY) {
        err_set(c->err, ERR_CORRUPT, "gguf: %.200s: an array of elements of type %llu", e->key,
                (unsigned long long)element);
        return false;
    }
    unsigned least = element == V_STRING ? 8 : value_bytes[element];
    e->element = (uint8_t)element;
    e->count = count;
    e->at = c->at;
    if (count > c->file_size / least) {
        err_set(c->err, ERR_CORRUPT,
                "gguf: %.200s: an array of %llu elements goes beyond the file's %llu bytes", e->key,
                (unsigned long long)count, (unsigned long long)c->file_size);
        return false;
    }
    bytes = count * least;
    if (!has_bytes(c, bytes, e->key))
        return false;
    if (element != V_STRING) {
        c->at += (size_t)bytes;
        return true;
    }
    e->strings = malloc((size_t)(count ? count : 1) * sizeof(*e->strings));
    if (!e->strings) {
        err_set(c->err, ERR_NOMEM, "no memory for %llu texts of %.200s", (unsigned long long)count, e->key);
        return false;
    }
    for (uint64_t i = 0; i < count; i++) {
        e->strings[i] = c->at;
        if (!skip_string(c, e->key))
            return false;
    }
    return true;
}

static bool parse_entry(struct cursor *c, struct entry *e)
{
    uint64_t type;
    char key[KEY_BYTES_MAX + 1];
    size_t length;
    if (!take_name(c, KEY_BYTES_MAX, key, &length, "a metadata key"))
        return false;
    e->key = malloc(length + 1);
    if (!e->key) {
        err_set(c->err, ERR_NOMEM, "no memory for a metadata key");
        return false;
    }
    memcpy(e->key, key, length + 1);
    if (!gguf_take(c, 4, &type, e->key))
        return false;
    if (type >= V_COUNT) {
        err_set(c->err, ERR_CORRUPT, "gguf: %.200s: a value of type %llu", e->key, (unsigned long long)type);
        return false;
    }
    e->type = (uint8_t)type;
    e->count = 1;
    e->at = c->at;
    if (type == V_ARRAY)
        return parse_array(c, e);
    if (type == V_STRING)
        return skip_string(c, e->key);
    if (!has_bytes(c, value_bytes[type], e->key))
        return false;
    c->at += value_bytes[type];
    return true;
}

static bool refuse_tensor(struct cursor *c, const struct gguf_tensor *t, const char *what)
{
    err_set(c->err, ERR_CORRUPT, "gguf: tensor \"%s\": %s", t->name, what);
    return false;
}

/* Reads one tensor info. Its offset counts from the beginning of the data until layout() makes it an offset
 * in the file. */
static bool gguf_parse_tensor(struct cursor *c, struct gguf_tensor *t)
{
    uint64_t rank, type, n;
    size_t length;
    if (!take_name(c, NAME_BYTES_MAX, t->name, &length, "a tensor's name") ||
        !gguf_take(c, 4, &rank, t->name))
        return false;
    if (rank < 1 || rank > GGUF_DIMS_MAX)
        return refuse_tensor(c, t, "not 1 to 4 dimensions");
    t->rank = (uint32_t)rank;
    uint64_t elements = 1;
    for (uint32_t i = 0; i < t->rank; i++) {
        if (!gguf_take(c, 8, &n, t->name))
            return false;
        t->shape[t->rank - 1 - i] = n;
        if (n == 0 || __builtin_mul_overflow(elements, n, &elements) || elements > (uint64_t)1 << 50)
            return refuse_tensor(c, t, "the shape is empty or overflows");
    }
    if (!gguf_take(c, 4, &type, t->name) || !gguf_take(c, 8, &t->offset, t->name))
        return false;
    size_t known = sizeof(ggml_types) / sizeof(ggml_types[0]);
    if (type >= known || ggml_types[type].type < 0) {
        err_set(c->err, ERR_UNSUPPORTED,
                "gguf: tensor \"%s\": the type %s (%llu) is not read; F32, F16, BF16, Q8_0, "
                "Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K and MXFP4 are",
                t->name, type < known && ggml_types[type].name ? ggml_types[type].name : "unknown",
                (unsigned long long)type);
        return false;
    }
    t->type = (enum tensor_type)ggml_types[type].type;
    uint32_t block = tensor_type_block(t->type);
    if (t->shape[t->rank - 1] % block != 0)
        return refuse_tensor(c, t, "a row is no whole number of blocks");
    t->size = elements / block * tensor_type_block_bytes(t->type);
    return true;
}

static int gguf_index_names(struct gguf *g, struct err *err)
{
    g->by_key = calloc(g->entry_count ? g->entry_count : 1, sizeof(*g->by_key));
    g->by_name = calloc(g->tensor_count ? g->tensor_count : 1, sizeof(*g->by_name));
    if (!g->by_key || !g->by_name)
        return err_set(err, ERR_NOMEM, "no memory for %u keys and %u tensors", g->entry_count,
                       g->tensor_count);
    for (uint32_t i = 0; i < g->entry_count; i++)
        g->by_key[i] = (struct by_name){g->entries[i].key, i};
    for (uint32_t i = 0; i < g->tensor_count; i++)
        g->by_name[i] = (struct by_name){g->tensors[i].name, i};
    by_name_sort(g->by_key, g->entry_count);
    by_name_sort(g->by_name, g->tensor_count);
    if (by_name_unique(g->by_key, g->entry_count, "gguf", "key", err) < 0)
        return -1;
    return by_name_unique(g->by_name, g->tensor_count, "gguf", "tensor", err);
}

static int gguf_compare_offset(const void *a, const void *b)
{
    const struct gguf_tensor *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Finds where the data begins, and checks that every tensor lies inside the file, aligned, and that none
 * overlap. */
static bool layout(struct gguf *g, struct cursor *c)
{
    int64_t alignment = 32;
    if (gguf_kind(g, "general.alignment") != GGUF_NONE &&
        (!gguf_i64(g, "general.alignment", &alignment) || alignment < 1 || alignment > ALIGNMENT_MAX ||
         (alignment & (alignment - 1)) != 0)) {
        err_set(c->err, ERR_CORRUPT, "gguf: general.alignment is no power of two up to %d", ALIGNMENT_MAX);
        return false;
    }
    uint64_t mask = (uint64_t)alignment - 1, begin = ((uint64_t)c->at + mask) & ~mask;
    uint64_t room = begin <= c->file_size ? c->file_size - begin : 0, at = 0;
    qsort(g->tensors, g->tensor_count, sizeof(*g->tensors), gguf_compare_offset);
    for (uint32_t i = 0; i < g->tensor_count; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        if (t->offset & mask)
            return refuse_tensor(c, t, "its data is not aligned");
        if (t->offset > room || t->size > room - t->offset)
            return refuse_tensor(c, t, "its data goes beyond the file");
        if (t->offset < at)
            return refuse_tensor(c, t, "its data overlaps that of another");
        at = t->offset + t->size;
        t->offset += begin;
    }
    return true;
}

static bool check_split(const struct gguf *g, struct err *err)
{
    int64_t parts = 1;
    gguf_i64(g, "split.count", &parts);
    if (parts > 1)
        err_set(err, ERR_UNSUPPORTED, "gguf: one of %lld parts of a split file; join them first",
                (long long)parts);
    return parts <= 1;
}

static bool parse_counts(struct gguf *g, struct cursor *c)
{
    uint64_t version, tensors, entries;
    if (!has_bytes(c, 4, "the magic"))
        return false;
    if (memcmp(c->data, "GGUF", 4) != 0) {
        if (file_kind_expect(c->data, c->size, FILE_KIND_GGUF, c->err) == 0)
            err_set(c->err, ERR_CORRUPT, "gguf: the file does not begin with \"GGUF\"");
        return false;
    }
    c->at = 4;
    if (!gguf_take(c, 4, &version, "the version"))
        return false;
    if (version != 2 && version != 3) {
        err_set(c->err, ERR_UNSUPPORTED, "gguf: version %llu%s is not read; 2 and 3 (little-endian) are",
                (unsigned long long)version, version >= 1 << 24 ? " (big-endian?)" : "");
        return false;
    }
    if (!gguf_take(c, 8, &tensors, "the tensor count") || !gguf_take(c, 8, &entries, "the metadata count"))
        return false;
    /* A tensor info takes at least 33 bytes and a metadata entry at least 14. */
    if (tensors > GGUF_TENSORS_MAX || tensors > c->file_size / 33 || entries > GGUF_KEYS_MAX ||
        entries > c->file_size / 14) {
        err_set(c->err, ERR_CORRUPT,
                "gguf: %llu tensors and %llu keys are claimed; the limits are %d and %d, and a file of %llu "
                "bytes",
                (unsigned long long)tensors, (unsigned long long)entries, GGUF_TENSORS_MAX, GGUF_KEYS_MAX,
                (unsigned long long)c->file_size);
        return false;
    }
    g->version = (uint32_t)version;
    g->entries = calloc(entries ? (size_t)entries : 1, sizeof(*g->entries));
    g->tensors = calloc(tensors ? (size_t)tensors : 1, sizeof(*g->tensors));
    if (!g->entries || !g->tensors) {
        err_set(c->err, ERR_NOMEM, "no memory for a header of %llu tensors", (unsigned long long)tensors);
        return false;
    }
    g->entry_count = (uint32_t)entries;
    g->tensor_count = (uint32_t)tensors;
    return true;
}

static void clear(struct gguf *g)
{
    for (uint32_t i = 0; g->entries && i < g->entry_count; i++) {
        free(g->entries[i].key);
        free(g->entries[i].strings);
    }
    free(g->entries);
    free(g->tensors);
    free(g->by_name);
    free(g->by_key);
    g->entries = NULL;
    g->tensors = NULL;
    g->by_name = g->by_key = NULL;
    g->entry_count = g->tensor_count = 0;
}

static enum outcome gguf_parse(struct gguf *g, uint64_t file_size, struct err *err)
{
    struct cursor c = {.data = g->data, .size = g->size, .file_size = file_size, .err = err};
    bool ok = parse_counts(g, &c);
    for (uint32_t i = 0; ok && i < g->entry_count; i++)
        ok = parse_entry(&c, &g->entries[i]);
    for (uint32_t i = 0; ok && i < g->tensor_count; i++)
        ok = gguf_parse_tensor(&c, &g->tensors[i]);
    if (!ok && c.short_of_bytes)
        return NEEDS_MORE;
    /* layout() looks up a key to find the alignment, so the names are indexed first; it also sorts the
     * tensors by offset, which moves them. */
    ok = ok && gguf_index_names(g, err) == 0 && layout(g, &c) && check_split(g, err);
    if (!ok)
        return FAILED;
    free(g->by_key);
    free(g->by_name);
    g->by_key = g->by_name = NULL;
    return gguf_index_names(g, err) == 0 ? PARSED : FAILED;
}

static int read_header(struct model_source *source, uint32_t file, struct gguf *g, struct err *err)
{
    uint64_t file_size = model_source_file(source, file)->size;
    for (uint64_t want = FIRST_BYTES;; want *= 2) {
        size_t size = want < file_size ? (size_t)want : (size_t)file_size;
        if (size > GGUF_HEADER_MAX)
            size = GGUF_HEADER_MAX;
        uint8_t *grown = realloc(g->data, size ? size : 1);
        if (!grown)
            return err_set(err, ERR_NOMEM, "no memory for %zu bytes of header", size);
        g->data = grown;
        if (model_source_read(source, file, g->size, size - g->size, g->data + g->size, err) < 0)
            return -1;
        g->size = size;
        enum outcome outcome = gguf_parse(g, file_size, err);
        if (outcome == PARSED)
            return 0;
        clear(g);
        if (outcome == FAILED)
            return -1;
    }
}

int gguf_open(struct model_source *source, uint32_t file, struct gguf **gguf, struct err *err)
{
    const struct model_file *f = model_source_file(source, file);
    *gguf = NULL;
    if (!f)
        return err_set(err, ERR_INTERNAL, "gguf: no file %u", file);
    struct gguf *g = calloc(1, sizeof(*g));
    if (!g)
        return err_set(err, ERR_NOMEM, "no memory to open \"%s\"", f->name);
    if (read_header(source, file, g, err) < 0) {
        gguf_close(g);
        return err_wrap(err, "%s", f->name);
    }
    *gguf = g;
    return 0;
}

void gguf_close(struct gguf *gguf)
{
    if (!gguf)
        return;
    clear(gguf);
    free(gguf->data);
    free(gguf);
}

uint32_t gguf_version(const struct gguf *gguf)
{
    return gguf->version;
}

uint32_t gguf_tensor_count(const struct gguf *gguf)
{
    return gguf->tensor_count;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, uint32_t index)
{
    return index < gguf->tensor_count ? &gguf->tensors[index] : NULL;
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *gguf, const char *name)
{
    return gguf_tensor_at(gguf, by_name_find(gguf->by_name, gguf->tensor_count, name));
}

static const struct entry *gguf_find(const struct gguf *g, const char *key)
{
    uint32_t at = by_name_find(g->by_key, g->entry_count, key);
    return at < g->entry_count ? &g->entries[at] : NULL;
}

static enum gguf_kind gguf_kind_of(uint8_t type)
{
    static const uint8_t kinds[V_COUNT] = {GGUF_UINT, GGUF_INT,   GGUF_UINT, GGUF_INT,    GGUF_UINT,
                                           GGUF_INT,  GGUF_FLOAT, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY,
                                           GGUF_UINT, GGUF_INT,   GGUF_FLOAT};
    return (enum gguf_kind)kinds[type];
}

enum gguf_kind gguf_kind(const struct gguf *gguf, const char *key)
{
    const struct entry *e = gguf_find(gguf, key);
    return e ? gguf_kind_of(e->type) : GGUF_NONE;
}

static bool value_i64(const uint8_t *p, uint8_t type, int64_t *value)
{
    unsigned bytes = value_bytes[type];
    enum gguf_kind kind = gguf_kind_of(type);
    if (kind != GGUF_UINT && kind != GGUF_INT)
        return false;
    uint64_t v = load(p, bytes);
    if (kind == GGUF_UINT) {
        if (v > INT64_MAX)
            return false;
        *value = (int64_t)v;
        return true;
    }
    unsigned shift = 64 - 8 * bytes;
    *value = (int64_t)(v << shift) >> shift;
    return true;
}

static bool value_f64(const uint8_t *p, uint8_t type, double *value)
{
    int64_t whole;
    if (type == V_F32) {
        uint32_t bits = (uint32_t)load(p, 4);
        float f;
        memcpy(&f, &bits, 4);
        *value = f;
    } else if (type == V_F64) {
        uint64_t bits = load(p, 8);
        memcpy(value, &bits, 8);
    } else if (value_i64(p, type, &whole)) {
        *value = (double)whole;
    } else {
        return false;
    }
    return isfinite(*value);
}

bool gguf_i64(const struct gguf *gguf, const char *key, int64_t *value)
{
    const struct entry *e = gguf_find(gguf, key);
    return e && e->type != V_STRING && e->type != V_ARRAY && value_i64(gguf->data + e->at, e->type, value);
}

bool gguf_f64(const struct gguf *gguf, const char *key, double *value)
{
    const struct entry *e = gguf_find(gguf, key);
    return e && e->type != V_STRING && e->type != V_ARRAY && value_f64(gguf->data + e->at, e->type, value);
}

bool gguf_bool(const struct gguf *gguf, const char *key, bool *value)
{
    const struct entry *e = gguf_find(gguf, key);
    if (!e || e->type != V_BOOL)
        return false;
    *value = gguf->data[e->at] != 0;
    return true;
}

static void text_at(const struct gguf *g, size_t at, const char **text, size_t *size)
{
    *size = (size_t)load(g->data + at, 8);
    *text = (const char *)g->data + at + 8;
}

bool gguf_string(const struct gguf *gguf, const char *key, const char **text, size_t *size)
{
    const struct entry *e = gguf_find(gguf, key);
    if (!e || e->type != V_STRING)
        return false;
    text_at(gguf, e->at, text, size);
    return true;
}

bool gguf_array(const struct gguf *gguf, const char *key, enum gguf_kind *kind, uint64_t *count)
{
    const struct entry *e = gguf_find(gguf, key);
    if (!e || e->type != V_ARRAY)
        return false;
    *kind = gguf_kind_of(e->element);
    *count = e->count;
    return true;
}

static const struct entry *element(const struct gguf *g, const char *key, uint64_t index)
{
    const struct entry *e = gguf_find(g, key);
    return e && e->type == V_ARRAY && index < e->count ? e : NULL;
}

bool gguf_array_i64(const struct gguf *gguf, const char *key, uint64_t index, int64_t *value)
{
    const struct entry *e = element(gguf, key, index);
    if (e && e->element == V_BOOL) {
        *value = gguf->data[e->at + index] != 0;
        return true;
    }
    return e && e->element != V_STRING &&
           value_i64(gguf->data + e->at + index * value_bytes[e->element], e->element, value);
}

bool gguf_array_f64(const struct gguf *gguf, const char *key, uint64_t index, double *value)
{
    const struct entry *e = element(gguf, key, index);
    return e && e->element != V_STRING &&
           value_f64(gguf->data + e->at + index * value_bytes[e->element], e->element, value);
}

bool gguf_array_string(const struct gguf *gguf, const char *key, uint64_t index, const char **text,
                       size_t *size)
{
    const struct entry *e = element(gguf, key, index);
    if (!e || e->element != V_STRING)
        return false;
    text_at(gguf, e->strings[index], text, size);
    return true;
}

uint32_t gguf_key_count(const struct gguf *gguf)
{
    return gguf->entry_count;
}

const char *gguf_key_at(const struct gguf *gguf, uint32_t index)
{
    return index < gguf->entry_count ? gguf->entries[index].key : NULL;
}
