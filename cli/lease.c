/* motley lease and motley leases: devices that people hold for a time. */
#include "cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/units.h"

static int duration(const struct cli *cli, const char *option, double missing, double *seconds,
                    struct err *err)
{
    const char *text = cli_option(cli, option);
    *seconds = missing;
    if (!text && missing < 0)
        return err_set(err, ERR_INVALID, "%s is missing, as in %s 4h", option, option);
    if (text && units_parse_seconds(text, seconds, err) < 0) {
        err_wrap(err, "%s", option);
        return -1;
    }
    if (missing < 0 && (*seconds < 60 || *seconds > 31 * 86400.0))
        return err_set(err, ERR_INVALID, "%s: must be a minute to 31 days, as in %s 4h; is %s", option,
                       option, text);
    return 0;
}

static int show_lease(struct cli *cli, json_t *answer, struct err *err)
{
    int result = 0;
    char begins[24], ends[24];
    if (cli->json)
        result = show_json(answer, err);
    else
        printf("lease %lld: %s from %s to %s\n", (long long)json_integer_value(json_object_get(answer, "id")),
               show_str(answer, "device"), clock_words(show_str(answer, "begins"), begins),
               clock_words(show_str(answer, "ends"), ends));
    json_decref(answer);
    return result;
}

/* Runs `lease extend ID --for TIME` and `lease end ID`. */
static int lease_change(struct cli *cli, struct err *err)
{
    int64_t id;
    double seconds;
    json_t *answer = NULL, *body = NULL;
    const bool ends = strcmp(cli->words[0], "end") == 0;
    if (client_job_id(cli->words[1], &id, err) < 0)
        return -1;
    if (!ends) {
        if (duration(cli, "--for", -1, &seconds, err) < 0)
            return -1;
        body = json_pack("{s:I}", "extend_seconds", (json_int_t)ceil(seconds));
    }
    int rc =
        client_call(cli, ends ? "DELETE" : "PATCH", body, &answer, err, "/v1/leases/%lld", (long long)id);
    json_decref(body);
    return rc < 0 ? -1 : show_lease(cli, answer, err);
}

int command_lease(struct cli *cli, struct err *err)
{
    double seconds;
    char begins[32];
    json_t *answer = NULL;
    if (cli->word_count == 2 && (strcmp(cli->words[0], "extend") == 0 || strcmp(cli->words[0], "end") == 0))
        return lease_change(cli, err);
    const char *any = cli_option(cli, "--any");
    int64_t hours;
    if (cli->word_count != (any ? 0 : 1))
        return err_set(
            err, ERR_INVALID,
            "usage: motley lease DEVICE --for TIME, lease --any TEXT --for TIME, lease extend ID --for TIME, "
            "lease end ID");
    if ((cli_option(cli, "--at") && cli_option(cli, "--in")) ||
        (cli_option(cli, "--for") && cli_option(cli, "--hours")))
        return err_set(err, ERR_INVALID, "motley lease: --at or --in, and --for or --hours, not both");
    if (cli_option_i64(cli, "--hours", 1, 744, 0, &hours, err) < 0 ||
        duration(cli, "--for", hours > 0 ? 3600.0 * (double)hours : -1, &seconds, err) < 0)
        return -1;
    const char *at;
    if (cli_option_time(cli, cli_option(cli, "--at") ? "--at" : "--in", 1, &at, begins, err) < 0)
        return -1;
    json_t *body =
        json_pack("{s:s, s:I, s:s*, s:s*, s:s*}", any ? "any" : "device", any ? any : cli->words[0],
                  "seconds", (json_int_t)ceil(seconds), "begins", at, "note", cli_option(cli, "--note"),
                  "kind", cli_option(cli, "--maintenance") ? "maintenance" : NULL);
    int rc = client_call(cli, "POST", body, &answer, err, "/v1/leases");
    json_decref(body);
    return rc < 0 ? -1 : show_lease(cli, answer, err);
}

int command_leases(struct cli *cli, struct err *err)
{
    json_t *leases = client_pages(cli, "/v1/leases", "leases", err);
    if (!leases)
        return -1;
    int result;
    if (cli->json) {
        json_t *document = json_pack("{s:O}", "leases", leases);
        result = show_json(document, err);
        json_decref(document);
    } else
        result = show_table(leases,
                            "ID:id:n DEVICE:device:s HOLDER:holder:s KIND:kind:s FROM:begins:w TO:ends:w "
                            "NOW:active:s NOTE:note:s",
                            err);
    json_decref(leases);
    return result;
}
