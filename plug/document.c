#include "plug/document.h"

#include <math.h>
#include <string.h>

#include "common/json.h"
#include "planner/kind/cut.h"

static const char *const placement_words[] = {"single", "pipeline", "data",   "hybrid",
                                              "expert", "tensor",   "server", NULL};
static const char *const schedule_words[] = {"1f1b", "gpipe", "interleaved", "split backward", NULL};
static const char *const kind_words[] = {"replicas", "sharded", "server", "tensor", "expert", NULL};

/* The assignment that is being read. */
struct assignment_reader {
    const struct problem *problem;
    const struct placement_kind *kind;
    struct candidate *c;
    uint32_t stages; /* stages of the document */
    uint32_t cut;    /* stages so far that have blocks */
    /* said: the document gives a field that settle() (planner/kind/kind.h) would choose; eager: it gives
     * "eager" */
    bool said, eager;
    bool rows_by_each; /* each member has its own micro-batch size (placements data and server) */
};

/* --- members --- */

static int document_part_read(struct json_reader *r, const char *key, uint32_t *begin, uint32_t *end)
{
    const json_t *pair = NULL;
    if (jr_array(r, key, JR_REQUIRED, 2, 2, &pair) < 0)
        return -1;
    const json_t *first = json_array_get(pair, 0), *last = json_array_get(pair, 1);
    if (!json_is_integer(first) || !json_is_integer(last) || json_integer_value(first) < 0 ||
        json_integer_value(last) < json_integer_value(first) || json_integer_value(last) > UINT32_MAX)
        return jr_fail(r, key, "it is not [begin, end)");
    *begin = (uint32_t)json_integer_value(first);
    *end = (uint32_t)json_integer_value(last);
    return 0;
}

static int document_tensor_read(struct json_reader *r, struct plan_tensor *part)
{
    struct json_reader sub;
    const int there = jr_sub(r, "tensor", JR_OPTIONAL, &sub);
    if (there <= 0)
        return there;
    document_part_read(&sub, "kv_heads", &part->kv_head_begin, &part->kv_head_end);
    document_part_read(&sub, "columns", &part->column_begin, &part->column_end);
    return jr_finish(&sub) < 0 ? -1 : 1;
}

static int document_device_read(struct json_reader *r, const struct assignment_reader *reading,
                                uint32_t *device)
{
    const struct problem *p = reading->problem;
    const char *name = "";
    if (jr_str(r, "device", JR_REQUIRED, 1, 255, &name) < 0)
        return -1;
    *device = cluster_device_find(p->cluster, name);
    if (*device == UINT32_MAX)
        return jr_fail(r, "device", "there is no device \"%.100s\"", name);
    if (!p->usable[*device])
        return jr_fail(r, "device", "%.100s is not to be used: %s", name, problem_why_unusable(p, *device));
    return candidate_uses(reading->c, *device) ? jr_fail(r, "device", "%.100s is there twice", name) : 0;
}

static int document_member_read(struct json_reader *r, struct assignment_reader *reading)
{
    struct candidate *c = reading->c;
    const struct problem *p = reading->problem;
    const uint32_t batch = p->workload->batch_rows, most = PLAN_MICRO_BATCHES_MAX;
    struct member m = {.rows = c->micro_batch_rows,
                       .window = c->schedule == SCHEDULE_GPIPE ? most : reading->stages - c->stage_count,
                       .recompute = !micro_recompute_allowed(p, false),
                       .state_share = 1};
    if (document_device_read(r, reading, &m.device) < 0)
        return -1;
    reading->said |= jr_u32(r, "rows", JR_OPTIONAL, 1, batch, &m.rows) > 0;
    reading->said |= jr_u32(r, "count", JR_OPTIONAL, 0, batch, &m.count) > 0;
    reading->said |= jr_u32(r, "window", JR_OPTIONAL, 1, most, &m.window) > 0;
    reading->said |= jr_u32(r, "delay", JR_OPTIONAL, 0, most, &m.delay) > 0;
    reading->said |= jr_bool(r, "recompute", JR_OPTIONAL, &m.recompute) > 0;
    reading->said |= jr_f64(r, "state_share", JR_OPTIONAL, 0, 1, &m.state_share) > 0;
    reading->said |= jr_f64(r, "expert_share", JR_OPTIONAL, 0, 1, &m.expert_share) > 0;
    reading->said |= document_tensor_read(r, &m.tensor) > 0;
    if (!r->failed && !micro_recompute_allowed(p, m.recompute))
        jr_fail(r, "recompute", "the specification asks for the other");
    if (!r->failed && m.count && !reading->rows_by_each)
        jr_fail(r, "count", "members of this placement have no micro-batches of their own");
    c->members[c->member_count++] = m;
    return jr_finish(r);
}

