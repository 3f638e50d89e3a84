/* `motley replay JOB`: simulates a recorded run from its own instruction times, and beside it the run with
 * changes. A changed speed or link keeps the plan; another placement or other devices need a new plan, which
 * is made with the costs of the run itself. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/document.h"
#include "common/buf.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/json.h"
#include "common/units.h"
#include "model/job/spec.h"
#include "show/draw.h"
#include "planner/given/inputs.h"
#include "replay/change.h"
#include "replay/replay.h"
#include "program/codec.h"
#include "program/trace.h"

enum { TRACE_FILE_BYTES_MAX = 256 << 20, LINK_TEXT_BYTES = 256 };

/* A recorded run from the server, and the changes asked for. */
struct recorded {
    int64_t id;
    json_t *job, *metrics, *links;
    struct plan *plan;
    struct plan_costs predicted; /* the plan's costs when it was made; its text is not read */
    struct trace trace;          /* instruction times as recorded */
    struct trace timeline;       /* instruction times as simulated, without or with the changes */
    struct replay_change change;
    char (*link_texts)[LINK_TEXT_BYTES]; /* memory of the names in change.links */
    bool changed, again; /* changed: something is changed; again: the change needs a new plan */
    struct replay_answer answer;
};

/* The result of planning again. */
struct again {
    struct plan_inputs inputs;
    struct plan_answer *answer;
    /* predicted step time of the recorded plan at the costs of the new plan; 0: one of its devices is gone */
    double priced_s;
    json_t *added; /* names of the added devices */
};

/* --- options --- */

/* Splits "DEVICE=X" at its last "="; *factor must be above 0. */
static int speed_parse(const char *text, char device[256], double *factor, struct err *err)
{
    const char *mark = strrchr(text, '=');
    char *end = NULL;
    *factor = mark ? strtod(mark + 1, &end) : 0;
    if (!mark || mark == text || mark - text > 255 || !end || end == mark + 1 || *end || !(*factor >= 1e-6) ||
        !(*factor <= 1e6))
        return err_set(err, ERR_INVALID, "--speed: \"%.80s\" is not DEVICE=X with X from 0.000001 to 1000000",
                       text);
    snprintf(device, 256, "%.*s", (int)(mark - text), text);
    return 0;
}

/* Parses "A:B=RATE,LATENCY"; `copy` holds the names. A missing latency is 0. */
static int link_parse(const char *text, char copy[LINK_TEXT_BYTES], const char *ends[2], double *rate,
                      double *latency, struct err *err)
{
    size_t size = strlen(text);
    snprintf(copy, LINK_TEXT_BYTES, "%s", text);
    char *equals = strrchr(copy, '='), *colon = equals ? memchr(copy, ':', (size_t)(equals - copy)) : NULL;
    char *comma = equals ? strchr(equals, ',') : NULL;
    if (size >= LINK_TEXT_BYTES || !colon || colon == copy || colon + 1 == equals)
        return err_set(err, ERR_INVALID,
                       "--link: \"%.80s\" is not A:B=RATE,LATENCY, such as left:right=10Gbit/s,0.1ms", text);
    *colon = *equals = '\0';
    if (comma)
        *comma = '\0';
    *latency = 0;
    if (units_parse_rate(equals + 1, rate, err) < 0 ||
        (comma && units_parse_seconds(comma + 1, latency, err) < 0))
        return err_wrap(err, "--link");
    if (!(*rate >= 1) || !(*latency <= 1e6))
        return err_set(err, ERR_INVALID, "--link: \"%.80s\": a rate of at least 1 byte/s is wanted", text);
    ends[0] = copy;
    ends[1] = colon + 1;
    return 0;
}

static int unknown_name(const struct plan *plan, const char *option, const char *what, const char *name,
                        struct err *err)
{
    char known[320] = "";
    size_t used = 0;
    for (uint32_t r = 0; r < plan->rank_count && used < sizeof(known) - 80; r++) {
        const char *text = strcmp(what, "node") == 0 ? plan->ranks[r].node : plan->ranks[r].device;
        bool seen = false;
        for (uint32_t before = 0; before < r; before++)
            seen |= strcmp(text, strcmp(what, "node") == 0 ? plan->ranks[before].node
                                                           : plan->ranks[before].device) == 0;
        if (!seen)
            used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%.60s", used ? ", " : "", text);
    }
    return err_set(err, ERR_INVALID, "%s: there is no %s \"%.100s\" in this run; there are %s", option, what,
                   name, known);
}

