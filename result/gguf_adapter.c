/* Writes GGUF version 3: header, names and offsets, then each matrix at a multiple of 32 bytes. */
#include "result/gguf_adapter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "common/file.h"
#include "common/half.h"
#include "model/shape/blocks.h"
#include "model/shape/gguf_config.h"

enum { ALIGNMENT = 32, NAME_BYTES = ARCH_NAME_MAX, HEADER_MAX = 64 << 20, PATH_BYTES = 4096 };
/* The format's numbers of types (ggml's public description of GGUF). */
enum { VALUE_U32 = 4, VALUE_F32 = 6, VALUE_STRING = 8, GGML_F32 = 0, GGML_F16 = 1, GGML_BF16 = 30 };

/* A matrix of the file: A or B of a module, or of all experts of a layer. */
struct matrix {
    char module[NAME_BYTES]; /* Hugging Face's module name; of expert 0 if there are several */
    char name[NAME_BYTES];
    char which; /* 'A' or 'B' */
    uint64_t rows, columns;
    uint32_t copies;         /* number of experts, or 1 */
    uint32_t permuted_heads; /* number of heads of B of q and k; 0: rows are not permuted */
    double factor;           /* by which B's values are multiplied, see result/gguf_adapter.h */
    uint64_t at, bytes;
};

struct adapter {
    const struct model_config *config;
    const struct result_state *state;
    struct matrix *list;
    uint32_t count;
    size_t capacity;
    double alpha; /* adapter.lora.alpha of the file */
    enum spec_result_dtype dtype;
    struct err *err;
};

/* Sets a matrix's name and its order of rows, as in the base's GGUF. */
static bool matrix_name(struct adapter *a, const struct block_tensor *tensor, struct matrix *m)
{
    enum model_arch arch = a->config->arch;
    const char *suffix = m->which == 'A' ? ".weight.lora_a" : ".weight.lora_b";
    if (arch_of(arch)->gguf_permutes && m->which == 'B')
        m->permuted_heads = tensor->what == ARCH_Q   ? a->config->heads
                            : tensor->what == ARCH_K ? a->config->kv_heads
                                                     : 0;
    return arch_gguf_name(arch, tensor->what, tensor->block - 1, suffix, m->name);
}

static struct matrix *add_matrix(struct adapter *a)
{
    if (ARRAY_RESERVE(a->list, a->capacity, (size_t)a->count + 1, a->err) < 0)
        return NULL;
    struct matrix *m = &a->list[a->count++];
    *m = (struct matrix){.copies = 1, .factor = 1};
    return m;
}

/* Adds A and B of one of the model's tensors if it has an adapter. Experts after the first belong to the
 * first one's matrix. */
static int gguf_adapter_visit(const struct block_tensor *tensor, void *arg)
{
    struct adapter *a = arg;
    const struct result_state *s = a->state;
    uint64_t rows, columns;
    int stem = (int)strlen(tensor->name) - (int)strlen(".weight");
    const char *expert = strstr(tensor->name, ".experts.");
    if (s->find(s->arg, tensor->name, &rows, &columns))
        return err_set(a->err, ERR_INVALID,
                       "\"%s\" was trained whole, and an adapter for llama.cpp cannot hold it", tensor->name);
    if (tensor->rank != 2 || stem <= 0 || (expert && strncmp(expert, ".experts.0.", 11) != 0))
        return 0;
    for (int which = 'A'; which <= 'B'; which++) {
        char name[NAME_BYTES + 16];
        snprintf(name, sizeof(name), "%.*s.lora_%c.weight", stem, tensor->name, which);
        if (!s->find(s->arg, name, &rows, &columns))
            return 0;
        struct matrix *m = add_matrix(a);
        if (!m)
            return -1;
        snprintf(m->module, sizeof(m->module), "%.*s", stem, tensor->name);
        m->which = (char)which;
        m->copies = expert ? a->config->experts : 1;
        m->rows = rows;
        m->columns = columns;
        if (which == 'B')
            m->factor = s->scale(s->arg, m->module) * (double)columns;
        if (!matrix_name(a, tensor, m))
            return err_set(a->err, ERR_UNSUPPORTED, "\"%s\" has no name in GGUF", m->module);
    }
    return 0;
}

