/* config.json -> struct model_config, and back. The defaults of absent keys are those that `transformers`
 * gives them, because that is what a file that leaves them out was written for. */
#include "model/config.h"

#include <math.h>
#include <string.h>

#include "common/buf.h"
#include "model/hub_json.h"

enum { HIDDEN_MAX = 1 << 17, FFN_MAX = 1 << 20, VOCAB_MAX = 1 << 22, HEADS_MAX = 4096, HEAD_DIM_MAX = 1024 };

struct arch_entry {
    const char *name;       /* model_type */
    const char *class_name; /* in `architectures` */
    uint32_t kv_heads;      /* default; 0: as many as heads */
    uint32_t head_dim;      /* default; 0: hidden / heads */
    uint32_t window;        /* default when the key is absent */
    double norm_eps, theta;
    bool sparse;
};

static const struct arch_entry archs[MODEL_ARCH_COUNT] = {
    [MODEL_LLAMA] = {.name = "llama", .class_name = "LlamaForCausalLM", .norm_eps = 1e-6, .theta = 1e4},
    [MODEL_MISTRAL] = {.name = "mistral",
                       .class_name = "MistralForCausalLM",
                       .kv_heads = 8,
                       .window = 4096,
                       .norm_eps = 1e-6,
                       .theta = 1e4},
    [MODEL_QWEN2] = {.name = "qwen2",
                     .class_name = "Qwen2ForCausalLM",
                     .kv_heads = 32,
                     .window = 4096,
                     .norm_eps = 1e-6,
                     .theta = 1e4},
    [MODEL_QWEN3] = {.name = "qwen3",
                     .class_name = "Qwen3ForCausalLM",
                     .kv_heads = 32,
                     .head_dim = 128,
                     .window = 4096,
                     .norm_eps = 1e-6,
                     .theta = 1e4},
    [MODEL_MIXTRAL] = {.name = "mixtral",
                       .class_name = "MixtralForCausalLM",
                       .kv_heads = 8,
                       .norm_eps = 1e-5,
                       .theta = 1e6,
                       .sparse = true},
    [MODEL_QWEN3_MOE] = {.name = "qwen3_moe",
                         .class_name = "Qwen3MoeForCausalLM",
                         .kv_heads = 4,
                         .window = 4096,
                         .norm_eps = 1e-6,
                         .theta = 1e4,
                         .sparse = true},
    [MODEL_OLMOE] =
        {.name = "olmoe", .class_name = "OlmoeForCausalLM", .norm_eps = 1e-5, .theta = 1e4, .sparse = true},
};

const char *model_arch_name(enum model_arch arch)
{
    return (unsigned)arch < MODEL_ARCH_COUNT ? archs[arch].name : "unknown";
}

static bool layer_bit(const uint8_t *mask, uint32_t layer)
{
    return layer < MODEL_LAYERS_MAX && (mask[layer / 8] >> (layer % 8) & 1) != 0;
}

static void set_layer_bit(uint8_t *mask, uint32_t layer)
{
    mask[layer / 8] |= (uint8_t)(1u << (layer % 8));
}

bool model_layer_is_sparse(const struct model_config *config, uint32_t layer)
{
    return config->experts > 0 && layer < config->layers && !layer_bit(config->dense_layer, layer);
}

uint32_t model_layer_window(const struct model_config *config, uint32_t layer)
{
    return layer_bit(config->window_layer, layer) ? config->window : 0;
}

bool model_layer_rotates(const struct model_config *config, uint32_t layer)
{
    return !layer_bit(config->no_rope_layer, layer);
}

const struct rope_config *model_layer_rope(const struct model_config *config, uint32_t layer)
{
    bool local = config->rope_local_set && model_layer_window(config, layer) > 0;
    return local ? &config->rope_local : &config->rope;
}

