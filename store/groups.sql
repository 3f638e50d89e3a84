-- The statements of groups.c.

--# fragment members_json
(
    SELECT coalesce(json_agg(u.name ORDER BY u.name), '[]'::json)
    FROM group_members m
    JOIN users u ON u.id = m.user_id
    WHERE m.grp = g.id
)

--# read group_list(viewer) -> json
SELECT json_build_object(
    'groups', coalesce(
        json_agg(
            json_build_object(
                'name', g.name, 'created', motley_time(g.created_at), 'members', @members_json, 'parent',
                (SELECT p.name FROM groups p WHERE p.id = g.parent), 'weight', g.weight, 'time_limit_s',
                g.time_limit_s, 'slice_s', g.slice_s, 'lease_limit_s', g.lease_limit_s, 'retention_s', g.retention_s,
                @limits_of(g)
            ) ORDER BY g.name COLLATE "C"
        ), '[]'::json
    )
)
FROM groups g
WHERE :admin::boolean OR g.id = ANY (motley_groups(:viewer::bigint));

-- A first statement makes the group, so that the second one (set_group) finds it. set_group compares the number of
-- users found with the number of names given, and so detects a name that is not a user.
--# write group_make(name text)
INSERT INTO groups (name) VALUES (:name) ON CONFLICT (name) DO NOTHING;

--# write group_set(name text, members text[], actor) -> json, void
WITH g AS (SELECT id, name FROM groups WHERE name = :name FOR UPDATE),
wanted AS (SELECT DISTINCT u.id, u.name FROM users u WHERE u.name = ANY (:members::text[])),
was AS (SELECT @members_json AS names FROM g),
out AS (
    DELETE FROM group_members m
    USING g
    WHERE m.grp = g.id AND m.user_id NOT IN (SELECT id FROM wanted)
    RETURNING m.user_id
),
left_it AS (
    UPDATE users u SET account = NULL FROM g, out WHERE u.id = out.user_id AND u.account = g.id
),
new AS (
    INSERT INTO group_members (grp, user_id) SELECT g.id, wanted.id FROM g, wanted ON CONFLICT DO NOTHING
),
said AS (
    @audit(
        :actor, 'group.put', g.name, json_build_object('members', was.names),
        json_build_object('members', to_json(:members::text[])), g, was
    )
)
SELECT json_build_object('name', g.name, 'members', to_json(:members::text[])),
    motley_expect(
        (SELECT count(*) FROM wanted), (SELECT count(DISTINCT n) FROM unnest(:members::text[]) n),
        'members of a group'
    )
FROM g;

--# write group_change(name text, changes jsonb, actor) -> jsonb
WITH d AS (SELECT :changes::jsonb AS d),
old AS (
    SELECT g.*, p.name AS parent_name
    FROM groups g
    LEFT JOIN groups p ON p.id = g.parent
    WHERE g.name = :name
    FOR UPDATE OF g
),
u AS (
    UPDATE groups
    SET weight = coalesce((d ->> 'weight')::float8, groups.weight),
        time_limit_s = coalesce((d ->> 'time_limit_s')::float8, groups.time_limit_s),
        slice_s = coalesce((d ->> 'slice_s')::float8, groups.slice_s),
        lease_limit_s = coalesce((d ->> 'lease_limit_s')::float8, groups.lease_limit_s),
        retention_s = coalesce((d ->> 'retention_s')::float8, groups.retention_s),
        parent = CASE
            WHEN NOT d ? 'parent' THEN groups.parent
            WHEN d ->> 'parent' IS NULL THEN NULL
            ELSE motley_group('group', d ->> 'parent', 0, true)
        END,
        @set_limits(groups)
    FROM old, d
    WHERE groups.id = old.id
    RETURNING groups.name,
        jsonb_build_object(
            'weight', old.weight, 'time_limit_s', old.time_limit_s, 'slice_s', old.slice_s, 'lease_limit_s',
            old.lease_limit_s, 'retention_s', old.retention_s, 'parent', old.parent_name, @limits_of(old)
        ) AS was
),
said AS (
    @audit(
        :actor, 'group.set', u.name, (SELECT json_object_agg(k, u.was -> k) FROM jsonb_object_keys(d.d) k), d.d::json,
        u, d
    )
)
SELECT d || jsonb_build_object('name', name)
FROM u, d;

-- The group's jobs, all of which have ended, then belong to the group's parent. The ledger keeps the name of the
-- removed group.
--# write group_remove(name text, actor) -> text
WITH g AS (
    SELECT id, name, parent, @members_json AS members FROM groups g WHERE name = :name FOR UPDATE
),
kept AS MATERIALIZED (
    SELECT motley_expect(
        (SELECT count(*) FROM groups s, g WHERE s.parent = g.id) + (
            SELECT count(*)
            FROM jobs j, g
            WHERE j.account = g.id AND j.state NOT IN ('succeeded', 'failed', 'cancelled')
        ),
        0, 'groups below it or its jobs'
    ) AS none
),
ended AS (
    UPDATE jobs j SET account = coalesce(g.parent, 0) FROM g, kept WHERE j.account = g.id AND kept.none IS NOT NULL
),
out AS (
    DELETE FROM groups USING g, kept WHERE groups.id = g.id AND kept.none IS NOT NULL RETURNING groups.name
),
said AS (
    @audit(:actor, 'group.remove', g.name, json_build_object('members', g.members), NULL::json, g)
)
SELECT name
FROM out;

--# read audit_page(before bigint, most bigint) -> json
SELECT json_build_object(
    'audit', coalesce(json_agg(t.doc ORDER BY t.id DESC), '[]'::json),
    'next', CASE WHEN count(*) = :most THEN min(t.id) END
)
FROM (
    SELECT id,
        json_build_object(
            'id', id, 'at', motley_time(at), 'who', who, 'user_id', user_id, 'token', token, 'address', address,
            'what', what, 'object', object, 'before', before, 'after', after
        ) AS doc
    FROM audit
    WHERE id < :before
    ORDER BY id DESC
    LIMIT :most
) t;
