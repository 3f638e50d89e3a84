/* One harness for every op on every device; a new device is tested with it first. A case draws an op with
 * random shapes and says what the op should do, in double. Sizes, dtypes and access come from op_operands():
 * each operand lies somewhere in a buffer of its own, with gaps between rows where the op allows them, and
 * has values of any dtype that the op allows. After the op ran, what it wrote is compared with the definition
 * or, for gradients, with central differences of a loss in double. What lies between rows and around operands
 * must be unchanged. Devices of one group must agree to the bit, whatever their numbers of threads. */
#pragma once

#include "engine/ops.h"

/* A device that this program tests. Devices of one group must give equal bits; a partial device may lack ops.
 */
struct candidate {
    const char *kind;
    uint32_t threads, group;
    bool partial;
    const char *isa; /* NULL: bench_isa */
};
#ifndef HARNESS_CANDIDATES
#define HARNESS_CANDIDATES                                                                                   \
    {.kind = "cpu", .threads = 1}, {.kind = "cpu", .threads = 3}, {.kind = "checked", .threads = 2}
#endif
static const struct candidate candidates[] = {HARNESS_CANDIDATES};

enum { CANDIDATES = sizeof(candidates) / sizeof(*candidates), PAD_MAX = 7, SLOPES_MAX = 5, SAMPLES = 24 };

enum fill { FILL_NORMAL, FILL_POSITIVE, FILL_WIDE, FILL_BELOW, FILL_TARGETS, FILL_STARTS, FILL_DISTINCT };

struct array {
    struct operand *operand; /* the operand's field in the trial's op */
    enum fill fill;
    uint32_t bound; /* the exclusive bound of FILL_BELOW, FILL_TARGETS (-1 is among them) and FILL_DISTINCT,
                       the last value of FILL_STARTS */
    struct operand_use use;
    uint64_t count;   /* elements from the operand's first to its last, gaps included */
    uint64_t lead;    /* elements of the buffer before the operand */
    double *value;    /* the values before the op; after want(), the expected ones */
    double *original; /* the values before the op, never changed */
    uint8_t *bytes;   /* the bytes that are copied to devices: lead + count + PAD_MAX elements */
    bool expected;
};

struct trial {
    struct op op;
    struct rand_stream stream;
    struct array arrays[OP_OPERANDS_MAX];
    uint32_t count;
    char where[96]; /* the case and, after a run, the device, for messages */
};

struct slope {
    const char *input, *gradient;
};

struct op_case {
    const char *name;
    void (*draw)(struct trial *t);
    void (*prepare)(struct trial *t); /* computes values that depend on others, or NULL */
    void (*want)(struct trial *t);    /* computes the expected values, or NULL */
    double (*loss)(
        const struct trial *t); /* the loss whose finite differences are the expected gradients, or NULL */
    struct slope slopes[SLOPES_MAX];
    bool replaces;    /* the op writes gradients over old values although the operand is marked as updated */
    bool aligned;     /* operands begin at multiples of 16 bytes */
    double tolerance; /* relative to the largest magnitude */
    /* For ops that round to 16 bits internally. A value near the middle of two 16-bit values may be rounded
     * to either, which changes results by up to `flip` of the largest magnitude. One in 20 of an operand's
     * values may differ so, or three values if that is more. */
    double flip;
};

/* --- for draw() */

static inline uint32_t draw_below(struct trial *t, uint32_t bound)
{
    return rand_stream_below(&t->stream, bound);
}

/* Draws a number of rows from 1 to `most`; one in eight times 0. */
static inline uint32_t draw_rows(struct trial *t, uint32_t most)
{
    return draw_below(t, 8) == 0 ? 0 : 1 + draw_below(t, most);
}

/* Draws a row distance of at least `width`. */
static inline uint32_t draw_ld(struct trial *t, uint32_t width)
{
    return width + (draw_below(t, 2) ? draw_below(t, 9) : 0);
}

