/* Converts a config.json to struct model_config. Absent keys get the defaults of `transformers`, for which a
 * file that omits them was written; the defaults are in arch_table.c. */
#include "model/shape/config.h"

#include <math.h>
#include <string.h>

#include "model/shape/arch.h"
#include "model/shape/config_delta.h"
#include "model/shape/config_experts.h"
#include "model/shape/config_heads.h"
#include "model/shape/config_keys.h"
#include "model/shape/config_plain.h"
#include "model/files/hub_json.h"
#include "model/shape/nf4_skipped.h"
#include "model/shape/packing.h"
#include "model/shape/rope.h"

enum { VOCAB_MAX = 1 << 22 };

static int refuse_arch(const char *name, struct err *err)
{
    char known[512];
    arch_outer_list(name, known, sizeof(known));
    if (known[0])
        return err_set(err, ERR_UNSUPPORTED,
                       "text_config: missing; a model of type \"%.64s\" has one, whose model_type is %s",
                       name, known);
    arch_list(false, known, sizeof(known));
    return err_set(err, ERR_UNSUPPORTED, "model_type: the architecture \"%.64s\" is not known; known are %s",
                   name, known);
}

/* Returns whether the class is the model without its head ("LlamaModel"), which people also save. */
static bool is_body_of(const char *class_name, const char *expected)
{
    const char *const tails[] = {"Model", "TextModel"};
    size_t stem = strcspn(expected, "F");
    while (expected[stem] && strncmp(expected + stem, "For", 3) != 0)
        stem += 1 + strcspn(expected + stem + 1, "F");
    for (size_t i = 0; i < 2; i++)
        if (strncmp(class_name, expected, stem) == 0 && strcmp(class_name + stem, tails[i]) == 0)
            return true;
    return false;
}

/* Reads model_type and the first of `architectures` (NULL where there is none). transformers uses model_type
 * alone. */
static int parse_names(struct json_reader *r, const char **type, const char **class_name)
{
    const json_t *classes = NULL;
    *class_name = NULL;
    jr_str(r, "model_type", JR_REQUIRED, 1, 64, type);
    jr_array(r, "architectures", JR_OPTIONAL, 0, 16, &classes);
    if (r->failed)
        return -1;
    if (classes && json_array_size(classes) > 0) {
        *class_name = json_string_value(json_array_get(classes, 0));
        if (!*class_name)
            return jr_fail(r, "architectures", "the first element is not a text");
    }
    return 0;
}

static int refuse_class(struct json_reader *r, const char *class_name, const char *type, const char *expected)
{
    return err_set(r->err, ERR_UNSUPPORTED,
                   "architectures: \"%.64s\" is not the language model of model_type \"%s\" (that is \"%s\")",
                   class_name, type, expected);
}

/* Finds the architecture by model_type, which must not contradict `architectures`. */
static int parse_arch(struct json_reader *r, enum model_arch *arch)
{
    const char *type = NULL, *class_name;
    if (parse_names(r, &type, &class_name) < 0)
        return -1;
    int found = arch_find(type);
    if (found < 0)
        return refuse_arch(type, r->err);
    const struct arch *a = arch_of((enum model_arch)found);
    bool other = class_name && a->class_too && strcmp(class_name, a->class_too) == 0;
    if (class_name && strcmp(class_name, a->class_name) != 0 && !other &&
        !is_body_of(class_name, a->class_name))
        return refuse_class(r, class_name, a->model_type, a->class_name);
    *arch = (enum model_arch)found;
    return 0;
}

/* The following functions refuse switches that change the arithmetic and that Motley does not compute. */
/* Returns true where a model's experts are in MXFP4, which transformers knows for gpt-oss. */
static bool is_mxfp4(const json_t *config, const struct arch *a)
{
    const char *method = json_string_value(json_object_get(config, "quant_method"));
    return a->expert_bias && method && strcmp(method, "mxfp4") == 0;
}

/* Refuses weights that another library quantised; bitsandbytes' NF4 is read. */
static int refuse_quantisation(const json_t *config, struct err *err)
{
    const char *method = json_string_value(json_object_get(config, "quant_method")),
               *type = json_string_value(json_object_get(config, "bnb_4bit_quant_type"));
    bool four = json_is_true(json_object_get(config, "load_in_4bit")),
         eight = json_is_true(json_object_get(config, "load_in_8bit"));
    /* configs from before transformers 4.34 have no quant_method; bitsandbytes was the only library */
    if (!method && (four || eight))
        method = "bitsandbytes";
    if (!method || strcmp(method, "bitsandbytes") != 0)
        return err_set(
            err, ERR_UNSUPPORTED,
            "quantization_config.quant_method: weights quantised by \"%.40s\" are not read; those of "
            "bitsandbytes in NF4 are, gpt-oss's in MXFP4, and GGUF's",
            method ? method : "");
    if (!four || eight)
        return err_set(err, ERR_UNSUPPORTED,
                       "quantization_config.load_in_%s: bitsandbytes' 8-bit weights are not read; its NF4 is",
                       eight ? "8bit" : "4bit");
    if (!type || strcmp(type, "nf4") != 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "quantization_config.bnb_4bit_quant_type: \"%.20s\" is not read; nf4 is",
                       type ? type : "fp4");
    return 0;
}