static int refuse_arch(const char *what, const char *name, struct err *err)
{
    char known[256] = "";
    size_t used = 0;
    for (int i = 0; i < MODEL_ARCH_COUNT; i++) {
        size_t length = strlen(archs[i].name);
        if (used + length + 3 > sizeof(known))
            break;
        if (used) {
            memcpy(known + used, ", ", 2);
            used += 2;
        }
        memcpy(known + used, archs[i].name, length + 1);
        used += length;
    }
    return err_set(err, ERR_UNSUPPORTED, "%s: the architecture \"%.64s\" is not known; known are %s", what,
                   name, known);
}

/* Which architecture: by model_type, which must not contradict `architectures`. */
static int parse_arch(struct json_reader *r, enum model_arch *arch)
{
    const char *type = NULL, *class_name = NULL;
    const json_t *classes = NULL;
    jr_str(r, "model_type", JR_OPTIONAL, 1, 64, &type);
    jr_array(r, "architectures", JR_OPTIONAL, 0, 16, &classes);
    if (r->failed)
        return -1;
    if (classes && json_array_size(classes) > 0) {
        class_name = json_string_value(json_array_get(classes, 0));
        if (!class_name)
            return jr_fail(r, "architectures", "the first element is not a text");
    }
    if (!type && !class_name)
        return jr_fail(r, "model_type", "missing, so the architecture is not known");
    int found = -1;
    for (int i = 0; i < MODEL_ARCH_COUNT; i++)
        if (type ? strcmp(type, archs[i].name) == 0 : strcmp(class_name, archs[i].class_name) == 0)
            found = i;
    if (found < 0)
        return refuse_arch(type ? "model_type" : "architectures", type ? type : class_name, r->err);
    if (class_name && strcmp(class_name, archs[found].class_name) != 0)
        return err_set(
            r->err, ERR_UNSUPPORTED,
            "architectures: \"%.64s\" is not the language model of model_type \"%s\" (that is \"%s\")",
            class_name, archs[found].name, archs[found].class_name);
    *arch = (enum model_arch)found;
    return 0;
}

/* Switches that change the arithmetic and that nobody here computes. */
static int refuse_switches(struct json_reader *r)
{
    const char *act = "silu";
    const json_t *value = NULL;
    double partial = 1, dropout = 0;
    bool interleaved = false;
    jr_str(r, "hidden_act", JR_OPTIONAL, 1, 64, &act);
    jr_f64(r, "partial_rotary_factor", JR_OPTIONAL, 0, 1, &partial);
    jr_f64(r, "attention_dropout", JR_OPTIONAL, 0, 1, &dropout);
    jr_bool(r, "rope_interleaved", JR_OPTIONAL, &interleaved);
    if (r->failed)
        return -1;
    if (dropout != 0)
        return err_set(r->err, ERR_UNSUPPORTED, "attention_dropout: %g is not supported; only 0 is", dropout);
    if (interleaved)
        return err_set(r->err, ERR_UNSUPPORTED, "rope_interleaved: not supported; it must be false");
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return err_set(r->err, ERR_UNSUPPORTED, "hidden_act: \"%.64s\" is not supported; only silu is", act);
    if (partial != 1)
        return err_set(r->err, ERR_UNSUPPORTED, "partial_rotary_factor: %g is not supported; only 1 is",
                       partial);
    static const char *const off[] = {"quantization_config", "clip_qkv"};
    for (size_t i = 0; i < sizeof(off) / sizeof(off[0]); i++)
        if (jr_any(r, off[i], JR_OPTIONAL, &value) > 0)
            return err_set(r->err, ERR_UNSUPPORTED, "%s: not supported; it must be absent or null", off[i]);
    return r->failed ? -1 : 0;
}

