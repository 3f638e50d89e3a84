/* A small Llama as a GGUF whose matrices are of many quantised types, at random: layers differ, one has
 * matrices of 16 and 32 bits beside its quantised ones. */
#pragma once

#include <stdio.h>

#include "common/file.h"
#include "common/half.h"
#include "common/rand.h"
#include "model/gguf_build.h"
#include "model/files/pack.h"

enum { PACKED_LAYERS = 3, PACKED_VOCAB = 259, PACKED_EXPERTS = 4 };

struct packed_model {
    uint32_t hidden, ffn, heads, kv_heads; /* each head has 64 features */
    bool tied, experts, plain;             /* plain: everything is F32 */
};

/* GGUF's numbers of types. */
static inline uint32_t packed_type(enum pack_kind pack)
{
    static const uint32_t types[PACK_KINDS] = {
        [PACK_F32] = 0,   [PACK_BF16] = 30, [PACK_F16] = 1,  [PACK_Q4_0] = 2,
        [PACK_Q4_1] = 3,  [PACK_Q5_0] = 6,  [PACK_Q5_1] = 7, [PACK_Q8_0] = 8,
        [PACK_Q4_K] = 12, [PACK_Q5_K] = 13, [PACK_Q6_K] = 14};
    return types[pack];
}

/* fp16 scales that make values of about 0.02, and where they stand in a block. */
static const struct {
    float first, second;
    uint32_t at, count;
} packed_scales[PACK_KINDS] = {[PACK_Q4_0] = {0.005f, 0, 0, 1},      [PACK_Q4_1] = {0.005f, -0.04f, 0, 2},
                               [PACK_Q5_0] = {0.0025f, 0, 0, 1},     [PACK_Q5_1] = {0.0025f, -0.04f, 0, 2},
                               [PACK_Q8_0] = {0.0003f, 0, 0, 1},     [PACK_Q4_K] = {5e-5f, 4e-4f, 0, 2},
                               [PACK_Q5_K] = {2.5e-5f, 4e-4f, 0, 2}, [PACK_Q6_K] = {2e-5f, 0, 208, 1}};

struct packed_writer {
    struct gguf_build *b;
    struct rand_stream *stream;
    bool data; /* false: the first pass, which writes the tensors' descriptions; true: the second, their bytes
                */
    uint64_t offset;
    uint32_t count;
};

static inline void packed_values(struct packed_writer *w, enum pack_kind pack, uint64_t values, float around)
{
    uint64_t block = pack_block(pack), bytes = pack_bytes(pack, block);
    for (uint64_t i = 0; i < values; i += block) {
        uint8_t data[256];
        float x = around + 0.04f * (float)(2 * rand_stream_unit(w->stream) - 1);
        uint16_t half = pack == PACK_F16 ? f16_from_f32(x) : bf16_from_f32(x);
        for (uint64_t k = 0; k < bytes; k++)
            data[k] = (uint8_t)rand_stream_u32(w->stream);
        if (pack == PACK_F32)
            memcpy(data, &x, 4);
        else if (pack == PACK_F16 || pack == PACK_BF16)
            memcpy(data, &half, 2);
        float scales[2] = {packed_scales[pack].first, packed_scales[pack].second};
        for (uint32_t s = 0; s < packed_scales[pack].count; s++) {
            uint16_t scale = f16_from_f32(scales[s] * (0.8f + 0.4f * (float)rand_stream_unit(w->stream)));
            memcpy(data + packed_scales[pack].at + 2 * s, &scale, 2);
        }
        gb_bytes(w->b, data, bytes);
    }
}

/* Writes a tensor. columns 0: a vector, in F32 with values around 1; experts 0: no third dimension. */
static inline void packed_tensor(struct packed_writer *w, const char *name, uint64_t experts, uint64_t rows,
                                 uint64_t columns, enum pack_kind pack)
{
    uint64_t values = (experts ? experts : 1) * rows * (columns ? columns : 1);
    w->count++;
    if (w->data) {
        packed_values(w, pack, values, columns ? 0 : 1);
        gb_align(w->b, 32);
        return;
    }
    if (experts == 0) {
        gb_tensor(w->b, name, rows, columns, packed_type(pack), w->offset);
    } else {
        gb_text(w->b, name);
        gb_u32(w->b, 3);
        gb_u64(w->b, columns);
        gb_u64(w->b, rows);
        gb_u64(w->b, experts);
        gb_u32(w->b, packed_type(pack));
        gb_u64(w->b, w->offset);
    }
    w->offset += (pack_bytes(pack, values) + 31) / 32 * 32;
}

