/* The table of all routes, and the way from a request's head to its handler: match, query, token, scope,
 * body. */
#include "api/request/route.h"
#include "api/request/precondition.h"

#include "api/people/access.h"
#include "api/people/auth.h"
#include "api/people/session.h"
#include "common/clock.h"
#include "common/digest.h"
#include "common/json.h"
#include "common/release.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE "limit after"
#define SMALL 65536
#define SEVERAL                                                                                              \
    "state label topics" /* query parameters that may occur several times, or hold several values */
#define PROFILES_BYTES (16 << 20)
#define JOB_BYTES (16 << 20) /* a specification may hold a plan */

static const struct route routes[] = {
    {HTTP_POST, "/v1/jobs", SCOPE_JOBS_WRITE, BODY_JSON, JOB_BYTES, "", jobs_submit},
    {HTTP_POST, "/v1/jobs:validate", SCOPE_JOBS_READ | SCOPE_JOBS_WRITE, BODY_JSON, JOB_BYTES,
     "programs inputs", jobs_validate},
    {HTTP_POST, "/v1/plans", SCOPE_JOBS_READ | SCOPE_JOBS_WRITE, BODY_JSON, JOB_BYTES, "", plans_post},
    {HTTP_POST, "/v1/plans:cluster", SCOPE_JOBS_READ | SCOPE_JOBS_WRITE, BODY_JSON, JOB_BYTES, "",
     plans_cluster},
    {HTTP_GET, "/v1/jobs", SCOPE_JOBS_READ, BODY_NONE, 0, PAGE " state owner group label from to array",
     jobs_list},
    {HTTP_GET, "/v1/jobs/{id}", SCOPE_JOBS_READ, BODY_NONE, 0, "", jobs_get},
    {HTTP_DELETE, "/v1/jobs/{id}", SCOPE_JOBS_WRITE, BODY_NONE, 0, "", jobs_remove},
    {HTTP_GET, "/v1/storage", SCOPE_JOBS_READ, BODY_NONE, 0, "", storage_get},
    {HTTP_PATCH, "/v1/jobs/{id}", SCOPE_JOBS_WRITE, BODY_JSON, SMALL, "", jobs_patch},
    {HTTP_POST, "/v1/jobs:cancel", SCOPE_JOBS_WRITE, BODY_JSON, SMALL, "", jobs_cancel_all},
    {HTTP_POST, "/v1/jobs:hold", SCOPE_JOBS_WRITE, BODY_JSON, SMALL, "", jobs_hold_all},
    {HTTP_POST, "/v1/jobs:release", SCOPE_JOBS_WRITE, BODY_JSON, SMALL, "", jobs_release_all},
    {HTTP_POST, "/v1/jobs/{id}/cancel", SCOPE_JOBS_WRITE, BODY_JSON_OPTIONAL, SMALL, "", jobs_cancel},
    {HTTP_POST, "/v1/jobs/{id}/extend", SCOPE_JOBS_WRITE, BODY_JSON, SMALL, "", jobs_extend},
    {HTTP_POST, "/v1/jobs/{id}/hold", SCOPE_JOBS_WRITE, BODY_JSON_OPTIONAL, SMALL, "", jobs_hold},
    {HTTP_POST, "/v1/jobs/{id}/release", SCOPE_JOBS_WRITE, BODY_JSON_OPTIONAL, SMALL, "", jobs_release},
    {HTTP_POST, "/v1/jobs/{id}/resume", SCOPE_JOBS_WRITE, BODY_JSON_OPTIONAL, SMALL, "", jobs_resume},
    {HTTP_POST, "/v1/jobs/{id}/share", SCOPE_JOBS_WRITE, BODY_JSON, SMALL, "", jobs_share},
    {HTTP_GET, "/v1/jobs/{id}/metrics", SCOPE_JOBS_READ, BODY_NONE, 0, PAGE " kind buckets from to",
     jobs_metrics},
    {HTTP_GET, "/v1/jobs/{id}/logs", SCOPE_JOBS_READ, BODY_NONE, 0, PAGE, jobs_logs},
    {HTTP_GET, "/v1/jobs/{id}/events", SCOPE_JOBS_READ, BODY_NONE, 0, "after type", jobs_events},
    {HTTP_GET, "/v1/jobs/{id}/plan", SCOPE_JOBS_READ, BODY_NONE, 0, "", jobs_plan},
    {HTTP_GET, "/v1/jobs/{id}/runs", SCOPE_JOBS_READ, BODY_NONE, 0, PAGE, jobs_runs},
    {HTTP_GET, "/v1/jobs/{id}/trace", SCOPE_JOBS_READ, BODY_NONE, 0, "", jobs_trace},
    {HTTP_GET, "/v1/jobs/{id}/lanes", SCOPE_JOBS_READ, BODY_NONE, 0, "step from to px first_rank ranks",
     jobs_lanes},
    {HTTP_GET, "/v1/jobs/{id}/why", SCOPE_JOBS_READ, BODY_NONE, 0, "", jobs_why},
    {HTTP_GET, "/v1/jobs/{id}/artifacts", SCOPE_JOBS_READ, BODY_NONE, 0, PAGE, artifacts_list},
    {HTTP_GET, "/v1/jobs/{id}/artifacts/{name}", SCOPE_JOBS_READ, BODY_NONE, 0, "", artifacts_get},
    {HTTP_GET, "/v1/notices", SCOPE_JOBS_READ, BODY_NONE, 0, PAGE, notices_list},
    {HTTP_PATCH, "/v1/notices", SCOPE_JOBS_WRITE, BODY_JSON, SMALL, "", notices_patch},
    {HTTP_GET, "/v1/queue", SCOPE_JOBS_READ, BODY_NONE, 0, PAGE, queue_get},
    {HTTP_GET, "/v1/events", SCOPE_JOBS_READ, BODY_NONE, 0, "topics after", events_get},
    {HTTP_GET, "/v1/models", SCOPE_MODELS_READ, BODY_NONE, 0, PAGE, models_list},
    {HTTP_POST, "/v1/models", SCOPE_MODELS_WRITE, BODY_JSON, 0, "", models_add},
    {HTTP_GET, "/v1/models/{name}", SCOPE_MODELS_READ, BODY_NONE, 0, "", models_get},
    {HTTP_DELETE, "/v1/models/{name}", SCOPE_MODELS_WRITE, BODY_NONE, 0, "", models_remove},
    {HTTP_PUT, "/v1/blobs/{sha256}", SCOPE_MODELS_WRITE | SCOPE_AGENT, BODY_STREAM, 0, "offset size",
     blobs_put},
    {HTTP_GET, "/v1/blobs/{sha256}", SCOPE_MODELS_READ | SCOPE_AGENT, BODY_NONE, 0, "", blobs_get},
    {HTTP_GET, "/v1/blobs/{sha256}/manifest", SCOPE_MODELS_READ | SCOPE_AGENT, BODY_NONE, 0, "",
     blobs_manifest},
    {HTTP_GET, "/v1/nodes", SCOPE_NODES_READ, BODY_NONE, 0, PAGE, nodes_list},
    {HTTP_DELETE, "/v1/nodes/{name}", SCOPE_NODES_WRITE, BODY_NONE, 0, "", nodes_remove},
    {HTTP_GET, "/v1/devices", SCOPE_NODES_READ, BODY_NONE, 0, PAGE, devices_list},
    {HTTP_PATCH, "/v1/devices/{name}", SCOPE_NODES_WRITE, BODY_JSON, SMALL, "", devices_patch},
    {HTTP_POST, "/v1/devices/{name}/drain", SCOPE_NODES_WRITE, BODY_JSON_OPTIONAL, SMALL, "", devices_drain},
    {HTTP_POST, "/v1/nodes/{name}/drain", SCOPE_NODES_WRITE, BODY_JSON_OPTIONAL, SMALL, "", devices_drain},
    {HTTP_POST, "/v1/nodes/{name}/undrain", SCOPE_NODES_WRITE, BODY_JSON_OPTIONAL, SMALL, "",
     devices_undrain},
    {HTTP_POST, "/v1/devices/{name}/undrain", SCOPE_NODES_WRITE, BODY_JSON_OPTIONAL, SMALL, "",
     devices_undrain},
    {HTTP_GET, "/v1/profiles", SCOPE_NODES_READ, BODY_NONE, 0, PAGE " model", profiles_list},
    {HTTP_POST, "/v1/profiles", SCOPE_NODES_WRITE, BODY_JSON, PROFILES_BYTES, "visibility group",
     profiles_import},
    {HTTP_GET, "/v1/load", SCOPE_NODES_READ, BODY_NONE, 0, PAGE " from to device by", load_get},
    {HTTP_GET, "/v1/links", SCOPE_NODES_READ, BODY_NONE, 0, PAGE, links_list},
    {HTTP_GET, "/v1/leases", SCOPE_NODES_READ, BODY_NONE, 0, PAGE, leases_list},
    {HTTP_POST, "/v1/leases", SCOPE_LEASES_WRITE, BODY_JSON, SMALL, "", leases_post},
    {HTTP_PATCH, "/v1/leases/{id}", SCOPE_LEASES_WRITE, BODY_JSON, SMALL, "", leases_patch},
    /* Tokens that made leases before leases:write existed may still give them back. */
    {HTTP_DELETE, "/v1/leases/{id}", SCOPE_LEASES_WRITE | SCOPE_JOBS_WRITE, BODY_NONE, 0, "", leases_end},
    {HTTP_POST, "/v1/enroll", 0, BODY_JSON, SMALL, "", enroll_post},
    {HTTP_POST, "/v1/renew", SCOPE_AGENT, BODY_JSON, SMALL, "", renew_post},
    {HTTP_POST, "/v1/join-tokens", SCOPE_NODES_WRITE, BODY_JSON_OPTIONAL, SMALL, "", join_tokens_post},
    {HTTP_DELETE, "/v1/join-tokens", SCOPE_NODES_WRITE, BODY_NONE, 0, "node", join_tokens_revoke},
    {HTTP_GET, "/v1/users", SCOPE_ADMIN, BODY_NONE, 0, PAGE, users_list},
    {HTTP_PATCH, "/v1/users/{name}", SCOPE_ADMIN, BODY_JSON, SMALL, "", users_patch},
    {HTTP_GET, "/v1/groups", SCOPES_ALL_PEOPLE, BODY_NONE, 0, PAGE, groups_list},
    {HTTP_POST, "/v1/groups", SCOPE_ADMIN, BODY_JSON, SMALL, "", groups_post},
    {HTTP_PATCH, "/v1/groups/{name}", SCOPE_ADMIN, BODY_JSON, SMALL, "", groups_patch},
    {HTTP_DELETE, "/v1/groups/{name}", SCOPE_ADMIN, BODY_NONE, 0, "", groups_remove},
    {HTTP_GET, "/v1/usage", SCOPE_JOBS_READ, BODY_NONE, 0, "from to by", usage_get},
    {HTTP_GET, "/v1/shares", SCOPE_JOBS_READ, BODY_NONE, 0, "half_life", shares_get},
    {HTTP_GET, "/v1/records", SCOPE_JOBS_READ, BODY_NONE, 0, "from to", records_get},
    {HTTP_GET, "/v1/arrivals", SCOPE_JOBS_READ, BODY_NONE, 0, "from to " PAGE, arrivals_list},
    {HTTP_GET, "/v1/tokens", SCOPES_ALL_PEOPLE, BODY_NONE, 0, PAGE, tokens_list},
    {HTTP_POST, "/v1/tokens", SCOPES_ALL_PEOPLE, BODY_JSON, SMALL, "", tokens_post},
    {HTTP_DELETE, "/v1/tokens/{id}", SCOPES_ALL_PEOPLE, BODY_NONE, 0, "", tokens_revoke},
    {HTTP_POST, "/v1/session", 0, BODY_JSON, SMALL, "", session_post},
    {HTTP_DELETE, "/v1/session", SCOPES_ALL_PEOPLE, BODY_NONE, 0, "", session_delete},
    {HTTP_POST, "/v1/session-codes", SCOPES_ALL_PEOPLE, BODY_JSON_OPTIONAL, SMALL, "", session_codes_post},
    {HTTP_GET, "/v1/oidc", 0, BODY_NONE, 0, "", oidc_get},
    {HTTP_POST, "/v1/oidc/login", 0, BODY_NONE, 0, "", oidc_login_post},
    {HTTP_POST, "/v1/oidc/session", 0, BODY_JSON, SMALL, "", oidc_session_post},
    {HTTP_POST, "/v1/oidc/device", 0, BODY_NONE, 0, "", oidc_device_post},
    {HTTP_POST, "/v1/oidc/token", 0, BODY_JSON, SMALL, "", oidc_token_post},
    {HTTP_POST, "/v1/socket-token", 0, BODY_NONE, 0, "", socket_token_post},
    {HTTP_GET, "/v1/whoami", SCOPES_ALL_PEOPLE | SCOPE_AGENT, BODY_NONE, 0, "", whoami_get},
    {HTTP_GET, "/v1/audit", SCOPE_ADMIN, BODY_NONE, 0, PAGE, audit_list},
    {HTTP_GET, "/v1/openapi.yaml", 0, BODY_NONE, 0, "", openapi_get},
    {HTTP_GET, "/healthz", 0, BODY_NONE, 0, "", health_get},
    {HTTP_GET, "/readyz", 0, BODY_NONE, 0, "", ready_get},
    {HTTP_GET, "/metrics", 0, BODY_NONE, 0, "", metrics_get},
    {.pattern = NULL},
};