static inline void bind_as(struct trial *t, struct operand *operand, enum fill fill, uint32_t bound)
{
    static char some; /* a placeholder until the buffer exists */
    assert_true(t->count < OP_OPERANDS_MAX);
    *operand = (struct operand){.buffer = (struct buffer *)(void *)&some, .at = t->count};
    t->arrays[t->count++] = (struct array){.operand = operand, .fill = fill, .bound = bound};
}

static inline void bind(struct trial *t, struct operand *operand)
{
    bind_as(t, operand, FILL_NORMAL, 0);
}

/* --- for want() and loss() */

static inline struct array *array_named(const struct trial *t, const char *name)
{
    for (uint32_t i = 0; i < t->count; i++)
        if (strcmp(t->arrays[i].use.name, name) == 0)
            return (struct array *)&t->arrays[i];
    return NULL;
}

/* Returns an operand's values, or NULL when it is absent. */
static inline double *values(const struct trial *t, const char *name)
{
    struct array *array = array_named(t, name);
    return !array ? NULL : array->value;
}

/* Returns an operand's values, to which want() writes the expected results. */
static inline double *expected(struct trial *t, const char *name)
{
    struct array *array = array_named(t, name);
    if (!array)
        return NULL;
    array->expected = true;
    return array->value;
}

/* --- numbers of every dtype */

static inline double read_as(enum dtype dtype, const uint8_t *at)
{
    float f;
    double d;
    int32_t i;
    uint32_t u;
    uint16_t h;
    switch (dtype) {
    case DTYPE_F32:
        memcpy(&f, at, 4);
        return (double)f;
    case DTYPE_F64:
        memcpy(&d, at, 8);
        return d;
    case DTYPE_I32:
        memcpy(&i, at, 4);
        return i;
    case DTYPE_U32:
        memcpy(&u, at, 4);
        return u;
    case DTYPE_U8:
        return *at;
    case DTYPE_BF16:
        memcpy(&h, at, 2);
        u = (uint32_t)h << 16;
        memcpy(&f, &u, 4);
        return (double)f;
    case DTYPE_F16:
        memcpy(&h, at, 2);
        d = h & 0x3FF;
        d = (h >> 10 & 31) == 0    ? ldexp(d, -24)
            : (h >> 10 & 31) == 31 ? (d == 0 ? INFINITY : NAN)
                                   : ldexp(1024 + d, (h >> 10 & 31) - 25);
        return h >> 15 ? -d : d;
    }
    return NAN;
}

/* Rounds to a float with 8 (bf16) or 5 (f16) exponent bits, to nearest even, by the definition of rounding.
 */
static inline double rounded(enum dtype dtype, double x)
{
    int digits = dtype == DTYPE_BF16 ? 8 : dtype == DTYPE_F16 ? 11 : 24, exponent;
    int least = dtype == DTYPE_F16 ? -14 : -126;
    double most = dtype == DTYPE_F16 ? 65504 : dtype == DTYPE_BF16 ? 0x1.FEp127 : 0x1.FFFFFEp127;
    if (x == 0 || isnan(x) || isinf(x))
        return x;
    (void)frexp(x, &exponent);
    exponent = exponent - 1 < least ? least : exponent - 1;
    double unit = ldexp(1, exponent - digits + 1), y = nearbyint(x / unit) * unit;
    return fabs(y) > most ? copysign(INFINITY, x) : y;
}

/* Returns the largest error of rounding x to 16 bits; 0 for other dtypes. */
static inline double half_unit(enum dtype dtype, double x)
{
    int exponent, digits = dtype == DTYPE_BF16 ? 8 : 11, least = dtype == DTYPE_F16 ? -14 : -126;
    if (x == 0 || isinf(x) || isnan(x) || (dtype != DTYPE_BF16 && dtype != DTYPE_F16))
        return 0;
    (void)frexp(x, &exponent);
    return ldexp(0.5, (exponent - 1 < least ? least : exponent - 1) - digits + 1);
}

