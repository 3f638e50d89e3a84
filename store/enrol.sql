-- The statements of enrol.c.

--# write join_token_put(hash bytea(32), expires_us bigint, maker bigint, node text, replace boolean, uses integer,
--#    actor)
WITH j AS (
    INSERT INTO join_tokens (hash, expires_at, user_id, node, replace, uses)
    VALUES (:hash, to_timestamp(:expires_us::bigint / 1e6), nullif(:maker::bigint, 0), :node, :replace, :uses)
    RETURNING *
)
@audit(
    :actor, 'join-token.make', left(encode(j.hash, 'hex'), 12), NULL::json,
    json_build_object('expires', motley_time(j.expires_at), 'node', j.node, 'replace', j.replace, 'uses', j.uses), j
);

--# write join_tokens_revoke(node text, actor) -> json
WITH gone AS (
    UPDATE join_tokens
    SET expires_at = now()
    WHERE used_at IS NULL AND expires_at > now() AND (:node::text IS NULL OR node = :node)
    RETURNING hash, node, uses
),
told AS (
    @audit(
        :actor, 'join-token.revoke', left(encode(gone.hash, 'hex'), 12),
        json_build_object('node', gone.node, 'uses', gone.uses), NULL::json, gone
    )
)
SELECT json_build_object('revoked', count(*))
FROM gone;

--# fragment good_token
t.hash = :hash AND t.used_at IS NULL AND t.expires_at > now()
    AND (t.node IS NULL OR t.node = :node OR (right(t.node, 1) = '*' AND starts_with(:node, left(t.node, -1))))
    AND NOT EXISTS (SELECT 1 FROM users u WHERE u.id = t.user_id AND u.disabled)

-- Answers whether the token is good, the generation that enrolment would give, and whether the token cannot take
-- the name, whatever key the node has (taken).
--# read join_check(hash bytea(32), node text) -> good boolean, generation bigint, taken boolean
SELECT t.hash IS NOT NULL, coalesce(n.generation, 0) + 1,
    (n.last_seen IS NOT NULL OR n.removed_at IS NOT NULL) AND NOT t.replace AND (t.node IS NULL OR n.key_hash IS NULL)
FROM (SELECT 1) AS one
LEFT JOIN join_tokens t ON @good_token
LEFT JOIN nodes n ON n.name = :node;

-- Locks the token's row first, so that another caller with the same token waits, and then the name's row. Without
-- a generation it did not enrol the node. last_seen is not cleared, so the name stays taken.
--# write node_enrol(hash bytea(32), node text, address text, agent_hash bytea(32), scopes integer,
--#    key_hash bytea(32), generation bigint, certified_until_s bigint, redis_hash bytea(32), seal_key bytea(32))
--#    -> good boolean, generation bigint, made bigint
WITH good AS (
    SELECT t.hash, t.user_id, t.node, t.replace FROM join_tokens t WHERE @good_token FOR UPDATE
),
made AS (
    INSERT INTO nodes AS n (name, address, key_hash, certified_until, redis_hash, seal_key)
    SELECT :node, :address, :key_hash, to_timestamp(:certified_until_s::bigint), :redis_hash, :seal_key
    FROM good
    ON CONFLICT (name) DO UPDATE
    SET address = excluded.address,
        generation = n.generation + 1,
        key_hash = excluded.key_hash,
        certified_until = excluded.certified_until,
        removed_at = NULL,
        redis_hash = excluded.redis_hash,
        seal_key = excluded.seal_key,
        refused = 0,
        mark = NULL,
        marked_at = NULL,
        barred = false,
        boot = NULL,
        state = 'joining',
        enrolled_at = now()
    WHERE n.generation + 1 = :generation
        AND (
            (n.last_seen IS NULL AND n.removed_at IS NULL)
                OR (SELECT replace OR (node IS NOT NULL AND n.key_hash = :key_hash) FROM good)
        )
    RETURNING n.name, n.generation
),
used AS (
    UPDATE join_tokens j
    SET uses = j.uses - 1, used_by = :node, used_at = CASE WHEN j.uses <= 1 THEN now() END
    FROM good, made
    WHERE j.hash = good.hash
    RETURNING 1
),
old AS (
    UPDATE tokens SET revoked_at = now() FROM made WHERE tokens.node = made.name AND revoked_at IS NULL RETURNING 1
),
token AS (
    INSERT INTO tokens (hash, node, scopes) SELECT :agent_hash, name, :scopes::integer FROM made RETURNING 1
),
said AS (
    INSERT INTO audit (who, user_id, what, object, after)
    SELECT 'node:' || made.name, g.user_id, 'node.enrol', made.name, json_build_object('generation', made.generation)
    FROM made, good g
)
SELECT EXISTS (SELECT 1 FROM good), (SELECT generation FROM made),
    -- wakes the scheduler, which then reads the nodes again
    (SELECT count(pg_notify('motley_jobs', '')) FROM made);

--# fragment may_renew
FROM nodes
WHERE name = :node AND removed_at IS NULL AND coalesce(key_hash, :key_hash) = :key_hash
    AND coalesce(certified_until > now(), true)

--# read renew_check(node text, key_hash bytea(32)) -> bigint
SELECT generation @may_renew;

--# write node_renew(node text, key_hash bytea(32), generation bigint, certified_until_s bigint) -> bigint
UPDATE nodes
SET key_hash = :key_hash, certified_until = to_timestamp(:certified_until_s::bigint)
WHERE name = (SELECT name @may_renew) AND generation = :generation
RETURNING generation;

--# write node_remove(node text, actor) -> json, void
WITH gone AS (
    UPDATE nodes
    SET removed_at = now(),
        generation = generation + 1,
        key_hash = NULL,
        certified_until = NULL,
        redis_hash = NULL,
        seal_key = NULL,
        boot = NULL,
        state = 'unreachable'
    WHERE name = :node AND removed_at IS NULL
    RETURNING name, generation
),
old AS (
    UPDATE tokens SET revoked_at = now() FROM gone WHERE tokens.node = gone.name AND revoked_at IS NULL RETURNING 1
),
unspent AS (
    DELETE FROM join_tokens j USING gone WHERE j.node = gone.name AND j.used_at IS NULL RETURNING 1
),
unsent AS (DELETE FROM outbox o USING gone WHERE o.node = gone.name RETURNING 1),
unasked AS (
    DELETE FROM requests r
    USING gone
    WHERE r.device = gone.name OR starts_with(r.device, gone.name || '/')
    RETURNING 1
),
told AS (
    @audit(:actor, 'node.remove', gone.name, NULL::json, json_build_object('generation', gone.generation), gone)
)
SELECT json_build_object('name', name, 'generation', generation), pg_notify('motley_jobs', '')
FROM gone;
