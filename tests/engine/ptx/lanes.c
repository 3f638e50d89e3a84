/* Executes each PTX instruction on the lanes of a warp, as NVIDIA's description of the ISA says. */
#include "engine/ptx/ptx.h"

#include <math.h>
#include <string.h>

/* CPUs with AVX2 and FMA run copies of these loops that are several times as fast. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&     \
    !defined(__SANITIZE_THREAD__)
#define LANES __attribute__((target_clones("arch=haswell", "default"))) static void
#else
#define LANES static void
#endif
#define EACH_LANE for (uint32_t l = 0; l < PTX_LANES; l++)

/* The types of instructions. A register has no type of its own, so these types may alias each other. */
#define TYPE(name, of) typedef of __attribute__((may_alias)) name
TYPE(u16, uint16_t);
TYPE(u32, uint32_t);
TYPE(u64, uint64_t);
TYPE(s16, int16_t);
TYPE(s32, int32_t);
TYPE(s64, int64_t);
TYPE(f32, float);
TYPE(f64, double);
typedef u16 b16;
typedef u32 b32;
typedef u64 b64;
typedef u32 pred;

/* --- conversions */

static inline float half_to_float(uint16_t half)
{
    _Float16 value;
    memcpy(&value, &half, sizeof(value));
    return (float)value;
}

static inline uint16_t half_from_float(float x)
{
    _Float16 value = (_Float16)x;
    uint16_t half;
    memcpy(&half, &value, sizeof(half));
    return x != x ? 0x7fff : half;
}

static inline float bfloat_to_float(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return value;
}

/* Rounds to nearest, ties to even: upwards if the lower 16 bits are more than half a unit, or if they are
 * exactly half a unit and the upper 16 bits are odd. */
static inline uint16_t bfloat_from_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    uint32_t low = bits & 0xffffu, high = bits >> 16;
    return x != x ? 0x7fff : (uint16_t)(high + (low > 0x8000u || (low == 0x8000u && (high & 1u) != 0)));
}

/* Rounds towards zero. A value beyond the range becomes the end of the range, and NaN becomes 0. */
static inline int32_t integer_of(float x)
{
    return x != x ? 0 : x >= 2147483648.f ? INT32_MAX : x < -2147483648.f ? INT32_MIN : (int32_t)x;
}

static inline uint32_t natural_of(float x)
{
    return !(x > 0) ? 0 : x >= 4294967296.f ? UINT32_MAX : (uint32_t)x;
}

/* Returns `length` bits of a from bit `from` on; bits beyond the highest are 0. */
static inline uint64_t field(uint64_t a, uint32_t from, uint32_t length)
{
    from &= 255u;
    length &= 255u;
    return from > 63 ? 0 : a >> from & (length > 63 ? ~UINT64_C(0) : (UINT64_C(1) << length) - 1);
}

/* --- instructions of one lane: a form's name, the types of its result and its operands a, b and c, and its
 * result */

