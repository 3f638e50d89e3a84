/* Reads the options that cli/main.c collected. */
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/units.h"

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

int cli_option_expires(const struct cli *cli, const char **out, char room[32], struct err *err)
{
    int64_t ends_us;
    *out = cli_option(cli, "--expires");
    if (!*out || clock_rfc3339_parse(*out, &ends_us) < 0)
        return 0;
    if (ends_us <= clock_wall_us())
        return err_set(err, ERR_INVALID, "--expires: %s is past", *out);
    snprintf(room, 32, "%llds", (long long)(ends_us - clock_wall_us()) / 1000000);
    *out = room;
    return 0;
}

int cli_time_read(const char *text, int sign, char out[32])
{
    int64_t at_us;
    double seconds;
    struct err ignored;
    if (clock_rfc3339_parse(text, &at_us) < 0) {
        if (units_parse_seconds(text, &seconds, &ignored) < 0 || !(seconds < 1e10))
            return -1;
        at_us = clock_wall_us() + (int64_t)(sign * seconds * 1e6);
    }
    clock_rfc3339(at_us, out);
    return 0;
}

int cli_option_time(const struct cli *cli, const char *name, int sign, const char **out, char room[32],
                    struct err *err)
{
    const char *text = cli_option(cli, name);
    *out = text ? room : NULL;
    return !text || cli_time_read(text, sign, room) == 0
               ? 0
               : err_set(err, ERR_INVALID, "%s: \"%.40s\" is no time: write 2h (%s), or 2026-01-31T08:00:00Z",
                         name, text, sign < 0 ? "so long ago" : "from now");
}
