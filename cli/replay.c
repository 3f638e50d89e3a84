/* `motley replay`: the planning cases of others, and recorded runs changed as asked. */
#include "cli/cli.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/json.h"
#include "common/units.h"
#include "planner/replay.h"
#include "program/codec.h"
#include "program/trace.h"

enum { REPLAY_FILE_BYTES_MAX = 256 << 20 };

static json_t *read_document(const char *folder, const char *name, struct err *err)
{
    char path[PATH_MAX];
    struct buf text = {.limit = REPLAY_FILE_BYTES_MAX};
    json_t *document = NULL;
    if (file_path(path, sizeof path, err, "%s%s%s", folder ? folder : "", folder ? "/" : "", name) < 0)
        return NULL;
    if (file_read_all(path, REPLAY_FILE_BYTES_MAX, &text, err) < 0)
        err->code = err->code == ERR_NOT_FOUND ? ERR_INVALID : err->code;
    else if (!(document = json_parse_limited(buf_str(&text), text.size, JSON_DEPTH_MAX, err)))
        err_wrap(err, "%s", path);
    buf_fini(&text);
    return document;
}

static int print_line(void *context, const json_t *line, struct err *err)
{
    (void)context;
    return show_json(line, err);
}

static double now_s(void *context)
{
    (void)context;
    return (double)clock_mono_ns() * 1e-9;
}

static int replay_cases(struct cli *cli, const char *from, struct err *err)
{
    const char *folder = cli_option(cli, "--data"), *cases_path = cli_option(cli, "--cases");
    const char *const *names = replay_import_files(from);
    if (!names)
        return err_set(err, ERR_INVALID, "--from: \"%.40s\" is none of cephalo, zorse, sailor", from);
    if (!folder || !cases_path)
        return err_set(err, ERR_INVALID, "motley replay --from %s wants --data DIR and --cases FILE", from);
    json_t *documents = json_object(), *cases = read_document(NULL, cases_path, err);
    int result = documents && cases ? 0 : -1;
    for (; result == 0 && *names; names++) {
        json_t *document = read_document(folder, *names, err);
        result = document ? json_object_set_new(documents, *names, document) : -1;
    }
    const struct replay_sink sink = {.line = print_line, .now_s = now_s};
    if (result == 0)
        result = replay_import(from, documents, cases, &sink, err);
    json_decref(documents);
    json_decref(cases);
    return result;
}

/* "--speed DEVICE=X", as often as given, into one factor a rank. */
static int read_speeds(const struct cli *cli, const struct plan *plan, double *speed, struct err *err)
{
    const char *text;
    for (uint32_t r = 0; r < plan->rank_count; r++)
        speed[r] = 1;
    for (unsigned n = 0; (text = cli_option_nth(cli, "--speed", n)) != NULL; n++) {
        const char *mark = strrchr(text, '=');
        char *end = NULL;
        double factor = mark ? strtod(mark + 1, &end) : 0;
        bool known = false;
        for (uint32_t r = 0; mark && r < plan->rank_count; r++) {
            size_t length = strlen(plan->ranks[r].device);
            if (length == (size_t)(mark - text) && strncmp(plan->ranks[r].device, text, length) == 0) {
                speed[r] = factor;
                known = true;
            }
        }
        if (!mark || !end || *end || !(factor > 0) || !(factor < 1e6) || !known)
            return err_set(err, ERR_INVALID,
                           "--speed: \"%.80s\" is not DEVICE=X with a device of this run and X above 0",
                           text);
    }
    return 0;
}

/* "--link A:B=RATE,LATENCY" into one change; `copy` keeps the names. */
static int read_link(const char *text, char copy[256], struct replay_change *change, struct err *err)
{
    double rate = 0, latency = 0;
    snprintf(copy, 256, "%s", text);
    char *equals = strrchr(copy, '='), *colon = equals ? memchr(copy, ':', (size_t)(equals - copy)) : NULL;
    char *comma = equals ? strchr(equals, ',') : NULL;
    if (!colon || strlen(text) >= 256 || change->link_count == sizeof change->links / sizeof change->links[0])
        return err_set(err, ERR_INVALID, "--link: \"%.80s\" is not A:B=RATE,LATENCY, or one too many", text);
    *colon = *equals = 0;
    if (comma)
        *comma = 0;
    if (units_parse_rate(equals + 1, &rate, err) < 0 ||
        (comma && units_parse_seconds(comma + 1, &latency, err) < 0))
        return err_wrap(err, "--link");
    if (!(rate > 0))
        return err_set(err, ERR_INVALID, "--link: a rate of %s", equals + 1);
    change->links[change->link_count].from = copy;
    change->links[change->link_count].to = colon + 1;
    change->links[change->link_count].bytes_per_s = rate;
    change->links[change->link_count++].latency_s = latency;
    return 0;
}