static inline void write_as(enum dtype dtype, uint8_t *at, double x)
{
    float f = (float)x;
    int32_t i = (int32_t)x;
    uint32_t u = (uint32_t)(int64_t)x;
    if (dtype == DTYPE_F32)
        memcpy(at, &f, 4);
    else if (dtype == DTYPE_F64)
        memcpy(at, &x, 8);
    else if (dtype == DTYPE_I32)
        memcpy(at, &i, 4);
    else if (dtype == DTYPE_U32)
        memcpy(at, &u, 4);
    else if (dtype == DTYPE_U8)
        *at = (uint8_t)u;
    else if (dtype == DTYPE_BF16) {
        memcpy(&u, &f, 4);
        memcpy(at, (uint8_t *)&u + 2, 2);
    } else {
        int exponent;
        double m = fabs(frexp(x, &exponent));
        uint16_t h = (uint16_t)(isnan(x)   ? 0x7E00
                                : isinf(x) ? 0x7C00
                                : x == 0   ? 0
                                : exponent < -13
                                    ? (uint16_t)ldexp(fabs(x), 24)
                                    : (uint16_t)((exponent + 14) << 10) + ((uint16_t)ldexp(m, 11) & 0x3FF));
        h |= signbit(x) ? 0x8000 : 0;
        memcpy(at, &h, 2);
    }
}

/* --- a trial's life */

static inline enum dtype draw_dtype(struct trial *t, uint32_t dtypes)
{
    uint32_t which = draw_below(t, (uint32_t)__builtin_popcount(dtypes));
    enum dtype dtype = DTYPE_F32;
    for (uint32_t bit = 0; bit < 32; bit++)
        if ((dtypes & 1u << bit) != 0 && which-- == 0)
            dtype = (enum dtype)bit;
    return dtype;
}

/* Draws a value of any magnitude within and beyond the dtype's range, values halfway between two
 * representable ones, and sometimes NaN. */
static inline double draw_wide(struct trial *t)
{
    uint32_t which = draw_below(t, 60);
    double x = ldexp((double)draw_below(t, 8192) - 4096, (int)draw_below(t, 56) - 38);
    return which == 0 ? NAN : which == 1 ? INFINITY : which == 2 ? ldexp(x, 120) : x;
}

static inline int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static inline void fill_array(struct trial *t, struct array *a)
{
    for (uint64_t i = 0; i < a->count; i++) {
        a->value[i] = a->fill == FILL_NORMAL     ? rand_stream_normal(&t->stream)
                      : a->fill == FILL_WIDE     ? draw_wide(t)
                      : a->fill == FILL_POSITIVE ? fabs(rand_stream_normal(&t->stream))
                      : a->fill == FILL_DISTINCT ? (double)i
                      : a->fill == FILL_TARGETS  ? (double)draw_below(t, a->bound + 1) - 1
                                                 : draw_below(t, a->bound + (a->fill == FILL_STARTS));
    }
    if (a->fill == FILL_STARTS) {
        a->value[0] = 0;
        a->value[a->count - 1] = a->bound;
        qsort(a->value, a->count, sizeof(*a->value), compare_doubles);
    }
    for (uint64_t i = 0, left = a->bound; a->fill == FILL_DISTINCT && i < a->count; i++, left--)
        a->value[i] =
            i == 0 ? draw_below(t, a->bound - (uint32_t)a->count + 1)
                   : a->value[i - 1] + 1 +
                         draw_below(t, a->bound - (uint32_t)(a->count - i) - (uint32_t)a->value[i - 1]);
}

