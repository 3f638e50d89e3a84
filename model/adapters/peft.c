/* Reads peft's adapter folders, checks their tensors against the model, and writes both files. */
#include "model/adapters/peft.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "model/adapters/peft_experts.h"
#include "model/files/hub_json.h"
#include "model/files/source.h"

enum { CONFIG_BYTES_MAX = 1 << 20, PATH_BYTES = 4096 };

static const char config_name[] = "adapter_config.json";
static const char weights_name[] = "adapter_model.safetensors";

struct peft {
    struct peft_config config;
    struct lora_sites sites;
    struct safetensors *weights;  /* with the tensors of each expert in the place of those of all */
    struct peft_experts *experts; /* or NULL */
    /* the table is saved beside the adapter but not named in modules_to_save */
    bool embedding_beside, head_beside;
};

/* Returns a key without "base_model.model." and without the prefix of a model inside another. */
static const char *inner_name(const char *key, char name[PEFT_KEY_BYTES])
{
    const char *own = key + strlen(PEFT_PREFIX);
    if (strncmp(own, PEFT_OUTER, strlen(PEFT_OUTER)) != 0 ||
        snprintf(name, PEFT_KEY_BYTES, "model.%s", own + strlen(PEFT_OUTER)) >= PEFT_KEY_BYTES)
        return own;
    return name;
}

struct peft_check {
    struct peft *peft;
    const struct model_config *model;
    uint32_t found;     /* tensors of the file that the model has a use for */
    struct err missing; /* error about the first tensor that the file lacks */
    struct err *err;
};

static int check_shape(const struct safetensors_tensor *t, uint32_t rows, uint32_t cols, struct err *err)
{
    if (t->rank != 2 || t->shape[0] != rows || t->shape[1] != cols) {
        char has[64] = "other dimensions";
        if (t->rank == 2)
            snprintf(has, sizeof(has), "%llu x %llu", (unsigned long long)t->shape[0],
                     (unsigned long long)t->shape[1]);
        return err_set(err, ERR_INVALID,
                       "%s: the tensor \"%s\" is not %u x %u but %s: it belongs to another base model, or to "
                       "another r",
                       weights_name, t->name, rows, cols, has);
    }
    if (t->type != TENSOR_F32 && t->type != TENSOR_F16 && t->type != TENSOR_BF16 && t->type != TENSOR_F64)
        return err_set(err, ERR_UNSUPPORTED, "%s: the tensor \"%s\" is stored as %s", weights_name, t->name,
                       tensor_type_name(t->type));
    return 0;
}

static int peft_check_tensor(struct peft_check *c, const char *name, uint32_t rows, uint32_t cols)
{
    char other[PEFT_KEY_BYTES];
    const struct safetensors *weights = c->peft->weights;
    const struct safetensors_tensor *t = peft_find(weights, name);
    if (!t) {
        if (c->missing.code == ERR_NONE)
            err_set(&c->missing, ERR_INVALID,
                    "%s: the tensor \"%s\" is missing, which target_modules (or modules_to_save) names",
                    weights_name, name);
        return 0;
    }
    if (peft_default_key(name, other) && safetensors_find(weights, name) && safetensors_find(weights, other))
        return err_set(c->err, ERR_INVALID,
                       "%s: the tensor \"%s\" is there twice, also as \"%s\"; remove one", weights_name, name,
                       other);
    c->found++;
    return check_shape(t, rows, cols, c->err);
}

/* Returns the rank of the adapter on a layer's matrix, or 0 when it has none. 'module' is the matrix's; of an
 * expert's gate it becomes gate_up_proj, and *rows that one's, where this has the adapter. */
static uint32_t rank_on(const struct lora_sites *sites, const struct model_config *model,
                        const struct block_tensor *tensor, char module[ARCH_NAME_MAX], uint32_t *rows)
{
    bool expert = tensor->what >= ARCH_EXPERT_GATE && tensor->what <= ARCH_EXPERT_DOWN;
    uint32_t joined = tensor->what == ARCH_EXPERT_DOWN ? LORA_EXPERT_DOWN : LORA_EXPERT_GATE_UP;
    uint32_t of_all = expert ? lora_rank_at(sites, tensor->block - 1, (uint32_t)__builtin_ctz(joined)) : 0;
    *rows = tensor->shape[0];
    if (of_all > 0) {
        lora_expert_name(model, tensor->block - 1, joined, tensor->expert, "", module);
        *rows *= tensor->what == ARCH_EXPERT_GATE ? 2 : 1;
        return tensor->what == ARCH_EXPERT_UP ? 0 : of_all;
    }
    uint32_t target = lora_target_of(module);
    uint32_t layer = tensor->block > 0 && !(target & LORA_TABLES) ? tensor->block - 1 : 0;
    return target && !tensor->fused ? lora_rank_at(sites, layer, (uint32_t)__builtin_ctz(target)) : 0;
}

