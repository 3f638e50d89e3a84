/* Enrolment, renewal and removal of nodes. */
#include "store/enrol.h"
#include "store/enrol.sql.h"

#include <stdio.h>
#include <string.h>

#include "common/digest.h"
#include "store/users.h"

bool store_node_name_valid(const char *name)
{
    size_t size = strlen(name);
    return size >= 1 && size <= 64 && name[0] != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == size;
}

static int enrol_check_name(const char *name, struct err *err)
{
    return store_node_name_valid(name)
               ? 0
               : err_set(err, ERR_INVALID,
                         "node: \"%.80s\" is not 1 to 64 of a-z, 0-9 and -, not beginning with -", name);
}

/* Checks a name, or the beginning of names with a * behind it. */
static int enrol_check_names(const char *names, struct err *err)
{
    char begin[66];
    const size_t size = strlen(names);
    if (size < 2 || size >= sizeof(begin) || names[size - 1] != '*')
        return enrol_check_name(names, err);
    snprintf(begin, sizeof(begin), "%.*s", (int)size - 1, names);
    return enrol_check_name(begin, err);
}

/* ---- join tokens ---- */

int store_join_token_put(struct store *store, const struct principal *maker,
                         const struct store_join_token *token, store_done_fn *done, void *arg,
                         struct err *err)
{
    if (token->node && enrol_check_names(token->node, err) < 0)
        return -1;
    if (token->replace && (!token->node || strchr(token->node, '*') || token->uses > 1))
        return err_set(err, ERR_INVALID, "replace: needs node, the one name that may be taken over, once");
    if (token->uses > 1 && token->node && !strchr(token->node, '*'))
        return err_set(err, ERR_INVALID,
                       "uses: node \"%s\" is one name; of several machines it ends in *, as in \"%.60s-*\"",
                       token->node, token->node);
    struct pg_params params;
    sql_join_token_put(&params, token->hash, token->expires_us, maker->id, token->node, token->replace,
                       token->uses > 0 ? token->uses : 1, maker);
    return store_one_done(store, &params, done, arg, err);
}

int store_join_tokens_revoke(struct store *store, const struct principal *principal, const char *node,
                             store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    if (node && enrol_check_names(node, err) < 0)
        return -1;
    sql_join_tokens_revoke(&params, node, principal);
    return store_one_doc(store, &params, "", done, arg, err);
}

/* ---- joining ---- */

static void enrol_id_fail(struct store_call *call, const struct err *err)
{
    ((store_id_fn *)call->done)(call->arg, err, 0);
}

/* Answers ERR_AUTH when the token is not good, ERR_CONFLICT (text: call->missing) when the name is taken, and
 * otherwise 'id'. */
static void join_answer(struct store_call *call, bool good, bool taken, int64_t id)
{
    store_id_fn *done = (store_id_fn *)call->done;
    struct err err;
    if (!good) {
        err_set(&err, ERR_AUTH,
                "token: this join token is not good here: unknown, expired, used or for another node");
        done(call->arg, &err, 0);
    } else if (taken) {
        err_set(&err, ERR_CONFLICT, "%s", call->missing);
        done(call->arg, &err, 0);
    } else {
        done(call->arg, NULL, id);
    }
}

static void check_deliver(struct store_call *call, const struct pg_result *const *results, int count)
{
    const struct pg_result *answer = results[count - 1];
    join_answer(call, pg_bool(answer, 0, JOIN_CHECK_GOOD),
                !pg_is_null(answer, 0, JOIN_CHECK_TAKEN) && pg_bool(answer, 0, JOIN_CHECK_TAKEN),
                pg_i64(answer, 0, JOIN_CHECK_GENERATION));
}

static void enrol_deliver(struct store_call *call, const struct pg_result *const *results, int count)
{
    const struct pg_result *answer = results[count - 1];
    bool taken = pg_is_null(answer, 0, NODE_ENROL_GENERATION);
    join_answer(call, pg_bool(answer, 0, NODE_ENROL_GOOD), taken,
                taken ? 0 : pg_i64(answer, 0, NODE_ENROL_GENERATION));
}

static int run_join(struct store *store, struct pg_params *params, store_deliver_fn *deliver,
                    const char *node, store_id_fn *done, void *arg, struct err *err)
{
    char taken[320];
    snprintf(
        taken, sizeof(taken),
        "the name \"%.64s\" is taken. Unless it was removed, its own machine comes back with its old key "
        "and a token of --node %.64s; any other takes its place with one that an administrator makes "
        "with --replace",
        node, node);
    const struct pg_step step = store_step(params);
    int rc = store_run(store, &step, 1, STORE_ALONE,
                       store_call_create(deliver, enrol_id_fail, (void (*)(void))done, arg, taken, err), err);
    pg_params_fini(params);
    return rc;
}

int store_join_check(struct store *store, const uint8_t hash[32], const char *node, store_id_fn *done,
                     void *arg, struct err *err)
{
    struct pg_params params;
    sql_join_check(&params, hash, node);
    return run_join(store, &params, check_deliver, node, done, arg, err);
}

int store_enrol(struct store *store, const struct store_enrol *enrol, store_id_fn *done, void *arg,
                struct err *err)
{
    if (enrol_check_name(enrol->node, err) < 0)
        return -1;
    struct pg_params params;
    const struct sql_node_enrol of = {.hash = enrol->join_hash,
                                      .node = enrol->node,
                                      .address = enrol->address,
                                      .agent_hash = enrol->agent_hash,
                                      .scopes = SCOPE_AGENT,
                                      .key_hash = enrol->key_hash,
                                      .generation = enrol->generation,
                                      .certified_until_s = enrol->certified_until_s,
                                      .redis_hash = enrol->redis_hash,
                                      .seal_key = enrol->seal_key};
    sql_node_enrol(&params, &of);
    return run_join(store, &params, enrol_deliver, enrol->node, done, arg, err);
}

/* ---- renewal and removal ---- */

static int run_renewal(struct store *store, const char *node, struct pg_params *params, store_id_fn *done,
                       void *arg, struct err *err)
{
    char missing[300];
    snprintf(
        missing, sizeof(missing),
        "node \"%.64s\" has another key, its certificate has ended, or it was removed: it comes back with a "
        "join token made with --node %.64s",
        node, node);
    return store_one_id(store, params, missing, done, arg, err);
}

int store_renew_check(struct store *store, const char *node, const uint8_t key_hash[32], store_id_fn *done,
                      void *arg, struct err *err)
{
    struct pg_params params;
    sql_renew_check(&params, node, key_hash);
    return run_renewal(store, node, &params, done, arg, err);
}

int store_node_renew(struct store *store, const char *node, const uint8_t key_hash[32], int64_t generation,
                     int64_t certified_until_s, store_id_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_node_renew(&params, node, key_hash, generation, certified_until_s);
    return run_renewal(store, node, &params, done, arg, err);
}

int store_node_remove(struct store *store, const struct principal *principal, const char *node,
                      store_doc_fn *done, void *arg, struct err *err)
{
    char missing[160];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no node \"%.80s\"", node);
    sql_node_remove(&params, node, principal);
    return store_one_doc(store, &params, missing, done, arg, err);
}
