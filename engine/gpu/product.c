/* Matrix products: chooses the tile for a shape, and the number of pieces of the sum. */
#include "common/log.h"
#include "engine/gpu/gpu.h"

enum {
    NARROW_MAX = 32,      /* products with up to this many rows or columns use tiles with a side of 16 */
    LARGE_TILES_MIN = 64, /* fewest 128 x 128 tiles for which they are used; with fewer, smaller tiles keep
                             more units busy */
    BLOCKS_AIM = 256,     /* sums are cut into pieces so that a product has about this many blocks */
    PIECE_MIN = 256,      /* fewest terms of a piece of a sum */
    PIECES_MAX = 64
};

/* A kernel for tiles of rows x columns. */
struct tile {
    enum gpu_kernel kernel;
    uint32_t rows, columns;
};

/* Kernels for one stored form of b: for large tiles, usual tiles, few rows and few columns, each in fp32 and
 * for matrix units. Kernels for few columns exist for f32 and 16-bit values only. */
struct tiles {
    enum gpu_kernel large, usual, low, narrow;
    enum gpu_kernel units_large, units_eights, units_usual, units_low, units_narrow;
    enum gpu_kernel grouped, grouped_units;
};
/* clang-format off */
#define TILES(of)                                                                                            \
    .large = KERNEL_gemm_##of##128x128, .usual = KERNEL_gemm_##of##64x64, .low = KERNEL_gemm_##of##16x64,    \
    .units_large = KERNEL_units_##of##128x128, .units_usual = KERNEL_units_##of##64x64,                      \
    .units_low = KERNEL_units_##of##32x128, .grouped = KERNEL_grouped_##of##64x64,                           \
    .grouped_units = KERNEL_grouped_units_##of##64x64
/* clang-format on */
static const struct tiles tiles_plain = {TILES(), .narrow = KERNEL_gemm_64x16,
                                         .units_narrow = KERNEL_units_128x32,
                                         .units_eights = KERNEL_units_eights_128x128};
static const struct tiles tiles_nf4 = {TILES(nf4_), .units_eights = KERNEL_units_nf4_eights_128x128};
static const struct tiles tiles_blocks = {TILES(blocks_), .units_eights = KERNEL_units_blocks_128x128};

static bool product_is_nf4(enum pack_kind pack)
{
    return pack == PACK_NF4 || pack == PACK_NF4_DOUBLE;
}

static const struct tiles *tiles_of(enum pack_kind pack)
{
    return pack <= PACK_F16 ? &tiles_plain : product_is_nf4(pack) ? &tiles_nf4 : &tiles_blocks;
}

static struct tile gemm_tile(const struct gpu *gpu, const struct op_gemm *o)
{
    const struct tiles *tiles = tiles_of(o->pack);
    const uint32_t m = device_pass_size(o->m);
    bool units = gpu_by_units(gpu, o->compute), large, narrow = o->n <= NARROW_MAX && o->n <= m;
    large = m >= 128 && o->n >= 128 && gpu_blocks(m, 128) * gpu_blocks(o->n, 128) >= LARGE_TILES_MIN;
    if (narrow && o->pack <= PACK_F16)
        return units ? (struct tile){tiles->units_narrow, 128, 32} : (struct tile){tiles->narrow, 64, 16};
    if (m <= NARROW_MAX)
        return units ? (struct tile){tiles->units_low, 32, 128} : (struct tile){tiles->low, 16, 64};
    if (large)
        return (struct tile){units ? tiles->units_large : tiles->large, 128, 128};
    return (struct tile){units ? tiles->units_usual : tiles->usual, 64, 64};
}

/* Do both operands come in aligned fours of values? Matrix units' kernels for tiles other than 64 x 64 read
 * nothing else. */
static bool comes_in_fours(const struct product *p)
{
    return p->wide_a && p->wide_b && (p->transpose_a ? p->m : p->k) % 4 == 0 &&
           (p->transpose_b ? p->k : p->n) % 4 == 0;
}

/* Do all values of a matrix come in aligned runs? Its rows have `width` values. */
static bool comes_in_runs(gpu_address at, uint32_t bytes, uint32_t run, uint32_t width, uint32_t ld)
{
    return at % bytes == 0 && width % run == 0 && ld % run == 0;
}

