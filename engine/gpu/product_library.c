/* Decides which products go to the vendor's library, and in what pieces.
 *
 * Products in fp32 go there unchanged. For 16 bits, the op asks for operands rounded to bf16 or fp16, and the
 * library needs them stored in that type. Operands stored otherwise are first converted, and packed weights
 * unpacked, into two areas that the device owns, as many columns of op(b) and rows of op(a) at a time as fit.
 * All of this follows from the shape alone. The areas belong to the compute queue: products on other queues
 * use our kernels.
 */
#include "common/log.h"
#include "engine/gpu/gpu.h"
#include "engine/gpu/products.h"

#include <stdio.h>

enum {
    WORKSPACE_BYTES = 32 << 20, /* the library's workspace from sm_90 on; on older cards GPU_SCRATCH_BYTES */
    STAGE_MOST = 64 << 20,      /* most bytes of each of the two areas for converted operands */
    STAGE_PART = 512,           /* an area has at most the card's memory divided by this */
    SIDE_MIN = 64,              /* fewest rows and columns; narrower products use our kernels */
    TERMS_OWN = 64, /* with 16 bits, most terms of a sum for which reading and writing memory takes longer
                       than multiplying: our kernels do not convert the operands first */
    ALIGNMENT = 16
};
static const uint64_t TERMS_MIN = 1 << 24; /* fewest multiplications, m * n * k, for the library */

static uint64_t area_bytes(uint64_t memory)
{
    uint64_t part = memory / STAGE_PART / 256 * 256;
    return part < STAGE_MOST ? part : STAGE_MOST;
}

/* The library's workspace is the compute queue's scratch. NVIDIA recommends 32 MiB for Hopper and 4 MiB for
 * older cards (cuBLAS's manual, cublasSetWorkspace); with less, some of the faster algorithms are refused. */
uint64_t gpu_scratch_bytes(const char *arch, enum device_queue queue)
{
    unsigned capability = 0;
    bool hopper = sscanf(arch, "sm_%u", &capability) == 1 && capability >= 90;
    return hopper && queue == DEVICE_COMPUTE ? WORKSPACE_BYTES : GPU_SCRATCH_BYTES;
}

uint64_t gpu_base_bytes(const struct gpu_info *card, bool products)
{
    uint64_t bytes = products ? 2 * area_bytes(card->memory) : 0;
    for (int i = 0; i < DEVICE_QUEUES; i++)
        bytes += gpu_scratch_bytes(card->arch, (enum device_queue)i);
    return bytes;
}

void gpu_library_open(struct gpu *gpu, uint32_t driver_version)
{
    char name[256];
    struct err err, ignored; /* without the library, our kernels compute all products */
    const struct products_vendor *vendor = gpu->driver->products;
    struct products_place place = {.driver_version = driver_version,
                                   .arch = gpu->info.arch,
                                   .workspace = gpu->scratch[DEVICE_COMPUTE],
                                   .workspace_bytes = gpu_scratch_bytes(gpu->info.arch, DEVICE_COMPUTE)};
    if (!vendor)
        return;
    if (vendor->find(driver_version, gpu->info.arch, name, sizeof(name), &err) != 0 ||
        gpu->driver->queue_native(gpu->queues[DEVICE_COMPUTE], &place.stream, &err) != 0 ||
        vendor->open(&place, &gpu->products, &err) != 0) {
        log_event(LOG_LEVEL_INFO, "products_by_own_kernels", "arch=%s why=\"%s\"", gpu->info.arch, err.text);
        return;
    }
    log_event(LOG_LEVEL_INFO, "products_by_library", "arch=%s library=\"%s\"", gpu->info.arch, name);
    gpu->stage_bytes = area_bytes(gpu->info.memory);
    for (int i = 0; i < 2; i++)
        if (gpu->driver->memory_create(gpu->context, gpu->stage_bytes, &gpu->stages[i], &ignored) != 0)
            gpu->stages[i] = 0; /* the library then computes only products in fp32 */
}

