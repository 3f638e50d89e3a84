/* Converts json_t to a plan. Every number is checked before use, every list before memory is allocated for
 * it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "program/codec.h"
#include "program/fold.h"

#define NAME_BYTES_MAX 255
#define BYTES_MAX (INT64_MAX / 4)

static int u64_of(struct json_reader *r, const char *key, uint64_t *out)
{
    int64_t value = 0;
    int got = jr_i64(r, key, JR_REQUIRED, 0, BYTES_MAX, &value);
    *out = (uint64_t)value;
    return got;
}

static int text_of(struct json_reader *r, const char *key, char **out)
{
    const char *text = "";
    if (jr_str(r, key, JR_REQUIRED, 0, NAME_BYTES_MAX, &text) < 0)
        return -1;
    *out = strdup(text);
    return *out ? 0 : err_set(r->err, ERR_NOMEM, "plan: out of memory");
}

static int range_of(struct json_reader *r, const char *key, int32_t *begin, int32_t *end)
{
    const json_t *range = NULL;
    if (jr_array(r, key, JR_REQUIRED, 2, 2, &range) < 0)
        return -1;
    const json_t *a = json_array_get(range, 0), *b = json_array_get(range, 1);
    json_int_t first = json_integer_value(a), last = json_integer_value(b);
    if (!json_is_integer(a) || !json_is_integer(b) || first < 0 || last < first || last > PLAN_BLOCKS_MAX)
        return jr_fail(r, key, "not a range of blocks within 0..%d", PLAN_BLOCKS_MAX);
    *begin = (int32_t)first;
    *end = (int32_t)last;
    return 0;
}

static int kind_of(struct json_reader *r, const char *key, enum jr_need need, const char *(*name_of)(int),
                   int count, uint8_t *out)
{
    const char *text = "";
    int got = jr_str(r, key, need, 1, 64, &text);
    if (got <= 0)
        return got;
    for (int i = 0; i < count; i++) {
        if (strcmp(name_of(i), text) == 0) {
            *out = (uint8_t)i;
            return 0;
        }
    }
    return jr_fail(r, key, "\"%s\" is not known to this version", text);
}

static int slot_read(struct json_reader *r, struct plan_slot *slot)
{
    int64_t place = 0, lifetime = 0;
    kind_of(r, "kind", JR_REQUIRED, slot_kind_name, SLOT_KINDS, &slot->kind);
    kind_of(r, "purpose", JR_REQUIRED, plan_purpose_name, PURPOSE_COUNT, &slot->purpose);
    kind_of(r, "dtype", JR_OPTIONAL, plan_dtype_name, PLAN_DTYPES, &slot->dtype);
    jr_i64(r, "place", JR_REQUIRED, 0, SLOT_PLACES - 1, &place);
    jr_i64(r, "lifetime", JR_REQUIRED, 0, SLOT_FOR_RUN, &lifetime);
    jr_u32(r, "ring", JR_REQUIRED, 1, PLAN_MICRO_BATCHES_MAX, &slot->ring_micro_batches);
    jr_u32(r, "ring_blocks", JR_REQUIRED, 1, PLAN_BLOCKS_MAX, &slot->ring_blocks);
    range_of(r, "blocks", &slot->block_begin, &slot->block_end);
    jr_f64(r, "per_token", JR_REQUIRED, 0, 1e15, &slot->bytes_per_token);
    jr_f64(r, "per_row", JR_REQUIRED, 0, 1e15, &slot->bytes_per_row);
    u64_of(r, "fixed", &slot->bytes_fixed);
    u64_of(r, "bound", &slot->bytes_bound);
    u64_of(r, "total", &slot->bytes_total);
    slot->place = (uint8_t)place;
    slot->lifetime = (uint8_t)lifetime;
    return jr_finish(r);
}

static int slots_read(struct json_reader *r, struct plan_rank *rank)
{
    const json_t *slots = NULL;
    if (jr_array(r, "slots", JR_REQUIRED, 0, PLAN_SLOTS_MAX, &slots) < 0)
        return -1;
    size_t count = json_array_size(slots);
    rank->slots = calloc(count + 1, sizeof(*rank->slots));
    if (!rank->slots)
        return err_set(r->err, ERR_NOMEM, "plan: out of memory");
    rank->slot_count = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        struct json_reader item;
        if (jr_item(r, "slots", slots, i, &item) < 0 || slot_read(&item, &rank->slots[i]) < 0)
            return -1;
    }
    return 0;
}

static int experts_read(struct json_reader *r, struct plan_rank *rank)
{
    const json_t *experts = NULL;
    int got = jr_array(r, "experts", JR_OPTIONAL, 0, PLAN_BLOCKS_MAX, &experts);
    if (got <= 0)
        return got;
    size_t count = json_array_size(experts);
    rank->experts = calloc(count + 1, sizeof(*rank->experts));
    if (!rank->experts)
        return err_set(r->err, ERR_NOMEM, "plan: out of memory");
    rank->expert_count = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(experts, i);
        int numbers[3] = {0};
        for (size_t k = 0; k < 3; k++) {
            const json_t *value = json_array_get(item, k);
            if (json_array_size(item) != 3 || !json_is_integer(value) || json_integer_value(value) < 0 ||
                json_integer_value(value) > PLAN_BLOCKS_MAX)
                return jr_fail(r, "experts", "entry %zu is not [block, begin, end]", i);
            numbers[k] = (int)json_integer_value(value);
        }
        rank->experts[i] = (struct plan_experts){numbers[0], numbers[1], numbers[2]};
    }
    return 0;
}

static int programs_read(struct json_reader *r, struct plan_rank *rank, uint32_t *budget)
{
    struct json_reader programs;
    if (jr_sub(r, "programs", JR_REQUIRED, &programs) < 0)
        return -1;
    for (int kind = 0; kind < PROGRAM_KINDS; kind++) {
        const json_t *folded = NULL;
        const char *name = program_kind_name(kind);
        if (jr_array(&programs, name, JR_OPTIONAL, 0, PROGRAM_INSTRS_MAX, &folded) != 1)
            continue;
        char path[224];
        snprintf(path, sizeof(path), "%s.%s", programs.path, name);
        if (program_expand(folded, path, budget, &rank->programs[kind], r->err) < 0) {
            programs.failed = r->failed = true;
            return -1;
        }
    }
    return jr_finish(&programs);
}

static int ranges_read(struct json_reader *r, struct plan_rank *rank)
{
    const json_t *ranges = NULL;
    int got = jr_array(r, "ranges", JR_OPTIONAL, 2, PLAN_BLOCKS_MAX, &ranges);
    if (got <= 0)
        return got;
    size_t count = json_array_size(ranges);
    rank->ranges = calloc(count, sizeof(*rank->ranges));
    if (!rank->ranges)
        return err_set(r->err, ERR_NOMEM, "plan: out of memory");
    rank->range_count = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(ranges, i);
        const json_t *a = json_array_get(item, 0), *b = json_array_get(item, 1);
        json_int_t begin = json_integer_value(a), end = json_integer_value(b);
        if (json_array_size(item) != 2 || !json_is_integer(a) || !json_is_integer(b) || begin < 0 ||
            end < begin || end > PLAN_BLOCKS_MAX)
            return jr_fail(r, "ranges", "entry %zu is not a range of blocks within 0..%d", i,
                           PLAN_BLOCKS_MAX);
        rank->ranges[i] = (struct plan_range){(int32_t)begin, (int32_t)end};
    }
    return 0;
}

static int span_read(struct json_reader *r, const char *key, uint32_t *begin, uint32_t *end)
{
    const json_t *span = NULL;
    if (jr_array(r, key, JR_REQUIRED, 2, 2, &span) < 0)
        return -1;
    const json_t *a = json_array_get(span, 0), *b = json_array_get(span, 1);
    json_int_t first = json_integer_value(a), last = json_integer_value(b);
    if (!json_is_integer(a) || !json_is_integer(b) || first < 0 || last < first || last > INT32_MAX)
        return jr_fail(r, key, "not a range");
    *begin = (uint32_t)first;
    *end = (uint32_t)last;
    return 0;
}

static int tensor_read(struct json_reader *r, struct plan_tensor *tensor)
{
    struct json_reader sub;
    int got = jr_sub(r, "tensor", JR_OPTIONAL, &sub);
    if (got <= 0)
        return got;
    span_read(&sub, "kv_heads", &tensor->kv_head_begin, &tensor->kv_head_end);
    span_read(&sub, "columns", &tensor->column_begin, &tensor->column_end);
    return jr_finish(&sub);
}

static int bounds_read(struct json_reader *r, struct plan_bounds *bounds)
{
    struct json_reader sub;
    if (!json_object_get(r->object, "bounds"))
        return 0;
    if (jr_sub(r, "bounds", JR_REQUIRED, &sub) < 0)
        return -1;
    jr_u32(&sub, "tokens", JR_REQUIRED, 1, UINT32_MAX, &bounds->tokens);
    jr_u32(&sub, "rows", JR_REQUIRED, 1, UINT32_MAX, &bounds->rows);
    jr_u32(&sub, "labelled", JR_REQUIRED, 1, UINT32_MAX, &bounds->labelled);
    return jr_finish(&sub);
}

static int updates_read(struct json_reader *r, const struct plan *plan, struct plan_rank *rank)
{
    const json_t *updates = NULL;
    int got = jr_array(r, "updates", JR_OPTIONAL, 0, PROGRAM_INSTRS_MAX, &updates);
    if (got <= 0)
        return got;
    size_t count = json_array_size(updates);
    rank->updates = calloc(count + 1, sizeof(*rank->updates));
    if (!rank->updates)
        return err_set(r->err, ERR_NOMEM, "plan: out of memory");
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(updates, i);
        json_int_t numbers[3] = {0};
        bool right = json_array_size(item) == 3;
        for (size_t k = 0; k < 3 && right; k++) {
            right = json_is_integer(json_array_get(item, k));
            numbers[k] = json_integer_value(json_array_get(item, k));
        }
        if (!right || numbers[0] < 0 || numbers[1] < numbers[0] || numbers[1] > PLAN_BLOCKS_MAX ||
            numbers[2] < PLAN_NONE || numbers[2] >= (json_int_t)plan->group_count)
            return jr_fail(r, "updates", "entry %zu is not [begin, end, group]", i);
        rank->updates[rank->update_count++] =
            (struct plan_update){(int32_t)numbers[0], (int32_t)numbers[1], (int32_t)numbers[2]};
    }
    return 0;
}

/* Reads the digest and the updates of each rank's programs, which version 2 states. A slice has these in
 * place of the other ranks' programs. */
