/* Writes a model's folder one piece of a tensor at a time: reads, adds what was trained, converts and writes.
 */
#include "result/model_folder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "common/document.h"
#include "common/file.h"
#include "common/half.h"
#include "model/shape/blocks.h"
#include "model/files/hub_json.h"

enum { PIECE_VALUES = 1 << 18, PATH_BYTES = 4096, NAME_BYTES = 128, COPY_BYTES_MAX = 256 << 20 };

static const char config_name[] = "config.json";
static const char index_name[] = "model.safetensors.index.json";

/* A tensor to write. */
struct part {
    char name[NAME_BYTES];
    const char *written; /* its name in the file: `name`, or that of the base's file */
    bool copied;         /* not the language model's: its bytes are those of the base's file */
    uint64_t rows, columns;
    uint32_t rank; /* number of dimensions */
    enum tensor_type type;
    uint64_t bytes;
    /* A tensor of all experts, as gpt-oss's files have it (model/shape/tensors_fused.h): how many matrices of
     * rows x columns, or biases, of each expert it holds (0: it is no such tensor), the first of them, and
     * their layer */
    uint32_t fused, experts, layer;
    enum arch_tensor what;
    /* The file has one tensor of all experts, with the matrices one behind the other: this part is one of
     * them, and `behind` of that of another expert or of gate. */
    bool joined, behind;
    const struct model_tensor *base; /* NULL for a head that was trained apart from its embedding */
    bool trained;                    /* the state has the whole tensor */
    uint32_t lora;                   /* rank of its adapter; 0: none */
    bool turned; /* the adapter is the embedding's: its B has the table's columns, and its A the rows */
    /* The adapter is that of an expert's gate and up together; rows from b_begin on of its B are this part's.
     */
    bool joint;
    uint64_t b_begin;
    uint32_t shard;
};

struct writer {
    struct model *base;
    const struct result_state *state;
    const struct result_folder_options *options;
    struct part *parts;
    uint32_t count, shards;
    size_t capacity;
    bool whole;  /* the base also reads images: the folder is that model's, with all of its tensors */
    bool untied; /* the head is written although the base model ties it to the embedding */
    struct err *err;
    /* The piece that is being written: its last row is row - 1; bytes[at, size) are not written yet. */
    float *piece, *sum, *a, *b;
    float *matrix; /* one matrix of a tensor of all experts */
    uint8_t *bytes;
    uint64_t row;
    size_t at, size;
};

struct stream {
    struct writer *writer;
    const struct part *part;
    char name[ARCH_NAME_MAX]; /* of a tensor of all experts */
};

/* --- what is written --- */

static enum tensor_type written_type(const struct writer *w, const struct model_tensor *base)
{
    switch (w->options->dtype) {
    case SPEC_DTYPE_FP32:
        return TENSOR_F32;
    case SPEC_DTYPE_BF16:
        return TENSOR_BF16;
    case SPEC_DTYPE_FP16:
        return TENSOR_F16;
    default:
        /* bf16 has all values of MXFP4 */
        return model_tensor_is_16bit(base) ? base->type
                                           : (base->type == TENSOR_MXFP4 ? TENSOR_BF16 : TENSOR_F32);
    }
}

static void adapter_name(const struct part *part, char which, char name[NAME_BYTES + 32])
{
    int stem = (int)strlen(part->name) - (int)strlen("weight");
    while (part->joint && stem > 1 && part->name[stem - 2] != '.')
        stem--;
    if (part->joint)
        snprintf(name, NAME_BYTES + 32, "%.*s.gate_up_proj.lora_%c.weight", stem - 2, part->name, which);
    else
        snprintf(name, NAME_BYTES + 32, part->turned ? "%.*slora_embedding_%c" : "%.*slora_%c.weight", stem,
                 part->name, which);
}

/* Finds the adapter of a matrix: both tensors must exist with one rank and matching shapes. Its rank is 0
 * when it has none. */
