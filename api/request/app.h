/* What lives as long as the process (struct app), and one request on its way to its answer (struct call). */
#ifndef MOTLEY_API_REQUEST_APP_H
#define MOTLEY_API_REQUEST_APP_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "api/request/config.h"
#include "api/http/httpd_server.h"
#include "api/http/pool.h"
#include "common/err.h"
#include "common/json.h"
#include "parse/parse.h"
#include "store/store.h"
#include "store/users.h"

struct auth;
struct blob_dir;
struct datasets;
struct known_files;
struct followers;
struct submits;
struct sweep;
struct wrong;
struct route;

LIST_HEAD(uploads, upload);

/* Numbers for /metrics; the loop's thread alone touches them. */
struct app_counters {
    uint64_t requests, answers_2xx, answers_4xx, answers_5xx;
    uint64_t submits, submit_cache_hits, datasets_encoded;
    uint64_t upload_bytes, download_bytes;
    uint64_t followers;
    uint64_t wrong_tokens, late_tokens; /* not valid; not looked at, of an address that showed too many */
    uint64_t malformed;
};

struct app {
    const struct api_config *config;
    struct event_base *base;
    struct store *store;
    SSL_CTX *tls;
    struct pool *pool;
    struct httpd_server *server;
    struct auth *auth;
    struct wrong *wrong;
    struct blob_dir *blobs;
    struct uploads uploads; /* under way (blobs.c) */
    struct known_files *known;
    struct parser parser;
    struct datasets *datasets;
    struct followers *followers;
    struct submits *submits;
    struct sweep *sweep;
    struct app_counters counters;
    atomic_ullong parse_failures; /* counted by the pool's threads */
    bool stopping;
};

enum {
    CALL_PARAMS_MAX = 4,
    CALL_PARAM_BYTES = 512,
    CALL_QUERY_MAX = 8,
    CALL_BODY_BYTES_MAX = 1 << 20, /* of a JSON body, unless the route says otherwise */
};

struct call {
    struct app *app;
    struct httpd_request *request;
    const struct route *route;
    struct principal principal;                     /* who asks: nobody on routes without authentication */
    uint8_t token_hash[32];                         /* SHA-256 of the token that was shown */
    char params[CALL_PARAMS_MAX][CALL_PARAM_BYTES]; /* the {…} of the pattern, decoded, in order */
    unsigned query_count;
    struct {
        char name[32];
        char *value;
    } query[CALL_QUERY_MAX];
    json_t *body; /* after the body was read; NULL without one */
    uint64_t started_ns;
    void *state; /* the handler's own; freed with the call by state_free */
    void (*state_free)(void *state);
};

/* ---- decode ---- */

/* The value of a query parameter, or NULL. */
const char *call_query(const struct call *call, const char *name);
/* As a whole number within [min, max], or 'missing' when absent. -1 with ERR_INVALID naming it. */
int call_query_i64(const struct call *call, const char *name, int64_t min, int64_t max, int64_t missing,
                   int64_t *out, struct err *err);
/* Path parameter 'index' as an id (1..2^63-1). -1: the call was answered with 404. */
int call_id(struct call *call, unsigned index, const char *noun, int64_t *id);
/* "visibility" and "group" of a body: `missing` where it says nothing. The group is borrowed from the body.
 * Returns -1 with the reader's error. */
int call_sharing(struct json_reader *reader, enum visibility missing, struct sharing *sharing);
/* The same two as query parameters. */
int call_query_sharing(const struct call *call, enum visibility missing, struct sharing *sharing,
                       struct err *err);

/* ---- encode: each ends the call; none may touch it afterwards ---- */

/* Takes 'document'. 'fields' may be NULL, else ended by a NULL name. */
void call_json(struct call *call, int status, json_t *document, const struct httpd_field *fields);
/* application/problem+json of an error: status by its code, details by its text. */
void call_fail(struct call *call, const struct err *err);
/* The same for what is wrong inside a well-formed body: ERR_INVALID is 422 then. */
void call_refuse(struct call *call, const struct err *err);
/* A token was shown and is not valid ('err' says how): 401, or 429 with Retry-After for an address that shows
 * too many (api/http/wrong.h). */
void call_wrong_token(struct call *call, const struct err *err);
/* A problem with a status of its own and more members (taken; may be NULL). */
void call_problem(struct call *call, int status, const char *code, json_t *more, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
void call_empty(struct call *call, int status);

/* For store calls whose answer is the document: answers 200, or the error. arg is the call. */
void call_answer_doc(void *arg, const struct err *err, json_t *doc);

/* For pages: the answer is the document with "next" as a text, so that it can be given back as it is. */
void call_answer_page(void *arg, const struct err *err, json_t *doc);
/* For changes: as call_answer_doc (204 without a document); what the store finds wrong in the body is 422. */
void call_answer_changed(void *arg, const struct err *err, json_t *doc);

/* Counts the answer; called by whoever begins a streamed answer. */
void call_count(struct call *call, int status);

#endif
