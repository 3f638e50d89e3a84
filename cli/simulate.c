/* `motley simulate`: simulates the recorded arrivals of jobs with another policy or more devices. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/document.h"
#include "common/json.h"
#include "common/units.h"
#include "common/yaml.h"
#include "scheduler/simulate/records.h"

/* The span that is simulated, what the server recorded of it, and the changes to simulate. */
struct simulate_request {
    json_t *records, *arrivals; /* owned */
    int64_t span[2];
    const char *policy; /* file with the policy to simulate; NULL: the recorded policy */
    const char *added[CLI_REPEATS_MAX];
    size_t added_count;
};

/* The query of a span, and the span as words. */
struct span_text {
    char query[160], words[80];
};

/* Reads "FROM..TO", two times or dates. The span ends now if it would end later: nobody has waited yet in the
 * time to come. */
static int simulate_read_span(const char *word, int64_t *from_us, int64_t *to_us, struct span_text *text,
                              struct err *err)
{
    char from[40], to[40];
    const int64_t now_us = clock_wall_us();
    const char *dots = strstr(word, "..");
    if (!dots || (size_t)(dots - word) >= sizeof(from) || strlen(dots + 2) >= sizeof(to))
        return err_set(err, ERR_INVALID, "%.80s is not FROM..TO, as in 2026-01-01..2026-02-01", word);
    snprintf(from, sizeof(from), "%.*s", (int)(dots - word), word);
    snprintf(to, sizeof(to), "%s", dots + 2);
    if (clock_rfc3339_parse(from, from_us) < 0 || clock_rfc3339_parse(to, to_us) < 0)
        return err_set(err, ERR_INVALID, "%.80s: a time is written 2026-01-31 or 2026-01-31T08:00:00Z", word);
    if (*from_us >= *to_us)
        return err_set(err, ERR_INVALID, "%.80s: the span ends before it begins", word);
    if (*from_us >= now_us)
        return err_set(err, ERR_INVALID, "%.80s: the span has not begun yet", word);
    snprintf(text->words, sizeof(text->words), "%s", word);
    if (*to_us > now_us) {
        *to_us = now_us;
        snprintf(text->words, sizeof(text->words), "%s..%s", from, clock_rfc3339(now_us, to));
    }
    clock_rfc3339(*from_us, from);
    clock_rfc3339(*to_us, to);
    snprintf(text->query, sizeof(text->query), "from=%s&to=%s", from, to);
    return 0;
}

/* Reads a policy file and overwrites the settings that it gives. */
static int read_policy(const char *path, struct policy_settings *settings, struct err *err)
{
    struct json_reader reader;
    const char *reference = NULL;
    json_t *document = given_json(path, YAML_BYTES_MAX, err);
    int rc = document ? 0 : -1;
    if (rc == 0) {
        jr_init(&reader, document, "", err);
        doc_fields(&policy_settings_doc, &reader, settings);
        /* "reference" is accepted but not used: recorded speeds are relative to the reference device already.
         */
        jr_str(&reader, "reference", JR_OPTIONAL, 1, 4096, &reference);
        rc = jr_finish(&reader);
        if (rc < 0)
            err_wrap(err, "%s", path);
    }
    json_decref(document);
    return rc;
}