/* Reads --speed for a kept plan: one factor per rank. */
static int read_speeds(struct cli *cli, struct recorded *run, struct err *err)
{
    const char *text;
    run->change.device_speed = calloc(run->plan->rank_count, sizeof(double));
    if (!run->change.device_speed)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (uint32_t r = 0; r < run->plan->rank_count; r++)
        run->change.device_speed[r] = 1;
    for (unsigned n = 0; (text = cli_option_nth(cli, "--speed", n)) != NULL; n++) {
        char device[256];
        double factor;
        bool known = false;
        if (speed_parse(text, device, &factor, err) < 0)
            return -1;
        for (uint32_t r = 0; r < run->plan->rank_count; r++) {
            if (strcmp(run->plan->ranks[r].device, device) == 0) {
                run->change.device_speed[r] = factor;
                known = true;
            }
        }
        if (!known)
            return unknown_name(run->plan, "--speed", "device", device, err);
    }
    return 0;
}

static int read_links(struct cli *cli, struct recorded *run, struct err *err)
{
    const char *text;
    struct replay_change *change = &run->change;
    const unsigned most = sizeof(change->links) / sizeof(change->links[0]);
    run->link_texts = calloc(most, sizeof(*run->link_texts));
    if (!run->link_texts)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (unsigned n = 0; (text = cli_option_nth(cli, "--link", n)) != NULL; n++) {
        const char *ends[2];
        double rate, latency;
        if (n == most)
            return err_set(err, ERR_TOO_BIG, "--link: more than %u", most);
        if (link_parse(text, run->link_texts[n], ends, &rate, &latency, err) < 0)
            return -1;
        for (int k = 0; k < 2; k++) {
            bool known = false;
            for (uint32_t r = 0; r < run->plan->rank_count; r++)
                known |= strcmp(run->plan->ranks[r].node, ends[k]) == 0;
            if (!known)
                return unknown_name(run->plan, "--link", "node", ends[k], err);
        }
        change->links[n].from = ends[0];
        change->links[n].to = ends[1];
        change->links[n].bytes_per_s = rate;
        change->links[n].latency_s = latency;
        change->link_count = n + 1;
    }
    return 0;
}

/* --- the run --- */

static int read_run(struct cli *cli, struct recorded *run, struct err *err)
{
    json_t *plan = NULL, *trace = NULL, *profiles = NULL;
    long long id = run->id;
    int result = client_call(cli, "GET", NULL, &run->job, err, "/v1/jobs/%lld", id);
    const char *state = show_str(run->job, "state");
    if (result == 0 && strcmp(state, "succeeded") != 0 && strcmp(state, "failed") != 0 &&
        strcmp(state, "cancelled") != 0)
        result = err_set(err, ERR_CONFLICT, "job %lld is %s: only a job that has ended can be replayed", id,
                         state);
    if (result == 0 && (result = client_call(cli, "GET", NULL, &plan, err, "/v1/jobs/%lld/plan", id)) < 0 &&
        err->code == ERR_NOT_FOUND)
        err_set(err, ERR_NOT_FOUND, "job %lld never ran: there is nothing to replay", id);
    if (result == 0 && (result = client_call(cli, "GET", NULL, &trace, err, "/v1/jobs/%lld/trace", id)) < 0 &&
        err->code == ERR_NOT_FOUND)
        err_set(err, ERR_NOT_FOUND, "job %lld recorded no trace: there is nothing to replay", id);
    if (result == 0) {
        const json_t *inner = json_object_get(plan, "plan");
        run->plan = plan_from_json(inner ? inner : plan, err);
        result = run->plan ? trace_from_chrome(trace, &run->trace, err) : -1;
        run->predicted = run->plan ? run->plan->costs : (struct plan_costs){0};
    }
    if (result == 0 && run->trace.count == 0)
        result = err_set(err, ERR_NOT_FOUND, "job %lld recorded no trace: there is nothing to replay", id);
    if (result == 0)
        result = (run->metrics = client_metrics(cli, run->id, err)) ? 0 : -1;
    if (result == 0)
        result = client_list(cli, "/v1/profiles", "profiles", &profiles, err);
    run->links = json_incref(json_object_get(profiles, "links"));
    json_decref(plan);
    json_decref(trace);
    json_decref(profiles);
    return result;
}

