/* People: tokens, groups, limits of users, who may see a job, and the audit. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/units.h"

/* Limits as `user list` and `group list` show them. */
#define LIMIT_COLUMNS                                                                                        \
    "DEVICES:devices_max:n RUNNING:running_max:n QUEUED:queued_max:n MONTH:month_seconds_max:t "             \
    "KEPT:kept_bytes_max:b"

/* Prints the answer with --json, else the sentence. Takes the answer over. */
static int said(struct cli *cli, json_t *answer, const char *sentence, struct err *err)
{
    int result = 0;
    if (cli->json)
        result = show_json(answer, err);
    else
        printf("%s\n", sentence);
    json_decref(answer);
    return result;
}

static int people_listed(struct cli *cli, json_t *answer, const char *member, const char *columns,
                         struct err *err)
{
    int result =
        cli->json ? show_json(answer, err) : show_table(json_object_get(answer, member), columns, err);
    json_decref(answer);
    return result;
}

static int usage(struct cli *cli, struct err *err)
{
    return err_set(err, ERR_INVALID, "usage: motley %s %s", cli->command->name, cli->command->words);
}

/* Replaces each list of texts by one text, so that a table can show it. */
static void join_texts(json_t *rows, const char *key)
{
    size_t i, k;
    json_t *row, *item;
    json_array_foreach (rows, i, row) {
        char text[512] = "";
        size_t at = 0;
        json_array_foreach (json_object_get(row, key), k, item)
            if (at < sizeof(text))
                at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s", k ? "," : "",
                                       json_string_value(item) ? json_string_value(item) : "?");
        json_object_set_new(row, key, json_string(*text ? text : "-"));
    }
}

/* Removes limits of 0, which are none, so that a table shows "-". */
static void drop_unlimited(json_t *rows)
{
    static const char *const keys[] = {"devices_max",       "running_max",  "queued_max",
                                       "month_seconds_max", "time_limit_s", "slice_s",
                                       "lease_limit_s",     "retention_s",  "kept_bytes_max"};
    size_t i;
    json_t *row;
    json_array_foreach (rows, i, row)
        for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++)
            if (json_number_value(json_object_get(row, keys[k])) <= 0)
                json_object_del(row, keys[k]);
}

/* Splits "a,b" into a list. */
static json_t *split_texts(const char *text)
{
    json_t *list = json_array();
    while (text && *text) {
        size_t size = strcspn(text, ",");
        if (size)
            json_array_append_new(list, json_stringn(text, size));
        text += size + (text[size] == ',');
    }
    return list;
}

static int token_list(struct cli *cli, struct err *err)
{
    json_t *answer = NULL;
    if (client_list(cli, "/v1/tokens", "tokens", &answer, err) < 0)
        return -1;
    if (!cli->json)
        join_texts(json_object_get(answer, "tokens"), "scopes");
    return people_listed(cli, answer, "tokens",
                         "ID:id:n USER:user:s MADE:created:w EXPIRES:expires:w NOTE:note:s SCOPES:scopes:s",
                         err);
}

static int token_make(struct cli *cli, struct err *err)
{
    json_t *answer = NULL, *body = json_object();
    const char *user = cli_option(cli, "--user"), *note = cli_option(cli, "--note");
    const char *scopes = cli_option(cli, "--scopes"), *expires;
    char lasts[32];
    if (cli_option_expires(cli, &expires, lasts, err) < 0) {
        json_decref(body);
        return -1;
    }
    if (user)
        json_object_set_new(body, "user", json_string(user));
    if (note)
        json_object_set_new(body, "note", json_string(note));
    if (scopes)
        json_object_set_new(body, "scopes", split_texts(scopes));
    if (expires)
        json_object_set_new(body, "expires_in", json_string(expires));
    int result = client_call(cli, "POST", body, &answer, err, "/v1/tokens");
    json_decref(body);
    if (result < 0)
        return -1;
    if (!cli->json)
        fprintf(stderr, "token %.0f of %s; it is not shown again:\n", show_num(answer, "id", 0),
                show_str(answer, "user"));
    char secret[80];
    snprintf(secret, sizeof(secret), "%s", show_str(answer, "token"));
    return said(cli, answer, secret, err);
}

