/* Tests which plans a worker accepts: its rank's slice of the run's plan. It refuses anything else by name.
 */
#include "worker/worker_fixture.h"

#include "worker/session/assign.h"

enum { RANKS = 2 };

struct scene {
    struct fixture fix;
    json_t *spec;
    struct plan *plan, *other; /* they differ in their micro-batches */
};

static json_t *assign_of(const struct scene *scene, const struct plan *plan, uint32_t rank)
{
    return fix_assign(&scene->fix, plan, scene->spec, rank, 1);
}

static void refused(json_t *assign, const char *part)
{
    struct err err;
    struct assignment *assignment = NULL;
    if (assignment_read(assign, &assignment, &err) == 0)
        fail_msg("accepted instead of: %s", part);
    if (err.code != ERR_PEER || !strstr(err.text, part))
        fail_msg("%s: %s", err_code_name(err.code), err.text);
}

static void accepted(json_t *assign, int32_t slice_rank)
{
    struct err err;
    struct assignment *assignment = NULL;
    if (assignment_read(assign, &assignment, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(assignment->plan->slice_rank, slice_rank);
    assignment_destroy(assignment);
}

static void a_wrong_slice_is_refused_by_name(void **state)
{
    (void)state;
    struct scene scene = {0};
    fix_open(&scene.fix, "llama");
    scene.spec = fix_spec(&scene.fix);
    scene.plan = fix_plan(&scene.fix, RANKS, 4);
    scene.other = fix_plan(&scene.fix, RANKS, 2);
    for (uint32_t r = 0; r < RANKS; r++)
        accepted(assign_of(&scene, scene.plan, r), (int32_t)r);

    json_t *assign = assign_of(&scene, scene.plan, 0), *right = assign_of(&scene, scene.plan, 1);
    json_object_set(assign, "plan", json_object_get(right, "plan"));
    refused(assign, "plan.slice: it is the slice of rank 1, and this is rank 0");
    json_decref(right);

    assign = assign_of(&scene, scene.plan, 0);
    right = assign_of(&scene, scene.other, 0);
    json_object_set(assign, "plan", json_object_get(right, "plan"));
    refused(assign, "plan.digest: it is a slice of plan");
    json_decref(right);

    assign = assign_of(&scene, scene.plan, 0);
    json_t *ranks = json_object_get(json_object_get(assign, "plan"), "ranks");
    json_object_set_new(json_array_get(ranks, 1), "device", json_string("elsewhere/cpu0"));
    refused(assign, "plan.digest");

    assign = assign_of(&scene, scene.plan, 0);
    json_object_del(assign, "plan");
    refused(assign, "plan: it is missing");

    plan_destroy(scene.plan);
    plan_destroy(scene.other);
    json_decref(scene.spec);
    fix_close(&scene.fix);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_wrong_slice_is_refused_by_name)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
