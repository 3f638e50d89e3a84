/* Expands folded instruction lists. Every list is bounded before memory is allocated for it. */
#include <stdlib.h>

#include "program/fold.h"
#include "program/plan_doc.h"

#define AFTER_PER_INSTR 64u /* this many entries of `after` count as one instruction */

struct expand {
    struct program_builder builder;
    uint32_t left; /* instructions that may still be made */
    const char *path;
    struct err *err;
};

static int expand_too_big(const struct expand *e)
{
    return err_set(e->err, ERR_TOO_BIG, "%s: expands to more instructions than are allowed (%u a program)",
                   e->path, PROGRAM_INSTRS_MAX);
}

static int leaf_expand(struct expand *e, struct json_reader *r, int64_t micro, int64_t block)
{
    struct instr x;
    const json_t *after = NULL;
    if (doc_start(&plan_instr_doc, &x, e->err) < 0 || doc_fields(&plan_instr_doc, r, &x) < 0)
        return -1;
    x.queue = (uint8_t)instr_op_queue(x.op);
    jr_array(r, "after", JR_OPTIONAL, 0, 65536, &after);
    if (jr_finish(r) < 0)
        return -1;
    int64_t number = e->builder.program.instr_count;
    int64_t moved_micro = x.micro_batch < 0 ? x.micro_batch : x.micro_batch + micro;
    int64_t moved_block = x.block_end > x.block_begin ? block : 0;
    if (moved_micro < PLAN_NONE || moved_micro > PLAN_MICRO_BATCHES_MAX || x.block_begin + moved_block < 0 ||
        x.block_end + moved_block > PLAN_BLOCKS_MAX)
        return jr_fail(r, NULL, "a repeat advances micro-batch or blocks out of range");
    /* Entries of `after` count against the limit, too, because a short document could repeat long `after`
     * lists. */
    const size_t waits = json_array_size(after);
    const uint32_t counted = 1 + (uint32_t)(waits / AFTER_PER_INSTR);
    if (e->left < counted)
        return expand_too_big(e);
    e->left -= counted;
    x.micro_batch = (int32_t)moved_micro;
    x.block_begin += (int32_t)moved_block;
    x.block_end += (int32_t)moved_block;
    int32_t list[64];
    size_t count = waits;
    int32_t *numbers = count <= 64 ? list : calloc(count, sizeof(*numbers));
    if (!numbers)
        return err_set(e->err, ERR_NOMEM, "%s: out of memory", e->path);
    int result = 0;
    for (size_t i = 0; i < count && result == 0; i++) {
        const json_t *distance = json_array_get(after, i);
        json_int_t back = json_is_integer(distance) ? json_integer_value(distance) : 0;
        if (back < 1 || back > number)
            result =
                jr_fail(r, "after", "entry %zu of instruction %lld does not point back to an earlier one", i,
                        (long long)number);
        else
            numbers[i] = (int32_t)(number - back);
    }
    if (result == 0)
        program_add(&e->builder, &x, numbers, count);
    if (numbers != list)
        free(numbers);
    return result;
}

static int list_expand(struct expand *e, struct json_reader *parent, const char *key, const json_t *list,
                       int64_t micro, int64_t block, int depth);

static int repeat_expand(struct expand *e, struct json_reader *r, int64_t micro, int64_t block, int depth)
{
    int64_t count = 1, micro_advance = 0, block_advance = 0;
    const json_t *body = NULL;
    jr_i64(r, "repeat", JR_REQUIRED, 1, PROGRAM_INSTRS_MAX, &count);
    jr_i64(r, "mb", JR_OPTIONAL, -(int64_t)PLAN_MICRO_BATCHES_MAX, PLAN_MICRO_BATCHES_MAX, &micro_advance);
    jr_i64(r, "blocks", JR_OPTIONAL, -PLAN_BLOCKS_MAX, PLAN_BLOCKS_MAX, &block_advance);
    jr_array(r, "body", JR_REQUIRED, 1, PROGRAM_INSTRS_MAX, &body);
    if (jr_finish(r) < 0)
        return -1;
    if (depth >= FOLD_DEPTH_MAX)
        return jr_fail(r, "body", "repeats nest deeper than %d", FOLD_DEPTH_MAX);
    if ((uint64_t)count * json_array_size(body) > e->left) /* a lower bound of the expanded size */
        return expand_too_big(e);
    for (int64_t turn = 0; turn < count; turn++) {
        if (list_expand(e, r, "body", body, micro + turn * micro_advance, block + turn * block_advance,
                        depth + 1) < 0)
            return -1;
        if (e->builder.failed)
            return err_set(e->err, ERR_NOMEM, "%s: out of memory", e->path);
    }
    return 0;
}

static int list_expand(struct expand *e, struct json_reader *parent, const char *key, const json_t *list,
                       int64_t micro, int64_t block, int depth)
{
    size_t count = json_array_size(list);
    for (size_t i = 0; i < count; i++) {
        struct json_reader r;
        if (jr_item(parent, key, list, i, &r) < 0)
            return -1;
        bool repeat = json_object_get(json_array_get(list, i), "repeat") != NULL;
        int result = repeat ? repeat_expand(e, &r, micro, block, depth) : leaf_expand(e, &r, micro, block);
        if (result < 0)
            return -1;
    }
    return 0;
}

int program_expand(const json_t *folded, const char *path, uint32_t *budget, struct program *program,
                   struct err *err)
{
    *program = (struct program){0};
    if (!json_is_array(folded))
        return err_set(err, ERR_INVALID, "%s: not a list of instructions", path);
    uint32_t allowed = *budget < PROGRAM_INSTRS_MAX ? *budget : PROGRAM_INSTRS_MAX;
    struct expand e = {.left = allowed, .path = path, .err = err};
    json_t *root = json_object();
    struct json_reader reader;
    jr_init(&reader, root, path, err);
    int result = root ? list_expand(&e, &reader, "instr", folded, 0, 0, 0) : -1;
    if (!root)
        err_set(err, ERR_NOMEM, "%s: out of memory", path);
    json_decref(root);
    if (result < 0) {
        program_builder_fini(&e.builder);
        return -1;
    }
    *budget -= allowed - e.left;
    return program_builder_take(&e.builder, program, err);
}