int command_token(struct cli *cli, struct err *err)
{
    const char *what = cli->words[0];
    char id[64];
    if (strcmp(what, "list") == 0 && cli->word_count == 1)
        return token_list(cli, err);
    if (strcmp(what, "make") == 0 && cli->word_count == 1)
        return token_make(cli, err);
    if (strcmp(what, "revoke") != 0 || cli->word_count != 2)
        return usage(cli, err);
    json_t *answer = NULL;
    if (http_escape(cli->words[1], id, sizeof(id), err) < 0 ||
        client_call(cli, "DELETE", NULL, &answer, err, "/v1/tokens/%s", id) < 0)
        return -1;
    return said(cli, answer ? answer : json_object(), "revoked", err);
}

/* Adds the options of `user set` or `group set` to the body: limits, and the options of `texts`, pairs of an
 * option and a member, whose value "none" becomes null. Returns the number of the body's members, or -1. */
static int changes_of(struct cli *cli, json_t *body, const char *const (*texts)[2], struct err *err)
{
    static const char *const limits[][2] = {{"--devices", "devices_max"},
                                            {"--running", "running_max"},
                                            {"--queued", "queued_max"},
                                            {"--month-seconds", "month_seconds_max"}};
    int64_t value;
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        if (!cli_option(cli, limits[i][0]))
            continue;
        if (cli_option_i64(cli, limits[i][0], 0, (int64_t)1 << 40, 0, &value, err) < 0)
            return -1;
        json_object_set_new(body, limits[i][1], json_integer(value));
    }
    const char *kept = cli_option(cli, "--kept");
    uint64_t bytes;
    if (kept && units_parse_bytes(kept, &bytes, err) < 0)
        return err_wrap(err, "--kept");
    if (kept)
        json_object_set_new(body, "kept_bytes_max", json_integer((json_int_t)bytes));
    for (; (*texts)[0]; texts++) {
        const char *text = cli_option(cli, (*texts)[0]);
        if (text)
            json_object_set_new(body, (*texts)[1],
                                strcmp(text, "none") == 0 ? json_null() : json_string(text));
    }
    return (int)json_object_size(body);
}

/* Sets the group's members, unless only options are given, and then the properties that options give. */
static int cli_group_set(struct cli *cli, struct err *err)
{
    static const char *const texts[][2] = {{"--parent", "parent"}, {NULL, NULL}};
    char name[640];
    json_t *answer = NULL, *changes = json_object();
    json_t *body = json_pack("{s:s, s:[]}", "name", cli->words[1], "members");
    const char *weight = cli_option(cli, "--weight");
    int changed = changes_of(cli, changes, texts, err), result = changed < 0 ? -1 : 0;
    static const char *const times[][2] = {{"--time-limit", "time_limit_s"},
                                           {"--slice", "slice_s"},
                                           {"--lease-limit", "lease_limit_s"},
                                           {"--retention", "retention_s"}};
    for (size_t i = 0; i < 4 && result == 0; i++) {
        double seconds;
        const char *text = cli_option(cli, times[i][0]);
        if (text && units_parse_seconds(text, &seconds, err) < 0) {
            err_wrap(err, "%s", times[i][0]);
            result = -1;
        } else if (text) {
            json_object_set_new(changes, times[i][1], json_real(seconds));
            changed++;
        }
    }
    if (weight && result == 0) {
        json_object_set_new(changes, "weight", json_real(strtod(weight, NULL)));
        changed++;
    }
    for (unsigned i = 2; i < cli->word_count; i++)
        json_array_append_new(json_object_get(body, "members"), json_string(cli->words[i]));
    if (result == 0 && (cli->word_count > 2 || changed == 0))
        result = client_call(cli, "POST", body, &answer, err, "/v1/groups");
    if (result == 0 && changed > 0) {
        json_decref(answer);
        answer = NULL;
        result = http_escape(cli->words[1], name, sizeof(name), err) < 0
                     ? -1
                     : client_call(cli, "PATCH", changes, &answer, err, "/v1/groups/%s", name);
    }
    json_decref(changes);
    json_decref(body);
    return result < 0 ? -1 : said(cli, answer, "done", err);
}

