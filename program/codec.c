/* Converts a plan to json_t. Key names are stable; only instructions leave out defaults. */
#include "program/codec.h"

#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/digest.h"
#include "common/json.h"
#include "program/fold.h"
#include "program/update.h"

#define PLAN_JSON_BYTES_MAX ((size_t)1 << 30)

/* A dtype is written only for slots of 16-bit values. */
static json_t *slot_json(const struct plan_slot *slot)
{
    json_t *object = json_pack(
        "{s:s,s:i,s:i,s:s,s:I,s:I,s:[i,i],s:f,s:f,s:I,s:I,s:I}", "kind", slot_kind_name(slot->kind), "place",
        slot->place, "lifetime", slot->lifetime, "purpose", plan_purpose_name(slot->purpose), "ring",
        (json_int_t)slot->ring_micro_batches, "ring_blocks", (json_int_t)slot->ring_blocks, "blocks",
        slot->block_begin, slot->block_end, "per_token", slot->bytes_per_token, "per_row",
        slot->bytes_per_row, "fixed", (json_int_t)slot->bytes_fixed, "bound", (json_int_t)slot->bytes_bound,
        "total", (json_int_t)slot->bytes_total);
    if (object && slot->dtype != PLAN_F32 &&
        json_object_set_new(object, "dtype", json_string(plan_dtype_name(slot->dtype))) < 0) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static json_t *experts_json(const struct plan_rank *rank)
{
    if (rank->expert_count == 0)
        return json_null();
    json_t *array = json_array();
    for (uint32_t i = 0; array && i < rank->expert_count; i++) {
        const struct plan_experts *e = &rank->experts[i];
        if (json_array_append_new(array, json_pack("[i,i,i]", e->block, e->begin, e->end)) < 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static json_t *programs_json(const struct plan_rank *rank, struct err *err)
{
    json_t *programs = json_object();
    for (int kind = 0; programs && kind < PROGRAM_KINDS; kind++) {
        if (rank->programs[kind].instr_count == 0)
            continue;
        json_t *folded = program_fold(&rank->programs[kind], err);
        if (!folded || json_object_set_new(programs, program_kind_name(kind), folded) < 0) {
            json_decref(programs);
            return NULL;
        }
    }
    return programs;
}

/* Writes the keys that only some plans have, and the digest and updates of the rank's programs. */
static int rank_json_special(const struct plan_rank *rank, json_t *object)
{
    const struct plan_tensor *t = &rank->tensor;
    int bad = 0;
    if (rank->range_count) {
        json_t *ranges = json_array();
        for (uint32_t i = 0; i < rank->range_count; i++)
            bad |=
                json_array_append_new(ranges, json_pack("[i,i]", rank->ranges[i].begin, rank->ranges[i].end));
        bad |= json_object_set_new(object, "ranges", ranges);
    }
    if (t->kv_head_end || t->column_end)
        bad |= json_object_set_new(object, "tensor",
                                   json_pack("{s:[I,I],s:[I,I]}", "kv_heads", (json_int_t)t->kv_head_begin,
                                             (json_int_t)t->kv_head_end, "columns",
                                             (json_int_t)t->column_begin, (json_int_t)t->column_end));
    if (rank->bounds.tokens)
        bad |= json_object_set_new(object, "bounds",
                                   json_pack("{s:I,s:I,s:I}", "tokens", (json_int_t)rank->bounds.tokens,
                                             "rows", (json_int_t)rank->bounds.rows, "labelled",
                                             (json_int_t)rank->bounds.labelled));
    if (rank->programs_digest[0]) { /* only plans of version 2 have these keys */
        json_t *updates = json_array();
        for (uint32_t i = 0; i < rank->update_count; i++)
            bad |=
                json_array_append_new(updates, json_pack("[i,i,i]", rank->updates[i].block_begin,
                                                         rank->updates[i].block_end, rank->updates[i].group));
        bad |= json_object_set_new(object, "updates", updates);
        bad |= json_object_set_new(object, "programs_digest", json_string(rank->programs_digest));
    }
    if (rank->recompute_end)
        bad |= json_object_set_new(object, "recompute_end", json_integer(rank->recompute_end));
    if (rank->moments_host_bytes)
        bad |= json_object_set_new(object, "moments_host_bytes",
                                   json_integer((json_int_t)rank->moments_host_bytes));
    return bad;
}

/* Writes a rank. Without programs_too, "programs" is an empty object. */
static json_t *rank_json(const struct plan_rank *rank, bool programs_too, struct err *err)
{
    json_t *memory = json_object(), *slots = json_array();
    int bad = !memory || !slots;
    for (int p = 0; !bad && p < PURPOSE_COUNT; p++)
        bad |=
            json_object_set_new(memory, plan_purpose_name(p), json_integer((json_int_t)rank->memory_peak[p]));
    for (uint32_t s = 0; !bad && s < rank->slot_count; s++)
        bad |= json_array_append_new(slots, slot_json(&rank->slots[s]));
    json_t *experts = bad ? NULL : experts_json(rank);
    json_t *programs = !experts ? NULL : programs_too ? programs_json(rank, err) : json_object();
    if (bad || !experts || !programs) {
        json_decref(memory);
        json_decref(slots);
        json_decref(experts);
        json_decref(programs);
        return NULL;
    }
    json_t *object = json_pack(
        "{s:s,s:s,s:i,s:[i,i],s:I,s:f,s:f,s:b,s:b,s:o,s:b,s:I,s:o,s:I,s:I,s:I,s:I,s:f,s:o,s:o}", "device",
        rank->device ? rank->device : "", "node", rank->node ? rank->node : "", "stage", rank->stage,
        "blocks", rank->block_begin, rank->block_end, "rows", (json_int_t)rank->rows, "rows_share",
        rank->rows_share, "state_share", rank->state_share, "owns_tied", rank->owns_tied, "copies_tied",
        rank->copies_tied, "experts", experts, "recompute", rank->recompute, "window",
        (json_int_t)rank->window, "memory", memory, "memory_bytes", (json_int_t)rank->memory_bytes,
        "memory_limit_bytes", (json_int_t)rank->memory_limit_bytes, "device_base_bytes",
        (json_int_t)rank->device_base_bytes, "process_base_bytes", (json_int_t)rank->process_base_bytes,
        "busy_s", rank->busy_s, "slots", slots, "programs", programs);
    if (object && rank_json_special(rank, object) < 0) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static json_t *group_json(const struct plan_group *group)
{
    json_t *ranks = json_array(), *shares = group->shares ? json_array() : json_null();
    int bad = !ranks || !shares;
    for (uint32_t i = 0; !bad && i < group->rank_count; i++) {
        bad |= json_array_append_new(ranks, json_integer(group->ranks[i]));
        if (group->shares)
            bad |= json_array_append_new(shares, json_real(group->shares[i]));
    }
    if (bad) {
        json_decref(ranks);
        json_decref(shares);
        return NULL;
    }
    return json_pack("{s:o,s:o}", "ranks", ranks, "shares", shares);
}

/* Micro-batches of equal size are written as one number, others as the list of their starts. */
static json_t *micro_batches_json(const struct plan *plan)
{
    const uint32_t *start = plan->micro_batch_start;
    uint32_t count = plan->micro_batch_count, rows = start[1];
    bool even = rows > 0;
    for (uint32_t k = 0; k < count && even; k++) {
        uint64_t end = (uint64_t)(k + 1) * rows;
        even = start[k + 1] == (end < plan->batch_rows ? end : plan->batch_rows);
    }
    if (even && (plan->batch_rows - 1) / rows + 1 == count)
        return json_integer(rows);
    json_t *array = json_array();
    for (uint32_t k = 0; array && k <= count; k++) {
        if (json_array_append_new(array, json_integer(start[k])) < 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static json_t *costs_json(const struct plan_costs *costs)
{
    return json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:b,s:s?}", "step_s", costs->step_s,
                     "tokens_per_s", costs->tokens_per_s, "lower_bound_s", costs->lower_bound_s,
                     "tokens_per_step", costs->tokens_per_step, "labelled_per_step", costs->labelled_per_step,
                     "sum_sq_per_step", costs->sum_sq_per_step, "share_measured", costs->share_measured,
                     "share_imported", costs->share_imported, "share_estimated", costs->share_estimated,
                     "links_emulated", costs->links_emulated, "text", costs->text);
}

static json_t *plan_body(const struct plan *plan, bool programs, struct err *err)
{
    json_t *ranks = json_array(), *groups = json_array();
    int bad = !ranks || !groups;
    for (uint32_t r = 0; !bad && r < plan->rank_count; r++)
        bad |= json_array_append_new(ranks, rank_json(&plan->ranks[r], programs, err));
    for (uint32_t g = 0; !bad && g < plan->group_count; g++)
        bad |= json_array_append_new(groups, group_json(&plan->groups[g]));
    json_t *micro = bad ? NULL : micro_batches_json(plan), *costs = bad ? NULL : costs_json(&plan->costs);
    if (bad || !micro || !costs) {
        json_decref(ranks);
        json_decref(groups);
        json_decref(micro);
        json_decref(costs);
        err_set(err, ERR_NOMEM, "plan: out of memory while encoding %u ranks", plan->rank_count);
        return NULL;
    }
    json_t *body = json_pack(
        "{s:I,s:s,s:i,s:I,s:o,s:I,s:I,s:I,s:I,s:b,s:o,s:o,s:o}", "version", (json_int_t)plan->version,
        "placement", plan_placement_name(plan->placement), "block_count", plan->block_count, "batch_rows",
        (json_int_t)plan->batch_rows, "micro_batches", micro, "tokens_bound", (json_int_t)plan->tokens_bound,
        "rows_bound", (json_int_t)plan->rows_bound, "labelled_bound", (json_int_t)plan->labelled_bound,
        "sequence_bound", (json_int_t)plan->sequence_bound, "trains_embedding", plan->trains_embedding,
        "ranks", ranks, "groups", groups, "costs", costs);
    if (body && plan->schedule != SCHEDULE_1F1B &&
        json_object_set_new(body, "schedule", json_string(plan_schedule_name(plan->schedule))) < 0) {
        json_decref(body);
        return NULL;
    }
    return body;
}

#define NUMBERS_EACH 14u /* how many numbers describe an instruction, without its `after` */
#define RUN_BYTES 16384u

/* A buffer of numbers for a digest, each in groups of seven bits, low groups first; small numbers of
 * either sign are short. */
struct number_run {
    struct digest *digest;
    size_t count;
    uint8_t bytes[RUN_BYTES];
};

static int numbers_flush(struct number_run *run, struct err *err)
{
    size_t size = run->count;
    run->count = 0;
    return size ? digest_update(run->digest, run->bytes, size, err) : 0;
}

#define NUMBER_BYTES 10u /* longest encoding of a number */

/* Writes a number; the caller has made room. Returns the end. */
static inline uint8_t *number_write(uint8_t *at, int64_t number)
{
    uint64_t left = number < 0 ? ((uint64_t)(-(number + 1)) << 1) | 1 : (uint64_t)number << 1;
    for (; left > 0x7f; left >>= 7)
        *at++ = (uint8_t)(left | 0x80);
    *at++ = (uint8_t)left;
    return at;
}

static inline int numbers_room(struct number_run *run, uint32_t count, struct err *err)
{
    return run->count + (size_t)count * NUMBER_BYTES > RUN_BYTES ? numbers_flush(run, err) : 0;
}

/* Digests number ops, queues and fields as the first plans of version 2 did, which had an op before BROADCAST
 * and a queue behind the compute queue that nothing used, and a field that was always 0. */
static uint8_t *instr_numbers(uint8_t *at, const struct instr *x)
{
    int64_t op = x->op + (x->op >= INSTR_BROADCAST), queue = x->queue + (x->queue > QUEUE_COMPUTE);
    at = number_write(at, op | queue << 8 | (int64_t)x->flags << 16);
    at = number_write(at, x->tag);
    at = number_write(at, x->micro_batch);
    at = number_write(at, x->block_begin);
    at = number_write(at, (int64_t)x->block_end - x->block_begin);
    at = number_write(at, x->peer);
    at = number_write(at, x->group);
    at = number_write(at, x->slot_in);
    at = number_write(at, x->slot_out);
    at = number_write(at, x->slot_save);
    at = number_write(at, x->row_begin);
    at = number_write(at, (int32_t)x->row_end); /* PLAN_ROWS_ALL is written as -1 */
    at = number_write(at, 0);
    return number_write(at, x->after_count);
}

static int program_numbers(struct number_run *run, const struct program *program, struct err *err)
{
    int result = numbers_room(run, 1, err);
    if (result == 0)
        run->count = (size_t)(number_write(&run->bytes[run->count], program->instr_count) - run->bytes);
    for (uint32_t i = 0; i < program->instr_count && result == 0; i++) {
        const struct instr *x = &program->instrs[i];
        result = numbers_room(run, NUMBERS_EACH, err);
        if (result == 0)
            run->count = (size_t)(instr_numbers(&run->bytes[run->count], x) - run->bytes);
        for (uint32_t k = 0; k < x->after_count && result == 0; k++) {
            result = numbers_room(run, 1, err);
            if (result == 0)
                run->count = (size_t)(number_write(&run->bytes[run->count],
                                                   (int64_t)i - program->after[x->after_first + k]) -
                                      run->bytes);
        }
    }
    return result;
}

static int rank_numbers(struct number_run *run, const struct plan_rank *rank, struct err *err)
{
    for (int kind = 0; kind < PROGRAM_KINDS; kind++)
        if (program_numbers(run, &rank->programs[kind], err) < 0)
            return -1;
    return numbers_flush(run, err);
}

/* Finishes the digest of the numbers and writes the digest in hex. */
static int run_end(struct number_run *run, char hex[PLAN_DIGEST_HEX], struct err *err)
{
    uint8_t sum[DIGEST_SIZE];
    if (digest_final(run->digest, sum, err) < 0)
        return -1;
    digest_hex(sum, sizeof(sum), hex);
    return 0;
}

/* Fills in the facts of a rank's programs that other ranks know: digests and updates. Programs are digested
 * as numbers, because folding and printing them would take longer than planning. A slice has these facts of
 * the other ranks instead of their programs. */
static int rank_seal(const struct plan *plan, struct plan_rank *rank, struct number_run *run, struct err *err)
{
    if (plan->slice_rank != PLAN_NONE && rank != &plan->ranks[plan->slice_rank])
        return 0;
    rank->programs_digest[0] = '\0';
    if (plan_updates_find(rank, err) < 0)
        return -1;
    if (plan->version == 1)
        return 0;
    if (!(run->digest = digest_create(err)))
        return -1;
    int result = rank_numbers(run, rank, err);
    if (result == 0)
        result = run_end(run, rank->programs_digest, err);
    digest_destroy(run->digest);
    return result;
}

/* Digests the frame, which has the digests of the programs; in version 1 the programs themselves follow. */
static int frame_digest(struct plan *plan, const json_t *frame, struct number_run *run, struct err *err)
{
    struct buf text;
    buf_init(&text, PLAN_JSON_BYTES_MAX);
    if (!(run->digest = digest_create(err)))
        return -1;
    int result = json_print(frame, true, &text, err);
    if (result == 0)
        result = digest_update(run->digest, text.data, text.size, err);
    for (uint32_t r = 0; r < plan->rank_count && plan->version == 1 && result == 0; r++)
        result = rank_numbers(run, &plan->ranks[r], err);
    if (result == 0)
        result = run_end(run, plan->digest, err);
    digest_destroy(run->digest);
    buf_fini(&text);
    return result;
}

int plan_seal(struct plan *plan, struct err *err)
{
    int result = 0;
    struct number_run *run = calloc(1, sizeof(*run));
    if (!run)
        return err_set(err, ERR_NOMEM, "plan: out of memory while sealing");
    for (uint32_t r = 0; r < plan->rank_count && result == 0; r++)
        result = rank_seal(plan, &plan->ranks[r], run, err);
    json_t *frame = result == 0 ? plan_body(plan, false, err) : NULL;
    result = frame ? frame_digest(plan, frame, run, err) : -1;
    json_decref(frame);
    free(run);
    return result;
}

json_t *plan_to_json(const struct plan *plan, struct err *err)
{
    json_t *body = plan_body(plan, true, err);
    if (body && (json_object_set_new(body, "digest", json_string(plan->digest)) < 0 ||
                 (plan->slice_rank != PLAN_NONE &&
                  json_object_set_new(body, "slice", json_integer(plan->slice_rank)) < 0))) {
        json_decref(body);
        err_set(err, ERR_NOMEM, "plan: out of memory while encoding");
        return NULL;
    }
    return body;
}