static inline void array_create(struct trial *t, struct array *a, bool aligned)
{
    enum dtype dtype = a->use.operand.dtype;
    uint32_t size = dtype_bytes(dtype);
    a->count = a->use.rows == 0 || a->use.width == 0 ? 0 : (a->use.rows - 1) * a->use.ld + a->use.width;
    a->lead = aligned ? 8 * draw_below(t, 2) : draw_below(t, PAD_MAX);
    a->value = calloc(a->count + 1, sizeof(double));
    a->original = calloc(a->count + 1, sizeof(double));
    a->bytes = malloc((a->lead + a->count + PAD_MAX) * size);
    memset(a->bytes, 0x7F, (a->lead + a->count + PAD_MAX) * size);
    if (a->count > 0)
        fill_array(t, a);
}

/* Rounds the values to the dtype, and writes them as double and as bytes. */
static inline void array_settle(struct array *a)
{
    enum dtype dtype = a->use.operand.dtype;
    for (uint64_t i = 0; i < a->count; i++) {
        if (dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16)
            a->value[i] = rounded(dtype, a->value[i]);
        a->original[i] = a->value[i];
        write_as(dtype, a->bytes + (a->lead + i) * dtype_bytes(dtype), a->value[i]);
    }
}

static inline void trial_create(struct trial *t, const struct op_case *c, uint64_t seed)
{
    struct operand_use uses[OP_OPERANDS_MAX];
    memset(t, 0, sizeof(*t));
    snprintf(t->where, sizeof(t->where), "%s", c->name);
    rand_stream_init(&t->stream, 23, seed);
    c->draw(t);
    op_complete(&t->op);
    uint32_t count = op_operands(&t->op, uses);
    assert_int_equal(count, t->count);
    for (uint32_t i = 0; i < count; i++) {
        struct array *a = &t->arrays[uses[i].operand.at];
        /* CPU devices write products in fp32 alone (op.h) */
        bool fp32 = t->op.kind == OP_GEMM && strcmp(uses[i].name, "c") == 0 &&
                    (!candidates[0].partial || t->op.gemm.add.buffer);
        uses[i].operand.dtype = draw_dtype(t, fp32 ? 1u << DTYPE_F32 : uses[i].dtypes);
        a->use = uses[i];
        array_create(t, a, c->aligned);
    }
    if (c->prepare)
        c->prepare(t);
    for (uint32_t i = 0; i < count; i++)
        array_settle(&t->arrays[i]);
}

static inline void trial_destroy(struct trial *t)
{
    for (uint32_t i = 0; i < t->count; i++) {
        free(t->arrays[i].value);
        free(t->arrays[i].original);
        free(t->arrays[i].bytes);
    }
}

/* Runs the trial's op on a device and copies its operands to after[]. Returns false when a partial device
 * lacks the op. */
static inline bool trial_run(struct trial *t, struct device *device, bool partial, uint8_t **after)
{
    struct buffer *buffers[OP_OPERANDS_MAX];
    struct err err;
    uint64_t bytes[OP_OPERANDS_MAX];
    for (uint32_t i = 0; i < t->count; i++) {
        struct array *a = &t->arrays[i];
        uint32_t size = dtype_bytes(a->use.operand.dtype);
        bytes[i] = (a->lead + a->count + PAD_MAX) * size;
        check(buffer_create(device, bytes[i], MEM_BUFFERS, "operand", &buffers[i], &err));
        check(buffer_write(buffers[i], 0, a->bytes, bytes[i], &err));
        *a->operand =
            (struct operand){.buffer = buffers[i], .at = a->lead * size, .dtype = a->use.operand.dtype};
        after[i] = malloc(bytes[i]);
    }
    bool lacking = partial && !op_supports(device, &t->op);
    if (!lacking)
        check(op_submit(device, &t->op, &err));
    for (uint32_t i = 0; i < t->count; i++)
        check(buffer_read(buffers[i], 0, after[i], bytes[i], &err));
    check(device_sync(device, &err));
    for (uint32_t i = 0; i < t->count; i++)
        buffer_destroy(buffers[i]);
    return !lacking;
}