static int parse_rope_object(const json_t *object, const char *path, struct rope_config *rope,
                             struct err *err)
{
    struct json_reader r;
    const char *kind = NULL;
    jr_init(&r, object, path, err);
    jr_str(&r, "type", JR_OPTIONAL, 1, 15, &kind); /* the older name */
    jr_str(&r, "rope_type", JR_OPTIONAL, 1, 15, &kind);
    jr_f64(&r, "rope_theta", JR_OPTIONAL, 1, 1e12, &rope->theta);
    if (r.failed)
        return -1;
    if (!kind)
        kind = "default";
    memcpy(rope->kind_name, kind, strlen(kind) + 1);
    if (strcmp(kind, "default") == 0) {
        rope->kind = ROPE_DEFAULT;
    } else if (strcmp(kind, "linear") == 0) {
        rope->kind = ROPE_LINEAR;
        jr_f64(&r, "factor", JR_REQUIRED, 1, 1e6, &rope->factor);
    } else if (strcmp(kind, "llama3") == 0) {
        rope->kind = ROPE_LLAMA3;
        jr_f64(&r, "factor", JR_REQUIRED, 1, 1e6, &rope->factor);
        jr_f64(&r, "low_freq_factor", JR_REQUIRED, 1e-6, 1e6, &rope->low_freq_factor);
        jr_f64(&r, "high_freq_factor", JR_REQUIRED, 1e-6, 1e6, &rope->high_freq_factor);
        jr_f64(&r, "original_max_position_embeddings", JR_REQUIRED, 1, 1e9, &rope->original_max_positions);
        if (!r.failed && rope->low_freq_factor >= rope->high_freq_factor)
            jr_fail(&r, "low_freq_factor", "%g must be below high_freq_factor, %g", rope->low_freq_factor,
                    rope->high_freq_factor);
    } else if (strcmp(kind, "yarn") == 0 || strcmp(kind, "dynamic") == 0 || strcmp(kind, "longrope") == 0) {
        rope->kind = ROPE_OTHER;
    } else {
        return err_set(
            err, ERR_UNSUPPORTED,
            "%s: the rotary scaling \"%.64s\" is not known; known are default, linear, llama3 and, for "
            "planning, yarn, dynamic, longrope",
            path, kind);
    }
    return jr_finish_loose(&r);
}

/* rope_parameters, or the older rope_theta and rope_scaling; both only where they agree. */
static int parse_rope(struct json_reader *r, enum model_arch arch, struct rope_config *rope)
{
    const json_t *parameters = NULL, *scaling = NULL;
    double theta = archs[arch].theta;
    rope->factor = 1;
    int has_theta = jr_f64(r, "rope_theta", JR_OPTIONAL, 1, 1e12, &theta);
    int has_parameters = jr_object(r, "rope_parameters", JR_OPTIONAL, &parameters);
    int has_scaling = jr_object(r, "rope_scaling", JR_OPTIONAL, &scaling);
    if (r->failed)
        return -1;
    rope->theta = theta;
    memcpy(rope->kind_name, "default", 8);
    if (has_parameters > 0 && parse_rope_object(parameters, "rope_parameters", rope, r->err) < 0)
        return -1;
    if (has_parameters > 0 && has_theta > 0 && rope->theta != theta)
        return jr_fail(r, "rope_theta", "%g contradicts rope_parameters.rope_theta, %g", theta, rope->theta);
    if (has_scaling <= 0)
        return 0;
    struct rope_config old = {.theta = theta, .factor = 1};
    if (parse_rope_object(scaling, "rope_scaling", &old, r->err) < 0)
        return -1;
    if (has_parameters <= 0)
        *rope = old;
    else if (strcmp(old.kind_name, rope->kind_name) != 0 || old.factor != rope->factor)
        return jr_fail(r, "rope_scaling", "contradicts rope_parameters");
    return 0;
}

