/* `motley plan`: with a server it uses the server's devices and measured costs; with --cluster it needs no
 * server. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/document.h"
#include "common/buf.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/json.h"
#include "common/units.h"
#include "model/job/order.h"
#include "model/shape/config.h"
#include "show/draw.h"
#include "planner/given/inputs.h"
#include "replay/replan.h"
#include "planner/answer/plan.h"
#include "replay/jitter.h"
#include "program/codec.h"
#include "show/print.h"

enum {
    PLAN_MS = 120000,
    PLAN_PROGRAM_BYTES_MAX = 4 << 20,
    PLAN_SAVE_BYTES_MAX = 1 << 30,
    PLAN_TEXT_BYTES_MAX = 16 << 20,
    ROUTING_BYTES_MAX = 16 << 20,
    JITTER_RUNS = 200,
    /* default of --restart, in seconds, for a checkpoint, stopping and starting; a rule of thumb */
    RESTART_S = 30,
    RESTART_S_MAX = 86400
};

int show_plan(const json_t *answer, struct err *err)
{
    struct buf text;
    buf_init(&text, PLAN_TEXT_BYTES_MAX);
    int result = answer_print_document(answer, &text, err);
    if (result == 0 && text.size > 0)
        fwrite(text.data, 1, text.size, stdout);
    buf_fini(&text);
    return result;
}

/* --- planning on this machine --- */

/* Reads a plan's file: as plan_to_json writes it, or as `motley get` writes it for a job ({"plan": …}). */
static struct plan *read_plan(const char *path, struct err *err)
{
    json_t *document = given_document(path, err);
    if (!document)
        return NULL;
    const json_t *inner = json_object_get(document, "plan");
    struct plan *plan = plan_from_json(inner ? inner : document, err);
    if (!plan) {
        (void)given_wrong(err);
        err_wrap(err, "--from: %s", path);
    }
    json_decref(document);
    return plan;
}

static int read_objective(const struct cli *cli, enum workload_objective *objective, struct err *err)
{
    static const char *const names[] = {"time", "cost", "energy"};
    const char *word = cli_option(cli, "--objective");
    for (int k = 0; word && k < 3; k++) {
        if (strcmp(word, names[k]) == 0) {
            *objective = (enum workload_objective)k;
            return 0;
        }
    }
    return word ? err_set(err, ERR_INVALID, "--objective: \"%.40s\" is none of time, cost, energy", word) : 0;
}

static int move_asked(const struct cli *cli, int64_t *steps, int64_t *restart_s, struct err *err)
{
    if (cli_option_i64(cli, "--steps-left", 0, INT64_MAX, 0, steps, err) < 0)
        return -1;
    return cli_option_i64(cli, "--restart", 0, RESTART_S_MAX, RESTART_S, restart_s, err);
}

static int plan_read_options(const struct cli *cli, struct plan_inputs *inputs, struct plan_options *options,
                             struct plan **from, struct err *err)
{
    const char *path = cli_option(cli, "--from");
    int64_t evaluations = 0, seed = 0, percent = 0, steps = 0, restart_s = 0;
    if (read_objective(cli, &inputs->workload.objective, err) < 0 ||
        cli_option_i64(cli, "--evaluations", 1, 1000000000, 0, &evaluations, err) < 0 ||
        cli_option_i64(cli, "--seed", 0, INT64_MAX, 0, &seed, err) < 0 ||
        cli_option_i64(cli, "--jitter", 0, 200, 0, &percent, err) < 0 ||
        move_asked(cli, &steps, &restart_s, err) < 0)
        return -1;
    options->evaluations = (uint64_t)evaluations;
    options->insight = cli_option(cli, "--insight") != NULL;
    options->runnable_only |= cli_option(cli, "--runnable") != NULL;
    options->seed = (uint64_t)seed;
    if (path && !(*from = read_plan(path, err)))
        return -1;
    options->from = *from;
    if (!cli_option(cli, "--steps-left"))
        return cli_option(cli, "--restart")
                   ? err_set(err, ERR_INVALID, "--restart: goes with --steps-left, which was not given")
                   : 0;
    if (!path)
        return err_set(err, ERR_INVALID, "--steps-left: goes with --from, which was not given");
    if (inputs->workload.objective != OBJECTIVE_TIME)
        return err_set(err, ERR_INVALID, "--steps-left: weighs times; --objective asks for another");
    options->runnable_only = true; /* a running job can move only to a plan that workers can run */
    return 0;
}

