/* Makes the document of all inputs of a plan, for commands that plan by themselves: `motley replay`, `motley
 * plan --draw`. */
#include "api/check/check_private.h"

#include <string.h>

#include "planner/given/inputs.h"

/* Returns the devices that are present; drained and unreachable ones are marked as not usable. */
static json_t *devices_json(const struct spec_check *check)
{
    size_t index, at;
    json_t *device, *row, *list = json_array();
    json_array_foreach (json_object_get(check->cluster, "devices"), index, device) {
        const char *state = json_string_value(json_object_get(device, "state"));
        if (!state || strcmp(state, "gone") == 0)
            continue;
        bool usable = strcmp(state, "unreachable") != 0 && strcmp(state, "drained") != 0 &&
                      strcmp(state, "draining") != 0;
        json_array_append_new(list, json_pack("{s:O, s:O, s:O?, s:O, s:O*, s:O?, s:O?, s:b, s:O*}", "name",
                                              json_object_get(device, "name"), "node",
                                              json_object_get(device, "node"), "kind",
                                              json_object_get(device, "kind"), "memory_limit_bytes",
                                              json_object_get(device, "memory_limit_bytes"), "base_bytes",
                                              json_object_get(device, "base_bytes"), "threads",
                                              json_object_get(device, "threads"), "isa",
                                              json_object_get(device, "isa"), "usable", usable, "heat",
                                              json_object_get(json_object_get(device, "health"), "heat")));
        json_array_foreach (check->profiles, at, row) {
            json_t *speed = json_object_get(row, "speed");
            if (json_is_number(speed) &&
                json_equal(json_object_get(row, "device"), json_object_get(device, "name")))
                json_object_set(json_array_get(list, json_array_size(list) - 1), "speed", speed);
        }
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

json_t *check_plan_inputs(const struct spec_check *check)
{
    const json_t *links = json_object_get(check->cluster, "links");
    /* The specification is copied because the loop's thread uses it too, and reference counts are not atomic.
     * The other documents belong to this task. */
    return json_pack("{s:i, s:o, s:O, s:s, s:o, s:o, s:I, s:o, s:o, s:O?}", "version", INPUTS_VERSION, "spec",
                     json_deep_copy(check->spec_json), "config", json_object_get(check->model, "config"),
                     "profile_key", check->profile_key, "rows",
                     plan_rows_to_json(check->train_sizes, check->train_rows), "eval_rows",
                     plan_rows_to_json(check->eval_sizes, check->eval_rows), "prompt_tokens",
                     (json_int_t)json_array_size(check->sample_ids), "devices", devices_json(check),
                     "profiles", profiles_json(check), "links", links);
}