/* layer_types: which layers use the window. */
static int parse_layer_types(struct json_reader *r, uint32_t layers, uint8_t *windowed)
{
    const json_t *types = NULL;
    if (jr_array(r, "layer_types", JR_OPTIONAL, 0, MODEL_LAYERS_MAX, &types) <= 0)
        return r->failed ? -1 : 0;
    if (json_array_size(types) != layers)
        return jr_fail(r, "layer_types", "has %zu entries for %u layers", json_array_size(types), layers);
    memset(windowed, 0, MODEL_LAYERS_MAX / 8);
    for (uint32_t i = 0; i < layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type && strcmp(type, "sliding_attention") == 0)
            set_layer_bit(windowed, i);
        else if (!type || strcmp(type, "full_attention") != 0)
            return err_set(r->err, ERR_UNSUPPORTED,
                           "layer_types[%u]: only full_attention and sliding_attention are known", i);
    }
    return 0;
}

static int parse_window(struct json_reader *r, struct model_config *c)
{
    uint32_t window = archs[c->arch].window, from = 0;
    const json_t *given = json_object_get(r->object, "sliding_window");
    bool use = false;
    if (given && json_is_null(given))
        window = 0;
    jr_u32(r, "sliding_window", JR_OPTIONAL, 0, 1 << 30, &window);
    bool gated = c->arch == MODEL_QWEN2 || c->arch == MODEL_QWEN3 || c->arch == MODEL_QWEN3_MOE;
    if (gated) {
        from = 28;
        jr_bool(r, "use_sliding_window", JR_OPTIONAL, &use);
        jr_u32(r, "max_window_layers", JR_OPTIONAL, 0, 1 << 20, &from);
    } else {
        use = c->arch == MODEL_MISTRAL || c->arch == MODEL_MIXTRAL;
    }
    for (uint32_t i = from; use && i < c->layers; i++)
        set_layer_bit(c->window_layer, i);
    if (!use)
        window = 0;
    if (r->failed || parse_layer_types(r, c->layers, c->window_layer) < 0)
        return -1;
    bool any = false;
    for (uint32_t i = 0; i < c->layers; i++)
        any = any || layer_bit(c->window_layer, i);
    if (any && window == 0 && json_object_get(r->object, "layer_types"))
        return jr_fail(r, "layer_types", "names sliding_attention, but there is no sliding_window");
    c->window = any ? window : 0;
    if (c->window == 0)
        memset(c->window_layer, 0, sizeof(c->window_layer));
    return 0;
}

static int parse_sizes(struct json_reader *r, struct model_config *c)
{
    const struct arch_entry *arch = &archs[c->arch];
    jr_u32(r, "hidden_size", JR_REQUIRED, 1, HIDDEN_MAX, &c->hidden);
    jr_u32(r, "num_hidden_layers", JR_REQUIRED, 1, MODEL_LAYERS_MAX, &c->layers);
    jr_u32(r, "num_attention_heads", JR_REQUIRED, 1, HEADS_MAX, &c->heads);
    jr_u32(r, "vocab_size", JR_REQUIRED, 1, VOCAB_MAX, &c->vocab);
    jr_u32(r, "intermediate_size", JR_REQUIRED, 1, FFN_MAX, &c->ffn);
    c->kv_heads = arch->kv_heads ? arch->kv_heads : c->heads;
    jr_u32(r, "num_key_value_heads", JR_OPTIONAL, 1, HEADS_MAX, &c->kv_heads);
    c->head_dim = arch->head_dim;
    jr_u32(r, "head_dim", JR_OPTIONAL, 2, HEAD_DIM_MAX, &c->head_dim);
    c->max_positions = 2048;
    jr_u32(r, "max_position_embeddings", JR_OPTIONAL, 1, 1 << 30, &c->max_positions);
    c->norm_eps = arch->norm_eps;
    jr_f64(r, "rms_norm_eps", JR_OPTIONAL, 1e-30, 1, &c->norm_eps);
    if (r->failed)
        return -1;
    if (c->heads % c->kv_heads != 0)
        return jr_fail(r, "num_key_value_heads", "%u does not divide num_attention_heads, %u", c->kv_heads,
                       c->heads);
    if (c->head_dim == 0) {
        if (c->hidden % c->heads != 0)
            return jr_fail(r, "hidden_size",
                           "%u is no multiple of num_attention_heads, %u, and there is no head_dim",
                           c->hidden, c->heads);
        c->head_dim = c->hidden / c->heads;
    }
    if (c->head_dim % 2 != 0 || c->head_dim > HEAD_DIM_MAX)
        return jr_fail(r, "head_dim", "%u is not an even number of at most %d", c->head_dim, HEAD_DIM_MAX);
    if ((uint64_t)c->heads * c->head_dim > HIDDEN_MAX)
        return jr_fail(r, "head_dim", "%u heads of %u are wider than %d", c->heads, c->head_dim, HIDDEN_MAX);
    return 0;
}