static int find_adapter(struct writer *w, struct part *part)
{
    const struct result_state *s = w->state;
    char name[NAME_BYTES + 32];
    uint64_t a_rows, a_columns, b_rows, b_columns;
    if (part->rank != 2 || strlen(part->name) <= strlen("weight"))
        return 0;
    part->turned = part->what == ARCH_EMBEDDING;
    uint64_t inputs = part->turned ? part->rows : part->columns,
             outputs = part->turned ? part->columns : part->rows;
    adapter_name(part, 'A', name);
    if (!s->find(s->arg, name, &a_rows, &a_columns)) {
        part->joint = part->what == ARCH_EXPERT_GATE || part->what == ARCH_EXPERT_UP;
        part->b_begin = part->what == ARCH_EXPERT_UP ? outputs : 0;
        outputs *= 2;
        adapter_name(part, 'A', name);
        if (!part->joint || !s->find(s->arg, name, &a_rows, &a_columns))
            return 0;
    }
    adapter_name(part, 'B', name);
    if (!s->find(s->arg, name, &b_rows, &b_columns))
        return err_set(w->err, ERR_INVALID, "the adapter has no tensor \"%s\"", name);
    if (a_rows == 0 || a_rows != b_columns || a_columns != inputs || b_rows != outputs)
        return err_set(w->err, ERR_INVALID,
                       "the adapter on \"%s\" is %llu x %llu of rank %llu, and the matrix %llu x %llu",
                       part->name, (unsigned long long)b_rows, (unsigned long long)a_columns,
                       (unsigned long long)a_rows, (unsigned long long)part->rows,
                       (unsigned long long)part->columns);
    part->lora = (uint32_t)a_rows;
    return 0;
}

/* Makes the part of the first expert's first matrix that of all experts. */
static void part_fuse(const struct writer *w, const struct block_tensor *tensor, struct part *part)
{
    part->fused = tensor->what == ARCH_EXPERT_GATE ? 2 : 1;
    part->rank++;
    part->bytes *= part->fused * part->experts;
    arch_tensor_name(model_get_config(w->base)->arch,
                     part->fused == 2 ? ARCH_EXPERTS_GATE_UP : ARCH_EXPERTS_DOWN, part->layer, 0,
                     tensor->bias ? "_bias" : "", part->name);
}

/* Returns true where the file to write has one tensor of all experts, their matrices one behind the other. */
static bool is_joined(const struct writer *w, const struct block_tensor *tensor,
                      const struct model_tensor *base)
{
    enum model_arch arch = model_get_config(w->base)->arch;
    struct arch_match match;
    return tensor->what >= ARCH_EXPERT_GATE && tensor->what <= ARCH_EXPERT_DOWN &&
           (w->whole || arch_of(arch)->fused == ARCH_FUSED_ROWS) &&
           arch_match_hf(arch, base->stored, &match) && match.stacked;
}