static int refuse_switches(struct json_reader *r, const struct arch *a)
{
    static const char *const zero[] = {"attention_dropout", "residual_dropout",  "resid_pdrop",
                                       "embd_pdrop",        "embedding_dropout", "router_jitter_noise",
                                       "hidden_dropout"};
    static const char *const off[] = {"rope_interleaved", "use_bidirectional_attention", "conv_bias",
                                      "qk_layernorm"};
    static const char *const absent[] = {"clip_qkv"};
    const char *key = arch_act_key(a), *only = a->gelu ? "gelu_pytorch_tanh" : "silu", *act = only;
    const char *too = a->gelu_as_act ? "gelu" : a->gelu ? only : "swish"; /* another name of the same */
    const json_t *value = NULL;
    jr_str(r, key, JR_OPTIONAL, 1, 64, &act);
    for (size_t i = 0; i < sizeof(zero) / sizeof(zero[0]); i++) {
        /* of the keys above, the classes with a default have it for the first two */
        double given = i < 2 ? a->dropout : 0;
        if (jr_f64(r, zero[i], JR_OPTIONAL, 0, 1, &given) >= 0 && given != 0)
            return config_refuse_value(r, zero[i], given, 0);
    }
    for (size_t i = 0; i < sizeof(off) / sizeof(off[0]); i++) {
        bool given = false;
        const char *text = a->full_heads ? json_string_value(json_object_get(r->object, off[i])) : NULL;
        if (text && strcmp(text, "vision") != 0)
            return err_set(r->err, ERR_UNSUPPORTED,
                           "%s: \"%.40s\" is not supported; only vision is, with which text is not", off[i],
                           text);
        if (text)
            continue;
        if (jr_bool(r, off[i], JR_OPTIONAL, &given) > 0 && given)
            return err_set(r->err, ERR_UNSUPPORTED, "%s: not supported; it must be false", off[i]);
    }
    bool biased = false;
    if (a->sparse && jr_bool(r, "use_bias", JR_OPTIONAL, &biased) > 0 && biased)
        return err_set(r->err, ERR_UNSUPPORTED, "use_bias: not supported in a mixture; it must be false");
    for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++)
        if (jr_any(r, absent[i], JR_OPTIONAL, &value) > 0)
            return err_set(r->err, ERR_UNSUPPORTED, "%s: not supported; it must be absent or null",
                           absent[i]);
    if (jr_any(r, "quantization_config", JR_OPTIONAL, &value) > 0 && !is_mxfp4(value, a) &&
        refuse_quantisation(value, r->err) < 0)
        return -1;
    if (r->failed)
        return -1;
    if (!a->act && strcmp(act, only) != 0 && strcmp(act, too) != 0)
        return err_set(r->err, ERR_UNSUPPORTED, "%s: \"%.64s\" is not supported; only %s is", key, act, only);
    return 0;
}

static void set_theta(json_t *settings, const json_t *config, const char *key, double otherwise)
{
    json_t *given = key ? json_object_get(config, key) : NULL;
    if (json_object_get(settings, "rope_theta"))
        return;
    json_object_set_new(settings, "rope_theta", given ? json_incref(given) : json_real(otherwise));
}

static json_t *copy_or_empty(const json_t *object)
{
    return json_is_object(object) ? json_deep_copy(object) : json_object();
}

/* Makes the setting of windowed layers where they have their own: rope_scaling overrides the keys of the
 * other layers' setting. */
static json_t *rope_settings_by_type(struct json_reader *r, const struct arch *a, const json_t *parameters,
                                     const json_t *scaling)
{
    if (json_object_get(parameters, "rope_type") || json_object_get(parameters, "rope_theta")) {
        err_set(r->err, ERR_UNSUPPORTED,
                "rope_parameters: must be given for full_attention and sliding_attention");
        return NULL;
    }
    static const char *const types[] = {"full_attention", "sliding_attention"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *given = json_object_get(parameters, types[i]);
        if (given && !json_is_object(given) && !json_is_null(given)) {
            err_set(r->err, ERR_INVALID, "rope_parameters.%s: must be an object", types[i]);
            return NULL;
        }
    }
    if (!parameters && a->rope_default)
        return json_loads(a->rope_default, 0, NULL);
    json_t *settings = json_object();
    json_t *full = copy_or_empty(json_object_get(parameters, "full_attention"));
    json_t *local = copy_or_empty(json_object_get(parameters, "sliding_attention"));
    if (!parameters)
        json_object_set_new(full, "rope_type", json_string("default"));
    if (scaling)
        json_object_update(full, (json_t *)(uintptr_t)scaling);
    set_theta(full, r->object, "rope_theta", a->theta);
    set_theta(local, r->object, a->theta_local_key, a->theta_local);
    json_object_set_new(settings, "full_attention", full);
    json_object_set_new(settings, "sliding_attention", local);
    return settings;
}