int command_group(struct cli *cli, struct err *err)
{
    char name[640];
    json_t *answer = NULL;
    if (strcmp(cli->words[0], "list") == 0 && cli->word_count == 1) {
        if (client_list(cli, "/v1/groups", "groups", &answer, err) < 0)
            return -1;
        if (!cli->json) {
            join_texts(json_object_get(answer, "groups"), "members");
            drop_unlimited(json_object_get(answer, "groups"));
        }
        return people_listed(
            cli, answer, "groups",
            "GROUP:name:s PARENT:parent:s WEIGHT:weight:n " LIMIT_COLUMNS
            " TIME-LIMIT:time_limit_s:t SLICE:slice_s:t LEASE-LIMIT:lease_limit_s:t RETENTION:retention_s:t "
            "MEMBERS:members:s",
            err);
    }
    if (strcmp(cli->words[0], "set") == 0 && cli->word_count >= 2)
        return cli_group_set(cli, err);
    if (strcmp(cli->words[0], "remove") != 0 || cli->word_count != 2)
        return usage(cli, err);
    if (http_escape(cli->words[1], name, sizeof(name), err) < 0 ||
        client_call(cli, "DELETE", NULL, &answer, err, "/v1/groups/%s", name) < 0)
        return -1;
    return said(cli, answer ? answer : json_object(), "removed", err);
}

int command_user(struct cli *cli, struct err *err)
{
    char name[640];
    int64_t most;
    json_t *answer = NULL;
    if (strcmp(cli->words[0], "list") == 0 && cli->word_count == 1) {
        if (client_list(cli, "/v1/users", "users", &answer, err) < 0)
            return -1;
        if (!cli->json) {
            join_texts(json_object_get(answer, "users"), "groups");
            drop_unlimited(json_object_get(answer, "users"));
        }
        return people_listed(cli, answer, "users",
                             "USER:name:s SINCE:created:w DISABLED:disabled:s ACCOUNT:account:s "
                             "PRIORITY-MAX:priority_max:n " LIMIT_COLUMNS " GROUPS:groups:s",
                             err);
    }
    static const char *const texts[][2] = {
        {"--account", "account"}, {"--jobs", "jobs"}, {"--identity", "identity"}, {NULL, NULL}};
    const char *disabled = cli_option(cli, "--disabled");
    if (strcmp(cli->words[0], "set") != 0 || cli->word_count != 2)
        return usage(cli, err);
    if (cli_option_i64(cli, "--priority-max", -100, 100, 0, &most, err) < 0 ||
        http_escape(cli->words[1], name, sizeof(name), err) < 0)
        return -1;
    json_t *body = json_object();
    if (cli_option(cli, "--priority-max"))
        json_object_set_new(body, "priority_max", json_integer(most));
    if (disabled)
        json_object_set_new(body, "disabled", json_boolean(strcmp(disabled, "yes") == 0));
    if (changes_of(cli, body, texts, err) <= 0) {
        json_decref(body);
        return err->code
                   ? -1
                   : err_set(err, ERR_INVALID,
                             "user set %.200s: nothing to set; give --account GROUP, --priority-max N, "
                             "--disabled yes|no, --jobs CLASS or a limit: --devices, --running, --queued, "
                             "--month-seconds N",
                             cli->words[1]);
    }
    int result = client_call(cli, "PATCH", body, &answer, err, "/v1/users/%s", name);
    json_decref(body);
    return result < 0 ? -1 : said(cli, answer, "done", err);
}

/* Prints rows as CSV (RFC 4180) with the given columns; texts are quoted, numbers are not. */
static int print_csv(const json_t *rows, const char *const *columns, size_t count)
{
    size_t i;
    json_t *row;
    for (size_t c = 0; c < count; c++)
        printf("%s%s", columns[c], c + 1 < count ? "," : "\r\n");
    json_array_foreach (rows, i, row) {
        for (size_t c = 0; c < count; c++) {
            const json_t *value = json_object_get(row, columns[c]);
            if (json_is_string(value)) {
                putchar('"');
                for (const char *at = json_string_value(value); *at; at++)
                    printf(*at == '"' ? "\"\"" : "%c", *at);
                putchar('"');
            } else if (json_is_number(value)) {
                printf("%.15g", json_number_value(value));
            }
            fputs(c + 1 < count ? "," : "\r\n", stdout);
        }
    }
    return 0;
}

int command_queue(struct cli *cli, struct err *err)
{
    json_t *answer = NULL, *held = NULL;
    /* A whole page is one moment of the queue; over several pages a place may come twice. */
    if (client_list(cli, "/v1/queue?limit=1000", "queue", &answer, err) < 0)
        return -1;
    warn_of_scheduler(json_object_get(answer, "scheduler"));
    if (!cli->json) {
        if (!(held = client_pages(cli, "/v1/jobs?state=held&limit=500", "jobs", err))) {
            json_decref(answer);
            return -1;
        }
        json_array_extend(json_object_get(answer, "queue"), held);
        json_decref(held);
        join_texts(json_object_get(answer, "queue"), "devices");
    }
    return people_listed(
        cli, answer, "queue",
        "PLACE:place:n ID:id:n ARRAY:array_of:n STATE:state:s OWNER:owner:s ACCOUNT:account:s "
        "NAME:name:s DEVICES:devices:s "
        "SINCE:since:w STARTS:starts:w ENDS:ends:w BY:ends_by:s WAITS:wait:s",
        err);
}

