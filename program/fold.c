/* Folds a list of nodes, at first one per instruction. Each pass replaces runs of nodes that are equal except
 * for their advance by a repeat node. Two passes find micro-batches inside blocks (and the reverse).
 *
 * The choice is greedy from the left, longest saving first: the result is exact but not minimal, and the time
 * is linear in practice.
 */
#include "program/fold.h"

#include <stdlib.h>

#include "program/plan_doc.h"
#include <string.h>

struct fold_node {
    uint32_t count; /* repetitions of the body; 0: the node is a leaf, one instruction */
    int32_t micro_advance, block_advance;
    uint32_t first, length; /* of a leaf, first is the instruction; of a repeat, the range of its body in
                               `pool` */
};

struct fold {
    const struct program *program;
    struct fold_node *pool; /* nodes of the bodies of repeats */
    uint32_t pool_count, pool_capacity;
};

static bool leaf_advanced(const struct fold *fold, uint32_t a, uint32_t b, int32_t micro, int32_t block)
{
    const struct instr *x = &fold->program->instrs[a], *y = &fold->program->instrs[b];
    if (x->op != y->op || x->queue != y->queue || x->flags != y->flags || x->tag != y->tag ||
        x->peer != y->peer || x->group != y->group || x->slot_in != y->slot_in ||
        x->slot_out != y->slot_out || x->slot_save != y->slot_save || x->row_begin != y->row_begin ||
        x->row_end != y->row_end || x->after_count != y->after_count)
        return false;
    if (y->micro_batch != (x->micro_batch < 0 ? x->micro_batch : x->micro_batch + micro))
        return false;
    bool blocks = x->block_end > x->block_begin;
    if (y->block_begin != x->block_begin + (blocks ? block : 0) ||
        y->block_end != x->block_end + (blocks ? block : 0))
        return false;
    const uint32_t *after = fold->program->after;
    for (uint32_t k = 0; k < x->after_count; k++)
        if (a - after[x->after_first + k] != b - after[y->after_first + k])
            return false;
    return true;
}

static bool node_advanced(const struct fold *fold, const struct fold_node *a, const struct fold_node *b,
                          int32_t micro, int32_t block)
{
    if (a->count != b->count)
        return false;
    if (a->count == 0)
        return leaf_advanced(fold, a->first, b->first, micro, block);
    if (a->length != b->length || a->micro_advance != b->micro_advance ||
        a->block_advance != b->block_advance)
        return false;
    for (uint32_t i = 0; i < a->length; i++)
        if (!node_advanced(fold, &fold->pool[a->first + i], &fold->pool[b->first + i], micro, block))
            return false;
    return true;
}

static uint32_t node_leaf(const struct fold *fold, const struct fold_node *node)
{
    while (node->count)
        node = &fold->pool[node->first];
    return node->first;
}

/* Finds by how much micro-batch and blocks advance per iteration, from the body's first instructions that
 * have a micro-batch or blocks. */
static void turn_advance(const struct fold *fold, const struct fold_node *nodes, uint32_t length,
                         int32_t *micro, int32_t *block)
{
    bool have_micro = false, have_block = false;
    *micro = *block = 0;
    for (uint32_t i = 0; i < length && !(have_micro && have_block); i++) {
        const struct instr *x = &fold->program->instrs[node_leaf(fold, &nodes[i])];
        const struct instr *y = &fold->program->instrs[node_leaf(fold, &nodes[i + length])];
        if (!have_micro && x->micro_batch >= 0 && y->micro_batch >= 0) {
            *micro = y->micro_batch - x->micro_batch;
            have_micro = true;
        }
        if (!have_block && x->block_end > x->block_begin) {
            *block = y->block_begin - x->block_begin;
            have_block = true;
        }
    }
}

static uint32_t turns_from(const struct fold *fold, const struct fold_node *nodes, uint32_t left,
                           uint32_t length, int32_t *micro, int32_t *block)
{
    const struct fold_node *other = &nodes[length];
    if (nodes[0].count != other->count ||
        fold->program->instrs[node_leaf(fold, nodes)].op != fold->program->instrs[node_leaf(fold, other)].op)
        return 1;
    turn_advance(fold, nodes, length, micro, block);
    uint32_t turns = 1;
    while ((uint64_t)(turns + 1) * length <= left) {
        const struct fold_node *a = &nodes[(size_t)(turns - 1) * length], *b = a + length;
        for (uint32_t i = 0; i < length; i++)
            if (!node_advanced(fold, &a[i], &b[i], *micro, *block))
                return turns;
        turns++;
    }
    return turns;
}