/* Checks the adapter's tensors for one of the model's tensors. */
static int check_matrix(const struct block_tensor *tensor, void *arg)
{
    struct peft_check *c = arg;
    char module[ARCH_NAME_MAX], name[PEFT_KEY_BYTES];
    uint32_t rows;
    int length = (int)strlen(tensor->name) - (int)strlen(".weight");
    if (tensor->rank != 2 || length <= 0 || strcmp(tensor->name + length, ".weight") != 0)
        return 0;
    snprintf(module, sizeof(module), "%.*s", length, tensor->name);
    uint32_t rank = rank_on(&c->peft->sites, c->model, tensor, module, &rows);
    if (rank == 0)
        return 0;
    bool turned = tensor->what == ARCH_EMBEDDING; /* its inputs are tokens */
    snprintf(name, sizeof(name), "%s%s.%s", PEFT_PREFIX, module,
             turned ? "lora_embedding_A" : "lora_A.weight");
    if (peft_check_tensor(c, name, rank, tensor->shape[turned ? 0 : 1]) < 0)
        return -1;
    snprintf(name, sizeof(name), "%s%s.%s", PEFT_PREFIX, module,
             turned ? "lora_embedding_B" : "lora_B.weight");
    return peft_check_tensor(c, name, turned ? tensor->shape[1] : rows, rank);
}

/* Finds a table under its key, or as peft saves it where it has an adapter: …base_layer.weight. */
static const struct safetensors_tensor *find_table(const struct safetensors *weights, const char *key)
{
    char other[128];
    const struct safetensors_tensor *t = peft_find(weights, key);
    snprintf(other, sizeof(other), "%.*sbase_layer.weight", (int)(strlen(key) - strlen("weight")), key);
    return t ? t : peft_find(weights, other);
}

/* Checks embedding or head: named in modules_to_save, or saved beside the adapter (save_embedding_layers). */
static int check_table(struct peft_check *c, const struct model_config *model, const char *key, bool saved,
                       bool *beside)
{
    char original[128];
    if (saved && peft_check_tensor(c, key, model->vocab, model->hidden) < 0)
        return -1;
    snprintf(original, sizeof(original), "%.*soriginal_module.weight", (int)(strlen(key) - strlen("weight")),
             key);
    /* The module's original weights are in the file, too; peft keeps them but does not compute with them. */
    c->found += saved && peft_find(c->peft->weights, original);
    const struct safetensors_tensor *t = find_table(c->peft->weights, key);
    if (saved || !t)
        return 0;
    *beside = true;
    c->found++;
    return check_shape(t, model->vocab, model->hidden, c->err);
}

enum { COMPARED_VALUES = 65536 };

/* Sets *same when two tensors of the adapter hold the same bytes. */
static int same_bytes(struct safetensors *weights, const struct safetensors_tensor *a,
                      const struct safetensors_tensor *b, bool *same, struct err *err)
{
    enum { PIECE = 4 * COMPARED_VALUES };
    uint8_t *pieces = malloc(2 * (size_t)PIECE);
    int status = pieces ? 0 : err_set(err, ERR_NOMEM, "no memory to compare two tensors");
    *same = a->size == b->size && a->type == b->type;
    for (uint64_t at = 0; status == 0 && *same && at < a->size; at += PIECE) {
        size_t size = a->size - at < PIECE ? (size_t)(a->size - at) : PIECE;
        status = safetensors_read(weights, a, at, size, pieces, err);
        if (status == 0)
            status = safetensors_read(weights, b, at, size, pieces + PIECE, err);
        *same = status == 0 && memcmp(pieces, pieces + PIECE, size) == 0;
    }
    free(pieces);
    return status;
}

/* A tied model trains one table. peft trains embedding and head apart unless ensure_weight_tying is true, so
 * such an adapter is accepted only if both tables are the same. */
