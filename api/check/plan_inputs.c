/* Makes the document of all inputs of a plan, for commands that plan by themselves: `motley replay`, `motley
 * plan --draw`. */
#include "api/check/check_private.h"

#include <string.h>

#include "planner/given/inputs.h"

/* Whether a plan may use a device in this state. A submitted job may wait for a device that is drained or
 * unreachable now, as it may be back when the job starts. */
static bool usable(const struct spec_check *check, const char *state)
{
    return check->depth == CHECK_SUBMIT ||
           (strcmp(state, "unreachable") != 0 && strcmp(state, "drained") != 0 &&
            strcmp(state, "draining") != 0 && strcmp(state, "lacking") != 0);
}

/* Applies the device's present memory and heat. A plan uses them; a submit does not, since it asks whether
 * the job can ever run. */
static void as_it_is_now(const json_t *health, json_t *device)
{
    const json_int_t bytes = json_integer_value(json_object_get(health, "usable_bytes"));
    const double heat = json_number_value(json_object_get(health, "heat"));
    if (bytes > 0 && bytes < json_integer_value(json_object_get(device, "memory_limit_bytes")))
        json_object_set_new(device, "memory_limit_bytes", json_integer(bytes));
    if (heat > 0 && heat < 1)
        json_object_set_new(device, "heat", json_real(heat));
}

/* Returns the devices that are present; those that no plan may use are marked as not usable. */
static json_t *devices_json(const struct spec_check *check)
{
    static const char *const keys[] = {"name",       "node",    "kind", "like", "memory_limit_bytes",
                                       "base_bytes", "threads", "isa"};
    size_t index, at;
    json_t *device, *row, *list = json_array();
    json_array_foreach (json_object_get(check->cluster, "devices"), index, device) {
        const char *state = json_string_value(json_object_get(device, "state"));
        if (!state || strcmp(state, "gone") == 0)
            continue;
        json_t *told = json_pack("{s:b}", "usable", usable(check, state));
        for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++)
            json_object_set(told, keys[k], json_object_get(device, keys[k]));
        if (check->depth != CHECK_SUBMIT)
            as_it_is_now(json_object_get(device, "health"), told);
        json_array_foreach (check->profiles, at, row) {
            json_t *speed = json_object_get(row, "speed");
            if (json_number_value(speed) > 0 &&
                json_equal(json_object_get(row, "device"), json_object_get(device, "name")))
                json_object_set(told, "speed", speed);
        }
        json_array_append_new(list, told);
    }
    return list;
}

static json_t *profiles_json(const struct spec_check *check)
{
    size_t index;
    json_t *row, *list = json_array();
    json_array_foreach (check->profiles, index, row)
        json_array_append(list, json_object_get(row, "document"));
    return list;
}

json_t *check_plan_devices(const struct spec_check *check)
{
    return json_pack("{s:o, s:o, s:O}", "devices", devices_json(check), "profiles", profiles_json(check),
                     "links", json_object_get(check->cluster, "links"));
}

json_t *check_plan_inputs(const struct spec_check *check)
{
    json_t *inputs = check_plan_devices(check);
    /* The specification is copied because the loop's thread uses it too, and reference counts are not atomic.
     * The other documents belong to this task. */
    json_t *rest = json_pack("{s:i, s:o, s:O, s:s, s:o, s:o, s:I}", "version", INPUTS_VERSION, "spec",
                             json_deep_copy(check->spec_json), "config",
                             json_object_get(check->model, "config"), "profile_key", check->profile_key,
                             "rows", plan_rows_to_json(check->train_sizes, check->train_rows), "eval_rows",
                             plan_rows_to_json(check->eval_sizes, check->eval_rows), "prompt_tokens",
                             (json_int_t)json_array_size(check->sample_ids));
    if (!inputs || json_object_update(inputs, rest) < 0) {
        json_decref(inputs);
        inputs = NULL;
    }
    json_decref(rest);
    return inputs;
}