static int model_folder_add_part(const struct block_tensor *tensor, void *arg)
{
    struct writer *w = arg;
    const struct result_state *s = w->state;
    const struct model_config *config = model_get_config(w->base);
    bool fuses = arch_of(config->arch)->fused == ARCH_FUSED_TURNED && tensor->what >= ARCH_EXPERT_GATE &&
                 tensor->what <= ARCH_EXPERT_DOWN;
    uint64_t rows, columns;
    if (fuses && (tensor->expert > 0 || tensor->what == ARCH_EXPERT_UP))
        return 0;
    if (ARRAY_RESERVE(w->parts, w->capacity, (size_t)w->count + 1, w->err) < 0)
        return -1;
    struct part *part = &w->parts[w->count++];
    *part = (struct part){.rank = tensor->rank,
                          .rows = tensor->shape[0],
                          .columns = tensor->shape[1],
                          .experts = config->experts,
                          .layer = tensor->block - 1,
                          .what = tensor->what};
    snprintf(part->name, sizeof(part->name), "%s", tensor->name);
    part->base = model_tensor_find(w->base, tensor->name);
    if (!part->base)
        return err_set(w->err, ERR_NOT_FOUND, "the base model has no tensor \"%s\"", tensor->name);
    part->type = written_type(w, part->base);
    part->bytes = part->rows * part->columns * tensor_type_block_bytes(part->type);
    part->written = w->whole ? part->base->stored : NULL;
    part->joined = is_joined(w, tensor, part->base);
    part->behind = part->joined && (tensor->expert > 0 || tensor->what == ARCH_EXPERT_UP);
    part->trained = s->find(s->arg, part->name, &rows, &columns);
    if (part->trained && (rows != part->rows || columns != part->columns))
        return err_set(w->err, ERR_INVALID, "\"%s\" was trained as %llu x %llu and is %llu x %llu",
                       part->name, (unsigned long long)rows, (unsigned long long)columns,
                       (unsigned long long)part->rows, (unsigned long long)part->columns);
    if (find_adapter(w, part) < 0)
        return -1;
    if (fuses)
        part_fuse(w, tensor, part);
    return 0;
}

/* Adds the tensors that the language model has no use for, which the folder of the whole model has, too. */
static int add_copied(struct writer *w)
{
    for (uint32_t i = 0; i < model_tensor_count(w->base); i++) {
        const struct model_tensor *tensor = model_tensor_at(w->base, i);
        const char *dot = strrchr(tensor->name, '.');
        if (!tensor->unused)
            continue;
        if (dot && strncmp(dot, ".bitsandbytes__", strlen(".bitsandbytes__")) == 0)
            return err_set(
                w->err, ERR_UNSUPPORTED,
                "\"%.100s\": the base's part for images is quantised, and a merged model would keep it "
                "so; ask for an adapter, or give the base in 16 bits",
                tensor->name);
        if (ARRAY_RESERVE(w->parts, w->capacity, (size_t)w->count + 1, w->err) < 0)
            return -1;
        w->parts[w->count++] = (struct part){.written = tensor->stored,
                                             .copied = true,
                                             .base = tensor,
                                             .type = tensor->type,
                                             .bytes = tensor->size};
    }
    return 0;
}

/* Returns the tensor's name in the file that is written, for which name[] may be used. */
static const char *written_name(const struct writer *w, const struct part *part, char name[ARCH_NAME_MAX])
{
    if (part->written || !part->joined)
        return part->written ? part->written : part->name;
    arch_tensor_name(model_get_config(w->base)->arch,
                     part->what == ARCH_EXPERT_DOWN ? ARCH_EXPERTS_DOWN : ARCH_EXPERTS_GATE_UP, part->layer,
                     0, "", name);
    return name;
}

/* Returns the part whose bytes follow those of `part` in a tensor of all experts. The parts of an expert are
 * gate, up and down. */
static const struct part *part_behind(const struct part *part)
{
    return part + (part->what == ARCH_EXPERT_GATE ? 1 : part->what == ARCH_EXPERT_UP ? 2 : 3);
}

/* Returns how many parts a tensor of the file has that begins with this one. */
static uint32_t parts_joined(const struct part *part)
{
    return !part->joined ? 1 : part->experts * (part->what == ARCH_EXPERT_GATE ? 2 : 1);
}

