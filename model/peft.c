/* peft's adapter folders. What peft can do and we cannot is refused by its own key, so that nobody trains on
 * with an adapter that means something else here. */
#include "model/peft.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "model/hub_json.h"
#include "model/source.h"

enum { CONFIG_BYTES_MAX = 1 << 20, PATH_BYTES = 4096, RANK_MAX = 65536 };

static const char config_name[] = "adapter_config.json";
static const char weights_name[] = "adapter_model.safetensors";

struct peft {
    struct peft_config config;
    struct lora_sites sites;
    struct safetensors *weights;
};

/* Read elsewhere or of no meaning for the arithmetic, whatever the value. */
static const char *const free_keys[] = {
    "base_model_name_or_path",
    "inference_mode",
    "init_lora_weights",
    "lora_alpha",
    "lora_dropout",
    "alpha_pattern",
    "ensure_weight_tying",
    "exclude_modules",
    "layers_pattern",
    "layers_to_transform",
    "megatron_core",
    "modules_to_save",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "target_modules",
    "task_type",
    "use_rslora",
    "runtime_config",
    "auto_mapping",
};

static bool is_free(const char *key)
{
    for (size_t i = 0; i < sizeof(free_keys) / sizeof(free_keys[0]); i++)
        if (strcmp(key, free_keys[i]) == 0)
            return true;
    return false;
}

/* null, false, "none", {} and []: switched off */
static bool is_off(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) ||
           (json_is_string(value) && strcmp(json_string_value(value), "none") == 0) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

/* Adapters on embedding and head are something else than on the layers' matrices. */
static int check_targets(const struct lora_rules *rules, struct err *err)
{
    const struct spec_names *names = &rules->targets.names;
    for (uint32_t i = 0; i < names->count; i++) {
        const char *last = strrchr(names->names[i], '.');
        last = last ? last + 1 : names->names[i];
        if (strcmp(last, "embed_tokens") == 0 || strcmp(last, "lm_head") == 0)
            return err_set(err, ERR_UNSUPPORTED,
                           "%s: target_modules: \"%.64s\" is not supported; the matrices of layers are",
                           config_name, names->names[i]);
    }
    if (names->count == 0 && !rules->targets.expression && !rules->all_linear)
        return err_set(err, ERR_INVALID, "%s: target_modules: is missing", config_name);
    return 0;
}

static int parse_saved(const json_t *value, struct peft_config *config, struct err *err)
{
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *name = json_string_value(json_array_get(value, i));
        bool embedding =
            name && (strcmp(name, "embed_tokens") == 0 || strcmp(name, "model.embed_tokens") == 0);
        bool head = name && strcmp(name, "lm_head") == 0;
        if (!embedding && !head)
            return err_set(err, ERR_UNSUPPORTED,
                           "%s: modules_to_save: \"%.64s\" is not supported; embed_tokens and lm_head are",
                           config_name, name ? name : "(no text)");
        config->saves_embedding = config->saves_embedding || embedding;
        config->saves_head = config->saves_head || head;
    }
    return 0;
}

static int check_init(const json_t *value, struct err *err)
{
    const char *text = json_string_value(value);
    if (!text || strcmp(text, "gaussian") == 0 || strcmp(text, "true") == 0 || strcmp(text, "false") == 0)
        return 0;
    /* pissa, olora, eva, corda, loftq: the base's weights are changed beside the adapter */
    return err_set(err, ERR_UNSUPPORTED, "%s: init_lora_weights: \"%.64s\" is not supported", config_name,
                   text);
}

