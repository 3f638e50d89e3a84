/* Calls the server that HOME/client.json names, and reads lists that have several pages. */
#include "cli/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/document.h"
#include "common/buf.h"
#include "common/file.h"
#include "common/json.h"

enum {
    CLIENT_FILE_BYTES_MAX = 65536,
    CLIENT_PATH_BYTES = 4096,
    CLIENT_CALL_MS = 60000,
    CLIENT_PAGES_MAX = 100000
};

static json_t *read_client_file(struct cli *cli, struct err *err)
{
    char path[sizeof(cli->home) + 16];
    snprintf(path, sizeof(path), "%s/client.json", cli->home);
    json_t *document = document_load(path, CLIENT_FILE_BYTES_MAX, err);
    if (!document && err->code == ERR_NOT_FOUND)
        err_set(err, ERR_NET, "no server: %s is not there; `motley up` starts one", path);
    return document;
}

struct http *client_connect(struct cli *cli, struct err *err)
{
    struct http *http = NULL;
    json_t *document = read_client_file(cli, err);
    if (!document)
        return NULL;
    struct json_reader reader;
    const char *address = NULL, *token = NULL, *ca = NULL, *socket = NULL;
    jr_init(&reader, document, "client.json", err);
    jr_str(&reader, "address", JR_REQUIRED, 1, 255, &address);
    jr_str(&reader, "token", JR_REQUIRED, 1, 512, &token);
    jr_str(&reader, "ca", JR_OPTIONAL, 1, 4096, &ca);
    jr_str(&reader, "socket", JR_OPTIONAL, 1, 4096, &socket);
    if (jr_finish_loose(&reader) == 0) {
        snprintf(cli->address, sizeof(cli->address), "%s", address);
        for (size_t end = strlen(cli->address); end > 0 && cli->address[end - 1] == '/'; end--)
            cli->address[end - 1] = '\0';
        const struct http_options options = {.url = address,
                                             .unix_socket = socket,
                                             .bearer = token,
                                             .ca_file = ca,
                                             .user_agent = "motley",
                                             .connect_ms = 3000};
        http = http_create(&options, err);
    } else
        err_wrap(err, "%s/client.json", cli->home);
    json_decref(document);
    return http;
}

int client_open(struct cli *cli, struct err *err)
{
    if (!cli->http)
        cli->http = client_connect(cli, err);
    return cli->http ? 0 : -1;
}

void client_close(struct cli *cli)
{
    http_destroy(cli->http);
    cli->http = NULL;
}

int client_call(struct cli *cli, const char *method, const json_t *body, json_t **out, struct err *err,
                const char *fmt, ...)
{
    char path[CLIENT_PATH_BYTES];
    va_list arguments;
    va_start(arguments, fmt);
    int size = vsnprintf(path, sizeof(path), fmt, arguments);
    va_end(arguments);
    if (size < 0 || (size_t)size >= sizeof(path))
        return err_set(err, ERR_TOO_BIG, "the request's path is longer than %zu bytes", sizeof(path) - 1);
    if (client_open(cli, err) < 0)
        return -1;
    return http_json(cli->http, method, path, body, CLIENT_CALL_MS, out, err);
}

int client_job_id(const char *word, int64_t *id, struct err *err)
{
    char *end;
    errno = 0;
    long long value = strtoll(word, &end, 10);
    if (errno || end == word || *end || value < 1)
        return err_set(err, ERR_INVALID, "\"%.40s\" is not a job's id, a whole number from 1", word);
    *id = value;
    return 0;
}

int client_list(struct cli *cli, const char *path, const char *member, json_t **out, struct err *err)
{
    json_t *all = NULL, *page = NULL, *next = NULL;
    char cursor[CLIENT_PATH_BYTES / 2] = "";
    for (unsigned pages = 0; pages < CLIENT_PAGES_MAX; pages++) {
        const char *join = strchr(path, '?') ? "&" : "?";
        if (client_call(cli, "GET", NULL, &page, err, "%s%s%s%s", path, next ? join : "",
                        next ? "after=" : "", cursor) < 0)
            goto failed;
        json_t *items = json_object_get(page, member);
        if (!json_is_array(items) || (all && json_array_extend(json_object_get(all, member), items) < 0)) {
            err_set(err, ERR_PEER, "the answer to %s has no list \"%s\"", path, member);
            goto failed;
        }
        bool more = json_array_size(items) > 0;
        all = all ? all : json_incref(page);
        json_decref(next);
        next = json_incref(json_object_get(page, "next"));
        json_decref(page);
        page = NULL;
        if (!json_is_string(next) || !more)
            break;
        if (http_escape(json_string_value(next), cursor, sizeof(cursor), err) < 0)
            goto failed;
    }
    json_object_del(all, "next");
    json_decref(next);
    *out = all;
    return 0;
failed:
    json_decref(page);
    json_decref(next);
    json_decref(all);
    return -1;
}

json_t *client_pages(struct cli *cli, const char *path, const char *member, struct err *err)
{
    json_t *document = NULL;
    if (client_list(cli, path, member, &document, err) < 0)
        return NULL;
    json_t *all = json_incref(json_object_get(document, member));
    json_decref(document);
    return all;
}

json_t *client_metrics(struct cli *cli, int64_t id, struct err *err)
{
    char path[96];
    snprintf(path, sizeof(path), "/v1/jobs/%lld/metrics?limit=10000", (long long)id);
    json_t *lines = client_pages(cli, path, "lines", err);
    for (size_t i = json_array_size(lines); i-- > 0;)
        if (!json_object_get(json_array_get(lines, i), "loss"))
            json_array_remove(lines, i); /* a sample, which `motley get` writes to another file */
    return lines;
}
