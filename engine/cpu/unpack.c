/* Unpacks weights, cut into parts of whole blocks; values do not depend on each other. */
#include "engine/cpu/unpack.h"

#include <string.h>

#include "engine/cpu/parts.h"
#include "model/files/dynamic_map.h"
#include "model/files/gguf.h"
#include "model/files/nf4.h"

enum { VALUES_PER_PART = 1 << 14 }; /* 64 KiB of y, which stay in cache; a multiple of every kind's block */

/* What all parts of an unpacking share. */
struct unpack_job {
    void (*nf4)(const uint8_t *codes, const float *absmax, uint64_t count, float *values);
    float map[DYNAMIC_MAP_SIZE]; /* for PACK_NF4_DOUBLE only */
};

/* Unpacks values [begin, end), whose codes begin at `codes`. */
static void nf4_part(const struct op_unpack *op, const struct unpack_job *job, const uint8_t *codes,
                     uint64_t begin, uint64_t end, float *y)
{
    uint64_t block = begin / NF4_BLOCK;
    if (op->pack == PACK_NF4) {
        const float *absmax = operand_at(&op->absmax);
        job->nf4(codes, absmax + block, end - begin, y);
    } else {
        float absmax[VALUES_PER_PART / NF4_BLOCK];
        nf4_unnest(job->map, operand_at(&op->absmax), operand_at(&op->scales), block, nf4_blocks(end - begin),
                   absmax);
        job->nf4(codes, absmax, end - begin, y);
    }
}

static void unpack_part(const struct parts_job *parts, uint64_t begin, uint64_t end)
{
    const struct unpack_job *job = parts->extra;
    const struct op_unpack *op = &parts->op->unpack;
    const uint8_t *x = operand_at(&op->x);
    struct err err;
    float *y = (float *)operand_at(&op->y) + begin;
    begin += op->begin;
    end += op->begin;
    x += pack_bytes(op->pack, begin);
    switch (op->pack) {
    case PACK_F32:
        memcpy(y, x, (end - begin) * sizeof(*y));
        break;
    case PACK_BF16:
        parts->runner->kernels->from_bf16((const void *)x, y, end - begin);
        break;
    case PACK_F16:
        parts->runner->kernels->from_f16((const void *)x, y, end - begin);
        break;
    case PACK_NF4:
    case PACK_NF4_DOUBLE:
        nf4_part(op, job, x, begin, end, y);
        break;
    default:
        /* cannot fail: these are whole blocks of a supported type */
        (void)tensor_dequantise(pack_type(op->pack), x, end - begin, y, &err);
        break;
    }
}

void cpu_unpack(struct cpu_runner *runner, const struct op *op)
{
    struct unpack_job job = {.nf4 = runner->kernels->width >= 8 ? unpack_nf4_avx2 : nf4_dequantise};
    if (op->unpack.pack == PACK_NF4_DOUBLE)
        dynamic_map(true, job.map);
    run_parts(runner, op, &job, op->unpack.count, VALUES_PER_PART, unpack_part);
}