void gpu_library_close(struct gpu *gpu)
{
    struct err ignored;
    void *stream;
    if (!gpu->products)
        return;
    gpu->driver->queue_native(gpu->queues[DEVICE_COMPUTE], &stream,
                              &ignored); /* makes the library's context current for this thread */
    for (int i = 0; i < 2; i++)
        if (gpu->stages[i] != 0)
            gpu->driver->memory_destroy(gpu->context, gpu->stages[i], &ignored);
    gpu->driver->products->close(gpu->products);
}

/* An operand for the library. op(x) has `lines` (rows of a, columns of b) of k terms each. */
struct side {
    gpu_address at, stage;
    gpu_address absmax, scales;   /* the operand's scales, if it is in NF4 */
    enum pack_kind pack;          /* how the operand is stored: PACK_F32 if it is not packed */
    uint32_t lines, k, ld, bytes; /* bytes: size of one value */
    bool along;                   /* the terms of a line are neighbours in memory */
    bool kept;                    /* the library reads the operand where it is, without conversion */
    uint32_t step;                /* lines converted at a time */
};

static uint32_t round_up_to_8(uint32_t x)
{
    return (x + 7) / 8 * 8;
}

static struct side side_of(const struct operand *x, uint32_t lines, uint32_t k, uint32_t ld, bool along,
                           bool kept, const struct gpu *gpu, int area)
{
    struct side side = {.at = gpu_at(x),
                        .stage = gpu->stages[area],
                        .lines = lines,
                        .k = k,
                        .ld = ld,
                        .bytes = dtype_bytes(x->dtype),
                        .along = along,
                        .kept = kept,
                        .step = lines};
    if (kept)
        return side;
    uint64_t fit = gpu->stage_bytes / 2 / (along ? round_up_to_8(k) : k) / 128 * 128;
    side.step = fit < lines ? (uint32_t)fit : lines;
    return side;
}

static bool side_fits(const struct side *side)
{
    if (side->kept)
        return side->at % ALIGNMENT == 0 && (uint64_t)side->ld * side->bytes % ALIGNMENT == 0;
    return side->stage != 0 && side->step > 0;
}

/* Converts rows of `width` values, from the operand's value `from` on, to `type` in the operand's area, where
 * rows are ldy values apart. */
static int side_convert(struct gpu_call *call, const struct side *side, uint64_t from, uint32_t rows,
                        uint32_t width, enum dtype type, uint32_t ldy)
{
    gpu_address x = side->at + from * side->bytes;
    struct gpu_unpacked packed = {.pack = side->pack,
                                  .type = type,
                                  .x = side->at,
                                  .absmax = side->absmax,
                                  .scales = side->scales,
                                  .y = side->stage,
                                  .begin = from,
                                  .rows = rows,
                                  .width = width,
                                  .ldx = side->ld,
                                  .ldy = ldy};
    struct cast_rows_args args = {.x = x,
                                  .y = side->stage,
                                  .rows = rows,
                                  .width = width,
                                  .ldx = side->ld,
                                  .ldy = ldy,
                                  .y_as = gpu_element(type),
                                  .wide = gpu_fours(x, 4, side->ld)};
    if (side->pack != PACK_F32)
        return gpu_unpack(call, &packed);
    return gpu_launch(call, KERNEL_cast_rows, gpu_row_blocks(rows, width, 4), 1, 1, &args, sizeof(args));
}

/* Prepares lines [begin, begin + count) for the library: returns their address and the distance of their
 * rows. */
static int side_prepare(struct gpu_call *call, const struct side *side, uint32_t begin, uint32_t count,
                        enum dtype type, gpu_address *at, uint32_t *ld)
{
    uint64_t from = (uint64_t)begin * (side->along ? side->ld : 1);
    uint32_t rows = side->along ? count : side->k, width = side->along ? side->k : count;
    *at = side->kept ? side->at + from * side->bytes : side->stage;
    *ld = side->kept ? side->ld : round_up_to_8(width);
    return side->kept ? 0 : side_convert(call, side, from, rows, width, type, *ld);
}

