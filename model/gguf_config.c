/* GGUF metadata -> struct model_config, and GGUF tensor names -> Hugging Face names. */
#include "model/gguf_config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int missing(struct err *err, const char *key)
{
    return err_set(err, ERR_INVALID, "gguf: %s: missing or no number", key);
}

static int get_u32(const struct gguf *g, const char *key, bool required, uint32_t most, uint32_t *out,
                   struct err *err)
{
    int64_t value;
    if (gguf_kind(g, key) == GGUF_NONE && !required)
        return 0;
    if (gguf_kind(g, key) == GGUF_ARRAY)
        return err_set(err, ERR_UNSUPPORTED, "gguf: %s: a value for each layer is not supported", key);
    if (!gguf_i64(g, key, &value))
        return missing(err, key);
    if (value < 1 || value > most)
        return err_set(err, ERR_INVALID, "gguf: %s: %" PRId64 " is not within 1..%u", key, value, most);
    *out = (uint32_t)value;
    return 0;
}

static int get_f64(const struct gguf *g, const char *key, double least, double most, double *out,
                   struct err *err)
{
    double value;
    if (gguf_kind(g, key) == GGUF_NONE)
        return 0;
    if (!gguf_f64(g, key, &value))
        return missing(err, key);
    if (value < least || value > most)
        return err_set(err, ERR_INVALID, "gguf: %s: %g is not within %g..%g", key, value, least, most);
    *out = value;
    return 0;
}

static int check_architecture(const struct gguf *g, struct err *err)
{
    const char *text;
    size_t size;
    if (!gguf_string(g, "general.architecture", &text, &size))
        return err_set(err, ERR_INVALID, "gguf: general.architecture: missing or no text");
    if (size == 5 && memcmp(text, "llama", 5) == 0)
        return 0;
    return err_set(
        err, ERR_UNSUPPORTED,
        "gguf: general.architecture: the architecture \"%.*s\" is not known; known in GGUF is llama",
        size > 64 ? 64 : (int)size, text);
}

static int read_sizes(const struct gguf *g, struct model_config *c, struct err *err)
{
    uint32_t experts = 0, dims = 0;
    if (get_u32(g, "llama.embedding_length", true, 1 << 17, &c->hidden, err) < 0 ||
        get_u32(g, "llama.block_count", true, MODEL_LAYERS_MAX, &c->layers, err) < 0 ||
        get_u32(g, "llama.feed_forward_length", true, 1 << 20, &c->ffn, err) < 0 ||
        get_u32(g, "llama.attention.head_count", true, 4096, &c->heads, err) < 0)
        return -1;
    c->kv_heads = c->heads;
    c->max_positions = 2048;
    if (get_u32(g, "llama.attention.head_count_kv", false, 4096, &c->kv_heads, err) < 0 ||
        get_u32(g, "llama.context_length", false, 1 << 30, &c->max_positions, err) < 0 ||
        get_u32(g, "llama.attention.key_length", false, 1024, &c->head_dim, err) < 0 ||
        get_u32(g, "llama.rope.dimension_count", false, 1024, &dims, err) < 0)
        return -1;
    int64_t claimed;
    if (gguf_i64(g, "llama.expert_count", &claimed) && claimed > 0 &&
        get_u32(g, "llama.expert_count", false, MODEL_EXPERTS_MAX, &experts, err) < 0)
        return -1;
    if (experts)
        return err_set(err, ERR_UNSUPPORTED,
                       "gguf: llama.expert_count: a mixture of experts in GGUF is not supported");
    if (c->heads % c->kv_heads != 0)
        return err_set(err, ERR_INVALID,
                       "gguf: llama.attention.head_count_kv: %u does not divide head_count, %u", c->kv_heads,
                       c->heads);
    if (c->head_dim == 0) {
        if (c->hidden % c->heads != 0)
            return err_set(err, ERR_INVALID,
                           "gguf: llama.embedding_length: %u is no multiple of head_count, %u", c->hidden,
                           c->heads);
        c->head_dim = c->hidden / c->heads;
    }
    if (c->head_dim % 2 != 0 || c->head_dim > 1024 || (uint64_t)c->head_dim * c->heads > 1 << 17)
        return err_set(err, ERR_INVALID, "gguf: a head size of %u is not even or too big", c->head_dim);
    if (dims && dims != c->head_dim)
        return err_set(err, ERR_UNSUPPORTED,
                       "gguf: llama.rope.dimension_count: %u of %u dimensions rotated is not "
                       "supported",
                       dims, c->head_dim);
    return 0;
}