/* Merges rotary settings that stand in several places, as transformers 5 does: rope_scaling, unless empty,
 * replaces rope_parameters, and a rope_theta that is missing in both comes from the key beside them. Returns
 * new. */
static json_t *rope_settings(struct json_reader *r, const struct arch *a, const char **path)
{
    const json_t *parameters = NULL, *scaling = NULL, *value;
    const char *key;
    jr_object(r, "rope_parameters", JR_OPTIONAL, &parameters);
    jr_object(r, "rope_scaling", JR_OPTIONAL, &scaling);
    if (r->failed)
        return NULL;
    if (a->rope_by_type)
        return rope_settings_by_type(r, a, parameters, scaling);
    const json_t *counts = scaling && json_object_size(scaling) > 0 ? scaling : parameters;
    *path = counts == scaling && scaling ? "rope_scaling" : "rope_parameters";
    json_object_foreach ((json_t *)(uintptr_t)counts, key, value) {
        if (json_is_object(value)) {
            err_set(r->err, ERR_UNSUPPORTED,
                    "%s.%.64s: settings by layer are not known for this architecture", *path, key);
            return NULL;
        }
    }
    json_t *settings =
        !counts && a->rope_default ? json_loads(a->rope_default, 0, NULL) : copy_or_empty(counts);
    set_theta(settings, r->object, "rope_theta", a->theta);
    const char *type = json_string_value(json_object_get(settings, "rope_type"));
    type = type ? type : json_string_value(json_object_get(settings, "type"));
    if (a->rope_sections && type && strcmp(type, "mrope") == 0)
        json_object_set_new(settings, "rope_type", json_string("default"));
    return settings;
}

/* Reads how many of a head's values are rotated. */
static int parse_partial_rotary(struct json_reader *r, const json_t *settings, struct model_config *c)
{
    double otherwise = arch_of(c->arch)->partial_rotary, factor = otherwise > 0 ? otherwise : 1;
    const json_t *given = json_object_get(settings, "partial_rotary_factor");
    jr_f64(r, "partial_rotary_factor", JR_OPTIONAL, 0, 1, &factor);
    if (!given && otherwise > 0 && json_is_null(json_object_get(r->object, "partial_rotary_factor")))
        return jr_fail(r, "partial_rotary_factor", "must be a number, is null");
    if (json_is_number(given))
        factor = json_number_value(given);
    if (r->failed || factor == 1)
        return r->failed ? -1 : 0;
    if (!(otherwise > 0))
        return config_refuse_value(r, "partial_rotary_factor", factor, 1);
    uint32_t dim = factor > 0 && factor < 1 ? (uint32_t)(c->head_dim * factor) : 0;
    if (dim == 0 || dim % 2 != 0)
        return jr_fail(r, "partial_rotary_factor", "%g of head_dim, %u, is not an even number", factor,
                       c->head_dim);
    c->rotary_dim = dim;
    return 0;
}

/* Reads the factor by which q grows with the position; its unit of positions is that of yarn or llama3. */
static int query_beta_read(const json_t *settings, const char *path, struct rope_config *rope,
                           struct err *err)
{
    struct json_reader r;
    jr_init(&r, settings, path, err);
    jr_f64(&r, "llama_4_scaling_beta", JR_REQUIRED, 0, 1e6, &rope->query_beta);
    if (!r.failed && rope->kind != ROPE_YARN && rope->kind != ROPE_LLAMA3)
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: \"%s\" is not known beside llama_4_scaling_beta; yarn and llama3 are", path,
                       rope->kind_name);
    return r.failed ? -1 : 0;
}

/* Proportional frequencies and Gemma 4's two kinds of heads go together. */
static int rope_kind_check(const struct rope_config *rope, const struct arch *a, struct err *err)
{
    bool fits = a->full_heads ? rope->kind == ROPE_PROPORTIONAL || rope->kind == ROPE_DEFAULT
                              : rope->kind != ROPE_PROPORTIONAL;
    return fits ? 0
                : err_set(err, ERR_UNSUPPORTED,
                          "rope_parameters: \"%s\" is not known in a model of type \"%s\"", rope->kind_name,
                          a->model_type);
}

/* Reads which values of a head latent attention rotates as pairs, and scales the scores where YaRN says so.
 */
static int latent_rope(struct json_reader *r, const char *path, struct model_config *c)
{
    double mscale = rope_magnitude(c->rope.factor, c->rope.scores_mscale);
    if (c->rope.kind != ROPE_DEFAULT && c->rope.kind != ROPE_YARN)
        return err_set(r->err, ERR_UNSUPPORTED, "%s: \"%s\" is not known for %s; default and yarn are", path,
                       c->rope.kind_name, model_arch_name(c->arch));
    if (c->rope.scores_mscale > 0)
        c->attn_scale = mscale * mscale / sqrt((double)c->head_dim);
    c->rope_adjacent = true;
    if (arch_of(c->arch)->latent.pairs_given &&
        jr_bool(r, "rope_interleave", JR_OPTIONAL, &c->rope_adjacent) < 0)
        return -1;
    return 0;
}

