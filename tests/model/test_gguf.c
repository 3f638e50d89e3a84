/* Every claim of a GGUF header is checked, and every block type gives the values of its definition. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/file.h"
#include "common/rand.h"
#include "model/shape/config.h"
#include "model/shape/gguf_config.h"
#include "model/gguf_build.h"
#include "support/must.h"
#include "support/scratch.h"

static int open_bytes(const uint8_t *data, size_t size, struct gguf **gguf, struct err *err)
{
    struct model_source *source;
    assert_int_equal(model_source_open_memory("m.gguf", data, size, &source, err), 0);
    int status = gguf_open(source, 0, gguf, err);
    model_source_close(source);
    return status;
}

static void refused(struct gguf_build *b, enum err_code code, const char *word)
{
    struct gguf *gguf;
    struct err err = {0};
    if (open_bytes(b->data, b->size, &gguf, &err) == 0)
        fail_msg("accepted, wanted: %s", word);
    if (err.code != code || !strstr(err.text, word))
        fail_msg("wanted \"%s\": %s (%s)", word, err.text, err_code_name(err.code));
    free(b->data);
}

static void huge_counts_and_lengths_are_refused_before_memory_is_taken(void **state)
{
    (void)state;
    struct gguf_build b;
    gb_begin(&b, 3, UINT64_MAX, 0);
    refused(&b, ERR_CORRUPT, "tensors");
    gb_begin(&b, 3, 0, 1ull << 40);
    refused(&b, ERR_CORRUPT, "keys");
    gb_begin(&b, 3, 60000, 60000);
    refused(&b, ERR_CORRUPT, "file of 24 bytes");
    gb_begin(&b, 3, 0, 1);
    gb_u64(&b, UINT64_MAX);
    gb_bytes(&b, NULL, 64);
    refused(&b, ERR_CORRUPT, "key");
    gb_begin(&b, 3, 0, 1);
    gb_text(&b, "k");
    gb_u32(&b, 8);
    gb_u64(&b, UINT64_MAX - 7);
    gb_bytes(&b, NULL, 64);
    refused(&b, ERR_CORRUPT, "k at byte");
    gb_begin(&b, 3, 0, 1);
    gb_text(&b, "array");
    gb_u32(&b, 9);
    gb_u32(&b, 8);
    gb_u64(&b, 1ull << 61);
    gb_bytes(&b, NULL, 64);
    refused(&b, ERR_CORRUPT, "array");
    gb_begin(&b, 3, 0, 1);
    gb_text(&b, "nested");
    gb_u32(&b, 9);
    gb_u32(&b, 9);
    gb_u64(&b, 1);
    gb_bytes(&b, NULL, 64);
    refused(&b, ERR_CORRUPT, "nested");
    gb_begin(&b, 3, 0, 1);
    gb_text(&b, "kind");
    gb_u32(&b, 77);
    gb_bytes(&b, NULL, 64);
    refused(&b, ERR_CORRUPT, "kind");
}

static void one_tensor(struct gguf_build *b, uint64_t rows, uint64_t cols, uint32_t type, uint64_t offset,
                       size_t data)
{
    gb_begin(b, 3, 1, 0);
    gb_tensor(b, "t.weight", rows, cols, type, offset);
    gb_align(b, 32);
    gb_bytes(b, NULL, data);
}

static void lies_about_tensors_are_refused_by_name(void **state)
{
    (void)state;
    struct gguf_build b;
    one_tensor(&b, 4, 8, 0, 0, 64);
    refused(&b, ERR_CORRUPT, "t.weight"); /* the file is truncated */
    one_tensor(&b, 4, 8, 0, 1ull << 62, 128);
    refused(&b, ERR_CORRUPT, "beyond the file");
    one_tensor(&b, 4, 8, 0, 8, 160);
    refused(&b, ERR_CORRUPT, "aligned");
    one_tensor(&b, 1ull << 40, 1ull << 40, 0, 0, 128);
    refused(&b, ERR_CORRUPT, "overflows");
    one_tensor(&b, 0, 8, 0, 0, 128);
    refused(&b, ERR_CORRUPT, "empty");
    one_tensor(&b, 4, 33, 2, 0, 1024);
    refused(&b, ERR_CORRUPT, "blocks");
    one_tensor(&b, 4, 256, 10, 0, 1024);
    refused(&b, ERR_UNSUPPORTED, "Q2_K");
    one_tensor(&b, 4, 256, 999, 0, 1024);
    refused(&b, ERR_UNSUPPORTED, "999");
    gb_begin(&b, 3, 2, 0);
    gb_tensor(&b, "t", 4, 8, 0, 0);
    gb_tensor(&b, "t", 4, 8, 0, 128);
    gb_align(&b, 32);
    gb_bytes(&b, NULL, 256);
    refused(&b, ERR_CORRUPT, "twice");
    gb_begin(&b, 3, 2, 0);
    gb_tensor(&b, "t", 4, 8, 0, 0);
    gb_tensor(&b, "u", 4, 8, 0, 96);
    gb_align(&b, 32);
    gb_bytes(&b, NULL, 256);
    refused(&b, ERR_CORRUPT, "overlaps");
    gb_begin(&b, 1, 0, 0);
    refused(&b, ERR_UNSUPPORTED, "version 1");
    gb_begin(&b, 0x03000000, 0, 0);
    refused(&b, ERR_UNSUPPORTED, "big-endian");
    gb_begin(&b, 3, 0, 1);
    gb_key_u32(&b, "general.alignment", 24);
    refused(&b, ERR_CORRUPT, "alignment");
    gb_begin(&b, 3, 0, 2);
    gb_key_u32(&b, "k", 24);
    gb_key_u32(&b, "k", 25);
    refused(&b, ERR_CORRUPT, "twice");
    gb_begin(&b, 3, 0, 1);
    gb_key_u32(&b, "split.count", 2);
    refused(&b, ERR_UNSUPPORTED, "split");
}

