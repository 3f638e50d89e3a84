#include "common/usage.h"

#include <stdio.h>
#include <string.h>

#include "common/release.h"

bool usage_answered(int argc, char **argv, const char *usage)
{
    if (argc >= 2 && strcmp(argv[1], "--version") == 0) {
        const char *slash = strrchr(argv[0], '/');
        fprintf(stdout, "%s %s (protocol %u)\n", slash ? slash + 1 : argv[0], motley_version,
                release_protocol());
        return true;
    }
    if (argc >= 2 && strcmp(argv[1], "--help") == 0) {
        fputs(usage, stdout);
        return true;
    }
    return false;
}

bool usage_schema(int argc, char **argv, const struct doc *config)
{
    struct err err;
    if (argc < 2 || strcmp(argv[1], "--schema") != 0)
        return false;
    json_t *schema = doc_schema(config, &err);
    if (schema)
        json_dumpf(schema, stdout, JSON_INDENT(2));
    fputs("\n", stdout);
    json_decref(schema);
    return true;
}
