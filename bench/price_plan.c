/* Prices saved plans with one revision's simulator, whichever planner made them. `planner_beside.py` compiles
 * it against the older of two revisions, so that both planners' plans are checked and priced at the same
 * costs.
 *
 *   price_plan SPEC CLUSTER PLAN...
 *
 * It prints one line of JSON for each plan:
 * - "plan", "ranks", "stages", "instructions"
 * - "step_s", and "first_s": the first priced step alone, which is what a planner states for long programs
 * - "refused": why this revision refuses the plan (from_plan_check, plan_check), or null
 * - "memory_by": how memory was recomputed: "emit" reads the candidate from the plan and emits it again;
 *   "none" where the plan's stages are neither single ranks nor replicas
 * - "memory_declared": the least ratio, over ranks, of declared to recomputed bytes
 * - "memory_of_limit": the largest ratio of recomputed bytes to the device's limit
 * - "memory_over": number of ranks above their limit
 * - "memory_why": why memory was not recomputed
 * Exit status 1 if the inputs cannot be read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "planner/candidate/from_plan.h"
#include "planner/cost/price.h"
#include "planner/given/inputs.h"
#include "planner/kind/kind.h"
#include "program/codec.h"

#define OVER_LIMIT 1.000001 /* tolerance, because bytes are rounded to granules */

struct price_held { /* the memory of one plan, computed again from the plan */
    const char *by;
    double declared, of_limit;
    uint32_t over;
    char why[sizeof(((struct err *)0)->text)];
};

static void held_add(struct price_held *held, const struct plan_rank *rank, uint64_t need, uint64_t limit)
{
    double declared = need ? (double)rank->memory_bytes / (double)need : 1;
    double of_limit = limit ? (double)need / (double)limit : 0;
    held->declared = declared < held->declared ? declared : held->declared;
    held->of_limit = of_limit > held->of_limit ? of_limit : held->of_limit;
    held->over += of_limit > OVER_LIMIT;
}

static uint64_t limit_of(const struct problem *p, const struct plan_rank *rank)
{
    uint32_t device = cluster_device_find(p->cluster, rank->device);
    return device == UINT32_MAX ? 0 : p->cluster->devices[device].memory_limit_bytes;
}

/* Emits a plan again from the choices read out of this one, and adds the memory that its ranks then need to
 * *held. Ranks are matched by device. */
static void held_fill(const struct problem *p, const struct plan *plan, struct price_held *held)
{
    struct candidate candidate = {0};
    struct err err = {0};
    struct plan *again = NULL;
    *held = (struct price_held){.by = "none", .declared = 1e9};
    if (candidate_from_plan(p, plan, &candidate, &err) == 0)
        again = kinds[plan->placement]->emit(p, &candidate, false, &err);
    candidate_fini(&candidate);
    if (!again) {
        held->over += err.code == ERR_NOFIT;
        snprintf(held->why, sizeof(held->why), "%s", err.text);
        return;
    }
    held->by = "emit";
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        for (uint32_t k = 0; k < again->rank_count; k++)
            if (strcmp(again->ranks[k].device, plan->ranks[r].device) == 0)
                held_add(held, &plan->ranks[r], again->ranks[k].memory_bytes, limit_of(p, &plan->ranks[r]));
    }
    plan_destroy(again);
}

static json_t *priced(const struct problem *p, const char *path, struct err *err)
{
    struct price_held held = {.by = "none"};
    double step_s = 0, first_s = 0;
    uint64_t instructions = 0;
    uint32_t stages = 0;
    json_error_t where;
    json_t *document = json_load_file(path, 0, &where), *told = NULL;
    struct plan *plan = document ? plan_from_json(document, err) : NULL, *kept = NULL;
    if (!document)
        err_set(err, ERR_INVALID, "%s: %s", path, where.text);
    json_decref(document);
    if (plan && from_plan_check(p, plan, err) == 0)
        kept = from_plan_keep(p, plan, p->step_count, &step_s, err);
    for (uint32_t r = 0; plan && r < plan->rank_count; r++) {
        instructions += plan->ranks[r].programs[PROGRAM_TRAIN].instr_count;
        stages = (uint32_t)plan->ranks[r].stage >= stages ? (uint32_t)plan->ranks[r].stage + 1 : stages;
    }
    if (kept && price_plan(p, kept, 1, &first_s, err) == 0)
        held_fill(p, kept, &held);
    told = json_pack("{s:s, s:f, s:f, s:I, s:I, s:I, s:s?, s:s, s:f, s:f, s:I, s:s?}", "plan", path, "step_s",
                     step_s, "first_s", first_s, "ranks", (json_int_t)(plan ? plan->rank_count : 0), "stages",
                     (json_int_t)stages, "instructions", (json_int_t)instructions, "refused",
                     kept ? NULL : err->text, "memory_by", held.by, "memory_declared", held.declared,
                     "memory_of_limit", held.of_limit, "memory_over", (json_int_t)held.over, "memory_why",
                     *held.why ? held.why : NULL);
    plan_destroy(plan);
    plan_destroy(kept);
    return told;
}

int main(int argc, char **argv)
{
    struct plan_inputs inputs = {0};
    struct problem problem;
    struct err err = {0};
    json_t *rows = NULL;
    if (argc < 4) {
        fprintf(stderr, "price_plan SPEC CLUSTER PLAN...\n");
        return 2;
    }
    int result = given_by_files(argv[1], argv[2], NULL, &inputs, &rows, &err);
    bool prepared = result == 0 && problem_init(&problem, &inputs.workload, inputs.cluster, &err) == 0;
    result = prepared ? 0 : -1;
    for (int i = 3; i < argc && result == 0; i++) {
        struct err why = {0};
        json_t *told = priced(&problem, argv[i], &why);
        result = told && json_dumpf(told, stdout, JSON_COMPACT) == 0 ? 0 : -1;
        printf("\n");
        json_decref(told);
    }
    if (result < 0)
        fprintf(stderr, "price_plan: %s\n", *err.text ? err.text : "out of memory");
    if (prepared)
        problem_fini(&problem);
    json_decref(rows);
    plan_inputs_fini(&inputs);
    return result < 0;
}