/* --- planning again --- */

/* Applies the changes to the inputs document: first the cluster, then added and removed devices, speeds and
 * links, which may name added devices, and last the placement. */
static int change_inputs(struct cli *cli, json_t *inputs, json_t *added, struct err *err)
{
    const char *text, *cluster = cli_option(cli, "--cluster"), *place = cli_option(cli, "--placement");
    int result;
    if (cluster) {
        const char *key = json_string_value(json_object_get(inputs, "profile_key"));
        json_t *file = given_cluster(cluster, key ? key : "", err);
        result = !file ? -1 : plan_inputs_cluster(inputs, file, err) < 0 ? err_wrap(err, "%s", cluster) : 0;
        if (result == 0)
            result = plan_inputs_keep_names(inputs, err);
        json_decref(file);
        if (result < 0)
            return given_wrong(err) < 0 ? err_wrap(err, "--cluster") : -1;
    }
    for (unsigned n = 0; (text = cli_option_nth(cli, "--add", n)) != NULL; n++) {
        char name[256];
        if (plan_inputs_add(inputs, text, name, err) < 0)
            return err_wrap(err, "--add");
        json_array_append_new(added, json_string(name));
    }
    for (unsigned n = 0; (text = cli_option_nth(cli, "--without", n)) != NULL; n++)
        if (plan_inputs_without(inputs, text, err) < 0)
            return err_wrap(err, "--without");
    for (unsigned n = 0; (text = cli_option_nth(cli, "--speed", n)) != NULL; n++) {
        char device[256];
        double factor;
        if (speed_parse(text, device, &factor, err) < 0)
            return -1;
        if (plan_inputs_speed(inputs, device, factor, err) < 0)
            return err_wrap(err, "--speed");
    }
    for (unsigned n = 0; (text = cli_option_nth(cli, "--link", n)) != NULL; n++) {
        char copy[LINK_TEXT_BYTES];
        const char *ends[2];
        double rate, latency;
        if (link_parse(text, copy, ends, &rate, &latency, err) < 0)
            return -1;
        if (plan_inputs_link(inputs, ends[0], ends[1], rate, latency, err) < 0)
            return err_wrap(err, "--link");
    }
    /* The placement that the recorded job asked for may not suit other devices. */
    result = plan_inputs_place(inputs, place ? place : "auto", err);
    return result < 0 ? err_wrap(err, "--placement") : 0;
}

static int plan_again(struct cli *cli, struct recorded *run, struct again *again, struct err *err)
{
    /* A plan for the present devices must be runnable; a what-if plan need not be. */
    struct plan_options options = {
        .programs = true, .runnable_only = !cli_option(cli, "--placement") && !cli_option(cli, "--cluster")};
    again->added = json_array();
    /* The run is compared with plans that compute as it did. */
    json_t *spec =
        spec_computed(json_object_get(run->job, "spec"),
                      json_string_value(json_object_get(json_object_get(run->job, "inputs"), "compute")));
    json_t *inputs = given_by_server(cli, spec, NULL, err);
    json_decref(spec);
    if (!inputs)
        return err_wrap(err, "planning job %lld again", (long long)run->id);
    size_t index;
    json_t *device; /* the run's own times are compared, so what other runs taught is left out */
    json_array_foreach (json_object_get(inputs, "devices"), index, device)
        json_object_del(device, "taught");
    int result = replay_calibrate(run->plan, run->answer.compute_s, inputs, &again->priced_s, err);
    if (result == 0)
        result = change_inputs(cli, inputs, again->added, err);
    if (result == 0)
        result = plan_inputs_read(inputs, &again->inputs, err);
    if (result == 0) {
        uint64_t began = clock_mono_ns();
        result = plan_search(&again->inputs.workload, again->inputs.cluster, &options, &again->answer, err);
        if (result == 0)
            again->answer->plan_s = (double)(clock_mono_ns() - began) * 1e-9;
    }
    if (result == 0 && again->answer->plan) {
        double ignored;
        run->answer.changed_s = again->answer->step_s;
        run->timeline.count = 0;
        result = plan_simulate(again->answer->plan, &again->inputs.workload, again->inputs.cluster,
                               &run->timeline, &ignored, err);
    }
    json_decref(inputs);
    return result;
}

