/* Lists the tensors of safetensors and GGUF files under Hugging Face names. */
#include "model/shape/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/array.h"
#include "model/shape/arch.h"
#include "model/shape/blocks.h"
#include "model/shape/generation_config.h"
#include "model/shape/gguf_config.h"
#include "model/files/hub_json.h"
#include "model/shape/nf4_skipped.h"
#include "model/shape/tensors_fused.h"
#include "model/files/pack.h"

enum { INDEX_BYTES_MAX = 64 << 20, PIECE_BYTES = 64 << 10 };

struct model {
    struct model_source *source;
    struct model_config config;
    struct gguf *gguf;            /* set when the model is a GGUF, else NULL */
    struct safetensors **st;      /* [file_count], or NULL */
    struct model_tensor *tensors; /* sorted by name; owns the names */
    uint32_t count;
    size_t capacity;
    uint32_t unused; /* number of the file's tensors that the model does not use */
    char first_unused[ARCH_NAME_MAX];
    bool own_head; /* the config says tied, but the file's head differs from the embedding */
    char note[640], generation_note[160];
};

static int compare_tensor(const void *a, const void *b)
{
    return strcmp(((const struct model_tensor *)a)->name, ((const struct model_tensor *)b)->name);
}

static const struct model_tensor *tensors_find(const struct model *m, const char *name)
{
    struct model_tensor key = {.name = name};
    return m->count == 0 ? NULL : bsearch(&key, m->tensors, m->count, sizeof(key), compare_tensor);
}

static int sort_tensors(struct model *m, struct err *err)
{
    if (m->count > 0) /* a file may have none, and then there is no array */
        qsort(m->tensors, m->count, sizeof(*m->tensors), compare_tensor);
    for (uint32_t i = 1; i < m->count; i++)
        if (strcmp(m->tensors[i].name, m->tensors[i - 1].name) == 0)
            return err_set(err, ERR_CORRUPT, "the tensor \"%.200s\" is there twice", m->tensors[i].name);
    return 0;
}

static int add_named(struct model *m, const char *name, struct model_tensor tensor, struct err *err)
{
    if (m->count == SAFETENSORS_TENSORS_MAX)
        return err_set(err, ERR_TOO_BIG, "more than %d tensors", SAFETENSORS_TENSORS_MAX);
    if (ARRAY_RESERVE(m->tensors, m->capacity, (size_t)m->count + 1, err) < 0)
        return -1;
    tensor.name = strdup(name);
    if (!tensor.name)
        return err_set(err, ERR_NOMEM, "no memory for a tensor's name");
    m->tensors[m->count++] = tensor;
    return 0;
}

/* A tensor as its file describes it. */
struct stored {
    const char *name;
    bool gguf;
    enum tensor_type type;
    uint32_t rank, file;
    const uint64_t *shape;
    uint64_t offset, size;
};

/* Adds the tensors that one tensor of the file holds: every expert's matrix, or two matrices of each expert.
 * It is cut at whole rows, so that each part is a contiguous range of bytes. */
static int add_stacked(struct model *m, const struct stored *s, const struct arch_match *match,
                       struct err *err)
{
    uint32_t experts = m->config.experts, parts = match->part_count;
    bool bias = strcmp(match->suffix, ".bias") == 0;
    char name[ARCH_NAME_MAX];
    if (s->rank != (bias ? 2 : 3) || s->shape[0] != experts || s->shape[1] % parts != 0)
        return err_set(err, ERR_INVALID, "the tensor \"%.200s\" has not %u experts of %u matrices", s->name,
                       experts, parts);
    uint64_t size = s->size / experts / parts;
    for (uint32_t e = 0; e < experts; e++)
        for (uint32_t p = 0; p < parts; p++) {
            struct model_tensor t = {.stored = s->name,
                                     .type = s->type,
                                     .rank = bias ? 1 : 2,
                                     .rows = s->shape[1] / parts,
                                     .cols = bias ? 1 : s->shape[2],
                                     .file = s->file,
                                     .offset = s->offset + (e * parts + p) * size,
                                     .size = size};
            arch_tensor_name(m->config.arch, match->parts[p], match->layer, e, bias ? ".bias" : ".weight",
                             name);
            if (add_named(m, name, t, err) < 0)
                return -1;
        }
    return 0;
}

