/* AdamW with moments in 8 bits: a block is brought to fp32, stepped by the kernel of plain AdamW, and coded
 * again with its new largest magnitude.
 */
#include <math.h>
#include <string.h>

#include "engine/cpu/flat.h"
#include "engine/cpu/parts.h"
#include "model/dynamic_map.h"

/* A magnitude's code is found by its upper 16 bits: of the values that share them, at most one boundary
 * between codes divides some. The first bin holds all below 2^-22. */
enum { BIN_FIRST = (127 - 22) << 7, BINS = (127 << 7) - BIN_FIRST + 1 };

/* The map as bitsandbytes' quantize_blockwise uses it: the code whose value is nearest, the lower one of two
 * as near, boundaries halved in fp32. */
struct codes {
    float map[DYNAMIC_MAP_SIZE];
    int zero;                           /* the code of 0 */
    float bounds[DYNAMIC_MAP_SIZE + 1]; /* [k]: between codes zero + k and zero + k + 1 */
    uint8_t below[BINS];                /* bounds below what the bin begins with */
};

struct code_pair {
    struct codes first, second; /* with sign, and without */
};

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void codes_init(struct codes *codes, bool with_sign)
{
    dynamic_map(with_sign, codes->map);
    codes->zero = with_sign ? DYNAMIC_MAP_SIZE / 2 - 1 : 0;
    int top = DYNAMIC_MAP_SIZE - 1 - codes->zero, k = 0;
    for (int i = 0; i < top; i++)
        codes->bounds[i] = (codes->map[codes->zero + i] + codes->map[codes->zero + i + 1]) / 2.0f;
    codes->bounds[top] = INFINITY;
    for (uint32_t bin = 0; bin < BINS; bin++) {
        float begin = bin == 0 ? 0.0f : float_of((bin + BIN_FIRST) << 16);
        while (codes->bounds[k] < begin)
            k++;
        codes->below[bin] = (uint8_t)k;
    }
}

static uint8_t encode(const struct codes *codes, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    float size = float_of(bits & 0x7FFFFFFFu);
    uint32_t bin = bits >> 16 & 0x7FFFu;
    bin = bin < BIN_FIRST ? 0 : bin - BIN_FIRST >= BINS ? BINS - 1 : bin - BIN_FIRST;
    int k = codes->below[bin];
    if (bits >> 31 == 0)
        return (uint8_t)(codes->zero + k + (size > codes->bounds[k]));
    k += size >= codes->bounds[k]; /* one code more lies above 0 than below */
    return (uint8_t)(k > codes->zero ? 0 : codes->zero - k);
}

static void decode_block(const struct codes *codes, const uint8_t *code, float absmax, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = codes->map[code[i]] * absmax;
}

/* Returns the new largest magnitude. */
static float encode_block(const struct codes *codes, const float *x, uint8_t *code, size_t n)
{
    float absmax = 0;
    for (size_t i = 0; i < n; i++)
        absmax = fabsf(x[i]) > absmax ? fabsf(x[i]) : absmax;
    float inverse = 1.0f / (absmax > 1e-38f ? absmax : 1e-38f);
    for (size_t i = 0; i < n; i++)
        code[i] = encode(codes, x[i] * inverse);
    return absmax;
}

static void adamw8_part(void *context, uint32_t index, uint32_t thread)
{
    const struct parts_job *job = context;
    const struct op_adamw8 *op = &job->op->adamw8;
    const struct code_pair *codes = job->extra;
    const struct adamw_scalars scalars =
        adamw_scalars_of(op->learning_rate, op->beta1, op->beta2, op->eps, op->weight_decay, op->grad_scale,
                         op->bias_correction1, op->bias_correction2);
    uint8_t *code1 = operand_at(&op->code1), *code2 = operand_at(&op->code2);
    float *absmax1 = operand_at(&op->absmax1), *absmax2 = operand_at(&op->absmax2);
    float moment1[ADAMW8_BLOCK], moment2[ADAMW8_BLOCK];
    uint64_t begin, end;
    (void)thread;
    part_range(op->count, FLAT_PER_PART, index, &begin, &end);
    for (; begin < end; begin += ADAMW8_BLOCK) {
        size_t n = end - begin < ADAMW8_BLOCK ? end - begin : ADAMW8_BLOCK, block = begin / ADAMW8_BLOCK;
        decode_block(&codes->first, code1 + begin, absmax1[block], moment1, n);
        decode_block(&codes->second, code2 + begin, absmax2[block], moment2, n);
        job->runner->kernels->adamw(&scalars, (float *)operand_at(&op->value) + begin,
                                    (const float *)operand_at(&op->gradient) + begin, moment1, moment2, n);
        absmax1[block] = encode_block(&codes->first, moment1, code1 + begin, n);
        absmax2[block] = encode_block(&codes->second, moment2, code2 + begin, n);
    }
}

void cpu_adamw8(struct cpu_runner *runner, const struct op *op)
{
    struct code_pair codes;
    codes_init(&codes.first, true);
    codes_init(&codes.second, false);
    run_parts(runner, op, &codes, op->adamw8.count, FLAT_PER_PART, adamw8_part);
}