/* --- output --- */

static int tell_json(const struct recorded *run, const struct again *again, struct err *err)
{
    const struct replay_answer *a = &run->answer;
    bool has = run->again ? again->answer->plan != NULL : run->changed;
    json_t *line = json_pack("{s:I, s:f, s:f, s:o, s:I, s:f, s:f}", "id", (json_int_t)run->id, "recorded_s",
                             a->recorded_s, "simulated_s", a->simulated_s, "changed_s",
                             has ? json_real(a->changed_s) : json_null(), "steps", (json_int_t)a->steps,
                             "gaps_s", a->gaps_s, "outside_s", a->outside_s);
    if (line && run->predicted.corrected_runs > 0)
        json_object_set_new(line, "uncorrected_s",
                            json_real(run->predicted.step_s / run->predicted.corrected));
    if (line && run->again) {
        json_object_set_new(line, "priced_s", again->priced_s > 0 ? json_real(again->priced_s) : json_null());
        json_object_set(line, "added", again->added);
        json_object_set_new(line, "plan", answer_to_json(again->answer, err));
    }
    int result = line ? show_json(line, err) : err_set(err, ERR_NOMEM, "out of memory");
    json_decref(line);
    return result;
}

/* relative difference between predicted and simulated step time above which the user is warned that the costs
 * do not explain the run; a rule of thumb */
#define PRICED_FAR 0.1

static int tell_again(const struct recorded *run, const struct again *again, struct err *err)
{
    char text[32];
    size_t index;
    json_t *name;
    /* The prediction is compared with the simulation, not with the recorded time, which has gaps and noise.
     */
    double simulated_s = run->answer.simulated_s, priced_s = again->priced_s;
    double base_s = priced_s > 0 ? priced_s : simulated_s,
           miss = priced_s > 0 ? priced_s / simulated_s - 1 : 0;
    if (priced_s > 0)
        printf("priced     %s, the recorded plan at the costs that plans are made with (%+.1f %%)\n",
               units_seconds(text, priced_s), 100 * miss);
    if (again->answer->plan)
        printf("as changed %s per step, planned again at this run's own costs (%+.1f %% of the recorded "
               "plan%s)\n",
               units_seconds(text, run->answer.changed_s), 100 * (run->answer.changed_s / base_s - 1),
               priced_s > 0 ? " at the same costs" : "");
    if (miss < -PRICED_FAR || miss > PRICED_FAR)
        printf("           these costs miss much of what this run took: compare \"as changed\" with "
               "\"priced\" alone\n");
    json_array_foreach (again->added, index, name)
        printf("           with %s added\n", json_string_value(name));
    json_t *told = answer_to_json(again->answer, err);
    int result = -1;
    if (told) {
        printf("\n");
        result = show_plan(told, err);
    }
    json_decref(told);
    return result;
}

static int replay_job_tell(struct cli *cli, const struct recorded *run, const struct again *again,
                           struct err *err)
{
    const struct replay_answer *a = &run->answer;
    char text[3][32];
    if (run->again && !again->answer->plan)
        cli->exit_status = CLI_NOFIT;
    if (cli->json)
        return tell_json(run, again, err);
    if (run->predicted.corrected_runs > 0)
        printf("predicted  %s per step; %s without what %u run%s taught (%+.0f %%)\n",
               units_seconds(text[0], run->predicted.step_s),
               units_seconds(text[1], run->predicted.step_s / run->predicted.corrected),
               run->predicted.corrected_runs, run->predicted.corrected_runs == 1 ? "" : "s",
               100 * (run->predicted.corrected - 1));
    printf("recorded   %s per step (median of %u traced steps)\n", units_seconds(text[0], a->recorded_s),
           a->steps);
    printf("simulated  %s from its own instruction times (%+.1f %%)\n",
           units_seconds(text[0], a->simulated_s), 100 * (a->simulated_s / a->recorded_s - 1));
    printf("           of it %s of gaps before instructions that could have begun (sum over ranks), %s "
           "outside the "
           "program\n",
           units_seconds(text[1], a->gaps_s), units_seconds(text[2], a->outside_s));
    if (run->again) {
        const char *trace = cli_option(cli, "--trace"), *picture = cli_option(cli, "--draw");
        int result = tell_again(run, again, err);
        if (result == 0 && !again->answer->plan && trace)
            printf("  %s was not written: there is no plan\n", trace);
        if (result == 0 && !again->answer->plan && picture)
            printf("  %s was not written: there is no plan\n", picture);
        return result;
    }
    if (run->changed)
        printf("as changed %s (%+.1f %%), the same plan\n", units_seconds(text[0], a->changed_s),
               100 * (a->changed_s / a->simulated_s - 1));
    return 0;
}

