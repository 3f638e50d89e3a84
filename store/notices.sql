-- The statements of notices.c.

-- Of rows that two apis choose at once, each is updated by one of them: the other sees the new `taken_until`.
--# write notice_claim(seconds float8, most bigint) -> json
WITH due AS MATERIALIZED (
    SELECT DISTINCT ON (n.owner) n.id, n.due_at
    FROM notices n
    WHERE n.state = 'waiting' AND n.due_at <= now()
        AND NOT EXISTS (
            SELECT 1 FROM notices t WHERE t.owner = n.owner AND t.state = 'waiting' AND t.taken_until >= now()
        )
    ORDER BY n.owner, n.due_at, n.id
),
up AS (
    UPDATE notices n
    SET taken_until = now() + make_interval(secs => :seconds), attempts = n.attempts + 1
    FROM (SELECT id FROM due ORDER BY due_at, id LIMIT :most) d
    WHERE n.id = d.id AND n.state = 'waiting' AND coalesce(n.taken_until < now(), true)
    RETURNING n.*
)
SELECT coalesce(
    json_agg(
        json_build_object(
            'id', up.id, 'url', up.url, 'body', up.body, 'key', u.notify_key,
            'mailed', CASE
                WHEN starts_with(up.url, 'mailto:')
                    THEN (
                        SELECT count(*)
                        FROM notices m
                        WHERE m.owner = up.owner AND m.state = 'delivered' AND starts_with(m.url, 'mailto:')
                            AND m.ended_at > now() - interval '1 day'
                    )
                ELSE 0
            END
        ) ORDER BY up.id
    ), '[]'::json
)
FROM up
JOIN users u ON u.id = up.owner;

-- :failed says whether it may be tried again, and :retry_s is the least time until then.
--# write notice_end(notice bigint, delivered boolean, failed boolean, retry_s float8, why text)
UPDATE notices
SET taken_until = NULL,
    why = :why,
    state = CASE
        WHEN :delivered::boolean THEN 'delivered'
        WHEN :failed::boolean AND attempts < 8 THEN 'waiting'
        ELSE 'given up'
    END,
    ended_at = CASE WHEN :failed::boolean AND attempts < 8 THEN NULL ELSE now() END,
    due_at = now() + least(21600, greatest(:retry_s::float8, 30 * 4.0 ^ (attempts - 1))) * interval '1 second'
WHERE id = :notice AND state = 'waiting';

--# fragment notice_json
json_build_object(
    'id', n.id, 'user', u.name, 'job', n.job, 'event', n.event, 'state', n.state, 'url', n.url,
    'attempts', n.attempts, 'at', motley_time(n.at),
    'next', CASE WHEN n.state = 'waiting' THEN motley_time(n.due_at) END, 'ended', motley_time(n.ended_at),
    'why', n.why
)

--# read notices_list(viewer) -> json
SELECT json_build_object(
    'url', (SELECT notify FROM users WHERE id = :viewer), 'notices', coalesce(json_agg(doc ORDER BY id), '[]'::json)
)
FROM (
    SELECT n.id, @notice_json AS doc
    FROM notices n
    JOIN users u ON u.id = n.owner
    WHERE motley_owns(n.owner, :viewer, :admin)
    ORDER BY n.id DESC
    LIMIT 1000
) x;

--# write notify_set(user bigint, changes jsonb, actor) -> json
WITH d AS (SELECT :changes::jsonb AS d),
u AS (
    UPDATE users
    SET notify = CASE WHEN d ? 'url' THEN d ->> 'url' ELSE users.notify END,
        notify_key = CASE
            WHEN d ->> 'key' = 'new' THEN replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '')
            ELSE users.notify_key
        END
    FROM d
    WHERE users.id = :user
    RETURNING users.name, users.notify, users.notify_key
),
said AS (@audit(:actor, 'notify.set', u.name, NULL::json, d.d::json, u, d))
SELECT json_build_object('url', notify, 'key', notify_key)
FROM u;
