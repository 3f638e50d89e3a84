/* Describes a plan's parts. Key names are stable. */
#include "program/plan_doc.h"

#include <stdlib.h>
#include <string.h>

/* --- ranges and tuples --- */

/* Reads [begin, end] into two neighbouring members. field->max bounds the numbers. DOC_SPARSE: 0, 0 is not
 * written. */
static int range_read(struct json_reader *r, const struct doc_field *field, void *at)
{
    const json_t *range = NULL;
    int32_t *pair = at;
    int got = jr_array(r, field->key, (enum jr_need)field->need, 2, 2, &range);
    const json_t *a = json_array_get(range, 0), *b = json_array_get(range, 1);
    json_int_t first = json_integer_value(a), last = json_integer_value(b);
    if (!range)
        return got;
    if (!json_is_integer(a) || !json_is_integer(b) || first < 0 || last < first ||
        last > (json_int_t)field->max)
        return field->max < INT32_MAX
                   ? jr_fail(r, field->key, "not a range of blocks within 0..%.0f", field->max)
                   : jr_fail(r, field->key, "not a range");
    pair[0] = (int32_t)first;
    pair[1] = (int32_t)last;
    return got;
}

static int plan_doc_range_write(const struct doc_field *field, const void *at, json_t *object)
{
    const int32_t *pair = at;
    if (field->flags & DOC_SPARSE && pair[0] == 0 && pair[1] == 0)
        return 0;
    return json_object_set_new(object, field->key, json_pack("[i,i]", pair[0], pair[1]));
}

static const struct doc_form range_form = {.read = range_read, .write = plan_doc_range_write};
#define RANGE(key, tag, member, most)                                                                        \
    DOC_OTHER(key, tag, member, &range_form, "", .need = JR_REQUIRED, .max = (most))
#define BLOCKS(tag, member) RANGE("blocks", tag, member, PLAN_BLOCKS_MAX)

int tuples_read(struct json_reader *r, const struct tuple_list *list, void *items, uint32_t *count)
{
    const json_t *array = NULL;
    int got = jr_array(r, list->key, JR_OPTIONAL, list->least, list->most, &array);
    if (got <= 0)
        return got;
    const size_t size = json_array_size(array);
    int32_t *all = calloc(size * list->numbers + 1, sizeof(*all));
    if (!all)
        return err_set(r->err, ERR_NOMEM, "plan: out of memory");
    *(void **)items = all;
    *count = (uint32_t)size;
    for (size_t i = 0; i < size; i++) {
        const json_t *item = json_array_get(array, i);
        int64_t numbers[3] = {0};
        bool right = json_array_size(item) == list->numbers;
        for (size_t k = 0; k < list->numbers && right; k++) {
            right = json_is_integer(json_array_get(item, k));
            numbers[k] = json_integer_value(json_array_get(item, k));
        }
        if (!right || !list->good(numbers, list->limit))
            return jr_fail(r, list->key, "entry %zu is not %s", i, list->refusal);
        for (size_t k = 0; k < list->numbers; k++)
            all[i * list->numbers + k] = (int32_t)numbers[k];
    }
    return got;
}

