/* Unpacks weights to fp32: the host's side of kernels/unpack.k.h. */
#include "engine/gpu/gpu.h"

static bool unpack_fits(const struct gpu *gpu, const struct op *op)
{
    const struct op_unpack *o = &op->unpack;
    uint32_t block = pack_block(o->pack);
    bool nf4 = o->pack == PACK_NF4 || o->pack == PACK_NF4_DOUBLE;
    (void)gpu;
    return o->begin <= o->total && o->count <= o->total - o->begin && o->begin % block == 0 &&
           (o->count % block == 0 || o->begin + o->count == o->total) && (nf4 || o->total % block == 0);
}

uint32_t gpu_unpack_kind(enum pack_kind pack)
{
    static const uint8_t kinds[PACK_KINDS] = {
        [PACK_Q4_0] = UNPACK_Q4_0, [PACK_Q4_1] = UNPACK_Q4_1, [PACK_Q8_0] = UNPACK_Q8_0,
        [PACK_Q4_K] = UNPACK_Q4_K, [PACK_Q5_K] = UNPACK_Q5_K, [PACK_Q6_K] = UNPACK_Q6_K,
        [PACK_Q5_0] = UNPACK_Q5_0, [PACK_Q5_1] = UNPACK_Q5_1, [PACK_MXFP4] = UNPACK_MXFP4};
    return kinds[pack];
}

static uint64_t unpack_grid(const struct gpu_unpacked *u)
{
    return gpu_blocks(u->rows * gpu_blocks(u->width, 4), 256 * UNPACK_FOURS);
}

static int unpack_nf4(struct gpu_call *call, const struct gpu_unpacked *u)
{
    struct unpack_nf4_args args = {.x = u->x,
                                   .absmax = u->absmax,
                                   .scales = u->scales,
                                   .y = u->y,
                                   .begin = u->begin,
                                   .rows = u->rows,
                                   .width = u->width,
                                   .ldx = u->ldx,
                                   .ldy = u->ldy,
                                   .y_as = gpu_element(u->type),
                                   .nested = u->pack == PACK_NF4_DOUBLE,
                                   .wide = gpu_fours(u->y, dtype_bytes(u->type), u->ldy)};
    return gpu_launch(call, KERNEL_unpack_nf4, unpack_grid(u), 1, 1, &args, sizeof(args));
}

static int unpack_blocks(struct gpu_call *call, const struct gpu_unpacked *u)
{
    struct unpack_blocks_args args = {.x = u->x,
                                      .y = u->y,
                                      .begin = u->begin,
                                      .rows = u->rows,
                                      .width = u->width,
                                      .ldx = u->ldx,
                                      .ldy = u->ldy,
                                      .y_as = gpu_element(u->type),
                                      .kind = gpu_unpack_kind(u->pack),
                                      .wide = gpu_fours(u->y, dtype_bytes(u->type), u->ldy)};
    return gpu_launch(call, KERNEL_unpack_blocks, unpack_grid(u), 1, 1, &args, sizeof(args));
}

int gpu_unpack(struct gpu_call *call, const struct gpu_unpacked *u)
{
    return u->pack == PACK_NF4 || u->pack == PACK_NF4_DOUBLE ? unpack_nf4(call, u) : unpack_blocks(call, u);
}

/* A launch has one row, of at most 2^30 values. */
static int run_packed(struct gpu_call *call, const struct op_unpack *o)
{
    struct gpu_unpacked part = {.pack = o->pack,
                                .type = DTYPE_F32,
                                .x = gpu_at(&o->x),
                                .absmax = gpu_at(&o->absmax),
                                .scales = gpu_at(&o->scales),
                                .rows = 1};
    for (uint64_t at = 0; at < o->count; at += part.width) {
        part.begin = o->begin + at;
        part.y = gpu_at(&o->y) + 4 * at;
        part.width = o->count - at < 1 << 30 ? (uint32_t)(o->count - at) : 1 << 30;
        if (gpu_unpack(call, &part) != 0)
            return -1;
    }
    return 0;
}

static int run_unpack(struct gpu_call *call, const struct op *op)
{
    const struct op_unpack *o = &op->unpack;
    switch (o->pack) {
    case PACK_F32:
    case PACK_BF16:
    case PACK_F16:
        return gpu_cast(call, gpu_at(&o->x) + o->begin * dtype_bytes(o->x.dtype), o->x.dtype, gpu_at(&o->y),
                        DTYPE_F32, o->count);
    default:
        return run_packed(call, o);
    }
}

const struct gpu_op gpu_unpack_ops[] = {{.kind = OP_UNPACK, .fits = unpack_fits, .run = run_unpack},
                                        {.run = NULL}};
