/* Checks an op's operands and passes it to the device's backend. */
#include "engine/device/backend_private.h"

static int use_check(const struct device *device, const struct op *op, const struct operand_use *u,
                     struct err *err)
{
    const struct operand *operand = &u->operand;
    if (u->rows == 0 || u->width == 0)
        return 0;
    if (!operand->buffer)
        return err_set(err, ERR_INVALID, "op %s: operand %s is absent", op_name(op->kind), u->name);
    if (operand->buffer->device != device)
        return err_set(err, ERR_INVALID, "op %s: operand %s belongs to device %s, not %s", op_name(op->kind),
                       u->name, operand->buffer->device->name, device->name);
    uint32_t size = dtype_bytes(operand->dtype);
    uint64_t last;
    if (u->ld < u->width || operand->at % size != 0 || __builtin_mul_overflow(u->rows - 1, u->ld, &last) ||
        __builtin_add_overflow(last, u->width, &last) || __builtin_mul_overflow(last, size, &last) ||
        operand->at > operand->buffer->bytes || last > operand->buffer->bytes - operand->at)
        return err_set(
            err, ERR_INVALID,
            "op %s: operand %s [%llu, %llu] with row distance %llu at byte %llu leaves its buffer of %llu",
            op_name(op->kind), u->name, (unsigned long long)u->rows, (unsigned long long)u->width,
            (unsigned long long)u->ld, (unsigned long long)operand->at,
            (unsigned long long)operand->buffer->bytes);
    return 0;
}

bool op_supports(const struct device *device, const struct op *op)
{
    struct op full = *op;
    op_complete(&full);
    return (unsigned)op->kind < OP_KINDS && device->backend->op->supports(device, &full);
}

int op_submit(struct device *device, const struct op *op, struct err *err)
{
    return op_submit_on(DEVICE_COMPUTE, device, op, err);
}

int op_submit_on(enum device_queue queue, struct device *device, const struct op *op, struct err *err)
{
    struct operand_use uses[OP_OPERANDS_MAX];
    struct op full = *op;
    op_complete(&full);
    uint32_t count = op_operands(&full, uses);
    for (uint32_t i = 0; i < count; i++)
        if (use_check(device, &full, &uses[i], err) != 0)
            return -1;
    if (!op_supports(device, &full))
        return err_set(err, ERR_UNSUPPORTED, "device %s does not support op %s with these types or sizes",
                       device->name, op_name(op->kind));
    if (queue != DEVICE_COMPUTE && op->kind != OP_ADD && op->kind != OP_CAST && op->kind != OP_COPY)
        return err_set(err, ERR_UNSUPPORTED, "device %s runs op %s on its compute queue alone", device->name,
                       op_name(op->kind));
    return device->backend->op->submit(queue, device, &full, err);
}
