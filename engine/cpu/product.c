/* Matrix products: chooses between our kernels and the matrix library, and cuts a product into parts. */
#include "engine/cpu/product.h"

#include "engine/cpu/values.h"

enum {
    GEMM_COLUMNS_MAX =
        4096, /* columns of one call; limits what the library packs, so that it stays in cache */
    LIBRARY_SIDE_MIN = 256, /* fewest rows and columns of a piece for the library, if the product has more */
    LIBRARY_PIECES =
        32, /* columns, then rows, are cut until there are this many pieces: enough work for 16 threads */
    THIN_ROWS_MAX = 192,     /* our kernels compute products with at most this many rows */
    THIN_COLUMNS_MAX = 64,   /* our kernels compute products with at most this many columns, too */
    OWN_SHARED_MIN = 1 << 16 /* fewest multiplications that are worth sharing among threads */
};

/* Number of parts along rows and along columns. */
struct grid {
    uint32_t rows, columns;
};

struct product_job {
    const struct cpu_runner *runner;
    const struct op_gemm *op;
    uint32_t parts;
    struct grid grid; /* how a product of our kernels is cut into parts */
};

/* Are operands rounded to 16 bits first? With k = 0 there is nothing to round. */
static bool product_is_rounded(const struct op_gemm *op)
{
    return op->compute != DTYPE_F32 && op->k > 0;
}

/* Do our kernels compute this product? With few rows or columns they are better because they pack little; the
 * library is made for large products. The op's shape decides, never a part's shape, because the two round
 * differently. */
static bool product_is_own(const struct op_gemm *op)
{
    bool scaled = op->alpha == 1.0f || op->beta == 0.0f, twice = op->transpose_a && op->transpose_b;
    bool thin = op->m <= THIN_ROWS_MAX || op->n <= THIN_COLUMNS_MAX;
    return product_is_rounded(op) || (!twice && thin && scaled && (op->beta == 0.0f || op->beta == 1.0f));
}

static const void *value_at(const struct operand *operand, size_t at)
{
    return (const uint8_t *)operand_at(operand) + at * dtype_bytes(operand->dtype);
}

static void rounded_piece(const struct product_job *product, uint32_t thread, uint32_t row, uint32_t rows,
                          uint32_t column, uint32_t columns)
{
    const struct cpu_runner *runner = product->runner;
    const struct op_gemm *op = product->op;
    size_t a = op->transpose_a ? row : (size_t)row * op->lda;
    size_t b = op->transpose_b ? (size_t)column * op->ldb : column;
    struct gemm_rounded rounded = {.as = value_kind_of(op->compute),
                                   .m = rows,
                                   .n = columns,
                                   .k = op->k,
                                   .ldc = op->ldc,
                                   .alpha = op->alpha,
                                   .beta = op->beta,
                                   .a = {.at = value_at(&op->a, a),
                                         .ld = op->lda,
                                         .kind = value_kind_of(op->a.dtype),
                                         .transposed = op->transpose_a},
                                   .b = {.at = value_at(&op->b, b),
                                         .ld = op->ldb,
                                         .kind = value_kind_of(op->b.dtype),
                                         .transposed = op->transpose_b},
                                   .c = (float *)operand_at(&op->c) + (size_t)row * op->ldc + column};
    float *scratch = runner->scratch + thread * runner->scratch_floats;
    runner->kernels->gemm_rounded(&rounded, scratch);
}

/* Computes c at [row, row + rows) x [column, column + columns). */
static void product_piece(const struct product_job *product, uint32_t thread, uint32_t row, uint32_t rows,
                          uint32_t column, uint32_t columns)
{
    const struct cpu_runner *runner = product->runner;
    const struct op_gemm *op = product->op;
    const float *a = operand_at(&op->a), *b = operand_at(&op->b);
    float *c = operand_at(&op->c);
    a += op->transpose_a ? row : (size_t)row * op->lda;
    for (uint32_t done = 0; done < columns; done += GEMM_COLUMNS_MAX) {
        uint32_t at = column + done;
        const struct gemm_f32 g = {
            .transpose_a = op->transpose_a,
            .transpose_b = op->transpose_b,
            .m = rows,
            .n = columns - done < GEMM_COLUMNS_MAX ? columns - done : GEMM_COLUMNS_MAX,
            .k = op->k,
            .alpha = op->alpha,
            .beta = op->beta,
            .a = a,
            .lda = op->lda,
            .b = b + (op->transpose_b ? (size_t)at * op->ldb : at),
            .ldb = op->ldb,
            .c = c + (size_t)row * op->ldc + at,
            .ldc = op->ldc,
        };
        if (!product_is_own(op))
            runner->blas.gemm(&g);
        else
            runner->kernels->gemm(&g, runner->scratch + thread * runner->scratch_floats);
    }
}

/* Part `index` of `parts` of a range of `total`, cut at multiples of `unit`. The rest belongs to the last
 * unit, so that no part is smaller than a unit unless the whole range is. */
static void even_range(uint32_t total, uint32_t unit, uint32_t parts, uint32_t index, uint32_t *begin,
                       uint32_t *end)
{
    uint32_t units = total / unit ? total / unit : 1;
    uint32_t last = (uint32_t)((uint64_t)units * (index + 1) / parts);
    *begin = (uint32_t)((uint64_t)units * index / parts) * unit;
    *end = last == units ? total : last * unit;
}

static uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

/* Units in which our kernels' products are cut: whole strips of 4 and 6 rows, whole panels of 64 columns. */
enum { OWN_ROWS = 48, OWN_COLUMNS = 64 };

/* Our kernels give a row the same numbers in a part of any size, so threads divide the longer side evenly. If
 * it has too few units, or they divide unevenly, both sides are cut. Of grids that finish equally early, the
 * one with fewer cuts across is better, because each part copies the panels that it uses. */
static struct grid own_grid(const struct op_gemm *op, uint32_t threads)
{
    uint32_t rows = op->m < OWN_ROWS ? 1 : op->m / OWN_ROWS;
    uint32_t columns = op->n < OWN_COLUMNS ? 1 : op->n / OWN_COLUMNS;
    bool tall = op->m >= op->n;
    uint32_t along = tall ? rows : columns, across = tall ? columns : rows;
    uint32_t best_along = along < threads ? along : threads, best_across = 1;
    uint64_t best = ceil_div(along, best_along) * (uint64_t)across;
    for (uint32_t a = 2; along < 4 * threads && a <= across && a <= threads; a++) {
        uint32_t each = ceil_div(threads, a), parts = along < each ? along : each;
        uint64_t time = (uint64_t)ceil_div(parts * a, threads) * ceil_div(along, parts) * ceil_div(across, a);
        if (10 * time <= 8 * best) { /* cutting across must save a fifth, to pay for the copies */
            best = time;
            best_along = parts;
            best_across = a;
        }
    }
    return tall ? (struct grid){best_along, best_across} : (struct grid){best_across, best_along};
}

static void own_part(const struct product_job *product, uint32_t index, uint32_t thread)
{
    const struct op_gemm *op = product->op;
    uint32_t row, row_end, column, column_end;
    even_range(op->m, OWN_ROWS, product->grid.rows, index % product->grid.rows, &row, &row_end);
    even_range(op->n, OWN_COLUMNS, product->grid.columns, index / product->grid.rows, &column, &column_end);
    if (row_end == row || column_end == column)
        return;
    if (product_is_rounded(op))
        rounded_piece(product, thread, row, row_end - row, column, column_end - column);
    else
        product_piece(product, thread, row, row_end - row, column, column_end - column);
}

/* The number of pieces into which a side of `side` rows (or columns) is cut: the largest power of two that is
 * at most `most` and leaves each piece at least LIBRARY_SIDE_MIN. */
static uint32_t side_pieces(uint32_t side, uint32_t most)
{
    uint32_t pieces = 1;
    while (2 * pieces <= most && side / (2 * pieces) >= LIBRARY_SIDE_MIN)
        pieces *= 2;
    return pieces;
}

static uint32_t library_column_pieces(const struct op_gemm *op)
{
    return side_pieces(op->n, UINT32_MAX / 2);
}

static uint32_t library_row_pieces(const struct op_gemm *op)
{
    uint32_t columns = library_column_pieces(op);
    return side_pieces(op->m, columns < LIBRARY_PIECES ? LIBRARY_PIECES / columns : 1);
}

/* The library's result for an element can depend on the size of its piece, so pieces follow from the shape
 * alone, however many threads share them. */
static void library_part(const struct product_job *product, uint32_t index, uint32_t thread)
{
    const struct op_gemm *op = product->op;
    uint32_t rows = library_row_pieces(op), row, row_end, column, column_end;
    even_range(op->m, 48, rows, index % rows, &row, &row_end);
    even_range(op->n, 16, library_column_pieces(op), index / rows, &column, &column_end);
    product_piece(product, thread, row, row_end - row, column, column_end - column);
}

uint32_t product_parts(const struct cpu_runner *runner, const struct op_gemm *op)
{
    if (op->m == 0 || op->n == 0)
        return 0;
    if (!product_is_own(op))
        return library_row_pieces(op) * library_column_pieces(op);
    if ((uint64_t)op->m * op->n * op->k < OWN_SHARED_MIN)
        return 1;
    struct grid grid = own_grid(op, pool_threads(runner->pool));
    return grid.rows * grid.columns;
}

void product_part(const struct cpu_runner *runner, const struct op_gemm *op, uint32_t index, uint32_t parts,
                  uint32_t thread)
{
    struct product_job product = {.runner = runner, .op = op, .parts = parts, .grid = {1, 1}};
    if (parts > 1 && product_is_own(op))
        product.grid = own_grid(op, pool_threads(runner->pool));
    if (product_is_own(op))
        own_part(&product, index, thread);
    else
        library_part(&product, index, thread);
}

static void product_gemm_part(void *context, uint32_t index, uint32_t thread)
{
    const struct product_job *product = context;
    product_part(product->runner, product->op, index, product->parts, thread);
}

void cpu_gemm(struct cpu_runner *runner, const struct op *op)
{
    struct product_job product = {.runner = runner, .op = &op->gemm};
    product.parts = product_parts(runner, &op->gemm);
    pool_run(runner->pool, product.parts, product_gemm_part, &product);
}