/* Adds the tensors that one tensor of all experts holds whose rows alternate. Scales are kept under the
 * file's name until gather_scales() attaches them to their codes. */
static int add_fused(struct model *m, const struct stored *s, const struct arch_match *match, struct err *err)
{
    const struct fused_stored fused = {s->name, match->suffix, s->type, s->rank, s->shape};
    uint32_t experts = m->config.experts, parts = match->part_count;
    struct model_tensor t = {.stored = s->name, .type = s->type, .file = s->file, .offset = s->offset};
    char name[ARCH_NAME_MAX];
    t.size = s->size;
    if (fused_is_scales(&fused))
        return add_named(m, s->name, t, err);
    if (fused_describe(&fused, experts, parts, &t, err) < 0)
        return -1;
    t.size /= experts;
    for (t.fused.expert = 0; t.fused.expert < experts; t.fused.expert++)
        for (t.fused.first = 0; t.fused.first < parts; t.fused.first++) {
            t.offset = s->offset + t.fused.expert * t.size;
            arch_tensor_name(m->config.arch, match->parts[t.fused.first], match->layer, t.fused.expert,
                             t.rank == 1 ? ".bias" : ".weight", name);
            if (add_named(m, name, t, err) < 0)
                return -1;
        }
    return 0;
}

/* Attaches the scales of MXFP4 to their codes. */
static int gather_scales(struct model *m, struct err *err)
{
    for (uint32_t i = 0; i < m->count; i++) {
        struct model_tensor *t = &m->tensors[i];
        char name[ARCH_NAME_MAX];
        if (t->type != TENSOR_MXFP4 || t->fused.step == 0)
            continue;
        fused_scales_name(t->stored, name);
        const struct model_tensor *scales = tensors_find(m, name);
        uint64_t each = t->rows * t->fused.step * (t->cols / tensor_type_block(TENSOR_MXFP4));
        if (!scales || scales->type != TENSOR_U8 || scales->size != each * m->config.experts)
            return err_set(err, ERR_INVALID,
                           "the tensor \"%.200s\" of codes has no scales \"%.200s\" of U8, one for each 32",
                           t->stored, name);
        t->fused.scales = (struct nf4_place){scales->file, scales->offset + each * t->fused.expert, each};
    }
    return 0;
}

/* Adds a tensor that is none of the model's. If it is a part that bitsandbytes keeps beside a quantised
 * tensor, it is named after that tensor, with the part's suffix. */
static int add_beside(struct model *m, const struct stored *s, struct model_tensor tensor, struct err *err)
{
    struct arch_match match;
    char base[ARCH_NAME_MAX], name[ARCH_NAME_MAX], full[2 * ARCH_NAME_MAX];
    for (int part = 0; part < NF4_PARTS; part++) {
        size_t length = strlen(s->name), tail = strlen(nf4_suffixes[part]);
        if (length <= tail || length - tail >= sizeof(base) ||
            strcmp(s->name + length - tail, nf4_suffixes[part]) != 0)
            continue;
        memcpy(base, s->name, length - tail);
        base[length - tail] = '\0';
        if (!arch_match_hf(m->config.arch, base, &match) || match.stacked)
            continue;
        arch_tensor_name(m->config.arch, match.parts[0], match.layer, match.expert, match.suffix, name);
        snprintf(full, sizeof(full), "%s%s", name, nf4_suffixes[part]);
        return add_named(m, full, tensor, err);
    }
    if (!strstr(s->name, "rotary_emb.inv_freq") && m->unused++ == 0)
        snprintf(m->first_unused, sizeof(m->first_unused), "%s", s->name);
    tensor.unused = true;
    return add_named(m, s->name, tensor, err);
}