static int list_parts(struct writer *w)
{
    const struct model_config *config = model_get_config(w->base);
    uint64_t limit = w->options->shard_bytes ? w->options->shard_bytes : RESULT_SHARD_BYTES, filled = 0;
    uint64_t rows, columns;
    w->whole = config->nested && model_source_find(model_get_source(w->base), config_name) >= 0;
    if (model_block_tensors(config, 0, config->layers + 2, model_folder_add_part, w) != 0)
        return -1;
    if (config->tied &&
        (w->state->find(w->state->arg, "lm_head.lora_A.weight", &rows, &columns) ||
         w->state->find(w->state->arg, "model.embed_tokens.lora_embedding_A", &rows, &columns)))
        return err_set(w->err, ERR_UNSUPPORTED,
                       "an adapter on embedding or head, which are one table, cannot be merged");
    w->untied = config->tied && w->state->find(w->state->arg, "lm_head.weight", &rows, &columns);
    if (w->untied) {
        struct block_tensor head = {
            .name = "lm_head.weight", .rank = 2, .shape = {config->vocab, config->hidden}};
        if (model_folder_add_part(&head, w) < 0)
            return -1;
        w->parts[w->count - 1].written = NULL;
    }
    if (w->whole && add_copied(w) < 0)
        return -1;
    for (uint32_t i = 0; i < w->count; i++) {
        struct part *part = &w->parts[i];
        uint32_t joined = parts_joined(part);
        if (part->behind)
            continue;
        if (filled > 0 && filled + joined * part->bytes > limit) {
            w->shards++;
            filled = 0;
        }
        filled += joined * part->bytes;
        part->shard = w->shards;
        for (const struct part *next = part; --joined > 0;) {
            next = part_behind(next);
            w->parts[next - w->parts].shard = w->shards;
        }
    }
    w->shards++;
    return 0;
}

/* --- values --- */

static uint64_t piece_rows(const struct part *part)
{
    return part->columns < PIECE_VALUES ? PIECE_VALUES / part->columns : 1;
}

static int model_folder_make_buffers(struct writer *w)
{
    uint64_t values = PIECE_VALUES, columns = 1, a = 1, b = 1, matrix = 1;
    for (uint32_t i = 0; i < w->count; i++) {
        const struct part *p = &w->parts[i];
        if (p->copied)
            continue;
        uint64_t least = p->fused ? p->fused * p->rows * p->columns : p->columns;
        values = least > values ? least : values;
        matrix = p->fused && p->rows * p->columns > matrix ? p->rows * p->columns : matrix;
        columns = p->columns > columns ? p->columns : columns;
        a = p->lora * p->columns > a ? p->lora * p->columns : a;
        uint64_t rows = p->turned ? p->rows + p->columns : p->fused ? p->rows : piece_rows(p);
        b = p->lora * rows > b ? p->lora * rows : b;
    }
    w->piece = malloc(values * sizeof(float));
    w->bytes = malloc(values * 4); /* no stored form of a value is wider */
    w->matrix = malloc(matrix * sizeof(float));
    w->sum = malloc(columns * sizeof(float));
    w->a = malloc(a * sizeof(float));
    w->b = malloc(b * sizeof(float));
    return w->piece && w->bytes && w->matrix && w->sum && w->a && w->b
               ? 0
               : err_set(w->err, ERR_NOMEM, "no memory for pieces of %llu values",
                         (unsigned long long)values);
}

/* Adds scale * b [rows, rank] a [rank, columns] to sums [rows, columns]; of the embedding b holds A, whose
 * columns are the table's rows. */
static void add_product(struct writer *w, const struct part *part, uint64_t rows, double scale, float *sums)
{
    for (uint64_t i = 0; i < rows; i++) {
        float *values = sums + i * part->columns;
        memset(w->sum, 0, part->columns * sizeof(float));
        for (uint32_t k = 0; k < part->lora; k++) {
            float factor = w->b[part->turned ? k * part->rows + w->row + i : i * part->lora + k];
            const float *a = w->a + k * part->columns;
            for (uint64_t j = 0; j < part->columns; j++)
                w->sum[j] += factor * a[j];
        }
        for (uint64_t j = 0; j < part->columns; j++)
            values[j] += (float)scale * w->sum[j];
    }
}

