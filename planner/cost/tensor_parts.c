#include "planner/cost/tensor_parts.h"

#include <stdlib.h>

#include "planner/cost/problem.h"

const char *tensor_lacks(const struct problem *p)
{
    const struct workload *w = p->workload;
    const struct model_config *c = w->config;
    return c->experts > 0             ? "experts are not cut into matrices"
           : model_shared_alone(c)    ? "gate and up of this model are one matrix"
           : c->delta_value_heads > 0 ? "the heads of gated delta nets are not cut"
           : c->kv_latent > 0         ? "latent attention is not cut"
           : c->conv_taps > 0         ? "short convolutions are not cut"
           : c->kv_heads < 2          ? "matrices are cut between key heads, and the model has one"
           : c->parallel              ? "attention and FFN of this model read the same input"
           : c->qkv_by_head           ? "q, k and v of this model are one matrix"
           : c->packed_qkv            ? "q, k and v of this model are one matrix, and so are gate and up"
           : c->packed_gate_up        ? "gate and up of this model are one matrix"
           : c->post_norms            ? "attention's and the FFN's outputs are normed before they are added"
           : c->qk_norm == 2          ? "a norm goes over all heads together"
           : w->moments8              ? "8-bit moments are kept in blocks of values, which cuts would divide"
           : w->boundary != PLAN_F32 && w->compute == COMPUTE_FP32
               ? "boundary tensors are sums in fp32, and placement.boundary asks for 16 bits"
           : p->column_unit == 0 && p->part_least ? "cuts between key heads would divide blocks of values "
                                                    "that the base is packed in, or dropout is drawn for"
                                                  : NULL;
}

int tensor_part_make(const struct problem *p, uint32_t heads, uint32_t columns, struct footprint_model **out,
                     struct err *err)
{
    struct layer_method method = p->footprint.method;
    if (!*out && !(*out = malloc(sizeof(**out))))
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    method.part = (struct layer_part){.kv_head_end = heads, .column_end = columns};
    return footprint_model_init(p->workload->config, &method, *out, err);
}

static bool cuts_fit(const struct footprint_model *model)
{
    for (uint32_t kind = 0; kind < model->kind_count; kind++) {
        const struct layer_tensors *tensors = &model->kinds[kind].tensors;
        for (uint32_t i = 0; i < tensors->count; i++)
            if (!layer_tensor_whole(&tensors->list[i]) &&
                !layer_tensor_cut_fits(&tensors->list[i], model->method.dropout))
                return false;
    }
    return true;
}

/* Sums the bytes of gradients of parameters that all members of a tensor group hold as equal copies: norms,
 * the narrow side of adapters, biases of outputs. The sum does not depend on how layers are cut. */
static void tensor_parts_shared_sum(struct problem *p)
{
    for (int32_t b = 0; b < p->block_count; b++) {
        uint64_t bytes = p->params[b].shared_bytes;
        bool layer = b > 0 && b < p->block_count - 1;
        const struct layer_tensors *tensors =
            layer ? &footprint_layer(p->part_least, (uint32_t)b - 1)->tensors : NULL;
        for (uint32_t i = 0; layer && i < tensors->count; i++) {
            const struct layer_tensor *x = &tensors->list[i];
            if (x->trained && layer_tensor_alike(&p->part_least->method.part, x))
                bytes += 4ull * x->rows * x->columns * x->copies;
        }
        p->params[b + 1].shared_bytes = bytes;
    }
}

int tensor_parts_init(struct problem *p, struct err *err)
{
    /* units: possible numbers of values in a block of a packed base */
    static const uint32_t units[] = {1, 8, 16, 32, 64, 256};
    const struct model_config *c = p->workload->config;
    if (tensor_lacks(p) || (p->workload->place >= 0 && p->workload->place != PLACE_TENSOR))
        return 0;
    for (size_t i = 0; i < sizeof(units) / sizeof(*units) && p->column_unit == 0; i++) {
        if (c->ffn % units[i] != 0 || units[i] >= c->ffn)
            continue;
        if (tensor_part_make(p, 1, units[i], &p->part_least, err) < 0)
            return -1;
        p->column_unit = cuts_fit(p->part_least) ? units[i] : 0;
    }
    if (p->part_least)
        tensor_parts_shared_sum(p);
    if (p->column_unit == 0)
        return 0;
    if (tensor_part_make(p, c->kv_heads, p->column_unit, &p->part_heads, err) < 0)
        return -1;
    return tensor_part_make(p, 1, c->ffn, &p->part_columns, err);
}