static int seals_read(struct json_reader *r, const struct plan *plan, struct plan_rank *rank)
{
    const char *digest = "";
    if (plan->version == 1 || updates_read(r, plan, rank) < 0)
        return r->failed ? -1 : 0;
    bool other = plan->slice_rank != PLAN_NONE && rank != &plan->ranks[plan->slice_rank];
    jr_str(r, "programs_digest", JR_OPTIONAL, PLAN_DIGEST_HEX - 1, PLAN_DIGEST_HEX - 1, &digest);
    for (int kind = 0; kind < PROGRAM_KINDS && other && !r->failed; kind++)
        if (!*digest || rank->programs[kind].instr_count > 0)
            return jr_fail(r, "programs", "another rank's: a slice has their digest only");
    snprintf(rank->programs_digest, sizeof(rank->programs_digest), "%s", digest);
    return r->failed ? -1 : 0;
}

static int rank_read(struct json_reader *r, const struct plan *plan, struct plan_rank *rank, uint32_t *budget)
{
    int64_t stage = 0;
    struct json_reader memory;
    if (text_of(r, "device", &rank->device) < 0 || text_of(r, "node", &rank->node) < 0)
        return -1;
    jr_i64(r, "stage", JR_REQUIRED, 0, PLAN_RANKS_MAX, &stage);
    rank->stage = (int32_t)stage;
    range_of(r, "blocks", &rank->block_begin, &rank->block_end);
    jr_u32(r, "rows", JR_REQUIRED, 0, UINT32_MAX, &rank->rows);
    jr_f64(r, "rows_share", JR_REQUIRED, 0, 1, &rank->rows_share);
    jr_f64(r, "state_share", JR_REQUIRED, 0, 1.0000001, &rank->state_share);
    jr_bool(r, "owns_tied", JR_REQUIRED, &rank->owns_tied);
    jr_bool(r, "copies_tied", JR_REQUIRED, &rank->copies_tied);
    jr_bool(r, "recompute", JR_REQUIRED, &rank->recompute);
    jr_u32(r, "window", JR_REQUIRED, 0, PLAN_MICRO_BATCHES_MAX, &rank->window);
    if (jr_sub(r, "memory", JR_REQUIRED, &memory) < 0)
        return -1;
    for (int p = 0; p < PURPOSE_COUNT; p++)
        u64_of(&memory, plan_purpose_name(p), &rank->memory_peak[p]);
    if (jr_finish(&memory) < 0)
        return -1;
    u64_of(r, "memory_bytes", &rank->memory_bytes);
    u64_of(r, "memory_limit_bytes", &rank->memory_limit_bytes);
    jr_bytes(r, "device_base_bytes", JR_OPTIONAL, 0, BYTES_MAX, &rank->device_base_bytes);
    u64_of(r, "process_base_bytes", &rank->process_base_bytes);
    int64_t moments = 0, again = 0;
    jr_i64(r, "moments_host_bytes", JR_OPTIONAL, 0, BYTES_MAX, &moments);
    jr_i64(r, "recompute_end", JR_OPTIONAL, 0, PLAN_BLOCKS_MAX, &again);
    rank->recompute_end = (int32_t)again;
    rank->moments_host_bytes = (uint64_t)moments;
    jr_f64(r, "busy_s", JR_REQUIRED, 0, 1e15, &rank->busy_s);
    if (bounds_read(r, &rank->bounds) < 0 || experts_read(r, rank) < 0 || ranges_read(r, rank) < 0 ||
        tensor_read(r, &rank->tensor) < 0 || slots_read(r, rank) < 0 || programs_read(r, rank, budget) < 0 ||
        seals_read(r, plan, rank) < 0)
        return -1;
    return jr_finish(r);
}