static int check_tied(struct peft *p, struct err *err)
{
    struct peft_config *config = &p->config;
    const struct safetensors_tensor *embedding = peft_find(p->weights, PEFT_EMBEDDING),
                                    *head = peft_find(p->weights, PEFT_HEAD);
    /* files with the embedding alone are accepted, as Motley wrote them until 2026 */
    bool same = config->tied && embedding && !head;
    if (!config->saves_embedding && !config->saves_head)
        return 0;
    if (embedding && head && same_bytes(p->weights, embedding, head, &same, err) < 0)
        return -1;
    if (!same)
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: modules_to_save: the model's head is its embedding, and the adapter has %s apart "
                       "from it, which has no place here; train it with ensure_weight_tying, or start from a "
                       "base with a head of its own",
                       config_name, head ? "a head" : "trained the embedding");
    config->saves_embedding = config->tied = true;
    config->saves_head = false;
    p->embedding_beside = p->head_beside = false;
    return 0;
}

struct peft_known {
    const char *name; /* a key without "base_model.model." */
    const struct lora_sites *sites;
    const struct model_config *model;
    bool found;
};

static int know_matrix(const struct block_tensor *tensor, void *arg)
{
    struct peft_known *k = arg;
    char module[ARCH_NAME_MAX];
    uint32_t rows;
    snprintf(module, sizeof(module), "%.*s", (int)(strlen(tensor->name) - strlen(".weight")), tensor->name);
    uint32_t rank = rank_on(k->sites, k->model, tensor, module, &rows);
    size_t length = strlen(module);
    if (strncmp(k->name, module, length) != 0 || k->name[length] != '.')
        return 0;
    const char *end = k->name + length + 1;
    bool lora = strcmp(end, "lora_A.weight") == 0 || strcmp(end, "lora_B.weight") == 0 ||
                strcmp(end, "lora_A.default.weight") == 0 || strcmp(end, "lora_B.default.weight") == 0;
    if (tensor->what == ARCH_EMBEDDING)
        lora = strcmp(end, "lora_embedding_A") == 0 || strcmp(end, "lora_embedding_B") == 0;
    k->found = lora && rank > 0;
    return k->found;
}

/* Returns whether a key names a tensor that this adapter may have, or one that peft ignores. */
static bool peft_is_known(const struct peft *p, const struct model_config *model, const char *key)
{
    static const char layers[] = "model.layers.";
    char name[PEFT_KEY_BYTES];
    if (strncmp(key, PEFT_PREFIX, strlen(PEFT_PREFIX)) != 0)
        return false;
    struct peft_known known = {.name = inner_name(key, name), .sites = &p->sites, .model = model};
    if (strcmp(known.name, &PEFT_EMBEDDING[strlen(PEFT_PREFIX)]) == 0 ||
        strcmp(known.name, &PEFT_HEAD[strlen(PEFT_PREFIX)]) == 0 ||
        strcmp(known.name, "model.embed_tokens.original_module.weight") == 0 ||
        strcmp(known.name, "lm_head.original_module.weight") == 0 ||
        strcmp(known.name, "model.embed_tokens.base_layer.weight") == 0 ||
        strcmp(known.name, "lm_head.base_layer.weight") == 0)
        return true;
    if (strncmp(known.name, layers, strlen(layers)) != 0) {
        model_adapted_tensors(model, know_matrix, &known);
        return known.found;
    }
    unsigned long layer = strtoul(known.name + strlen(layers), NULL, 10);
    uint32_t block = layer < model->layers ? (uint32_t)layer + 1 : model->layers + 1;
    model_block_tensors(model, block, block + 1, know_matrix, &known);
    return known.found;
}

/* Returns why a key is refused, and what to do. */
static const char *peft_why_unknown(const char *key)
{
    if (strncmp(key, PEFT_PREFIX, strlen(PEFT_PREFIX)) != 0)
        return "peft's keys begin with base_model.model., and it passes over others; add that, or save the "
               "adapter with save_pretrained";
    if (strstr(key, ".modules_to_save."))
        return "peft looks for the module's name and .weight alone; name it so";
    if (strstr(key, "lora_magnitude_vector"))
        return "DoRA (use_dora) is not supported";
    if (strstr(key, ".lora_A.") || strstr(key, ".lora_B."))
        return "it belongs to no target of this model, as target_modules, exclude_modules and "
               "layers_to_transform of adapter_config.json say them, or to an adapter of another name than "
               "default";
    return "it belongs to no target of this model; if it changes the base, merge it into that first";
}

