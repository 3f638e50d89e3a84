/* Latency curves of the Cephalo and Zorse files. */
#include "planner/import_gpu.h"

#include <math.h>
#include <stdio.h>

static bool number_pair(const json_t *value, double *a, double *b)
{
    const json_t *x = json_array_get(value, 0), *y = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_number(x) || !json_is_number(y))
        return false;
    *a = json_number_value(x);
    *b = json_number_value(y);
    return isfinite(*a) && isfinite(*b);
}

static bool table_ok(const json_t *table, uint32_t *count)
{
    size_t size = json_array_size(table);
    if (!json_is_array(table) || size == 0 || size > GPU_TABLE_MAX)
        return false;
    for (size_t i = 0; i < size; i++) {
        const json_t *value = json_array_get(table, i);
        if (!json_is_number(value) || !(json_number_value(value) > 0))
            return false;
    }
    *count = (uint32_t)size;
    return true;
}

int gpu_curve_find(const json_t *latencies, const char *model, const char *gpu, int64_t sequence,
                   const char *dtype, struct gpu_curve *curve, struct err *err)
{
    char length[32];
    snprintf(length, sizeof(length), "%lld", (long long)sequence);
    const json_t *entry = json_object_get(latencies, model);
    *curve = (struct gpu_curve){0};
    entry = json_object_get(json_object_get(json_object_get(entry, gpu), length), dtype);
    if (!entry)
        return err_set(err, ERR_INVALID, "model_latencies.json: nothing at %s.%s.%s.%s", model, gpu, length,
                       dtype);
    if (json_is_number(entry)) { /* old format: ms a sample, forward and backward together */
        curve->slope[0] = json_number_value(entry);
        return 0;
    }
    bool good = json_is_array(entry) && json_array_size(entry) >= 2;
    for (int way = 0; good && way < 2; way++)
        good = number_pair(json_array_get(entry, (size_t)way), &curve->slope[way], &curve->intercept[way]);
    for (int way = 0; good && json_array_size(entry) == 4 && way < 2; way++) {
        curve->table[way] = json_array_get(entry, 2 + (size_t)way);
        good = table_ok(curve->table[way], &curve->count[way]);
    }
    if (good && (json_array_size(entry) == 2 || json_array_size(entry) == 4))
        return 0;
    return err_set(
        err, ERR_INVALID,
        "model_latencies.json: %s.%s.%s.%s is neither a number, two lines, nor two lines and two tables of "
        "positive times",
        model, gpu, length, dtype);
}

double gpu_curve_ms(const struct gpu_curve *curve, int way, uint32_t batch)
{
    if (batch <= curve->count[way])
        return json_number_value(json_array_get(curve->table[way], batch - 1));
    return batch * curve->slope[way] + curve->intercept[way];
}