static int replay_show(struct cli *cli, int64_t id, bool changed, const double seconds[3], struct err *err)
{
    if (cli->json) {
        json_t *line =
            json_pack("{s:I, s:f, s:f, s:o}", "id", (json_int_t)id, "recorded_s", seconds[0], "simulated_s",
                      seconds[1], "changed_s", changed ? json_real(seconds[2]) : json_null());
        int result = line ? show_json(line, err) : err_set(err, ERR_NOMEM, "out of memory");
        json_decref(line);
        return result;
    }
    char text[3][32];
    for (int i = 0; i < 3; i++)
        units_seconds(text[i], seconds[i]);
    printf("recorded   %s a step\nsimulated  %s from its own instruction times (%+.1f %%)\n", text[0],
           text[1], 100 * (seconds[1] / seconds[0] - 1));
    if (changed)
        printf("as changed %s (%+.1f %%)\n", text[2], 100 * (seconds[2] / seconds[1] - 1));
    return 0;
}

static int write_trace(const char *path, const struct trace *timeline, const struct plan *plan,
                       struct err *err)
{
    struct buf text = {.limit = REPLAY_FILE_BYTES_MAX};
    json_t *chrome = trace_to_chrome(timeline, plan, "simulated", 0, err);
    int result = chrome ? json_print(chrome, false, &text, err) : -1;
    if (result == 0)
        result = file_write_atomic(path, text.data, text.size, 0644, err);
    json_decref(chrome);
    buf_fini(&text);
    return result;
}

static int replay_recorded(struct cli *cli, int64_t id, const struct plan *plan, const struct trace *recorded,
                           struct err *err)
{
    struct replay_change change = {0};
    struct trace timeline;
    char(*names)[256] = calloc(sizeof change.links / sizeof change.links[0], sizeof *names);
    double seconds[3];
    const char *text, *path = cli_option(cli, "--trace");
    int result = names && (change.device_speed = calloc(plan->rank_count, sizeof(double)))
                     ? read_speeds(cli, plan, change.device_speed, err)
                     : err_set(err, ERR_NOMEM, "out of memory");
    for (unsigned n = 0; result == 0 && (text = cli_option_nth(cli, "--link", n)) != NULL; n++)
        result = read_link(text, names[change.link_count < 16 ? change.link_count : 15], &change, err);
    bool changed = cli_option(cli, "--speed") || change.link_count > 0;
    trace_init(&timeline, 0);
    if (result == 0)
        result = replay_run(plan, recorded, NULL, changed ? &change : NULL, &seconds[0], &seconds[1],
                            &seconds[2], &timeline, err);
    if (result == 0 && path)
        result = write_trace(path, &timeline, plan, err);
    if (result == 0)
        result = replay_show(cli, id, changed, seconds, err);
    trace_fini(&timeline);
    free(change.device_speed);
    free(names);
    return result;
}

/* A job's plan and the steps it traced, as the server has them. */
static int replay_job(struct cli *cli, const char *word, struct err *err)
{
    int64_t id = 0;
    json_t *plan_document = NULL, *trace_document = NULL;
    struct plan *plan = NULL;
    struct trace recorded;
    trace_init(&recorded, 0);
    int result = client_job_id(word, &id, err);
    if (result == 0)
        result = client_call(cli, "GET", NULL, &plan_document, err, "/v1/jobs/%lld/plan", (long long)id);
    if (result == 0)
        result = client_call(cli, "GET", NULL, &trace_document, err, "/v1/jobs/%lld/trace", (long long)id);
    if (result == 0) {
        const json_t *inner = json_object_get(plan_document, "plan");
        plan = plan_from_json(inner ? inner : plan_document, err);
        result = plan ? trace_from_chrome(trace_document, &recorded, err) : -1;
    }
    if (result == 0)
        result = replay_recorded(cli, id, plan, &recorded, err);
    trace_fini(&recorded);
    plan_destroy(plan);
    json_decref(plan_document);
    json_decref(trace_document);
    return result;
}

int command_replay(struct cli *cli, struct err *err)
{
    const char *from = cli_option(cli, "--from");
    if (from)
        return replay_cases(cli, from, err);
    if (cli->word_count == 1)
        return replay_job(cli, cli->words[0], err);
    return err_set(err, ERR_INVALID, "usage: motley replay JOB, or --from NAME --data DIR --cases FILE");
}
