/* Arrays: makes an array's elements into jobs as devices could take them, and ends an array when its elements
 * have ended. */
#include "scheduler/pass/pass.h"

#include <stdio.h>
#include <string.h>

#include "model/job/order.h"
#include "model/job/spec_array.h"

/* most elements of an array that one pass makes into jobs */
enum { ELEMENTS_A_PASS = 64 };

static void move(struct scheduler_pass *pass, const struct store_sched_array *array, enum job_event event,
                 json_t *why)
{
    struct err err;
    const int to = state_next(&job_machine, (int)array->state, (int)event, &err);
    if (to < 0)
        json_decref(why);
    else
        pass_add(pass, pass->jobs,
                 json_pack("{s:I, s:s, s:s, s:o?}", "job", (json_int_t)array->id, "before",
                           state_name(&job_machine, (int)array->state), "state", state_name(&job_machine, to),
                           "why", why));
}

/* Returns the number of steps of an element, or -1. Epochs are counted with the number of rows that the
 * array's check has found. */
static int64_t pass_arrays_steps_of(const json_t *element, const json_t *inputs, struct err *err)
{
    struct job_spec spec;
    if (spec_parse(element, &spec, err) < 0)
        return -1;
    const struct order order = {.seed = spec.train.seed,
                                .shuffle = spec.data.shuffle,
                                .row_count = (uint32_t)json_integer_value(json_object_get(inputs, "rows")),
                                .batch_rows = spec.train.batch_rows,
                                .steps = spec.train.steps,
                                .epochs = spec.train.epochs};
    const int64_t steps = (int64_t)order_step_count(&order);
    spec_fini(&spec);
    return steps;
}

/* Makes an element into a job. Returns false, and ends the array, if the specification does not give such an
 * element; submits check every element, so only an array that an older release accepted can fail here. */
static bool make(struct scheduler_pass *pass, const struct store_sched_array *array, uint32_t index)
{
    struct err err;
    json_t *element = spec_array_element(array->spec, index, &err);
    const int64_t steps = element ? pass_arrays_steps_of(element, array->inputs, &err) : -1;
    if (steps < 0) {
        json_decref(element);
        move(pass, array, JOB_EVENT_REFUSE, json_sprintf("element %u: %s", index, err.text));
        return false;
    }
    const char *name = json_string_value(json_object_get(element, "name"));
    pass_add(pass, pass->elements,
             json_pack("{s:I, s:I, s:s, s:I, s:o}", "array", (json_int_t)array->id, "index",
                       (json_int_t)index, "name", name, "steps", (json_int_t)steps, "spec", element));
    return true;
}

/* Makes as many elements into jobs as devices could take, so that the policies see the jobs among which they
 * divide the devices. At least one element is made, which then says what it waits for. */
static void make_due(struct scheduler_pass *pass, const struct store_sched_array *array)
{
    uint32_t wanted = 0, room = array->size - array->made;
    for (size_t d = 0; d < pass->view->device_count; d++)
        wanted +=
            pass->view->devices[d].present && pass_allows(array->spec, pass->view->devices[d].name) ? 1 : 0;
    wanted = wanted == 0 ? 1 : wanted > ELEMENTS_A_PASS ? ELEMENTS_A_PASS : wanted;
    if (array->at_most > 0) {
        const uint32_t busy = array->open - array->held;
        const uint32_t left = array->at_most > busy ? array->at_most - busy : 0;
        room = left < room ? left : room;
    }
    uint32_t n = 0;
    while (array->waiting + n < wanted && n < room && make(pass, array, array->made + n))
        n++;
}

static void end_running(struct scheduler_pass *pass, const struct store_sched_array *array)
{
    if (array->bad > 0)
        move(pass, array, JOB_EVENT_MISS,
             json_sprintf("%u of %u elements did not succeed, job %lld the first", array->bad, array->size,
                          (long long)array->first_bad));
    else
        move(pass, array, JOB_EVENT_DONE, NULL);
}

void pass_arrays(struct scheduler_pass *pass)
{
    for (size_t i = 0; i < pass->view->array_count && !pass->failed; i++) {
        const struct store_sched_array *array = &pass->view->arrays[i];
        if (array->spec)
            make_due(pass, array);
        else if (array->state == JOB_QUEUED && array->made == array->size)
            move(pass, array, JOB_EVENT_UNFOLD, NULL);
        else if (array->state == JOB_RUNNING && array->open == 0)
            end_running(pass, array);
        else if (array->state == JOB_STOPPING && array->open == array->held)
            move(pass, array, array->stop_why == STOP_CANCEL ? JOB_EVENT_CANCELLED : JOB_EVENT_HELD, NULL);
    }
}
