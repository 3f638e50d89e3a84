/* One directory of tensors under Hugging Face names over either kind of file. */
#include "model/tensors.h"

#include <stdlib.h>
#include <string.h>

#include "model/blocks.h"
#include "model/gguf_config.h"
#include "model/hub_json.h"

enum { NAME_BYTES = 128, INDEX_BYTES_MAX = 64 << 20, PIECE_BYTES = 64 << 10 };

struct model {
    struct model_source *source;
    struct model_config config;
    struct gguf *gguf;            /* or NULL */
    struct safetensors **st;      /* [file_count], or NULL; keep the names alive */
    char (*names)[NAME_BYTES];    /* of a GGUF's tensors */
    struct model_tensor *tensors; /* by name */
    uint32_t count, capacity;
};

static int compare_tensor(const void *a, const void *b)
{
    return strcmp(((const struct model_tensor *)a)->name, ((const struct model_tensor *)b)->name);
}

static const struct model_tensor *find(const struct model *m, const char *name)
{
    struct model_tensor key = {.name = name};
    return bsearch(&key, m->tensors, m->count, sizeof(key), compare_tensor);
}

static int sort_tensors(struct model *m, struct err *err)
{
    qsort(m->tensors, m->count, sizeof(*m->tensors), compare_tensor);
    for (uint32_t i = 1; i < m->count; i++)
        if (strcmp(m->tensors[i].name, m->tensors[i - 1].name) == 0)
            return err_set(err, ERR_CORRUPT, "the tensor \"%.200s\" is there twice", m->tensors[i].name);
    return 0;
}

static int reserve_tensors(struct model *m, uint32_t more, struct err *err)
{
    uint64_t want = (uint64_t)m->count + more;
    if (want > SAFETENSORS_TENSORS_MAX)
        return err_set(err, ERR_TOO_BIG, "more than %d tensors", SAFETENSORS_TENSORS_MAX);
    struct model_tensor *grown = realloc(m->tensors, (size_t)(want ? want : 1) * sizeof(*grown));
    if (!grown)
        return err_set(err, ERR_NOMEM, "no memory for %llu tensors", (unsigned long long)want);
    m->tensors = grown;
    m->capacity = (uint32_t)want;
    return 0;
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n > k && strcmp(name + n - k, end) == 0;
}

static int add_safetensors(struct model *m, uint32_t file, struct err *err)
{
    if (safetensors_open(m->source, file, &m->st[file], err) < 0)
        return -1;
    uint32_t count = safetensors_count(m->st[file]);
    if (reserve_tensors(m, count, err) < 0)
        return -1;
    for (uint32_t i = 0; i < count; i++) {
        const struct safetensors_tensor *t = safetensors_at(m->st[file], i);
        uint64_t cols = 1;
        for (uint32_t k = 1; k < t->rank; k++)
            cols *= t->shape[k];
        m->tensors[m->count++] = (struct model_tensor){.name = t->name,
                                                       .type = t->type,
                                                       .rank = t->rank,
                                                       .rows = t->rank ? t->shape[0] : 1,
                                                       .cols = cols,
                                                       .file = file,
                                                       .offset = t->offset,
                                                       .size = t->size};
    }
    return 0;
}

/* The index must agree with what the shards really hold. */
static int check_index(struct model *m, struct err *err)
{
    static const char name[] = "model.safetensors.index.json";
    struct buf text = {.limit = INDEX_BYTES_MAX};
    json_t *document = NULL, *map = NULL, *value;
    const char *key;
    int status = -1;
    if (model_source_find(m->source, name) < 0)
        return 0;
    if (model_source_read_file(m->source, name, INDEX_BYTES_MAX, &text, err) < 0)
        goto out;
    document = hub_json_parse((const char *)text.data, text.size, JSON_DEPTH_MAX, err);
    if (!document) {
        err_wrap(err, "%s", name);
        goto out;
    }
    map = json_object_get(document, "weight_map");
    json_object_foreach(map, key, value)
    {
        const struct model_tensor *t = find(m, key);
        const char *file = json_string_value(value);
        if (!t || !file || strcmp(model_source_file(m->source, t->file)->name, file) != 0) {
            err_set(err, ERR_CORRUPT, "%s: weight_map.%.200s: the tensor is not in \"%.100s\"", name, key,
                    file ? file : "");
            goto out;
        }
    }
    status = 0;
out:
    json_decref(document);
    buf_fini(&text);
    return status;
}

