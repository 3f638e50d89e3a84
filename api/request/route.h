/* The table of routes. */
#ifndef MOTLEY_API_REQUEST_ROUTE_H
#define MOTLEY_API_REQUEST_ROUTE_H

#include "api/request/app.h"

enum route_body {
    BODY_NONE,          /* a body that a client sends anyway is ignored */
    BODY_JSON,          /* an application/json object, required */
    BODY_JSON_OPTIONAL, /* an application/json object, or no body */
    /* the handler itself calls httpd_accept_stream; no byte of the body was read before */
    BODY_STREAM,
};

struct route {
    enum http_method method;
    const char *pattern; /* for example "/v1/jobs/{id}/cancel"; {…} matches one segment */
    /* enum store_scope bits, any of which is enough (access.h); 0: no token is needed */
    unsigned scope;
    enum route_body body;
    uint64_t body_max; /* most bytes of the body; 0: CALL_BODY_BYTES_MAX */
    /* names of the known query parameters, separated by spaces; "": there are none; NULL: the query is not
     * looked at */
    const char *query;
    void (*handle)(struct call *call); /* may wait (api/request/wait.h) */
};

/* Carries the request out: calls the handler of its route, on a stack of its own. */
void call_handle(struct call *call);

/* Returns the hooks for httpd_server_create; 'app' must outlive the server. */
struct httpd_hooks route_hooks(struct app *app);

/* Returns the table of routes, ended by a NULL pattern. Tests compare it with openapi.yaml. */
const struct route *route_table(void);

/* Matches 'path' (still percent-encoded) against a pattern and decodes its parameters into params. Returns
 * whether it matches; sets *bad when a segment is not valid percent-encoded UTF-8. */
bool route_match(const char *pattern, const char *path, char params[CALL_PARAMS_MAX][CALL_PARAM_BYTES],
                 bool *bad);

/* ---- handlers, by the file that defines them ---- */
void jobs_submit(struct call *call); /* submit.c */
void jobs_validate(struct call *call);
void jobs_list(struct call *call); /* jobs.c */
void jobs_get(struct call *call);
void jobs_cancel(struct call *call);
void jobs_extend(struct call *call);
void jobs_hold(struct call *call);
void jobs_release(struct call *call);
void jobs_resume(struct call *call);
void jobs_patch(struct call *call);
void jobs_remove(struct call *call);
void jobs_share(struct call *call);
void jobs_cancel_all(struct call *call); /* bulk.c */
void jobs_hold_all(struct call *call);
void jobs_release_all(struct call *call);
void jobs_metrics(struct call *call);
void jobs_logs(struct call *call);
void jobs_plan(struct call *call);
void jobs_runs(struct call *call);
void jobs_trace(struct call *call);
void jobs_why(struct call *call);
void jobs_lanes(struct call *call);   /* lanes.c */
void notices_list(struct call *call); /* notices.c */
void notices_patch(struct call *call);
void plans_post(struct call *call); /* plans.c */
void plans_cluster(struct call *call);
void queue_get(struct call *call);
void jobs_events(struct call *call);    /* stream.c */
void events_get(struct call *call);     /* topics.c */
void artifacts_list(struct call *call); /* artifacts.c */
void artifacts_get(struct call *call);
void blobs_put(struct call *call); /* blobs.c */
void blobs_get(struct call *call);
void blobs_manifest(struct call *call);
/* Answers with a stored file, including Range and HEAD; also used for artifacts. */
void blob_stream(struct call *call, const char *sha256);
void models_list(struct call *call); /* models.c */
void models_get(struct call *call);
void models_add(struct call *call);
void models_remove(struct call *call);
void nodes_list(struct call *call); /* nodes.c */
void devices_list(struct call *call);
void leases_list(struct call *call);
void leases_post(struct call *call);
void leases_patch(struct call *call);
void leases_end(struct call *call);
void devices_drain(struct call *call);
void devices_patch(struct call *call);
void devices_undrain(struct call *call);
void profiles_list(struct call *call);
void links_list(struct call *call);
void load_get(struct call *call); /* load.c */
void profiles_import(struct call *call);
void nodes_remove(struct call *call);
void enroll_post(struct call *call); /* enroll.c */
void renew_post(struct call *call);
void join_tokens_post(struct call *call);
void join_tokens_revoke(struct call *call);
void users_list(struct call *call); /* people.c */
void users_patch(struct call *call);
void groups_list(struct call *call);
void usage_get(struct call *call);
void shares_get(struct call *call);
void records_get(struct call *call); /* records.c */
void arrivals_list(struct call *call);
void groups_post(struct call *call);
void groups_patch(struct call *call);
void groups_remove(struct call *call);
void audit_list(struct call *call);
void tokens_list(struct call *call); /* tokens.c */
void tokens_post(struct call *call);
void tokens_revoke(struct call *call);
void whoami_get(struct call *call);
void session_post(struct call *call); /* session.c */
void session_delete(struct call *call);
void session_codes_post(struct call *call);
void oidc_get(struct call *call); /* oidc.c */
void oidc_login_post(struct call *call);
void oidc_session_post(struct call *call);
void oidc_device_post(struct call *call);
void oidc_token_post(struct call *call);
void socket_token_post(struct call *call); /* peer.c */
void page_get(struct call *call);          /* web.c */
void web_get(struct call *call);
void health_get(struct call *call); /* ops.c */
void ready_get(struct call *call);
void metrics_get(struct call *call);
void storage_get(struct call *call);
void openapi_get(struct call *call);

#endif