/* Reads the embedding's adapter: B turned to a [rank, columns], and A to b. */
static int read_turned(struct writer *w, const struct part *part)
{
    const struct result_state *s = w->state;
    char name[NAME_BYTES + 32];
    adapter_name(part, 'B', name);
    if (s->read(s->arg, name, 0, part->columns, w->b, w->err) < 0)
        return -1;
    for (uint64_t i = 0; i < part->columns * part->lora; i++)
        w->a[i % part->lora * part->columns + i / part->lora] = w->b[i];
    adapter_name(part, 'A', name);
    return s->read(s->arg, name, 0, part->lora, w->b, w->err);
}

/* Adds the product to rows [row, row + rows) of the part's matrix, which are in sums. */
static int add_adapter(struct writer *w, const struct part *part, uint64_t row, uint64_t rows, float *sums)
{
    const struct result_state *s = w->state;
    char name[NAME_BYTES + 32];
    adapter_name(part, 'A', name);
    if (row == 0 &&
        (part->turned ? read_turned(w, part) : s->read(s->arg, name, 0, part->lora, w->a, w->err)) < 0)
        return -1;
    adapter_name(part, 'B', name);
    row += part->b_begin;
    if (!part->turned && s->read(s->arg, name, row, row + rows, w->b, w->err) < 0)
        return -1;
    snprintf(name, sizeof(name), "%.*s", (int)(strlen(part->name) - strlen(".weight")), part->name);
    add_product(w, part, rows, s->scale(s->arg, name), sums);
    return 0;
}

static int convert(struct writer *w, const struct part *part, uint64_t count)
{
    uint16_t *half = (uint16_t *)(void *)w->bytes;
    for (uint64_t i = 0; i < count; i++)
        if (!isfinite(w->piece[i]))
            return err_set(w->err, ERR_NOT_FINITE, "\"%s\" holds a value that is not finite", part->name);
    switch (part->type) {
    case TENSOR_BF16:
        for (uint64_t i = 0; i < count; i++)
            half[i] = bf16_from_f32(w->piece[i]);
        break;
    case TENSOR_F16:
        for (uint64_t i = 0; i < count; i++) {
            half[i] = f16_from_f32(w->piece[i]);
            if ((half[i] & 0x7fff) == 0x7c00)
                return err_set(w->err, ERR_INVALID, "\"%s\" holds %g, which fp16 cannot; give result.dtype",
                               part->name, (double)w->piece[i]);
        }
        break;
    default:
        memcpy(w->bytes, w->piece, count * sizeof(float));
    }
    w->at = 0;
    w->size = count * tensor_type_block_bytes(part->type);
    return 0;
}

/* Puts the next expert's matrices into the piece, with their rows in turn, as columns. */
static int next_expert(struct writer *w, const struct part *part)
{
    const struct result_state *s = w->state;
    const char *suffix = part->rank == 2 ? ".bias" : ".weight";
    for (uint32_t m = 0; m < part->fused; m++) {
        struct part one = {.rank = part->rank - 1,
                           .rows = part->rows,
                           .columns = part->columns,
                           .what = (enum arch_tensor)(part->what + m)};
        arch_tensor_name(model_get_config(w->base)->arch, one.what, part->layer, (uint32_t)w->row, suffix,
                         one.name);
        const struct model_tensor *base = model_tensor_find(w->base, one.name);
        int status = part->trained ? s->read(s->arg, one.name, 0, part->rows, w->matrix, w->err)
                     : base        ? model_tensor_read_f32(w->base, base, 0, part->rows, w->matrix, w->err)
                            : err_set(w->err, ERR_NOT_FOUND, "the base model has no tensor \"%s\"", one.name);
        if (status == 0 && part->lora)
            status = find_adapter(w, &one);
        if (status == 0 && one.lora)
            status = add_adapter(w, &one, 0, part->rows, w->matrix);
        if (status < 0)
            return -1;
        for (uint64_t r = 0; r < part->rows; r++)
            for (uint64_t c = 0; c < part->columns; c++)
                w->piece[(c * part->rows + r) * part->fused + m] = w->matrix[r * part->columns + c];
    }
    w->row++;
    return convert(w, part, part->fused * part->rows * part->columns);
}

