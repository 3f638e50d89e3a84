/* Reads and changes nodes and devices as people and planners see them. */
#include "store/jobs.h"
#include "store/nodes.h"
#include "store/nodes.sql.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int store_glance(struct store *store, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_glance(&params, job_machine.states, job_machine.state_count);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_node_list(struct store *store, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_node_list(&params);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_device_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                      struct err *err)
{
    struct pg_params params;
    sql_device_list(&params, principal);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_cluster_get(struct store *store, const struct principal *principal, const char *content,
                      store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_cluster_get(&params, principal, content);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_device_drain(struct store *store, const struct principal *principal,
                       const struct store_drain *drain, store_doc_fn *done, void *arg, struct err *err)
{
    char missing[300];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no device \"%.220s\"", drain->name);
    sql_device_drain(&params, principal, drain->name, drain->drained, drain->why,
                     drain->after_jobs ? "infinity" : drain->by);
    return store_one_doc(store, &params, missing, done, arg, err);
}

int store_device_set(struct store *store, const struct principal *principal, const char *device,
                     const json_t *changes, store_doc_fn *done, void *arg, struct err *err)
{
    char missing[300];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no device \"%.220s\"", device);
    sql_device_set(&params, device, changes, principal);
    return store_one_doc(store, &params, missing, done, arg, err);
}

/* ---- requests to measure for a plan without a job ---- */

int store_measure_want(struct store *store, const char *key, const json_t *spec, const json_t *inputs,
                       unsigned seconds, store_done_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_measure_want(&params, key, spec, inputs, seconds);
    return store_one_done(store, &params, done, arg, err);
}