#define MOVES(ONE, THREE, T)                                                                                 \
    ONE(mov_##T, T, T, a)                                                                                    \
    THREE(selp_##T, T, T, T, pred, c != 0 ? a : b)
#define BITS(ONE, TWO, T)                                                                                    \
    TWO(and_##T, T, T, T, a &b)                                                                              \
    TWO(or_##T, T, T, T, a | b)                                                                              \
    TWO(xor_##T, T, T, T, a ^ b)
#define SHIFTS(TWO, T, bits)                                                                                 \
    TWO(shl_b##bits, T, T, u32, b >= (bits) ? 0 : a << b)                                                    \
    TWO(shr_u##bits, T, T, u32, b >= (bits) ? 0 : a >> b)
#define COMPARED(TWO, T)                                                                                     \
    TWO(setp_eq_##T, pred, T, T, a == b)                                                                     \
    TWO(setp_ne_##T, pred, T, T, a<b || a> b)                                                                \
    TWO(setp_lt_##T, pred, T, T, a < b)                                                                      \
    TWO(setp_le_##T, pred, T, T, a <= b)                                                                     \
    TWO(setp_gt_##T, pred, T, T, a > b)                                                                      \
    TWO(setp_ge_##T, pred, T, T, a >= b)
#define COMPARED_UNORDERED(TWO, T) /* true, too, if one is NaN */                                            \
    TWO(setp_equ_##T, pred, T, T, !(a < b || a > b))                                                         \
    TWO(setp_neu_##T, pred, T, T, a != b)                                                                    \
    TWO(setp_ltu_##T, pred, T, T, !(a >= b))                                                                 \
    TWO(setp_leu_##T, pred, T, T, !(a > b))                                                                  \
    TWO(setp_gtu_##T, pred, T, T, !(a <= b))                                                                 \
    TWO(setp_geu_##T, pred, T, T, !(a < b))                                                                  \
    TWO(setp_num_##T, pred, T, T, a == a && b == b)                                                          \
    TWO(setp_nan_##T, pred, T, T, a != a || b != b)
#define WRAPPING(TWO, type, T) /* signed arithmetic that may overflow */                                     \
    TWO(add_##type, T, T, T, (T)(a + b))                                                                     \
    TWO(sub_##type, T, T, T, (T)(a - b))
#define REAL(ONE, TWO, THREE, T, fused, root)                                                                \
    TWO(add_rn_##T, T, T, T, a + b)                                                                          \
    TWO(sub_rn_##T, T, T, T, a - b)                                                                          \
    TWO(mul_rn_##T, T, T, T, a *b)                                                                           \
    TWO(div_rn_##T, T, T, T, a / b)                                                                          \
    THREE(fma_rn_##T, T, T, T, T, fused(a, b, c))                                                            \
    ONE(rcp_rn_##T, T, T, 1 / a)                                                                             \
    ONE(sqrt_rn_##T, T, T, root(a))                                                                          \
    ONE(neg_##T, T, T, -a)

#define FORMS(ONE, TWO, THREE)                                                                               \
    REAL(ONE, TWO, THREE, f32, __builtin_fmaf, __builtin_sqrtf)                                              \
    REAL(ONE, TWO, THREE, f64, __builtin_fma, __builtin_sqrt)                                                \
    ONE(abs_f32, f32, f32, __builtin_fabsf(a))                                                               \
    TWO(max_f32, f32, f32, f32, a != a || b > a ? b : a)                                                     \
    WRAPPING(TWO, s16, u16)                                                                                  \
    WRAPPING(TWO, s32, u32)                                                                                  \
    WRAPPING(TWO, s64, u64)                                                                                  \
    ONE(neg_s32, u32, u32, -a)                                                                               \
    ONE(neg_s64, u64, u64, -a)                                                                               \
    TWO(mul_lo_s32, u32, u32, u32, a *b)                                                                     \
    TWO(mul_lo_s64, u64, u64, u64, a *b)                                                                     \
    TWO(mul_wide_u16, u32, u16, u16, (uint32_t)a *b)                                                         \
    TWO(mul_wide_u32, u64, u32, u32, (uint64_t)a *b)                                                         \
    TWO(mul_wide_s32, s64, s32, s32, (int64_t)a *b)                                                          \
    THREE(mad_lo_s32, u32, u32, u32, u32, a *b + c)                                                          \
    THREE(mad_lo_s64, u64, u64, u64, u64, a *b + c)                                                          \
    TWO(div_u32, u32, u32, u32, b == 0 ? UINT32_MAX : a / b)                                                 \
    TWO(div_u64, u64, u64, u64, b == 0 ? UINT64_MAX : a / b)                                                 \
    TWO(min_u32, u32, u32, u32, a < b ? a : b)                                                               \
    TWO(max_u32, u32, u32, u32, a > b ? a : b)                                                               \
    TWO(min_u64, u64, u64, u64, a < b ? a : b)                                                               \
    BITS(ONE, TWO, pred)                                                                                     \
    BITS(ONE, TWO, b16)                                                                                      \
    BITS(ONE, TWO, b32)                                                                                      \
    BITS(ONE, TWO, b64)                                                                                      \
    ONE(not_b32, u32, u32, ~a)                                                                               \
    ONE(not_pred, pred, pred, a == 0)                                                                        \
    SHIFTS(TWO, u16, 16)                                                                                     \
    SHIFTS(TWO, u32, 32)                                                                                     \
    SHIFTS(TWO, u64, 64)                                                                                     \
    TWO(shr_s32, s32, s32, u32, a >> (b > 31 ? 31 : b))                                                      \
    THREE(bfe_u32, u32, u32, u32, u32, field(a, b, c))                                                       \
    THREE(bfe_u64, u64, u64, u32, u32, field(a, b, c))                                                       \
    MOVES(ONE, THREE, b16)                                                                                   \
    MOVES(ONE, THREE, b32)                                                                                   \
    MOVES(ONE, THREE, b64)                                                                                   \
    THREE(selp_s64, b64, b64, b64, pred, c != 0 ? a : b)                                                     \
    MOVES(ONE, THREE, u16)                                                                                   \
    MOVES(ONE, THREE, u32)                                                                                   \
    MOVES(ONE, THREE, u64)                                                                                   \
    MOVES(ONE, THREE, f32)                                                                                   \
    MOVES(ONE, THREE, f64)                                                                                   \
    ONE(mov_pred, pred, pred, a != 0)                                                                        \
    TWO(setp_eq_b32, pred, u32, u32, a == b)                                                                 \
    COMPARED(TWO, s16)                                                                                       \
    COMPARED(TWO, s32)                                                                                       \
    COMPARED(TWO, u32)                                                                                       \
    COMPARED(TWO, s64)                                                                                       \
    COMPARED(TWO, u64)                                                                                       \
    COMPARED(TWO, f32)                                                                                       \
    COMPARED(TWO, f64)                                                                                       \
    COMPARED_UNORDERED(TWO, f32)                                                                             \
    COMPARED_UNORDERED(TWO, f64)                                                                             \
    ONE(cvt_f32_f16, f32, u16, half_to_float(a))                                                             \
    ONE(cvt_rn_f16_f32, u16, f32, half_from_float(a))                                                        \
    TWO(cvt_rn_f16x2_f32, u32, f32, f32, (uint32_t)half_from_float(a) << 16 | half_from_float(b))            \
    TWO(cvt_rn_bf16x2_f32, u32, f32, f32, (uint32_t)bfloat_from_float(a) << 16 | bfloat_from_float(b))       \
    ONE(cvt_f64_f32, f64, f32, a)                                                                            \
    ONE(cvt_rn_f32_f64, f32, f64, a)                                                                         \
    ONE(cvt_rn_f32_s16, f32, s16, a)                                                                         \
    ONE(cvt_rn_f32_s32, f32, s32, a)                                                                         \
    ONE(cvt_rn_f32_u32, f32, u32, a)                                                                         \
    ONE(cvt_rn_f64_s32, f64, s32, a)                                                                         \
    ONE(cvt_rn_f64_u32, f64, u32, a)                                                                         \
    ONE(cvt_rzi_s32_f32, s32, f32, integer_of(a))                                                            \
    ONE(cvt_rzi_u32_f32, u32, f32, natural_of(a))                                                            \
    ONE(cvt_s16_s8, s16, s16, (int8_t)a)                                                                     \
    ONE(cvt_s32_s16, s32, s16, a)                                                                            \
    ONE(cvt_u16_u32, u16, u32, a)                                                                            \
    ONE(cvt_u32_u16, u32, u16, a)                                                                            \
    ONE(cvt_u32_u64, u32, u64, a)                                                                            \
    ONE(cvt_u64_u16, u64, u16, a)                                                                            \
    ONE(cvt_u64_u32, u64, u32, a)

/* Lanes that do not run keep their values. */
#define STORE_LANES                                                                                          \
    if (warp->active == UINT32_MAX)                                                                          \
        memcpy(to, result, sizeof(result));                                                                  \
    else                                                                                                     \
        EACH_LANE to[l] = warp->take[l] != 0 ? result[l] : to[l];
#define DEFINE_ONE(name, D, A, expression)                                                                   \
    LANES name(struct ptx_warp *warp, const struct ptx_instr *instr)                                         \
    {                                                                                                        \
        D result[PTX_LANES], *to = PTX_OPERAND(warp, instr, 0);                                              \
        const A *from = PTX_OPERAND(warp, instr, 1);                                                         \
        EACH_LANE                                                                                            \
        {                                                                                                    \
            A a = from[l];                                                                                   \
            result[l] = (D)(expression);                                                                     \
        }                                                                                                    \
        STORE_LANES                                                                                          \
    }
#define DEFINE_TWO(name, D, A, B, expression)                                                                \
    LANES name(struct ptx_warp *warp, const struct ptx_instr *instr)                                         \
    {                                                                                                        \
        D result[PTX_LANES], *to = PTX_OPERAND(warp, instr, 0);                                              \
        const A *first = PTX_OPERAND(warp, instr, 1);                                                        \
        const B *second = PTX_OPERAND(warp, instr, 2);                                                       \
        EACH_LANE                                                                                            \
        {                                                                                                    \
            A a = first[l];                                                                                  \
            B b = second[l];                                                                                 \
            result[l] = (D)(expression);                                                                     \
        }                                                                                                    \
        STORE_LANES                                                                                          \
    }
#define DEFINE_THREE(name, D, A, B, C, expression)                                                           \
    LANES name(struct ptx_warp *warp, const struct ptx_instr *instr)                                         \
    {                                                                                                        \
        D result[PTX_LANES], *to = PTX_OPERAND(warp, instr, 0);                                              \
        const A *first = PTX_OPERAND(warp, instr, 1);                                                        \
        const B *second = PTX_OPERAND(warp, instr, 2);                                                       \
        const C *third = PTX_OPERAND(warp, instr, 3);                                                        \
        EACH_LANE                                                                                            \
        {                                                                                                    \
            A a = first[l];                                                                                  \
            B b = second[l];                                                                                 \
            C c = third[l];                                                                                  \
            result[l] = (D)(expression);                                                                     \
        }                                                                                                    \
        STORE_LANES                                                                                          \
    }
FORMS(DEFINE_ONE, DEFINE_TWO, DEFINE_THREE)

/* The mov that unpacks a register into two registers of half its size, the lower half first. */
#define UNPACK(name, D, A)                                                                                   \
    static void name(struct ptx_warp *warp, const struct ptx_instr *instr)                                   \
    {                                                                                                        \
        D *low = PTX_OPERAND(warp, instr, 0), *high = PTX_OPERAND(warp, instr, 1);                           \
        const A *from = PTX_OPERAND(warp, instr, 2);                                                         \
        for (uint32_t l = 0; l < PTX_LANES; l++)                                                             \
            if (warp->take[l] != 0) {                                                                        \
                A a = from[l];                                                                               \
                low[l] = (D)a;                                                                               \
                high[l] = (D)(a >> 8 * sizeof(D));                                                           \
            }                                                                                                \
    }
UNPACK(mov_b32_unpack, u16, u32)
UNPACK(mov_b64_unpack, u32, u64)

/* --- instructions of all lanes, which the caller has gathered */

/* shfl.sync.idx with operands d, a, source lane, c and members. Bits 0 to 4 of c are the highest lane, bits 8
 * to 12 a mask of the lane number's bits that choose the segment. A source beyond the segment's end gives the
 * lane's own value. */
static void shfl_sync_idx_b32(struct ptx_warp *warp, const struct ptx_instr *instr)
{
    const u32 *a = PTX_OPERAND(warp, instr, 1), *b = PTX_OPERAND(warp, instr, 2),
              *c = PTX_OPERAND(warp, instr, 3);
    u32 *to = PTX_OPERAND(warp, instr, 0), result[PTX_LANES];
    EACH_LANE
    {
        uint32_t segment = c[l] >> 8 & 31u, clamp = c[l] & 31u;
        uint32_t last = (l & segment) | (clamp & ~segment), from = (l & segment) | (b[l] & 31u & ~segment);
        result[l] = a[from <= last ? from : l];
    }
    memcpy(to, result, sizeof(result));
}

/* bar.warp.sync: lanes that are gathered have done what came before. */
static void bar_warp_sync(struct ptx_warp *warp, const struct ptx_instr *instr)
{
    (void)warp, (void)instr;
}

/* mma.sync.m16n8k8 and …k16 with 16-bit factors and fp32 sums. Lane l has group l / 4 and place l % 4 in it.
 * Word w of a has row group, or group + 8 if w is odd, and columns 2 place and 2 place + 1, from column 8 on
 * if w is at least 2. Word w of b has column group and rows 2 place + 8 w and the next. Values 0 and 1 of c
 * and d have row group and columns 2 place and 2 place + 1, values 2 and 3 row group + 8. A word's lower half
 * has the smaller index. */
LANES multiply(float (*a)[16], float (*b)[8], float (*d)[8], uint32_t terms)
{
    for (uint32_t row = 0; row < 16; row++)
        for (uint32_t k = 0; k < terms; k++)
            for (uint32_t column = 0; column < 8; column++)
                d[row][column] = __builtin_fmaf(a[row][k], b[k][column], d[row][column]);
}

static inline void mma(struct ptx_warp *warp, const struct ptx_instr *instr, uint32_t terms,
                       float (*value)(uint16_t bits))
{
    float a[16][16], b[16][8], d[16][8];
    const uint32_t a_words = terms / 4, b_words = terms / 8;
    EACH_LANE
    {
        uint32_t group = l / 4, place = l % 4;
        for (uint32_t w = 0; w < a_words; w++) {
            uint32_t word = ((u32 *)PTX_OPERAND(warp, instr, 4 + w))[l];
            a[group + w % 2 * 8][2 * place + w / 2 * 8] = value((uint16_t)word);
            a[group + w % 2 * 8][2 * place + w / 2 * 8 + 1] = value((uint16_t)(word >> 16));
        }
        for (uint32_t w = 0; w < b_words; w++) {
            uint32_t word = ((u32 *)PTX_OPERAND(warp, instr, 4 + a_words + w))[l];
            b[2 * place + 8 * w][group] = value((uint16_t)word);
            b[2 * place + 8 * w + 1][group] = value((uint16_t)(word >> 16));
        }
        for (uint32_t i = 0; i < 4; i++)
            d[group + i / 2 * 8][2 * place + i % 2] =
                ((f32 *)PTX_OPERAND(warp, instr, 4 + a_words + b_words + i))[l];
    }
    multiply(a, b, d, terms);
    EACH_LANE
    for (uint32_t i = 0; i < 4; i++)
        ((f32 *)PTX_OPERAND(warp, instr, i))[l] = d[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
}

static void mma_k16_f16(struct ptx_warp *warp, const struct ptx_instr *instr)
{
    mma(warp, instr, 16, half_to_float);
}
static void mma_k16_bf16(struct ptx_warp *warp, const struct ptx_instr *instr)
{
    mma(warp, instr, 16, bfloat_to_float);
}
static void mma_k8_f16(struct ptx_warp *warp, const struct ptx_instr *instr)
{
    mma(warp, instr, 8, half_to_float);
}

#define ENTRY_ONE(name, D, A, expression) {#name, name, PTX_LANE, 2, {sizeof(D), sizeof(A)}},
#define ENTRY_TWO(name, D, A, B, expression) {#name, name, PTX_LANE, 3, {sizeof(D), sizeof(A), sizeof(B)}},
#define ENTRY_THREE(name, D, A, B, C, expression)                                                            \
    {#name, name, PTX_LANE, 4, {sizeof(D), sizeof(A), sizeof(B), sizeof(C)}},
#define WORDS 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4
const struct ptx_form ptx_forms[] = {
    FORMS(ENTRY_ONE, ENTRY_TWO, ENTRY_THREE){"mov_b32_unpack", mov_b32_unpack, PTX_LANE, 3, {2, 2, 4}},
    {"mov_b64_unpack", mov_b64_unpack, PTX_LANE, 3, {4, 4, 8}},
    {"shfl_sync_idx_b32", shfl_sync_idx_b32, PTX_WARP, 5, {WORDS}},
    {"mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32", mma_k16_f16, PTX_WARP, 14, {WORDS}},
    {"mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32", mma_k16_bf16, PTX_WARP, 14, {WORDS}},
    {"mma_sync_aligned_m16n8k8_row_col_f32_f16_f16_f32", mma_k8_f16, PTX_WARP, 11, {WORDS}},
    {"ldmatrix_sync_aligned_m8n8_x2_shared_b16", ptx_blocks_2, PTX_WARP, 3, {WORDS}},
    {"ldmatrix_sync_aligned_m8n8_x2_trans_shared_b16", ptx_blocks_2_turned, PTX_WARP, 3, {WORDS}},
    {"ldmatrix_sync_aligned_m8n8_x4_shared_b16", ptx_blocks_4, PTX_WARP, 5, {WORDS}},
    {"ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16", ptx_blocks_4_turned, PTX_WARP, 5, {WORDS}},
    {"cp_async_cg_shared_global", ptx_copy, PTX_ACCESS, 4, {4, 8, 4, 4}},
    {"cp_async_wait_all", ptx_copies_await, PTX_ACCESS, 0, {0}},
    {"bar_warp_sync", bar_warp_sync, PTX_WARP, 1, {4}},
    {"bar_sync", NULL, PTX_BARRIER, 1, {4}},
    {"exit", NULL, PTX_END, 0, {0}},
    {"ret", NULL, PTX_END, 0, {0}},
    {"trap", NULL, PTX_TRAP, 0, {0}}};
const uint32_t ptx_form_count = sizeof(ptx_forms) / sizeof(*ptx_forms);