/* Adds the summary of these outcomes as a column of the comparison. */
static int simulate_add(json_t *columns, const char *name, const struct recorded_world *world,
                        const struct recorded_outcome *outcomes, size_t devices, struct err *err)
{
    json_t *column = recorded_summary(world, outcomes, devices);
    if (!column || json_object_set_new(column, "name", json_string(name)) < 0 ||
        json_array_append_new(columns, column) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a summary");
    return 0;
}

/* Simulates the span and adds columns: without `changed` "happened" (as recorded) and "simulated" (under the
 * recorded policy and devices), with it "changed" (under the request's policy and devices). */
static int simulate(const struct simulate_request *request, bool changed, json_t *columns, struct err *err)
{
    struct recorded_world world;
    if (recorded_world_make(request->records, request->arrivals, request->added,
                            changed ? request->added_count : 0, request->span[0], request->span[1], &world,
                            err) < 0)
        return -1;
    struct policy_settings settings = world.settings;
    const size_t devices = world.simulation.device_count;
    struct recorded_outcome *outcomes = calloc(world.simulation.job_count + 1, sizeof(*outcomes));
    int rc = outcomes ? 0 : err_set(err, ERR_NOMEM, "no memory for the outcomes");
    if (rc == 0 && changed && request->policy)
        rc = read_policy(request->policy, &settings, err);
    if (rc == 0)
        rc = recorded_world_run(&world, &settings, outcomes, err);
    if (rc == 0 && !changed)
        rc = simulate_add(columns, "happened", &world, world.happened, devices, err);
    if (rc == 0)
        rc = simulate_add(columns, changed ? "changed" : "simulated", &world, outcomes, devices, err);
    free(outcomes);
    recorded_world_fini(&world);
    return rc;
}

/* Prints one row of the comparison: the value `key` of each column. kind: t seconds, % a share, n a number.
 */
static void simulate_print_row(const char *label, const json_t *columns, const char *key, char kind)
{
    size_t i;
    json_t *column;
    char text[32];
    printf("%-24s", label);
    json_array_foreach ((json_t *)(uintptr_t)columns, i, column) {
        const double value = show_num(column, key, 0);
        if (kind == 't')
            units_seconds(text, value);
        else
            snprintf(text, sizeof(text), kind == '%' ? "%.1f %%" : "%.0f", kind == '%' ? 100 * value : value);
        printf(" %14s", text);
    }
    printf("\n");
}

/* Prints a row with share and mean wait for each entry of the columns' `list` ("groups" or "users"). */
static void print_people(const json_t *columns, const char *list, const char *what)
{
    size_t i, c;
    json_t *row, *column;
    json_array_foreach (json_object_get(json_array_get(columns, 0), list), i, row) {
        const json_t *name = json_object_get(row, "name");
        char label[64], share[32], wait[32];
        snprintf(label, sizeof(label), "%s %s", what,
                 json_is_string(name) ? json_string_value(name) : "(none)");
        printf("%-24.24s", label);
        json_array_foreach ((json_t *)(uintptr_t)columns, c, column) {
            /* Every column simulates the same jobs, so entry i is the same user or account in each. */
            const json_t *of = json_array_get(json_object_get(column, list), i);
            snprintf(share, sizeof(share), "%.0f %%", 100 * show_num(of, "share", 0));
            printf(" %6s %7s", share, units_seconds(wait, show_num(of, "wait_mean_s", 0)));
        }
        printf("\n");
    }
}

static int show(struct cli *cli, const json_t *answer, struct err *err)
{
    const json_t *columns = json_object_get(answer, "columns");
    size_t i;
    json_t *column;
    if (cli->json)
        return show_json(answer, err);
    printf("%-24s", "");
    json_array_foreach ((json_t *)(uintptr_t)columns, i, column)
        printf(" %14s", show_str(column, "name"));
    printf("\n");
    simulate_print_row("jobs", columns, "jobs", 'n');
    simulate_print_row("started", columns, "started", 'n');
    simulate_print_row("ended", columns, "ended", 'n');
    simulate_print_row("mean wait", columns, "wait_mean_s", 't');
    simulate_print_row("median wait", columns, "wait_median_s", 't');
    simulate_print_row("longest wait", columns, "wait_longest_s", 't');
    simulate_print_row("devices held", columns, "use", '%');
    print_people(columns, "groups", "group");
    print_people(columns, "users", "user");
    return 0;
}

/* Asks the server for the records of the span. */
static int simulate_fetch(struct cli *cli, const char *span, struct simulate_request *request,
                          struct err *err)
{
    char path[200];
    snprintf(path, sizeof(path), "/v1/arrivals?limit=10000&%s", span);
    if (client_call(cli, "GET", NULL, &request->records, err, "/v1/records?%s", span) < 0)
        return -1;
    request->arrivals = client_pages(cli, path, "arrivals", err);
    return request->arrivals ? 0 : -1;
}

int command_simulate(struct cli *cli, struct err *err)
{
    struct simulate_request request = {.policy = cli_option(cli, "--policy")};
    struct policy_settings checked = policy_defaults;
    struct span_text span;
    json_t *columns = json_array(), *answer = NULL;
    int rc = simulate_read_span(cli->words[0], &request.span[0], &request.span[1], &span, err);
    for (const char *device; request.added_count < CLI_REPEATS_MAX &&
                             (device = cli_option_nth(cli, "--add", (unsigned)request.added_count));)
        request.added[request.added_count++] = device;
    if (rc == 0 && request.policy) /* an invalid policy is refused before the server is asked */
        rc = read_policy(request.policy, &checked, err);
    if (rc == 0)
        rc = simulate_fetch(cli, span.query, &request, err);
    if (rc == 0)
        rc = simulate(&request, false, columns, err);
    if (rc == 0 && (request.policy || request.added_count > 0))
        rc = simulate(&request, true, columns, err);
    if (rc == 0) {
        answer = json_pack("{s:s, s:O}", "span", span.words, "columns", columns);
        rc = show(cli, answer, err);
    }
    json_decref(answer);
    json_decref(columns);
    json_decref(request.records);
    json_decref(request.arrivals);
    return rc;
}