/* Lists the matrices. alpha is the first B's factor times its rank; the other factors are relative to it. */
static int list_matrices(struct adapter *a)
{
    uint64_t at = 0, value = a->dtype == SPEC_DTYPE_BASE || a->dtype == SPEC_DTYPE_FP32 ? 4 : 2;
    if (model_block_tensors(a->config, 0, a->config->layers + 2, gguf_adapter_visit, a) != 0)
        return -1;
    for (uint32_t i = 0; i < a->count; i++) {
        struct matrix *m = &a->list[i];
        if (m->which == 'B') {
            a->alpha = a->alpha == 0 ? m->factor : a->alpha;
            m->factor /= (double)(float)a->alpha;
        }
        m->at = at;
        m->bytes = m->rows * m->columns * m->copies * value;
        at += (m->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    return a->alpha > 0 ? 0 : err_set(a->err, ERR_INVALID, "there is no adapter to write");
}

/* --- header --- */

static int gguf_adapter_put_number(struct buf *out, uint64_t value, uint32_t bytes, struct err *err)
{
    uint8_t raw[8];
    for (uint32_t i = 0; i < bytes; i++)
        raw[i] = (uint8_t)(value >> (8 * i));
    return buf_append(out, raw, bytes, err);
}

static int gguf_adapter_put_text(struct buf *out, const char *text, struct err *err)
{
    if (gguf_adapter_put_number(out, strlen(text), 8, err) < 0)
        return -1;
    return buf_append(out, text, strlen(text), err);
}

static int put_key_text(struct buf *out, const char *key, const char *value, struct err *err)
{
    if (gguf_adapter_put_text(out, key, err) < 0 || gguf_adapter_put_number(out, VALUE_STRING, 4, err) < 0)
        return -1;
    return gguf_adapter_put_text(out, value, err);
}

static int put_header(const struct adapter *a, struct buf *out, struct err *err)
{
    static const uint8_t zeros[ALIGNMENT];
    uint32_t type = a->dtype == SPEC_DTYPE_FP16   ? GGML_F16
                    : a->dtype == SPEC_DTYPE_BF16 ? GGML_BF16
                                                  : GGML_F32;
    float alpha = (float)a->alpha;
    uint32_t alpha_bits;
    memcpy(&alpha_bits, &alpha, sizeof(alpha_bits));
    if (buf_append(out, "GGUF", 4, err) < 0 || gguf_adapter_put_number(out, 3, 4, err) < 0 ||
        gguf_adapter_put_number(out, a->count, 8, err) < 0 || gguf_adapter_put_number(out, 5, 8, err) < 0 ||
        put_key_text(out, "general.architecture", arch_of(a->config->arch)->gguf, err) < 0 ||
        put_key_text(out, "general.type", "adapter", err) < 0 ||
        put_key_text(out, "adapter.type", "lora", err) < 0 ||
        gguf_adapter_put_text(out, "adapter.lora.alpha", err) < 0 ||
        gguf_adapter_put_number(out, VALUE_F32, 4, err) < 0 ||
        gguf_adapter_put_number(out, alpha_bits, 4, err) < 0 ||
        gguf_adapter_put_text(out, "general.alignment", err) < 0 ||
        gguf_adapter_put_number(out, VALUE_U32, 4, err) < 0 ||
        gguf_adapter_put_number(out, ALIGNMENT, 4, err) < 0)
        return -1;
    for (uint32_t i = 0; i < a->count; i++) {
        const struct matrix *m = &a->list[i];
        if (gguf_adapter_put_text(out, m->name, err) < 0 ||
            gguf_adapter_put_number(out, m->copies > 1 ? 3 : 2, 4, err) < 0 ||
            gguf_adapter_put_number(out, m->columns, 8, err) < 0 ||
            gguf_adapter_put_number(out, m->rows, 8, err) < 0 ||
            (m->copies > 1 && gguf_adapter_put_number(out, m->copies, 8, err) < 0) ||
            gguf_adapter_put_number(out, type, 4, err) < 0 || gguf_adapter_put_number(out, m->at, 8, err) < 0)
            return -1;
    }
    return buf_append(out, zeros, (ALIGNMENT - out->size % ALIGNMENT) % ALIGNMENT, err);
}

/* --- values --- */

/* Returns the Hugging Face row that stands at `row` of a permuted matrix, where the two halves of each head's
 * rows alternate. */
static uint64_t hub_row(const struct matrix *m, uint64_t row)
{
    uint64_t head_dim = m->rows / m->permuted_heads, within = row % head_dim;
    return row - within + within % 2 * (head_dim / 2) + within / 2;
}

/* Reads the values of one copy (an expert's matrix) in the order of rows of the file. */
static int read_copy(const struct adapter *a, const struct matrix *m, uint32_t copy, float *values)
{
    const struct result_state *s = a->state;
    const char *expert = m->copies > 1 ? strstr(m->module, ".experts.0.") : NULL;
    char name[NAME_BYTES + 16];
    int status = 0;
    if (expert)
        snprintf(name, sizeof(name), "%.*s.experts.%u.%s.lora_%c.weight", (int)(expert - m->module),
                 m->module, copy, expert + strlen(".experts.0."), m->which);
    else
        snprintf(name, sizeof(name), "%s.lora_%c.weight", m->module, m->which);
    uint64_t rows, columns;
    if (!s->find(s->arg, name, &rows, &columns) || rows != m->rows || columns != m->columns)
        return err_set(a->err, ERR_INVALID, "\"%s\" is not there as %llu x %llu", name,
                       (unsigned long long)m->rows, (unsigned long long)m->columns);
    if (!m->permuted_heads)
        status = s->read(s->arg, name, 0, rows, values, a->err);
    for (uint64_t r = 0; m->permuted_heads && status == 0 && r < rows; r++)
        status = s->read(s->arg, name, hub_row(m, r), hub_row(m, r) + 1, values + r * columns, a->err);
    for (uint64_t i = 0; status == 0 && i < rows * columns; i++) {
        if (!isfinite(values[i]))
            status = err_set(a->err, ERR_NOT_FINITE, "\"%s\" holds a value that is not finite", name);
        if (m->which == 'B' && fabs(m->factor - 1) > 1e-7)
            values[i] = (float)(m->factor * (double)values[i]);
    }
    return status;
}

static int write_copies(const struct adapter *a, const struct matrix *m, int fd, uint64_t at,
                        const char *path)
{
    uint64_t count = m->rows * m->columns, bytes = m->bytes / m->copies;
    float *values = malloc(count * sizeof(*values));
    /* Values are narrowed in place: a written value never overwrites one that is still to be read. */
    uint16_t *half = (uint16_t *)(void *)values;
    int status = values ? 0 : err_set(a->err, ERR_NOMEM, "no memory for \"%s\"", m->name);
    for (uint32_t c = 0; status == 0 && c < m->copies; c++) {
        status = read_copy(a, m, c, values);
        for (uint64_t i = 0; status == 0 && bytes < 4 * count && i < count; i++) {
            float value;
            memcpy(&value, &values[i], sizeof(value));
            uint16_t narrow = a->dtype == SPEC_DTYPE_FP16 ? f16_from_f32(value) : bf16_from_f32(value);
            memcpy(&half[i], &narrow, sizeof(narrow));
        }
        if (status == 0)
            status = file_pwrite_all(fd, values, bytes, at + c * bytes, path, a->err);
    }
    free(values);
    return status;
}

static int write_file(void *arg, int fd, const char *path, struct err *err)
{
    struct adapter *a = arg;
    static const uint8_t zeros[ALIGNMENT];
    struct buf header = {.limit = HEADER_MAX};
    int status = put_header(a, &header, err);
    if (status == 0)
        status = file_pwrite_all(fd, header.data, header.size, 0, path, err);
    for (uint32_t i = 0; status == 0 && i < a->count; i++) {
        const struct matrix *m = &a->list[i];
        status = write_copies(a, m, fd, header.size + m->at, path);
        if (status == 0)
            status = file_pwrite_all(fd, zeros, (ALIGNMENT - m->bytes % ALIGNMENT) % ALIGNMENT,
                                     header.size + m->at + m->bytes, path, err);
    }
    buf_fini(&header);
    return status;
}

int result_gguf_adapter(const char *path, const struct model *base, const struct result_state *state,
                        enum spec_result_dtype dtype, struct err *err)
{
    struct adapter a = {.config = model_get_config(base), .state = state, .dtype = dtype, .err = err};
    int status = list_matrices(&a);
    if (status == 0)
        status = file_write_by(path, 0644, write_file, &a, err);
    free(a.list);
    return status < 0 ? err_wrap(err, "adapter \"%s\"", path) : 0;
}