static int group_read(struct json_reader *r, const struct plan *plan, struct plan_group *group)
{
    const json_t *ranks = NULL, *shares = NULL;
    if (jr_array(r, "ranks", JR_REQUIRED, 1, plan->rank_count, &ranks) < 0)
        return -1;
    size_t count = json_array_size(ranks);
    if (jr_array(r, "shares", JR_OPTIONAL, count, count, &shares) < 0)
        return -1;
    group->ranks = calloc(count, sizeof(*group->ranks));
    group->shares = shares ? calloc(count, sizeof(*group->shares)) : NULL;
    if (!group->ranks || (shares && !group->shares))
        return err_set(r->err, ERR_NOMEM, "plan: out of memory");
    group->rank_count = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        const json_t *rank = json_array_get(ranks, i);
        json_int_t number = json_integer_value(rank);
        if (!json_is_integer(rank) || number < 0 || number >= (json_int_t)plan->rank_count)
            return jr_fail(r, "ranks", "entry %zu is no rank of this plan", i);
        group->ranks[i] = (uint32_t)number;
        if (shares) {
            const json_t *share = json_array_get(shares, i);
            if (!json_is_number(share) || json_number_value(share) < 0)
                return jr_fail(r, "shares", "entry %zu is not a share", i);
            group->shares[i] = json_number_value(share);
        }
    }
    return jr_finish(r);
}

