/* Sessions of the page in the browser: one-time codes that open sessions, and the tokens that sessions
 * use. */
#include "store/sign_in.sql.h"

#include <stdio.h>

#include "store/users.h"

#include "common/digest.h"

int store_session_code_put(struct store *store, const struct principal *principal, const uint8_t code[32],
                           int64_t expires_us, store_done_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_session_code_put(&params, code, principal->token, expires_us);
    return store_one_touched(store, &params, "a session makes no sessions: use a token", done, arg, err);
}

int store_session_open(struct store *store, const uint8_t shown[32], const uint8_t token[32],
                       unsigned seconds, const char *address, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_session_open(&params, shown, token, seconds, address);
    return store_one_doc(store, &params, "it is not valid: unknown, expired, used or revoked", done, arg,
                         err);
}

int store_session_open_user(struct store *store, const struct store_signed_in *who, const uint8_t token[32],
                            store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    char missing[200];
    sql_session_open_user(&params, who->user, token, who->seconds, who->address, who->scopes);
    snprintf(missing, sizeof(missing),
             "there is no user %.80s here, or a disabled one: an administrator makes one (motley token make "
             "--user)",
             who->user);
    return store_one_doc(store, &params, missing, done, arg, err);
}

int store_identity_sign_in(struct store *store, const struct store_signed_in *who, const uint8_t token[32],
                           store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params made, opened;
    sql_identity_sign_in(&made, who->issuer, who->subject, who->user, who->address, who->may_make,
                         who->may_link, who->groups, who->group_count);
    sql_identity_open(&opened, who->issuer, token, who->seconds, who->address, who->scopes, who->subject,
                      who->session);
    const struct pg_step steps[] = {store_step(&made), store_step(&opened)};
    int rc = store_run_doc(store, steps, 2, STORE_ALONE, "the user is gone", done, arg, err);
    pg_params_fini(&made);
    pg_params_fini(&opened);
    return rc;
}

int store_session_close(struct store *store, const struct principal *principal, store_done_fn *done,
                        void *arg, struct err *err)
{
    struct pg_params params;
    sql_session_close(&params, principal->token, principal);
    return store_one_touched(store, &params, "the token that you ask with is no session's", done, arg, err);
}
