/* Reading an assignment into a choice, and letting its generator emit it. */
#include "planner/plug/document.h"

#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "planner/cost/micro.h"
#include "planner/search/placement.h"

static const char *const placement_words[] = {"single", "pipeline", "data",   "hybrid",
                                              "expert", "tensor",   "server", NULL};
static const char *const schedule_words[] = {"1f1b", "gpipe", "interleaved", "split backward", NULL};

/* The assignment being read. */
struct reading {
    const struct problem *problem;
    struct place_choice *choice;
    uint32_t micro_batches;
};

/* Of a stage with one member these say what the stage says already, or they contradict it. */
static void same_as_stage(struct json_reader *r, const struct reading *reading)
{
    const struct workload *w = reading->problem->workload;
    const struct {
        const char *key;
        uint32_t only;
    } all[] = {{"rows", w->batch_rows},
               {"micro_rows", reading->choice->micro_batch_rows},
               {"micro_count", reading->micro_batches}};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        uint32_t given = all[i].only;
        if (jr_u32(r, all[i].key, JR_OPTIONAL, 0, UINT32_MAX, &given) == 1 && given != all[i].only)
            jr_fail(r, all[i].key, "%u; the only member of a stage has %u", given, all[i].only);
    }
    double share = 1;
    jr_f64(r, "state_share", JR_OPTIONAL, 0, 1, &share);
}

static int member_read(struct json_reader *r, const struct reading *reading, struct place_member *member)
{
    const struct problem *p = reading->problem;
    const char *name = "";
    if (jr_str(r, "device", JR_REQUIRED, 1, 255, &name) < 0)
        return -1;
    uint32_t device = cluster_device_find(p->cluster, name);
    if (device == UINT32_MAX)
        return jr_fail(r, "device", "there is no device \"%.100s\"", name);
    if (!p->usable[device])
        return jr_fail(r, "device", "%.100s is not to be used", name);
    if (choice_uses(reading->choice, device))
        return jr_fail(r, "device", "%.100s is there twice", name);
    *member = (struct place_member){.device = device,
                                    .micro_rows = reading->choice->micro_batch_rows,
                                    .micro_count = reading->micro_batches,
                                    .state_share = 1,
                                    .recompute = !micro_recompute_allowed(p, false)};
    jr_u32(r, "window", JR_OPTIONAL, 1, PLAN_MICRO_BATCHES_MAX, &member->window);
    jr_bool(r, "recompute", JR_OPTIONAL, &member->recompute);
    if (!r->failed && !micro_recompute_allowed(p, member->recompute))
        jr_fail(r, "recompute", "the specification asks for the other");
    same_as_stage(r, reading);
    return jr_finish(r);
}

static int stage_read(struct json_reader *r, struct reading *reading)
{
    struct place_choice *choice = reading->choice;
    const int32_t begin = choice->stage_count ? choice->stages[choice->stage_count - 1].block_end : 0;
    const json_t *blocks = NULL, *members = NULL;
    struct json_reader item;
    if (jr_array(r, "blocks", JR_REQUIRED, 2, 2, &blocks) < 0 ||
        jr_array(r, "members", JR_REQUIRED, 1, CLUSTER_DEVICES_MAX, &members) < 0)
        return -1;
    const json_t *first = json_array_get(blocks, 0), *end = json_array_get(blocks, 1);
    if (!json_is_integer(first) || !json_is_integer(end) || json_integer_value(first) != begin ||
        json_integer_value(end) <= begin || json_integer_value(end) > reading->problem->block_count)
        return jr_fail(r, "blocks", "they are not [%d, end) with end at most %d", begin,
                       reading->problem->block_count);
    if (json_array_size(members) > 1)
        return err_set(r->err, ERR_UNSUPPORTED,
                       "%s.members: stages of several members are answered as a whole plan in this release",
                       r->path);
    if (jr_item(r, "members", members, 0, &item) < 0 ||
        member_read(&item, reading, &choice->members[choice->member_count]) < 0)
        return -1;
    choice->stages[choice->stage_count++] =
        (struct place_stage){.block_begin = begin,
                             .block_end = (int32_t)json_integer_value(end),
                             .member_first = choice->member_count++,
                             .member_count = 1};
    return jr_finish(r);
}

/* Windows that nobody gave; and none may grow down the pipeline, since a stage cannot have more micro-batches
 * in flight than come to it. */