/* Routes of the page. The page is for people and not a part of the interface that openapi.yaml describes. Its
 * query is read by the page itself. */
static const struct route pages[] = {
    {HTTP_GET, "/", 0, BODY_NONE, 0, NULL, page_get},
    {HTTP_GET, "/queue", 0, BODY_NONE, 0, NULL, page_get},
    {HTTP_GET, "/cluster", 0, BODY_NONE, 0, NULL, page_get},
    {HTTP_GET, "/jobs", 0, BODY_NONE, 0, NULL, page_get},
    {HTTP_GET, "/jobs/{id}", 0, BODY_NONE, 0, NULL, page_get},
    {HTTP_GET, "/jobs/{id}/lanes", 0, BODY_NONE, 0, NULL, page_get},
    {HTTP_GET, "/jobs/{id}/why", 0, BODY_NONE, 0, NULL, page_get},
    {HTTP_GET, "/plan", 0, BODY_NONE, 0, NULL, page_get},
    {HTTP_GET, "/me", 0, BODY_NONE, 0, NULL, page_get},
    {HTTP_GET, "/oidc/callback", 0, BODY_NONE, 0, NULL, page_get},
    {HTTP_GET, "/web/{hash}/{name}", 0, BODY_NONE, 0, NULL, web_get},
    {.pattern = NULL},
};

