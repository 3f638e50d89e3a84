/* Sessions of the page in the browser: one-time codes that open sessions, and the tokens that sessions
 * use. */
#include "store/store_private.h"

#include <stdio.h>

#include "store/users.h"

#include "common/digest.h"

/* clang-format off */
/* What all ways to open a session end with: t is its token, $4 the address. */
#define OPENED \
    "u AS (SELECT t.*, users.name FROM t JOIN users ON users.id = t.user_id), " \
    "said AS (" \
    AUDIT("json_build_object('who', u.name, 'user_id', u.user_id, 'token', u.made_by, 'address', nullif($4, ''))", "CASE WHEN u.session THEN 'session.open' ELSE 'token.sign-in' END", "u.id::text", "NULL::json", "json_build_object('expires', motley_time(u.expires_at))", "u") \
    "  ) " \
    "SELECT json_build_object('user', name, 'scopes', scopes, 'expires', motley_time(expires_at), " \
    "  'seconds', floor(extract(epoch FROM expires_at - now()))::bigint) FROM u"

/* Parameters: $1: the code's hash; $2: the asker's token; $3: when the code expires, in µs. */
static const struct pg_statement put_code = {
    "session_code_put",
    "WITH codes AS (DELETE FROM session_codes WHERE expires_at < now() - interval '1 day'), "
    "sessions AS (DELETE FROM tokens WHERE session AND expires_at < now() - interval '1 day') "
    "INSERT INTO session_codes (hash, token, expires_at) SELECT $1, id, to_timestamp($3::bigint / 1e6) FROM tokens "
    "WHERE id = $2::bigint AND user_id IS NOT NULL AND NOT session RETURNING true",
    PG_WRITE};
/* Parameters: $1: the hash of the code or token that is shown; $2: the new token's hash; $3: seconds; $4: the
 * client's address. */
static const struct pg_statement open_session = {
    "session_open",
    "WITH code AS (UPDATE session_codes SET used_at = now() WHERE hash = $1 AND used_at IS NULL AND expires_at > now() "
    "  RETURNING token), "
    "shown AS (SELECT t.* FROM tokens t LEFT JOIN tokens p ON p.id = t.parent "
    "  WHERE (t.hash = $1 OR t.id = (SELECT token FROM code)) AND t.user_id IS NOT NULL AND NOT t.session "
    "  AND t.revoked_at IS NULL AND p.revoked_at IS NULL AND least(t.expires_at, p.expires_at, 'infinity') > now()), "
    "t AS (INSERT INTO tokens (hash, user_id, scopes, note, expires_at, made_by, parent, session) "
    "  SELECT $2, user_id, scopes, 'the page', least(expires_at, now() + $3::bigint * interval '1 s'), id, "
    "    coalesce(parent, id), true FROM shown RETURNING *), "
    OPENED,
    PG_WRITE};
/* Parameters: the user's name, the new token's hash, seconds, the client's address, scopes. */
static const struct pg_statement open_user_session = {
    "session_open_user",
    "WITH t AS (INSERT INTO tokens (hash, user_id, scopes, note, expires_at, session) "
    "  SELECT $2, id, $5::integer, 'the page', now() + $3::bigint * interval '1 s', true FROM users WHERE name = $1 AND NOT disabled "
    "  RETURNING *), "
    OPENED,
    PG_WRITE};
/* Parameters: issuer, subject, what the issuer calls them, the client's address, whether a user may be made, and
 * linked, and the groups. */
static const struct pg_statement sign_in = {"identity_sign_in",
                                            "SELECT motley_sign_in($1, $2, $3, $4, $5, $6, $7::text[])", PG_WRITE};
/* Parameters: issuer, the new token's hash, seconds, the client's address, scopes, subject, whether it is a
 * session's. */
static const struct pg_statement open_identity = {
    "identity_open",
    "WITH t AS (INSERT INTO tokens (hash, user_id, scopes, note, expires_at, session) "
    "  SELECT $2, user_id, $5::integer, CASE WHEN $7::boolean THEN 'the page' ELSE 'motley login' END, now() + $3::bigint * interval '1 s', $7::boolean "
    "  FROM identities WHERE issuer = $1 AND subject = $6 RETURNING *), "
    OPENED,
    PG_WRITE};
static const struct pg_statement close_session = {
    "session_close",
    "WITH t AS (UPDATE tokens SET revoked_at = now() WHERE id = $1::bigint AND session RETURNING id), "
    "said AS ("
    AUDIT("$2", "'session.close'", "t.id::text", "NULL::json", "NULL::json", "t")
    "  ) "
    "SELECT id FROM t",
    PG_WRITE};
/* clang-format on */

int store_session_code_put(struct store *store, const struct principal *principal, const uint8_t code[32],
                           int64_t expires_us, store_done_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_bytes(&params, code, DIGEST_SIZE);
    pg_param_i64(&params, principal->token);
    pg_param_i64(&params, expires_us);
    return store_one_touched(store, &put_code, &params, "a session makes no sessions: use a token", done, arg,
                             err);
}

int store_session_open(struct store *store, const uint8_t shown[32], const uint8_t token[32],
                       unsigned seconds, const char *address, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_bytes(&params, shown, DIGEST_SIZE);
    pg_param_bytes(&params, token, DIGEST_SIZE);
    pg_param_i64(&params, seconds);
    pg_param_text(&params, address);
    return store_one_doc(store, &open_session, &params, "it is not valid: unknown, expired, used or revoked",
                         done, arg, err);
}

int store_session_open_user(struct store *store, const struct store_signed_in *who, const uint8_t token[32],
                            store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    char missing[200];
    pg_params_init(&params);
    pg_param_text(&params, who->user);
    pg_param_bytes(&params, token, DIGEST_SIZE);
    pg_param_i64(&params, who->seconds);
    pg_param_text(&params, who->address);
    pg_param_i64(&params, who->scopes);
    snprintf(missing, sizeof(missing),
             "there is no user %.80s here, or a disabled one: an administrator makes one (motley token make "
             "--user)",
             who->user);
    return store_one_doc(store, &open_user_session, &params, missing, done, arg, err);
}

int store_identity_sign_in(struct store *store, const struct store_signed_in *who, const uint8_t token[32],
                           store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params made, opened;
    pg_params_init(&made);
    pg_param_text(&made, who->issuer);
    pg_param_text(&made, who->subject);
    pg_param_text(&made, who->user);
    pg_param_text(&made, who->address);
    pg_param_bool(&made, who->may_make);
    pg_param_bool(&made, who->may_link);
    if (who->groups)
        pg_param_text_array(&made, who->groups, who->group_count);
    else
        pg_param_null(&made);
    pg_params_init(&opened);
    pg_param_text(&opened, who->issuer);
    pg_param_bytes(&opened, token, DIGEST_SIZE);
    pg_param_i64(&opened, who->seconds);
    pg_param_text(&opened, who->address);
    pg_param_i64(&opened, who->scopes);
    pg_param_text(&opened, who->subject);
    pg_param_bool(&opened, who->session);
    const struct pg_step steps[] = {{&sign_in, &made}, {&open_identity, &opened}};
    int rc = store_run_doc(store, steps, 2, STORE_ALONE, "the user is gone", done, arg, err);
    pg_params_fini(&made);
    pg_params_fini(&opened);
    return rc;
}

int store_session_close(struct store *store, const struct principal *principal, store_done_fn *done,
                        void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, principal->token);
    store_param_actor(&params, principal);
    return store_one_touched(store, &close_session, &params, "the token that you ask with is no session's",
                             done, arg, err);
}