static int plan_draw(const struct cli *cli, const char *path, const struct plan_inputs *inputs,
                     const struct plan_answer *answer, struct err *err)
{
    struct trace timeline;
    double step_s = 0;
    (void)cli;
    trace_init(&timeline, 0);
    int result = plan_simulate(answer->plan, &inputs->workload, inputs->cluster, &timeline, &step_s, err);
    const struct draw_input picture = {.plan = answer->plan,
                                       .timeline = &timeline,
                                       .step_s = answer->step_s,
                                       .title = inputs->spec.name,
                                       .words = answer->words,
                                       .cluster = inputs->cluster,
                                       .answer = answer};
    if (result == 0)
        result = draw_write(path, &picture, err);
    trace_fini(&timeline);
    return result < 0 ? err_wrap(err, "--draw") : 0;
}

static int plan_save(const char *path, const struct plan *plan, struct err *err)
{
    json_t *document = plan_to_json(plan, err);
    int result = document ? document_save(path, document, false, 0644, err) : -1;
    json_decref(document);
    return result < 0 ? err_wrap(err, "--save") : 0;
}

static int print_program(const struct plan_inputs *inputs, const struct plan_answer *answer, json_t *told,
                         bool json, struct err *err)
{
    struct buf text = {.limit = PLAN_PROGRAM_BYTES_MAX};
    int result = answer_print_program(answer, &inputs->workload, inputs->cluster, 0, &text, err);
    if (result == 0 && json)
        json_object_set_new(told, "program", json_string(buf_str(&text)));
    else if (result == 0)
        printf("\n%s", buf_str(&text));
    buf_fini(&text);
    return result;
}

/* Prints where the rows came from, when the client read them itself. */
static void tell_rows(const json_t *rows, bool planned)
{
    if (!rows)
        return;
    if (!planned)
        printf("%s", json_is_string(json_object_get(rows, "from")) ? "\n" : "\nrows taken to be full\n");
    if (json_is_string(json_object_get(rows, "from")))
        printf("  (%.0f rows of %s)\n", show_num(rows, "count", 0), show_str(rows, "from"));
    else
        printf("  (%s)\n", show_str(rows, "why"));
}

/* Simulates JITTER_RUNS (200) steps with random durations, seeded by --seed, and prints how far the step time
 * spreads. */
static int tell_jitter(struct cli *cli, const struct plan_inputs *inputs, const struct plan_answer *answer,
                       json_t *told, struct err *err)
{
    int64_t percent = 0, seed = 0;
    struct plan_spread spread;
    char mean[32], low[32], high[32];
    if (cli_option_i64(cli, "--jitter", 0, 200, 0, &percent, err) < 0 ||
        cli_option_i64(cli, "--seed", 0, INT64_MAX, 0, &seed, err) < 0 ||
        plan_jitter(answer->plan, &inputs->workload, inputs->cluster, (double)percent / 100, (uint64_t)seed,
                    JITTER_RUNS, &spread, err) < 0)
        return -1;
    json_object_set_new(told, "jitter",
                        json_pack("{s:I,s:i,s:f,s:f,s:f,s:f,s:f}", "percent", (json_int_t)percent, "runs",
                                  JITTER_RUNS, "still_s", spread.still_s, "mean_s", spread.mean_s, "low_s",
                                  spread.low_s, "median_s", spread.median_s, "high_s", spread.high_s));
    if (!cli->json)
        printf(
            "  instructions that deviate by %d %%: %s per step at the mean, nine of ten within %s and %s\n",
            (int)percent, units_seconds(mean, spread.mean_s), units_seconds(low, spread.low_s),
            units_seconds(high, spread.high_s));
    return 0;
}

/* Decides whether a running job should stay or move. The user asks once and knows whether the gain will last,
 * so this weighing counts as the last of the REPLAN_WINDOWS that a scheduler waits for. Takes the answer's
 * plan over. */
static int tell_move(struct cli *cli, const struct plan_inputs *inputs, struct plan_answer *answer,
                     const struct plan *from, json_t *told, struct err *err)
{
    struct replan_state state = {.windows = REPLAN_WINDOWS - 1};
    struct replan_input input = {.old = from, .workload = &inputs->workload, .cluster = inputs->cluster};
    struct replan_decision decision;
    int64_t steps, restart_s;
    if (move_asked(cli, &steps, &restart_s, err) < 0)
        return -1;
    input.steps_left = (uint64_t)steps;
    input.restart_s = (double)restart_s;
    if (replan_weigh(&input, answer, &state, &decision, err) < 0)
        return -1;
    json_t *words = replan_to_json(&decision, err);
    int result = words ? 0 : -1;
    if (result == 0 && !cli->json)
        printf("\n  %s\n", decision.words);
    if (words)
        json_object_set_new(told, "replan", words);
    replan_decision_fini(&decision);
    return result;
}