static void metadata_is_read_by_kind(void **state)
{
    (void)state;
    struct gguf_build b;
    struct gguf *g;
    struct err err;
    gb_begin(&b, 2, 0, 5);
    gb_key_u32(&b, "u", 7);
    gb_key_f32(&b, "f", 0.5f);
    gb_key_text(&b, "s", "text");
    gb_text(&b, "words");
    gb_u32(&b, 9);
    gb_u32(&b, 8);
    gb_u64(&b, 3);
    gb_text(&b, "one");
    gb_text(&b, "");
    gb_text(&b, "three");
    gb_text(&b, "numbers");
    gb_u32(&b, 9);
    gb_u32(&b, 5);
    gb_u64(&b, 2);
    gb_u32(&b, (uint32_t)-5);
    gb_u32(&b, 6);
    if (open_bytes(b.data, b.size, &g, &err) < 0)
        fail_msg("%s", err.text);
    int64_t i;
    double f;
    const char *text;
    size_t size;
    enum gguf_kind kind;
    uint64_t count;
    assert_int_equal(gguf_version(g), 2);
    assert_true(gguf_i64(g, "u", &i) && i == 7);
    assert_true(gguf_f64(g, "u", &f) && f == 7);
    assert_true(gguf_f64(g, "f", &f) && f == 0.5);
    assert_false(gguf_i64(g, "f", &i));
    assert_false(gguf_i64(g, "s", &i));
    assert_false(gguf_i64(g, "absent", &i));
    assert_true(gguf_string(g, "s", &text, &size) && size == 4 && memcmp(text, "text", 4) == 0);
    assert_true(gguf_array(g, "words", &kind, &count) && kind == GGUF_STRING && count == 3);
    assert_true(gguf_array_string(g, "words", 1, &text, &size) && size == 0);
    assert_true(gguf_array_string(g, "words", 2, &text, &size) && size == 5 && memcmp(text, "three", 5) == 0);
    assert_false(gguf_array_string(g, "words", 3, &text, &size));
    assert_true(gguf_array_i64(g, "numbers", 0, &i) && i == -5);
    assert_false(gguf_array_string(g, "numbers", 0, &text, &size));
    gguf_close(g);
    free(b.data);
}

