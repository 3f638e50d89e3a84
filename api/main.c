/* motley-api reads the configuration, waits for the database, and serves until SIGTERM.
 *
 *   motley-api --config FILE
 *   motley-api --config FILE --migrate [--admin-token-file PATH]    brings the schema up to date, and ends
 *   motley-api --config FILE --pending                              part of `motley upgrade --check`
 *   motley-api --config FILE --backup DIR | --restore DIR           parts of `motley backup` and `motley
 * restore`
 */
#include "api/serve.h"

#include "api/backup.h"
#include "api/prepare.h"
#include "common/log.h"
#include "common/usage.h"

#include <getopt.h>
#include <malloc.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

static const char usage[] =
    "usage: motley-api --config FILE [--migrate [--admin-token-file PATH] | --pending | --backup DIR | "
    "--restore DIR]\n"
    "  --config FILE   YAML: docs/reference/files.md has its keys\n"
    "  --schema        print the file's JSON schema, then end\n"
    "  --migrate       bring the database's schema up to date, then end\n"
    "  --admin-token-file PATH   with --migrate: make an administrator's token there if there is none\n"
    "  --pending       print what --migrate would do, as JSON, then end\n"
    "  --backup DIR    what motley backup does first: the database and its files into DIR\n"
    "  --without-models   with --backup: no files of models that were registered by their paths\n"
    "  --restore DIR   what motley restore does last: DIR into an empty database and folder of files\n";

/* Prints what --migrate would do as one line of JSON. */
static int pending_print(const struct api_config *config, struct err *err)
{
    json_t *answer = api_pending(config);
    const int rc =
        answer && json_dumpf(answer, stdout, JSON_COMPACT) == 0 && puts("") >= 0 && fflush(stdout) == 0
            ? 0
            : err_set(err, ERR_IO, "the answer could not be written");
    json_decref(answer);
    return rc;
}

/* Blocks of this size and more are mapped, and given back to the system when they are freed. Without a limit
 * of its own, glibc raises it with each such free (to 32 MiB), and freed lists and plans stay in the heap. */
enum { MMAP_BYTES = 256 << 10 };

struct api_options {
    const char *path, *token_file, *backup, *restore;
    bool migrate, pending, without_models;
};

static int api_options_read(int argc, char **argv, struct api_options *given)
{
    static const struct option known[] = {
        {"config", required_argument, NULL, 'c'},           {"migrate", no_argument, NULL, 'm'},
        {"admin-token-file", required_argument, NULL, 't'}, {"pending", no_argument, NULL, 'p'},
        {"backup", required_argument, NULL, 'b'},           {"without-models", no_argument, NULL, 'w'},
        {"restore", required_argument, NULL, 'r'},          {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;)
        if (c == 'c')
            given->path = optarg;
        else if (c == 't')
            given->token_file = optarg;
        else if (c == 'm')
            given->migrate = true;
        else if (c == 'p')
            given->pending = true;
        else if (c == 'b')
            given->backup = optarg;
        else if (c == 'w')
            given->without_models = true;
        else if (c == 'r')
            given->restore = optarg;
        else
            return -1;
    const int modes = given->migrate + given->pending + !!given->backup + !!given->restore;
    return given->path && optind == argc && modes <= 1 ? 0 : -1;
}

int main(int argc, char **argv)
{
    if (usage_answered(argc, argv, usage) || usage_schema(argc, argv, &api_config_doc))
        return 0;
    struct api_options given = {0};
    if (api_options_read(argc, argv, &given) < 0) {
        fputs(usage, stderr);
        return 2;
    }
    struct err err = {0};
    struct api_config *config = api_config_load(given.path, &err);
    if (!config) {
        log_event(LOG_LEVEL_ERROR, "api_config", "error=\"%s\"", err.text);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    mallopt(M_MMAP_THRESHOLD, MMAP_BYTES);
    int rc;
    const char *what = "api_stopped";
    if (given.migrate) {
        what = "api_migrate";
        rc = api_prepare(config, given.token_file, &err);
    } else if (given.pending) {
        what = "api_pending";
        rc = pending_print(config, &err);
    } else if (given.backup || given.restore) {
        what = given.backup ? "api_backup" : "api_restore";
        rc = given.backup ? api_backup(config, given.backup, !given.without_models, &err)
                          : api_restore(config, given.restore, &err);
    } else {
        rc = api_serve(config, given.path, &err);
    }
    if (rc < 0)
        log_event(LOG_LEVEL_ERROR, what, "error=\"%s\"", err.text);
    api_config_destroy(config);
    return rc == 0 ? 0 : err.code == ERR_RELEASE ? 5 : 1;
}
