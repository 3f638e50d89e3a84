/* motley-api reads the configuration, waits for the database, and serves until SIGTERM.
 *
 *   motley-api --config FILE
 *   motley-api --config FILE --migrate [--admin-token-file PATH]    brings the schema up to date, and ends
 */
#include "api/serve.h"

#include "api/prepare.h"
#include "common/log.h"
#include "common/usage.h"

#include <getopt.h>
#include <malloc.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

static const char usage[] =
    "usage: motley-api --config FILE [--migrate [--admin-token-file PATH]]\n"
    "  --config FILE   YAML: docs/reference/files.md has its keys\n"
    "  --schema        print the file's JSON schema, then end\n"
    "  --migrate       bring the database's schema up to date, then end\n"
    "  --admin-token-file PATH   with --migrate: make an administrator's token there if there is none\n";

/* Blocks of this size and more are mapped, and given back to the system when they are freed. Without a limit
 * of its own, glibc raises it with each such free (to 32 MiB), and freed lists and plans stay in the heap. */
enum { MMAP_BYTES = 256 << 10 };

int main(int argc, char **argv)
{
    if (usage_answered(argc, argv, usage) || usage_schema(argc, argv, &api_config_doc))
        return 0;
    static const struct option options[] = {{"config", required_argument, NULL, 'c'},
                                            {"migrate", no_argument, NULL, 'm'},
                                            {"admin-token-file", required_argument, NULL, 't'},
                                            {NULL, 0, NULL, 0}};
    const char *path = NULL, *token_file = NULL;
    bool migrate = false;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
        if (c == 'c')
            path = optarg;
        else if (c == 't')
            token_file = optarg;
        else if (c == 'm')
            migrate = true;
        else
            return 2;
    if (!path || optind != argc) {
        fputs(usage, stderr);
        return 2;
    }
    struct err err = {0};
    struct api_config *config = api_config_load(path, &err);
    if (!config) {
        log_event(LOG_LEVEL_ERROR, "api_config", "error=\"%s\"", err.text);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    mallopt(M_MMAP_THRESHOLD, MMAP_BYTES);
    int rc = migrate ? api_prepare(config, token_file, &err) : api_serve(config, path, &err);
    if (rc < 0)
        log_event(LOG_LEVEL_ERROR, migrate ? "api_migrate" : "api_stopped", "error=\"%s\"", err.text);
    api_config_destroy(config);
    return rc < 0 ? 1 : 0;
}