static int costs_read(struct json_reader *parent, struct plan_costs *costs)
{
    struct json_reader r;
    const char *text = NULL;
    if (jr_sub(parent, "costs", JR_REQUIRED, &r) < 0)
        return -1;
    jr_f64(&r, "step_s", JR_REQUIRED, 0, 1e15, &costs->step_s);
    jr_f64(&r, "tokens_per_s", JR_REQUIRED, 0, 1e18, &costs->tokens_per_s);
    jr_f64(&r, "lower_bound_s", JR_REQUIRED, 0, 1e15, &costs->lower_bound_s);
    jr_f64(&r, "tokens_per_step", JR_REQUIRED, 0, 1e18, &costs->tokens_per_step);
    jr_f64(&r, "labelled_per_step", JR_REQUIRED, 0, 1e18, &costs->labelled_per_step);
    jr_f64(&r, "sum_sq_per_step", JR_REQUIRED, 0, 1e30, &costs->sum_sq_per_step);
    jr_f64(&r, "share_measured", JR_REQUIRED, 0, 1.0000001, &costs->share_measured);
    jr_f64(&r, "share_imported", JR_REQUIRED, 0, 1.0000001, &costs->share_imported);
    jr_f64(&r, "share_estimated", JR_REQUIRED, 0, 1.0000001, &costs->share_estimated);
    jr_bool(&r, "links_emulated", JR_REQUIRED, &costs->links_emulated);
    jr_str(&r, "text", JR_OPTIONAL, 0, 4096, &text);
    if (jr_finish(&r) < 0)
        return -1;
    costs->text = text ? strdup(text) : NULL;
    return text && !costs->text ? err_set(parent->err, ERR_NOMEM, "plan: out of memory") : 0;
}

