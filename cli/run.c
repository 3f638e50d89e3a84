/* `motley run`: takes one job from the start of the system to its results. */
#include "cli/cli.h"
#include "cli/report.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/units.h"
#include "local/local.h"

/* Starts the system if no server answers. */
static int ensure_up(struct cli *cli, struct err *err)
{
    struct err absent = {0};
    if (client_call(cli, "GET", NULL, NULL, &absent, "/readyz") == 0)
        return 0;
    client_close(cli);
    if (local_is_elsewhere(cli->home)) {
        *err = absent;
        return err_wrap(err, "the server that %.200s/client.json names", cli->home);
    }
    return command_up(cli, err);
}

/* Prints the devices that can be reached. Returns their names as keys, new. */
static json_t *show_devices(struct cli *cli)
{
    struct err ignored = {0};
    json_t *answer = NULL, *device, *names = json_object();
    size_t index;
    if (client_list(cli, "/v1/devices", "devices", &answer, &ignored) == 0) {
        printf("devices\n");
        json_array_foreach (json_object_get(answer, "devices"), index, device) {
            char memory[32];
            if (strcmp(show_str(device, "state"), "unreachable") == 0)
                continue;
            json_object_set_new(names, show_str(device, "name"), json_true());
            printf("  %-16s %s, %.0f thread%s, %s, %s may be used\n", show_str(device, "name"),
                   show_str(device, "kind"), show_num(device, "threads", 1),
                   show_num(device, "threads", 1) == 1 ? "" : "s", show_str(device, "isa"),
                   units_bytes(memory, (uint64_t)show_num(device, "memory_limit_bytes", 0)));
        }
    }
    json_decref(answer);
    return names;
}

/* Prints the measured speed of a device, from its largest point of a transformer layer. */
static void show_profile(const json_t *document)
{
    const json_t *best = NULL;
    json_t *point;
    size_t index;
    json_array_foreach (json_object_get(document, "points"), index, point) {
        if (strcmp(show_str(point, "block"), "layer") == 0 &&
            (!best || show_num(point, "tokens", 0) > show_num(best, "tokens", 0)))
            best = point;
    }
    double seconds = show_num(best, "forward_s", 0) + show_num(best, "backward_s", 0);
    if (best && seconds > 0)
        printf("  %-16s %.0f tokens/s per layer, forward and backward (%.0f tokens at a time, other devices "
               "here %s)\n",
               show_str(document, "device"), show_num(best, "tokens", 0) / seconds,
               show_num(best, "tokens", 0),
               json_is_true(json_object_get(document, "neighbours_busy")) ? "busy too" : "idle");
}

/* Prints the newest measurement of each of the devices for the specification's model. */
static void show_profiles(struct cli *cli, const json_t *spec, const json_t *names)
{
    struct err ignored = {0};
    json_t *answer = NULL, *entry, *newest = json_object();
    const char *device, *model = show_str(spec, "model");
    const bool by_content = strlen(model) == 64; /* else it is a registered name */
    size_t index;
    if (client_list(cli, "/v1/profiles", "profiles", &answer, &ignored) == 0)
        json_array_foreach (json_object_get(answer, "profiles"), index, entry) {
            const json_t *before = json_object_get(newest, show_str(entry, "device"));
            if (json_object_get(names, show_str(entry, "device")) &&
                (!by_content || strcmp(show_str(entry, "content"), model) == 0) &&
                strcmp(show_str(entry, "measured_at"), show_str(before, "measured_at")) >= 0)
                json_object_set(newest, show_str(entry, "device"), entry);
        }
    if (json_object_size(newest) > 0)
        printf("measured\n");
    json_object_foreach (newest, device, entry)
        show_profile(entry);
    json_decref(newest);
    json_decref(answer);
}

/* Writes where the results go: --out, else ./NAME-ID, or ./NAME-ID-2 where that holds those of another
 * server's job, and so on. */
static void out_folder(struct cli *cli, const json_t *job, int64_t id, char out[PATH_MAX])
{
    const char *given = cli_option(cli, "--out"), *name = show_str(job, "name");
    struct err taken;
    if (!*name || strchr(name, '/'))
        name = "job";
    if (given)
        snprintf(out, PATH_MAX, "%s", given);
    else
        snprintf(out, PATH_MAX, "./%s-%lld", name, (long long)id);
    for (int n = 2; !given && n < 100 && get_check(out, job, false, NULL, &taken) < 0; n++)
        snprintf(out, PATH_MAX, "./%s-%lld-%d", name, (long long)id, n);
}

/* Prints the plan before the job is submitted; this also measures devices that have no profile for this
 * model. */
static int show_plan_of(struct cli *cli, json_t *spec, const json_t *names, struct err *err)
{
    json_t *answer = NULL;
    if (client_open(cli, err) < 0 ||
        http_json(cli->http, "POST", "/v1/jobs:validate", spec, 120000, &answer, err) < 0)
        return -1;
    show_profiles(cli, spec, names);
    printf("\n");
    int result = show_plan(answer, err);
    if (result == 0 && strcmp(show_str(answer, "verdict"), "fits") != 0) {
        cli->exit_status = CLI_NOFIT;
        result = err_set(err, ERR_NOFIT, "no placement fits these devices");
    }
    printf("\n");
    json_decref(answer);
    return result;
}

int command_run(struct cli *cli, struct err *err)
{
    json_t *spec = given_spec(cli->words[0], err), *made = NULL, *job = NULL;
    char folder[PATH_MAX];
    int64_t id = 0;
    const char *out = cli_option(cli, "--out");
    int result = spec ? 0 : -1;
    if (result == 0 && out)
        result = get_check(out, NULL, cli_option(cli, "--replace"), NULL, err);
    if (result == 0)
        result = ensure_up(cli, err);
    if (result == 0)
        result = upload_spec_files(cli, spec, err);
    if (result == 0 && !cli->json) {
        json_t *names = show_devices(cli);
        result = show_plan_of(cli, spec, names, err);
        json_decref(names);
    }
    if (result == 0)
        result = submit_spec(cli, spec, &made, &id, err);
    if (result == 0 && !cli->json)
        printf("job %lld submitted\n", (long long)id);
    if (result == 0)
        result = watch_job(cli, id, &job, err);
    if (result == 0 && strcmp(show_str(job, "state"), "succeeded") == 0) {
        out_folder(cli, job, id, folder);
        result = get_job(cli, job, folder, err);
        if (result == 0 && cli->json)
            result = show_json(job, err);
        else if (result == 0)
            report_run(cli, id, job, folder);
    }
    if (result == 0)
        result = job_verdict(cli, job, err);
    json_decref(spec);
    json_decref(made);
    json_decref(job);
    return result;
}