/* Checks that every target of every layer is present, and nothing else except keys that peft ignores. */
static int check_weights(struct peft *p, const struct model_config *model, struct err *err)
{
    struct peft_check check = {.peft = p, .model = model, .err = err};
    const struct peft_config *config = &p->config;
    bool head = config->saves_head ||
                (config->saves_embedding && model->tied && config->tied && peft_find(p->weights, PEFT_HEAD));
    if (model_adapted_tensors(model, check_matrix, &check) < 0 ||
        check_table(&check, model, PEFT_EMBEDDING, config->saves_embedding, &p->embedding_beside) < 0 ||
        check_table(&check, model, PEFT_HEAD, head, &p->head_beside) < 0)
        return -1;
    for (uint32_t i = 0; safetensors_count(p->weights) != check.found && i < safetensors_count(p->weights);
         i++) {
        const char *key = safetensors_at(p->weights, i)->name;
        if (!peft_is_known(p, model, key))
            return err_set(err, ERR_UNSUPPORTED, "%s: the tensor \"%.120s\" has no place: %s", weights_name,
                           key, peft_why_unknown(key));
    }
    if (check.missing.code != ERR_NONE) {
        *err = check.missing;
        return -1;
    }
    return model->tied ? check_tied(p, err) : 0;
}

/* Compares one table with the base's in pieces of rows. */
static int same_as_base(struct peft *p, struct model *base, const char *key, struct err *err)
{
    const struct safetensors_tensor *t = find_table(p->weights, key);
    const char *name = model_get_config(base)->tied ? PEFT_EMBEDDING : key;
    const struct model_tensor *own = model_tensor_find(base, name + strlen(PEFT_PREFIX));
    bool same = t && own && own->rows == t->shape[0] && own->cols == t->shape[1];
    uint64_t rows = same ? t->shape[0] : 0, columns = same ? t->shape[1] : 1;
    uint64_t step = columns < COMPARED_VALUES ? COMPARED_VALUES / columns : 1;
    float *values = malloc(2 * step * columns * sizeof(*values));
    int status = values ? 0 : err_set(err, ERR_NOMEM, "no memory to compare a table");
    for (uint64_t row = 0; status == 0 && same && row < rows; row += step) {
        uint64_t end = row + step < rows ? row + step : rows, count = (end - row) * columns;
        struct safetensors_tensor part = *t;
        part.shape[0] = end - row;
        part.size = t->size / rows * (end - row);
        part.offset = t->offset + t->size / rows * row;
        status = safetensors_read_f32(p->weights, &part, values, count, err);
        if (status == 0)
            status = model_tensor_read_f32(base, own, row, end, values + count, err);
        for (uint64_t i = 0; status == 0 && same && i < count; i++)
            same = values[i] == values[count + i];
    }
    free(values);
    return status < 0 || same
               ? status
               : err_set(err, ERR_UNSUPPORTED,
                         "%s: the tensor \"%s\" is saved beside the adapter and differs from the base's, so "
                         "that peft would change the base; merge it into the base, or name its module in "
                         "modules_to_save",
                         weights_name, key);
}

int peft_check_base(struct peft *peft, struct model *base, struct err *err)
{
    if (peft->embedding_beside && same_as_base(peft, base, PEFT_EMBEDDING, err) < 0)
        return -1;
    return peft->head_beside ? same_as_base(peft, base, PEFT_HEAD, err) : 0;
}

int peft_open_tensors(const void *config_json, size_t config_size, struct safetensors *weights,
                      const struct model_config *model, struct peft **peft, struct err *err)
{
    *peft = NULL;
    struct peft *p = calloc(1, sizeof(*p));
    if (!p) {
        safetensors_close(weights);
        return err_set(err, ERR_NOMEM, "no memory to open an adapter");
    }
    p->weights = weights;
    json_t *document = hub_json_parse(config_json, config_size, JSON_DEPTH_MAX, err);
    int status = document ? peft_config_parse(document, &p->config, err) : err_wrap(err, "%s", config_name);
    json_decref(document);
    if (status == 0)
        status = peft_sites(&p->config, model, &p->sites, err);
    if (status == 0)
        status = peft_experts_split(model, &p->sites, &p->weights, &p->experts, err);
    if (status == 0)
        status = check_weights(p, model, err);
    if (status < 0) {
        peft_close(p);
        return -1;
    }
    *peft = p;
    return 0;
}

int peft_open_memory(const void *config_json, size_t config_size, const void *weights_bytes, size_t size,
                     const struct model_config *model, struct peft **peft, struct err *err)
{
    struct safetensors *weights;
    *peft = NULL;
    if (safetensors_open_memory(weights_bytes, size, &weights, err) < 0)
        return err_wrap(err, "%s", weights_name);
    return peft_open_tensors(config_json, config_size, weights, model, peft, err);
}

