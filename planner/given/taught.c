#include "planner/given/taught.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/json.h"
#include "planner/given/cluster.h"
#include "planner/given/cluster_index.h"

/* A run that took four times its forecast was disturbed, or planned by wrong tables: it tells the direction,
 * and not by how much the next one differs. */
#define TIMES_MOST 4.0

uint64_t taught_device(const char *name)
{
    return cluster_hash_name(name);
}

static int run_read(struct json_reader *r, struct taught_run *run)
{
    const json_t *devices = NULL, *name;
    size_t index;
    int placement = 0;
    double times = 1;
    jr_choice(r, "placement", JR_REQUIRED, plan_placement_names, &placement);
    jr_array(r, "devices", JR_REQUIRED, 1, CLUSTER_DEVICES_MAX, &devices);
    jr_f64(r, "times", JR_REQUIRED, 1e-9, 1e9, &times);
    jr_f64(r, "age_days", JR_REQUIRED, 0, 1e6, &run->age_days);
    jr_bool(r, "alike", JR_REQUIRED, &run->alike);
    if (jr_finish_loose(r) < 0)
        return -1;
    json_array_foreach (devices, index, name) {
        if (!json_is_string(name))
            return jr_fail(r, "devices", "element %zu is no name", index);
        run->devices += taught_device(json_string_value(name));
    }
    run->placement = (enum plan_placement)placement;
    run->log_times = log(fmin(fmax(times, 1 / TIMES_MOST), TIMES_MOST));
    return 0;
}

int taught_read(const json_t *list, struct taught_run **runs, uint32_t *count, struct err *err)
{
    const size_t size = json_array_size(list);
    *runs = NULL;
    *count = 0;
    if (size == 0)
        return 0;
    if (size > TAUGHT_RUNS_MAX)
        return err_set(err, ERR_INVALID, "taught: %zu runs, of at most %u", size, TAUGHT_RUNS_MAX);
    struct taught_run *read = calloc(size, sizeof(*read));
    if (!read)
        return err_set(err, ERR_NOMEM, "taught: out of memory for %zu runs", size);
    for (size_t i = 0; i < size; i++) {
        struct json_reader item;
        char path[32];
        snprintf(path, sizeof(path), "taught[%zu]", i);
        jr_init(&item, json_array_get(list, i), path, err);
        if (run_read(&item, &read[i]) < 0) {
            free(read);
            return -1;
        }
    }
    *runs = read;
    *count = (uint32_t)size;
    return 0;
}