json_t *tuples_json(const void *items, uint32_t count, size_t numbers)
{
    const int32_t *all = items;
    json_t *array = json_array();
    for (uint32_t i = 0; array && i < count; i++) {
        json_t *tuple = json_array();
        for (size_t k = 0; k < numbers; k++)
            json_array_append_new(tuple, json_integer(all[i * numbers + k]));
        if (json_array_append_new(array, tuple) < 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static bool within_blocks(const int64_t *numbers, int64_t limit)
{
    return numbers[0] >= 0 && numbers[0] <= limit && numbers[1] >= 0 && numbers[1] <= limit &&
           numbers[2] >= 0 && numbers[2] <= limit;
}

static bool is_range(const int64_t *numbers, int64_t limit)
{
    return numbers[0] >= 0 && numbers[1] >= numbers[0] && numbers[1] <= limit;
}

static int plan_doc_experts_read(struct json_reader *r, const struct doc_field *field, void *all)
{
    struct plan_rank *rank = all;
    return tuples_read(r,
                       &(struct tuple_list){.key = field->key,
                                            .refusal = "[block, begin, end]",
                                            .numbers = 3,
                                            .most = PLAN_BLOCKS_MAX,
                                            .good = within_blocks,
                                            .limit = PLAN_BLOCKS_MAX},
                       &rank->experts, &rank->expert_count);
}

static int experts_write(const struct doc_field *field, const void *all, json_t *object)
{
    const struct plan_rank *rank = all;
    return json_object_set_new(object, field->key,
                               rank->expert_count ? tuples_json(rank->experts, rank->expert_count, 3)
                                                  : json_null());
}

static int plan_doc_ranges_read(struct json_reader *r, const struct doc_field *field, void *all)
{
    struct plan_rank *rank = all;
    return tuples_read(r,
                       &(struct tuple_list){.key = field->key,
                                            .refusal = "a range of blocks",
                                            .numbers = 2,
                                            .least = 2,
                                            .most = PLAN_BLOCKS_MAX,
                                            .good = is_range,
                                            .limit = PLAN_BLOCKS_MAX},
                       &rank->ranges, &rank->range_count);
}

static int ranges_write(const struct doc_field *field, const void *all, json_t *object)
{
    const struct plan_rank *rank = all;
    return rank->range_count
               ? json_object_set_new(object, field->key, tuples_json(rank->ranges, rank->range_count, 2))
               : 0;
}

/* --- a rank --- */

static const struct doc_field slot_fields[] = {
    DOC_CHOICE("kind", plan_slot, kind, JR_REQUIRED, 0, slot_kind_names, ""),
    DOC_CHOICE("purpose", plan_slot, purpose, JR_REQUIRED, 0, plan_purpose_names, ""),
    DOC_CHOICE("dtype", plan_slot, dtype, JR_OPTIONAL, PLAN_F32, plan_dtype_names, "", .flags = DOC_SPARSE),
    DOC_NUM("place", plan_slot, place, JR_REQUIRED, 0, 0, SLOT_PLACES - 1, ""),
    DOC_NUM("lifetime", plan_slot, lifetime, JR_REQUIRED, 0, 0, SLOT_FOR_RUN, ""),
    DOC_NUM("ring", plan_slot, ring_micro_batches, JR_REQUIRED, 0, 1, PLAN_MICRO_BATCHES_MAX, ""),
    DOC_NUM("ring_blocks", plan_slot, ring_blocks, JR_REQUIRED, 0, 1, PLAN_BLOCKS_MAX, ""),
    BLOCKS(plan_slot, block_begin),
    DOC_NUM("per_token", plan_slot, bytes_per_token, JR_REQUIRED, 0, 0, 1e15, ""),
    DOC_NUM("per_row", plan_slot, bytes_per_row, JR_REQUIRED, 0, 0, 1e15, ""),
    DOC_NUM("fixed", plan_slot, bytes_fixed, JR_REQUIRED, 0, 0, PLAN_BYTES_MAX, ""),
    DOC_NUM("bound", plan_slot, bytes_bound, JR_REQUIRED, 0, 0, PLAN_BYTES_MAX, ""),
    DOC_NUM("total", plan_slot, bytes_total, JR_REQUIRED, 0, 0, PLAN_BYTES_MAX, ""),
};
static const struct doc slot_doc = DOC(plan_slot, slot_fields);

static int plan_doc_tensor_read(struct json_reader *r, const struct doc_field *field, void *at)
{
    static const struct doc_field fields[] = {
        RANGE("kv_heads", plan_tensor, kv_head_begin, INT32_MAX),
        RANGE("columns", plan_tensor, column_begin, INT32_MAX),
    };
    static const struct doc tensor_doc = DOC(plan_tensor, fields);
    struct json_reader sub;
    int got = jr_sub(r, field->key, JR_OPTIONAL, &sub);
    return got <= 0 ? got : doc_take(&tensor_doc, &sub, at);
}

static int tensor_write(const struct doc_field *field, const void *at, json_t *object)
{
    const struct plan_tensor *t = at;
    return t->kv_head_end || t->column_end
               ? json_object_set_new(object, field->key,
                                     json_pack("{s:[I,I],s:[I,I]}", "kv_heads", (json_int_t)t->kv_head_begin,
                                               (json_int_t)t->kv_head_end, "columns",
                                               (json_int_t)t->column_begin, (json_int_t)t->column_end))
               : 0;
}

static const struct doc_form experts_form = {.read = plan_doc_experts_read, .write = experts_write};
static const struct doc_form ranges_form = {.read = plan_doc_ranges_read, .write = ranges_write};
static const struct doc_form tensor_form = {.read = plan_doc_tensor_read, .write = tensor_write};

static const struct doc_field bounds_fields[] = {
    DOC_NUM("tokens", plan_bounds, tokens, JR_REQUIRED, 0, 1, UINT32_MAX, "", .flags = DOC_SPARSE),
    DOC_NUM("rows", plan_bounds, rows, JR_REQUIRED, 0, 1, UINT32_MAX, "", .flags = DOC_SPARSE),
    DOC_NUM("labelled", plan_bounds, labelled, JR_REQUIRED, 0, 1, UINT32_MAX, "", .flags = DOC_SPARSE),
};
static const struct doc bounds_doc = DOC(plan_bounds, bounds_fields);

#define PEAK(name, purpose)                                                                                  \
    DOC_NUM(name, plan_rank, memory_peak[purpose], JR_REQUIRED, 0, 0, PLAN_BYTES_MAX, "")
static const struct doc_field memory_fields[] = {
    PEAK("weights", PURPOSE_WEIGHTS),     PEAK("adapters", PURPOSE_ADAPTERS),
    PEAK("optimizer", PURPOSE_OPTIMIZER), PEAK("activations", PURPOSE_ACTIVATIONS),
    PEAK("buffers", PURPOSE_BUFFERS),
};
static const struct doc memory_doc = DOC(plan_rank, memory_fields);

/* Forms over the whole rank stand at its first member. */
#define OF_RANK(key, form) DOC_OTHER(key, plan_rank, device, form, "")
#define BYTES(key, member) DOC_NUM(key, plan_rank, member, JR_REQUIRED, 0, 0, PLAN_BYTES_MAX, "")
_Static_assert(offsetof(struct plan_rank, device) == 0,
               "forms over the whole rank are given its first member");

static const struct doc_field rank_fields[] = {
    DOC_TEXT("device", plan_rank, device, JR_REQUIRED, 0, 255, "", .text = ""),
    DOC_TEXT("node", plan_rank, node, JR_REQUIRED, 0, 255, "", .text = ""),
    DOC_NUM("stage", plan_rank, stage, JR_REQUIRED, 0, 0, PLAN_RANKS_MAX, ""),
    BLOCKS(plan_rank, block_begin),
    DOC_NUM("rows", plan_rank, rows, JR_REQUIRED, 0, 0, UINT32_MAX, ""),
    DOC_NUM("rows_share", plan_rank, rows_share, JR_REQUIRED, 0, 0, 1, ""),
    DOC_NUM("state_share", plan_rank, state_share, JR_REQUIRED, 0, 0, 1.0000001, ""),
    DOC_FLAG("owns_tied", plan_rank, owns_tied, JR_REQUIRED, false, ""),
    DOC_FLAG("copies_tied", plan_rank, copies_tied, JR_REQUIRED, false, ""),
    DOC_FLAG("recompute", plan_rank, recompute, JR_REQUIRED, false, ""),
    DOC_NUM("window", plan_rank, window, JR_REQUIRED, 0, 0, PLAN_MICRO_BATCHES_MAX, ""),
    DOC_WITHIN("memory", JR_REQUIRED, &memory_doc, ""),
    BYTES("memory_bytes", memory_bytes),
    BYTES("memory_limit_bytes", memory_limit_bytes),
    DOC_NUM("device_base_bytes", plan_rank, device_base_bytes, JR_OPTIONAL, 0, 0, PLAN_BYTES_MAX, "",
            .flags = DOC_BYTES),
    BYTES("process_base_bytes", process_base_bytes),
    DOC_NUM("moments_host_bytes", plan_rank, moments_host_bytes, JR_OPTIONAL, 0, 0, PLAN_BYTES_MAX, "",
            .flags = DOC_SPARSE),
    DOC_NUM("recompute_end", plan_rank, recompute_end, JR_OPTIONAL, 0, 0, PLAN_BLOCKS_MAX, "",
            .flags = DOC_SPARSE),
    DOC_NUM("busy_s", plan_rank, busy_s, JR_REQUIRED, 0, 0, 1e15, ""),
    DOC_STRUCT("bounds", plan_rank, bounds, JR_GIVEN, &bounds_doc, "", .flags = DOC_SPARSE),
    OF_RANK("experts", &experts_form),
    OF_RANK("ranges", &ranges_form),
    DOC_OTHER("tensor", plan_rank, tensor, &tensor_form, ""),
    DOC_STRUCTS("slots", plan_rank, slots, slot_count, JR_REQUIRED, 0, PLAN_SLOTS_MAX, &slot_doc, ""),
};
const struct doc plan_rank_doc = DOC(plan_rank, rank_fields);

/* --- the plan --- */

#define SECONDS(key, member, most) DOC_NUM(key, plan_costs, member, JR_REQUIRED, 0, 0, most, "")
static const struct doc_field costs_fields[] = {
    SECONDS("step_s", step_s, 1e15),
    SECONDS("tokens_per_s", tokens_per_s, 1e18),
    SECONDS("lower_bound_s", lower_bound_s, 1e15),
    SECONDS("tokens_per_step", tokens_per_step, 1e18),
    SECONDS("labelled_per_step", labelled_per_step, 1e18),
    SECONDS("sum_sq_per_step", sum_sq_per_step, 1e30),
    DOC_NUM("corrected", plan_costs, corrected, JR_OPTIONAL, 0, 0, 1e3, "", .flags = DOC_SPARSE),
    DOC_NUM("corrected_runs", plan_costs, corrected_runs, JR_OPTIONAL, 0, 0, 1e6, "", .flags = DOC_SPARSE),
    SECONDS("share_measured", share_measured, 1.0000001),
    SECONDS("share_imported", share_imported, 1.0000001),
    SECONDS("share_estimated", share_estimated, 1.0000001),
    DOC_FLAG("links_emulated", plan_costs, links_emulated, JR_REQUIRED, false, ""),
    DOC_TEXT("text", plan_costs, text, JR_OPTIONAL, 0, 4096, "", .flags = DOC_NULL),
};
const struct doc plan_costs_doc = DOC(plan_costs, costs_fields);

static const struct doc_field frame_fields[] = {
    DOC_CHOICE("schedule", plan, schedule, JR_OPTIONAL, SCHEDULE_1F1B, plan_schedule_names, "",
               .flags = DOC_SPARSE),
    DOC_NUM("block_count", plan, block_count, JR_REQUIRED, 0, 1, PLAN_BLOCKS_MAX, ""),
    DOC_NUM("tokens_bound", plan, tokens_bound, JR_REQUIRED, 0, 0, UINT32_MAX, ""),
    DOC_NUM("rows_bound", plan, rows_bound, JR_REQUIRED, 0, 0, UINT32_MAX, ""),
    DOC_NUM("labelled_bound", plan, labelled_bound, JR_REQUIRED, 0, 0, UINT32_MAX, ""),
    DOC_NUM("sequence_bound", plan, sequence_bound, JR_REQUIRED, 0, 0, UINT32_MAX, ""),
    DOC_CHOICE("compute", plan, compute, JR_OPTIONAL, PLAN_F32, plan_dtype_names, "", .flags = DOC_SPARSE),
    DOC_FLAG("trains_embedding", plan, trains_embedding, JR_REQUIRED, false, ""),
    DOC_STRUCT("costs", plan, costs, JR_REQUIRED, &plan_costs_doc, ""),
};
const struct doc plan_frame_doc = DOC(plan, frame_fields);

/* --- instructions --- */

static void flags_rule(struct json_reader *r, const struct doc_field *field, void *all)
{
    const struct instr *x = all;
    if (x->flags & ~FLAGS_ALL)
        jr_fail(r, field->key, "%u has a bit without a meaning", x->flags);
}

#define NUMBER(key, member, initial, least, most)                                                            \
    DOC_NUM(key, instr, member, JR_OPTIONAL, initial, least, most, "", .flags = DOC_SPARSE)
#define INDEX(key, member) NUMBER(key, member, PLAN_NONE, PLAN_NONE, INT32_MAX - 1)
static const struct doc_field instr_fields[] = {
    DOC_CHOICE("op", instr, op, JR_REQUIRED, 0, instr_op_names, ""),
    INDEX("mb", micro_batch),
    DOC_OTHER("blocks", instr, block_begin, &range_form, "", .max = PLAN_BLOCKS_MAX, .flags = DOC_SPARSE),
    INDEX("peer", peer),
    INDEX("group", group),
    INDEX("in", slot_in),
    INDEX("out", slot_out),
    INDEX("save", slot_save),
    NUMBER("row", row_begin, 0, 0, PLAN_ROWS_ALL),
    NUMBER("row_end", row_end, PLAN_ROWS_ALL, 0, PLAN_ROWS_ALL),
    NUMBER("tag", tag, TAG_NONE, 0, TAG_COUNT - 1),
    DOC_NUM("flags", instr, flags, JR_OPTIONAL, 0, 0, FLAGS_ALL, "", .flags = DOC_SPARSE, .rule = flags_rule),
};
const struct doc plan_instr_doc = DOC(instr, instr_fields);
