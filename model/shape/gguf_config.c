/* Converts GGUF metadata to struct model_config. Keys begin with the architecture's name; their meanings and
 * defaults are llama.cpp's (gguf-py/gguf/constants.py, src/llama-model.cpp). */
#include "model/shape/gguf_config.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/shape/arch.h"
#include "model/shape/packing.h"

enum { KEY_BYTES = 128 };

/* Reads the metadata of one architecture. The first failure is kept, and later reads do nothing. */
struct reader {
    const struct gguf *gguf;
    const struct arch *arch;
    struct err *err;
    bool failed;
    char key[KEY_BYTES]; /* the key that was read last */
};

static const char *gguf_config_key_of(struct reader *r, const char *name)
{
    snprintf(r->key, sizeof(r->key), "%s.%s", r->arch->gguf, name);
    return r->key;
}

__attribute__((format(printf, 2, 3))) static void fail(struct reader *r, const char *fmt, ...)
{
    char text[256];
    va_list args;
    if (r->failed)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    err_set(r->err, ERR_INVALID, "gguf: %s: %s", r->key, text);
    r->failed = true;
}

static void unsupported(struct reader *r, const char *what)
{
    if (!r->failed)
        err_set(r->err, ERR_UNSUPPORTED, "gguf: %s: %s is not supported", r->key, what);
    r->failed = true;
}

/* Reads a number of at most 'most'; returns true when the key is present. */
static bool get_u32(struct reader *r, const char *name, bool required, uint32_t most, uint32_t *out)
{
    const char *key = gguf_config_key_of(r, name);
    int64_t value;
    if (r->failed || (gguf_kind(r->gguf, key) == GGUF_NONE && !required))
        return false;
    if (gguf_kind(r->gguf, key) == GGUF_ARRAY)
        unsupported(r, "a value for each layer");
    else if (!gguf_i64(r->gguf, key, &value))
        fail(r, "missing or no number");
    else if (value < 1 || value > most)
        fail(r, "%" PRId64 " is not within 1..%u", value, most);
    else
        *out = (uint32_t)value;
    return !r->failed;
}

static bool get_f64(struct reader *r, const char *name, double least, double most, double *out)
{
    const char *key = gguf_config_key_of(r, name);
    double value;
    if (r->failed || gguf_kind(r->gguf, key) == GGUF_NONE)
        return false;
    if (!gguf_f64(r->gguf, key, &value))
        fail(r, "missing or no number");
    else if (!(value >= least && value <= most))
        fail(r, "%g is not within %g..%g", value, least, most);
    else
        *out = value;
    return !r->failed;
}

/* Reads a number that may be 0, up to that of layers or experts. */
static void get_count(struct reader *r, const char *name, uint32_t *out)
{
    int64_t value;
    *out = 0;
    if (!gguf_i64(r->gguf, gguf_config_key_of(r, name), &value) || value != 0)
        get_u32(r, name, false, MODEL_EXPERTS_MAX, out);
}

/* Refuses a number other than the one that is computed, or than 0, by which llama.cpp means none. */
static void get_only(struct reader *r, const char *name, double only)
{
    double value;
    if (!get_f64(r, name, -1e9, 1e9, &value) || value == only || value == 0)
        return;
    err_set(r->err, ERR_UNSUPPORTED, "gguf: %s: %g is not supported; only %g is", r->key, value, only);
    r->failed = true;
}

static int find_arch(const struct gguf *g, struct model_config *c, struct err *err)
{
    const char *text;
    size_t size;
    char key[KEY_BYTES], known[512];
    int64_t experts = 0;
    if (!gguf_string(g, "general.architecture", &text, &size))
        return err_set(err, ERR_INVALID, "gguf: general.architecture: missing or no text");
    int shown = size > 64 ? 64 : (int)size;
    snprintf(key, sizeof(key), "%.*s.expert_count", shown, text);
    gguf_i64(g, key, &experts);
    int found = arch_find_gguf(text, size, experts > 0);
    for (int i = found; i >= 0 && i < MODEL_ARCH_COUNT; i++) {
        const struct arch *a = arch_of((enum model_arch)i);
        if (!a->gguf_key || strcmp(a->gguf, arch_of((enum model_arch)found)->gguf) != 0)
            continue;
        snprintf(key, sizeof(key), "%s.%s", a->gguf, a->gguf_key);
        found = gguf_kind(g, key) != GGUF_NONE ? i : found;
    }
    arch_list(true, known, sizeof(known));
    if (found < 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "gguf: general.architecture: the architecture \"%.*s\"%s is not known; known in GGUF "
                       "are %s",
                       shown, text, experts > 0 ? " with experts" : "", known);
    c->arch = (enum model_arch)found;
    return 0;
}