const struct route *route_table(void)
{
    return routes;
}

/* Whether the text is UTF-8 that PostgreSQL accepts: no overlong forms, surrogates or values beyond
 * U+10FFFF. */
static bool is_utf8(const char *text)
{
    json_t *string = json_string(text);
    json_decref(string);
    return string != NULL;
}

bool route_match(const char *pattern, const char *path, char params[CALL_PARAMS_MAX][CALL_PARAM_BYTES],
                 bool *bad)
{
    unsigned count = 0;
    *bad = false;
    for (;;) {
        size_t p = strcspn(pattern, "/"), s = strcspn(path, "/");
        if (p >= 2 && pattern[0] == '{') {
            if (s == 0 || count == CALL_PARAMS_MAX)
                return false;
            if (httpd_decode(path, s, false, params[count], CALL_PARAM_BYTES) < 0 || !is_utf8(params[count]))
                *bad = true; /* set in any case; the caller reports it only if the whole pattern matches */
            count++;
        } else {
            char plain[64];
            if (httpd_decode(path, s, false, plain, sizeof(plain)) < 0 || strlen(plain) != p ||
                strncmp(pattern, plain, p) != 0)
                return false;
        }
        pattern += p;
        path += s;
        if (!*pattern || !*path)
            return *pattern == *path;
        pattern++;
        path++;
    }
}

