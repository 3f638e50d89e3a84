/* The page: its HTML shell, which at all of the page's addresses is the same but for the relative addresses
 * of the files that it loads, and those files.
 *
 * The files are inside the program, compressed; their addresses contain a hash of all of them, so a browser
 * may keep them for good. While the page is being developed, the files are instead read from a folder at each
 * request, on the loop's thread, since they are a developer's own and small.
 */
#include "api/web.h"

#include "api/people/session.h"
#include "api/request/route.h"
#include "common/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { WEB_FILE_BYTES_MAX = 4 << 20 };

#define WEB_POLICY                                                                                           \
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "             \
    "connect-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "      \
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types motley"

/* Header fields of all files of the page: what the browser may do with them. Caching is decided elsewhere. */
#define WEB_FIELDS                                                                                           \
    {"Content-Security-Policy", WEB_POLICY}, {"Referrer-Policy", "no-referrer"},                             \
        {"Cross-Origin-Opener-Policy", "same-origin"}, {"Cross-Origin-Resource-Policy", "same-origin"},      \
        {"Vary", "Accept-Encoding"}

static const char *web_type(const char *name)
{
    static const char *const types[][2] = {
        {".html", "text/html; charset=utf-8"},
        {".js", "text/javascript; charset=utf-8"},
        {".css", "text/css; charset=utf-8"},
        {".svg", "image/svg+xml"},
        {".png", "image/png"},
        {".woff2", "font/woff2"},
        {".json", "application/json"},
        {".webmanifest", "application/manifest+json"},
    };
    const char *end = strrchr(name, '.');
    for (size_t i = 0; end && i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(end, types[i][0]) == 0)
            return types[i][1];
    return "text/plain; charset=utf-8";
}

static void web_answer(struct call *call, const char *type, const struct httpd_field *fields,
                       const void *data, size_t size)
{
    call_count(call, 200);
    httpd_reply(call->request, 200, type, fields, data, size);
}

/* ---- files from a folder ---- */

static void web_answer_folder(struct call *call, const char *name)
{
    static const char good[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const struct httpd_field fields[] = {WEB_FIELDS, {"Cache-Control", "no-store"}, {NULL, NULL}};
    struct err err = {0};
    char path[4096];
    struct buf text;
    buf_init(&text, WEB_FILE_BYTES_MAX);
    if (*name == '.' || strspn(name, good) != strlen(name))
        err_set(&err, ERR_NOT_FOUND, "there is no file \"%.80s\"", name);
    else if (file_path(path, sizeof(path), &err, "%s/%s", call->app->config->web_dir, name) == 0)
        file_read_all(path, WEB_FILE_BYTES_MAX, &text, &err);
    if (err.code)
        call_problem(call, 404, "not-found", NULL, "the page has no file \"%.80s\"", name);
    else
        web_answer(call, web_type(name), fields, text.data, text.size);
    buf_fini(&text);
}

/* ---- files inside the program ---- */

static void web_answer_unpacked(struct call *call, const struct web_file *file,
                                const struct httpd_field *fields)
{
    unsigned char *out = malloc(file->size + 1);
    z_stream stream = {.next_in = (unsigned char *)(uintptr_t)file->data,
                       .avail_in = (unsigned)file->packed,
                       .next_out = out,
                       .avail_out = (unsigned)file->size + 1};
    if (out && inflateInit2(&stream, 16 + MAX_WBITS) == Z_OK) {
        int rc = inflate(&stream, Z_FINISH);
        inflateEnd(&stream);
        if (rc == Z_STREAM_END && stream.total_out == file->size) {
            web_answer(call, web_type(file->name), fields, out, file->size);
            free(out);
            return;
        }
    }
    free(out);
    call_problem(call, 503, "no-memory", NULL, "out of memory for the page");
}

static void web_answer_file(struct call *call, const char *name, const char *keep)
{
    const struct httpd_head *head = httpd_request_head(call->request);
    const char *accepted = httpd_head_get(head, "accept-encoding");
    const char *known = httpd_head_get(head, "if-none-match");
    char tag[80];
    const struct web_file *file = api_web_files;
    while (file->name && strcmp(file->name, name) != 0)
        file++;
    if (!file->name) {
        call_problem(call, 404, "not-found", NULL, "the page has no file \"%.80s\"", name);
        return;
    }
    bool packed = accepted && httpd_list_has(accepted, "gzip");
    snprintf(tag, sizeof(tag), "\"%s%s\"", api_web_hash, packed ? "-gzip" : "");
    struct httpd_field fields[] = {
        WEB_FIELDS, {"Cache-Control", keep}, {"ETag", tag}, {"Content-Encoding", "gzip"}, {NULL, NULL}};
    if (!packed)
        fields[sizeof(fields) / sizeof(fields[0]) - 2].name = NULL;
    if (known && httpd_list_has(known, tag)) {
        fields[sizeof(fields) / sizeof(fields[0]) - 2].name = NULL;
        call_count(call, 304);
        httpd_reply(call->request, 304, NULL, fields, NULL, 0);
    } else if (packed) {
        web_answer(call, web_type(file->name), fields, file->data, file->packed);
    } else {
        web_answer_unpacked(call, file, fields);
    }
}

void page_get(struct call *call)
{
    struct err err = {0};
    char shell[] = "index-0.html"; /* api/options.cmake makes one for each number of folders */
    const char *path = httpd_request_head(call->request)->path;
    while ((path = strchr(path + 1, '/')))
        shell[sizeof("index-") - 1]++;
    if (session_host(call, &err) < 0)
        call_fail(call, &err);
    else if (call->app->config->web_dir)
        web_answer_folder(call, "index.html");
    else
        web_answer_file(call, shell, "no-cache");
}

void web_get(struct call *call)
{
    if (call->app->config->web_dir)
        web_answer_folder(call, call->params[1]);
    else if (strcmp(call->params[0], api_web_hash) != 0)
        call_problem(call, 404, "not-found", NULL,
                     "this server has the page of another release: load it again");
    else
        web_answer_file(call, call->params[1], "public, max-age=31536000, immutable");
}