/* Reads how many key-value heads layers with attention have; the others have short convolutions. */
static void read_layer_heads(struct reader *r, struct model_config *c)
{
    const char *key = gguf_config_key_of(r, "attention.head_count_kv");
    int64_t heads, all = 0;
    for (uint32_t i = 0; i < c->layers && !r->failed; i++)
        if (!gguf_array_i64(r->gguf, key, i, &heads) || heads < 0 || heads > 4096)
            fail(r, "has no number up to 4096 for layer %u", i);
        else if (heads == 0)
            model_layer_mark(c->conv_layer, i);
        else if (all != 0 && heads != all)
            unsupported(r, "layers with unlike numbers");
        else
            all = heads;
    if (all == 0)
        unsupported(r, "a model without attention");
    c->kv_heads = (uint32_t)all;
    c->conv_taps = 3;
    if (get_u32(r, "shortconv.l_cache", true, 64, &c->conv_taps) && (c->conv_taps < 2 || c->conv_taps > 4))
        unsupported(r, "a convolution of other than 2 to 4 tokens");
    get_only(r, "attention.sliding_window", 0);
}

static void read_sizes(struct reader *r, struct model_config *c)
{
    uint32_t ahead = 0;
    get_u32(r, "embedding_length", true, 1 << 17, &c->hidden);
    get_u32(r, "block_count", true, MODEL_LAYERS_MAX, &c->layers);
    get_count(r, "nextn_predict_layers", &ahead); /* layers behind the model's, which are not used */
    if (ahead >= c->layers)
        fail(r, "%u leaves no layer of block_count, %u", ahead, c->layers);
    c->layers -= r->failed ? 0 : ahead;
    get_u32(r, "feed_forward_length", true, 1 << 20, &c->ffn);
    get_u32(r, "attention.head_count", true, 4096, &c->heads);
    c->kv_heads = c->heads;
    c->max_positions = 2048;
    get_u32(r, "context_length", false, 1 << 30, &c->max_positions);
    get_u32(r, "attention.key_length", false, 1024, &c->head_dim);
    c->norm_eps = 1e-5;
    get_f64(r, "attention.layer_norm_rms_epsilon", 1e-30, 1, &c->norm_eps);
    if (r->arch->conv)
        read_layer_heads(r, c);
    else
        get_u32(r, "attention.head_count_kv", false, 4096, &c->kv_heads);
    if (r->failed)
        return;
    if (c->heads % c->kv_heads != 0) {
        fail(r, "%u does not divide head_count, %u", c->kv_heads, c->heads);
        return;
    }
    gguf_config_key_of(r, "embedding_length");
    if (c->head_dim == 0 && c->hidden % c->heads != 0)
        fail(r, "%u is no multiple of head_count, %u", c->hidden, c->heads);
    else if (c->head_dim == 0)
        c->head_dim = c->hidden / c->heads;
    if (!r->failed &&
        (c->head_dim % 2 != 0 || c->head_dim > 1024 || (uint64_t)c->head_dim * c->heads > 1 << 17))
        fail(r, "a head size of %u is not even or too big", c->head_dim);
}

/* Reads yarn's settings. As in llama.cpp, the factor of cosines and sines is attn_factor times the
 * paper's; llama.cpp reads no yarn_attn_factor, in which its converter writes config.json's factor. */