static int parse_rope_settings(struct json_reader *r, const json_t *settings, const char *path,
                               struct model_config *c)
{
    const struct arch *a = arch_of(c->arch);
    const json_t *full = a->rope_by_type ? json_object_get(settings, "full_attention") : settings;
    double original = 0;
    jr_f64(r, "original_max_position_embeddings", JR_OPTIONAL, 1, 1e9, &original);
    c->rope = c->rope_local = (struct rope_config){.factor = 1};
    if (r->failed || rope_parse(full, a->rope_by_type ? "rope_parameters.full_attention" : path,
                                c->max_positions, a->rope_by_type ? 0 : original, &c->rope, r->err) < 0)
        return -1;
    const json_t *head_dim = json_object_get(r->object, "head_dim");
    if (c->arch == MODEL_MIXTRAL && c->rope.kind >= ROPE_YARN && (!head_dim || json_is_null(head_dim)))
        return jr_fail(
            r, "head_dim",
            "must be given where rope_type is \"%s\": transformers computes that from it in a model of "
            "type \"mixtral\"",
            c->rope.kind_name);
    if (a->packed_qkv && !a->qkv_by_head && c->rope.kind != ROPE_DEFAULT && c->rope.kind != ROPE_LONGROPE)
        return err_set(r->err, ERR_UNSUPPORTED, "%s: \"%s\" is not known for %s; default and longrope are",
                       path, c->rope.kind_name, a->model_type);
    if (a->query_beta && query_beta_read(settings, path, &c->rope, r->err) < 0)
        return -1;
    if (a->latent.kv > 0 && latent_rope(r, path, c) < 0)
        return -1;
    c->rope_local_set = a->rope_by_type;
    if (!a->rope_by_type)
        memset(&c->rope_local, 0, sizeof(c->rope_local));
    else if (rope_parse(json_object_get(settings, "sliding_attention"), "rope_parameters.sliding_attention",
                        c->max_positions, 0, &c->rope_local, r->err) < 0)
        return -1;
    if (rope_kind_check(&c->rope, a, r->err) < 0 || rope_kind_check(&c->rope_local, a, r->err) < 0)
        return -1;
    return parse_partial_rotary(r, settings, c);
}

static int parse_rope(struct json_reader *r, struct model_config *c)
{
    const char *path = "rope_parameters";
    json_t *settings = rope_settings(r, arch_of(c->arch), &path);
    int status = settings ? parse_rope_settings(r, settings, path, c) : -1;
    json_decref(settings);
    return status;
}

static int check_factors(const struct model_config *c, struct err *err)
{
    if (rope_check_factors(&c->rope, model_rotary(c, false), err) < 0)
        return -1;
    return c->rope_local_set ? rope_check_factors(&c->rope_local, model_rotary(c, true), err) : 0;
}

/* Reads no_rope_layers, which tells for each layer whether it is rotated and may be longer than the model. */
static int parse_no_rope(struct json_reader *r, struct model_config *c)
{
    uint32_t period = arch_of(c->arch)->no_rope_period;
    const json_t *list = NULL;
    if (period == 0)
        return 0;
    jr_u32(r, "no_rope_layer_interval", JR_OPTIONAL, 1, MODEL_LAYERS_MAX, &period);
    jr_array(r, "no_rope_layers", JR_OPTIONAL, 0, MODEL_LAYERS_MAX, &list);
    if (r->failed)
        return -1;
    if (list && json_array_size(list) < c->layers)
        return jr_fail(r, "no_rope_layers", "has %zu entries for num_hidden_layers, %u",
                       json_array_size(list), c->layers);
    for (uint32_t i = 0; i < c->layers; i++) {
        const json_t *rotated = list ? json_array_get(list, i) : NULL;
        if (rotated && !json_is_integer(rotated) && !json_is_boolean(rotated))
            return jr_fail(r, "no_rope_layers", "element %u is neither 0 nor 1", i);
        if (rotated ? json_is_false(rotated) || (json_is_integer(rotated) && !json_integer_value(rotated))
                    : (i + 1) % period == 0)
            model_layer_mark(c->no_rope_layer, i);
    }
    return 0;
}

/* Reads layer_types, which tells the layers that use the window. */
static int parse_layer_types(struct json_reader *r, uint32_t layers, uint8_t *windowed)
{
    const json_t *types = NULL;
    if (jr_array(r, "layer_types", JR_OPTIONAL, 0, MODEL_LAYERS_MAX, &types) <= 0)
        return r->failed ? -1 : 0;
    if (json_array_size(types) != layers)
        return jr_fail(r, "layer_types", "has %zu entries for num_hidden_layers, %u", json_array_size(types),
                       layers);
    memset(windowed, 0, MODEL_LAYERS_MAX / 8);
    for (uint32_t i = 0; i < layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type && strcmp(type, "sliding_attention") == 0)
            model_layer_mark(windowed, i);
        else if (!type || strcmp(type, "full_attention") != 0)
            return err_set(r->err, ERR_UNSUPPORTED,
                           "layer_types[%u]: only full_attention and sliding_attention are known", i);
    }
    return 0;
}