static int parse_dense_layers(struct json_reader *r, struct model_config *c)
{
    const json_t *only = NULL;
    uint32_t step = 1;
    jr_u32(r, "decoder_sparse_step", JR_OPTIONAL, 1, MODEL_LAYERS_MAX, &step);
    jr_array(r, "mlp_only_layers", JR_OPTIONAL, 0, MODEL_LAYERS_MAX, &only);
    if (r->failed)
        return -1;
    for (uint32_t i = 0; i < c->layers; i++)
        if ((i + 1) % step != 0)
            set_layer_bit(c->dense_layer, i);
    for (size_t k = 0; only && k < json_array_size(only); k++) {
        const json_t *item = json_array_get(only, k);
        json_int_t i = json_integer_value(item);
        if (!json_is_integer(item) || i < 0 || i >= (json_int_t)c->layers)
            return jr_fail(r, "mlp_only_layers", "element %zu is no layer below num_hidden_layers, %u", k,
                           c->layers);
        set_layer_bit(c->dense_layer, (uint32_t)i);
    }
    return 0;
}

static int parse_experts(struct json_reader *r, struct model_config *c)
{
    if (!archs[c->arch].sparse)
        return 0;
    uint32_t local = 0, total = 0;
    int has_local = jr_u32(r, "num_local_experts", JR_OPTIONAL, 1, MODEL_EXPERTS_MAX, &local);
    int has_total = jr_u32(r, "num_experts", JR_OPTIONAL, 1, MODEL_EXPERTS_MAX, &total);
    jr_u32(r, "num_experts_per_tok", JR_REQUIRED, 1, MODEL_EXPERTS_MAX, &c->experts_active);
    c->router_aux_coef = c->arch == MODEL_OLMOE ? 0.01 : 0.001;
    jr_f64(r, "router_aux_loss_coef", JR_OPTIONAL, 0, 1e6, &c->router_aux_coef);
    c->expert_ffn = c->ffn;
    c->router_renormalise = c->arch == MODEL_MIXTRAL;
    if (c->arch != MODEL_MIXTRAL)
        jr_bool(r, "norm_topk_prob", JR_OPTIONAL, &c->router_renormalise);
    if (c->arch == MODEL_QWEN3_MOE)
        jr_u32(r, "moe_intermediate_size", JR_REQUIRED, 1, FFN_MAX, &c->expert_ffn);
    if (r->failed)
        return -1;
    if (has_local <= 0 && has_total <= 0)
        return jr_fail(r, c->arch == MODEL_MIXTRAL ? "num_local_experts" : "num_experts", "missing");
    if (has_local > 0 && has_total > 0 && local != total)
        return jr_fail(r, "num_experts", "%u contradicts num_local_experts, %u", total, local);
    c->experts = has_total > 0 ? total : local;
    if (c->experts_active > c->experts)
        return jr_fail(r, "num_experts_per_tok", "%u is more than the %u experts", c->experts_active,
                       c->experts);
    if (c->arch == MODEL_QWEN3_MOE && parse_dense_layers(r, c) < 0)
        return -1;
    bool any_dense = false, any_sparse = false;
    for (uint32_t i = 0; i < c->layers; i++)
        *(model_layer_is_sparse(c, i) ? &any_sparse : &any_dense) = true;
    if (!any_sparse)
        return jr_fail(r, "mlp_only_layers", "leaves no layer with experts");
    if (!any_dense)
        c->ffn = 0;
    return 0;
}