int peft_config_parse(const json_t *document, struct peft_config *config, struct err *err)
{
    struct json_reader r;
    const char *type = NULL, *key;
    json_t *value;
    memset(config, 0, sizeof(*config));
    jr_init(&r, document, config_name, err);
    jr_str(&r, "peft_type", JR_REQUIRED, 1, 64, &type);
    if (r.failed)
        return -1;
    if (strcmp(type, "LORA") != 0)
        return err_set(err, ERR_UNSUPPORTED, "%s: peft_type: \"%s\" is not supported; only LORA is",
                       config_name, type);
    json_object_foreach((json_t *)(uintptr_t)document, key, value)
    {
        if (!is_free(key) && !is_off(value))
            return err_set(err, ERR_UNSUPPORTED, "%s: %.64s: not supported", config_name, key);
    }
    jr_u32(&r, "r", JR_REQUIRED, 1, RANK_MAX, &config->rank);
    config->alpha = 8; /* peft's default */
    jr_f64(&r, "lora_alpha", JR_OPTIONAL, 1e-9, 1e9, &config->alpha);
    jr_f64(&r, "lora_dropout", JR_OPTIONAL, 0, 1, &config->dropout);
    jr_bool(&r, "use_rslora", JR_OPTIONAL, &config->rslora);
    jr_bool(&r, "ensure_weight_tying", JR_OPTIONAL, &config->tied);
    lora_rules_read(&r, "target_modules", RANK_MAX, 1e-9, 1e9, &config->lora);
    if (jr_finish_loose(&r) < 0 || check_init(json_object_get(document, "init_lora_weights"), err) < 0 ||
        check_targets(&config->lora, err) < 0 ||
        parse_saved(json_object_get(document, "modules_to_save"), config, err) < 0) {
        peft_config_fini(config);
        return -1;
    }
    return 0;
}

void peft_config_fini(struct peft_config *config)
{
    lora_rules_fini(&config->lora);
}

int peft_sites(const struct peft_config *config, const struct model_config *model, struct lora_sites *sites,
               struct err *err)
{
    const struct lora_defaults defaults = {.rank = config->rank,
                                           .alpha = config->alpha,
                                           .rslora = config->rslora,
                                           .where = config_name,
                                           .targets = "target_modules"};
    return lora_sites_of(&config->lora, &defaults, model, sites, err);
}

