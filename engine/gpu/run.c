/* Finds the function that runs an op on GPUs, and queues its kernels. */
#include "engine/gpu/gpu.h"

static const struct gpu_op *const families[] = {
    gpu_flat_ops,   gpu_rows_ops,    gpu_tables_ops,  gpu_random_ops,    gpu_loss_ops, gpu_optimizer_ops,
    gpu_unpack_ops, gpu_product_ops, gpu_experts_ops, gpu_attention_ops, gpu_delta_ops};

static const struct gpu_op *op_find(enum op_kind kind)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(*families); i++)
        for (const struct gpu_op *op = families[i]; op->run != NULL; op++)
            if (op->kind == kind)
                return op;
    return NULL;
}

bool gpu_runs(const struct gpu *gpu, const struct op *op)
{
    struct operand_use uses[OP_OPERANDS_MAX];
    const struct gpu_op *found = op_find(op->kind);
    if (!found)
        return false;
    uint32_t count = op_operands(op, uses);
    for (uint32_t i = 0; i < count; i++)
        if ((uses[i].dtypes & 1u << uses[i].operand.dtype) == 0)
            return false;
    return !found->fits || found->fits(gpu, op);
}

int gpu_run(struct gpu_call *call, const struct op *op)
{
    return op_find(op->kind)->run(call, op);
}

int gpu_launch(struct gpu_call *call, enum gpu_kernel kernel, uint64_t x, uint64_t y, uint64_t z,
               const void *args, uint32_t args_bytes)
{
#define THREADS(name, threads) threads,
    static const uint16_t threads[GPU_KERNEL_COUNT] = {GPU_KERNEL_LIST(THREADS)};
    if (x == 0 || y == 0 || z == 0)
        return 0;
    if (x > INT32_MAX || y > 65535 || z > 65535)
        return err_set(
            call->err, ERR_TOO_BIG,
            "device %s: a kernel over %llu x %llu x %llu blocks, at most 2147483647 x 65535 x 65535",
            call->gpu->base.name, (unsigned long long)x, (unsigned long long)y, (unsigned long long)z);
    if (call->queue == DEVICE_COMPUTE && call->gpu->recording == 0)
        call->gpu->counts.launches++;
    struct gpu_dims blocks = {(uint32_t)x, (uint32_t)y, (uint32_t)z};
    if (gpu_trace_mark(call, false) != 0 ||
        call->gpu->driver->launch(call->gpu->queues[call->queue], call->gpu->functions[kernel], blocks,
                                  threads[kernel], 0, args, args_bytes, call->err) != 0)
        return -1;
    return gpu_trace_mark(call, true);
}

int gpu_zero(struct gpu_call *call, gpu_address at, uint64_t bytes)
{
    if (bytes == 0)
        return 0;
    if (gpu_trace_mark(call, false) != 0 ||
        call->gpu->driver->fill(call->gpu->queues[call->queue], at, 0, bytes, call->err) != 0)
        return -1;
    return gpu_trace_mark(call, true);
}
