/* Kernels on flat arrays and plain rows: one thread a value. */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_FLAT_K_H
#define MOTLEY_ENGINE_GPU_KERNELS_FLAT_K_H

#define FLAT_KERNELS(X) X(add_rows, 256) X(copy_rows, 256)

/* y[rows,width] += alpha * x */
struct add_rows_args {
    uint64_t x, y, count; /* rows * width */
    uint32_t width, ldx, ldy;
    float alpha;
};

/* y[rows,width] = x */
struct copy_rows_args {
    uint64_t x, y, count;
    uint32_t width, ldx, ldy;
};

#ifdef GPU_KERNELS

KERNEL(add_rows, 256)
{
    uint64_t i = (uint64_t)block_x() * 256 + thread();
    if (i >= args.count)
        return;
    uint64_t row = i / args.width, column = i % args.width;
    const float *x = POINTER(const float, args.x);
    float *y = POINTER(float, args.y);
    uint64_t at = row * args.ldy + column;
    STORE(y, at, math_fma(args.alpha, LOAD(x, row * args.ldx + column), LOAD(y, at)));
}

KERNEL(copy_rows, 256)
{
    uint64_t i = (uint64_t)block_x() * 256 + thread();
    if (i >= args.count)
        return;
    uint64_t row = i / args.width, column = i % args.width;
    const float *x = POINTER(const float, args.x);
    float *y = POINTER(float, args.y);
    STORE(y, row * args.ldy + column, LOAD(x, row * args.ldx + column));
}

#endif
#endif