static void call_free(void *data)
{
    struct call *call = data;
    if (call->state && call->state_free)
        call->state_free(call->state);
    for (unsigned i = 0; i < call->query_count; i++)
        free(call->query[i].value);
    json_decref(call->body);
    json_decref(call->errors);
    free(call);
}

static bool word_in(const char *list, const char *word)
{
    size_t size = strlen(word);
    for (const char *at = list; size && (at = strstr(at, word)); at += size)
        if ((at == list || at[-1] == ' ') && (at[size] == ' ' || !at[size]))
            return true;
    return false;
}

/* Adds another value to a parameter that may occur several times: "a,b". Returns -1 when the call was
 * answered. */
static int add_value(struct call *call, unsigned index, char *value)
{
    size_t had = strlen(call->query[index].value), size = strlen(value);
    char *both = realloc(call->query[index].value, had + size + 2);
    if (both) {
        both[had] = ',';
        memcpy(both + had + 1, value, size + 1);
        call->query[index].value = both;
    } else
        call_problem(call, 503, "no-memory", NULL, "out of memory for a query");
    free(value);
    return both ? 0 : -1;
}

/* Reads one "name=value" of the query string. Returns -1 when the call was answered. */
static int take_parameter(struct call *call, const char *text, size_t size)
{
    char name[32];
    const char *equals = memchr(text, '=', size);
    size_t name_size = equals ? (size_t)(equals - text) : size;
    size_t value_size = equals ? size - name_size - 1 : 0;
    if (httpd_decode(text, name_size, true, name, sizeof(name)) < 0 || !word_in(call->route->query, name)) {
        call_problem(
            call, 400, "invalid", NULL, "the query has an unknown parameter \"%.*s\"; known here: %s",
            (int)(name_size > 40 ? 40 : name_size), text, *call->route->query ? call->route->query : "none");
        return -1;
    }
    char *value = malloc(value_size + 1);
    bool good = value &&
                httpd_decode(equals ? equals + 1 : "", value_size, true, value, value_size + 1) == 0 &&
                is_utf8(value);
    for (unsigned i = 0; good && i < call->query_count; i++)
        if (strcmp(call->query[i].name, name) == 0 && word_in(SEVERAL, name))
            return add_value(call, i, value);
    if (!good || call_query(call, name) || call->query_count == CALL_QUERY_MAX) {
        free(value);
        call_problem(call, 400, "invalid", NULL, "%s: %s", name,
                     good ? "it stands twice in the query" : "it is not percent-encoded UTF-8");
        return -1;
    }
    snprintf(call->query[call->query_count].name, sizeof(call->query[0].name), "%s", name);
    call->query[call->query_count++].value = value;
    return 0;
}