/* Marks the layers with a window by the architecture's own rule. Returns false when there are none. */
static bool window_by_rule(struct json_reader *r, struct model_config *c)
{
    const struct arch *a = arch_of(c->arch);
    uint32_t from = a->max_window_layers, end = c->layers, period = a->window_period;
    bool even = a->windows == ARCH_WINDOW_EVEN;
    bool use = a->windows == ARCH_WINDOW_EVERY || a->windows == ARCH_WINDOW_BEHIND ||
               a->windows == ARCH_WINDOW_BUT_LAST || a->windows == ARCH_WINDOW_BUT_FIRST ||
               a->windows == ARCH_WINDOW_ALL;
    if (a->windows == ARCH_WINDOW_BUT_LAST) {
        if (a->window_period_given)
            jr_u32(r, "sliding_window_pattern", JR_OPTIONAL, 1, MODEL_LAYERS_MAX, &period);
    } else if (!use && a->windows != ARCH_WINDOW_NONE) {
        jr_bool(r, "use_sliding_window", JR_OPTIONAL, &use);
    }
    if (from > 0)
        jr_u32(r, "max_window_layers", JR_OPTIONAL, 0, 1 << 20, &from);
    if (even) {
        end = from < end ? from : end;
        from = 0;
    }
    for (uint32_t i = from; use && i < end; i++)
        if (even                                  ? i % 2 == 0
            : a->windows == ARCH_WINDOW_UNROTATED ? !model_layer_rotates(c, i)
            : a->windows == ARCH_WINDOW_BUT_FIRST ? i % period != 0
                                                  : period == 0 || (i + 1) % period != 0)
            model_layer_mark(c->window_layer, i);
    return use;
}

static int parse_window(struct json_reader *r, struct model_config *c)
{
    uint32_t window = arch_of(c->arch)->window;
    const json_t *given = json_object_get(r->object, "sliding_window");
    if (given && json_is_null(given))
        window = 0;
    jr_u32(r, "sliding_window", JR_OPTIONAL, 0, 1 << 30, &window);
    if (!window_by_rule(r, c))
        window = 0;
    const struct arch *a = arch_of(c->arch);
    if (a->delta || a->scan || a->conv)
        return a->delta  ? config_delta_parse(r, c)
               : a->scan ? config_scan_parse(r, c)
                         : config_conv_parse(r, c);
    bool listed =
        /* Classes with the earlier rules check layer_types but do not follow it. */
        a->windows >= ARCH_WINDOW_FROM;
    uint8_t types[sizeof(c->window_layer)] = {0};
    memcpy(types, c->window_layer, sizeof(types));
    if (r->failed || parse_layer_types(r, c->layers, types) < 0)
        return -1;
    if (a->last_full)
        types[(c->layers - 1) / 8] &= (uint8_t)~(1u << (c->layers - 1) % 8);
    bool any = false, any_type = false;
    if (listed)
        memcpy(c->window_layer, types, sizeof(types));
    for (size_t i = 0; i < sizeof(types); i++) {
        any = any || c->window_layer[i] != 0;
        any_type = any_type || types[i] != 0;
    }
    if (any_type && window == 0 && json_is_array(json_object_get(r->object, "layer_types")))
        return jr_fail(r, "layer_types",
                       "names sliding_attention, but there is no sliding_window that is used");
    if (any && window == 0 && given && (json_is_integer(given) || a->windows == ARCH_WINDOW_BUT_LAST))
        return jr_fail(r, "sliding_window", "must be a whole number from 1, as layers have a window");
    if (window > 0 && json_is_array(json_object_get(r->object, "layer_types")) &&
        memcmp(types, c->window_layer, sizeof(types)) != 0)
        return jr_fail(r, "layer_types",
                       "names other layers than those that have the window in a model of type \"%s\"",
                       model_arch_name(c->arch));
    c->window = any ? window : 0;
    if (c->window == 0)
        memset(c->window_layer, 0, sizeof(c->window_layer));
    return 0;
}

/* Reads a size that must be present unless the architecture has a default for it. */
static void parse_size(struct json_reader *r, const char *key, uint32_t most, uint32_t otherwise,
                       uint32_t *out)
{
    *out = otherwise;
    jr_u32(r, key, otherwise ? JR_OPTIONAL : JR_REQUIRED, 1, most, out);
}