static void read_yarn(struct reader *r, const struct model_config *c, struct rope_config *rope)
{
    double times = 1, ignored = 0, whole = 1;
    rope->kind = ROPE_YARN;
    memset(rope->kind_name, 0, sizeof(rope->kind_name));
    memcpy(rope->kind_name, "yarn", 5);
    rope->original_max_positions = c->max_positions;
    rope->beta_fast = 32;
    rope->beta_slow = 1;
    /* llama.cpp has no key for it, and rounds; the numbers are the class's */
    rope->ramp_exact = r->arch->rope_default && strstr(r->arch->rope_default, "\"truncate\": false");
    get_f64(r, "rope.scaling.factor", 1, 1e6, &rope->factor);
    get_f64(r, "rope.scaling.original_context_length", 1, 1e9, &rope->original_max_positions);
    get_f64(r, "rope.scaling.attn_factor", 1e-6, 1e6, &times);
    if (get_f64(r, "rope.scaling.yarn_attn_factor", 1e-6, 1e6, &whole) && whole != 1 &&
        fabs(whole / (1 + 0.1 * log(rope->factor)) - 1) > 1e-4)
        unsupported(r, "a factor other than yarn's own");
    get_f64(r, "rope.scaling.yarn_beta_fast", 1e-6, 1e6, &rope->beta_fast);
    get_f64(r, "rope.scaling.yarn_beta_slow", 1e-6, 1e6, &rope->beta_slow);
    if (get_f64(r, "rope.scaling.yarn_log_multiplier", -1e6, 1e6, &ignored) && ignored != 0)
        unsupported(r, "a multiplier of yarn's logarithm");
    rope->attention = times * (1 + 0.1 * log(rope->factor));
}

static void read_rope(struct reader *r, struct model_config *c)
{
    const char *kind = "none";
    size_t size = 4;
    uint32_t dims = 0;
    struct rope_config *rope = &c->rope;
    *rope = (struct rope_config){.theta = 10000, .kind_name = "default", .factor = 1};
    if (get_u32(r, "rope.dimension_count", false, 1024, &dims) && dims != c->head_dim) {
        c->rotary_dim = dims;
        if (!(r->arch->partial_rotary > 0) || dims > c->head_dim || dims % 2 != 0)
            unsupported(r, "a part of each head rotated");
    }
    get_f64(r, "rope.freq_base", 1, 1e12, &rope->theta);
    c->rope_local_set = r->arch->rope_by_type;
    if (c->rope_local_set) {
        c->rope_local =
            (struct rope_config){.theta = r->arch->theta_local_key ? r->arch->theta_local : rope->theta,
                                 .kind_name = "default",
                                 .factor = 1};
        get_f64(r, "rope.freq_base_swa", 1, 1e12, &c->rope_local.theta);
    }
    gguf_string(r->gguf, gguf_config_key_of(r, "rope.scaling.type"), &kind, &size);
    if (size == 4 && memcmp(kind, "none", 4) == 0) {
        get_f64(r, "rope.scale_linear", 1, 1, &rope->factor);
    } else if (size == 6 && memcmp(kind, "linear", 6) == 0) {
        rope->kind = ROPE_LINEAR;
        memcpy(rope->kind_name, "linear", 7);
        get_f64(r, "rope.scaling.factor", 1, 1e6, &rope->factor);
    } else if (size == 4 && memcmp(kind, "yarn", 4) == 0) {
        read_yarn(r, c, rope);
    } else if (size == 8 && memcmp(kind, "longrope", 8) == 0) {
        /* longrope's factors are tensors, so the kind is set below, where they are found */
        memcpy(rope->kind_name, "longrope", 9);
    } else {
        rope->kind = ROPE_OTHER;
        snprintf(rope->kind_name, sizeof(rope->kind_name), "%.*s", (int)(size > 15 ? 15 : size), kind);
    }
    if (gguf_tensor_find(r->gguf, "rope_factors_long.weight")) {
        rope->kind = ROPE_LONGROPE; /* model_open() reads the factors */
        memcpy(rope->kind_name, "longrope", 9);
        rope->original_max_positions = c->max_positions;
        rope->attention = 1;
        get_f64(r, "rope.scaling.original_context_length", 1, 1e9, &rope->original_max_positions);
        get_f64(r, "rope.scaling.attn_factor", 1e-6, 1e6, &rope->attention);
    }
    for (uint32_t i = 0; r->arch->no_rope_period && i < c->layers; i++)
        if ((i + 1) % r->arch->no_rope_period == 0)
            model_layer_mark(c->no_rope_layer, i);
}

/* Reads the window. llama.cpp reads one only for families whose layers use it by a fixed rule. */
static void read_window(struct reader *r, struct model_config *c)
{
    const struct arch *a = r->arch;
    const char *pattern = "attention.sliding_window_pattern";
    uint32_t period = a->window_period;
    enum gguf_kind kind;
    uint64_t count;
    if (a->windows != ARCH_WINDOW_BUT_LAST && !a->packed_qkv)
        return;
    c->window = a->window;
    get_u32(r, "attention.sliding_window", false, 1 << 30, &c->window);
    bool listed = gguf_array(r->gguf, gguf_config_key_of(r, pattern), &kind, &count);
    if (!listed)
        get_u32(r, pattern, false, MODEL_LAYERS_MAX, &period);
    for (uint32_t i = 0; c->window && i < c->layers && !r->failed; i++) {
        int64_t has = period == 0 || (i + 1) % period != 0;
        if (listed && !gguf_array_i64(r->gguf, r->key, i, &has))
            fail(r, "says nothing of layer %u", i);
        if (has)
            model_layer_mark(c->window_layer, i);
    }
}

