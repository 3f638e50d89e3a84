/* peft's adapter folders. What peft can do and we cannot is refused by its own key, so that nobody trains on
 * with an adapter that means something else here. */
#include "model/peft.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/digest.h"
#include "common/file.h"
#include "model/hub_json.h"
#include "model/source.h"

enum { CONFIG_BYTES_MAX = 1 << 20, PATH_BYTES = 4096 };

static const char config_name[] = "adapter_config.json";
static const char weights_name[] = "adapter_model.safetensors";

struct peft {
    struct peft_config config;
    struct safetensors *weights;
};

/* Read elsewhere or of no meaning for the arithmetic, whatever the value. */
static const char *const free_keys[] = {
    "base_model_name_or_path",
    "inference_mode",
    "init_lora_weights",
    "lora_alpha",
    "lora_dropout",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "target_modules",
    "task_type",
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

static int parse_targets(const json_t *value, uint32_t *mask, struct err *err)
{
    *mask = 0;
    if (json_is_string(value) && strcmp(json_string_value(value), "all-linear") == 0) {
        *mask = LORA_ALL;
        return 0;
    }
    if (!json_is_array(value) || json_array_size(value) == 0)
        return err_set(err, ERR_UNSUPPORTED, "%s: target_modules: only a list of module names is supported",
                       config_name);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *name = json_string_value(json_array_get(value, i));
        uint32_t bit = name ? lora_target_from_name(name) : 0;
        if (!bit)
            return err_set(
                err, ERR_UNSUPPORTED,
                "%s: target_modules: \"%.64s\" is not supported; q_proj, k_proj, v_proj, o_proj, gate_proj, "
                "up_proj, down_proj, qkv_proj and gate_up_proj are",
                config_name, name ? name : "(no text)");
        *mask |= bit;
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
    jr_u32(&r, "r", JR_REQUIRED, 1, 65536, &config->rank);
    config->alpha = 8; /* peft's default */
    jr_f64(&r, "lora_alpha", JR_OPTIONAL, 1e-9, 1e9, &config->alpha);
    jr_f64(&r, "lora_dropout", JR_OPTIONAL, 0, 1, &config->dropout);
    if (jr_finish_loose(&r) < 0 || check_init(json_object_get(document, "init_lora_weights"), err) < 0)
        return -1;
    return parse_targets(json_object_get(document, "target_modules"), &config->targets, err);
}

json_t *peft_config_to_json(const struct peft_config *config, const char *base_model, struct err *err)
{
    static const char *const nulls[] = {
        "alora_invocation_tokens",
        "arrow_config",
        "auto_mapping",
        "corda_config",
        "eva_config",
        "exclude_modules",
        "layer_replication",
        "layers_pattern",
        "layers_to_transform",
        "megatron_config",
        "modules_to_save",
        "revision",
        "target_parameters",
        "trainable_token_indices",
    };
    static const char *const falses[] = {"ensure_weight_tying", "fan_in_fan_out", "lora_bias", "use_dora",
                                         "use_qalora",          "use_rslora"};
    json_t *out = json_object(), *targets = json_array();
    bool whole = floor(config->alpha) == config->alpha && config->alpha < 1e9;
    bool ok = out && targets;
    for (size_t i = 0; ok && i < sizeof(nulls) / sizeof(nulls[0]); i++)
        ok = json_object_set_new(out, nulls[i], json_null()) == 0;
    for (size_t i = 0; ok && i < sizeof(falses) / sizeof(falses[0]); i++)
        ok = json_object_set_new(out, falses[i], json_false()) == 0;
    for (uint32_t bit = 1; ok && bit < LORA_ALL; bit <<= 1)
        if (config->targets & bit)
            ok = json_array_append_new(targets, json_string(lora_target_name(bit))) == 0;
    ok = ok && json_object_set_new(out, "alpha_pattern", json_object()) == 0 &&
         json_object_set_new(out, "rank_pattern", json_object()) == 0 &&
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
         json_object_set_new(out, "task_type", json_string("CAUSAL_LM")) == 0 &&
         json_object_set(out, "target_modules", targets) == 0;
    json_decref(targets);
    if (ok)
        return out;
    json_decref(out);
    err_set(err, ERR_NOMEM, "no memory for an adapter's config");
    return NULL;
}

void peft_key(uint32_t layer, uint32_t target, char which, char name[128])
{
    const char *target_name = lora_target_name(target);
    snprintf(name, 128, "base_model.model.model.layers.%u.%s.%s.lora_%c.weight", layer,
             target & LORA_ATTENTION ? "self_attn" : "mlp", target_name ? target_name : "none", which);
}

static int check_weight(const struct peft *p, const struct model_config *model, uint32_t layer,
                        uint32_t target, char which, struct err *err)
{
    char name[128];
    uint32_t rows, cols;
    lora_target_shape(model, target, &rows, &cols);
    if (which == 'A')
        rows = p->config.rank;
    else
        cols = p->config.rank;
    peft_key(layer, target, which, name);
    const struct safetensors_tensor *t = safetensors_find(p->weights, name);
    if (!t)
        return err_set(err, ERR_INVALID, "%s: the tensor \"%s\" is missing", weights_name, name);
    if (t->rank != 2 || t->shape[0] != rows || t->shape[1] != cols)
        return err_set(err, ERR_INVALID, "%s: the tensor \"%s\" is not %u x %u", weights_name, name, rows,
                       cols);
    if (t->type != TENSOR_F32 && t->type != TENSOR_F16 && t->type != TENSOR_BF16 && t->type != TENSOR_F64)
        return err_set(err, ERR_UNSUPPORTED, "%s: the tensor \"%s\" is stored as %s", weights_name, name,
                       tensor_type_name(t->type));
    return 0;
}

/* Every target of every layer, and nothing else. */
static int check_weights(const struct peft *p, const struct model_config *model, struct err *err)
{
    uint32_t expected = 0, targets = p->config.targets & model_lora_targets(model);
    if (targets == 0)
        return err_set(err, ERR_INVALID, "%s: target_modules: the model has none of them", config_name);
    for (uint32_t layer = 0; layer < model->layers; layer++)
        for (uint32_t bit = 1; bit < LORA_ALL; bit <<= 1) {
            if (!(targets & bit))
                continue;
            if (!(bit & LORA_ATTENTION) && model_layer_is_sparse(model, layer))
                return err_set(err, ERR_UNSUPPORTED, "%s: adapters on experts are not supported",
                               config_name);
            if (check_weight(p, model, layer, bit, 'A', err) < 0 ||
                check_weight(p, model, layer, bit, 'B', err) < 0)
                return -1;
            expected += 2;
        }
    if (safetensors_count(p->weights) == expected)
        return 0;
    for (uint32_t i = 0; i < safetensors_count(p->weights); i++) {
        const char *name = safetensors_at(p->weights, i)->name;
        char key[128];
        bool known = false;
        uint32_t layer = 0;
        if (sscanf(name, "base_model.model.model.layers.%u.", &layer) == 1 && layer < model->layers)
            for (uint32_t bit = 1; !known && bit < LORA_ALL; bit <<= 1)
                for (int which = 'A'; (targets & bit) && !known && which <= 'B'; which++) {
                    peft_key(layer, bit, (char)which, key);
                    known = strcmp(key, name) == 0;
                }
        if (!known)
            return err_set(err, ERR_UNSUPPORTED,
                           "%s: the tensor \"%.200s\" belongs to no target of this model", weights_name,
                           name);
    }
    return err_set(err, ERR_INVALID, "%s: %u tensors where %u were expected", weights_name,
                   safetensors_count(p->weights), expected);
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
    free(peft);
}

const struct peft_config *peft_get_config(const struct peft *peft)
{
    return &peft->config;
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
        json_print(document, true, &text, err) < 0 ||
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

/* Put 'made' where 'dir' is; what was there goes aside first and away after. */
static int replace_folder(const char *made, const char *dir, const char *aside, struct err *err)
{
    struct err ignored;
    bool moved = rename(dir, aside) == 0;
    if (!moved && errno != ENOENT)
        return err_errno(err, ERR_IO, errno, "could not replace folder \"%s\"", dir);
    if (rename(made, dir) < 0) {
        err_errno(err, ERR_IO, errno, "could not rename \"%s\" to \"%s\"", made, dir);
        if (moved && rename(aside, dir) < 0)
            err_wrap(err, "the old one is at \"%s\"", aside);
        return -1;
    }
    if (moved)
        file_remove_tree(aside, &ignored);
    return 0;
}

int peft_write(const char *dir, const struct peft_config *config, const char *base_model,
               const struct model_config *model, const struct safetensors_item *items, uint32_t count,
               struct err *err)
{
    char made[PATH_BYTES], aside[PATH_BYTES], random[17];
    struct err ignored;
    int length = (int)strlen(dir);
    while (length > 1 && dir[length - 1] == '/')
        length--;
    if (random_hex(random, 8, err) < 0 ||
        file_path(made, sizeof(made), err, "%.*s.%s.tmp", length, dir, random) < 0 ||
        file_path(aside, sizeof(aside), err, "%.*s.%s.old", length, dir, random) < 0 ||
        file_mkdirs(made, 0755, err) < 0)
        return -1;
    if (write_files(made, config, base_model, model, items, count, err) < 0 ||
        replace_folder(made, dir, aside, err) < 0) {
        file_remove_tree(made, &ignored);
        return -1;
    }
    return 0;
}