/* Whether element i belongs to the operand's rows, not to the gaps between them. */
static inline bool element_is_own(const struct array *a, uint64_t i)
{
    return i % a->use.ld < a->use.width;
}

/* Checks that the op wrote only where it may. */
static inline void untouched_check(const struct trial *t, const struct array *a, const uint8_t *after)
{
    uint32_t size = dtype_bytes(a->use.operand.dtype);
    for (uint64_t i = 0; i < a->lead + a->count + PAD_MAX; i++) {
        bool own = i >= a->lead && i - a->lead < a->count && element_is_own(a, i - a->lead);
        if ((!own || (a->use.access & OPERAND_WRITE) == 0) &&
            memcmp(a->bytes + i * size, after + i * size, size) != 0)
            fail_msg("%s: %s wrote outside itself, at %lld of %llu", t->where, a->use.name,
                     (long long)i - (long long)a->lead, (unsigned long long)a->count);
    }
}

static inline void expected_check(const struct trial *t, const struct op_case *c, const struct array *a,
                                  const uint8_t *after)
{
    enum dtype dtype = a->use.operand.dtype;
    double scale = 0, tolerance = c->tolerance;
    uint64_t flips = 0, most = a->use.rows * a->use.width / 20 + 3;
    for (uint64_t i = 0; i < a->count; i++)
        scale = element_is_own(a, i) ? fmax(scale, fabs(a->value[i])) : scale;
    for (uint64_t i = 0; i < a->count; i++) {
        double got = read_as(dtype, after + (a->lead + i) * dtype_bytes(dtype));
        bool same = got == a->value[i] || (isnan(got) && isnan(a->value[i]));
        double off = fabs(got - a->value[i]) - half_unit(dtype, a->value[i]);
        if (!element_is_own(a, i) || same || off <= tolerance * scale)
            continue;
        if (!(off <= c->flip * scale) || ++flips > most)
            fail_msg(
                "%s: %s[%llu, %llu] is %.9g, not %.9g: %.3g off, of %.3g that any value and %.3g that %llu "
                "values may be off (%llu are)",
                t->where, a->use.name, (unsigned long long)(i / a->use.ld),
                (unsigned long long)(i % a->use.ld), got, a->value[i], off, tolerance * scale,
                c->flip * scale, (unsigned long long)(c->flip > 0 ? most : 0), (unsigned long long)flips);
    }
}

/* Compares samples of a gradient with finite differences of the loss. */
static inline void slope_check(const struct trial *t, const struct op_case *c, const struct slope *slope,
                               uint8_t *const *after)
{
    const double h = 1e-5;
    struct array *input = array_named(t, slope->input), *gradient = array_named(t, slope->gradient);
    double want[SAMPLES], got[SAMPLES],
        scale = 0.1; /* The tolerance is relative to at least 0.1, because a gradient near zero may be a sum
                        of terms of about 1 that cancel. */
    uint64_t at[SAMPLES];
    if (!gradient || gradient->count == 0 || (gradient->use.access & OPERAND_WRITE) == 0)
        return;
    struct rand_stream stream = t->stream;
    for (int i = 0; i < SAMPLES; i++) {
        uint64_t row = rand_stream_below(&stream, (uint32_t)gradient->use.rows);
        uint64_t column = rand_stream_below(&stream, (uint32_t)gradient->use.width);
        double *x = &input->value[row * input->use.ld + column], kept = *x;
        at[i] = row * gradient->use.ld + column;
        bool onto = gradient->use.access == OPERAND_UPDATE && !c->replaces;
        *x = kept + h;
        double above = c->loss(t);
        *x = kept - h;
        want[i] = (above - c->loss(t)) / (2 * h) + (onto ? gradient->original[at[i]] : 0);
        *x = kept;
        got[i] = read_as(gradient->use.operand.dtype,
                         after[gradient - t->arrays] +
                             (gradient->lead + at[i]) * dtype_bytes(gradient->use.operand.dtype));
        scale = fmax(scale, fabs(want[i]));
    }
    for (int i = 0; i < SAMPLES; i++)
        if (!(fabs(got[i] - want[i]) - half_unit(gradient->use.operand.dtype, want[i]) <=
              c->tolerance * scale + 1e-8))
            fail_msg("%s: %s at %llu is %.9g, differences say %.9g", t->where, slope->gradient,
                     (unsigned long long)at[i], got[i], want[i]);
}