/* Reads Granite's factors; llama.cpp divides the logits by its logit_scale. */
static void read_multipliers(struct reader *r, struct model_config *c)
{
    double logits = 1;
    bool rotates = true;
    if (gguf_bool(r->gguf, gguf_config_key_of(r, "rope.scaling.finetuned"), &rotates) && !rotates)
        unsupported(r, "false, which stands for no rotation,");
    c->embed_scale = c->branch_scale = 1;
    c->attn_scale = 1 / sqrt((double)c->head_dim);
    get_f64(r, "embedding_scale", 1e-9, 1e9, &c->embed_scale);
    get_f64(r, "residual_scale", 1e-9, 1e9, &c->branch_scale);
    get_f64(r, "attention.scale", 1e-9, 1e9, &c->attn_scale);
    get_f64(r, "logit_scale", 1e-9, 1e9, &logits);
    c->logit_scale = 1 / logits;
}

static void read_scores(struct reader *r, struct model_config *c)
{
    const struct arch *a = r->arch;
    if (a->multipliers)
        read_multipliers(r, c);
    if (!(a->attention_scalar > 0))
        return;
    c->attn_scale = 1 / sqrt(c->layers == a->gguf_scaled_layers ? (double)c->hidden / c->heads : c->head_dim);
    c->attn_softcap = a->attention_cap;
    c->logit_softcap = a->logit_cap;
    if (a->attention_cap > 0)
        get_f64(r, "attn_logit_softcapping", 1e-6, 1e9, &c->attn_softcap);
    get_f64(r, "final_logit_softcapping", 1e-6, 1e9, &c->logit_softcap);
}

/* Reads the router's settings. What llama.cpp computes without a key must not be contradicted by one. */
static void read_router(struct reader *r, struct model_config *c)
{
    const struct arch *a = r->arch;
    bool always = a->renormalise || a->gguf_renormalise;
    c->router_renormalise = always;
    if (!gguf_bool(r->gguf, gguf_config_key_of(r, "expert_weights_norm"), &c->router_renormalise) &&
        gguf_kind(r->gguf, r->key) != GGUF_NONE)
        fail(r, "neither true nor false");
    if (!a->router_sigmoid && c->router_renormalise != always)
        unsupported(r, always ? "false" : "true");
    get_only(r, "expert_gating_func", a->router_sigmoid ? 2 : 1); /* gguf-py's ExpertGatingFuncType */
    get_only(r, "expert_group_count", 1);
    get_only(r, "expert_group_used_count", 1);
    c->router_scale = a->router_sigmoid ? 1 : c->branch_scale;
    if (a->router_sigmoid)
        get_f64(r, "expert_weights_scale", 1e-9, 1e9, &c->router_scale);
    else
        get_only(r, "expert_weights_scale", 1);
    c->router_aux_coef = a->aux_coef;
}

/* Reads the shared expert's width, and how many of the first layers are dense. */
static void read_shared(struct reader *r, struct model_config *c)
{
    const struct arch *a = r->arch;
    uint32_t shared = 0, dense = 0;
    if (a->shared_count_key)
        get_count(r, "expert_shared_count", &shared);
    else
        get_only(r, "expert_shared_count", 0);
    if (a->shared_count_key && gguf_kind(r->gguf, r->key) == GGUF_NONE)
        fail(r, "missing");
    c->shared_ffn = shared * c->expert_ffn;
    if (c->shared_ffn > 1 << 20)
        fail(r, "%u experts of %u are too wide", shared, c->expert_ffn);
    if (a->shared_key) {
        c->shared_ffn = c->ffn;
        get_u32(r, "expert_shared_feed_forward_length", false, 1 << 20, &c->shared_ffn);
    } else if (!a->shared_count_key) {
        get_only(r, "expert_shared_feed_forward_length", 0);
    }
    get_only(r, "interleave_moe_layer_step", 1);
    if (a->dense == ARCH_DENSE_FIRST || a->dense == ARCH_DENSE_OUTSIDE)
        get_count(r, "leading_dense_block_count", &dense);
    else
        get_only(r, "leading_dense_block_count", 0);
    if (dense >= c->layers)
        fail(r, "%u leaves no layer with experts", dense);
    for (uint32_t i = 0; i < dense && !r->failed; i++)
        model_layer_mark(c->dense_layer, i);
    c->ffn = dense ? c->ffn : 0;
}

