/* People: tokens, groups, limits of users, who may see a job, and the audit. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

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

static int listed(struct cli *cli, json_t *answer, const char *member, const char *columns, struct err *err)
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
    json_array_foreach(rows, i, row)
    {
        char text[512] = "";
        size_t at = 0;
        json_array_foreach(json_object_get(row, key), k, item) if (at < sizeof text) at +=
            (size_t)snprintf(text + at, sizeof text - at, "%s%s", k ? "," : "",
                             json_string_value(item) ? json_string_value(item) : "?");
        json_object_set_new(row, key, json_string(*text ? text : "-"));
    }
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
    if (client_call(cli, "GET", NULL, &answer, err, "/v1/tokens") < 0)
        return -1;
    if (!cli->json)
        join_texts(json_object_get(answer, "tokens"), "scopes");
    return listed(cli, answer, "tokens",
                  "ID:id:n USER:user:s MADE:created:w EXPIRES:expires:w NOTE:note:s SCOPES:scopes:s", err);
}

static int token_make(struct cli *cli, struct err *err)
{
    json_t *answer = NULL, *body = json_object();
    const char *user = cli_option(cli, "--user"), *note = cli_option(cli, "--note");
    const char *scopes = cli_option(cli, "--scopes"), *expires = cli_option(cli, "--expires");
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
    snprintf(secret, sizeof secret, "%s", show_str(answer, "token"));
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
    if (http_escape(cli->words[1], id, sizeof id, err) < 0 ||
        client_call(cli, "DELETE", NULL, &answer, err, "/v1/tokens/%s", id) < 0)
        return -1;
    return said(cli, answer ? answer : json_object(), "revoked", err);
}

static int group_set(struct cli *cli, struct err *err)
{
    json_t *answer = NULL, *body = json_pack("{s:s, s:[]}", "name", cli->words[1], "members");
    for (unsigned i = 2; i < cli->word_count; i++)
        json_array_append_new(json_object_get(body, "members"), json_string(cli->words[i]));
    int result = client_call(cli, "POST", body, &answer, err, "/v1/groups");
    json_decref(body);
    return result < 0 ? -1 : said(cli, answer, "done", err);
}

int command_group(struct cli *cli, struct err *err)
{
    char name[640];
    json_t *answer = NULL;
    if (strcmp(cli->words[0], "list") == 0 && cli->word_count == 1) {
        if (client_call(cli, "GET", NULL, &answer, err, "/v1/groups") < 0)
            return -1;
        if (!cli->json)
            join_texts(json_object_get(answer, "groups"), "members");
        return listed(cli, answer, "groups", "GROUP:name:s MEMBERS:members:s", err);
    }
    if (strcmp(cli->words[0], "set") == 0 && cli->word_count >= 2)
        return group_set(cli, err);
    if (strcmp(cli->words[0], "remove") != 0 || cli->word_count != 2)
        return usage(cli, err);
    if (http_escape(cli->words[1], name, sizeof name, err) < 0 ||
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
        if (client_call(cli, "GET", NULL, &answer, err, "/v1/users") < 0)
            return -1;
        if (!cli->json)
            join_texts(json_object_get(answer, "users"), "groups");
        return listed(cli, answer, "users",
                      "USER:name:s SINCE:created:w PRIORITY-MAX:priority_max:n GROUPS:groups:s", err);
    }
    if (strcmp(cli->words[0], "set") != 0 || cli->word_count != 2 || !cli_option(cli, "--priority-max"))
        return usage(cli, err);
    if (cli_option_i64(cli, "--priority-max", -100, 100, 0, &most, err) < 0 ||
        http_escape(cli->words[1], name, sizeof name, err) < 0)
        return -1;
    json_t *body = json_pack("{s:I}", "priority_max", (json_int_t)most);
    int result = client_call(cli, "PATCH", body, &answer, err, "/v1/users/%s", name);
    json_decref(body);
    return result < 0 ? -1 : said(cli, answer, "done", err);
}

int command_share(struct cli *cli, struct err *err)
{
    int64_t id;
    json_t *answer = NULL;
    bool group = strcmp(cli->words[1], "group") == 0;
    if (cli->word_count != (group ? 3u : 2u))
        return usage(cli, err);
    if (client_job_id(cli->words[0], &id, err) < 0)
        return -1;
    json_t *body =
        json_pack("{s:s, s:s*}", "visibility", cli->words[1], "group", group ? cli->words[2] : NULL);
    int result = client_call(cli, "POST", body, &answer, err, "/v1/jobs/%lld/share", (long long)id);
    json_decref(body);
    return result < 0 ? -1 : said(cli, answer, "done", err);
}

int command_audit(struct cli *cli, struct err *err)
{
    int64_t limit;
    json_t *answer = NULL;
    const char *after = cli_option(cli, "--after");
    if (cli_option_i64(cli, "--limit", 1, 500, 50, &limit, err) < 0 ||
        client_call(cli, "GET", NULL, &answer, err, "/v1/audit?limit=%lld%s%.20s", (long long)limit,
                    after ? "&after=" : "", after ? after : "") < 0)
        return -1;
    const char *next = json_string_value(json_object_get(answer, "next"));
    if (!cli->json && next)
        fprintf(stderr, "older ones: motley audit --after %s\n", next);
    return listed(cli, answer, "audit",
                  "AT:at:w WHO:who:s TOKEN:token:n FROM:address:s WHAT:what:s OBJECT:object:s", err);
}