static int windows_settle(struct reading *reading, struct err *err)
{
    struct place_choice *choice = reading->choice;
    for (uint32_t s = 0; s < choice->stage_count; s++) {
        struct place_member *member = &choice->members[s];
        const uint32_t left = choice->stage_count - s;
        if (member->window == 0 && choice->schedule == SCHEDULE_GPIPE)
            member->window = reading->micro_batches;
        else if (member->window == 0)
            member->window = left < reading->micro_batches ? left : reading->micro_batches;
        if (s > 0 && member->window > choice->members[s - 1].window)
            return err_set(err, ERR_INVALID,
                           "stages[%u].members[0].window: %u, more than the %u of the stage before", s,
                           member->window, choice->members[s - 1].window);
        if (choice->schedule == SCHEDULE_GPIPE && member->window < reading->micro_batches)
            return err_set(err, ERR_INVALID,
                           "stages[%u].members[0].window: %u; gpipe has all %u micro-batches in flight", s,
                           member->window, reading->micro_batches);
    }
    return 0;
}

static int frame_read(struct json_reader *r, struct reading *reading, const json_t **stages)
{
    const struct problem *p = reading->problem;
    uint32_t version = 0;
    int placement = 0, schedule = SCHEDULE_1F1B;
    jr_u32(r, "version", JR_REQUIRED, ASSIGNMENT_VERSION, ASSIGNMENT_VERSION, &version);
    jr_choice(r, "placement", JR_REQUIRED, placement_words, &placement);
    jr_choice(r, "schedule", JR_OPTIONAL, schedule_words, &schedule);
    jr_u32(r, "micro_batch_rows", JR_REQUIRED, 1, p->workload->batch_rows,
           &reading->choice->micro_batch_rows);
    jr_array(r, "stages", JR_REQUIRED, 1, (size_t)p->block_count, stages);
    if (jr_finish(r) < 0)
        return -1;
    reading->choice->placement = (enum plan_placement)plan_placement_from_name(placement_words[placement]);
    reading->choice->schedule = (enum plan_schedule)schedule;
    reading->micro_batches = micro_count(p, reading->choice->micro_batch_rows);
    const bool single = reading->choice->placement == PLACE_SINGLE;
    if (!single && reading->choice->placement != PLACE_PIPELINE)
        return err_set(r->err, ERR_UNSUPPORTED, "placement: %s is answered as a whole plan in this release",
                       placement_words[placement]);
    if (schedule != SCHEDULE_1F1B && schedule != SCHEDULE_GPIPE)
        return err_set(r->err, ERR_UNSUPPORTED, "schedule: %s is answered as a whole plan in this release",
                       schedule_words[schedule]);
    if (single != (json_array_size(*stages) == 1))
        return jr_fail(r, "stages", "%zu; %s", json_array_size(*stages),
                       single ? "single has one" : "a pipeline has two at least");
    return 0;
}

static int choice_read(const json_t *document, struct reading *reading, struct err *err)
{
    struct place_choice *choice = reading->choice;
    struct json_reader r;
    const json_t *stages = NULL;
    jr_init(&r, document, "", err);
    if (frame_read(&r, reading, &stages) < 0)
        return -1;
    const size_t count = json_array_size(stages);
    choice->stages = calloc(count, sizeof(*choice->stages));
    choice->members = calloc(count, sizeof(*choice->members));
    if (!choice->stages || !choice->members)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    for (size_t s = 0; s < count; s++) {
        struct json_reader item;
        if (jr_item(&r, "stages", stages, s, &item) < 0 || stage_read(&item, reading) < 0)
            return -1;
    }
    if (choice->stages[count - 1].block_end != reading->problem->block_count)
        return jr_fail(&r, "stages", "they end at block %d of %d", choice->stages[count - 1].block_end,
                       reading->problem->block_count);
    return windows_settle(reading, err);
}

int plan_from_document(const json_t *document, const struct workload *workload, const struct cluster *cluster,
                       struct plan **plan, struct err *err)
{
    struct problem problem;
    struct place_choice choice = {0};
    struct reading reading = {.problem = &problem, .choice = &choice};
    *plan = NULL;
    if (problem_init(&problem, workload, cluster, err) < 0)
        return -1;
    if (choice_read(document, &reading, err) == 0)
        *plan = placement_find(choice.placement)->emit(&problem, &choice, true, err);
    choice_fini(&choice);
    problem_fini(&problem);
    return *plan ? 0 : -1;
}
