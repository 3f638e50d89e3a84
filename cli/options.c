/* Reads the options that cli/main.c collected. */
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *cli_option_nth(const struct cli *cli, const char *name, unsigned nth)
{
    for (unsigned i = 0; i < cli->option_count; i++)
        if (strcmp(cli->options[i].name, name) == 0 && nth-- == 0)
            return cli->options[i].value;
    return NULL;
}

const char *cli_option(const struct cli *cli, const char *name)
{
    return cli_option_nth(cli, name, 0);
}

int cli_option_i64(const struct cli *cli, const char *name, int64_t min, int64_t max, int64_t missing,
                   int64_t *out, struct err *err)
{
    const char *text = cli_option(cli, name);
    *out = missing;
    if (!text)
        return 0;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < min || value > max)
        return err_set(err, ERR_INVALID, "%s: \"%.40s\" is not a whole number from %lld to %lld", name, text,
                       (long long)min, (long long)max);
    *out = value;
    return 0;
}