/* --- stages --- */

/* Reads the blocks of a stage. If no stage gives blocks, they are divided evenly until complete() cuts them.
 */
static int document_blocks_read(struct json_reader *r, struct assignment_reader *reading,
                                struct candidate_stage *stage)
{
    const uint32_t s = reading->c->stage_count;
    const int32_t all = reading->problem->block_count, begin = s ? stage[-1].block_end : 0;
    const json_t *blocks = NULL;
    stage->block_begin = begin;
    stage->block_end = (int32_t)((int64_t)all * (s + 1) / reading->stages);
    const int there = jr_array(r, "blocks", JR_OPTIONAL, 2, 2, &blocks);
    if (there < 0 || (there == 0 && reading->cut == 0))
        return there;
    if (there == 0 || reading->cut++ < s)
        return jr_fail(r, "blocks", "either all stages say theirs, or none");
    const json_t *first = json_array_get(blocks, 0), *end = json_array_get(blocks, 1);
    if (!json_is_integer(first) || !json_is_integer(end) || json_integer_value(first) != begin ||
        json_integer_value(end) <= begin || json_integer_value(end) > all)
        return jr_fail(r, "blocks", "they are not [%d, end) with end at most %d", begin, all);
    stage->block_end = (int32_t)json_integer_value(end);
    return 0;
}

static int document_stage_read(struct json_reader *r, struct assignment_reader *reading)
{
    struct candidate *c = reading->c;
    const struct placement_kind *kind = reading->kind;
    struct candidate_stage *stage = &c->stages[c->stage_count];
    const json_t *members = NULL;
    int word = (int)kind->stage_kind;
    if (document_blocks_read(r, reading, stage) < 0 ||
        jr_choice(r, "kind", JR_OPTIONAL, kind_words, &word) < 0 ||
        jr_array(r, "members", JR_REQUIRED, 1, CLUSTER_DEVICES_MAX, &members) < 0)
        return -1;
    const uint32_t count = (uint32_t)json_array_size(members);
    if (word != (int)kind->stage_kind)
        return jr_fail(r, "kind", "stages of this placement are %s", kind_words[kind->stage_kind]);
    if (count > kind->members_most)
        return jr_fail(r, "members", "%u; stages of this placement have %u at most", count,
                       kind->members_most);
    if (candidate_reserve(c, reading->stages, c->member_count + count, r->err) < 0)
        return -1;
    stage->kind = kind->stage_kind;
    stage->member_first = c->member_count;
    stage->member_count = count;
    for (uint32_t m = 0; m < count; m++) {
        struct json_reader item;
        if (jr_item(r, "members", members, m, &item) < 0 || document_member_read(&item, reading) < 0)
            return -1;
        const struct member *x = &c->members[c->member_count - 1];
        if (c->stage_count && count == 1 && stage[-1].member_count == 1 && x->window > x[-1].window)
            return jr_fail(&item, "window", "%u, more than the %u of the stage before", x->window,
                           x[-1].window);
    }
    c->stage_count++;
    return jr_finish(r);
}

/* --- the document --- */