static int write_trace(const char *path, const struct trace *timeline, const struct plan *plan,
                       struct err *err)
{
    json_t *chrome = trace_to_chrome(timeline, plan, "simulated", 0, err);
    int result = chrome ? document_save(path, chrome, false, 0644, err) : -1;
    json_decref(chrome);
    return result < 0 ? err_wrap(err, "--trace") : 0;
}

static int replay_job_write_files(struct cli *cli, const struct recorded *run, const struct again *again,
                                  struct err *err)
{
    const char *trace = cli_option(cli, "--trace"), *picture = cli_option(cli, "--draw");
    const struct plan *plan = run->again ? again->answer->plan : run->plan;
    if (!plan)
        return 0;
    if (trace && write_trace(trace, &run->timeline, plan, err) < 0)
        return -1;
    const struct draw_input input = {.plan = plan,
                                     .timeline = &run->timeline,
                                     .step_s = run->again || run->changed ? run->answer.changed_s
                                                                          : run->answer.simulated_s,
                                     .title = run->again || run->changed ? "as changed" : "as simulated",
                                     .words = run->again ? again->answer->words : NULL,
                                     .cluster = run->again ? again->inputs.cluster : NULL,
                                     .answer = run->again ? again->answer : NULL};
    return picture && draw_write(picture, &input, err) < 0 ? err_wrap(err, "--draw") : 0;
}

static int replay_read(struct cli *cli, struct recorded *run, struct again *again, struct err *err)
{
    int result = read_run(cli, run, err);
    if (result == 0 && !run->again)
        result = read_speeds(cli, run, err) < 0 ? -1 : read_links(cli, run, err);
    if (result == 0) {
        run->answer.compute_s = calloc(run->plan->rank_count, sizeof(double));
        result = run->answer.compute_s ? 0 : err_set(err, ERR_NOMEM, "out of memory");
    }
    if (result == 0)
        result =
            replay_run(run->plan, &run->trace, run->metrics, run->links,
                       run->changed && !run->again ? &run->change : NULL, &run->answer, &run->timeline, err);
    if (result == 0 && run->again)
        result = plan_again(cli, run, again, err);
    if (result == 0)
        result = replay_job_write_files(cli, run, again, err);
    return result < 0 ? -1 : replay_job_tell(cli, run, again, err);
}

int replay_job(struct cli *cli, const char *word, struct err *err)
{
    struct recorded run = {0};
    struct again again = {0};
    trace_init(&run.trace, 0);
    trace_init(&run.timeline, 0);
    run.again = cli_option(cli, "--placement") || cli_option(cli, "--cluster") ||
                cli_option(cli, "--without") || cli_option(cli, "--add");
    run.changed = run.again || cli_option(cli, "--speed") || cli_option(cli, "--link");
    int result = client_job_id(word, &run.id, err);
    if (result == 0)
        result = replay_read(cli, &run, &again, err);
    plan_answer_destroy(again.answer);
    plan_inputs_fini(&again.inputs);
    json_decref(again.added);
    trace_fini(&run.trace);
    trace_fini(&run.timeline);
    plan_destroy(run.plan);
    json_decref(run.job);
    json_decref(run.metrics);
    json_decref(run.links);
    free(run.change.device_speed);
    free(run.link_texts);
    free(run.answer.compute_s);
    return result;
}