/* Adds a tensor under its Hugging Face name; tensors of a GGUF that the model does not use are left out. */
static int add_tensor(struct model *m, const struct stored *s, struct err *err)
{
    const struct model_config *c = &m->config;
    const struct arch *arch = arch_of(c->arch);
    struct arch_match match;
    char name[ARCH_NAME_MAX];
    bool known =
        s->gguf ? arch_match_gguf(c->arch, s->name, &match) : arch_match_hf(c->arch, s->name, &match);
    /* layers behind the model's, which predict further tokens, are not used */
    known = known && match.layer < c->layers;
    if (known && match.stacked && !s->gguf && arch->fused == ARCH_FUSED_TURNED)
        return add_fused(m, s, &match, err);
    if (known && match.stacked)
        return add_stacked(m, s, &match, err);
    if (!known && s->gguf)
        return 0;
    struct model_tensor t = {.stored = s->name,
                             .type = s->type,
                             .rank = s->rank,
                             .rows = s->rank ? s->shape[0] : 1,
                             .cols = 1,
                             .file = s->file,
                             .offset = s->offset,
                             .size = s->size};
    for (uint32_t k = 1; k < s->rank; k++)
        t.cols *= s->shape[k];
    if (!known)
        return add_beside(m, s, t, err);
    enum arch_tensor what = match.parts[0];
    if (s->gguf && arch->gguf_permutes)
        t.permuted_heads = what == ARCH_Q ? c->heads : what == ARCH_K ? c->kv_heads : 0;
    if (s->gguf && what >= ARCH_NORM_FINAL && what <= ARCH_NORM_K)
        t.offset_added = (float)arch->norm_offset;
    arch_tensor_name(c->arch, what, match.layer, match.expert, match.suffix, name);
    return add_named(m, name, t, err);
}

static bool tensors_ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n > k && strcmp(name + n - k, end) == 0;
}

static struct nf4_place tensors_place_of(const struct model *m, const char *name, const char *suffix)
{
    char full[2 * ARCH_NAME_MAX];
    snprintf(full, sizeof(full), "%.*s%s", ARCH_NAME_MAX, name, suffix);
    const struct model_tensor *t = tensors_find(m, full);
    return t ? (struct nf4_place){t->file, t->offset, t->size} : (struct nf4_place){0};
}

/* Attaches bitsandbytes' parts to the tensors that they belong to. */
static int gather_nf4(struct model *m, struct err *err)
{
    for (uint32_t i = 0; i < m->count; i++) {
        char name[ARCH_NAME_MAX];
        size_t length = strlen(m->tensors[i].name), tail = strlen(nf4_suffixes[NF4_STATE]);
        if (tensors_ends_with(m->tensors[i].name, ".quant_state.bitsandbytes__fp4"))
            return err_set(err, ERR_UNSUPPORTED, "the tensor \"%.200s\": FP4 is not read, NF4 is",
                           m->tensors[i].name);
        if (!tensors_ends_with(m->tensors[i].name, nf4_suffixes[NF4_STATE]) || length - tail >= sizeof(name))
            continue;
        memcpy(name, m->tensors[i].name, length - tail);
        name[length - tail] = '\0';
        struct model_tensor *of = (struct model_tensor *)(uintptr_t)tensors_find(m, name);
        struct nf4_places *places = of ? calloc(1, sizeof(*places)) : NULL;
        if (!places)
            return of ? err_set(err, ERR_NOMEM, "no memory for a tensor's scales")
                      : err_set(err, ERR_CORRUPT, "the tensor \"%.200s\" is beside none", m->tensors[i].name);
        places->codes = (struct nf4_place){of->file, of->offset, of->size};
        for (int part = 0; part < NF4_PARTS; part++)
            places->parts[part] = tensors_place_of(m, name, nf4_suffixes[part]);
        of->nf4 = places;
    }
    return 0;
}