static int parse_sizes(struct json_reader *r, struct model_config *c)
{
    const struct arch *a = arch_of(c->arch);
    parse_size(r, "hidden_size", CONFIG_HIDDEN_MAX, a->hidden, &c->hidden);
    parse_size(r, "num_hidden_layers", MODEL_LAYERS_MAX, a->layers, &c->layers);
    parse_size(r, "num_attention_heads", CONFIG_HEADS_MAX, a->heads, &c->heads);
    parse_size(r, "vocab_size", VOCAB_MAX, a->vocab, &c->vocab);
    parse_size(r, "intermediate_size", CONFIG_FFN_MAX, a->ffn, &c->ffn);
    const json_t *kv_heads = json_object_get(r->object, "num_key_value_heads");
    /* null means as many as heads, while an absent key takes the architecture's default */
    c->kv_heads = a->kv_heads && !json_is_null(kv_heads) ? a->kv_heads : c->heads;
    jr_u32(r, "num_key_value_heads", JR_OPTIONAL, 1, CONFIG_HEADS_MAX, &c->kv_heads);
    c->head_dim = a->head_dim;
    jr_u32(r, "head_dim", JR_OPTIONAL, 2, CONFIG_HEAD_DIM_MAX, &c->head_dim);
    c->max_positions = a->max_positions;
    jr_u32(r, "max_position_embeddings", JR_OPTIONAL, 1, 1 << 30, &c->max_positions);
    c->norm_eps = a->norm_eps;
    jr_f64(r, arch_norm_eps_key(a), JR_OPTIONAL, 1e-30, 1, &c->norm_eps);
    if (r->failed || (a->conv && config_block_ffn_parse(r, c) < 0))
        return -1;
    if (a->latent.kv > 0 && config_latent_parse(r, c) < 0)
        return -1;
    if (a->qkv_by_head && c->kv_heads != c->heads)
        return config_refuse_value(r, "num_key_value_heads", c->kv_heads, c->heads);
    if (c->heads % c->kv_heads != 0)
        return jr_fail(r, "num_key_value_heads", "%u does not divide num_attention_heads, %u", c->kv_heads,
                       c->heads);
    if (a->whole_heads && c->hidden % c->heads != 0)
        return jr_fail(r, "hidden_size", "%u is no multiple of num_attention_heads, %u", c->hidden, c->heads);
    if (c->head_dim == 0) {
        if (c->hidden % c->heads != 0)
            return jr_fail(r, "hidden_size",
                           "%u is no multiple of num_attention_heads, %u, and there is no head_dim",
                           c->hidden, c->heads);
        c->head_dim = c->hidden / c->heads;
    }
    if (a->heads_fill_hidden && (uint64_t)c->head_dim * c->heads != c->hidden)
        return jr_fail(r, "head_dim", "%u heads of %u are not as wide as hidden_size, %u", c->heads,
                       c->head_dim, c->hidden);
    if (c->head_dim % 2 != 0 || c->head_dim > CONFIG_HEAD_DIM_MAX)
        return jr_fail(r, "head_dim",
                       "%u (hidden_size by num_attention_heads, where it is not given) is not an even number "
                       "of at most %d",
                       c->head_dim, CONFIG_HEAD_DIM_MAX);
    if ((uint64_t)c->heads * c->head_dim > CONFIG_HIDDEN_MAX)
        return jr_fail(r, "head_dim", "%u heads of %u are wider than %d", c->heads, c->head_dim,
                       CONFIG_HIDDEN_MAX);
    return 0;
}

static void parse_biases(struct json_reader *r, struct model_config *c)
{
    const struct arch_biases *keys = &arch_of(c->arch)->bias;
    c->qkv_bias = keys->qkv_always || keys->qkv_default;
    c->o_bias = keys->o_default;
    c->mlp_bias = keys->ffn_default;
    if (keys->qkv)
        jr_bool(r, keys->qkv, JR_OPTIONAL, &c->qkv_bias);
    if (keys->o)
        jr_bool(r, keys->o, JR_OPTIONAL, &c->o_bias);
    if (keys->ffn)
        jr_bool(r, keys->ffn, JR_OPTIONAL, &c->mlp_bias);
}

static int parse_switches(struct json_reader *r, struct model_config *c)
{
    const struct arch *a = arch_of(c->arch);
    double scalar = a->attention_scalar;
    c->tied = a->tied;
    jr_bool(r, "tie_word_embeddings", JR_OPTIONAL, &c->tied);
    if (a->conv)
        jr_bool(r, "tie_embedding", JR_OPTIONAL, &c->tied);
    parse_biases(r, c);
    if (a->multipliers)
        config_multipliers_parse(r, c);
    if (r->failed)
        return -1;
    if (a->bias_alike && c->qkv_bias != c->mlp_bias)
        return jr_fail(r, a->bias.ffn, "differs from %s, and a model of type \"%s\" has both or none",
                       a->bias.qkv, a->model_type);
    if (a->unit_scores) {
        c->attn_scale = 1;
        jr_f64(r, "final_logit_softcapping", JR_OPTIONAL, 1e-6, 1e9, &c->logit_softcap);
    }
    if (!(scalar > 0))
        return r->failed ? -1 : 0;
    c->attn_softcap =
        json_is_null(json_object_get(r->object, "attn_logit_softcapping")) ? 0 : a->attention_cap;
    c->logit_softcap = json_is_null(json_object_get(r->object, "final_logit_softcapping")) ? 0 : a->logit_cap;
    jr_f64(r, "attn_logit_softcapping", JR_OPTIONAL, 1e-6, 1e9, &c->attn_softcap);
    jr_f64(r, "final_logit_softcapping", JR_OPTIONAL, 1e-6, 1e9, &c->logit_softcap);
    jr_f64(r, "query_pre_attn_scalar", JR_OPTIONAL, 1e-6, 1e9, &scalar);
    c->attn_scale = 1 / sqrt(scalar);
    return r->failed ? -1 : 0;
}