/* Reads the first rows of the micro-batches, which replace those that plan_create filled in. */
static int starts_read(struct json_reader *r, struct plan *plan, const json_t *starts)
{
    size_t count = json_array_size(starts);
    if (count < 2 || count > (size_t)PLAN_MICRO_BATCHES_MAX + 1)
        return jr_fail(r, "micro_batches", "%zu starts; 2 to %u are possible", count,
                       PLAN_MICRO_BATCHES_MAX + 1);
    uint32_t *start = calloc(count, sizeof(*start));
    if (!start)
        return err_set(r->err, ERR_NOMEM, "plan: out of memory");
    free(plan->micro_batch_start);
    plan->micro_batch_start = start;
    plan->micro_batch_count = (uint32_t)count - 1;
    for (size_t k = 0; k < count; k++) {
        const json_t *value = json_array_get(starts, k);
        json_int_t row = json_integer_value(value);
        if (!json_is_integer(value) || row < (k ? start[k - 1] : 0) || row > plan->batch_rows ||
            (k == 0 && row != 0))
            return jr_fail(r, "micro_batches", "start %zu does not rise from 0 to %u", k, plan->batch_rows);
        start[k] = (uint32_t)row;
    }
    if (start[count - 1] != plan->batch_rows)
        return jr_fail(r, "micro_batches", "they end at row %u of %u", start[count - 1], plan->batch_rows);
    return 0;
}

static struct plan *plan_frame(struct json_reader *r)
{
    uint8_t placement = 0;
    uint32_t version = 0, batch_rows = 1, rows = 1;
    const json_t *ranks = NULL, *groups = NULL, *micro = NULL;
    jr_u32(r, "version", JR_REQUIRED, 0, UINT32_MAX, &version);
    if (!r->failed && (version == 0 || version > PLAN_VERSION))
        jr_fail(r, "version", "%u; this program reads versions 1 to %u", version, PLAN_VERSION);
    kind_of(r, "placement", JR_REQUIRED, plan_placement_name, PLACE_COUNT, &placement);
    jr_u32(r, "batch_rows", JR_REQUIRED, 1, 1u << 24, &batch_rows);
    jr_any(r, "micro_batches", JR_REQUIRED, &micro);
    jr_array(r, "ranks", JR_REQUIRED, 1, PLAN_RANKS_MAX, &ranks);
    jr_array(r, "groups", JR_REQUIRED, 1, PLAN_GROUPS_MAX, &groups);
    if (r->failed)
        return NULL;
    if (json_is_integer(micro) && json_integer_value(micro) > 0 && json_integer_value(micro) <= batch_rows)
        rows = (uint32_t)json_integer_value(micro);
    else if (!json_is_array(micro)) {
        jr_fail(r, "micro_batches", "neither rows of a micro-batch (1..%u) nor a list of starts", batch_rows);
        return NULL;
    } else
        rows = batch_rows;
    struct plan *plan = plan_create((uint32_t)json_array_size(ranks), (uint32_t)json_array_size(groups),
                                    batch_rows, rows, r->err);
    if (!plan)
        return NULL;
    plan->version = version;
    plan->placement = (enum plan_placement)placement;
    if (json_is_array(micro) && starts_read(r, plan, micro) < 0) {
        plan_destroy(plan);
        return NULL;
    }
    return plan;
}

static int schedule_from_name(const char *name, enum plan_schedule *out)
{
    for (int i = 0; i < SCHEDULE_COUNT; i++) {
        if (strcmp(plan_schedule_name(i), name) == 0) {
            *out = (enum plan_schedule)i;
            return 0;
        }
    }
    return -1;
}

