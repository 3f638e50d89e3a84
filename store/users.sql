-- The statements of users.c.

--# read token_find(hash bytea(32))
--#    -> user bigint, token bigint, name text, scopes integer, expires_us bigint, priority_max integer
SELECT coalesce(t.user_id, 0), t.id, coalesce(u.name, t.node), t.scopes,
    coalesce((extract(epoch FROM t.expires_at) * 1e6)::bigint, 0), u.priority_max
FROM tokens t
LEFT JOIN users u ON u.id = t.user_id
WHERE t.hash = :hash AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > now())
    AND NOT coalesce(u.disabled, false)
    AND (
        t.parent IS NULL
            OR EXISTS (
                SELECT 1
                FROM tokens p
                WHERE p.id = t.parent AND p.revoked_at IS NULL AND (p.expires_at IS NULL OR p.expires_at > now())
            )
    );

--# write user_put(name text) -> bigint
INSERT INTO users (name) VALUES (:name) ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING id;

--# write token_put(user text, hash bytea(32), scopes integer, note text, expires_us bigint, made_by bigint, actor)
--#    -> bigint
WITH u AS (
    INSERT INTO users (name) VALUES (:user) ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING id, name
),
t AS (
    INSERT INTO tokens (hash, user_id, scopes, note, expires_at, made_by, parent)
    SELECT :hash, id, :scopes, :note,
        CASE WHEN :expires_us::bigint > 0 THEN to_timestamp(:expires_us::bigint / 1e6) END,
        nullif(:made_by::bigint, 0), (SELECT parent FROM tokens WHERE id = :made_by::bigint)
    FROM u
    RETURNING id, scopes, note, expires_at
),
said AS (
    @audit(
        :actor, 'token.make', t.id::text, NULL::json,
        json_build_object('user', u.name, 'scopes', t.scopes, 'note', t.note, 'expires', motley_time(t.expires_at)),
        t, u
    )
)
SELECT id
FROM t;

--# write token_revoke(token bigint, viewer, actor) -> bigint
WITH t AS (
    UPDATE tokens
    SET revoked_at = coalesce(revoked_at, now())
    WHERE id = :token AND motley_owns(user_id, :viewer, :admin)
    RETURNING id, user_id, node
),
said AS (
    @audit(
        :actor, 'token.revoke', t.id::text,
        json_build_object('user', (SELECT name FROM users WHERE id = t.user_id), 'node', t.node), NULL::json, t
    )
)
SELECT id
FROM t;

--# read user_list -> json
SELECT json_build_object(
    'users', coalesce(
        json_agg(
            json_build_object(
                'id', u.id, 'name', u.name, 'created', motley_time(u.created_at), 'priority_max', u.priority_max,
                'disabled', u.disabled, 'account', (SELECT g.name FROM groups g WHERE g.id = u.account),
                @limits_of(u), 'groups',
                (
                    SELECT coalesce(json_agg(g.name ORDER BY g.name), '[]'::json)
                    FROM group_members m
                    JOIN groups g ON g.id = m.grp
                    WHERE m.user_id = u.id
                )
            ) ORDER BY u.id
        ), '[]'::json
    )
)
FROM users u;

--# write user_set(name text, changes jsonb, actor) -> jsonb
WITH d AS (SELECT :changes::jsonb AS d),
old AS (
    SELECT u.*, g.name AS account_name
    FROM users u
    LEFT JOIN groups g ON g.id = u.account
    WHERE u.name = :name
    FOR UPDATE OF u
),
u AS (
    UPDATE users
    SET priority_max = coalesce((d ->> 'priority_max')::integer, users.priority_max),
        disabled = coalesce((d ->> 'disabled')::boolean, users.disabled),
        account = CASE
            WHEN NOT d ? 'account' THEN users.account
            WHEN d ->> 'account' IS NULL THEN NULL
            ELSE motley_group('group', d ->> 'account', 0, true)
        END,
        @set_limits(users)
    FROM old, d
    WHERE users.id = old.id
    RETURNING users.name,
        jsonb_build_object(
            'priority_max', old.priority_max, 'disabled', old.disabled, 'account', old.account_name, @limits_of(old)
        ) AS was
),
forgotten AS (
    DELETE FROM identities WHERE user_id = (SELECT id FROM old) AND (SELECT d ? 'identity' FROM d)
),
said AS (
    @audit(
        :actor, 'user.set', u.name, (SELECT json_object_agg(k, u.was -> k) FROM jsonb_object_keys(d.d) k), d.d::json,
        u, d
    )
)
SELECT d || jsonb_build_object('name', name)
FROM u, d;

--# read token_list(viewer) -> json
SELECT json_build_object(
    'tokens', coalesce(
        json_agg(
            json_build_object(
                'id', t.id, 'user', u.name, 'scopes', t.scopes, 'note', t.note, 'created', motley_time(t.created_at),
                'expires', motley_time(t.expires_at), 'made_by', t.made_by, 'session', t.session
            ) ORDER BY t.id
        ), '[]'::json
    )
)
FROM tokens t
JOIN users u ON u.id = t.user_id
WHERE t.revoked_at IS NULL AND (NOT t.session OR t.expires_at > now()) AND motley_owns(t.user_id, :viewer, :admin);