/* The definitions of the block types once more, in double and element by element, from ggml's description of
 * them. */
static double half(const uint8_t *p)
{
    int bits = p[0] | p[1] << 8, e = bits >> 10 & 31, m = bits & 1023;
    double v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return bits & 0x8000 ? -v : v;
}

static double nibble(const uint8_t *qs, int i, int half_size)
{
    return i < half_size ? qs[i] & 15 : qs[i - half_size] >> 4;
}

static double k_value(const uint8_t *p, const uint8_t *qh, const uint8_t *qs, int i)
{
    int sub = i / 32, l = i % 32;
    const uint8_t *s = p + 4;
    double scale = sub < 4 ? s[sub] & 63 : (s[sub + 4] & 15) + 16 * (s[sub - 4] >> 6);
    double min = sub < 4 ? s[sub + 4] & 63 : (s[sub + 4] >> 4) + 16 * (s[sub] >> 6);
    double q = sub & 1 ? qs[sub / 2 * 32 + l] >> 4 : qs[sub / 2 * 32 + l] & 15;
    if (qh)
        q += 16 * (qh[l] >> sub & 1);
    return half(p) * scale * q - half(p + 2) * min;
}

static double expected(enum tensor_type type, const uint8_t *p, int i)
{
    switch (type) {
    case TENSOR_F16:
        return half(p);
    case TENSOR_Q4_0:
        return half(p) * (nibble(p + 2, i, 16) - 8);
    case TENSOR_Q4_1:
        return half(p) * nibble(p + 4, i, 16) + half(p + 2);
    case TENSOR_Q5_0:
        return half(p) * (nibble(p + 6, i, 16) + 16 * (p[2 + i / 8] >> i % 8 & 1) - 16);
    case TENSOR_Q5_1:
        return half(p) * (nibble(p + 8, i, 16) + 16 * (p[4 + i / 8] >> i % 8 & 1)) + half(p + 2);
    case TENSOR_Q8_0:
        return half(p) * (int8_t)p[2 + i];
    case TENSOR_Q4_K:
        return k_value(p, NULL, p + 16, i);
    case TENSOR_Q5_K:
        return k_value(p, p + 16, p + 48, i);
    case TENSOR_Q6_K: {
        int h = i / 128, k = i % 128 / 32, l = i % 32;
        int low = p[64 * h + l + 32 * (k % 2)] >> (k / 2 * 4) & 15, high = p[128 + 32 * h + l] >> (2 * k) & 3;
        return half(p + 208) * (int8_t)p[192 + 8 * h + l / 16 + 2 * k] * (low + 16 * high - 32);
    }
    case TENSOR_MXFP4: {
        static const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
        int code = (int)nibble(p + 1, i, 16);
        return ldexp(code < 8 ? values[code] : -values[code - 8], p[0] - 127);
    }
    default:
        return NAN;
    }
}

/* Makes the scales of a random block finite. */
static void tame(enum tensor_type type, uint8_t *block)
{
    int at[2] = {type == TENSOR_MXFP4 ? -1 : 0, -1};
    if (type == TENSOR_MXFP4)
        block[0] %= 253;
    if (type == TENSOR_Q6_K)
        at[0] = 208;
    if (type == TENSOR_Q4_1 || type == TENSOR_Q5_1 || type == TENSOR_Q4_K || type == TENSOR_Q5_K)
        at[1] = 2;
    for (int i = 0; i < 2; i++)
        if (at[i] >= 0)
            block[at[i] + 1] = (uint8_t)((block[at[i] + 1] & 0x83) | 0x20); /* an fp16 of about 2^-7 */
}

