/* Tests, beside the harness's cases, what must be equal to the bit on CPUs and GPUs: weights unpack to the
 * bits of model/'s plain functions from any position of a matrix, and a norm's gradient may be computed in
 * place. */
#pragma once

#include "engine/ops.h"

#include "model/files/dynamic_map.h"
#include "model/files/gguf.h"
#include "model/files/nf4.h"

static const struct {
    enum pack_kind pack;
    enum tensor_type type;
} kinds[] = {
    {PACK_F32, TENSOR_F32},   {PACK_BF16, TENSOR_BF16},     {PACK_F16, TENSOR_F16},
    {PACK_NF4, TENSOR_U8},    {PACK_NF4_DOUBLE, TENSOR_U8}, {PACK_Q4_0, TENSOR_Q4_0},
    {PACK_Q4_1, TENSOR_Q4_1}, {PACK_Q8_0, TENSOR_Q8_0},     {PACK_Q4_K, TENSOR_Q4_K},
    {PACK_Q5_K, TENSOR_Q5_K}, {PACK_Q6_K, TENSOR_Q6_K},     {PACK_Q5_0, TENSOR_Q5_0},
    {PACK_Q5_1, TENSOR_Q5_1}, {PACK_MXFP4, TENSOR_MXFP4},
};

/* A packed matrix in host memory and its values. */
struct packed {
    enum pack_kind pack;
    uint64_t total, bytes;
    uint8_t *x, *nested;
    float *absmax, *scales, *want;
};

/* Makes the random fp16 scales of blocks finite, because no device promises which of two NaNs a sum keeps. */
static inline void halves_make_finite(enum pack_kind pack, uint8_t *block)
{
    if (pack == PACK_MXFP4) {
        block[0] %= 253;
        return;
    }
    int at = pack == PACK_Q6_K ? 208 : 0,
        second =
            pack == PACK_Q4_0 || pack == PACK_Q5_0 || pack == PACK_Q8_0 || pack == PACK_Q6_K ? at : at + 2;
    block[at + 1] &= 0xbf;
    block[second + 1] &= 0xbf;
}

static inline void bytes_make(struct packed *p, size_t kind, struct rand_stream *stream)
{
    struct err err;
    uint64_t block = pack_block(p->pack);
    p->x = malloc(p->bytes);
    for (uint64_t i = 0; i < p->bytes; i++)
        p->x[i] = (uint8_t)rand_stream_u32(stream);
    for (uint64_t i = 0; i < p->total; i += block)
        if (p->pack == PACK_F32 || p->pack == PACK_BF16)
            p->x[pack_bytes(p->pack, i + 1) - 1] &= 0xbf;
        else if (p->pack == PACK_F16)
            p->x[2 * i + 1] = (uint8_t)(i % 7 == 0 ? p->x[2 * i + 1] & 0x83 : p->x[2 * i + 1] & 0xbf);
        else
            halves_make_finite(p->pack, p->x + pack_bytes(p->pack, i));
    check(tensor_dequantise(kinds[kind].type, p->x, p->total, p->want, &err));
}

static inline void nf4_make(struct packed *p, struct rand_stream *stream)
{
    float map[DYNAMIC_MAP_SIZE], *values = malloc(4 * p->total);
    uint64_t blocks = nf4_blocks(p->total);
    p->x = malloc(p->bytes);
    p->nested = malloc(blocks);
    p->absmax = malloc(4 * blocks);
    p->scales = malloc(4 * nf4_scales(p->total));
    for (uint64_t i = 0; i < p->total; i++)
        values[i] = (float)rand_stream_normal(stream);
    nf4_quantise(values, p->total, p->x, p->absmax);
    nf4_nest(p->absmax, blocks, p->nested, p->scales);
    if (p->pack == PACK_NF4_DOUBLE) {
        dynamic_map(true, map);
        nf4_unnest(map, p->nested, p->scales, 0, blocks, p->absmax);
    }
    nf4_dequantise(p->x, p->absmax, p->total, p->want);
    free(values);
}

static inline void packed_make(struct packed *p, size_t kind, uint64_t total, struct rand_stream *stream)
{
    *p = (struct packed){.pack = kinds[kind].pack, .total = total};
    p->bytes = pack_bytes(p->pack, total);
    p->want = malloc(4 * total);
    if (p->pack == PACK_NF4 || p->pack == PACK_NF4_DOUBLE)
        nf4_make(p, stream);
    else
        bytes_make(p, kind, stream);
}

static inline void packed_free(struct packed *p)
{
    free(p->x), free(p->nested), free(p->absmax), free(p->scales), free(p->want);
}