static int take_query(struct call *call)
{
    const char *at = httpd_request_head(call->request)->query;
    while (*at) {
        size_t size = strcspn(at, "&");
        if (size && take_parameter(call, at, size) < 0)
            return -1;
        at += size + (at[size] == '&');
    }
    return 0;
}

static bool is_json(const char *type)
{
    if (!type || strncasecmp(type, "application/json", 16) != 0)
        return false;
    return !type[16] || type[16] == ';' || type[16] == ' ';
}

/* Reads the body as the route requires, after the caller was identified and found to have the scope. */
static void call_accept(struct call *call)
{
    const struct route *route = call->route;
    const struct httpd_head *head = httpd_request_head(call->request);
    bool has_body = head->chunked || head->content_bytes;
    const char *coding = httpd_head_get(head, "content-encoding");
    uint64_t most = route->body_max ? route->body_max : CALL_BODY_BYTES_MAX;
    if (has_body && route->body != BODY_NONE && coding && strcasecmp(coding, "identity") != 0) {
        call_problem(call, 415, "invalid", NULL, "the body must come as it is, not in the coding \"%.80s\"",
                     coding);
        return;
    }
    if (route->body == BODY_STREAM) {
        call_handle(call);
        return;
    }
    if (has_body && route->body != BODY_NONE) {
        if (!is_json(httpd_head_get(head, "content-type"))) {
            call_problem(call, 415, "invalid", NULL, "the body must be application/json, not \"%.80s\"",
                         httpd_head_get(head, "content-type") ? httpd_head_get(head, "content-type")
                                                              : "untyped");
            return;
        }
        if (head->content_bytes > most) {
            call_problem(call, 413, "too-big", NULL, "the body has %llu bytes; the limit of %s is %llu",
                         (unsigned long long)head->content_bytes, route->pattern, (unsigned long long)most);
            return;
        }
    }
    httpd_accept_body(call->request, most);
}