static int open_folder(struct model *m, struct err *err)
{
    uint32_t files = model_source_file_count(m->source), shards = 0;
    struct buf text = {.limit = MODEL_CONFIG_BYTES_MAX};
    int status = model_source_read_file(m->source, "config.json", MODEL_CONFIG_BYTES_MAX, &text, err);
    if (status == 0 && model_config_parse_text((const char *)text.data, text.size, &m->config, err) < 0)
        status = err_wrap(err, "config.json");
    buf_fini(&text);
    if (status < 0)
        return -1;
    m->st = calloc(files, sizeof(*m->st));
    if (!m->st)
        return err_set(err, ERR_NOMEM, "no memory for %u files", files);
    for (uint32_t i = 0; i < files; i++) {
        if (!ends_with(model_source_file(m->source, i)->name, ".safetensors"))
            continue;
        shards++;
        if (add_safetensors(m, i, err) < 0)
            return -1;
    }
    if (shards == 0)
        return err_set(err, ERR_NOT_FOUND,
                       "the model has a config.json but no weights (safetensors or GGUF)");
    if (sort_tensors(m, err) < 0)
        return -1;
    return check_index(m, err);
}

static int read_rope_divisors(struct model *m, uint32_t file, struct err *err)
{
    const struct gguf_tensor *t = gguf_tensor_find(m->gguf, "rope_freqs.weight");
    float divisors[512];
    if (!t)
        return 0;
    if (t->type != TENSOR_F32 || t->rank != 1 || t->size > sizeof(divisors))
        return err_set(err, ERR_UNSUPPORTED, "gguf: rope_freqs.weight is no vector of at most 512 F32");
    if (model_source_read(m->source, file, t->offset, (size_t)t->size, divisors, err) < 0)
        return -1;
    return gguf_infer_rope(divisors, (uint32_t)t->shape[0], &m->config, err);
}

static int open_gguf(struct model *m, uint32_t file, struct err *err)
{
    if (gguf_open(m->source, file, &m->gguf, err) < 0 || gguf_config(m->gguf, &m->config, err) < 0 ||
        read_rope_divisors(m, file, err) < 0)
        return -1;
    uint32_t count = gguf_tensor_count(m->gguf);
    m->names = calloc(count ? count : 1, sizeof(*m->names));
    if (!m->names)
        return err_set(err, ERR_NOMEM, "no memory for %u tensors", count);
    if (reserve_tensors(m, count, err) < 0)
        return -1;
    for (uint32_t i = 0; i < count; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(m->gguf, i);
        uint32_t heads;
        if (!gguf_hf_name(t, &m->config, m->names[m->count], NAME_BYTES, &heads))
            continue;
        uint64_t cols = 1;
        for (uint32_t k = 1; k < t->rank; k++)
            cols *= t->shape[k];
        m->tensors[m->count] = (struct model_tensor){.name = m->names[m->count],
                                                     .type = t->type,
                                                     .rank = t->rank,
                                                     .rows = t->shape[0],
                                                     .cols = cols,
                                                     .file = file,
                                                     .offset = t->offset,
                                                     .size = t->size,
                                                     .permuted_heads = heads};
        m->count++;
    }
    return sort_tensors(m, err);
}

struct check {
    const struct model *model;
    struct err *err;
};

static int check_tensor(const struct block_tensor *want, void *arg)
{
    struct check *check = arg;
    const struct model_tensor *t = find(check->model, want->name);
    if (!t)
        return err_set(check->err, ERR_NOT_FOUND, "the tensor \"%s\", which the config calls for, is missing",
                       want->name);
    uint64_t cols = want->rank == 2 ? want->shape[1] : 1;
    if (t->rank != want->rank || t->rows != want->shape[0] || t->cols != cols)
        return err_set(check->err, ERR_INVALID,
                       "the tensor \"%s\" is %llu x %llu (%u dimensions), but the config calls for %u x %llu",
                       want->name, (unsigned long long)t->rows, (unsigned long long)t->cols, t->rank,
                       want->shape[0], (unsigned long long)cols);
    bool blocked = tensor_type_block(t->type) > 1;
    float ignored[1];
    if (tensor_dequantise(t->type, NULL, 0, ignored, check->err) < 0 || (blocked && t->rank == 1))
        return err_set(check->err, ERR_UNSUPPORTED, "the tensor \"%s\" is stored as %s, which is not read%s",
                       want->name, tensor_type_name(t->type), blocked ? " for a vector" : "");
    return 0;
}

