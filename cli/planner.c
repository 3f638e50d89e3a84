/* `motley plan --planner FILE`: shows an external planner's plan beside the built-in planner's. */
#include "cli/cli.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/child_json.h"
#include "common/document.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/units.h"
#include "planner/given/inputs.h"
#include "plug/plug.h"

enum { PROBLEM_BYTES_MAX = 1 << 30, COLUMN = 40 };

int planner_problem(const char *path, const json_t *problem, struct err *err)
{
    return document_save(path, problem, false, 0644, err) < 0 ? err_wrap(err, "--problem") : 0;
}

/* Runs the program. Returns -1 with *why when its answer cannot be read; only ERR_NOMEM is an error of ours.
 */
static int planner_ask(const char *path, const json_t *problem, json_t **document, double *plan_s,
                       struct err *why)
{
    char whole[PATH_MAX];
    struct child_program program;
    const uint64_t begin_ns = clock_mono_ns();
    *document = NULL;
    if (!realpath(path, whole))
        return err_set(why, ERR_INVALID, "there is no file %.300s", path);
    int result = child_program_of(whole, &program, why);
    if (result == 0)
        result = child_json(&program, problem, 0, document, why);
    child_program_fini(&program);
    *plan_s = (double)(clock_mono_ns() - begin_ns) * 1e-9;
    return result;
}

/* Describes the external planner's accepted plan in the form of our own answer. */
static json_t *planner_describe(const struct plan_inputs *inputs, const char *name, struct plan *plan,
                                double step_s, double plan_s, struct err *err)
{
    struct plan_answer *answer = calloc(1, sizeof(*answer));
    json_t *document = NULL;
    if (!answer) {
        plan_destroy(plan);
        err_set(err, ERR_NOMEM, "out of memory for an answer");
    } else if (plug_replace(&inputs->workload, inputs->cluster, name, plan, step_s, answer, err) == 0) {
        answer->plan_s = plan_s;
        document = answer_to_json(answer, err);
    }
    plan_answer_destroy(answer);
    return document;
}

/* ---- side by side ---- */

static const char *placement_words(const json_t *answer, char out[COLUMN * 2])
{
    const char *schedule = show_str(answer, "schedule");
    snprintf(out, COLUMN * 2, "%.30s%s%.30s", show_str(answer, "placement"), *schedule ? ", " : "", schedule);
    return out;
}

static const char *step_words(const json_t *answer, double than, char out[COLUMN * 2])
{
    char step[32];
    const double step_s = show_num(answer, "step_s", 0);
    units_seconds(step, step_s);
    if (than > 0 && step_s > 0 && step_s != than)
        snprintf(out, COLUMN * 2, "%s (%.1f %% %s)", step,
                 100 * (step_s > than ? step_s / than - 1 : 1 - step_s / than),
                 step_s > than ? "more" : "less");
    else
        snprintf(out, COLUMN * 2, "%s", step);
    return out;
}

static const char *micro_words(const json_t *answer, char out[COLUMN * 2])
{
    snprintf(out, COLUMN * 2, "%.0f of %.0f row%s", show_num(answer, "micro_batches", 0),
             show_num(answer, "micro_batch_rows", 0),
             show_num(answer, "micro_batch_rows", 0) == 1 ? "" : "s");
    return out;
}

/* Formats, for example, "left/cpu0 0..17, 412 of 450 MiB"; "" beyond the last rank. */
static const char *rank_words(const json_t *answer, size_t r, char out[COLUMN * 4])
{
    const json_t *rank = json_array_get(json_object_get(answer, "ranks"), r);
    const json_t *blocks = json_object_get(rank, "blocks");
    char has[32], limit[32];
    *out = '\0';
    if (rank)
        snprintf(out, COLUMN * 4, "%.60s %lld..%lld, %s of %s", show_str(rank, "device"),
                 (long long)json_integer_value(json_array_get(blocks, 0)),
                 (long long)json_integer_value(json_array_get(blocks, 1)),
                 units_bytes(has, (uint64_t)show_num(rank, "memory_bytes", 0)),
                 units_bytes(limit, (uint64_t)show_num(rank, "memory_limit_bytes", 0)));
    return out;
}

static void planner_line(const char *what, const char *ours, const char *theirs)
{
    printf("  %-14s %-*s %s\n", what, COLUMN, ours, theirs);
}

static void show_beside(const json_t *ours, const json_t *theirs, const char *name)
{
    char a[COLUMN * 4], b[COLUMN * 4], number[32];
    const size_t our_ranks = json_array_size(json_object_get(ours, "ranks"));
    const size_t their_ranks = json_array_size(json_object_get(theirs, "ranks"));
    printf("\n");
    planner_line("", "built in", name);
    planner_line("step", step_words(ours, 0, a), step_words(theirs, show_num(ours, "step_s", 0), b));
    planner_line("placement", placement_words(ours, a), placement_words(theirs, b));
    planner_line("micro-batches", micro_words(ours, a), micro_words(theirs, b));
    planner_line("planned in", units_seconds(a, show_num(ours, "plan_s", 0)),
                 units_seconds(b, show_num(theirs, "plan_s", 0)));
    for (size_t r = 0; r < our_ranks || r < their_ranks; r++) {
        snprintf(number, sizeof(number), "rank %zu", r);
        planner_line(number, rank_words(ours, r, a), rank_words(theirs, r, b));
    }
}

int planner_tell(struct cli *cli, const char *path, const json_t *problem, const struct plan_inputs *inputs,
                 const struct plan_answer *ours, json_t *told, struct err *err)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    json_t *document = NULL, *answer = NULL;
    struct plan *plan = NULL;
    struct err why = {0};
    double plan_s = 0, step_s = 0;
    int result = 0;
    const bool accepted =
        planner_ask(path, problem, &document, &plan_s, &why) == 0 &&
        plug_accept(document, &inputs->workload, inputs->cluster, &plan, &step_s, &why) == 0;
    json_decref(document);
    if (why.code == ERR_NOMEM)
        return err_set(err, ERR_NOMEM, "%s", why.text);
    if (accepted)
        result = (answer = planner_describe(inputs, name, plan, step_s, plan_s, err)) ? 0 : -1;
    json_t *beside = json_pack(
        "{s:s, s:s, s:s?, s:f, s:o, s:O?}", "name", name, "verdict", accepted ? "accepted" : "refused", "why",
        accepted ? NULL : why.text, "plan_s", plan_s, "ratio",
        accepted && ours->step_s > 0 ? json_real(step_s / ours->step_s) : json_null(), "answer", answer);
    if (result == 0 && (!beside || json_object_set_new(told, "planner", beside) < 0))
        result = err_set(err, ERR_NOMEM, "out of memory for an answer");
    if (result == 0 && !cli->json && accepted)
        show_beside(told, answer, name);
    else if (result == 0 && !cli->json)
        printf("\n  %s was refused: %s\n", name, why.text);
    json_decref(answer);
    return result;
}
