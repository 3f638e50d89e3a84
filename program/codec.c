/* Converts a plan to json_t. Key names are stable; only instructions leave out defaults. */
#include "program/codec.h"

#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/digest.h"
#include "common/json.h"
#include "program/fold.h"
#include "program/plan_doc.h"
#include "program/update.h"

#define PLAN_JSON_BYTES_MAX ((size_t)1 << 30)

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

/* Writes a rank. Without programs_too, "programs" is an empty object. */
static json_t *codec_rank_json(const struct plan_rank *rank, bool programs_too, struct err *err)
{
    json_t *object = doc_write(&plan_rank_doc, rank, err);
    json_t *programs = !object ? NULL : programs_too ? programs_json(rank, err) : json_object();
    int bad = json_object_set_new(object, "programs", programs);
    if (rank->programs_digest[0]) { /* a sealed plan */
        bad |= json_object_set_new(object, "updates", tuples_json(rank->updates, rank->update_count, 3));
        bad |= json_object_set_new(object, "programs_digest", json_string(rank->programs_digest));
    }
    if (!bad)
        return object;
    json_decref(object);
    return NULL;
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

static json_t *plan_body(const struct plan *plan, bool programs, struct err *err)
{
    json_t *body = doc_write(&plan_frame_doc, plan, err), *ranks = json_array(), *groups = json_array();
    int bad = !body;
    for (uint32_t r = 0; !bad && r < plan->rank_count; r++)
        bad |= json_array_append_new(ranks, codec_rank_json(&plan->ranks[r], programs, err));
    for (uint32_t g = 0; !bad && g < plan->group_count; g++)
        bad |= json_array_append_new(groups, group_json(&plan->groups[g]));
    bad |= json_object_set_new(body, "ranks", ranks);
    bad |= json_object_set_new(body, "groups", groups);
    bad |= json_object_set_new(body, "version", json_integer(PLAN_VERSION));
    bad |= json_object_set_new(body, "placement", json_string(plan_placement_name(plan->placement)));
    bad |= json_object_set_new(body, "batch_rows", json_integer(plan->batch_rows));
    bad |= json_object_set_new(body, "micro_batches", micro_batches_json(plan));
    if (!bad)
        return body;
    json_decref(body);
    err_set(err, ERR_NOMEM, "plan: out of memory while encoding %u ranks", plan->rank_count);
    return NULL;
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
static inline uint8_t *codec_number_write(uint8_t *at, int64_t number)
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
    at = codec_number_write(at, op | queue << 8 | (int64_t)x->flags << 16);
    at = codec_number_write(at, x->tag);
    at = codec_number_write(at, x->micro_batch);
    at = codec_number_write(at, x->block_begin);
    at = codec_number_write(at, (int64_t)x->block_end - x->block_begin);
    at = codec_number_write(at, x->peer);
    at = codec_number_write(at, x->group);
    at = codec_number_write(at, x->slot_in);
    at = codec_number_write(at, x->slot_out);
    at = codec_number_write(at, x->slot_save);
    at = codec_number_write(at, x->row_begin);
    at = codec_number_write(at, (int32_t)x->row_end); /* PLAN_ROWS_ALL is written as -1 */
    at = codec_number_write(at, 0);
    return codec_number_write(at, x->after_count);
}

static int program_numbers(struct number_run *run, const struct program *program, struct err *err)
{
    int result = numbers_room(run, 1, err);
    if (result == 0)
        run->count = (size_t)(codec_number_write(&run->bytes[run->count], program->instr_count) - run->bytes);
    for (uint32_t i = 0; i < program->instr_count && result == 0; i++) {
        const struct instr *x = &program->instrs[i];
        result = numbers_room(run, NUMBERS_EACH, err);
        if (result == 0)
            run->count = (size_t)(instr_numbers(&run->bytes[run->count], x) - run->bytes);
        for (uint32_t k = 0; k < x->after_count && result == 0; k++) {
            result = numbers_room(run, 1, err);
            if (result == 0)
                run->count = (size_t)(codec_number_write(&run->bytes[run->count],
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
static int codec_run_end(struct number_run *run, char hex[PLAN_DIGEST_HEX], struct err *err)
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
    if (!(run->digest = digest_create(err)))
        return -1;
    int result = rank_numbers(run, rank, err);
    if (result == 0)
        result = codec_run_end(run, rank->programs_digest, err);
    digest_destroy(run->digest);
    return result;
}

/* Digests the frame, which has the digests of the programs. */
static int frame_digest(struct plan *plan, const json_t *frame, struct number_run *run, struct err *err)
{
    struct buf text;
    buf_init(&text, PLAN_JSON_BYTES_MAX);
    if (!(run->digest = digest_create(err)))
        return -1;
    int result = json_print(frame, true, &text, err);
    if (result == 0)
        result = digest_update(run->digest, text.data, text.size, err);
    if (result == 0)
        result = codec_run_end(run, plan->digest, err);
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