static int pool_add(struct fold *fold, const struct fold_node *nodes, uint32_t length, uint32_t *first)
{
    if (fold->pool_count + length > fold->pool_capacity) {
        uint32_t capacity = (fold->pool_count + length) * 2;
        struct fold_node *grown = realloc(fold->pool, (size_t)capacity * sizeof(*grown));
        if (!grown)
            return -1;
        fold->pool = grown;
        fold->pool_capacity = capacity;
    }
    memcpy(&fold->pool[fold->pool_count], nodes, (size_t)length * sizeof(*nodes));
    *first = fold->pool_count;
    fold->pool_count += length;
    return 0;
}

/* Replaces runs of equal nodes by repeat nodes once, in place; returns the new number of nodes, or UINT32_MAX
 * if out of memory. */
static uint32_t fold_pass(struct fold *fold, struct fold_node *nodes, uint32_t count)
{
    uint32_t out = 0;
    for (uint32_t i = 0; i < count;) {
        struct fold_node best = {0};
        uint64_t best_saving = 1;
        for (uint32_t length = 1; length <= FOLD_BODY_MAX && 2 * length <= count - i; length++) {
            int32_t micro, block;
            uint32_t turns = turns_from(fold, &nodes[i], count - i, length, &micro, &block);
            uint64_t saving = (uint64_t)(turns - 1) * length;
            if (turns > 1 && saving > best_saving) {
                best_saving = saving;
                best = (struct fold_node){
                    .count = turns, .length = length, .micro_advance = micro, .block_advance = block};
            }
            if ((uint64_t)turns * length == count - i)
                break;
        }
        if (best.count == 0) {
            nodes[out++] = nodes[i++];
            continue;
        }
        if (pool_add(fold, &nodes[i], best.length, &best.first) < 0)
            return UINT32_MAX;
        i += best.count * best.length;
        nodes[out++] = best;
    }
    return out;
}

/* Returns a number, or NULL for 0: it is not written. */
static json_t *advance_json(int32_t advance)
{
    return advance ? json_integer(advance) : NULL;
}

static json_t *leaf_json(const struct program *program, uint32_t number, struct err *err)
{
    const struct instr *x = &program->instrs[number];
    json_t *object = doc_write(&plan_instr_doc, x, err), *after = x->after_count ? json_array() : NULL;
    int bad = !object || (x->after_count && json_object_set_new(object, "after", after) < 0);
    for (uint32_t k = 0; k < x->after_count && !bad; k++)
        bad |= json_array_append_new(after, json_integer(number - program->after[x->after_first + k]));
    if (!bad)
        return object;
    json_decref(object);
    return NULL;
}

static json_t *nodes_json(const struct fold *fold, const struct fold_node *nodes, uint32_t count)
{
    struct err ignored; /* only memory can be short */
    json_t *array = json_array();
    for (uint32_t i = 0; array && i < count; i++) {
        const struct fold_node *node = &nodes[i];
        json_t *item;
        if (node->count == 0) {
            item = leaf_json(fold->program, node->first, &ignored);
        } else {
            json_t *body = nodes_json(fold, &fold->pool[node->first], node->length);
            item = json_pack("{s:I,s:o,s:o*,s:o*}", "repeat", (json_int_t)node->count, "body", body, "mb",
                             advance_json(node->micro_advance), "blocks", advance_json(node->block_advance));
        }
        if (!item || json_array_append_new(array, item) < 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

json_t *program_fold(const struct program *program, struct err *err)
{
    struct fold fold = {.program = program};
    json_t *array = NULL;
    uint32_t count = program->instr_count;
    struct fold_node *nodes = calloc((size_t)count + 1, sizeof(*nodes));
    if (!nodes)
        goto out;
    for (uint32_t i = 0; i < count; i++)
        nodes[i].first = i;
    for (int pass = 0; pass < FOLD_DEPTH_MAX - 1; pass++) {
        uint32_t before = count;
        count = fold_pass(&fold, nodes, count);
        if (count == UINT32_MAX)
            goto out;
        if (count == before)
            break;
    }
    array = nodes_json(&fold, nodes, count);
out:
    if (!array)
        err_set(err, ERR_NOMEM, "program: out of memory while folding %u instructions", program->instr_count);
    free(nodes);
    free(fold.pool);
    return array;
}
