-- The statements of usage.c.

-- :by is "user", "group" or "device".
--# read usage_get(from_us bigint, to_us bigint, by text) -> json
WITH span AS (
    SELECT to_timestamp(:from_us::bigint / 1e6) AS a, to_timestamp(:to_us::bigint / 1e6) AS b
),
parts AS (
    SELECT CASE :by::text WHEN 'user' THEN u.name WHEN 'group' THEN nullif(l.account, '') ELSE l.device END AS name,
        l.job, extract(epoch FROM least(coalesce(l.ends, now()), b) - greatest(l.begins, a))::float8 AS held,
        l.speed * l.factor AS rate
    FROM span, ledger l
    JOIN users u ON u.id = l.user_id
    WHERE l.begins < b AND coalesce(l.ends, now()) > a
    UNION ALL
    SELECT CASE :by WHEN 'user' THEN u.name WHEN 'group' THEN nullif(d.account, '') ELSE d.device END, NULL,
        d.held_us / 1e6, CASE WHEN d.held_us > 0 THEN d.charged_s * 1e6 / d.held_us ELSE 0 END
    FROM span, usage_days d
    JOIN users u ON u.id = d.user_id
    WHERE d.day >= (a AT TIME ZONE 'UTC')::date AND d.day < b AT TIME ZONE 'UTC'
),
sums AS (
    SELECT name, sum(held) AS held, sum(held * rate) AS charged, count(DISTINCT job) AS jobs FROM parts GROUP BY name
)
SELECT json_build_object(
    'usage', coalesce(
        json_agg(
            json_build_object('name', name, 'held_s', held, 'charged_s', charged, 'jobs', jobs)
            ORDER BY charged DESC, name
        ), '[]'::json
    )
)
FROM sums;

-- A run's predicted end is now plus its remaining steps times the planned seconds per step, times the factor by
-- which its slowest rank differs from the plan; if its time limit is used up before, that moment; and of a run
-- that is told to stop, the end of a step. :after is a number of jobs to skip.
--# read queue_page(viewer, after bigint, most bigint) -> json
WITH found AS MATERIALIZED (
    SELECT j.id, j.name, j.owner, j.visibility, j.grp, j.account, j.service, j.state, j.priority, q.place,
        coalesce(r.code, j.wait_code) AS wait_code,
        CASE WHEN r.id IS NULL THEN j.wait_subject ELSE r.subject END AS wait_subject, j.starts_at, j.starts_from,
        j.starts_to, j.eligible_at, j.started_at, j.step, j.steps, j.run, j.time_limit_ms, j.used_ms, j.limit_from_ms,
        j.array_of, j.array_index, j.array_size, j.array_made,
        row_number() OVER (ORDER BY j.state = 'queued', q.place NULLS LAST, j.eligible_at, j.id) AS n
    FROM jobs j
    LEFT JOIN (SELECT u.* FROM queue_places p, unnest(p.jobs, p.places, p.reasons) AS u(job, place, reason)) q
        ON q.job = j.id AND j.state = 'queued'
    LEFT JOIN queue_reasons r ON r.id = q.reason
    WHERE j.state IN ('starting', 'running', 'stopping', 'queued')
    ORDER BY n OFFSET :after
    LIMIT :most::bigint + 1
),
shown AS (
    SELECT f.n,
        json_build_object(
            'id', f.id, 'name', CASE WHEN @visible(f, :viewer, :admin) THEN f.name END, 'owner', u.name,
            'account', (SELECT name FROM groups WHERE id = f.account),
            'service', (ARRAY['urgent', 'normal', 'scavenger'])[f.service + 1], 'state', f.state,
            'priority', f.priority, 'place', f.place, 'wait', coalesce(p.code, f.wait_code),
            'waits_for', CASE WHEN p.code IS NULL THEN f.wait_subject ELSE p.subject END, 'array_of', f.array_of,
            'index', f.array_index, 'elements', nullif(f.array_size, 0),
            'made', CASE WHEN f.array_size > 0 THEN f.array_made END, 'devices', coalesce(r.devices, '[]'::json),
            'since', motley_time(CASE WHEN f.state = 'queued' THEN f.eligible_at ELSE r.created_at END),
            'starts', motley_time(f.starts_at),
            'starts_earliest', motley_time(
                CASE WHEN f.starts_from IS NOT NULL THEN greatest(f.starts_from, now()) END
            ),
            'starts_latest', motley_time(CASE WHEN f.starts_to IS NOT NULL THEN greatest(f.starts_to, now()) END),
            'ends', motley_time(least(e.by_steps, e.by_limit)),
            'ends_by', CASE
                WHEN e.by_limit < e.by_steps OR e.by_steps IS NULL AND e.by_limit IS NOT NULL THEN 'time_limit'
            END
        ) AS doc
    FROM found f
    JOIN users u ON u.id = f.owner
    LEFT JOIN LATERAL motley_place(f.id) p ON f.state = 'queued' AND f.place IS NULL
    LEFT JOIN LATERAL (
        SELECT r.created_at, r.stopping_at, @run_limit_at(f, r) AS limit_at, @run_step_s AS step_s,
            (SELECT json_agg(a.device ORDER BY a.rank) FROM assignments a WHERE a.run = r.id AND @rank_lives(a)) AS
                devices
        FROM runs r
        WHERE r.id = f.run AND f.state <> 'queued'
    ) r ON true
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN f.state = 'stopping'
                THEN greatest(now(), coalesce(r.stopping_at, now()) + r.step_s * interval '1 second')
            ELSE now() + greatest(0, f.steps - f.step) * r.step_s * interval '1 second'
        END AS by_steps,
            CASE WHEN f.state <> 'stopping' AND r.limit_at IS NOT NULL THEN greatest(r.limit_at, now()) END AS
                by_limit
    ) e
)
SELECT json_build_object(
    'jobs', (
        SELECT coalesce(json_object_agg(state, n), '{}')
        FROM (SELECT state, sum(n) AS n FROM job_counts GROUP BY state HAVING sum(n) > 0) c
    ),
    'queue', coalesce(json_agg(doc ORDER BY n) FILTER (WHERE n <= :after + :most), '[]'::json),
    'next', CASE WHEN max(n) > :after + :most THEN :after + :most END, 'scheduler', @scheduler_state
)
FROM shown;

