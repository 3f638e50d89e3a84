/* struct app holds everything that lives as long as the process; struct call is one request until it is
 * answered. */
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
struct notices;
struct followers;
struct cluster_feed;
struct issuer;
struct job_fetches;
struct plans;
struct submits;
struct waits;
struct sweep;
struct wrong;
struct route;

LIST_HEAD(uploads, upload);

/* Counters for /metrics. Only the loop's thread changes them. */
struct app_counters {
    uint64_t requests, answers_2xx, answers_4xx, answers_5xx;
    uint64_t submits, submit_cache_hits, datasets_encoded;
    uint64_t upload_bytes, download_bytes;
    uint64_t followers;
    /* wrong_tokens: number of tokens that were not valid; late_tokens: of these, those from an address that
     * was over its limit */
    uint64_t wrong_tokens, late_tokens;
    uint64_t malformed;
};

struct app {
    const struct api_config *config;
    struct event_base *base;
    struct store *store;
    SSL_CTX *tls;
    struct pool *pool;
    struct pool *fetches;        /* what takes as long as a network does: models of the Hub */
    atomic_bool fetches_stopped; /* read by its threads */
    struct pool *tellers;        /* what takes as long as a stranger's server does: notices */
    struct pool *sign_ins;       /* its one thread owns the issuer; NULL: no OpenID provider */
    struct issuer *issuer;
    struct notices *notices;
    struct httpd_server *server;
    struct auth *auth;
    struct wrong *wrong;
    struct blob_dir *blobs;
    struct uploads uploads; /* uploads under way (blobs.c) */
    struct known_files *known;
    struct parser parser;
    struct datasets *datasets;
    struct followers *followers;
    struct cluster_feed *feed;
    struct submits *submits;
    struct waits *waits;
    struct plans *plans;
    struct job_fetches *job_fetches;
    struct sweep *sweep;
    struct app_counters counters;
    atomic_ullong parse_failures; /* counted by the pool's threads */
    bool stopping;
};

enum {
    CALL_PARAMS_MAX = 4,
    CALL_PARAM_BYTES = 512,
    CALL_QUERY_MAX = 12,
    CALL_BODY_BYTES_MAX = 1 << 20, /* limit of a JSON body, unless the route has another */
};

struct call {
    struct app *app;
    struct httpd_request *request;
    const struct route *route;
    struct principal principal; /* the asker; PRINCIPAL_NOBODY on routes without authentication */
    uint8_t token_hash[32];     /* SHA-256 of the request's token */
    /* Set-Cookie value that removes the session's cookie; "": the token did not come in a cookie */
    char session_end[192];
    /* the decoded values of the {…} in the route's pattern, in order */
    char params[CALL_PARAMS_MAX][CALL_PARAM_BYTES];
    unsigned query_count;
    struct {
        char name[32];
        char *value;
    } query[CALL_QUERY_MAX];
    /* with status 405: the methods that the path allows; borrowed */
    const char *allowed;
    json_t *body;   /* set after the body was read; NULL without a body */
    json_t *errors; /* every error of the body (call_reader), or NULL */
    /* Set while the answer must be kept with the request's Idempotency-Key (repeat.h). It takes the answer,
     * sends it later and returns true, or returns false. */
    bool (*keep_answer)(struct call *call, int status, const char *type, const struct httpd_field *fields,
                        const char *text);
    /* the route that is carried out after its path's GET, which an If-Match asks for (precondition.h) */
    const struct route *guarded;
    bool unsure; /* the answer is an error, but the change may have been made */
    uint64_t started_ns;
    /* set by call_list: the name of the member that holds the items, and the names of their keys */
    const char *list;
    int64_t list_limit; /* number of items of a page */
    void *state;        /* the handler's own data; state_free frees it with the call */
    void (*state_free)(void *state);
};

/* ---- decoding the request ---- */

/* Returns the value of a query parameter, or NULL. */
const char *call_query(const struct call *call, const char *name);
/* Reads the parameter as a whole number in [min, max]; 'missing' when it is absent. Returns -1 with
 * ERR_INVALID, which names the parameter. */
int call_query_i64(const struct call *call, const char *name, int64_t min, int64_t max, int64_t missing,
                   int64_t *out, struct err *err);
/* Reads a query parameter that is an RFC 3339 time or a date; *wall_us stays as it is when it is missing.
 * Returns -1 with the error, as call_query_i64 does. */
int call_query_time(const struct call *call, const char *name, int64_t *wall_us, struct err *err);
/* Reads an optional member as a time to come; one that is past by more than a minute (clocks differ) is
 * refused. Returns as jr_str does. */