int model_open(struct model_source *source, struct model **model, struct err *err)
{
    *model = NULL;
    struct model *m = calloc(1, sizeof(*m));
    if (!m) {
        model_source_close(source);
        return err_set(err, ERR_NOMEM, "no memory to open a model");
    }
    m->source = source;
    int gguf = -1;
    for (uint32_t i = 0; gguf < 0 && i < model_source_file_count(source); i++)
        if (ends_with(model_source_file(source, i)->name, ".gguf"))
            gguf = (int)i;
    int status = gguf >= 0 ? open_gguf(m, (uint32_t)gguf, err) : open_folder(m, err);
    if (status == 0) {
        struct check check = {.model = m, .err = err};
        status = model_block_tensors(&m->config, 0, m->config.layers + 2, check_tensor, &check);
    }
    if (status < 0) {
        model_close(m);
        return -1;
    }
    *model = m;
    return 0;
}

int model_open_path(const char *path, struct model **model, struct err *err)
{
    struct model_source *source;
    *model = NULL;
    if (model_source_open_local(path, &source, err) < 0)
        return -1;
    if (model_open(source, model, err) < 0)
        return err_wrap(err, "model \"%s\"", path);
    return 0;
}

void model_close(struct model *model)
{
    if (!model)
        return;
    for (uint32_t i = 0; model->st && i < model_source_file_count(model->source); i++)
        safetensors_close(model->st[i]);
    free(model->st);
    gguf_close(model->gguf);
    free(model->names);
    free(model->tensors);
    model_source_close(model->source);
    free(model);
}

const struct model_config *model_get_config(const struct model *model)
{
    return &model->config;
}

struct model_source *model_get_source(const struct model *model)
{
    return model->source;
}

const struct gguf *model_get_gguf(const struct model *model)
{
    return model->gguf;
}

int model_read_file(struct model *model, const char *name, uint64_t limit, struct buf *out, struct err *err)
{
    return model_source_read_file(model->source, name, limit, out, err);
}

uint32_t model_tensor_count(const struct model *model)
{
    return model->count;
}

const struct model_tensor *model_tensor_at(const struct model *model, uint32_t index)
{
    return index < model->count ? &model->tensors[index] : NULL;
}

const struct model_tensor *model_tensor_find(const struct model *model, const char *name)
{
    if (model->config.tied && strcmp(name, "lm_head.weight") == 0)
        name = "model.embed_tokens.weight";
    return find(model, name);
}

bool model_tensor_is_16bit(const struct model_tensor *tensor)
{
    return tensor->type == TENSOR_BF16 || tensor->type == TENSOR_F16;
}

/* Bytes [offset, …) of 'rows' whole rows that lie together, as fp32, a piece at a time. */
static int read_rows(struct model *m, const struct model_tensor *t, uint64_t row, uint64_t rows, float *dst,
                     struct err *err)
{
    uint32_t block = tensor_type_block(t->type), bytes = tensor_type_block_bytes(t->type);
    uint64_t row_blocks = t->cols / block, blocks = rows * row_blocks;
    uint64_t offset = t->offset + row * row_blocks * bytes;
    if (t->type == TENSOR_F32)
        return model_source_read(m->source, t->file, offset, (size_t)(blocks * bytes), dst, err);
    uint8_t piece[PIECE_BYTES];
    for (uint64_t done = 0; done < blocks;) {
        uint64_t n = sizeof(piece) / bytes;
        if (n > blocks - done)
            n = blocks - done;
        if (model_source_read(m->source, t->file, offset + done * bytes, (size_t)(n * bytes), piece, err) <
                0 ||
            tensor_dequantise(t->type, piece, n * block, dst + done * block, err) < 0)
            return -1;
        done += n;
    }
    return 0;
}

/* Row r of a permuted tensor as Hugging Face counts lies at: within its head, halves are interleaved. */
static uint64_t stored_row(const struct model_tensor *t, uint64_t row)
{
    uint64_t head_dim = t->rows / t->permuted_heads, head = row / head_dim, within = row % head_dim;
    return head * head_dim + within % (head_dim / 2) * 2 + within / (head_dim / 2);
}