/* Reads the next rows, adds the adapter and converts them to the dtype in which they are written. */
static int next_piece(struct writer *w, const struct part *part)
{
    const struct result_state *s = w->state;
    uint64_t left = part->rows - w->row, rows = piece_rows(part) < left ? piece_rows(part) : left;
    int status = part->trained
                     ? s->read(s->arg, part->name, w->row, w->row + rows, w->piece, w->err)
                     : model_tensor_read_f32(w->base, part->base, w->row, w->row + rows, w->piece, w->err);
    if (status == 0 && part->lora)
        status = add_adapter(w, part, w->row, rows, w->piece);
    if (status < 0 || convert(w, part, rows * part->columns) < 0)
        return -1;
    w->row += rows;
    return 0;
}

/* The function safetensors_item.fill, which is called in order of offsets. */
static int model_folder_fill(void *arg, uint64_t offset, size_t size, void *dst, struct err *err)
{
    struct stream *stream = arg;
    struct writer *w = stream->writer;
    w->err = err;
    if (stream->part->copied)
        return model_tensor_read_bytes(w->base, stream->part->base, offset, size, dst, err);
    if (offset == 0)
        w->row = w->at = w->size = 0;
    for (size_t done = 0; done < size;) {
        if (w->at == w->size && stream->part->joined && w->row == stream->part->rows) {
            stream->part = part_behind(stream->part);
            w->row = 0;
        }
        const struct part *part = stream->part;
        if (w->at == w->size && (part->fused ? next_expert(w, part) : next_piece(w, part)) < 0)
            return -1;
        size_t n = w->size - w->at < size - done ? w->size - w->at : size - done;
        memcpy((uint8_t *)dst + done, w->bytes + w->at, n);
        w->at += n;
        done += n;
    }
    return 0;
}

/* --- files --- */

static void shard_name(const struct writer *w, uint32_t shard, char name[64])
{
    if (w->shards == 1)
        snprintf(name, 64, "model.safetensors");
    else
        snprintf(name, 64, "model-%05u-of-%05u.safetensors", shard + 1, w->shards);
}

static int write_shard(struct writer *w, const char *dir, uint32_t shard, struct safetensors_item *items,
                       struct stream *streams)
{
    static const struct safetensors_meta meta = {"format", "pt"};
    char path[PATH_BYTES], name[64];
    struct err *err = w->err;
    uint32_t count = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        const struct part *part = &w->parts[i];
        if (part->shard != shard || part->behind)
            continue;
        streams[count] = (struct stream){.writer = w, .part = part};
        items[count] = (struct safetensors_item){
            .name = written_name(w, part, streams[count].name),
            .type = part->type,
            .rank = part->rank,
            .shape = {part->rows, part->rank == 3 ? 1 : part->columns, part->columns},
            .fill = model_folder_fill,
            .arg = &streams[count]};
        if (part->fused) {
            const uint64_t across = part->fused * part->rows;
            const uint64_t shape[] = {part->experts, part->rank == 2 ? across : part->columns, across};
            memcpy(items[count].shape, shape, sizeof(shape));
        }
        if (part->joined) {
            const uint64_t shape[] = {part->experts, parts_joined(part) / part->experts * part->rows,
                                      part->columns};
            items[count].rank = 3;
            memcpy(items[count].shape, shape, sizeof(shape));
        }
        const struct safetensors_tensor *copied =
            part->copied ? model_tensor_stored(w->base, part->base) : NULL;
        if (copied) {
            items[count].rank = copied->rank;
            memcpy(items[count].shape, copied->shape, sizeof(copied->shape));
        }
        count++;
    }
    shard_name(w, shard, name);
    if (file_path(path, sizeof(path), err, "%s/%s", dir, name) < 0)
        return -1;
    return safetensors_write(path, items, count, &meta, 1, err);
}