/* Sets *equal when both tensors hold the same values, compared in pieces up to the first difference. */
static int tensors_equal(struct model *m, const struct model_tensor *a, const struct model_tensor *b,
                         bool *equal, struct err *err)
{
    uint8_t pieces[2][4096];
    *equal = a->type == b->type && a->size == b->size && !a->nf4 && !b->nf4;
    for (uint64_t at = 0; *equal && at < a->size; at += sizeof(pieces[0])) {
        size_t size = a->size - at < sizeof(pieces[0]) ? (size_t)(a->size - at) : sizeof(pieces[0]);
        if (model_source_read(m->source, a->file, a->offset + at, size, pieces[0], err) < 0 ||
            model_source_read(m->source, b->file, b->offset + at, size, pieces[1], err) < 0)
            return -1;
        *equal = memcmp(pieces[0], pieces[1], size) == 0;
    }
    return 0;
}

/* Decides tying where config and file disagree, as transformers 5 does (tie_weights): a head that differs
 * from the embedding is untied, and a head without an embedding serves as both. */
static int settle_tie(struct model *m, struct err *err)
{
    char table_name[ARCH_NAME_MAX], head_name[ARCH_NAME_MAX];
    arch_tensor_name(m->config.arch, ARCH_EMBEDDING, 0, 0, ".weight", table_name);
    arch_tensor_name(m->config.arch, ARCH_HEAD, 0, 0, ".weight", head_name);
    const struct model_tensor *table = tensors_find(m, table_name), *head = tensors_find(m, head_name);
    bool equal = true;
    if (!m->config.tied || !head)
        return 0;
    if (table) {
        if (tensors_equal(m, table, head, &equal, err) < 0)
            return -1;
        m->config.tied = equal;
        m->own_head = !equal;
        return 0;
    }
    struct model_tensor *renamed = &m->tensors[head - m->tensors];
    char *name = strdup(table_name);
    if (!name)
        return err_set(err, ERR_NOMEM, "no memory for a tensor's name");
    free((char *)(uintptr_t)renamed->name);
    renamed->name = name;
    return sort_tensors(m, err);
}

static int add_safetensors(struct model *m, uint32_t file, struct err *err)
{
    if (safetensors_open(m->source, file, &m->st[file], err) < 0)
        return -1;
    for (uint32_t i = 0; i < safetensors_count(m->st[file]); i++) {
        const struct safetensors_tensor *t = safetensors_at(m->st[file], i);
        struct stored stored = {.name = t->name,
                                .type = t->type,
                                .rank = t->rank,
                                .file = file,
                                .shape = t->shape,
                                .offset = t->offset,
                                .size = t->size};
        if (add_tensor(m, &stored, err) < 0)
            return -1;
    }
    return 0;
}