static int frame_read(struct json_reader *r, struct assignment_reader *reading, const json_t **stages)
{
    const struct problem *p = reading->problem;
    struct candidate *c = reading->c;
    uint32_t version = 0;
    int placement = 0, schedule = SCHEDULE_1F1B;
    jr_u32(r, "version", JR_REQUIRED, ASSIGNMENT_VERSION, ASSIGNMENT_VERSION, &version);
    jr_choice(r, "placement", JR_REQUIRED, placement_words, &placement);
    jr_choice(r, "schedule", JR_OPTIONAL, schedule_words, &schedule);
    jr_u32(r, "micro_batch_rows", JR_OPTIONAL, 1, p->workload->batch_rows, &c->micro_batch_rows);
    reading->eager = jr_bool(r, "eager", JR_OPTIONAL, &c->eager) > 0;
    reading->said |= jr_u32(r, "together", JR_OPTIONAL, 1, PLAN_MICRO_BATCHES_MAX, &c->together) > 0;
    c->placement = (enum plan_placement)plan_placement_from_name(placement_words[placement]);
    c->schedule = (enum plan_schedule)schedule;
    const struct placement_kind *kind = reading->kind = kinds[c->placement];
    reading->rows_by_each = kind->stage_kind == STAGE_SHARDED || kind->stage_kind == STAGE_SERVER;
    reading->said |= reading->eager || schedule != SCHEDULE_1F1B;
    c->gathered_layers = reading->rows_by_each && p->workload->method == METHOD_FULL ? 2 : 0;
    jr_u32(r, "gathered_layers", JR_OPTIONAL, 0, (uint32_t)p->block_count, &c->gathered_layers);
    jr_array(r, "stages", JR_REQUIRED, 1, (size_t)p->block_count, stages);
    if (jr_finish(r) < 0)
        return -1;
    if (schedule == SCHEDULE_INTERLEAVED)
        return err_set(r->err, ERR_UNSUPPORTED, "schedule: interleaved is not said in an assignment");
    reading->stages = (uint32_t)json_array_size(*stages);
    if (reading->stages < kind->stages_least || reading->stages > kind->stages_most)
        return jr_fail(r, "stages", "%u; %s has %s", reading->stages, placement_words[placement],
                       kind->stages_most == 1 ? "one" : "two at least");
    return kind_supports(kind, p, r->err) ? 0 : err_wrap(r->err, "placement: %s", placement_words[placement]);
}

/* Checks that the micro-batches make up the batch. */
static int document_rows_check(struct json_reader *r, const struct assignment_reader *reading)
{
    struct candidate *c = reading->c;
    const uint32_t batch = reading->problem->workload->batch_rows;
    uint64_t rows = 0;
    uint32_t most = 0;
    if (c->micro_batch_rows == 0 && !reading->rows_by_each)
        return jr_fail(r, "micro_batch_rows", "it is missing, where members say more than their devices");
    for (uint32_t m = 0; m < c->member_count; m++) {
        const struct member *x = &c->members[m];
        rows += (uint64_t)x->rows * x->count;
        most = x->count && x->rows > most ? x->rows : most;
        if (reading->kind->stage_kind == STAGE_REPLICAS && x->rows != c->micro_batch_rows)
            return jr_fail(r, "stages", "%s takes %u rows of micro-batches of %u",
                           reading->problem->cluster->devices[x->device].name, x->rows, c->micro_batch_rows);
    }
    if (reading->rows_by_each && rows != batch)
        return jr_fail(r, "stages", "members take %llu rows (rows · count) of %u", (unsigned long long)rows,
                       batch);
    c->micro_batch_rows = reading->rows_by_each ? most : c->micro_batch_rows;
    return 0;
}

static int document_read(struct assignment_reader *reading, const json_t *document, struct err *err)
{
    struct candidate *c = reading->c;
    struct json_reader r;
    const json_t *stages = NULL;
    jr_init(&r, document, "", err);
    if (frame_read(&r, reading, &stages) < 0 ||
        candidate_reserve(c, reading->stages, reading->stages, err) < 0)
        return -1;
    for (uint32_t s = 0; s < reading->stages; s++) {
        struct json_reader item;
        if (jr_item(&r, "stages", stages, s, &item) < 0 || document_stage_read(&item, reading) < 0)
            return -1;
    }
    const int32_t end = c->stages[c->stage_count - 1].block_end, all = reading->problem->block_count;
    if (end != all)
        return jr_fail(&r, "stages", "they end at block %d of %d", end, all);
    if (!reading->eager)
        c->eager = c->stage_count > 1 && c->member_count > c->stage_count;
    return reading->said ? document_rows_check(&r, reading) : 0;
}

/* --- missing fields --- */

