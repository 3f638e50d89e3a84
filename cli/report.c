/* The report of a run, beside the predictions. */
#include "cli/report.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/units.h"

/* relative error of the predicted step time above which a device is named as the cause */
#define STEP_OFF 0.05
/* least ratio between measured and predicted computing time of a device that is named */
#define PACE_OFF 1.03

static int report_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double report_median(const json_t *lines, const char *key, const char *device)
{
    size_t count = 0, index;
    json_t *line;
    double *seconds = calloc(json_array_size(lines) + 1, sizeof(*seconds)), median = 0;
    if (!seconds)
        return 0;
    json_array_foreach (lines, index, line) {
        if (json_is_number(json_object_get(line, key)) && show_num(line, "step", 0) >= 2 &&
            (!device || strcmp(show_str(line, "device"), device) == 0))
            seconds[count++] = show_num(line, key, 0);
    }
    qsort(seconds, count, sizeof(*seconds), report_compare);
    if (count > 0)
        median = count % 2 ? seconds[count / 2] : (seconds[count / 2 - 1] + seconds[count / 2]) / 2;
    free(seconds);
    return median;
}

static void show_memory(const json_t *job, const json_t *answer)
{
    json_t *rank;
    size_t index;
    json_array_foreach (json_object_get(json_object_get(job, "run"), "ranks"), index, rank) {
        const json_t *memory = json_object_get(rank, "memory");
        const json_t *planned = json_array_get(json_object_get(answer, "ranks"), index);
        char measured[32], predicted[32], process[32], bound[32];
        double peak = show_num(memory, "peak_bytes", 0), expected = show_num(planned, "memory_bytes", 0);
        if (peak <= 0)
            continue;
        printf("  %-16s peak %s measured, %s predicted", show_str(rank, "device"),
               units_bytes(measured, (uint64_t)peak), units_bytes(predicted, (uint64_t)expected));
        if (expected > 0)
            printf(" (%+.1f %%)", 100 * (expected / peak - 1));
        const double whole = show_num(memory, "vm_hwm_bytes", 0);
        const double most = expected + show_num(memory, "predicted_base_bytes", 0);
        if (whole > 0)
            printf(whole <= most ? "; the process %s in all, at most %s predicted"
                                 : "; the process %s in all, more than the %s predicted",
                   units_bytes(process, (uint64_t)whole), units_bytes(bound, (uint64_t)most));
        printf("\n");
    }
}

static void show_ends(const char *label, const json_t *lines, const char *key, bool text)
{
    const json_t *first = NULL, *last = NULL;
    json_t *line;
    size_t index;
    json_array_foreach (lines, index, line) {
        if (!json_object_get(line, key))
            continue;
        first = first ? first : line;
        last = line;
    }
    if (!first)
        return;
    if (text) {
        printf("%s\n  before  ", label);
        show_one_line(show_str(first, "text"));
        printf("  after   ");
        show_one_line(show_str(last, "text"));
    } else {
        double before = show_num(first, "loss", 0), after = show_num(last, "loss", 0);
        printf("%s\n  %.4f before, %.4f after: %+.4f nats per token\n", label, before, after, after - before);
    }
}

/* Says of which model the held-out loss is where the result is another one. */
static void show_eval_base(const json_t *lines, const json_t *spec)
{
    const json_t *method = json_object_get(spec, "method"), *result = json_object_get(spec, "result");
    const char *base = show_str(method, "base"), *dtype = show_str(result, "dtype");
    json_t *line;
    size_t index;
    bool evaluated = false;
    json_array_foreach (lines, index, line)
        evaluated = evaluated || json_object_get(line, "eval");
    if (evaluated && strcmp(show_str(method, "kind"), "lora") == 0 &&
        strcmp(show_str(result, "kind"), "merged") == 0)
        printf("  of the base in %s with the adapter beside it; model/ is the base as its file has it, "
               "merged%s%s\n",
               base, *dtype ? " in " : "", dtype);
}

/* Prints how long each device computed in a step. `off` is the relative error of the predicted step time;
 * above STEP_OFF the device that differs most from its own prediction is named, since it is usually the
 * cause. */
static void show_pace(const json_t *lines, const json_t *answer, double off)
{
    json_t *rank;
    size_t index;
    double most = PACE_OFF;
    const char *who = NULL;
    json_array_foreach (json_object_get(answer, "ranks"), index, rank) {
        const char *device = show_str(rank, "device");
        char measured[32], predicted[32];
        double busy = report_median(lines, "compute_s", device), expected = show_num(rank, "busy_s", 0);
        if (busy <= 0 || expected <= 0)
            continue;
        printf("  %-16s computes %s of it measured, %s predicted (%+.1f %%)\n", device,
               units_seconds(measured, busy), units_seconds(predicted, expected),
               100 * (expected / busy - 1));
        if (fabs(log(busy / expected)) > fabs(log(most))) {
            most = busy / expected;
            who = device;
        }
    }
    if (who && fabs(off) > STEP_OFF)
        printf("  %s took %.2f times as long as in its measurement: other work ran there%s, or it was hot\n",
               who, most, most > 1 ? "" : " then");
}

/* Prints which results are in the folder, and how to load them. */
static void show_result(const char *folder)
{
    static const struct {
        const char *name, *how;
    } results[] = {{"adapter", "load it with peft.PeftModel.from_pretrained"},
                   {"model", "load it with transformers.AutoModelForCausalLM.from_pretrained"},
                   {"adapter.gguf", "give it to llama.cpp with --lora"}};
    char path[PATH_MAX];
    printf("result\n");
    for (size_t r = 0; r < sizeof(results) / sizeof(*results); r++) {
        snprintf(path, sizeof(path), "%s/%s", folder, results[r].name);
        if (file_exists(path))
            printf("  %s: %s\n", path, results[r].how);
    }
}

void report_run(struct cli *cli, int64_t id, const json_t *job, const char *folder)
{
    struct err ignored = {0};
    char path[96], measured[32], predicted[32];
    json_t *plan = NULL;
    snprintf(path, sizeof(path), "/v1/jobs/%lld/metrics?limit=10000", (long long)id);
    json_t *lines = client_pages(cli, path, "lines", &ignored);
    snprintf(path, sizeof(path), "/v1/jobs/%lld/metrics?kind=ranks&limit=10000", (long long)id);
    json_t *ranks = client_pages(cli, path, "lines", &ignored);
    if (client_call(cli, "GET", NULL, &plan, &ignored, "/v1/jobs/%lld/plan", (long long)id) < 0)
        plan = NULL;
    const json_t *answer = json_object_get(plan, "answer");
    double median = report_median(lines, "seconds", NULL), expected = show_num(answer, "step_s", 0);
    printf("\n");
    show_ends("held-out loss", lines, "eval", false);
    show_eval_base(lines, json_object_get(job, "spec"));
    show_ends("sample", lines, "sample", true);
    if (median > 0) {
        printf("step time\n  %s measured (median), %s predicted", units_seconds(measured, median),
               units_seconds(predicted, expected));
        printf(expected > 0 ? " (%+.1f %%)\n" : "\n", 100 * (expected / median - 1));
        show_pace(ranks, answer, expected / median - 1);
    }
    printf("memory\n");
    show_memory(job, answer);
    if (*folder)
        show_result(folder);
    json_decref(plan);
    json_decref(lines);
    json_decref(ranks);
}