-- The level fair share of a node of the tree is the share that it is due among its siblings, divided by the share
-- that it used. Leaves are ranked by the list of these values on the path from the root.
--# read shares_get(half_life_s float8) -> json
WITH RECURSIVE h AS (SELECT :half_life_s::float8 AS h),
used AS (
    SELECT l.user_id, coalesce(g.id, 0) AS account,
        sum(
            l.speed * l.factor * h.h / ln(2::float8) * (
                exp(-ln(2::float8) * greatest(0, extract(epoch FROM now() - coalesce(l.ends, now()))::float8) / h.h) -
                    exp(-ln(2::float8) * greatest(0, extract(epoch FROM now() - l.begins)::float8) / h.h)
            )
        ) AS d
    FROM h, ledger l
    LEFT JOIN groups g ON g.name = l.account
    WHERE l.ends IS NULL OR l.ends > now() - 10 * h.h * interval '1 second'
    GROUP BY l.user_id, g.id
),
leaf AS (SELECT user_id, account FROM used UNION SELECT user_id, grp FROM group_members),
part AS (
    SELECT coalesce(parent, 0) AS parent, id AS grp, NULL::bigint AS user_id, weight,
        coalesce((SELECT sum(d) FROM used WHERE account IN (SELECT motley_below(groups.id))), 0) AS d
    FROM groups
    UNION ALL
    SELECT leaf.account, NULL, leaf.user_id, 1, coalesce(used.d, 0)
    FROM leaf
    LEFT JOIN used USING (user_id, account)
),
level AS (
    SELECT parent, grp, user_id, d, weight / sum(weight) OVER (PARTITION BY parent) AS s,
        CASE
            WHEN d > 0 THEN weight / sum(weight) OVER (PARTITION BY parent) / (d / sum(d) OVER (PARTITION BY parent))
            ELSE 'infinity'::float8
        END AS fair
    FROM part
),
path AS (
    SELECT parent, grp, user_id, d, s AS due, ARRAY[fair] AS fairs
    FROM level
    WHERE parent = 0
    UNION ALL
    SELECT l.parent, l.grp, l.user_id, l.d, p.due * l.s, p.fairs || l.fair
    FROM path p
    JOIN level l ON l.parent = p.grp
),
ranked AS (
    SELECT u.name AS person, g.name AS grp, due, d, d / nullif(sum(d) OVER (), 0) AS part,
        rank() OVER (ORDER BY fairs DESC) AS place
    FROM path p
    JOIN users u ON u.id = p.user_id
    LEFT JOIN groups g ON g.id = p.parent
)
SELECT json_build_object(
    'half_life_s', :half_life_s,
    'shares', coalesce(
        json_agg(
            json_build_object(
                'user', person, 'group', grp, 'due', due, 'used', coalesce(part, 0), 'used_s', d, 'rank', place
            ) ORDER BY place, person, grp
        ), '[]'::json
    )
)
FROM ranked;