/* Completes *now at its micro-batch size. Returns 1 if it fits, 0, −1 on ERR_NOMEM. */
static int document_complete(const struct assignment_reader *reading, struct workbench *bench,
                             struct candidate *now)
{
    const struct placement_kind *kind = reading->kind;
    int fits = reading->cut || now->stage_count == 1 ? 1 : cut_blocks(bench, kind, now);
    bench->whole_layers = reading->cut;
    if (fits > 0 && !reading->said)
        return kind->settle(bench, now);
    /* Cutting may have changed which members recompute, so the given members are restored. */
    memcpy(now->members, reading->c->members, now->member_count * sizeof(*now->members));
    now->estimate_s = 0;
    return fits;
}

/* Whether the settled candidate can be emitted as a plan. Settling estimates memory from mean buffer sizes,
 * so only emitting shows whether it fits. */
static bool emits(const struct assignment_reader *reading, const struct candidate *now, struct err *why)
{
    struct plan *plan = reading->said ? NULL : reading->kind->emit(reading->problem, now, false, why);
    plan_destroy(plan);
    return reading->said || plan;
}

/* Tries all micro-batch sizes if none is given, and takes the fastest. Returns 1; 0 if none fits, and *why
 * may say what is too small; −1 on ERR_NOMEM. */
static int sizes_try(const struct assignment_reader *reading, struct workbench *bench, struct err *why)
{
    struct candidate *c = reading->c, now = {0}, best = {.estimate_s = INFINITY};
    uint32_t sizes[MICRO_SIZES_MAX] = {c->micro_batch_rows}, count = 1;
    int result = 0;
    if (c->micro_batch_rows == 0)
        count = micro_sizes(reading->problem, sizes);
    if (reading->rows_by_each) /* each member has its own micro-batch size */
        count = 1;
    for (uint32_t i = 0; i < count && result >= 0; i++) {
        result = candidate_copy(&now, c, bench->err);
        now.micro_batch_rows = sizes[i];
        if (result < 0 || candidate_cells(reading->problem, &now) > ASSIGNMENT_CELLS_MAX)
            continue;
        bench->rival_s = best.estimate_s;
        result = document_complete(reading, bench, &now);
        if (result > 0 && now.estimate_s < best.estimate_s && emits(reading, &now, why)) {
            struct candidate held = best;
            best = now;
            now = held;
        }
    }
    const struct shortage *least = &bench->shortage[c->placement];
    if (least->missing_bytes)
        err_set(why, ERR_NOFIT, "%s needs %llu bytes, its limit is %llu",
                least->device == UINT32_MAX ? "all of it"
                                            : reading->problem->cluster->devices[least->device].name,
                (unsigned long long)least->needs_bytes, (unsigned long long)least->has_bytes);
    candidate_fini(&now);
    candidate_fini(c);
    *c = best;
    return result < 0 ? -1 : best.member_count > 0;
}

int candidate_run_check(const struct problem *problem, const struct candidate *candidate, struct err *err)
{
    const struct placement_kind *kind = kinds[candidate->placement];
    if (!kind->runnable || kind->runnable(problem, candidate))
        return 0;
    return err_set(err, ERR_UNSUPPORTED, "workers of this release do not run such a plan (%s, %s)",
                   plan_placement_name(candidate->placement), plan_schedule_name(candidate->schedule));
}

int candidate_from_document(const struct problem *problem, const json_t *document, bool runnable_only,
                            struct candidate *candidate, struct err *err)
{
    struct assignment_reader reading = {.problem = problem, .c = candidate};
    struct workbench bench;
    struct err why;
    *candidate = (struct candidate){0};
    if (document_read(&reading, document, err) < 0 ||
        (runnable_only && candidate_run_check(problem, candidate, err) < 0))
        return -1;
    if (candidate->micro_batch_rows && candidate_cells(problem, candidate) > ASSIGNMENT_CELLS_MAX)
        return err_set(err, ERR_TOO_BIG, "%u ranks with micro-batches of %u rows are too many to simulate",
                       candidate->member_count, candidate->micro_batch_rows);
    err_set(&why, ERR_NOFIT, "these stages do not fit on these devices");
    workbench_init(&bench, problem, err);
    int fits = sizes_try(&reading, &bench, &why);
    workbench_fini(&bench);
    if (fits == 0)
        *err = why;
    return fits > 0 ? 0 : -1;
}
