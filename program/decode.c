/* Converts json_t to a plan. Every number is checked before use, every list before memory is allocated for
 * it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "program/codec.h"
#include "program/fold.h"
#include "program/plan_doc.h"

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

static bool is_update(const int64_t *numbers, int64_t group_count)
{
    return numbers[0] >= 0 && numbers[1] >= numbers[0] && numbers[1] <= PLAN_BLOCKS_MAX &&
           numbers[2] >= PLAN_NONE && numbers[2] < group_count;
}

static int updates_read(struct json_reader *r, const struct plan *plan, struct plan_rank *rank)
{
    return tuples_read(r,
                       &(struct tuple_list){.key = "updates",
                                            .refusal = "[begin, end, group]",
                                            .numbers = 3,
                                            .most = PROGRAM_INSTRS_MAX,
                                            .good = is_update,
                                            .limit = plan->group_count},
                       &rank->updates, &rank->update_count);
}

/* Reads the digest and the updates of each rank's programs. A slice has these in
 * place of the other ranks' programs. */
static int seals_read(struct json_reader *r, const struct plan *plan, struct plan_rank *rank)
{
    const char *digest = "";
    if (updates_read(r, plan, rank) < 0)
        return -1;
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
    if (doc_fields(&plan_rank_doc, r, rank) < 0 || programs_read(r, rank, budget) < 0 ||
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
    int placement = 0;
    uint32_t version = 0, batch_rows = 1, rows = 1;
    const json_t *ranks = NULL, *groups = NULL, *micro = NULL;
    jr_u32(r, "version", JR_REQUIRED, 0, UINT32_MAX, &version);
    if (!r->failed && version != PLAN_VERSION)
        jr_fail(r, "version", "%u; this program reads version %u", version, PLAN_VERSION);
    jr_choice(r, "placement", JR_REQUIRED, plan_placement_names, &placement);
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
    plan->placement = (enum plan_placement)placement;
    if (json_is_array(micro) && starts_read(r, plan, micro) < 0) {
        plan_destroy(plan);
        return NULL;
    }
    return plan;
}

static int decode_plan_read(struct json_reader *r, struct plan *plan, uint32_t budget, const char **digest)
{
    const json_t *ranks = NULL, *groups = NULL;
    int64_t slice = PLAN_NONE;
    doc_fields(&plan_frame_doc, r, plan);
    jr_i64(r, "slice", JR_OPTIONAL, 0, plan->rank_count - 1, &slice);
    plan->slice_rank = (int32_t)slice;
    jr_str(r, "digest", *digest ? JR_REQUIRED : JR_OPTIONAL, 0, PLAN_DIGEST_HEX - 1, digest);
    jr_array(r, "ranks", JR_REQUIRED, 1, PLAN_RANKS_MAX, &ranks);
    jr_array(r, "groups", JR_REQUIRED, 1, PLAN_GROUPS_MAX, &groups);
    if (r->failed)
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
    if (decode_plan_read(&r, plan, budget, &digest) < 0)
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
    return whole_only(plan_decode(json, most, NULL, err), err);
}

struct plan *plan_slice_from_json(const json_t *json, struct err *err)
{
    return plan_decode(json, PLAN_INSTRS_MAX, "", err);
}