static void read_experts(struct reader *r, struct model_config *c)
{
    const struct arch *a = r->arch;
    if (!a->sparse)
        return;
    get_u32(r, "expert_count", true, MODEL_EXPERTS_MAX, &c->experts);
    get_u32(r, "expert_used_count", true, MODEL_EXPERTS_MAX, &c->experts_active);
    if (c->experts_active > c->experts)
        fail(r, "%u is more than the %u experts", c->experts_active, c->experts);
    c->expert_ffn = c->ffn;
    if (a->expert_ffn_key)
        get_u32(r, "expert_feed_forward_length", true, 1 << 20, &c->expert_ffn);
    c->gate_limit = a->gate_limit;
    c->gate_alpha = a->gate_alpha;
    read_router(r, c);
    read_shared(r, c);
}

static int read_table(const struct gguf *g, struct model_config *c, struct err *err)
{
    const struct gguf_tensor *table = gguf_tensor_find(g, "token_embd.weight");
    if (!table || table->rank != 2 || table->shape[0] > 1 << 22)
        return err_set(err, ERR_INVALID,
                       "gguf: token_embd.weight: missing, so the vocabulary's size is not known");
    c->vocab = (uint32_t)table->shape[0];
    c->tied = !gguf_tensor_find(g, "output.weight");
    c->dtype = table->type == TENSOR_BF16 ? MODEL_BF16 : table->type == TENSOR_F16 ? MODEL_F16 : MODEL_F32;
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
    struct reader r = {.gguf = g, .err = err};
    memset(&c, 0, sizeof(c));
    memset(config, 0, sizeof(*config));
    if (find_arch(g, &c, err) < 0)
        return -1;
    r.arch = arch_of(c.arch);
    read_sizes(&r, &c);
    bool causal = true;
    if (gguf_bool(g, gguf_config_key_of(&r, "attention.causal"), &causal) && !causal)
        unsupported(&r, "attention to later tokens");
    if (r.arch->query_beta && gguf_config_key_of(&r, "attention.temperature_scale"))
        unsupported(&r, "queries that grow with the position");
    read_rope(&r, &c);
    read_window(&r, &c);
    read_scores(&r, &c);
    read_experts(&r, &c);
    if (r.failed || read_table(g, &c, err) < 0)
        return -1;
    arch_fill(&c);
    if (r.arch->qk_norm_key)
        c.qk_norm = gguf_tensor_find(g, "blk.0.attn_q_norm.weight") != NULL;
    c.qkv_bias = gguf_tensor_find(g, c.packed_qkv ? "blk.0.attn_qkv.bias" : "blk.0.attn_q.bias") != NULL;
    c.o_bias = gguf_tensor_find(g, "blk.0.attn_output.bias") != NULL;
    c.mlp_bias = gguf_tensor_find(g, "blk.0.ffn_up.bias") != NULL;
    c.bos = token(g, "tokenizer.ggml.bos_token_id", c.vocab);
    c.pad = token(g, "tokenizer.ggml.padding_token_id", c.vocab);
    int32_t eos = token(g, "tokenizer.ggml.eos_token_id", c.vocab);
    if (eos >= 0)
        c.eos[c.eos_count++] = eos;
    packing_of_gguf(g, &c);
    *config = c;
    return 0;
}

/* llama.cpp writes Llama 3's scaling as one divisor for each frequency. The divisors are functions of
 * (factor, low, high, original); the published models all have low 1 and high 4. This function finds factor
 * and original and compares every divisor. */
int gguf_infer_rope(const float *divisors, uint32_t count, struct model_config *c, struct err *err)
{
    double factor = 1;
    bool plain = true;
    uint32_t dim = model_rotary(c, false);
    if (count != dim / 2)
        return err_set(err, ERR_CORRUPT, "gguf: rope_freqs.weight: %u divisors for %u frequencies", count,
                       dim / 2);
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
    int status = plain_freq && scaled ? model_rope_frequencies(c, 0, plain_freq, err)
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
        status = model_rope_frequencies(c, 0, scaled, err);
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