static int read_rope(const struct gguf *g, struct model_config *c, struct err *err)
{
    const char *kind = "none";
    size_t size = 4;
    struct rope_config *rope = &c->rope;
    rope->theta = 10000;
    rope->factor = 1;
    memcpy(rope->kind_name, "default", 8);
    if (get_f64(g, "llama.rope.freq_base", 1, 1e12, &rope->theta, err) < 0)
        return -1;
    gguf_string(g, "llama.rope.scaling.type", &kind, &size);
    if (size == 4 && memcmp(kind, "none", 4) == 0)
        return get_f64(g, "llama.rope.scale_linear", 1, 1, &rope->factor, err);
    if (size == 6 && memcmp(kind, "linear", 6) == 0) {
        rope->kind = ROPE_LINEAR;
        memcpy(rope->kind_name, "linear", 7);
        return get_f64(g, "llama.rope.scaling.factor", 1, 1e6, &rope->factor, err);
    }
    rope->kind = ROPE_OTHER;
    snprintf(rope->kind_name, sizeof(rope->kind_name), "%.*s", (int)(size > 15 ? 15 : size), kind);
    return 0;
}

static int32_t token(const struct gguf *g, const char *key, uint32_t vocab)
{
    int64_t id;
    return gguf_i64(g, key, &id) && id >= 0 && id < (int64_t)vocab ? (int32_t)id : -1;
}

int gguf_config(const struct gguf *g, struct model_config *config, struct err *err)
{
    struct model_config c;
    memset(&c, 0, sizeof(c));
    memset(config, 0, sizeof(*config));
    c.arch = MODEL_LLAMA;
    c.norm_eps = 1e-5;
    if (check_architecture(g, err) < 0 || read_sizes(g, &c, err) < 0 || read_rope(g, &c, err) < 0 ||
        get_f64(g, "llama.attention.layer_norm_rms_epsilon", 1e-30, 1, &c.norm_eps, err) < 0)
        return -1;
    const struct gguf_tensor *table = gguf_tensor_find(g, "token_embd.weight");
    if (!table || table->rank != 2 || table->shape[0] > 1 << 22)
        return err_set(err, ERR_INVALID,
                       "gguf: token_embd.weight: missing, so the vocabulary's size is not known");
    c.vocab = (uint32_t)table->shape[0];
    c.tied = !gguf_tensor_find(g, "output.weight");
    c.qkv_bias = gguf_tensor_find(g, "blk.0.attn_q.bias") != NULL;
    c.o_bias = gguf_tensor_find(g, "blk.0.attn_output.bias") != NULL;
    c.mlp_bias = gguf_tensor_find(g, "blk.0.ffn_gate.bias") != NULL;
    c.bos = token(g, "tokenizer.ggml.bos_token_id", c.vocab);
    c.pad = token(g, "tokenizer.ggml.padding_token_id", c.vocab);
    int32_t eos = token(g, "tokenizer.ggml.eos_token_id", c.vocab);
    if (eos >= 0)
        c.eos[c.eos_count++] = eos;
    *config = c;
    return 0;
}

static const struct {
    const char *gguf, *hf;
    bool permuted_q, permuted_k;
} layer_names[] = {
    {"attn_norm", "input_layernorm", false, false},    {"attn_q", "self_attn.q_proj", true, false},
    {"attn_k", "self_attn.k_proj", false, true},       {"attn_v", "self_attn.v_proj", false, false},
    {"attn_output", "self_attn.o_proj", false, false}, {"ffn_norm", "post_attention_layernorm", false, false},
    {"ffn_gate", "mlp.gate_proj", false, false},       {"ffn_up", "mlp.up_proj", false, false},
    {"ffn_down", "mlp.down_proj", false, false},
};