int call_take_time(struct json_reader *reader, const char *key, const char **text, int64_t *wall_us);
/* Reads path parameter 'index' as an id (1..2^63-1). Returns -1 when the call was answered with 404. */
int call_id(struct call *call, unsigned index, const char *noun, int64_t *id);
/* Writes the client's address as text; an IPv4 address without its IPv6 prefix. */
void call_address(const struct call *call, char text[PRINCIPAL_ADDRESS_BYTES]);
/* Begins reading the call's body, which must be there. Whatever is wrong in it is told with the refusal, not
 * the first alone. `err` is borrowed as by jr_init. */
void call_reader(struct call *call, struct json_reader *reader, struct err *err);
/* Reads "visibility" and "group" of a body; the visibility is `missing` when the body has neither. The group
 * is borrowed from the body. Returns -1 with the reader's error. */
int call_sharing(struct json_reader *reader, enum visibility missing, struct sharing *sharing);
/* Fails the reader at `key` if the text (which may be NULL) holds a control character, since names and notes
 * are shown on terminals. */
void call_plain(struct json_reader *reader, const char *key, const char *text);
/* Reads "visibility" and "group", as call_sharing does, but from query parameters. */
int call_query_sharing(const struct call *call, enum visibility missing, struct sharing *sharing,
                       struct err *err);

/* Reads the Idempotency-Key header; *key becomes NULL without one, else it is borrowed until the answer. It
 * must be visible ASCII, so that every client and proxy reads the same key. Returns -1 when the call was
 * answered. */
int call_key(struct call *call, const char **key);

/* ---- pages of lists (api/request/page.c): `limit`, `after`, `next` ---- */

struct call_page {
    unsigned limit;
    int64_t after; /* the cursor: the `next` with which the store ended the previous page */
};
/* Reads `limit` (1..most; `usual` if it is missing) and a numeric `after` (from `start` on, which is also the
 * first page's). Returns -1 when the call was answered. */
int call_page(struct call *call, unsigned usual, unsigned most, int64_t start, struct call_page *page);
/* Reads `limit` and `after` of a list that the store gives whole and call_answer_list cuts into pages. `list`
 * names the member that holds the items and the keys by which they are sorted in bytes' order ("nodes name");
 * it is borrowed. Returns -1 when the call was answered. */
int call_list(struct call *call, const char *list);

/* ---- encoding the answer: each of these functions ends the call, which must not be used afterwards ---- */

/* Answers with 'document', which it takes over. 'fields' (header fields) may be NULL; otherwise a NULL name
 * ends the list. */
void call_json(struct call *call, int status, json_t *document, const struct httpd_field *fields);
/* Bytes of an entity tag with its NUL. */
enum { ETAG_BYTES = 40 };
/* Writes the ETag of an answer's text. Returns -1 when no digest could be made. */
int etag_of(const char *text, size_t size, char tag[ETAG_BYTES]);
/* Whether the request has no If-Match, or one that names the tag. */
bool etag_fits(const struct call *call, const char *tag);

/* Answers with application/problem+json: the status follows from the error's code, the details are its
 * text. */
void call_fail(struct call *call, const struct err *err);
/* Answers as call_fail does, for a well-formed body with wrong content: errors of content (ERR_INVALID,
 * ERR_UNSUPPORTED, ERR_NOFIT, …) become 422. */
void call_refuse(struct call *call, const struct err *err);
/* Answers a request with an invalid token ('err' says why): 401, or 429 with Retry-After for an address that
 * sends too many (api/http/wrong.h). */
void call_wrong_token(struct call *call, const struct err *err);
/* Answers with a problem document of the given status and further members 'more' (taken over; may be
 * NULL). */
void call_problem(struct call *call, int status, const char *code, json_t *more, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
void call_empty(struct call *call, int status);

/* Callback for store calls whose document is the answer: 200 with the document, or the error. arg is the
 * call. */
void call_answer_doc(void *arg, const struct err *err, json_t *doc);

/* Callbacks for store calls whose document is a list: 200 with a page of it, in which "next" is a text (null:
 * the last page) that the client sends back unchanged. call_answer_page gets a page; call_answer_list gets
 * the whole list and cuts the page out of it. */
void call_answer_list(void *arg, const struct err *err, json_t *doc);
void call_answer_page(void *arg, const struct err *err, json_t *doc);
/* Callback for store calls that change something: 200 with the document, 204 if there is none, or the error,
 * which is 422 if the store refuses the body's content. */
void call_answer_changed(void *arg, const struct err *err, json_t *doc);

/* Counts an answer for /metrics. Handlers call it only when they begin a streamed answer. */
void call_count(struct call *call, int status);

#endif