int command_usage(struct cli *cli, struct err *err)
{
    static const char *const options[] = {"from", "to", "by"};
    static const char *const columns[] = {"name", "held_s", "charged_s", "jobs"};
    char path[400] = "/v1/usage", value[200], option[8];
    json_t *answer = NULL;
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        snprintf(option, sizeof(option), "--%s", options[i]);
        const char *given = cli_option(cli, option);
        size_t used = strlen(path);
        char at[32];
        if (i < 2 && cli_option_time(cli, option, -1, &given, at, err) < 0)
            return -1;
        if (!given)
            continue;
        if (http_escape(given, value, sizeof(value), err) < 0)
            return -1;
        snprintf(path + used, sizeof(path) - used, "%c%s=%s", strchr(path, '?') ? '&' : '?', options[i],
                 value);
    }
    if (client_call(cli, "GET", NULL, &answer, err, "%s", path) < 0)
        return -1;
    if (cli->json || !cli_option(cli, "--csv"))
        return people_listed(cli, answer, "usage",
                             "NAME:name:s HELD:held_s:t CHARGED:charged_s:t JOBS:jobs:n", err);
    int result = print_csv(json_object_get(answer, "usage"), columns, sizeof(columns) / sizeof(columns[0]));
    json_decref(answer);
    return result;
}

int command_shares(struct cli *cli, struct err *err)
{
    json_t *answer = NULL;
    if (client_call(cli, "GET", NULL, &answer, err, "/v1/shares") < 0)
        return -1;
    return people_listed(cli, answer, "shares",
                         "RANK:rank:n USER:user:s GROUP:group:s DUE:due:n USED:used:n CHARGED:used_s:t", err);
}

int command_share(struct cli *cli, struct err *err)
{
    int64_t id;
    char text[200];
    json_t *answer = NULL;
    bool group = strcmp(cli->words[1], "group") == 0;
    if (!group && strcmp(cli->words[1], "mine") != 0 && strcmp(cli->words[1], "everyone") != 0)
        return err_set(
            err, ERR_INVALID,
            "a job is shared with nobody (mine), everyone, or a group, and \"%.40s\" is none of "
            "these; to share with one person, an administrator makes a group of both (motley group "
            "set NAME USER USER), and then it is motley share %.20s group NAME",
            cli->words[1], cli->words[0]);
    if (cli->word_count != (group ? 3u : 2u))
        return usage(cli, err);
    if (client_job_id(cli->words[0], &id, err) < 0)
        return -1;
    json_t *body =
        json_pack("{s:s, s:s*}", "visibility", cli->words[1], "group", group ? cli->words[2] : NULL);
    int result = client_call(cli, "POST", body, &answer, err, "/v1/jobs/%lld/share", (long long)id);
    json_decref(body);
    snprintf(text, sizeof(text), "job %lld is seen by %s%s", (long long)id,
             group                                ? "group "
             : strcmp(cli->words[1], "mine") == 0 ? "its owner alone"
                                                  : "everyone",
             group ? cli->words[2] : "");
    return result < 0 ? -1 : said(cli, answer, text, err);
}

int command_audit(struct cli *cli, struct err *err)
{
    int64_t limit;
    json_t *answer = NULL;
    char after[128] = "";
    if (cli_option(cli, "--after") && http_escape(cli_option(cli, "--after"), after, sizeof(after), err) < 0)
        return err_wrap(err, "--after");
    if (cli_option_i64(cli, "--limit", 1, 500, 50, &limit, err) < 0 ||
        client_call(cli, "GET", NULL, &answer, err, "/v1/audit?limit=%lld%s%s", (long long)limit,
                    *after ? "&after=" : "", after) < 0)
        return -1;
    const char *next = json_string_value(json_object_get(answer, "next"));
    if (!cli->json && next)
        fprintf(stderr, "older ones: motley audit --after %s\n", next);
    return people_listed(cli, answer, "audit",
                         "AT:at:w WHO:who:s TOKEN:token:n FROM:address:s WHAT:what:s OBJECT:object:s", err);
}