/* Do 16-bit operands come in aligned eights that need no conversion, or NF4's codes in runs of 16? */
static bool comes_in_eights(const struct product *p, enum pack_kind pack)
{
    const uint32_t width = p->transpose_b ? p->k : p->n;
    return p->a_as == p->compute && comes_in_runs(p->a, 16, 8, p->transpose_a ? p->m : p->k, p->lda) &&
           (product_is_nf4(pack) ? comes_in_runs(p->b, 8, 16, width, p->ldb)
            : pack <= PACK_F16   ? p->kind == p->compute && comes_in_runs(p->b, 16, 8, width, p->ldb)
                                 : false);
}

/* Can the kernels read b in this stored form? Packed values are unpacked in fours, so rows must be a multiple
 * of four, and b must be a whole matrix. */
static bool pack_fits(enum pack_kind pack, uint64_t rows, uint32_t width, uint32_t ld)
{
    if (pack <= PACK_F16)
        return true;
    return pack < PACK_KINDS && ld == width && width % 4 == 0 &&
           (product_is_nf4(pack) || rows * width % pack_block(pack) == 0);
}

static bool gemm_fits(const struct gpu *gpu, const struct op *op)
{
    const struct op_gemm *o = &op->gemm;
    (void)gpu;
    bool fp32 = o->c.dtype == DTYPE_F32, pairs = o->c.at % 4 == 0 && o->ldc % 2 == 0;
    return gpu_computes(o->compute) && (fp32 || (pairs && !o->add.buffer)) &&
           pack_fits(o->pack, o->transpose_b ? o->n : o->k, o->transpose_b ? o->k : o->n, o->ldb);
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The terms of a piece of a product's sums. The partial sums of all pieces must fit the scratch memory. */
static uint32_t gemm_piece(const struct op_gemm *o, const struct tile *tile)
{
    const uint64_t m = device_pass_size(o->m), k = device_pass_size(o->k);
    const uint64_t tiles = gpu_blocks(o->n, tile->columns) * gpu_blocks(m, tile->rows);
    uint64_t pieces = min_u64(BLOCKS_AIM / (tiles + 1), k / PIECE_MIN);
    pieces = min_u64(min_u64(pieces, PIECES_MAX), GPU_SCRATCH_BYTES / 4 / (m * o->n));
    return pieces <= 1 ? (uint32_t)k : (uint32_t)gpu_blocks(gpu_blocks(k, (uint32_t)pieces), 16) * 16;
}

/* The value of struct product's `kind` for b. */
static uint32_t product_kind_of(enum pack_kind pack, enum dtype dtype)
{
    if (pack <= PACK_F16)
        return gpu_element(dtype);
    return product_is_nf4(pack) ? pack == PACK_NF4_DOUBLE : gpu_unpack_kind(pack);
}

/* Is a part with so many of the product's rows computed by the whole's kernel, with its sums cut alike? */
static bool part_alike(const struct gpu *gpu, const struct op_gemm *o, uint32_t rows)
{
    struct op_gemm part = *o;
    part.m = rows;
    const struct tile tile = gemm_tile(gpu, o);
    return gemm_tile(gpu, &part).kernel == tile.kernel && gemm_piece(&part, &tile) == gemm_piece(o, &tile);
}

/* How many rows of the product a launch computes: all, or as many as a card with a watchdog allows. The parts
 * of our own kernels give the whole's bits: where they cannot, the product is launched whole. */
static uint32_t product_rows_a_launch(const struct gpu *gpu, const struct op_gemm *o)
{
    const uint64_t wanted = gpu_launches(gpu, (double)o->m * o->n * o->k);
    for (uint64_t parts = min_u64(wanted, gpu_blocks(o->m, 128)); parts > 1; parts--) {
        const uint32_t rows = (uint32_t)gpu_blocks(gpu_blocks(o->m, (uint32_t)parts), 128) * 128;
        const uint32_t rest = o->m % rows;
        if (part_alike(gpu, o, rows) && (rest == 0 || part_alike(gpu, o, rest)))
            return rows;
    }
    return o->m;
}

/* Says once what a job in bf16 loses on a card whose matrix units multiply fp16 alone (sm_75: T4, RTX 20). */
static void bf16_tell(struct gpu *gpu, enum dtype compute)
{
    if (compute != DTYPE_BF16 || gpu->matrix != GPU_MATRIX_F16 || gpu->bf16_told)
        return;
    gpu->bf16_told = true;
    log_event(LOG_LEVEL_INFO, "bf16_without_units",
              "arch=%s note=\"this card's matrix units multiply fp16 alone, so bf16 is several times slower: "
              "train.compute: fp16\"",
              gpu->info.arch);
}

static int gpu_gemm_part(struct gpu_call *call, const struct op_gemm *o)
{
    bool done = false;
    bf16_tell(call->gpu, o->compute);
    if (gpu_library_gemm(call, o, &done) != 0)
        return -1;
    if (done)
        return 0;
    struct tile tile = gemm_tile(call->gpu, o);
    const uint32_t k_piece = gemm_piece(o, &tile),
                   pieces = o->k == 0 ? 1 : (uint32_t)gpu_blocks(o->k, k_piece);
    struct product product = {.a = gpu_at(&o->a),
                              .b = gpu_at(&o->b),
                              .c = gpu_at(&o->c),
                              .add = o->add.buffer ? gpu_at(&o->add) : 0,
                              .partial = pieces == 1 ? 0 : gpu_scratch(call),
                              .m = o->m,
                              .n = o->n,
                              .k = o->k,
                              .k_piece = k_piece,
                              .lda = o->lda,
                              .ldb = o->ldb,
                              .ldc = o->ldc,
                              .transpose_a = o->transpose_a,
                              .transpose_b = o->transpose_b,
                              .wide_a = gpu_fours(gpu_at(&o->a), dtype_bytes(o->a.dtype), o->lda),
                              .wide_b = gpu_fours(gpu_at(&o->b), dtype_bytes(o->b.dtype), o->ldb),
                              .alpha = o->alpha,
                              .beta = o->beta,
                              .absmax = gpu_at(&o->absmax),
                              .scales = gpu_at(&o->scales),
                              .a_as = gpu_element(o->a.dtype),
                              .kind = product_kind_of(o->pack, o->b.dtype),
                              .compute = gpu_element(o->compute),
                              .c_as = gpu_element(o->c.dtype)};
    /* The tile changes, but the sum stays cut into the pieces that the shape alone gave. */
    if (gpu_by_units(call->gpu, o->compute) && !comes_in_fours(&product))
        tile = (struct tile){tiles_of(o->pack)->units_usual, 64, 64};
    else if (tile.kernel == tiles_of(o->pack)->units_large && comes_in_eights(&product, o->pack))
        tile.kernel = tiles_of(o->pack)->units_eights;
    if (gpu_launch(call, tile.kernel, gpu_blocks(o->n, tile.columns), gpu_blocks(o->m, tile.rows), pieces,
                   &product, sizeof(product)) != 0)
        return -1;
    if (pieces == 1)
        return 0;
    struct gemm_sum_args sum = {.partial = product.partial,
                                .c = product.c,
                                .add = product.add,
                                .count = (uint64_t)o->m * o->n,
                                .n = o->n,
                                .ldc = o->ldc,
                                .pieces = pieces,
                                .c_as = product.c_as,
                                .alpha = o->alpha,
                                .beta = o->beta};
    return gpu_launch(call, KERNEL_gemm_sum, gpu_blocks(sum.count, 256), 1, 1, &sum, sizeof(sum));
}

static int gemm_run(struct gpu_call *call, const struct op *op)
{
    struct op_gemm part = op->gemm;
    const struct op_gemm *o = &op->gemm;
    const uint32_t rows = o->n == 0 ? 0 : product_rows_a_launch(call->gpu, o);
    for (uint32_t row = 0; row < o->m && rows > 0; row += part.m) {
        part.m = o->m - row < rows ? o->m - row : rows;
        part.a.at = o->a.at + dtype_bytes(o->a.dtype) * (o->transpose_a ? row : (uint64_t)row * o->lda);
        part.c.at = o->c.at + dtype_bytes(o->c.dtype) * (uint64_t)row * o->ldc;
        part.add.at = o->add.at + 4ull * row * o->ldc;
        if (gpu_gemm_part(call, &part) != 0)
            return -1;
    }
    return 0;
}

/* The list of tiles must fit the scratch memory, and matrices `stride` bytes apart must be aligned. */
static bool grouped_fits(const struct gpu *gpu, const struct op *op)
{
    const struct op_gemm_grouped *o = &op->gemm_grouped;
    (void)gpu;
    if (!gpu_computes(o->compute) || (o->pack != PACK_F32 && (o->transpose_a || o->stride % 4 != 0)))
        return false;
    return !(o->transpose_a && o->transpose_b) && (o->beta == 0.0f || o->beta == 1.0f) &&
           (uint64_t)o->first + o->groups <= o->groups_all &&
           (o->transpose_a ? o->groups <= 65535 : o->rows / 64 + (uint64_t)o->groups <= 65535) &&
           pack_fits(o->pack, o->transpose_b ? o->n : o->k, o->transpose_b ? o->k : o->n, o->ldb);
}

static struct grouped_product grouped_of(const struct gpu_call *call, const struct op_gemm_grouped *o)
{
    uint32_t bytes = dtype_bytes(o->b.dtype);
    uint64_t stride = o->pack == PACK_F32 ? 4 * o->stride : o->stride;
    return (struct grouped_product){
        .product = {.a = gpu_at(&o->a),
                    .b = gpu_at(&o->b),
                    .c = gpu_at(&o->c),
                    .m = o->m,
                    .n = o->n,
                    .k = o->k,
                    .k_piece = o->k,
                    .lda = o->lda,
                    .ldb = o->ldb,
                    .ldc = o->ldc,
                    .transpose_a = o->transpose_a,
                    .transpose_b = o->transpose_b,
                    .wide_a = gpu_fours(gpu_at(&o->a), dtype_bytes(o->a.dtype), o->lda),
                    .wide_b = gpu_fours(gpu_at(&o->b), bytes, o->ldb) &&
                              (o->transpose_a || stride % (4 * bytes) == 0),
                    .alpha = o->alpha,
                    .beta = o->beta,
                    .absmax = gpu_at(&o->absmax),
                    .scales = gpu_at(&o->scales),
                    .a_as = gpu_element(o->a.dtype),
                    .kind = product_kind_of(o->pack, o->b.dtype),
                    .compute = gpu_element(o->compute)},
        .offsets = gpu_at(&o->offsets),
        .tiles = gpu_scratch(call),
        .stride = stride,
        .first = o->first,
        .groups = o->groups,
        .rows = o->rows,
        .tile_count = o->rows / 64 + o->groups};
}

static struct tile outer_tile(uint32_t m, uint32_t n, bool units)
{
    if (units)
        return (struct tile){KERNEL_outer_units_64x64, 64, 64};
    if (n <= NARROW_MAX && n <= m)
        return (struct tile){KERNEL_outer_64x16, 64, 16};
    if (m <= NARROW_MAX)
        return (struct tile){KERNEL_outer_16x64, 16, 64};
    return (struct tile){KERNEL_outer_64x64, 64, 64};
}

static struct tile grouped_tile(const struct op_gemm_grouped *o, bool units)
{
    const struct tiles *tiles = tiles_of(o->pack);
    if (units)
        return (struct tile){tiles->grouped_units, 64, 64};
    if (o->n <= NARROW_MAX && o->pack <= PACK_F16)
        return (struct tile){KERNEL_grouped_64x16, 64, 16};
    return (struct tile){tiles->grouped, 64, 64};
}

static int grouped_run(struct gpu_call *call, const struct op *op)
{
    const struct op_gemm_grouped *o = &op->gemm_grouped;
    struct grouped_product args = grouped_of(call, o);
    bool units = gpu_by_units(call->gpu, o->compute);
    if (o->groups == 0)
        return 0;
    if (o->transpose_a) {
        struct tile tile = outer_tile(o->m, o->n, units);
        return gpu_launch(call, tile.kernel, gpu_blocks(o->n, tile.columns), gpu_blocks(o->m, tile.rows),
                          o->groups, &args, sizeof(args));
    }
    struct tile tile = grouped_tile(o, units);
    if (gpu_launch(call, KERNEL_grouped_list, 1, 1, 1, &args, sizeof(args)) != 0)
        return -1;
    return gpu_launch(call, tile.kernel, gpu_blocks(o->n, tile.columns), args.tile_count, 1, &args,
                      sizeof(args));
}

const struct gpu_op gpu_product_ops[] = {{.kind = OP_GEMM, .fits = gemm_fits, .run = gemm_run},
                                         {.kind = OP_GEMM_GROUPED, .fits = grouped_fits, .run = grouped_run},
                                         {.run = NULL}};