static inline struct op unpack_op(struct bench *b, const struct packed *p)
{
    const enum dtype plain[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    struct op op = {
        .kind = OP_UNPACK,
        .unpack = {.pack = p->pack,
                   .count = p->total,
                   .total = p->total,
                   .x = bytes_in(b, p->x, p->bytes, p->pack <= PACK_F16 ? plain[p->pack] : DTYPE_U8),
                   .y = empty(b, (uint32_t)p->total)}};
    uint64_t blocks = nf4_blocks(p->total);
    if (p->pack == PACK_NF4)
        op.unpack.absmax = bytes_in(b, p->absmax, 4 * blocks, DTYPE_F32);
    if (p->pack == PACK_NF4_DOUBLE) {
        op.unpack.absmax = bytes_in(b, p->nested, blocks, DTYPE_U8);
        op.unpack.scales = bytes_in(b, p->scales, 4 * nf4_scales(p->total), DTYPE_F32);
    }
    return op;
}

static inline void same_bits(struct bench *b, const struct packed *p, struct op op)
{
    struct err err;
    uint64_t count = op.unpack.count;
    float *got = malloc(4 * count + 1);
    submit(b, op);
    check(buffer_read(op.unpack.y.buffer, 0, got, 4 * count, &err));
    check(device_sync(b->device, &err));
    for (uint64_t i = 0; i < count; i++)
        if (memcmp(&got[i], &p->want[op.unpack.begin + i], 4) != 0)
            fail_msg("pack %d: value %llu is %g, not %g (%s, %s)", p->pack, (unsigned long long)i,
                     (double)got[i], (double)p->want[op.unpack.begin + i], device_kind(b->device),
                     device_isa(b->device));
    free(got);
}

static inline void each_kind_on(struct bench *b)
{
    for (size_t kind = 0; kind < sizeof(kinds) / sizeof(kinds[0]); kind++) {
        struct bench own;
        struct packed p;
        bench_open(&own, device_kind(b->device));
        packed_make(&p, kind, 256 * 201,
                    &own.stream); /* A CPU cuts this into four parts, the last of them short. */
        struct op op = unpack_op(&own, &p);
        uint64_t block = pack_block(p.pack);
        same_bits(&own, &p, op);
        op.unpack.begin = 3 * block;
        op.unpack.count = 5 * block;
        same_bits(&own, &p, op);
        op.unpack.begin = 70 * 256;
        op.unpack.count = p.total - op.unpack.begin;
        same_bits(&own, &p, op);
        op.unpack.count = 0;
        same_bits(&own, &p, op);
        packed_free(&p);
        bench_close(&own);
    }
}

static inline void ragged_on(struct bench *b)
{
    const uint64_t totals[] = {91, 1, 64 * 300 + 63};
    for (size_t i = 0; i < 3; i++)
        for (size_t kind = 3; kind < 5; kind++) {
            struct packed p;
            packed_make(&p, kind, totals[i], &b->stream);
            same_bits(b, &p, unpack_op(b, &p));
            packed_free(&p);
        }
}

/* Looks up rows of a packed table in any order. */
static inline void looked_up_on(struct bench *b)
{
    enum { ROWS = 7, WIDTH = 512 };
    static const int32_t ids[] = {6, 0, 3, 3, 5};
    for (size_t kind = 5; kind < sizeof(kinds) / sizeof(kinds[0]); kind++) {
        struct packed p;
        struct err err;
        float got[5 * WIDTH];
        packed_make(&p, kind, ROWS * WIDTH, &b->stream);
        struct op op = {.kind = OP_EMBED,
                        .embed = {.tokens = 5,
                                  .hidden = WIDTH,
                                  .vocab = ROWS,
                                  .pack = p.pack,
                                  .ids = bytes_in(b, ids, sizeof(ids), DTYPE_I32),
                                  .table = bytes_in(b, p.x, p.bytes, DTYPE_U8),
                                  .out = empty(b, 5 * WIDTH)}};
        submit(b, op);
        check(buffer_read(op.embed.out.buffer, 0, got, sizeof(got), &err));
        check(device_sync(b->device, &err));
        for (int t = 0; t < 5; t++)
            assert_memory_equal(got + t * WIDTH, p.want + ids[t] * WIDTH, 4 * WIDTH);
        op.embed.hidden = WIDTH - 100; /* With this width, rows would begin within blocks. */
        assert_false(op_supports(b->device, &op));
        packed_free(&p);
    }
}

/* The input gradient of a norm may overwrite the output gradient (the norms of heads do so). The weight's
 * gradient must not change by that. */
static inline void norm_backward_in_place_on(struct bench *b)
{
    enum { ROWS = 40, WIDTH = 24, VECTORS = 3, COUNT = ROWS * WIDTH * VECTORS };
    double x[COUNT], dy[COUNT], w[WIDTH];
    float got[2][COUNT], sums[2][WIDTH];
    const float zeros[WIDTH] = {0};
    struct err err;
    struct op_rmsnorm_backward o = {.rows = ROWS, .width = WIDTH, .vectors = VECTORS, .eps = 1e-5f};
    o.x = normal(b, COUNT, x);
    o.weight = normal(b, WIDTH, w);
    o.dy = normal(b, COUNT, dy);
    for (int in_place = 0; in_place < 2; in_place++) {
        o.dx = in_place ? o.dy : empty(b, COUNT);
        o.dweight = bytes_in(b, zeros, sizeof(zeros), DTYPE_F32);
        submit(b, (struct op){.kind = OP_RMSNORM_BACKWARD, .rmsnorm_backward = o});
        check(buffer_read(o.dx.buffer, 0, got[in_place], sizeof(got[0]), &err));
        check(buffer_read(o.dweight.buffer, 0, sums[in_place], sizeof(sums[0]), &err));
        check(device_sync(b->device, &err));
    }
    assert_memory_equal(got[0], got[1], sizeof(got[0]));
    assert_memory_equal(sums[0], sums[1], sizeof(sums[0]));
}
