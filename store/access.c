/* Adds principals as parameters of statements, and runs changes that only an owner or an administrator may
 * make. */
#include "store/fragments.sql.h"

#include <stdio.h>

void store_param_viewer(struct pg_params *params, const struct principal *principal)
{
    pg_param_i64(params, principal->kind == PRINCIPAL_USER ? principal->id : 0);
    pg_param_bool(params, principal->admin);
}

void store_param_sharing(struct pg_params *params, const struct sharing *sharing)
{
    pg_param_text(params, visibility_name(sharing->visibility));
    pg_param_text(params, sharing->visibility == VISIBLE_GROUP ? sharing->group : NULL);
}

void store_param_actor(struct pg_params *params, const struct principal *principal)
{
    char who[PRINCIPAL_NAME_BYTES + 8];
    snprintf(who, sizeof(who), "%s%s", principal->kind == PRINCIPAL_AGENT ? "node:" : "", principal->name);
    json_t *actor = json_pack("{s:s}", "who", *who != '\0' ? who : "nobody");
    if (principal->id > 0)
        json_object_set_new(actor, "user_id", json_integer(principal->id));
    if (principal->token > 0)
        json_object_set_new(actor, "token", json_integer(principal->token));
    if (*principal->address != '\0')
        json_object_set_new(actor, "address", json_string(principal->address));
    /* Without memory `actor` is NULL, and the statement fails because the audit's `who` is missing. */
    pg_param_json(params, actor);
    json_decref(actor);
}

/* ---- a change that only the owner or an administrator may make ---- */

static void change_fail(struct store_call *call, const struct err *err)
{
    ((store_doc_fn *)call->done)(call->arg, err, NULL);
}

static void change_deliver(struct store_call *call, const struct pg_result *const *results, int count)
{
    const struct pg_result *result = results[count - 1];
    store_doc_fn *done = (store_doc_fn *)call->done;
    struct err err;
    if (pg_rows(result) == 0) {
        err_set(&err, ERR_NOT_FOUND, "%s", call->missing);
        done(call->arg, &err, NULL);
        return;
    }
    if (!pg_bool(result, 0, CHANGE_ROW_MADE)) {
        err_set(&err, ERR_DENIED, "%s is %s's: only its owner or an administrator may change it", call->thing,
                pg_text(result, 0, CHANGE_ROW_OWNER));
        done(call->arg, &err, NULL);
        return;
    }
    json_t *doc = pg_json(result, 0, CHANGE_ROW_DOCUMENT);
    done(call->arg, NULL, doc);
    json_decref(doc);
}

int store_one_change(struct store *store, struct pg_params *params, const char *missing, const char *thing,
                     store_doc_fn *done, void *arg, struct err *err)
{
    const struct pg_step step = store_step(params);
    struct store_call *call =
        store_call_create(change_deliver, change_fail, (void (*)(void))done, arg, missing, err);
    if (call)
        snprintf(call->thing, sizeof(call->thing), "%s", thing);
    int rc = store_run(store, &step, 1, 0, call, err);
    pg_params_fini(params);
    return rc;
}
