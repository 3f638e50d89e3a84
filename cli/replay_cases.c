/* `motley replay --from`: runs published planning cases of other projects; cli/replay_job.c replays recorded
 * runs. */
#include "cli/cli.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/json.h"
#include "published/cases.h"

enum { REPLAY_FILE_BYTES_MAX = 256 << 20 };

static json_t *read_document(const char *folder, const char *name, struct err *err)
{
    char path[PATH_MAX];
    if (file_path(path, sizeof(path), err, "%s%s%s", folder ? folder : "", folder ? "/" : "", name) < 0)
        return NULL;
    return given_json(path, REPLAY_FILE_BYTES_MAX, err);
}

/* Counts the invalid cases and keeps the error of the first. */
struct nonsense {
    size_t count;
    char first[384];
};

static int replay_cases_print_line(void *context, const json_t *line, struct err *err)
{
    struct nonsense *nonsense = context;
    if (strcmp(show_str(line, "status"), "error") == 0 && nonsense->count++ == 0)
        snprintf(nonsense->first, sizeof(nonsense->first), "%s", show_str(line, "error"));
    return show_json(line, err);
}

/* Fails with the first invalid case, and with the name of its file. */
static int nonsense_say(const struct nonsense *nonsense, const char *from, const char *folder,
                        const char *cases_path, struct err *err)
{
    const char *separator = "", *in = cases_path;
    for (const char *const *name = replay_import_files(from); *name; name++) {
        if (strncmp(nonsense->first, *name, strlen(*name)) == 0) {
            in = folder;
            separator = "/";
        }
    }
    err_set(err, ERR_INVALID, "%s%s%s", in, *separator ? separator : ": ", nonsense->first);
    if (nonsense->count > 1)
        err_set(err, ERR_INVALID, "%s (and %zu more case%s)", err->text, nonsense->count - 1,
                nonsense->count > 2 ? "s" : "");
    return -1;
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
    struct nonsense nonsense = {0};
    const struct replay_sink sink = {.line = replay_cases_print_line, .context = &nonsense, .now_s = now_s};
    if (result == 0 && (result = replay_import(from, documents, cases, &sink, err)) < 0 &&
        err->code == ERR_INVALID)
        err_wrap(err, "%s", strncmp(err->text, "cases", 5) == 0 ? cases_path : folder);
    if (result == 0 && nonsense.count > 0)
        result = nonsense_say(&nonsense, from, folder, cases_path, err);
    json_decref(documents);
    json_decref(cases);
    return result;
}

int command_replay(struct cli *cli, struct err *err)
{
    const char *from = cli_option(cli, "--from");
    if (from && cli->word_count > 0)
        return err_set(err, ERR_INVALID, "motley replay: a JOB or --from NAME, not both");
    if (from)
        return replay_cases(cli, from, err);
    if (cli->word_count == 1)
        return replay_job(cli, cli->words[0], err);
    return err_set(err, ERR_INVALID, "usage: motley replay JOB, or --from NAME --data DIR --cases FILE");
}