/* "blk.12.attn_q.weight" -> layer 12, "attn_q", ".weight" */
static bool split_layer(const char *name, uint32_t *layer, char stem[32], const char **suffix)
{
    char *end;
    if (strncmp(name, "blk.", 4) != 0 || name[4] < '0' || name[4] > '9')
        return false;
    unsigned long n = strtoul(name + 4, &end, 10);
    const char *dot = strrchr(name, '.');
    if (*end != '.' || n >= MODEL_LAYERS_MAX || dot <= end || dot - end - 1 >= 32)
        return false;
    memcpy(stem, end + 1, (size_t)(dot - end - 1));
    stem[dot - end - 1] = 0;
    *layer = (uint32_t)n;
    *suffix = dot;
    return true;
}

bool gguf_hf_name(const struct gguf_tensor *tensor, const struct model_config *config, char *name,
                  size_t size, uint32_t *permuted_heads)
{
    static const char *const outer[][2] = {{"token_embd.weight", "model.embed_tokens.weight"},
                                           {"output_norm.weight", "model.norm.weight"},
                                           {"output.weight", "lm_head.weight"}};
    char stem[32];
    const char *suffix;
    uint32_t layer;
    *permuted_heads = 0;
    for (size_t i = 0; i < sizeof(outer) / sizeof(outer[0]); i++)
        if (strcmp(tensor->name, outer[i][0]) == 0) {
            snprintf(name, size, "%s", outer[i][1]);
            return true;
        }
    if (!split_layer(tensor->name, &layer, stem, &suffix))
        return false;
    for (size_t i = 0; i < sizeof(layer_names) / sizeof(layer_names[0]); i++) {
        if (strcmp(stem, layer_names[i].gguf) != 0)
            continue;
        if (layer_names[i].permuted_q)
            *permuted_heads = config->heads;
        else if (layer_names[i].permuted_k)
            *permuted_heads = config->kv_heads;
        snprintf(name, size, "model.layers.%u.%s%s", layer, layer_names[i].hf, suffix);
        return true;
    }
    return false;
}

/* llama.cpp writes Llama 3's scaling as one divisor for each frequency. Those are functions of (factor, low,
 * high, original); the published models all have low 1 and high 4. Find the two others and compare every
 * divisor. */
int gguf_infer_rope(const float *divisors, uint32_t count, struct model_config *c, struct err *err)
{
    double factor = 1;
    bool plain = true;
    if (count != c->head_dim / 2)
        return err_set(err, ERR_CORRUPT, "gguf: rope_freqs.weight: %u divisors for %u frequencies", count,
                       c->head_dim / 2);
    for (uint32_t i = 0; i < count; i++) {
        if (!(divisors[i] >= 0.999f && divisors[i] < 1e6f))
            return err_set(err, ERR_CORRUPT, "gguf: rope_freqs.weight: divisor %u is %g", i,
                           (double)divisors[i]);
        factor = fmax(factor, divisors[i]);
        plain = plain && divisors[i] < 1.0001f;
    }
    if (plain || c->rope.kind != ROPE_DEFAULT)
        return plain ? 0
                     : err_set(err, ERR_UNSUPPORTED, "gguf: rope_freqs.weight beside %s scaling",
                               c->rope.kind_name);
    static const double originals[] = {8192, 4096, 2048, 16384, 32768};
    double *plain_freq = malloc(count * sizeof(double)), *scaled = malloc(count * sizeof(double));
    int status = plain_freq && scaled ? model_rope_frequencies(c, plain_freq, err)
                                      : err_set(err, ERR_NOMEM, "no memory for %u frequencies", count);
    struct rope_config old = c->rope;
    for (size_t k = 0; status == 0 && k < sizeof(originals) / sizeof(originals[0]); k++) {
        bool same = true;
        c->rope = (struct rope_config){.theta = old.theta,
                                       .kind = ROPE_LLAMA3,
                                       .kind_name = "llama3",
                                       .factor = factor,
                                       .low_freq_factor = 1,
                                       .high_freq_factor = 4,
                                       .original_max_positions = originals[k]};
        status = model_rope_frequencies(c, scaled, err);
        for (uint32_t i = 0; i < count; i++)
            same = same && fabs(plain_freq[i] / scaled[i] / (double)divisors[i] - 1) < 1e-4;
        if (status == 0 && same)
            goto out;
    }
    c->rope = old;
    if (status == 0)
        status = err_set(err, ERR_UNSUPPORTED, "gguf: rope_freqs.weight is not Llama 3's scaling");
out:
    free(plain_freq);
    free(scaled);
    return status;
}
