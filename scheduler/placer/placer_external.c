/* Asks an external planner beside the built-in one. If it fails in any way, the job has the built-in plan. */
#include <string.h>

#include "common/clock.h"
#include "plug/plug.h"
#include "scheduler/placer/placer_private.h"

/* Returns the name of the external planner to ask, or NULL for none. `name` is the one in the specification,
 * or NULL. */
static const char *placer_external_name_of(const struct placer_request *request, const char *name)
{
    if (!name)
        return planners_find(request->planners, PLANNER_DEFAULT) ? PLANNER_DEFAULT : NULL;
    return strcmp(name, PLANNER_BUILT_IN) != 0 ? name : NULL;
}

/* Runs the program of the planner `name`; *document becomes its answer, new. */
static int placer_external_ask(const struct placer_request *request, const char *name, json_t **document,
                               struct err *err)
{
    const struct planner_entry *entry = planners_find(request->planners, name);
    if (!entry)
        return err_set(err, ERR_NOT_FOUND, "the scheduler's configuration has no planner of this name");
    json_t *problem = placer_problem(request, err);
    if (!problem)
        return -1;
    const int result = child_json(&entry->program, problem, request->cancel_fd, document, err);
    json_decref(problem);
    return result;
}

int placer_external(const struct placer_request *request, const char *name, const struct workload *workload,
                    const struct cluster *cluster, struct plan_answer *found, json_t **told, struct err *err)
{
    const char *asked = placer_external_name_of(request, name);
    json_t *document = NULL;
    struct err why = {0};
    *told = NULL;
    if (!asked)
        return 0;
    const uint64_t begin_ns = clock_mono_ns();
    if (placer_external_ask(request, asked, &document, &why) < 0 && why.code == ERR_NOMEM)
        return err_set(err, ERR_NOMEM, "%s", why.text);
    const struct planner_entry *entry = planners_find(request->planners, asked);
    const struct plug_answer theirs = {.name = asked,
                                       .document = document,
                                       .why = &why,
                                       .plan_s = (double)(clock_mono_ns() - begin_ns) * 1e-9,
                                       .slower_at_most = entry ? entry->slower_at_most : 0};
    const int result = plug_choose(&theirs, workload, cluster, found, told, err);
    json_decref(document);
    return result;
}
