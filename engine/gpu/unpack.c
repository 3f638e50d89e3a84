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

static int run_nf4(struct gpu_call *call, const struct op_unpack *o)
{
    struct unpack_nf4_args args = {.x = gpu_at(&o->x),
                                   .absmax = gpu_at(&o->absmax),
                                   .scales = gpu_at(&o->scales),
                                   .y = gpu_at(&o->y),
                                   .begin = o->begin,
                                   .count = o->count,
                                   .nested = o->pack == PACK_NF4_DOUBLE};
    args.wide = gpu_fours(args.y, 4, 0);
    return gpu_launch(call, KERNEL_unpack_nf4, gpu_blocks(o->count, 4 * 256), 1, 1, &args, sizeof(args));
}

uint32_t gpu_unpack_kind(enum pack_kind pack)
{
    static const uint8_t kinds[PACK_KINDS] = {
        [PACK_Q4_0] = UNPACK_Q4_0, [PACK_Q4_1] = UNPACK_Q4_1, [PACK_Q8_0] = UNPACK_Q8_0,
        [PACK_Q4_K] = UNPACK_Q4_K, [PACK_Q5_K] = UNPACK_Q5_K, [PACK_Q6_K] = UNPACK_Q6_K,
        [PACK_Q5_0] = UNPACK_Q5_0, [PACK_Q5_1] = UNPACK_Q5_1};
    return kinds[pack];
}

static int run_blocks(struct gpu_call *call, const struct op_unpack *o)
{
    struct unpack_blocks_args args = {.x = gpu_at(&o->x),
                                      .y = gpu_at(&o->y),
                                      .begin = o->begin,
                                      .count = o->count,
                                      .kind = gpu_unpack_kind(o->pack)};
    args.wide = gpu_fours(args.y, 4, 0);
    return gpu_launch(call, KERNEL_unpack_blocks, gpu_blocks(o->count, 4 * 256), 1, 1, &args, sizeof(args));
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
    case PACK_NF4:
    case PACK_NF4_DOUBLE:
        return run_nf4(call, o);
    default:
        return run_blocks(call, o);
    }
}

const struct gpu_op gpu_unpack_ops[] = {{.kind = OP_UNPACK, .fits = unpack_fits, .run = run_unpack},
                                        {.run = NULL}};