static void every_block_type_gives_what_its_definition_says(void **state)
{
    (void)state;
    static const enum tensor_type kinds[] = {TENSOR_F16,  TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0,
                                             TENSOR_Q5_1, TENSOR_Q8_0, TENSOR_Q4_K, TENSOR_Q5_K,
                                             TENSOR_Q6_K, TENSOR_MXFP4};
    struct rand_stream rand;
    struct err err;
    rand_stream_init(&rand, 7, 0);
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        uint32_t block = tensor_type_block(kinds[k]), bytes = tensor_type_block_bytes(kinds[k]);
        for (int round = 0; round < 50; round++) {
            uint8_t src[256];
            float dst[256];
            for (uint32_t i = 0; i < bytes; i++)
                src[i] = (uint8_t)rand_stream_u32(&rand);
            tame(kinds[k], src);
            assert_int_equal(tensor_dequantise(kinds[k], src, block, dst, &err), 0);
            double largest = 0;
            for (uint32_t i = 0; i < block; i++)
                largest = fmax(largest, fabs(expected(kinds[k], src, (int)i)));
            for (uint32_t i = 0; i < block; i++) {
                double want = expected(kinds[k], src, (int)i);
                /* The error is two roundings to 24 bits of numbers up to the largest, because d*q - m may
                 * cancel. */
                if (fabs(dst[i] - want) > 4 * largest * 0x1p-24 + 0x1p-149)
                    fail_msg("%s element %u: %.9g, not %.9g", tensor_type_name(kinds[k]), i, (double)dst[i],
                             want);
            }
        }
    }
    float one;
    assert_int_equal(tensor_dequantise(TENSOR_I32, "abcd", 1, &one, &err), -1);
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    assert_int_equal(tensor_dequantise(TENSOR_F16, "\x00\x7c", 1, &one, &err), 0);
    assert_true(isinf(one) && one > 0);
    assert_int_equal(tensor_dequantise(TENSOR_F16, "\x01\x7e", 1, &one, &err), 0);
    assert_true(isnan(one));
    assert_int_equal(tensor_dequantise(TENSOR_F16, "\x01\x80", 1, &one, &err), 0);
    assert_true(one == -0x1p-24f);
}

static void good_file(struct gguf_build *b)
{
    gb_begin(b, 3, 3, 6);
    gb_key_text(b, "general.architecture", "llama");
    gb_key_u32(b, "llama.block_count", 1);
    gb_key_f32(b, "llama.rope.freq_base", 1e4f);
    gb_text(b, "tokenizer.ggml.tokens");
    gb_u32(b, 9);
    gb_u32(b, 8);
    gb_u64(b, 3);
    gb_text(b, "a");
    gb_text(b, "bc");
    gb_text(b, "");
    gb_text(b, "scores");
    gb_u32(b, 9);
    gb_u32(b, 6);
    gb_u64(b, 2);
    gb_u64(b, 0);
    gb_key_u32(b, "general.alignment", 32);
    gb_tensor(b, "a.weight", 2, 32, 2, 0);
    gb_tensor(b, "b.weight", 4, 0, 0, 64);
    gb_tensor(b, "c.weight", 2, 4, 30, 96);
    gb_align(b, 32);
    gb_bytes(b, NULL, 112);
}

