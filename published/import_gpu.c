#include "published/import_gpu.h"

#include <math.h>
#include <stdio.h>

#include "planner/given/catalogue.h"

/* Plausible range of a layer's forward FLOP/s, relative to the card's highest peak. The 280 published
 * curves of cards in the catalogue lie between 0.03 and 1.2 (a test model's two below 0.01); outside of
 * the range a unit is off by a thousand. */
#define PEAK_MOST 2.0
#define PEAK_LEAST 2e-3
/* FALL: least plausible ratio of a batch's time to a smaller batch's; times that fall further are doubtful.
 */
#define FALL 0.95
#define LINE_POINTS 8u /* batches at which curves without tables are checked */

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
    if (json_is_number(entry)) { /* old format: ms per sample, forward and backward together */
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
    if (good && curve->count[0] != curve->count[1])
        return err_set(
            err, ERR_INVALID,
            "model_latencies.json: %s.%s.%s.%s has %u forward and %u backward times: one of the tables has "
            "a hole",
            model, gpu, length, dtype, curve->count[0], curve->count[1]);
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

static void warn(json_t *warnings, const char *text)
{
    json_array_append_new(warnings, json_string(text));
}

void gpu_curve_doubts(const struct gpu_curve *curve, const char *where, const char *gpu, double flops_per_row,
                      json_t *warnings)
{
    const struct catalogue_entry *card = catalogue_find(gpu);
    uint32_t count = curve->count[0] ? curve->count[0] : LINE_POINTS;
    double best = 0, last = 0, slowest[2] = {0};
    bool falls = false;
    char text[512];
    for (uint32_t m = 1; m <= count; m++) {
        double each = gpu_curve_ms(curve, 0, m);
        last = each > 0 ? flops_per_row * m / (each * 1e-3) : 0;
        best = fmax(best, last);
        for (int way = 0; way < 2 && !falls; way++) {
            double ms = gpu_curve_ms(curve, way, m);
            if (ms < FALL * slowest[way]) {
                falls = true;
                snprintf(text, sizeof(text),
                         "model_latencies.json: %s: %s of a batch of %u takes %g ms, of a smaller one %g ms",
                         where, way ? "backward" : "forward", m, ms, slowest[way]);
                warn(warnings, text);
            }
            slowest[way] = fmax(slowest[way], ms);
        }
    }
    if (!card)
        return;
    double peak = catalogue_peak(card);
    if (!(peak > 0) || !(flops_per_row > 0) || (best <= PEAK_MOST * peak && last >= PEAK_LEAST * peak))
        return;
    double rate = best > PEAK_MOST * peak ? best : last;
    snprintf(text, sizeof(text),
             "model_latencies.json: %s: forward would be %.3g FLOP/s, %.2g times the peak of %s (%.3g): are "
             "its times in "
             "milliseconds of one layer?",
             where, rate, rate / peak, card->name, peak);
    warn(warnings, text);
}