static void parse_switches(struct json_reader *r, struct model_config *c)
{
    bool attention_bias = false;
    jr_bool(r, "tie_word_embeddings", JR_OPTIONAL, &c->tied);
    jr_bool(r, "attention_bias", JR_OPTIONAL, &attention_bias);
    switch (c->arch) {
    case MODEL_LLAMA:
        jr_bool(r, "mlp_bias", JR_OPTIONAL, &c->mlp_bias);
        c->qkv_bias = c->o_bias = attention_bias;
        break;
    case MODEL_QWEN3:
    case MODEL_QWEN3_MOE:
        c->qkv_bias = c->o_bias = attention_bias;
        c->qk_norm = 1;
        break;
    case MODEL_OLMOE:
        c->qkv_bias = c->o_bias = attention_bias;
        c->qk_norm = 2;
        break;
    case MODEL_QWEN2:
        c->qkv_bias = true;
        break;
    default:
        break;
    }
}

static int parse_token(struct json_reader *r, const char *key, const struct model_config *c, int32_t *id)
{
    int64_t value = -1;
    if (jr_i64(r, key, JR_OPTIONAL, -1, INT32_MAX, &value) < 0)
        return -1;
    if (value >= (int64_t)c->vocab)
        return jr_fail(r, key, "%lld is outside the vocabulary of %u", (long long)value, c->vocab);
    *id = (int32_t)value;
    return 0;
}

static int parse_tokens(struct json_reader *r, struct model_config *c)
{
    const json_t *eos = NULL;
    int64_t pad = -1;
    if (parse_token(r, "bos_token_id", c, &c->bos) < 0)
        return -1;
    jr_i64(r, "pad_token_id", JR_OPTIONAL, INT32_MIN, INT32_MAX, &pad);
    /* published files name padding ids outside the vocabulary; nothing here pads, so that is no one */
    c->pad = pad < 0 || pad >= (int64_t)c->vocab ? -1 : (int32_t)pad;
    if (jr_any(r, "eos_token_id", JR_OPTIONAL, &eos) <= 0)
        return r->failed ? -1 : 0;
    size_t count = json_is_array(eos) ? json_array_size(eos) : 1;
    if (count > MODEL_EOS_MAX)
        return jr_fail(r, "eos_token_id", "names %zu tokens; at most %d are kept", count, MODEL_EOS_MAX);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_is_array(eos) ? json_array_get(eos, i) : eos;
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < -1 || id >= (json_int_t)c->vocab)
            return jr_fail(r, "eos_token_id", "is no token of the vocabulary of %u", c->vocab);
        if (id >= 0)
            c->eos[c->eos_count++] = (int32_t)id;
    }
    return 0;
}

int model_config_parse(const json_t *document, struct model_config *config, struct err *err)
{
    struct json_reader r;
    struct model_config c;
    memset(&c, 0, sizeof(c));
    memset(config, 0, sizeof(*config));
    c.bos = c.pad = -1;
    jr_init(&r, document, "", err);
    if (r.failed || parse_arch(&r, &c.arch) < 0 || refuse_switches(&r) < 0 || parse_sizes(&r, &c) < 0)
        return -1;
    parse_switches(&r, &c);
    if (r.failed || parse_rope(&r, c.arch, &c.rope) < 0 || parse_window(&r, &c) < 0 ||
        parse_experts(&r, &c) < 0 || parse_tokens(&r, &c) < 0 || jr_finish_loose(&r) < 0)
        return -1;
    *config = c;
    return 0;
}