/* Writes a model of 64-wide heads with the rotary keys that llama.cpp's converter writes. */
static void rope_file(const char *path, bool longrope)
{
    enum { EMBEDDING = 4 * 300 * 256 };
    static const float factors[2][32] = {{1, 1.5f, 2}, {3, 4, 5}};
    struct gguf_build b;
    struct err err;
    gb_begin(&b, 3, longrope ? 3 : 1, longrope ? 11 : 12);
    gb_key_text(&b, "general.architecture", "llama");
    gb_key_u32(&b, "llama.block_count", 2);
    gb_key_u32(&b, "llama.context_length", 65536);
    gb_key_u32(&b, "llama.embedding_length", 256);
    gb_key_u32(&b, "llama.feed_forward_length", 64);
    gb_key_u32(&b, "llama.attention.head_count", 4);
    gb_key_f32(&b, "llama.attention.layer_norm_rms_epsilon", 1e-6f);
    gb_key_u32(&b, "llama.vocab_size", 300);
    gb_key_u32(&b, "llama.rope.scaling.original_context_length", 4096);
    gb_key_f32(&b, longrope ? "llama.rope.scaling.attn_factor" : "llama.rope.scaling.factor",
               longrope ? 1.25f : 16);
    gb_key_text(&b, "llama.rope.scaling.type", longrope ? "longrope" : "yarn");
    if (!longrope)
        gb_key_f32(&b, "llama.rope.scaling.yarn_beta_fast", 32);
    gb_tensor(&b, "token_embd.weight", 300, 256, 0, 0); /* this tensor gives the vocabulary's size */
    for (int i = 0; i < 2 && longrope; i++)
        gb_tensor(&b, i == 0 ? "rope_factors_short.weight" : "rope_factors_long.weight", 32, 0, 0,
                  EMBEDDING + 128 * (uint64_t)i);
    gb_align(&b, 32);
    gb_bytes(&b, NULL, EMBEDDING);
    for (int i = 0; i < 2 && longrope; i++) {
        float all[32];
        for (int k = 0; k < 32; k++)
            all[k] = factors[i][k] > 0 ? factors[i][k] : (float)(6 + i);
        gb_bytes(&b, all, sizeof(all));
    }
    must(file_write_atomic(path, b.data, b.size, 0600, &err), &err);
    free(b.data);
}

/* The frequencies equal those of a config with the same numbers (tests/engine/test_rope.c compares these with
 * transformers). */
static void rotary_scalings_of_a_gguf_are_those_of_a_config(void **state)
{
    (void)state;
    static const char yarn[] =
        "{\"model_type\":\"llama\",\"hidden_size\":256,\"intermediate_size\":64,\"num_attention_heads\":4,"
        "\"num_hidden_layers\":2,\"vocab_size\":300,\"max_position_embeddings\":65536,\"rope_scaling\":"
        "{\"rope_type\":\"yarn\",\"factor\":16,\"original_max_position_embeddings\":4096}}";
    struct scratch scratch;
    struct model_config found, want;
    struct err err = {0};
    double got[32], expected[32];
    assert_int_equal(scratch_make(&scratch), 0);
    const char *path = scratch_path(&scratch, "m.gguf");
    rope_file(path, false);
    must(model_config_load(path, &found, &err), &err);
    must(model_config_parse_text(yarn, sizeof(yarn) - 1, &want, &err), &err);
    assert_int_equal(found.rope.kind, ROPE_YARN);
    assert_true(fabs(found.rope.attention - want.rope.attention) < 1e-9);
    must(model_rope_frequencies(&found, 9, got, &err), &err);
    must(model_rope_frequencies(&want, 9, expected, &err), &err);
    for (int i = 0; i < 32; i++)
        assert_true(fabs(got[i] / expected[i] - 1) < 1e-9);
    rope_file(path, true);
    must(model_config_load(path, &found, &err), &err);
    assert_int_equal(found.rope.kind, ROPE_LONGROPE);
    assert_true(found.rope.attention == 1.25 && found.rope.original_max_positions == 4096);
    must(model_rope_frequencies(&found, 4096, got, &err), &err);
    assert_true(got[0] == 1 && fabs(got[1] * 1.5 - pow(1e4, -2.0 / 64)) < 1e-12);
    must(model_rope_frequencies(&found, 4097, got, &err), &err);
    assert_true(fabs(got[0] * 3 - 1) < 1e-12 && fabs(got[31] * 7 - pow(1e4, -62.0 / 64)) < 1e-12);
    scratch_remove(&scratch);
}