int peft_open(const char *dir, const struct model_config *model, struct peft **peft, struct err *err)
{
    char path[PATH_BYTES];
    struct buf text = {.limit = CONFIG_BYTES_MAX};
    struct safetensors *weights = NULL;
    *peft = NULL;
    int status = file_path(path, sizeof(path), err, "%s/%s", dir, config_name);
    if (status == 0)
        status = file_read_all(path, CONFIG_BYTES_MAX, &text, err);
    if (status == 0)
        status = file_path(path, sizeof(path), err, "%s/%s", dir, weights_name);
    if (status == 0)
        status = safetensors_open_path(path, &weights, err);
    if (status == 0)
        status = peft_open_tensors(text.data, text.size, weights, model, peft, err);
    buf_fini(&text);
    return status < 0 ? err_wrap(err, "adapter \"%s\"", dir) : 0;
}

void peft_close(struct peft *peft)
{
    if (!peft)
        return;
    safetensors_close(peft->weights);
    peft_experts_close(peft->experts);
    peft_config_fini(&peft->config);
    free(peft);
}

const struct peft_config *peft_get_config(const struct peft *peft)
{
    return &peft->config;
}

const struct lora_sites *peft_get_sites(const struct peft *peft)
{
    return &peft->sites;
}

struct safetensors *peft_tensors(struct peft *peft)
{
    return peft->weights;
}

int peft_read(struct peft *peft, uint32_t layer, uint32_t target, char which, float *dst, uint64_t count,
              struct err *err)
{
    char name[128];
    peft_key(layer, target, which, name);
    const struct safetensors_tensor *t = peft_find(peft->weights, name);
    if (!t)
        return err_set(err, ERR_NOT_FOUND, "the adapter has no tensor \"%s\"", name);
    return safetensors_read_f32(peft->weights, t, dst, count, err);
}

uint32_t peft_add_head(const struct peft_config *config, struct safetensors_item *items, uint32_t count)
{
    const struct safetensors_item *embedding = NULL;
    for (uint32_t i = 0; peft_saves_twice(config) && i < count; i++) {
        if (strcmp(items[i].name, PEFT_HEAD) == 0)
            return 0;
        embedding = strstr(items[i].name, ".embed_tokens.weight") ? &items[i] : embedding;
    }
    if (!embedding)
        return 0;
    items[count] = *embedding;
    items[count].name = PEFT_HEAD;
    return 1;
}

/* Writes both files into an existing folder, then opens them as a reader would. */
static int peft_write_files(const char *dir, const struct peft_config *config, const char *base_model,
                            const struct model_config *model, const struct safetensors_item *items,
                            uint32_t count, struct err *err)
{
    static const struct safetensors_meta meta = {"format", "pt"};
    char path[PATH_BYTES];
    struct buf text = {.limit = CONFIG_BYTES_MAX};
    struct peft *check = NULL;
    struct peft_experts *experts = NULL;
    struct lora_sites sites;
    int status = -1;
    json_t *document = peft_config_to_json(config, model, base_model, err);
    struct safetensors_item *sorted = malloc((count + 1) * sizeof(*sorted));
    if (!document || !sorted) {
        if (!sorted)
            err_set(err, ERR_NOMEM, "no memory for %u tensors", count);
        goto out;
    }
    if (count)
        memcpy(sorted, items, count * sizeof(*sorted));
    count += peft_add_head(config, sorted, count);
    if (peft_sites(config, model, &sites, err) < 0 ||
        peft_experts_join(model, &sites, sorted, &count, &experts, err) < 0 ||
        file_path(path, sizeof(path), err, "%s/%s", dir, weights_name) < 0 ||
        safetensors_write(path, sorted, count, &meta, 1, err) < 0 ||
        /* keys are not sorted, because the order of patterns matters */
        json_print(document, false, &text, err) < 0 ||
        file_path(path, sizeof(path), err, "%s/%s", dir, config_name) < 0 ||
        file_write_atomic(path, text.data, text.size, 0644, err) < 0 ||
        peft_open(dir, model, &check, err) < 0)
        goto out;
    status = 0;
out:
    peft_close(check);
    peft_experts_close(experts);
    json_decref(document);
    buf_fini(&text);
    free(sorted);
    return status;
}

int peft_write(const char *dir, const struct peft_config *config, const char *base_model,
               const struct model_config *model, const struct safetensors_item *items, uint32_t count,
               struct err *err)
{
    char made[PATH_BYTES];
    struct err ignored;
    if (file_folder_begin(dir, made, sizeof(made), err) < 0)
        return -1;
    if (peft_write_files(made, config, base_model, model, items, count, err) < 0 ||
        file_folder_end(made, dir, err) < 0) {
        file_remove_tree(made, &ignored);
        return -1;
    }
    return 0;
}