static inline void packed_matrix(struct packed_writer *w, const struct packed_model *m, uint32_t layer,
                                 const char *name, uint64_t rows, uint64_t columns, enum pack_kind pack)
{
    char full[64];
    bool expert = m->experts && strncmp(name, "ffn", 3) == 0;
    snprintf(full, sizeof(full), "blk.%u.%s%s.weight", layer, name, expert ? "_exps" : "");
    packed_tensor(w, full, expert ? PACKED_EXPERTS : 0, rows, columns, m->plain ? PACK_F32 : pack);
}

static inline void packed_tensors(struct packed_writer *w, const struct packed_model *m)
{
    /* q, k, v, o, gate, up, down of each layer */
    static const enum pack_kind kinds[PACKED_LAYERS][7] = {
        {PACK_Q4_K, PACK_Q4_K, PACK_Q6_K, PACK_Q4_K, PACK_Q4_K, PACK_Q4_K, PACK_Q6_K},
        {PACK_Q4_0, PACK_F32, PACK_Q8_0, PACK_Q5_1, PACK_F16, PACK_Q5_0, PACK_BF16},
        {PACK_Q5_K, PACK_Q8_0, PACK_Q5_K, PACK_Q4_1, PACK_F32, PACK_Q5_K, PACK_F32}};
    char name[64];
    uint32_t q = 64 * m->heads, kv = 64 * m->kv_heads;
    packed_tensor(w, "token_embd.weight", 0, PACKED_VOCAB, m->hidden, m->plain ? PACK_F32 : PACK_Q6_K);
    packed_tensor(w, "output_norm.weight", 0, m->hidden, 0, PACK_F32);
    if (!m->tied)
        packed_tensor(w, "output.weight", 0, PACKED_VOCAB, m->hidden, m->plain ? PACK_F32 : PACK_Q8_0);
    for (uint32_t i = 0; i < PACKED_LAYERS; i++) {
        const enum pack_kind *k = kinds[i];
        snprintf(name, sizeof(name), "blk.%u.attn_norm.weight", i);
        packed_tensor(w, name, 0, m->hidden, 0, PACK_F32);
        snprintf(name, sizeof(name), "blk.%u.ffn_norm.weight", i);
        packed_tensor(w, name, 0, m->hidden, 0, PACK_F32);
        snprintf(name, sizeof(name), "blk.%u.ffn_gate_inp.weight", i);
        if (m->experts)
            packed_tensor(w, name, 0, PACKED_EXPERTS, m->hidden, PACK_F32);
        packed_matrix(w, m, i, "attn_q", q, m->hidden, k[0]);
        packed_matrix(w, m, i, "attn_k", kv, m->hidden, k[1]);
        packed_matrix(w, m, i, "attn_v", kv, m->hidden, k[2]);
        packed_matrix(w, m, i, "attn_output", m->hidden, q, k[3]);
        packed_matrix(w, m, i, "ffn_gate", m->ffn, m->hidden, k[4]);
        packed_matrix(w, m, i, "ffn_up", m->ffn, m->hidden, k[5]);
        packed_matrix(w, m, i, "ffn_down", m->hidden, m->ffn, k[6]);
    }
}

/* Returns the file's bytes; gguf_build.data is the caller's to free. */
static inline void packed_model_make(const struct packed_model *m, uint64_t seed, struct gguf_build *b)
{
    struct gguf_build ignored = {0};
    struct packed_writer count = {.b = &ignored};
    struct rand_stream stream;
    packed_tensors(&count, m);
    free(ignored.data);
    gb_begin(b, 3, count.count, m->experts ? 10 : 8);
    gb_key_text(b, "general.architecture", "llama");
    gb_key_u32(b, "llama.block_count", PACKED_LAYERS);
    gb_key_u32(b, "llama.embedding_length", m->hidden);
    gb_key_u32(b, "llama.feed_forward_length", m->ffn);
    gb_key_u32(b, "llama.attention.head_count", m->heads);
    gb_key_u32(b, "llama.attention.head_count_kv", m->kv_heads);
    gb_key_u32(b, "llama.context_length", 256);
    gb_key_f32(b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    if (m->experts) {
        gb_key_u32(b, "llama.expert_count", PACKED_EXPERTS);
        gb_key_u32(b, "llama.expert_used_count", 2);
    }
    rand_stream_init(&stream, seed, 0);
    struct packed_writer w = {.b = b, .stream = &stream};
    packed_tensors(&w, m);
    gb_align(b, 32);
    w.data = true;
    packed_tensors(&w, m);
}

static inline int packed_model_write(const struct packed_model *m, uint64_t seed, const char *path,
                                     struct err *err)
{
    struct gguf_build b;
    packed_model_make(m, seed, &b);
    int status = file_write_atomic(path, b.data, b.size, 0600, err);
    free(b.data);
    return status;
}