/* Reads the config of a small mixture whose file has one more key: a number, or 'true' or 'false'. */
static int mixture_config(const char *arch, const char *key, const char *value, struct model_config *config,
                          struct err *err)
{
    static const struct {
        const char *key;
        uint32_t value;
    } sizes[] = {{"block_count", 3},          {"embedding_length", 16},   {"feed_forward_length", 24},
                 {"attention.head_count", 4}, {"expert_count", 4},        {"expert_used_count", 2},
                 {"context_length", 64},      {"expert_shared_count", 2}, {"expert_feed_forward_length", 12}};
    bool counted = strstr("glm4moe dots1 ernie4_5-moe", arch);
    char name[128];
    struct gguf_build b;
    struct gguf *g;
    gb_begin(&b, 3, 1, counted ? 11 : 10);
    gb_key_text(&b, "general.architecture", arch);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        snprintf(name, sizeof(name), "%s.%s", arch, sizes[i].key);
        if (counted || strcmp(sizes[i].key, "expert_shared_count") != 0)
            gb_key_u32(&b, name, sizes[i].value);
    }
    snprintf(name, sizeof(name), "%s.%s", arch, key);
    if (value[0] == 't' || value[0] == 'f') {
        gb_text(&b, name);
        gb_u32(&b, 7);
        gb_bytes(&b, &(char){value[0] == 't'}, 1);
    } else if (strchr(value, '.')) {
        gb_key_f32(&b, name, strtof(value, NULL));
    } else {
        gb_key_u32(&b, name, (uint32_t)strtoul(value, NULL, 10));
    }
    gb_tensor(&b, "token_embd.weight", 40, 16, 0, 0);
    gb_align(&b, 32);
    gb_bytes(&b, NULL, 4 * 40 * 16);
    must(open_bytes(b.data, b.size, &g, err), err);
    int status = gguf_config(g, config, err);
    gguf_close(g);
    free(b.data);
    return status;
}

static void what_a_mixture_says_is_computed_or_refused_by_its_key(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *key, *value;
    } refused_keys[] = {
        {"qwen2moe", "expert_gating_func", "2"},
        {"qwen2moe", "expert_weights_norm", "true"},
        {"qwen2moe", "expert_weights_scale", "2.5"},
        {"qwen2moe", "leading_dense_block_count", "1"},
        {"qwen2moe", "expert_shared_count", "1"},
        {"qwen3moe", "expert_weights_norm", "false"},
        {"qwen3moe", "expert_shared_feed_forward_length", "20"},
        {"granitemoe", "expert_shared_feed_forward_length", "20"},
        {"granitemoe", "rope.scaling.finetuned", "false"},
        {"glm4moe", "expert_gating_func", "1"},
        {"glm4moe", "attention.causal", "false"},
        {"glm4moe", "expert_group_count", "8"},
        {"glm4moe", "expert_group_used_count", "4"},
        {"glm4moe", "leading_dense_block_count", "3"},
        {"glm4moe", "nextn_predict_layers", "3"},
        {"glm4moe", "expert_weights_norm", "1"},
        {"ernie4_5-moe", "interleave_moe_layer_step", "2"},
        {"ernie4_5-moe", "expert_weights_norm", "false"},
        {"llama", "expert_shared_count", "1"},
    };
    static struct model_config config;
    struct err err = {0};
    for (size_t i = 0; i < sizeof(refused_keys) / sizeof(refused_keys[0]); i++) {
        char key[128];
        snprintf(key, sizeof(key), "gguf: %s.%s: ", refused_keys[i].arch, refused_keys[i].key);
        if (mixture_config(refused_keys[i].arch, refused_keys[i].key, refused_keys[i].value, &config, &err) ==
            0)
            fail_msg("%s%s is accepted", key, refused_keys[i].value);
        if (!strstr(err.text, key))
            fail_msg("%s does not name %s", err.text, key);
    }
    must(mixture_config("glm4moe", "nextn_predict_layers", "1", &config, &err), &err);
    assert_int_equal(config.layers, 2);
    assert_true(config.router_sigmoid && config.router_biased && !config.router_renormalise);
    assert_int_equal(config.shared_ffn, 24);
    must(mixture_config("dots1", "expert_weights_norm", "true", &config, &err), &err);
    assert_true(config.router_renormalise && config.router_scale == 1);
    /* llama.cpp's own writer has a key for each of its settings, 0 where there is none */
    must(mixture_config("glm4moe", "expert_group_count", "0", &config, &err), &err);
    must(mixture_config("qwen2moe", "expert_weights_scale", "0.0", &config, &err), &err);
    must(mixture_config("glm4moe", "expert_weights_scale", "2.5", &config, &err), &err);
    assert_true(config.router_scale == 2.5);
    must(mixture_config("qwen2moe", "expert_shared_feed_forward_length", "20", &config, &err), &err);
    assert_true(config.shared_ffn == 20 && config.shared_scored && config.ffn == 0);
    must(mixture_config("ernie4_5-moe", "leading_dense_block_count", "1", &config, &err), &err);
    assert_true(config.ffn == 24 && !model_layer_is_sparse(&config, 0) && model_layer_is_sparse(&config, 1));
}

