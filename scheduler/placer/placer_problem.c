/* Writes the planning problem as a document for external planners. */
#include <stdlib.h>
#include <string.h>

#include "planner/given/inputs.h"
#include "scheduler/placer/placer_private.h"

/* Whether one of the request's devices is on the node. Links of other nodes are left out of the request. */
static bool placer_problem_has_node(const struct placer_request *request, const char *node)
{
    for (size_t i = 0; node && i < request->device_count; i++)
        if (strcmp(request->devices[i].device->node, node) == 0)
            return true;
    return false;
}

static uint32_t load_u32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

struct row_size *placer_sizes(const uint8_t *bytes, size_t size, uint32_t *count, struct err *err)
{
    *count = (uint32_t)(size / 8);
    struct row_size *sizes = calloc(*count > 0 ? *count : 1, sizeof(*sizes));
    if (!sizes) {
        err_set(err, ERR_NOMEM, "no memory for %u row sizes", *count);
        return NULL;
    }
    for (uint32_t i = 0; i < *count; i++) {
        sizes[i].tokens = load_u32(bytes + (size_t)i * 8);
        sizes[i].labelled = load_u32(bytes + (size_t)i * 8 + 4);
    }
    return sizes;
}

/* Returns the row sizes as JSON, or JSON null when there are none. */
static json_t *rows_json(const uint8_t *bytes, size_t size)
{
    if (!bytes || size < 8)
        return json_null();
    json_t *list = json_array();
    for (size_t at = 0; list && at + 8 <= size; at += 8) {
        json_array_append_new(
            list, json_pack("[I,I]", (json_int_t)load_u32(bytes + at), (json_int_t)load_u32(bytes + at + 4)));
    }
    return list;
}

static json_t *placer_problem_devices_json(const struct placer_request *request, const double *speeds)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < request->device_count; i++) {
        const struct store_sched_device *device = request->devices[i].device;
        json_t *row =
            json_pack("{s:s, s:s, s:s, s:O*, s:I, s:O*, s:O*}", "name", device->name, "node", device->node,
                      "kind", device->kind, "like", json_object_get(device->inventory, "like"),
                      "memory_limit_bytes", (json_int_t)request->devices[i].memory_bytes, "threads",
                      json_object_get(device->inventory, "threads"), "base_bytes",
                      json_object_get(device->inventory, "base_bytes"));
        if (request->devices[i].heat < 1)
            json_object_set_new(row, "heat", json_real(request->devices[i].heat));
        const double speed = speeds ? speeds[i] : request->devices[i].speed;
        if (speed > 0)
            json_object_set_new(row, "speed", json_real(speed));
        if (json_is_array(request->devices[i].taught))
            json_object_set(row, "taught", (json_t *)(uintptr_t)request->devices[i].taught);
        json_array_append_new(list, row);
    }
    return list;
}

static json_t *placer_problem_profiles_json(const struct placer_request *request)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < request->device_count; i++)
        if (request->devices[i].profile)
            json_array_append(list, (json_t *)(uintptr_t)request->devices[i].profile);
    return list;
}

static json_t *links_json(const struct placer_request *request)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < request->link_count; i++) {
        const json_t *link = request->links[i];
        if (placer_problem_has_node(request, json_string_value(json_object_get(link, "from"))) &&
            placer_problem_has_node(request, json_string_value(json_object_get(link, "to")))) {
            json_array_append(list, (json_t *)(uintptr_t)link);
        }
    }
    return list;
}

json_t *placer_devices(const struct placer_request *request, const double *speeds)
{
    return json_pack("{s:o, s:o, s:o}", "devices", placer_problem_devices_json(request, speeds), "profiles",
                     placer_problem_profiles_json(request), "links", links_json(request));
}

json_t *placer_problem(const struct placer_request *request, struct err *err)
{
    const size_t rows = (request->train_bytes + request->eval_bytes) / 8;
    const json_t *ids = json_object_get(json_object_get(request->inputs, "sample"), "ids");
    if (rows > PROBLEM_ROWS_MAX) {
        err_set(err, ERR_TOO_BIG, "is not asked about %zu rows; at most %d go into a problem document", rows,
                PROBLEM_ROWS_MAX);
        return NULL;
    }
    json_t *devices = placer_devices(request, NULL);
    json_t *problem = json_pack("{s:i, s:O, s:O, s:o, s:o, s:I, s:O*}", "version", INPUTS_VERSION, "spec",
                                request->spec, "config", json_object_get(request->model, "config"), "rows",
                                rows_json(request->train_sizes, request->train_bytes), "eval_rows",
                                rows_json(request->eval_sizes, request->eval_bytes), "prompt_tokens",
                                (json_int_t)json_array_size(ids), "expert_share",
                                json_object_get(request->inputs, "expert_share"));
    if (!devices || !problem || json_object_update(problem, devices) < 0) {
        json_decref(problem);
        problem = NULL;
    }
    json_decref(devices);
    if (!problem)
        err_set(err, ERR_NOMEM, "no memory for a problem document of %zu rows", rows);
    return problem;
}