/* Reads dtype, which transformers 4 calls torch_dtype. Values other than bfloat16 and float16 are read as
 * fp32. */
static void parse_dtype(const json_t *document, struct model_config *c)
{
    const char *name = json_string_value(json_object_get(document, "dtype"));
    if (!name)
        name = json_string_value(json_object_get(document, "torch_dtype"));
    c->dtype = !name                           ? MODEL_F32
               : strcmp(name, "bfloat16") == 0 ? MODEL_BF16
               : strcmp(name, "float16") == 0  ? MODEL_F16
                                               : MODEL_F32;
    /* what transformers takes beside MXFP4 */
    if (!name && is_mxfp4(json_object_get(document, "quantization_config"), arch_of(c->arch)))
        c->dtype = MODEL_BF16;
}

/* Reads the id of a special token. Published files contain ids outside the vocabulary (of tokens that their
 * tokenizers add); such an id counts as no token. */
static int parse_token(struct json_reader *r, const char *key, const struct model_config *c, int32_t *id)
{
    int64_t value = -1;
    jr_i64(r, key, JR_OPTIONAL, INT64_MIN, INT64_MAX, &value);
    *id = value < 0 || value >= (int64_t)c->vocab ? -1 : (int32_t)value;
    return r->failed ? -1 : 0;
}

/* Reads the padding token. torch's embedding accepts an id in the vocabulary, or a negative one, which counts
 * from the vocabulary's end; any other is refused. */
static int parse_pad(struct json_reader *r, struct model_config *c)
{
    const json_t *given = json_object_get(r->object, "pad_token_id");
    int64_t value = given ? 0 : arch_of(c->arch)->pad, vocab = c->vocab;
    jr_i64(r, "pad_token_id", JR_OPTIONAL, INT64_MIN, INT64_MAX, &value);
    if (!r->failed && (value < -vocab || value >= vocab))
        return jr_fail(r, "pad_token_id", "%lld%s is no row of an embedding of %u tokens; null names none",
                       (long long)value, given ? "" : ", which it is where it is not given,", c->vocab);
    return parse_token(r, "pad_token_id", c, &c->pad);
}

static int parse_tokens(struct json_reader *r, struct model_config *c)
{
    const json_t *eos = NULL;
    if (parse_token(r, "bos_token_id", c, &c->bos) < 0 || parse_pad(r, c) < 0)
        return -1;
    if (jr_any(r, "eos_token_id", JR_OPTIONAL, &eos) <= 0)
        return r->failed ? -1 : 0;
    size_t count = json_is_array(eos) ? json_array_size(eos) : 1;
    if (count > MODEL_EOS_MAX)
        return jr_fail(r, "eos_token_id", "names %zu tokens; at most %d are kept", count, MODEL_EOS_MAX);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_is_array(eos) ? json_array_get(eos, i) : eos;
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item))
            return jr_fail(r, "eos_token_id", "is no whole number, nor a list of them");
        if (id >= 0 && id < (json_int_t)c->vocab)
            c->eos[c->eos_count++] = (int32_t)id;
    }
    return 0;
}

/* Reads the packing that Motley wrote, or else the modules that a quantised folder's config skips. */
static int parse_packing(const json_t *document, struct model_config *c, struct err *err)
{
    const json_t *found = json_object_get(document, "motley_packing"),
                 *quantization = json_object_get(document, "quantization_config");
    if (!found && is_mxfp4(quantization, arch_of(c->arch)))
        packing_of_mxfp4(c);
    else if (!found && json_is_object(quantization))
        packing_of_skipped(quantization, c);
    return found ? packing_parse(found, c, err) : 0;
}

/* Reads whether q and k are normed, in families whose models differ in that. */
static int parse_qk_norm(struct json_reader *r, struct model_config *c)
{
    const char *key = arch_of(c->arch)->qk_norm_key;
    bool normed = false;
    if (key && jr_bool(r, key, JR_OPTIONAL, &normed) > 0)
        c->qk_norm = normed;
    return r->failed ? -1 : 0;
}

static int parse_flat(const json_t *document, const char *path, struct model_config *config, struct err *err)
{
    struct json_reader r;
    struct model_config c;
    memset(&c, 0, sizeof(c));
    c.bos = c.pad = -1;
    jr_init(&r, document, path, err);
    if (r.failed || parse_arch(&r, &c.arch) < 0 || config_keys_check(document, c.arch, path, err) < 0 ||
        refuse_switches(&r, arch_of(c.arch)) < 0 || parse_sizes(&r, &c) < 0 || parse_switches(&r, &c) < 0)
        return -1;
    arch_fill(&c);
    if (parse_qk_norm(&r, &c) < 0 || config_plain_parse(&r, &c) < 0)
        return -1;
    parse_dtype(document, &c);
    c.nested = json_is_true(json_object_get(document, "motley_nested"));
    if (parse_rope(&r, &c) < 0 || check_factors(&c, err) < 0 || parse_no_rope(&r, &c) < 0 ||
        parse_window(&r, &c) < 0 || (arch_of(c.arch)->full_heads && config_heads_parse(&r, &c) < 0) ||
        config_experts_parse(&r, &c) < 0 || parse_tokens(&r, &c) < 0 ||
        parse_packing(document, &c, err) < 0 || jr_finish_loose(&r) < 0)
        return -1;
    *config = c;
    return 0;
}