static int write_json(const char *dir, const char *name, const json_t *document, struct err *err)
{
    char path[PATH_BYTES];
    return file_path(path, sizeof(path), err, "%s/%s", dir, name) < 0
               ? -1
               : document_save(path, document, true, 0644, err);
}

static int write_index(const struct writer *w, const char *dir)
{
    json_t *map = json_object();
    uint64_t bytes = 0, values = 0;
    char name[64], tensor[ARCH_NAME_MAX];
    for (uint32_t i = 0; map && i < w->count; i++) {
        shard_name(w, w->parts[i].shard, name);
        json_object_set_new(map, written_name(w, &w->parts[i], tensor), json_string(name));
        bytes += w->parts[i].bytes;
        values += w->parts[i].bytes / tensor_type_block_bytes(w->parts[i].type);
    }
    json_t *index = json_pack("{s:{s:I, s:I}, s:o}", "metadata", "total_parameters", (json_int_t)values,
                              "total_size", (json_int_t)bytes, "weight_map", map);
    int status = write_json(dir, index_name, index, w->err);
    json_decref(index);
    return status;
}

/* Returns the base's own config.json if it is a Hugging Face folder, so that keys which we do not read
 * stay. */
static json_t *model_folder_config_document(struct writer *w)
{
    struct buf text = {.limit = MODEL_CONFIG_BYTES_MAX};
    json_t *document = NULL;
    if (model_source_find(model_get_source(w->base), config_name) >= 0 &&
        model_read_file(w->base, config_name, MODEL_CONFIG_BYTES_MAX, &text, w->err) == 0)
        document = hub_json_parse((const char *)text.data, text.size, JSON_DEPTH_MAX, w->err);
    buf_fini(&text);
    return document ? document : model_config_to_json(model_get_config(w->base), w->err);
}

/* Adds the keys of transformers 4 to those of 5, so that both read the folder; 5 reads the same from either
 * (rope_scaling and rope_theta take precedence over rope_parameters). */
static int name_for_old_readers(json_t *document, const char *dtype)
{
    const json_t *rope = json_object_get(document, "rope_parameters");
    json_t *theta = json_object_get(rope, "rope_theta");
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    int failed = json_object_set_new(document, "dtype", json_string(dtype)) < 0 ||
                 json_object_set_new(document, "torch_dtype", json_string(dtype)) < 0;
    if (theta && !json_object_get(document, "rope_theta"))
        failed = failed || json_object_set(document, "rope_theta", theta) < 0;
    if (theta && type && strcmp(type, "default") != 0 &&
        json_object_size(json_object_get(document, "rope_scaling")) == 0) {
        json_t *scaling = json_copy((json_t *)rope);
        json_object_del(scaling, "rope_theta");
        failed = failed || json_object_set_new(document, "rope_scaling", scaling) < 0;
    }
    return failed ? -1 : 0;
}

/* Says that the head is no longer the embedding; some classes look into text_config, too. */
static int say_untied(json_t *document)
{
    json_t *inner = json_object_get(document, "text_config");
    int failed = json_object_set_new(document, "tie_word_embeddings", json_false());
    if (json_object_get(inner, "tie_word_embeddings"))
        failed |= json_object_set_new(inner, "tie_word_embeddings", json_false());
    return failed;
}

static int write_config(struct writer *w, const char *dir)
{
    json_t *document = model_folder_config_document(w);
    /* the dtype of most values: that of the largest tensor */
    const struct part *largest = &w->parts[0];
    if (!document)
        return -1;
    for (uint32_t i = 1; i < w->count; i++)
        if (w->parts[i].rows * w->parts[i].columns > largest->rows * largest->columns)
            largest = &w->parts[i];
    const char *dtype = largest->type == TENSOR_BF16  ? "bfloat16"
                        : largest->type == TENSOR_F16 ? "float16"
                                                      : "float32";
    int status = name_for_old_readers(document, dtype) < 0 || (w->untied && say_untied(document) < 0)
                     ? err_set(w->err, ERR_NOMEM, "no memory for %s", config_name)
                     : 0;
    json_object_del(document, "quantization_config");
    json_object_del(document, "motley_packing");
    json_object_del(document, "motley_nested");
    json_object_del(document, "motley_defaults");
    if (status == 0)
        status = write_json(dir, config_name, document, w->err);
    json_decref(document);
    return status;
}