int model_config_parse_text(const char *text, size_t size, struct model_config *config, struct err *err)
{
    memset(config, 0, sizeof(*config));
    json_t *document = hub_json_parse(text, size, JSON_DEPTH_MAX, err);
    if (!document)
        return -1;
    int status = model_config_parse(document, config, err);
    json_decref(document);
    return status;
}

static void set_rope(json_t *out, const struct rope_config *rope)
{
    json_t *object = json_object();
    json_object_set_new(object, "rope_theta", json_real(rope->theta));
    json_object_set_new(object, "rope_type", json_string(rope->kind_name));
    if (rope->kind == ROPE_LINEAR || rope->kind == ROPE_LLAMA3)
        json_object_set_new(object, "factor", json_real(rope->factor));
    if (rope->kind == ROPE_LLAMA3) {
        json_object_set_new(object, "low_freq_factor", json_real(rope->low_freq_factor));
        json_object_set_new(object, "high_freq_factor", json_real(rope->high_freq_factor));
        json_object_set_new(object, "original_max_position_embeddings",
                            json_integer((json_int_t)rope->original_max_positions));
    }
    json_object_set_new(out, "rope_parameters", object);
}

static void set_experts(json_t *out, const struct model_config *c)
{
    json_object_set_new(out, c->arch == MODEL_MIXTRAL ? "num_local_experts" : "num_experts",
                        json_integer(c->experts));
    json_object_set_new(out, "num_experts_per_tok", json_integer(c->experts_active));
    json_object_set_new(out, "router_aux_loss_coef", json_real(c->router_aux_coef));
    if (c->arch != MODEL_MIXTRAL)
        json_object_set_new(out, "norm_topk_prob", json_boolean(c->router_renormalise));
    if (c->arch != MODEL_QWEN3_MOE)
        return;
    json_object_set_new(out, "moe_intermediate_size", json_integer(c->expert_ffn));
    json_t *only = json_array();
    for (uint32_t i = 0; i < c->layers; i++)
        if (!model_layer_is_sparse(c, i))
            json_array_append_new(only, json_integer(i));
    json_object_set_new(out, "mlp_only_layers", only);
}

/* The first layer with a window, which max_window_layers means; layer_types, which stands beside it, says
 * all.
 */
static uint32_t window_first(const struct model_config *c)
{
    uint32_t i = 0;
    while (i < c->layers && !layer_bit(c->window_layer, i))
        i++;
    return i;
}

static void set_window(json_t *out, const struct model_config *c)
{
    json_object_set_new(out, "sliding_window", c->window ? json_integer(c->window) : json_null());
    if (c->window) {
        json_t *types = json_array();
        for (uint32_t i = 0; i < c->layers; i++)
            json_array_append_new(
                types, json_string(layer_bit(c->window_layer, i) ? "sliding_attention" : "full_attention"));
        json_object_set_new(out, "layer_types", types);
    }
    if (c->arch != MODEL_QWEN2 && c->arch != MODEL_QWEN3 && c->arch != MODEL_QWEN3_MOE)
        return;
    json_object_set_new(out, "use_sliding_window", json_boolean(c->window > 0));
    if (c->window)
        json_object_set_new(out, "max_window_layers", json_integer(window_first(c)));
}