/* What planning uses beside the inputs. All pointers are borrowed and may be NULL. */
struct asked {
    const json_t *rows;    /* where the rows came from */
    const json_t *problem; /* the inputs as a document, for an external planner */
    bool runnable_only;
};

/* Adds to the answer's warnings what looks wrong in the rows and in the specification, as the server does. */
static void add_warnings(json_t *told, const struct plan_inputs *inputs, const json_t *rows)
{
    char text[SPEC_DOUBT_BYTES], sizes[MODEL_DOUBT_BYTES];
    const uint64_t steps = workload_step_count(&inputs->workload);
    json_array_extend(json_object_get(told, "warnings"), json_object_get(rows, "doubts"));
    if (spec_warmup_doubt(&inputs->spec.train, steps, text))
        json_array_append_new(json_object_get(told, "warnings"), json_string(text));
    if (spec_epochs_doubt(&inputs->spec.train, steps, text))
        json_array_append_new(json_object_get(told, "warnings"), json_string(text));
    if (model_config_doubt(&inputs->config, sizes))
        json_array_append_new(json_object_get(told, "warnings"), json_string(sizes));
}

static int plan_tell(struct cli *cli, const struct plan_inputs *inputs, struct plan_answer *answer,
                     const struct plan *from, const struct asked *asked, struct err *err)
{
    const char *picture = cli_option(cli, "--draw"), *saved = cli_option(cli, "--save");
    const char *planner = cli_option(cli, "--planner"), *problem = cli_option(cli, "--problem");
    const json_t *rows = asked->rows;
    json_t *told = answer_to_json(answer, err);
    int result = told ? 0 : -1;
    if (result == 0)
        add_warnings(told, inputs, rows);
    if (result == 0 && answer->plan && picture &&
        (result = plan_draw(cli, picture, inputs, answer, err)) == 0)
        json_object_set_new(told, "drawn", json_string(picture));
    if (result == 0 && answer->plan && saved && (result = plan_save(saved, answer->plan, err)) == 0)
        json_object_set_new(told, "saved", json_string(saved));
    if (result == 0 && !answer->plan && picture)
        json_object_set_new(told, "drawn", json_null());
    if (result == 0 && !answer->plan && saved)
        json_object_set_new(told, "saved", json_null());
    if (result == 0 && rows)
        json_object_set(told, "rows", (json_t *)rows);
    if (result == 0 && !cli->json && (result = show_plan(told, err)) == 0)
        tell_rows(rows, answer->plan != NULL);
    if (result == 0 && answer->plan && cli_option(cli, "--jitter"))
        result = tell_jitter(cli, inputs, answer, told, err);
    if (result == 0 && cli_option(cli, "--program"))
        result = print_program(inputs, answer, told, cli->json, err);
    if (result == 0 && !cli->json && answer->plan && picture)
        printf("  drawn in %s\n", picture);
    if (result == 0 && !cli->json && !answer->plan && (picture || saved))
        printf("  %s was not written: there is no plan\n", picture ? picture : saved);
    if (result == 0 && problem)
        result = planner_problem(problem, asked->problem, err);
    if (result == 0 && planner)
        result = planner_tell(cli, planner, asked->problem, inputs, answer, told, err);
    if (result == 0 && cli_option(cli, "--steps-left"))
        result = tell_move(cli, inputs, answer, from, told, err);
    if (result == 0 && cli->json)
        result = show_json(told, err);
    if (result == 0 && answer->verdict != VERDICT_FITS)
        cli->exit_status = CLI_NOFIT;
    json_decref(told);
    return result;
}

static int plan_here(struct cli *cli, struct plan_inputs *inputs, const struct asked *asked, struct err *err)
{
    struct plan_answer *answer = NULL;
    struct plan *from = NULL;
    struct plan_options options = {
        .programs = true, .runnable_only = asked->runnable_only, .advise = true, .gains = true};
    int result = plan_read_options(cli, inputs, &options, &from, err);
    if (result == 0) {
        uint64_t began = clock_mono_ns();
        result = plan_search(&inputs->workload, inputs->cluster, &options, &answer, err);
        if (result == 0)
            answer->plan_s = (double)(clock_mono_ns() - began) * 1e-9;
    }
    if (result == 0)
        result = plan_tell(cli, inputs, answer, from, asked, err);
    plan_answer_destroy(answer);
    plan_destroy(from);
    return result;
}

/* Reads the file of --routing: a list of layers, or a document that has one as `expert_share`. NULL without
 * the option. */
