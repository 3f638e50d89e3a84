/* AdamW with 8-bit moments: a block is decoded to fp32, updated by the kernel of plain AdamW, and encoded
 * again with its new largest magnitude.
 */
#include <math.h>
#include <string.h>

#include "engine/cpu/flat.h"
#include "engine/cpu/parts.h"
#include "model/files/dynamic_map.h"

_Static_assert((int)CODES == (int)DYNAMIC_MAP_SIZE, "the kernels' map is the model's");

struct moment_codes {
    struct codes first, second; /* maps of the first moment (signed) and the second (unsigned) */
};

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

/* The boundaries between codes are midpoints computed in fp32, as in bitsandbytes' quantize_blockwise. */
static void codes_init(struct codes *codes, bool with_sign)
{
    dynamic_map(with_sign, codes->map);
    codes->zero = with_sign ? CODES / 2 - 1 : 0;
    const float *above = codes->map + codes->zero; /* the codes of 0 and of positive values */
    uint32_t top = CODES - 1 - (uint32_t)codes->zero, k = 0;
    for (uint32_t bin = 0; bin < CODE_BINS; bin++) {
        uint32_t end = bin + CODE_BIN_FIRST + 1, bound = CODE_NO_BOUND, below = k;
        if (k < top && bits_of((above[k] + above[k + 1]) / 2.0f) >> 16 < end) {
            bound = bits_of((above[k] + above[k + 1]) / 2.0f) & 0xFFFF;
            k++;
        }
        codes->bins[bin] = below << 24 | bound;
    }
}

static void adamw8_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_adamw8 *op = &job->op->adamw8;
    const struct kernels *kernels = job->runner->kernels;
    const struct moment_codes *codes = job->extra;
    const struct adamw_scalars scalars = adamw_scalars_of(&op->rule);
    uint8_t *code1 = operand_at(&op->code1), *code2 = operand_at(&op->code2);
    float *absmax1 = operand_at(&op->absmax1), *absmax2 = operand_at(&op->absmax2);
    float moment1[ADAMW8_BLOCK], moment2[ADAMW8_BLOCK];
    for (; begin < end; begin += ADAMW8_BLOCK) {
        size_t n = end - begin < ADAMW8_BLOCK ? end - begin : ADAMW8_BLOCK, block = begin / ADAMW8_BLOCK;
        kernels->decode(&codes->first, code1 + begin, absmax1[block], moment1, n);
        kernels->decode(&codes->second, code2 + begin, absmax2[block], moment2, n);
        kernels->adamw(&scalars, (float *)operand_at(&op->value) + begin,
                       (const float *)operand_at(&op->gradient) + begin, moment1, moment2, n);
        absmax1[block] = kernels->encode(&codes->first, moment1, code1 + begin, n);
        absmax2[block] = kernels->encode(&codes->second, moment2, code2 + begin, n);
    }
}

void cpu_adamw8(struct cpu_runner *runner, const struct op *op)
{
    struct moment_codes codes;
    codes_init(&codes.first, true);
    codes_init(&codes.second, false);
    run_parts(runner, op, &codes, op->adamw8.count, FLAT_PER_PART, adamw8_part);
}