static int plan_read(struct json_reader *r, struct plan *plan, uint32_t budget, const char **digest)
{
    const json_t *ranks = NULL, *groups = NULL;
    int64_t blocks = 0, slice = PLAN_NONE;
    const char *schedule = plan_schedule_name(SCHEDULE_1F1B);
    jr_str(r, "schedule", JR_OPTIONAL, 1, 64, &schedule);
    if (!r->failed && schedule_from_name(schedule, &plan->schedule) < 0)
        jr_fail(r, "schedule", "\"%s\" is not known to this version", schedule);
    if (plan->version > 1)
        jr_i64(r, "slice", JR_OPTIONAL, 0, plan->rank_count - 1, &slice);
    plan->slice_rank = (int32_t)slice;
    jr_i64(r, "block_count", JR_REQUIRED, 1, PLAN_BLOCKS_MAX, &blocks);
    plan->block_count = (int32_t)blocks;
    jr_u32(r, "tokens_bound", JR_REQUIRED, 0, UINT32_MAX, &plan->tokens_bound);
    jr_u32(r, "rows_bound", JR_REQUIRED, 0, UINT32_MAX, &plan->rows_bound);
    jr_u32(r, "labelled_bound", JR_REQUIRED, 0, UINT32_MAX, &plan->labelled_bound);
    jr_u32(r, "sequence_bound", JR_REQUIRED, 0, UINT32_MAX, &plan->sequence_bound);
    jr_bool(r, "trains_embedding", JR_REQUIRED, &plan->trains_embedding);
    jr_str(r, "digest", *digest ? JR_REQUIRED : JR_OPTIONAL, 0, PLAN_DIGEST_HEX - 1, digest);
    jr_array(r, "ranks", JR_REQUIRED, 1, PLAN_RANKS_MAX, &ranks);
    jr_array(r, "groups", JR_REQUIRED, 1, PLAN_GROUPS_MAX, &groups);
    if (costs_read(r, &plan->costs) < 0)
        return -1;
    for (uint32_t g = 0; g < plan->group_count; g++) {
        struct json_reader item;
        struct plan_group *group = &plan->groups[g];
        free(group->ranks);
        *group = (struct plan_group){0};
        if (jr_item(r, "groups", groups, g, &item) < 0 || group_read(&item, plan, group) < 0)
            return -1;
    }
    for (uint32_t k = 0; k < plan->rank_count; k++) {
        struct json_reader item;
        if (jr_item(r, "ranks", ranks, k, &item) < 0 || rank_read(&item, plan, &plan->ranks[k], &budget) < 0)
            return -1;
    }
    return jr_finish(r);
}

/* Reads a plan. digest: "" if the document must have a digest, NULL if the digest may be missing. */
static struct plan *plan_decode(const json_t *json, uint32_t budget, const char *digest, struct err *err)
{
    struct json_reader r;
    jr_init(&r, json, "plan", err);
    struct plan *plan = plan_frame(&r);
    if (!plan)
        return NULL;
    if (plan_read(&r, plan, budget, &digest) < 0)
        goto fail;
    if (plan_seal(plan, err) < 0)
        goto fail;
    if (digest && strcmp(plan->digest, digest) != 0) {
        err_set(err, ERR_CORRUPT, "plan.digest: %s, but what it holds has %s", digest, plan->digest);
        goto fail;
    }
    return plan;
fail:
    plan_destroy(plan);
    return NULL;
}

static struct plan *whole_only(struct plan *plan, struct err *err)
{
    if (!plan || plan->slice_rank == PLAN_NONE)
        return plan;
    err_set(err, ERR_INVALID, "plan.slice: this is the slice of rank %d, and the whole plan is needed",
            (int)plan->slice_rank);
    plan_destroy(plan);
    return NULL;
}

struct plan *plan_from_json(const json_t *json, struct err *err)
{
    return whole_only(plan_decode(json, PLAN_INSTRS_MAX, "", err), err);
}

struct plan *plan_from_json_given(const json_t *json, uint32_t instructions_most, struct err *err)
{
    uint32_t most = instructions_most < PLAN_INSTRS_MAX ? instructions_most : PLAN_INSTRS_MAX;
    struct plan *plan = whole_only(plan_decode(json, most, NULL, err), err);
    if (!plan || plan->version == PLAN_VERSION)
        return plan;
    plan->version = PLAN_VERSION;
    if (plan_seal(plan, err) == 0)
        return plan;
    plan_destroy(plan);
    return NULL;
}

struct plan *plan_slice_from_json(const json_t *json, struct err *err)
{
    return plan_decode(json, PLAN_INSTRS_MAX, "", err);
}