static inline void trial_check(struct trial *t, const struct op_case *c, uint8_t *const *after)
{
    for (uint32_t i = 0; i < t->count; i++)
        memcpy(t->arrays[i].value, t->arrays[i].original, t->arrays[i].count * sizeof(double));
    for (uint32_t i = 0; i < t->count; i++)
        untouched_check(t, &t->arrays[i], after[i]);
    for (int i = 0; i < SLOPES_MAX && c->slopes[i].input; i++)
        slope_check(t, c, &c->slopes[i], after);
    if (c->want)
        c->want(t);
    for (uint32_t i = 0; i < t->count; i++)
        if (t->arrays[i].expected)
            expected_check(t, c, &t->arrays[i], after[i]);
}

static inline void bits_check(const struct trial *t, uint8_t *const *first, uint8_t *const *second,
                              const struct candidate *than)
{
    for (uint32_t i = 0; i < t->count; i++) {
        const struct array *a = &t->arrays[i];
        if (memcmp(first[i], second[i], (a->lead + a->count + PAD_MAX) * dtype_bytes(a->use.operand.dtype)) !=
            0)
            fail_msg("%s: %s has other bits than on %s with %u threads", t->where, a->use.name, than->kind,
                     than->threads);
    }
}

/* Runs the trial on every device and compares the results. */
static inline void trial_run_all(struct trial *t, struct device *const *devices, const struct op_case *c)
{
    uint8_t *after[CANDIDATES][OP_OPERANDS_MAX];
    for (uint32_t d = 0; d < CANDIDATES; d++) {
        uint32_t leader = 0;
        bool ran = trial_run(t, devices[d], candidates[d].partial, after[d]);
        while (candidates[leader].group != candidates[d].group)
            leader++;
        snprintf(t->where, sizeof(t->where), "%s on %s, %s, %u threads", c->name, candidates[d].kind,
                 candidates[d].isa ? candidates[d].isa
                 : bench_isa       ? bench_isa
                                   : "best instructions",
                 candidates[d].threads);
        if (ran && leader == d)
            trial_check(t, c, after[d]);
        else if (ran)
            bits_check(t, after[leader], after[d], &candidates[leader]);
    }
    for (uint32_t d = 0; d < CANDIDATES; d++)
        for (uint32_t i = 0; i < t->count; i++)
            free(after[d][i]);
}

static inline void case_run(struct device *const *devices, const struct op_case *c, uint32_t trials)
{
    for (uint32_t seed = 0; seed < trials; seed++) {
        struct trial t;
        trial_create(&t, c, seed);
        trial_run_all(&t, devices, c);
        trial_destroy(&t);
    }
}

/* Runs every case on every device of this process's instruction set. */
static inline void cases_run(const struct op_case *cases, size_t count, uint32_t trials)
{
    struct device *devices[CANDIDATES];
    struct err err;
    for (uint32_t d = 0; d < CANDIDATES; d++)
        check(DEVICE_OPEN(&(struct device_options){.kind = candidates[d].kind,
                                                   .name = candidates[d].kind,
                                                   .threads = candidates[d].threads,
                                                   .isa = candidates[d].isa ? candidates[d].isa : bench_isa,
                                                   .memory_limit_bytes = 64 << 20},
                          &devices[d], &err));
    for (size_t i = 0; i < count; i++)
        case_run(devices, &cases[i], trials);
    for (uint32_t d = 0; d < CANDIDATES; d++)
        device_close(devices[d]);
}