static void mutated_files_never_read_out_of_bounds(void **state)
{
    (void)state;
    struct rand_stream rand;
    struct gguf_build good;
    int opened = 0;
    rand_stream_init(&rand, 99, 3);
    good_file(&good);
    for (int round = 0; round < 20000; round++) {
        size_t n =
            rand_stream_below(&rand, 8) == 0 ? rand_stream_below(&rand, (uint32_t)good.size + 1) : good.size;
        uint8_t *bytes = malloc(n ? n : 1);
        struct gguf *g;
        struct err err = {0};
        memcpy(bytes, good.data, n);
        for (uint32_t k = 1 + rand_stream_below(&rand, 3); n && k > 0; k--)
            bytes[rand_stream_below(&rand, (uint32_t)n)] =
                (uint8_t)(rand_stream_u32(&rand) >> (rand_stream_below(&rand, 2) * 5));
        if (open_bytes(bytes, n, &g, &err) == 0) {
            struct model_config config;
            opened++;
            for (uint32_t i = 0; i < gguf_tensor_count(g); i++) {
                const struct gguf_tensor *t = gguf_tensor_at(g, i);
                assert_true(t->offset <= n && t->size <= n - t->offset);
            }
            for (uint32_t i = 0; i < gguf_key_count(g); i++) {
                const char *key = gguf_key_at(g, i), *text;
                enum gguf_kind kind;
                uint64_t count = 0;
                size_t size = 0;
                int64_t value;
                unsigned sum = 0;
                if (gguf_string(g, key, &text, &size) && size)
                    sum += (uint8_t)text[size - 1];
                if (gguf_array(g, key, &kind, &count) && count) {
                    if (gguf_array_string(g, key, count - 1, &text, &size) && size)
                        sum += (uint8_t)text[size - 1];
                    gguf_array_i64(g, key, count - 1, &value);
                }
                assert_true(sum <= 2 * 255);
            }
            assert_int_equal(gguf_config(g, &config, &err), -1); /* the sizes are missing */
            gguf_close(g);
        }
        assert_true(err.code != ERR_NONE);
        free(bytes);
    }
    assert_true(opened > 1000);
    free(good.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(huge_counts_and_lengths_are_refused_before_memory_is_taken),
        cmocka_unit_test(lies_about_tensors_are_refused_by_name),
        cmocka_unit_test(metadata_is_read_by_kind),
        cmocka_unit_test(every_block_type_gives_what_its_definition_says),
        cmocka_unit_test(rotary_scalings_of_a_gguf_are_those_of_a_config),
        cmocka_unit_test(what_a_mixture_says_is_computed_or_refused_by_its_key),
        cmocka_unit_test(mutated_files_never_read_out_of_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