static void identified(void *arg, const struct err *err, const struct principal *principal)
{
    struct call *call = arg;
    struct err denied = {0};
    if (err && err->code == ERR_AUTH) {
        call_wrong_token(call, err);
    } else if (err) {
        call_fail(call, err);
    } else if (access_route(principal, call->route->scope, &denied) < 0) {
        call_fail(call, &denied);
    } else {
        call->principal = *principal;
        call_address(call, call->principal.address);
        call_accept(call);
    }
}

static void authenticate(struct call *call)
{
    const struct httpd_head *head = httpd_request_head(call->request);
    const char *value = httpd_head_get(head, "authorization");
    char cookie[SESSION_TOKEN_BYTES];
    struct err err = {0};
    bool session = !value && session_cookie_get(call, COOKIE_SESSION, cookie);
    if (!session && (!value || strncasecmp(value, "Bearer ", 7) != 0)) {
        const char *user = session_proxy_user(call);
        if (user)
            call_problem(call, 401, "proxy-user", NULL,
                         "the proxy says that you are %.80s: POST /v1/session signs you in", user);
        else
            call_problem(call, 401, "unauthenticated", NULL,
                         "there is no token: send \"Authorization: Bearer TOKEN\"");
        return;
    }
    /* From here on, a refusal tells the browser to remove the cookie. */
    if (session)
        session_cookie(call, COOKIE_SESSION, "", 0, call->session_end);
    if (session && session_guard(call, head->method != HTTP_GET && head->method != HTTP_HEAD, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    if (session) {
        value = cookie;
    } else {
        while (*value && *value != ' ')
            value++;
        while (*value == ' ')
            value++;
    }
    if (digest_sha256(value, strlen(value), call->token_hash, &err) < 0)
        call_fail(call, &err);
    else
        auth_find(call->app->auth, call->token_hash, identified, call);
}

static bool method_fits(enum http_method route, enum http_method asked)
{
    return route == asked || (route == HTTP_GET && asked == HTTP_HEAD);
}

static void answer_no_route(struct call *call, const char *allowed)
{
    const struct httpd_head *head = httpd_request_head(call->request);
    if (!*allowed) {
        call_problem(call, 404, "not-found", NULL, "there is nothing at %.200s", head->path);
        return;
    }
    call->allowed = allowed;
    call_problem(call, 405, "invalid", NULL, "%.40s is not allowed here; %s is", head->method_name, allowed);
}

/* Gives the request the id that the client or a proxy chose, if it has 1 to 64 characters that are allowed in
 * a URN; else a new id. */
static void give_id(struct httpd_request *request)
{
    static const char good[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const char *given = httpd_head_get(httpd_request_head(request), "x-request-id");
    char made[HTTPD_ID_BYTES] = "";
    struct err ignored = {0};
    if (!given || !*given || strlen(given) >= HTTPD_ID_BYTES || strspn(given, good) != strlen(given)) {
        random_hex(made, 12, &ignored);
        given = made;
    }
    httpd_request_set_id(request, given);
}

static struct call *call_create(struct app *app, struct httpd_request *request)
{
    struct call *call = calloc(1, sizeof(*call));
    if (!call) {
        httpd_reply(request, 503, NULL, NULL, NULL, 0);
        return NULL;
    }
    app->counters.requests++;
    call->app = app;
    call->request = request;
    call->started_ns = clock_mono_ns();
    give_id(request);
    httpd_request_set_data(request, call, call_free);
    return call;
}

/* Finds the request's route in a table. Returns whether the path is in the table. If the path does not allow
 * the request's method, the methods that it allows are added to `allowed`. */
static bool find_route(struct call *call, const struct route *table, char *allowed, size_t size, bool *bad)
{
    const struct httpd_head *head = httpd_request_head(call->request);
    for (const struct route *route = table; route->pattern; route++) {
        if (!route_match(route->pattern, head->path, call->params, bad))
            continue;
        if (method_fits(route->method, head->method)) {
            call->route = route;
            return true;
        }
        snprintf(allowed + strlen(allowed), size - strlen(allowed), "%s%s%s", *allowed ? ", " : "",
                 httpd_method_name(route->method), route->method == HTTP_GET ? ", HEAD" : "");
    }
    return *allowed != '\0';
}

/* Returns the route that answers a GET of the call's path, or NULL. */
static const struct route *route_of_get(const struct call *call)
{
    char params[CALL_PARAMS_MAX][CALL_PARAM_BYTES];
    bool bad = false;
    for (const struct route *route = routes; route->pattern; route++)
        if (route->method == HTTP_GET &&
            route_match(route->pattern, httpd_request_head(call->request)->path, params, &bad))
            return route;
    return NULL;
}

static void on_head(struct httpd_request *request, void *arg)
{
    struct call *call = call_create(arg, request);
    if (!call)
        return;
    char allowed[64] = "";
    bool bad = false;
    if (!find_route(call, routes, allowed, sizeof(allowed), &bad))
        find_route(call, pages, allowed, sizeof(allowed), &bad);
    if (!call->route) {
        answer_no_route(call, allowed);
        return;
    }
    if (bad) {
        call_problem(call, 400, "invalid", NULL,
                     "the path holds what is no percent-encoded UTF-8, or is too long");
        return;
    }
    const char *release = httpd_head_get(httpd_request_head(request), "x-motley-release");
    struct err err;
    if (release && release_check_text("who asks", release, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    if (call->route->query && take_query(call) < 0)
        return;
    if (call->route->scope)
        authenticate(call);
    else
        call_accept(call);
}

static void route_table_on_ready(struct httpd_request *request, void *arg)
{
    (void)arg;
    struct call *call = httpd_request_data(request);
    if (call->route->body != BODY_NONE) {
        size_t size;
        const char *text = httpd_request_body(request, &size);
        struct err err = {0};
        if (size || call->route->body == BODY_JSON) {
            call->body = json_parse_limited(text, size, JSON_DEPTH_MAX, &err);
            if (!call->body) {
                const bool number = err.code == ERR_TOO_BIG;
                err_wrap(&err, number ? "the body holds a number that is too large" : "the body is not JSON");
                (number ? call_refuse : call_fail)(call, &err);
                return;
            }
            if (!json_is_object(call->body)) {
                call_problem(call, 422, "invalid", NULL, "the body is not a JSON object");
                return;
            }
        }
    }
    precondition_begin(call, route_of_get(call));
}

static void on_malformed(struct httpd_request *request, int status, const char *why, void *arg)
{
    struct call *call = httpd_request_data(request);
    struct app *app = arg;
    app->counters.malformed++;
    if (!call)
        call = call_create(app, request);
    if (call)
        call_problem(call, status,
                     status == 413   ? "too-big"
                     : status == 503 ? "busy"
                                     : "invalid",
                     NULL, "%s", why);
}

struct httpd_hooks route_hooks(struct app *app)
{
    return (struct httpd_hooks){
        .head = on_head, .ready = route_table_on_ready, .malformed = on_malformed, .arg = app};
}