/* Checks that the shards hold the tensors that the index lists. */
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
    json_object_foreach (map, key, value) {
        const char *file = json_string_value(value);
        int shard = file ? model_source_find(m->source, file) : -1;
        if (shard < 0 || !m->st[shard] || !safetensors_find(m->st[shard], key)) {
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

/* Returns the storage kind (enum pack_kind) in which a base with the file's blocks keeps the tensor: NF4 or
 * MXFP4 where the file is quantised, else the file's. */
static uint8_t tensors_kind_of(const void *arg, const char *name)
{
    const struct model_tensor *tensor = tensors_find(arg, name);
    if (tensor && (tensor->nf4 || tensor->type == TENSOR_MXFP4))
        return tensor->nf4 ? PACK_NF4 : PACK_MXFP4;
    return (uint8_t)(!tensor                       ? PACK_F32
                     : tensor->type == TENSOR_BF16 ? PACK_BF16
                     : tensor->type == TENSOR_F16  ? PACK_F16
                                                   : PACK_F32);
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
        if (!tensors_ends_with(model_source_file(m->source, i)->name, ".safetensors"))
            continue;
        shards++;
        if (add_safetensors(m, i, err) < 0)
            return -1;
    }
    if (shards == 0)
        return err_set(err, ERR_NOT_FOUND,
                       "the model has a config.json but no weights (safetensors or GGUF)");
    if (sort_tensors(m, err) < 0 || check_index(m, err) < 0 || gather_nf4(m, err) < 0 ||
        gather_scales(m, err) < 0 || settle_tie(m, err) < 0 ||
        generation_config_read(m->source, &m->config, m->generation_note, sizeof(m->generation_note), err) <
            0)
        return -1;
    packing_of_tensors(tensors_kind_of, m, &m->config);
    return 0;
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

/* Reads longrope's factors, which GGUF keeps as tensors. */
static int read_rope_factors(struct model *m, uint32_t file, struct err *err)
{
    static const char *const names[] = {"rope_factors_short.weight", "rope_factors_long.weight"};
    struct rope_config *rope = &m->config.rope;
    uint32_t dim = model_rotary(&m->config, false);
    for (int i = 0; i < 2 && rope->kind == ROPE_LONGROPE; i++) {
        const struct gguf_tensor *t = gguf_tensor_find(m->gguf, names[i]);
        float *factors = i == 0 ? rope->short_factor : rope->long_factor;
        if (!t || t->type != TENSOR_F32 || t->rank != 1 || t->shape[0] != dim / 2 ||
            t->size > sizeof(rope->short_factor))
            return err_set(err, ERR_UNSUPPORTED, "gguf: %s is no vector of %u F32, at most %d", names[i],
                           dim / 2, ROPE_FACTORS_MAX);
        if (model_source_read(m->source, file, t->offset, (size_t)t->size, factors, err) < 0)
            return -1;
        rope->factor_count = dim / 2;
        for (uint32_t k = 0; k < dim / 2; k++)
            if (!(factors[k] >= 1e-6f && factors[k] <= 1e9f))
                return err_set(err, ERR_CORRUPT, "gguf: %s: factor %u is %g", names[i], k,
                               (double)factors[k]);
    }
    return 0;
}

static int open_gguf(struct model *m, uint32_t file, struct err *err)
{
    if (gguf_open(m->source, file, &m->gguf, err) < 0 || gguf_config(m->gguf, &m->config, err) < 0 ||
        read_rope_divisors(m, file, err) < 0 || read_rope_factors(m, file, err) < 0)
        return -1;
    for (uint32_t i = 0; i < gguf_tensor_count(m->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(m->gguf, i);
        struct stored stored = {.name = t->name,
                                .gguf = true,
                                .type = t->type,
                                .rank = t->rank,
                                .file = file,
                                .shape = t->shape,
                                .offset = t->offset,
                                .size = t->size};
        if (add_tensor(m, &stored, err) < 0)
            return -1;
    }
    return sort_tensors(m, err);
}

struct check {
    struct model *model;
    struct err *err;
};

static int tensors_check_tensor(const struct block_tensor *want, void *arg)
{
    struct check *check = arg;
    struct model_tensor *t = (struct model_tensor *)(uintptr_t)tensors_find(check->model, want->name);
    if (!t)
        return err_set(check->err, ERR_NOT_FOUND, "the tensor \"%s\", which the config calls for, is missing",
                       want->name);
    uint64_t cols = want->shape[1];
    if (t->nf4) {
        if (nf4_stored_shape((struct nf4_places *)(uintptr_t)t->nf4, want->shape[0], cols, check->err) < 0)
            return err_wrap(check->err, "the tensor \"%s\"", want->name);
        t->rank = want->rank;
        t->rows = want->shape[0];
        t->cols = cols;
        return 0;
    }
    /* llama.cpp's converter drops dimensions of one */
    if (check->model->gguf && t->rank < want->rank &&
        (t->rank == 1 ? want->shape[0] == 1 && t->rows == cols
                      : t->rows == want->shape[0] && t->cols == cols)) {
        t->rank = want->rank;
        t->rows = want->shape[0];
        t->cols = cols;
    }
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

static void write_note(struct model *m)
{
    char unused[200] = "";
    if (m->unused > 0)
        snprintf(unused, sizeof(unused),
                 "%u tensors of its files are not the language model's and are not used "
                 "(the first is \"%.100s\")",
                 m->unused, m->first_unused);
    const char *parts[] = {
        m->own_head
            ? "config.json says tie_word_embeddings, but lm_head.weight differs from the embedding: the "
              "head is one of its own, as transformers 5 has it"
            : "",
        unused, m->generation_note};
    size_t used = 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        if (parts[i][0] != '\0' && used < sizeof(m->note))
            used += (size_t)snprintf(m->note + used, sizeof(m->note) - used, "%s%s", used > 0 ? "; " : "",
                                     parts[i]);
}

/* Returns whether the file is a GGUF by its name or, for a model's only file, by its first bytes, since
 * people rename files. */
static bool is_gguf(struct model_source *source, uint32_t file)
{
    const struct model_file *f = model_source_file(source, file);
    size_t length = strlen(f->name);
    char head[4];
    struct err ignored;
    if (length > 5 && strcasecmp(f->name + length - 5, ".gguf") == 0)
        return true;
    return model_source_file_count(source) == 1 && f->size >= sizeof(head) &&
           model_source_read(source, file, 0, sizeof(head), head, &ignored) == 0 &&
           memcmp(head, "GGUF", sizeof(head)) == 0;
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
        if (is_gguf(source, i))
            gguf = (int)i;
    int status = gguf >= 0 ? open_gguf(m, (uint32_t)gguf, err) : open_folder(m, err);
    if (status == 0) {
        struct check check = {.model = m, .err = err};
        status = model_block_tensors(&m->config, 0, m->config.layers + 2, tensors_check_tensor, &check);
    }
    if (status < 0) {
        model_close(m);
        return -1;
    }
    write_note(m);
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
    for (uint32_t i = 0; i < model->count; i++) {
        free((char *)(uintptr_t)model->tensors[i].name);
        free((struct nf4_places *)(uintptr_t)model->tensors[i].nf4);
    }
    free(model->tensors);
    model_source_close(model->source);
    free(model);
}

const struct model_config *model_get_config(const struct model *model)
{
    return &model->config;
}

const char *model_get_note(const struct model *model)
{
    return model->note;
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
    return tensors_find(model, name);
}

bool model_tensor_is_16bit(const struct model_tensor *tensor)
{
    return !tensor->nf4 && (tensor->type == TENSOR_BF16 || tensor->type == TENSOR_F16);
}

/* Reads 'rows' contiguous rows as fp32, a piece at a time. */
static int tensors_read_rows(struct model *m, const struct model_tensor *t, uint64_t row, uint64_t rows,
                             float *dst, struct err *err)
{
    if (t->nf4)
        return nf4_stored_values(m->source, t->nf4, row * t->cols, rows * t->cols, dst, err);
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

/* Returns the file's row of a permuted tensor for row r in Hugging Face's order: within a head the two halves
 * are interleaved. */
static uint64_t stored_row(const struct model_tensor *t, uint64_t row)
{
    uint64_t head_dim = t->rows / t->permuted_heads, head = row / head_dim, within = row % head_dim;
    return head * head_dim + within % (head_dim / 2) * 2 + within / (head_dim / 2);
}

static int tensors_rows_check(const struct model_tensor *tensor, uint64_t row_begin, uint64_t row_end,
                              struct err *err)
{
    if (row_begin > row_end || row_end > tensor->rows)
        return err_set(err, ERR_INTERNAL, "rows %llu..%llu of tensor \"%s\" of %llu rows",
                       (unsigned long long)row_begin, (unsigned long long)row_end, tensor->name,
                       (unsigned long long)tensor->rows);
    return 0;
}

const struct safetensors_tensor *model_tensor_stored(const struct model *model,
                                                     const struct model_tensor *tensor)
{
    return model->st ? safetensors_find(model->st[tensor->file], tensor->stored) : NULL;
}

int model_tensor_read_bytes(struct model *model, const struct model_tensor *tensor, uint64_t offset,
                            size_t size, void *dst, struct err *err)
{
    if (offset > tensor->size || size > tensor->size - offset)
        return err_set(err, ERR_INVALID, "bytes %llu..%llu of the tensor \"%s\", which has %llu",
                       (unsigned long long)offset, (unsigned long long)(offset + size), tensor->name,
                       (unsigned long long)tensor->size);
    return model_source_read(model->source, tensor->file, tensor->offset + offset, size, dst, err);
}

int model_tensor_read_packed(struct model *model, const struct model_tensor *tensor, uint64_t row_begin,
                             uint64_t row_end, uint8_t *dst, struct err *err)
{
    if (tensors_rows_check(tensor, row_begin, row_end, err) < 0)
        return -1;
    uint64_t row_bytes =
        tensor->cols / tensor_type_block(tensor->type) * tensor_type_block_bytes(tensor->type);
    uint64_t rows = tensor->permuted_heads ? 1 : row_end - row_begin;
    int status = 0;
    if (tensor->fused.step > 0) {
        status = fused_read(model->source, tensor, row_begin, rows, true, dst, err);
        row_begin = row_end;
    }
    for (uint64_t row = row_begin; status == 0 && row < row_end; row += rows) {
        uint64_t stored = tensor->permuted_heads ? stored_row(tensor, row) : row;
        status = model_source_read(model->source, tensor->file, tensor->offset + stored * row_bytes,
                                   (size_t)(rows * row_bytes), dst + (row - row_begin) * row_bytes, err);
    }
    return status < 0 ? err_wrap(err, "tensor \"%s\"", tensor->name) : 0;
}

int model_tensor_read_f32(struct model *model, const struct model_tensor *tensor, uint64_t row_begin,
                          uint64_t row_end, float *dst, struct err *err)
{
    if (tensors_rows_check(tensor, row_begin, row_end, err) < 0)
        return -1;
    int status = 0;
    if (tensor->fused.step > 0)
        status = fused_read(model->source, tensor, row_begin, row_end - row_begin, false, dst, err);
    else if (!tensor->permuted_heads)
        status = tensors_read_rows(model, tensor, row_begin, row_end - row_begin, dst, err);
    for (uint64_t r = row_begin; tensor->permuted_heads && status == 0 && r < row_end; r++)
        status = tensors_read_rows(model, tensor, stored_row(tensor, r), 1,
                                   dst + (r - row_begin) * tensor->cols, err);
    uint64_t values = tensor->offset_added != 0 ? (row_end - row_begin) * tensor->cols : 0;
    for (uint64_t i = 0; status == 0 && i < values; i++)
        dst[i] -= tensor->offset_added;
    return status < 0 ? err_wrap(err, "tensor \"%s\"", tensor->name) : 0;
}

static int load_from_source(struct model_source *source, struct model_config *config, struct err *err)
{
    struct buf text = {.limit = MODEL_CONFIG_BYTES_MAX};
    struct gguf *gguf = NULL;
    int status;
    for (uint32_t i = 0; i < model_source_file_count(source); i++) {
        if (!is_gguf(source, i))
            continue;
        struct model m = {.source = source};
        status = gguf_open(source, i, &gguf, err);
        if (status == 0)
            status = gguf_config(gguf, &m.config, err);
        m.gguf = gguf;
        if (status == 0)
            status = read_rope_divisors(&m, i, err);
        if (status == 0)
            status = read_rope_factors(&m, i, err);
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