/* Finds the model that also reads images by the types of the whole and of its language model. */
static int parse_outer(struct json_reader *r, const json_t *inner, const struct arch_outer **outer)
{
    const char *type = NULL, *class_name;
    const char *inner_type = json_string_value(json_object_get(inner, "model_type"));
    char known[256];
    if (parse_names(r, &type, &class_name) < 0)
        return -1;
    *outer = arch_outer_find(type, inner_type);
    arch_outer_list(type, known, sizeof(known));
    if (!*outer && known[0])
        return err_set(r->err, ERR_UNSUPPORTED,
                       "text_config.model_type: \"%.64s\" is not known inside \"%.64s\"; known are %s",
                       inner_type, type, known);
    if (!*outer && arch_find(type) >= 0)
        return err_set(r->err, ERR_UNSUPPORTED, "text_config: a model of type \"%.64s\" has none", type);
    if (!*outer)
        return refuse_arch(type, r->err);
    if (class_name && strcmp(class_name, (*outer)->class_name) != 0 &&
        !is_body_of(class_name, (*outer)->class_name))
        return refuse_class(r, class_name, type, (*outer)->class_name);
    return 0;
}

/* Makes the document of the language model: text_config, or the whole document where that has its keys, with
 * the keys of the whole that text_config lacks. Returns new, or NULL. */
static json_t *inner_document(const json_t *document, const json_t *inner, enum model_arch arch)
{
    static const char *const shared[] = {"bos_token_id", "eos_token_id", "pad_token_id",
                                         "dtype",        "torch_dtype",  "quantization_config"};
    json_t *merged = json_copy((json_t *)(uintptr_t)(inner ? inner : document));
    for (size_t i = 0; merged && i < sizeof(shared) / sizeof(shared[0]); i++) {
        json_t *value = json_object_get(document, shared[i]);
        if (value && !json_object_get(merged, shared[i]))
            json_object_set(merged, shared[i], value);
    }
    if (!merged)
        return NULL;
    /* classes name text_config's architectures after the whole or not at all */
    json_object_del(merged, "architectures");
    json_object_set_new(merged, "model_type", json_string(arch_of(arch)->model_type));
    return merged;
}

/* Reads the config of a model that also reads images: its language model is in text_config (`inner`; NULL:
 * the keys stand beside the others), and keys about the whole model stand beside it. */
static int parse_nested(const json_t *document, const json_t *inner, struct model_config *config,
                        struct err *err)
{
    struct json_reader r;
    const struct arch_outer *outer;
    jr_init(&r, document, "", err);
    if (r.failed || parse_outer(&r, inner, &outer) < 0)
        return -1;
    /* The whole's tie_word_embeddings counts, and null means false. */
    const json_t *given = json_object_get(document, "tie_word_embeddings");
    bool tied = given ? false : outer->tied;
    if (jr_bool(&r, "tie_word_embeddings", JR_OPTIONAL, &tied) < 0 ||
        config_keys_check_outer(document, err) < 0)
        return -1;
    tied = tied || (outer->inner_ties && json_is_true(json_object_get(inner, "tie_word_embeddings")));
    json_t *merged = inner_document(document, inner, outer->inner);
    if (!merged)
        return err_set(err, ERR_NOMEM, "no memory for a model's config");
    json_object_set_new(merged, "tie_word_embeddings", json_boolean(tied));
    int status = parse_flat(merged, inner ? "text_config" : "", config, err);
    config->nested = true;
    json_decref(merged);
    return status;
}

int model_config_parse(const json_t *document, struct model_config *config, struct err *err)
{
    memset(config, 0, sizeof(*config));
    const json_t *inner = json_object_get(document, "text_config");
    const char *type = json_string_value(json_object_get(document, "model_type"));
    const struct arch_outer *outer = type ? arch_outer_find(type, NULL) : NULL;
    if (json_is_object(inner) || (outer && outer->flat))
        return parse_nested(document, json_is_object(inner) ? inner : NULL, config, err);
    json_t *renamed = config_renamed(document);
    if (!renamed)
        return err_set(err, ERR_NOMEM, "no memory for a model's config");
    int status = parse_flat(renamed, "", config, err);
    if (status == 0)
        config->absent = config->nested ? 0 : model_sizes_absent(renamed);
    json_decref(renamed);
    return status;
}

int model_config_parse_text(const char *text, size_t size, struct model_config *config, struct err *err)
{
    memset(config, 0, sizeof(*config));
    json_t *document = hub_json_parse_settings(text, size, JSON_DEPTH_MAX, err);
    if (!document)
        return -1;
    int status = model_config_parse(document, config, err);
    json_decref(document);
    return status;
}