static bool has_suffix(const char *name, const char *suffix)
{
    size_t n = strlen(name), k = strlen(suffix);
    return n >= k && strcmp(name + n - k, suffix) == 0;
}

/* Makes the folder of a file. */
static int make_folder_of(const char *path, struct err *err)
{
    char folder[PATH_BYTES];
    const char *slash = strrchr(path, '/');
    return file_path(folder, sizeof(folder), err, "%.*s", (int)(slash - path), path) < 0
               ? -1
               : file_mkdirs(folder, 0755, err);
}

/* Copies tokenizer, templates and generation settings: every file of the model other than weights and config.
 */
static int copy_files(struct writer *w, const char *dir)
{
    struct model_source *source = model_get_source(w->base);
    for (uint32_t i = 0; i < model_source_file_count(source); i++) {
        const char *name = model_source_file(source, i)->name;
        char path[PATH_BYTES];
        if (has_suffix(name, ".safetensors") || has_suffix(name, ".gguf") || strcmp(name, index_name) == 0 ||
            strcmp(name, config_name) == 0)
            continue;
        struct buf bytes = {.limit = COPY_BYTES_MAX};
        int status = model_read_file(w->base, name, COPY_BYTES_MAX, &bytes, w->err);
        if (status == 0)
            status = model_source_path(dir, name, path, sizeof(path), w->err);
        if (status == 0 && strncmp(name, MODEL_TEMPLATES_PREFIX, strlen(MODEL_TEMPLATES_PREFIX)) == 0)
            status = make_folder_of(path, w->err);
        if (status == 0)
            status = file_write_atomic(path, bytes.data, bytes.size, 0644, w->err);
        buf_fini(&bytes);
        if (status < 0)
            return -1;
    }
    return 0;
}

static int write_folder(struct writer *w, const char *dir)
{
    struct safetensors_item *items = calloc(w->count, sizeof(*items));
    struct stream *streams = calloc(w->count, sizeof(*streams));
    struct err *err = w->err;
    int status = items && streams ? 0 : err_set(err, ERR_NOMEM, "no memory for %u tensors", w->count);
    for (uint32_t shard = 0; status == 0 && shard < w->shards; shard++) {
        status = write_shard(w, dir, shard, items, streams);
        w->err = err;
    }
    free(items);
    free(streams);
    if (status == 0 && w->shards > 1)
        status = write_index(w, dir);
    if (status == 0 && (write_config(w, dir) < 0 || copy_files(w, dir) < 0))
        status = -1;
    return status;
}

int result_model_folder(struct model *base, const struct result_state *state,
                        const struct result_folder_options *options, struct err *err)
{
    struct writer w = {.base = base, .state = state, .options = options, .err = err};
    char made[PATH_BYTES] = "";
    struct err ignored;
    int status = list_parts(&w);
    if (status == 0)
        status = model_folder_make_buffers(&w);
    if (status == 0)
        status = file_folder_begin(options->dir, made, sizeof(made), err);
    if (status == 0)
        status = write_folder(&w, made);
    if (status == 0)
        status = file_folder_end(made, options->dir, err);
    if (status < 0 && made[0])
        file_remove_tree(made, &ignored);
    free(w.parts);
    free(w.piece);
    free(w.bytes);
    free(w.sum);
    free(w.matrix);
    free(w.a);
    free(w.b);
    return status < 0 ? err_wrap(err, "model \"%s\"", options->dir) : 0;
}
