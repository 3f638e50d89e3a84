-- The statements of sign_in.c.

-- What all ways to open a session end with: t is its token.
--# fragment opened
u AS (SELECT t.*, users.name FROM t JOIN users ON users.id = t.user_id), said AS (
    @audit(
        json_build_object('who', u.name, 'user_id', u.user_id, 'token', u.made_by, 'address', nullif(:address, '')),
        CASE WHEN u.session THEN 'session.open' ELSE 'token.sign-in' END, u.id::text, NULL::json,
        json_build_object('expires', motley_time(u.expires_at)), u
    )
)
SELECT json_build_object(
    'user', name, 'scopes', scopes, 'expires', motley_time(expires_at),
    'seconds', floor(extract(epoch FROM expires_at - now()))::bigint
)
FROM u

-- :token is the asker's, :code the hash of the code.
--# write session_code_put(code bytea(32), token bigint, expires_us bigint) -> boolean
WITH codes AS (DELETE FROM session_codes WHERE expires_at < now() - interval '1 day'),
sessions AS (DELETE FROM tokens WHERE session AND expires_at < now() - interval '1 day')
INSERT INTO session_codes (hash, token, expires_at)
SELECT :code, id, to_timestamp(:expires_us::bigint / 1e6)
FROM tokens
WHERE id = :token::bigint AND user_id IS NOT NULL AND NOT session
RETURNING true;

-- :shown is the hash of the code or token that is shown, :token that of the new token.
--# write session_open(shown bytea(32), token bytea(32), seconds bigint, address text) -> json
WITH code AS (
    UPDATE session_codes
    SET used_at = now()
    WHERE hash = :shown AND used_at IS NULL AND expires_at > now()
    RETURNING token
),
shown AS (
    SELECT t.*
    FROM tokens t
    LEFT JOIN tokens p ON p.id = t.parent
    WHERE (t.hash = :shown OR t.id = (SELECT token FROM code)) AND t.user_id IS NOT NULL AND NOT t.session
        AND t.revoked_at IS NULL AND p.revoked_at IS NULL AND least(t.expires_at, p.expires_at, 'infinity') > now()
),
t AS (
    INSERT INTO tokens (hash, user_id, scopes, note, expires_at, made_by, parent, session)
    SELECT :token, user_id, scopes, 'the page', least(expires_at, now() + :seconds::bigint * interval '1 s'), id,
        coalesce(parent, id), true
    FROM shown
    RETURNING *
),
@opened;

-- Parameters: the user's name, the new token's hash, seconds, the client's address, scopes.
--# write session_open_user(name text, token bytea(32), seconds bigint, address text, scopes integer) -> json
WITH t AS (
    INSERT INTO tokens (hash, user_id, scopes, note, expires_at, session)
    SELECT :token, id, :scopes::integer, 'the page', now() + :seconds::bigint * interval '1 s', true
    FROM users
    WHERE name = :name AND NOT disabled
    RETURNING *
),
@opened;

-- Parameters: issuer, subject, what the issuer calls them, the client's address, whether a user may be made, and
-- linked, and the groups.
--# write identity_sign_in(issuer text, subject text, name text, address text, may_make boolean, may_link boolean,
--#    groups text[]?) -> bigint
SELECT motley_sign_in(:issuer, :subject, :name, :address, :may_make, :may_link, :groups::text[]);

-- Parameters: issuer, the new token's hash, seconds, the client's address, scopes, subject, whether it is a
-- session's.
--# write identity_open(issuer text, token bytea(32), seconds bigint, address text, scopes integer, subject text,
--#    session boolean) -> json
WITH t AS (
    INSERT INTO tokens (hash, user_id, scopes, note, expires_at, session)
    SELECT :token, user_id, :scopes::integer, CASE WHEN :session::boolean THEN 'the page' ELSE 'motley login' END,
        now() + :seconds::bigint * interval '1 s', :session::boolean
    FROM identities
    WHERE issuer = :issuer AND subject = :subject
    RETURNING *
),
@opened;

--# write session_close(token bigint, actor) -> bigint
WITH t AS (
    UPDATE tokens SET revoked_at = now() WHERE id = :token::bigint AND session RETURNING id
),
said AS (@audit(:actor, 'session.close', t.id::text, NULL::json, NULL::json, t))
SELECT id
FROM t;