/* Mixtral's names of the FFN's matrices. */
static const char *w_name(const char *name)
{
    static const char *const names[][2] = {{"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i][0]) == 0)
            return names[i][1];
    return NULL;
}

static json_t *saved_json(const struct peft_config *config)
{
    if (!config->saves_embedding && !config->saves_head)
        return json_null();
    json_t *out = json_array();
    if (out && config->saves_embedding)
        json_array_append_new(out, json_string("embed_tokens"));
    if (out && config->saves_head)
        json_array_append_new(out, json_string("lm_head"));
    return out;
}

json_t *peft_config_to_json(const struct peft_config *config, const char *base_model, struct err *err)
{
    static const char *const nulls[] = {
        "alora_invocation_tokens",
        "arrow_config",
        "auto_mapping",
        "corda_config",
        "eva_config",
        "layer_replication",
        "megatron_config",
        "revision",
        "target_parameters",
        "trainable_token_indices",
    };
    static const char *const falses[] = {"fan_in_fan_out", "lora_bias", "use_dora", "use_qalora"};
    json_t *out = json_object();
    bool whole = floor(config->alpha) == config->alpha && config->alpha < 1e9;
    bool ok = out != NULL;
    for (size_t i = 0; ok && i < sizeof(nulls) / sizeof(nulls[0]); i++)
        ok = json_object_set_new(out, nulls[i], json_null()) == 0;
    for (size_t i = 0; ok && i < sizeof(falses) / sizeof(falses[0]); i++)
        ok = json_object_set_new(out, falses[i], json_false()) == 0;
    ok = ok &&
         lora_rules_write(&config->lora, "target_modules", config->w_names ? w_name : NULL, out, err) == 0 &&
         json_object_set_new(out, "use_rslora", json_boolean(config->rslora)) == 0 &&
         json_object_set_new(out, "ensure_weight_tying", json_boolean(config->tied)) == 0 &&
         json_object_set_new(out, "modules_to_save", saved_json(config)) == 0 &&
         json_object_set_new(out, "loftq_config", json_object()) == 0 &&
         json_object_set_new(out, "base_model_name_or_path",
                             base_model ? json_string(base_model) : json_null()) == 0 &&
         json_object_set_new(out, "bias", json_string("none")) == 0 &&
         json_object_set_new(out, "inference_mode", json_true()) == 0 &&
         json_object_set_new(out, "init_lora_weights", json_true()) == 0 &&
         json_object_set_new(out, "lora_alpha",
                             whole ? json_integer((json_int_t)config->alpha) : json_real(config->alpha)) ==
             0 &&
         json_object_set_new(out, "lora_dropout", json_real(config->dropout)) == 0 &&
         json_object_set_new(out, "megatron_core", json_string("megatron.core")) == 0 &&
         json_object_set_new(out, "peft_type", json_string("LORA")) == 0 &&
         json_object_set_new(out, "qalora_group_size", json_integer(16)) == 0 &&
         json_object_set_new(out, "r", json_integer(config->rank)) == 0 &&
         json_object_set_new(out, "task_type", json_string("CAUSAL_LM")) == 0;
    if (ok)
        return out;
    json_decref(out);
    err_set(err, ERR_NOMEM, "no memory for an adapter's config");
    return NULL;
}

void peft_key(uint32_t layer, uint32_t target, char which, char name[128])
{
    const char *last = lora_target_name(target);
    snprintf(name, 128, "base_model.model.model.layers.%u.%s.%s.lora_%c.weight", layer,
             target & LORA_ATTENTION ? "self_attn" : "mlp", last ? last : "none", which);
}

struct peft_check {
    const struct peft *peft;
    uint32_t expected;
    struct err *err;
};

static int check_tensor(struct peft_check *c, const char *name, uint32_t rows, uint32_t cols)
{
    const struct safetensors_tensor *t = safetensors_find(c->peft->weights, name);
    c->expected++;
    if (!t)
        return err_set(c->err, ERR_INVALID, "%s: the tensor \"%s\" is missing", weights_name, name);
    if (t->rank != 2 || t->shape[0] != rows || t->shape[1] != cols)
        return err_set(c->err, ERR_INVALID, "%s: the tensor \"%s\" is not %u x %u", weights_name, name, rows,
                       cols);
    if (t->type != TENSOR_F32 && t->type != TENSOR_F16 && t->type != TENSOR_BF16 && t->type != TENSOR_F64)
        return err_set(c->err, ERR_UNSUPPORTED, "%s: the tensor \"%s\" is stored as %s", weights_name, name,
                       tensor_type_name(t->type));
    return 0;
}

/* The rank of the adapter on a layer's matrix; 0: it has none. */
static uint32_t rank_on(const struct lora_sites *sites, const struct block_tensor *tensor, const char *module)
{
    uint32_t target = lora_target_of(module);
    return target ? lora_rank_at(sites, tensor->block - 1, (uint32_t)__builtin_ctz(target)) : 0;
}

/* What the adapter must hold of one of the model's tensors. */
static int check_matrix(const struct block_tensor *tensor, void *arg)
{
    struct peft_check *c = arg;
    const struct peft_config *config = &c->peft->config;
    char module[96], name[160];
    int length = (int)strlen(tensor->name) - (int)strlen(".weight");
    if (tensor->rank != 2 || length <= 0 || strcmp(tensor->name + length, ".weight") != 0)
        return 0;
    snprintf(module, sizeof(module), "%.*s", length, tensor->name);
    if (strcmp(module, "model.embed_tokens") == 0 || strcmp(module, "lm_head") == 0) {
        bool saved = module[0] == 'l' ? config->saves_head : config->saves_embedding;
        snprintf(name, sizeof(name), "base_model.model.%s", tensor->name);
        return saved ? check_tensor(c, name, tensor->shape[0], tensor->shape[1]) : 0;
    }
    uint32_t rank = rank_on(&c->peft->sites, tensor, module);
    if (rank == 0)
        return 0;
    snprintf(name, sizeof(name), "base_model.model.%s.lora_A.weight", module);
    if (check_tensor(c, name, rank, tensor->shape[1]) < 0)
        return -1;
    snprintf(name, sizeof(name), "base_model.model.%s.lora_B.weight", module);
    return check_tensor(c, name, tensor->shape[0], rank);
}

struct peft_known {
    const char *name; /* a key without "base_model.model." */
    const struct lora_sites *sites;
    bool found;
};

static int know_matrix(const struct block_tensor *tensor, void *arg)
{
    struct peft_known *k = arg;
    size_t length = strlen(tensor->name) - strlen("weight");
    bool lora =
        strncmp(k->name, tensor->name, length) == 0 &&
        (strcmp(k->name + length, "lora_A.weight") == 0 || strcmp(k->name + length, "lora_B.weight") == 0);
    char module[96];
    snprintf(module, sizeof(module), "%.*s", (int)length - 1, tensor->name);
    k->found = lora && tensor->block > 0 && rank_on(k->sites, tensor, module) > 0;
    return k->found;
}

/* The key that is no part of such an adapter; NULL where each is. */
static const char *unknown_key(const struct peft *p, const struct model_config *model)
{
    static const char prefix[] = "base_model.model.";
    for (uint32_t i = 0; i < safetensors_count(p->weights); i++) {
        const char *name = safetensors_at(p->weights, i)->name;
        struct peft_known known = {.name = name + sizeof(prefix) - 1, .sites = &p->sites};
        if (strncmp(name, prefix, sizeof(prefix) - 1) != 0)
            return name;
        known.found = (p->config.saves_head && strcmp(known.name, "lm_head.weight") == 0) ||
                      (p->config.saves_embedding && strcmp(known.name, "model.embed_tokens.weight") == 0);
        if (!known.found)
            model_block_tensors(model, 0, model->layers + 2, know_matrix, &known);
        if (!known.found)
            return name;
    }
    return NULL;
}

/* Every target of every layer, and nothing else; a tied head that peft wrote beside the embedding is let
 * pass. */
static int check_weights(const struct peft *p, const struct model_config *model, struct err *err)
{
    struct peft_check check = {.peft = p, .err = err};
    if (model_block_tensors(model, 0, model->layers + 2, check_matrix, &check) < 0)
        return -1;
    if (model->tied && p->config.saves_embedding &&
        safetensors_find(p->weights, "base_model.model.lm_head.weight"))
        check.expected++;
    if (safetensors_count(p->weights) == check.expected)
        return 0;
    const char *unknown = unknown_key(p, model);
    return unknown
               ? err_set(err, ERR_UNSUPPORTED, "%s: the tensor \"%.200s\" belongs to no target of this model",
                         weights_name, unknown)
               : err_set(err, ERR_INVALID, "%s: %u tensors where %u were expected", weights_name,
                         safetensors_count(p->weights), check.expected);
}

static int open_parts(const void *config_json, size_t config_size, struct safetensors *weights,
                      const struct model_config *model, struct peft **peft, struct err *err)
{
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
    return open_parts(config_json, config_size, weights, model, peft, err);
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
        status = open_parts(text.data, text.size, weights, model, peft, err);
    buf_fini(&text);
    return status < 0 ? err_wrap(err, "adapter \"%s\"", dir) : 0;
}

void peft_close(struct peft *peft)
{
    if (!peft)
        return;
    safetensors_close(peft->weights);
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
    const struct safetensors_tensor *t = safetensors_find(peft->weights, name);
    if (!t)
        return err_set(err, ERR_NOT_FOUND, "the adapter has no tensor \"%s\"", name);
    return safetensors_read_f32(peft->weights, t, dst, count, err);
}

static int compare_item(const void *a, const void *b)
{
    return strcmp(((const struct safetensors_item *)a)->name, ((const struct safetensors_item *)b)->name);
}

/* Both files into an existing folder; then what was written is opened as a reader would. */
static int write_files(const char *dir, const struct peft_config *config, const char *base_model,
                       const struct model_config *model, const struct safetensors_item *items, uint32_t count,
                       struct err *err)
{
    static const struct safetensors_meta meta = {"format", "pt"};
    char path[PATH_BYTES];
    struct buf text = {.limit = CONFIG_BYTES_MAX};
    struct peft *check = NULL;
    int status = -1;
    json_t *document = peft_config_to_json(config, base_model, err);
    struct safetensors_item *sorted = malloc((count ? count : 1) * sizeof(*sorted));
    if (!document || !sorted) {
        if (!sorted)
            err_set(err, ERR_NOMEM, "no memory for %u tensors", count);
        goto out;
    }
    if (count)
        memcpy(sorted, items, count * sizeof(*sorted));
    qsort(sorted, count, sizeof(*sorted), compare_item);
    if (file_path(path, sizeof(path), err, "%s/%s", dir, weights_name) < 0 ||
        safetensors_write(path, sorted, count, &meta, 1, err) < 0 ||
        json_print(document, false, &text, err) < 0 || /* the order of patterns counts */
        file_path(path, sizeof(path), err, "%s/%s", dir, config_name) < 0 ||
        file_write_atomic(path, text.data, text.size, 0644, err) < 0 ||
        peft_open(dir, model, &check, err) < 0)
        goto out;
    status = 0;
out:
    peft_close(check);
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
    if (write_files(made, config, base_model, model, items, count, err) < 0 ||
        file_folder_end(made, dir, err) < 0) {
        file_remove_tree(made, &ignored);
        return -1;
    }
    return 0;
}