static bool library_takes(const struct gpu_call *call, const struct op_gemm *o)
{
    const struct gpu *gpu = call->gpu;
    bool halves = o->pack == PACK_BF16 || o->pack == PACK_F16;
    bool ready = halves ? o->b.dtype == o->compute : o->pack == PACK_F32 || o->compute != DTYPE_F32;
    if (!gpu->products || call->queue != DEVICE_COMPUTE || o->m < SIDE_MIN || o->n < SIDE_MIN ||
        (uint64_t)o->m * o->n * o->k < TERMS_MIN || (o->compute != DTYPE_F32 && o->k <= TERMS_OWN) ||
        o->add.buffer)
        return false;
    return ready && gpu_at(&o->c) % ALIGNMENT == 0 &&
           (uint64_t)o->ldc * dtype_bytes(o->c.dtype) % ALIGNMENT == 0 &&
           (!gpu->driver->products->takes ||
            gpu->driver->products->takes(gpu->products, o->compute, o->transpose_a, o->transpose_b));
}

/* Multiplies rows [row, row + rows) and columns [column, column + columns) of c. */
static int product_library_piece_multiply(struct gpu_call *call, const struct op_gemm *o,
                                          const struct library_product *piece, uint32_t row, uint32_t column,
                                          bool *done)
{
    struct library_product p = *piece;
    void *stream;
    p.transpose_a = o->transpose_a;
    p.transpose_b = o->transpose_b;
    p.k = o->k;
    p.type = o->compute;
    p.c_type = o->c.dtype;
    p.alpha = o->alpha;
    p.beta = o->beta;
    p.ldc = o->ldc;
    p.c = gpu_at(&o->c) + dtype_bytes(o->c.dtype) * ((uint64_t)row * o->ldc + column);
    const struct gpu_driver *driver =
        call->gpu->driver; /* queue_native makes the context current for this thread */
    if (driver->queue_native(call->gpu->queues[call->queue], &stream, call->err) != 0 ||
        driver->products->multiply(call->gpu->products, &p, done, call->err) != 0)
        return -1;
    if (*done || (row == 0 && column == 0))
        return 0;
    return err_set(call->err, ERR_INTERNAL, "a product of %u x %u x %u: %s refuses a part of it", o->m, o->n,
                   o->k, driver->products->name);
}

int gpu_library_gemm(struct gpu_call *call, const struct op_gemm *o, bool *done)
{
    bool fp32 = o->compute == DTYPE_F32;
    struct library_product piece = {0};
    *done = false;
    if (!library_takes(call, o))
        return 0;
    struct side a =
        side_of(&o->a, o->m, o->k, o->lda, !o->transpose_a, fp32 || o->a.dtype != DTYPE_F32, call->gpu, 0);
    struct side b =
        side_of(&o->b, o->n, o->k, o->ldb, o->transpose_b, fp32 || o->b.dtype == o->compute, call->gpu, 1);
    b.pack = o->pack;
    b.absmax = gpu_at(&o->absmax);
    b.scales = gpu_at(&o->scales);
    if (!side_fits(&a) || !side_fits(&b))
        return 0;
    for (uint32_t column = 0; column < o->n; column += b.step) {
        piece.n = o->n - column < b.step ? o->n - column : b.step;
        if (side_prepare(call, &b, column, piece.n, o->compute, &piece.b, &piece.ldb) != 0)
            return -1;
        for (uint32_t row = 0; row < o->m; row += a.step) {
            piece.m = o->m - row < a.step ? o->m - row : a.step;
            if (side_prepare(call, &a, row, piece.m, o->compute, &piece.a, &piece.lda) != 0 ||
                product_library_piece_multiply(call, o, &piece, row, column, done) != 0)
                return -1;
            if (!*done)
                return 0;
        }
    }
    return 0;
}