int model_tensor_read_f32(struct model *model, const struct model_tensor *tensor, uint64_t row_begin,
                          uint64_t row_end, float *dst, struct err *err)
{
    if (row_begin > row_end || row_end > tensor->rows)
        return err_set(err, ERR_INTERNAL, "rows %llu..%llu of tensor \"%s\" of %llu rows",
                       (unsigned long long)row_begin, (unsigned long long)row_end, tensor->name,
                       (unsigned long long)tensor->rows);
    int status = 0;
    if (!tensor->permuted_heads)
        status = read_rows(model, tensor, row_begin, row_end - row_begin, dst, err);
    for (uint64_t r = row_begin; tensor->permuted_heads && status == 0 && r < row_end; r++)
        status =
            read_rows(model, tensor, stored_row(tensor, r), 1, dst + (r - row_begin) * tensor->cols, err);
    return status < 0 ? err_wrap(err, "tensor \"%s\"", tensor->name) : 0;
}

struct collect {
    const struct model *model;
    struct model_range *ranges;
    uint32_t count;
};

static int count_range(const struct block_tensor *tensor, void *arg)
{
    (void)tensor;
    ((struct collect *)arg)->count++;
    return 0;
}

static int add_range(const struct block_tensor *tensor, void *arg)
{
    struct collect *c = arg;
    const struct model_tensor *t = find(c->model, tensor->name);
    if (t)
        c->ranges[c->count++] = (struct model_range){.file = t->file, .offset = t->offset, .size = t->size};
    return 0;
}

static int compare_range(const void *a, const void *b)
{
    const struct model_range *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static uint32_t merge_ranges(struct model_range *ranges, uint32_t count)
{
    uint32_t kept = 0;
    qsort(ranges, count, sizeof(*ranges), compare_range);
    for (uint32_t i = 0; i < count; i++) {
        struct model_range *last = kept ? &ranges[kept - 1] : NULL;
        if (last && last->file == ranges[i].file && ranges[i].offset <= last->offset + last->size) {
            uint64_t end = ranges[i].offset + ranges[i].size;
            if (end > last->offset + last->size)
                last->size = end - last->offset;
        } else {
            ranges[kept++] = ranges[i];
        }
    }
    return kept;
}

int model_block_ranges(const struct model *model, uint32_t block_begin, uint32_t block_end,
                       struct model_range **ranges, uint32_t *count, struct err *err)
{
    const struct model_config *c = &model->config;
    struct collect collect = {.model = model};
    *ranges = NULL;
    *count = 0;
    if (block_begin > block_end || block_end > c->layers + 2)
        return err_set(err, ERR_INTERNAL, "blocks %u..%u of a model of %u blocks", block_begin, block_end,
                       c->layers + 2);
    model_block_tensors(c, block_begin, block_end, count_range, &collect);
    collect.ranges = calloc(collect.count + 1, sizeof(*collect.ranges));
    if (!collect.ranges)
        return err_set(err, ERR_NOMEM, "no memory for %u ranges", collect.count + 1);
    collect.count = 0;
    model_block_tensors(c, block_begin, block_end, add_range, &collect);
    if (c->tied && block_end == c->layers + 2 && block_begin > 0 && block_begin < block_end)
        model_block_tensors(c, 0, 1, add_range, &collect);
    *count = merge_ranges(collect.ranges, collect.count);
    *ranges = collect.ranges;
    return 0;
}

static int load_from_source(struct model_source *source, struct model_config *config, struct err *err)
{
    struct buf text = {.limit = MODEL_CONFIG_BYTES_MAX};
    struct gguf *gguf = NULL;
    int status;
    for (uint32_t i = 0; i < model_source_file_count(source); i++) {
        if (!ends_with(model_source_file(source, i)->name, ".gguf"))
            continue;
        struct model m = {.source = source};
        status = gguf_open(source, i, &gguf, err);
        if (status == 0)
            status = gguf_config(gguf, &m.config, err);
        m.gguf = gguf;
        if (status == 0)
            status = read_rope_divisors(&m, i, err);
        if (status == 0)
            *config = m.config;
        gguf_close(gguf);
        return status;
    }
    const char *name = model_source_find(source, "config.json") >= 0 || model_source_file_count(source) != 1
                           ? "config.json"
                           : model_source_file(source, 0)->name;
    status = model_source_read_file(source, name, MODEL_CONFIG_BYTES_MAX, &text, err);
    if (status == 0 && model_config_parse_text((const char *)text.data, text.size, config, err) < 0)
        status = err_wrap(err, "%s", name);
    buf_fini(&text);
    return status;
}

int model_config_load(const char *path, struct model_config *config, struct err *err)
{
    struct model_source *source;
    memset(config, 0, sizeof(*config));
    if (model_source_open_local(path, &source, err) < 0)
        return -1;
    int status = load_from_source(source, config, err);
    model_source_close(source);
    return status;
}
