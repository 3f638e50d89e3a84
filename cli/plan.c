/* `motley plan`: with a server its devices and measured costs, with --cluster none at all. */
#include "cli/cli.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/json.h"
#include "common/units.h"
#include "common/yaml.h"
#include "model/blocks.h"
#include "planner/from_spec.h"

enum { PLAN_FILE_BYTES_MAX = 64 << 20, PLAN_MS = 120000 };

static void print_ranks(const json_t *ranks)
{
    size_t index;
    json_t *rank;
    printf("\n  %-4s %-16s %-12s %5s %6s  %s\n", "RANK", "DEVICE", "BLOCKS", "ROWS", "BUSY", "MEMORY");
    json_array_foreach(ranks, index, rank)
    {
        const json_t *blocks = json_object_get(rank, "blocks");
        char range[32], used[32], limit[32], busy[32];
        double has = show_num(rank, "memory_limit_bytes", 0), needs = show_num(rank, "memory_bytes", 0);
        snprintf(range, sizeof range, "%.0f..%.0f", json_number_value(json_array_get(blocks, 0)),
                 json_number_value(json_array_get(blocks, 1)));
        printf("  %-4.0f %-16s %-12s %5.0f %6s  %s of %s (%.0f %%)\n", show_num(rank, "rank", 0),
               show_str(rank, "device"), range, show_num(rank, "rows", 0),
               units_seconds(busy, show_num(rank, "busy_s", 0)), units_bytes(used, (uint64_t)needs),
               units_bytes(limit, (uint64_t)has), has > 0 ? 100 * needs / has : 0);
    }
}

static void print_alternatives(const json_t *alternatives)
{
    size_t index;
    json_t *other;
    if (json_array_size(alternatives) > 0)
        printf("\n  otherwise\n");
    json_array_foreach(alternatives, index, other)
    {
        char needs[32], has[32], step[32];
        printf("  %-10s %-16s ", show_str(other, "placement"), show_str(other, "device"));
        if (strcmp(show_str(other, "verdict"), "fits") == 0)
            printf("%s a step\n", units_seconds(step, show_num(other, "step_s", 0)));
        else
            printf("%s: needs %s, has %s\n", show_str(other, "verdict"),
                   units_bytes(needs, (uint64_t)show_num(other, "needs_bytes", 0)),
                   units_bytes(has, (uint64_t)show_num(other, "has_bytes", 0)));
    }
}

int show_plan(const json_t *answer, struct err *err)
{
    char step[32], bound[32], search[32];
    size_t index;
    json_t *out;
    if (!json_is_object(answer))
        return err_set(err, ERR_PEER, "the answer is no plan");
    bool fits = strcmp(show_str(answer, "verdict"), "fits") == 0;
    const char *words = show_str(answer, "words");
    printf("%s\n", *words ? words : show_str(answer, "verdict"));
    if (fits) {
        printf("%s: %s a step, %.0f tokens/s, %.0f micro-batches of %.0f rows; no plan can be under %s; "
               "found in %s\n",
               show_str(answer, "placement"), units_seconds(step, show_num(answer, "step_s", 0)),
               show_num(answer, "tokens_per_s", 0), show_num(answer, "micro_batches", 0),
               show_num(answer, "micro_batch_rows", 0),
               units_seconds(bound, show_num(answer, "lower_bound_s", 0)),
               units_seconds(search, show_num(answer, "plan_s", 0)));
        print_ranks(json_object_get(answer, "ranks"));
    }
    print_alternatives(json_object_get(answer, "alternatives"));
    json_array_foreach(json_object_get(answer, "left_out"), index, out)
    {
        printf("  left out: %s, %s", show_str(out, "device"), show_str(out, "why"));
        double with = show_num(out, "step_s_with", 0);
        printf(with > 0 ? " (with it %s a step)\n" : "\n", units_seconds(step, with));
    }
    return 0;
}

static json_t *read_document(const char *path, struct err *err)
{
    struct buf text = {.limit = PLAN_FILE_BYTES_MAX};
    json_t *document = NULL;
    if (file_read_all(path, PLAN_FILE_BYTES_MAX, &text, err) < 0) {
        if (err->code == ERR_NOT_FOUND)
            err->code = ERR_INVALID;
    } else if (!(document = json_parse_limited(buf_str(&text), text.size, JSON_DEPTH_MAX, err))) {
        err_wrap(err, "%s", path);
    }
    buf_fini(&text);
    return document;
}

/* The config.json of the model a specification names: a folder, or the file itself. */
static json_t *read_config(struct cli *cli, const char *model, struct err *err)
{
    char path[PATH_MAX], folder[PATH_MAX];
    struct stat status;
    snprintf(path, sizeof path, "%s", model);
    if (stat(path, &status) < 0 && *model != '/') {
        snprintf(folder, sizeof folder, "%s", cli->words[0]);
        char *slash = strrchr(folder, '/');
        if (slash) {
            *slash = '\0';
            if (file_path(path, sizeof path, err, "%s/%s", folder, model) < 0)
                return NULL;
        }
    }
    if (stat(path, &status) < 0) {
        err_set(err, ERR_INVALID, "model: with --cluster it is a folder with a config.json; there is no %s",
                model);
        return NULL;
    }
    if (S_ISDIR(status.st_mode)) {
        size_t size = strlen(path);
        snprintf(path + size, sizeof path - size, "/config.json");
    }
    return read_document(path, err);
}

static int plan_alone(struct cli *cli, const char *cluster_path, struct err *err)
{
    json_t *spec = upload_read_spec(cli->words[0], err), *cluster = NULL, *config = NULL, *answer_json = NULL;
    struct plan_answer *answer = NULL;
    struct plan_options options = {.programs = true};
    int result = -1;
    if (!spec || !(cluster = read_document(cluster_path, err)) ||
        !(config = read_config(cli, json_string_value(json_object_get(spec, "model")), err)))
        goto out;
    uint64_t began = clock_mono_ns();
    if (plan_from_cluster(spec, cluster, config, &options, &answer, err) < 0)
        goto out;
    answer->plan_s = (double)(clock_mono_ns() - began) * 1e-9;
    if (!(answer_json = answer_to_json(answer, err)))
        goto out;
    result = cli->json ? show_json(answer_json, err) : show_plan(answer_json, err);
    if (result == 0 && answer->verdict != VERDICT_FITS)
        cli->exit_status = CLI_NOFIT;
out:
    plan_answer_destroy(answer);
    json_decref(answer_json);
    json_decref(spec);
    json_decref(cluster);
    json_decref(config);
    return result;
}

int command_plan(struct cli *cli, struct err *err)
{
    const char *cluster = cli_option(cli, "--cluster");
    if (cluster)
        return plan_alone(cli, cluster, err);
    json_t *spec = upload_read_spec(cli->words[0], err), *answer = NULL;
    if (!spec)
        return -1;
    int result = upload_spec_files(cli, spec, err);
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
    json_decref(spec);
    json_decref(answer);
    return result;
}