static int routing_read(struct cli *cli, json_t **routing, struct err *err)
{
    const char *path = cli_option(cli, "--routing");
    *routing = NULL;
    if (!path)
        return 0;
    json_t *document = given_json(path, ROUTING_BYTES_MAX, err);
    if (!document)
        return err_wrap(err, "--routing");
    json_t *list = json_is_array(document) ? document : json_object_get(document, "expert_share");
    *routing = json_incref(list);
    json_decref(document);
    return json_is_array(list) ? 0
                               : err_set(err, ERR_INVALID,
                                         "--routing: %s: neither a list of layers nor a document with one as "
                                         "expert_share",
                                         path);
}

/* Plans here with the server's devices, costs and rows, for options that the server does not support. */
static int plan_with_inputs(struct cli *cli, const json_t *spec, struct err *err)
{
    struct plan_inputs inputs = {0};
    json_t *document = NULL, *routing;
    int result = routing_read(cli, &routing, err);
    if (result == 0)
        result = (document = given_by_server(cli, spec, NULL, err)) ? 0 : -1;
    if (result == 0 && routing)
        json_object_set(document, "expert_share", routing);
    json_decref(routing);
    if (result == 0)
        result = plan_inputs_read(document, &inputs, err);
    if (result == 0)
        result = plan_here(cli, &inputs, &(struct asked){.problem = document, .runnable_only = true}, err);
    plan_inputs_fini(&inputs);
    json_decref(document);
    return result;
}

/* Plans from files alone. An external planner gets the same inputs as a document, and only runnable plans are
 * compared.
 */
static int plan_by_files(struct cli *cli, const char *cluster, struct err *err)
{
    const bool other = cli_option(cli, "--planner") != NULL;
    struct plan_inputs inputs = {0};
    json_t *rows = NULL, *problem = NULL, *routing;
    int planned = 0;
    if (routing_read(cli, &routing, err) < 0) {
        json_decref(routing);
        return -1;
    }
    if (other || cli_option(cli, "--problem")) {
        problem = given_problem(cli->words[0], cluster, &rows, err);
        if (problem && routing)
            json_object_set(problem, "expert_share", routing);
        planned = problem ? plan_inputs_read(problem, &inputs, err) : -1;
    } else {
        planned = given_by_files(cli->words[0], cluster, routing, &inputs, &rows, err);
    }
    json_decref(routing);
    const struct asked asked = {.rows = rows, .problem = problem, .runnable_only = other};
    if (planned == 0 && (planned = plan_here(cli, &inputs, &asked, err)) < 0)
        (void)given_of_spec(err, cli->words[0]);
    json_decref(rows);
    plan_inputs_fini(&inputs);
    json_decref(problem);
    return planned;
}

static int plan_by_server(struct cli *cli, const json_t *spec, struct err *err)
{
    json_t *answer = NULL;
    int result = client_open(cli, err);
    if (result == 0 && isatty(STDERR_FILENO))
        fprintf(stderr, "asking %s (devices that were never measured with this model are measured first)\n",
                cli->address);
    if (result == 0)
        result =
            http_json(cli->http, "POST",
                      cli_option(cli, "--program") ? "/v1/jobs:validate?programs=1" : "/v1/jobs:validate",
                      spec, PLAN_MS, &answer, err);
    if (result == 0) {
        result = cli->json ? show_json(answer, err) : show_plan(answer, err);
        if (result == 0 && strcmp(show_str(answer, "verdict"), "fits") != 0)
            cli->exit_status = CLI_NOFIT;
    }
    if (result == 0 && !cli->json && *show_str(answer, "program"))
        printf("\n%s", show_str(answer, "program"));
    json_decref(answer);
    return result;
}

int command_plan(struct cli *cli, struct err *err)
{
    static const char *const here[] = {"--draw",    "--save",    "--from",   "--objective",  "--evaluations",
                                       "--seed",    "--insight", "--jitter", "--steps-left", "--restart",
                                       "--planner", "--problem", "--routing"};
    const char *cluster = cli_option(cli, "--cluster");
    if (cluster)
        return plan_by_files(cli, cluster, err);
    json_t *spec = given_spec(cli->words[0], err);
    if (!spec)
        return -1;
    bool asked = false;
    for (size_t k = 0; k < sizeof(here) / sizeof(here[0]); k++)
        asked |= cli_option(cli, here[k]) != NULL;
    int result = upload_spec_files(cli, spec, err);
    if (result == 0)
        result = asked ? plan_with_inputs(cli, spec, err) : plan_by_server(cli, spec, err);
    json_decref(spec);
    return result;
}