json_t *model_config_to_json(const struct model_config *c, struct err *err)
{
    json_t *out = json_object();
    if (!out) {
        err_set(err, ERR_NOMEM, "no memory for a model's config");
        return NULL;
    }
    json_object_set_new(out, "architectures", json_pack("[s]", archs[c->arch].class_name));
    json_object_set_new(out, "model_type", json_string(archs[c->arch].name));
    json_object_set_new(out, "hidden_act", json_string("silu"));
    json_object_set_new(out, "hidden_size", json_integer(c->hidden));
    /* a mixture without dense layers keeps no dense width; the key is required, and for Mixtral and OLMoE it
     * is the experts' */
    json_object_set_new(out, "intermediate_size", json_integer(c->ffn ? c->ffn : c->expert_ffn));
    json_object_set_new(out, "num_hidden_layers", json_integer(c->layers));
    json_object_set_new(out, "num_attention_heads", json_integer(c->heads));
    json_object_set_new(out, "num_key_value_heads", json_integer(c->kv_heads));
    json_object_set_new(out, "head_dim", json_integer(c->head_dim));
    json_object_set_new(out, "vocab_size", json_integer(c->vocab));
    json_object_set_new(out, "max_position_embeddings", json_integer(c->max_positions));
    json_object_set_new(out, "rms_norm_eps", json_real(c->norm_eps));
    json_object_set_new(out, "tie_word_embeddings", json_boolean(c->tied));
    json_object_set_new(out, "attention_bias", json_boolean(c->o_bias));
    json_object_set_new(out, "mlp_bias", json_boolean(c->mlp_bias));
    json_object_set_new(out, "bos_token_id", c->bos < 0 ? json_null() : json_integer(c->bos));
    json_object_set_new(out, "pad_token_id", c->pad < 0 ? json_null() : json_integer(c->pad));
    json_t *eos = json_array();
    for (uint32_t i = 0; i < c->eos_count; i++)
        json_array_append_new(eos, json_integer(c->eos[i]));
    json_object_set_new(out, "eos_token_id", eos);
    set_rope(out, &c->rope);
    set_window(out, c);
    if (c->experts)
        set_experts(out, c);
    return out;
}

static int refuse(struct err *err, const struct model_config *c, const char *what)
{
    return err_set(err, ERR_UNSUPPORTED,
                   "a model of architecture \"%s\" with %s can be planned but not run yet",
                   model_arch_name(c->arch), what);
}

int model_config_runnable(const struct model_config *c, struct err *err)
{
    if (c->rope.kind == ROPE_OTHER)
        return refuse(err, c, c->rope.kind_name);
    if (c->rope_local_set && c->rope_local.kind == ROPE_OTHER)
        return refuse(err, c, c->rope_local.kind_name);
    return 0;
}

/* Meta's scaling of Llama 3.1: wavelengths shorter than original/high are kept, longer than original/low
 * divided by factor, those between blended linearly in original/wavelength. */
static double scale_llama3(const struct rope_config *rope, double frequency)
{
    const double two_pi = 6.283185307179586476925286766559;
    double wavelength = two_pi / frequency;
    if (wavelength < rope->original_max_positions / rope->high_freq_factor)
        return frequency;
    if (wavelength > rope->original_max_positions / rope->low_freq_factor)
        return frequency / rope->factor;
    double smooth = (rope->original_max_positions / wavelength - rope->low_freq_factor) /
                    (rope->high_freq_factor - rope->low_freq_factor);
    return (1 - smooth) * frequency / rope->factor + smooth * frequency;
}

int model_rope_frequencies_of(const struct rope_config *rope, uint32_t dim, double *inv_freq, struct err *err)
{
    if (rope->kind == ROPE_OTHER)
        return err_set(err, ERR_UNSUPPORTED, "the rotary scaling \"%s\" can be planned but not run yet",
                       rope->kind_name);
    for (uint32_t i = 0; i < dim / 2; i++) {
        double frequency = pow(rope->theta, -2.0 * i / dim);
        if (rope->kind == ROPE_LINEAR)
            frequency /= rope->factor;
        else if (rope->kind == ROPE_LLAMA3)
            frequency = scale_llama3(rope, frequency);
        inv_freq[i] = frequency;
    }
    return 0;
}

int model_rope_frequencies(const struct model_config *config, double *inv_freq, struct err *err)
{
    uint32_t dim = config->rotary_dim ? config->rotary_dim : config->head_dim;
    return model_rope_frequencies_of(&config->rope, dim, inv_freq, err);
}
