-- The statements of prune.c.

-- :request_ms is how long a request is kept after its deadline.
--# write prune_events(days integer, rows bigint, request_ms bigint) -> text
WITH e AS (
    DELETE FROM events
    WHERE id IN (SELECT id FROM events WHERE at < now() - :days::integer * interval '1 day' ORDER BY id LIMIT :rows)
    RETURNING 1
),
t AS (
    DELETE FROM traces
    WHERE ctid = ANY (
        ARRAY(
            SELECT t.ctid
            FROM traces t
            JOIN runs r ON r.id = t.run
            WHERE r.ended_at < now() - :days::integer * interval '1 day'
            LIMIT :rows
        )
    )
    RETURNING 1
),
w AS (DELETE FROM join_tokens WHERE expires_at < now() - interval '7 days' RETURNING 1),
q AS (
    DELETE FROM requests WHERE deadline_at < now() - :request_ms::bigint * interval '1 ms' RETURNING 1
),
u AS (
    DELETE FROM unknown_jobs WHERE reported_at < now() - :days::integer * interval '1 day' RETURNING 1
),
n AS (
    DELETE FROM notices
    WHERE id IN (SELECT id FROM notices WHERE at < now() - :days::integer * interval '1 day' ORDER BY at LIMIT :rows)
    RETURNING 1
),
a AS (
    DELETE FROM answers
    WHERE (asker, key) IN (SELECT asker, key FROM answers WHERE at < now() - interval '1 day' LIMIT :rows)
    RETURNING 1
)
SELECT set_config(
    'motley.pruned',
    greatest(
        (SELECT count(*) FROM e), (SELECT count(*) FROM t),
        (SELECT count(*) FROM w) + (SELECT count(*) FROM q) + (SELECT count(*) FROM u), (SELECT count(*) FROM a),
        (SELECT count(*) FROM n)
    )::text,
    true
);

-- A running job adds one metrics line per rank and step. :steps of them are kept.
--# write prune_ranks(steps bigint, rows bigint) -> text
WITH k AS (
    DELETE FROM metrics
    WHERE ctid = ANY (
        ARRAY(
            SELECT x.ctid
            FROM jobs j
            JOIN metrics x ON x.job = j.id AND x.kind = 'ranks' AND x.step < j.step - :steps::bigint
            WHERE j.state IN ('starting', 'running', 'stopping') AND j.step > :steps::bigint
            LIMIT :rows
        )
    )
    RETURNING 1
)
SELECT set_config(
    'motley.pruned', greatest(current_setting('motley.pruned')::bigint, (SELECT count(*) FROM k))::text, true
);

-- The 50 jobs that ended longest ago lose their metrics lines of single steps except the last, and all runs except
-- the newest and those that a checkpoint or an artifact comes from (motley_made decides by the run who may read
-- such a file). The next statement marks the jobs of which nothing more is to be removed.
--# fragment old_jobs
(
    SELECT id, run
    FROM jobs
    WHERE ended_at < now() - :days::integer * interval '1 day' AND swept_at IS NULL
    ORDER BY ended_at
    LIMIT 50
)

--# write prune_jobs(days integer, rows bigint) -> text, text
WITH old AS MATERIALIZED @old_jobs,
m AS (
    DELETE FROM metrics
    WHERE ctid = ANY (
        ARRAY(
            SELECT x.ctid
            FROM old
            JOIN metrics x ON x.job = old.id
            WHERE x.kind = 'ranks'
                OR (
                    x.kind = 'step'
                        AND x.step < (SELECT max(l.step) FROM metrics l WHERE l.job = old.id AND l.kind = 'step')
                )
            LIMIT :rows
        )
    )
    RETURNING 1
),
gone AS MATERIALIZED (
    SELECT r.id
    FROM old
    JOIN runs r ON r.job = old.id
    WHERE r.id <> old.run AND NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.run = r.id)
        AND NOT EXISTS (
            SELECT 1
            FROM artifacts f
            JOIN holds h ON h.what = f.sha256
            JOIN assignments n ON n.node = h.node AND n.run = r.id
            WHERE f.job = r.job
        ) AND NOT EXISTS (SELECT 1 FROM traces t WHERE t.run = r.id)
    LIMIT :rows
),
a AS (DELETE FROM assignments WHERE run IN (SELECT id FROM gone) RETURNING 1),
p AS (UPDATE trials SET plans = '{}' WHERE job IN (SELECT id FROM old) RETURNING 1),
r AS (DELETE FROM runs WHERE id IN (SELECT id FROM gone) RETURNING 1)
SELECT set_config(
    'motley.pruned',
    greatest(
        current_setting('motley.pruned')::bigint, (SELECT count(*) FROM m), (SELECT count(*) FROM r),
        (SELECT count(*) FROM a) / 64
    )::text,
    true
),
    set_config('motley.swept', ((SELECT count(*) FROM m) < :rows AND (SELECT count(*) FROM r) < :rows)::text, true);

--# write prune_jobs_mark(days integer, rows bigint) -> text
WITH up AS (
    UPDATE jobs j
    SET swept_at = now()
    FROM @old_jobs old
    WHERE j.id = old.id AND current_setting('motley.swept')::boolean
    RETURNING 1
)
SELECT set_config(
    'motley.pruned',
    CASE WHEN (SELECT count(*) FROM up) = 50 THEN :rows::bigint::text ELSE current_setting('motley.pruned') END, true
);

-- What jobs left longer ago than their groups keep it. Jobs at a time are few, as each may have many files.
--# write prune_files(rows bigint) -> text
WITH gone AS MATERIALIZED (SELECT motley_files_prune(least(:rows::bigint, 20)) AS count)
SELECT set_config(
    'motley.pruned',
    greatest(
        current_setting('motley.pruned')::bigint, CASE WHEN count = least(:rows::bigint, 20) THEN :rows::bigint END
    )::text,
    true
)
FROM gone;

-- A data set that a queued or active job needs is kept, however old it is.
--# write prune_datasets(days integer, rows bigint) -> text
WITH d AS (
    DELETE FROM datasets
    WHERE key IN (
        SELECT d.key
        FROM datasets d
        WHERE d.used_at < now() - :days::integer * interval '1 day'
            AND NOT EXISTS (
                SELECT 1
                FROM jobs j
                WHERE j.ended_at IS NULL AND (j.inputs ->> 'train' = d.key OR j.inputs ->> 'eval' = d.key)
            )
        ORDER BY d.used_at
        LIMIT :rows
    )
    RETURNING 1
)
SELECT set_config(
    'motley.pruned', greatest(current_setting('motley.pruned')::bigint, (SELECT count(*) FROM d))::text, true
);

-- Rows of the ledger become sums by day. An interval that crosses midnight (UTC) is divided among its days, so the
-- sums equal those of the rows to the microsecond.
--# write prune_ledger(days integer, rows bigint) -> text
WITH gone AS (
    DELETE FROM ledger
    WHERE assignment IN (
        SELECT assignment FROM ledger WHERE ends < now() - :days::integer * interval '1 day' ORDER BY ends LIMIT :rows
    )
    RETURNING *
),
parts AS (
    SELECT d.day::date AS day, g.user_id, g.account, g.device, g.speed * g.factor AS rate,
        (
            extract(
                epoch
                FROM least(g.ends, (d.day + interval '1 day') AT TIME ZONE 'UTC') - greatest(
                    g.begins, d.day AT TIME ZONE 'UTC'
                )
            ) * 1e6
        )::bigint AS us
    FROM gone g,
        generate_series(date_trunc('day', g.begins AT TIME ZONE 'UTC'), g.ends AT TIME ZONE 'UTC', interval '1 day')
            AS d(day)
),
put AS (
    INSERT INTO usage_days AS u (day, user_id, account, device, held_us, charged_s)
    SELECT day, user_id, account, device, sum(us), sum(us * rate / 1e6)
    FROM parts
    GROUP BY day, user_id, account, device
    ON CONFLICT (day, user_id, account, device) DO UPDATE
    SET held_us = u.held_us + excluded.held_us,
        charged_s = u.charged_s + excluded.charged_s
)
SELECT set_config(
    'motley.pruned', greatest(current_setting('motley.pruned')::bigint, (SELECT count(*) FROM gone))::text, true
);

-- Loads of minutes that are two days old are summed into hours. Hours are kept for :days.
--# write prune_load(days integer, rows bigint) -> text
WITH gone AS (
    DELETE FROM device_load
    WHERE ctid = ANY (
        ARRAY(
            SELECT ctid
            FROM device_load
            WHERE seconds = 60 AND begins < date_trunc('hour', now()) - interval '2 days'
            ORDER BY begins
            LIMIT :rows
        )
    )
    RETURNING *
),
old AS (
    DELETE FROM device_load
    WHERE ctid = ANY (
        ARRAY(
            SELECT ctid
            FROM device_load
            WHERE seconds = 3600 AND begins < now() - :days::integer * interval '1 day'
            LIMIT :rows
        )
    )
    RETURNING 1
),
put AS (
    INSERT INTO device_load AS l (device, begins, seconds, compute_s, wait_s, send_s, temperature_c)
    SELECT device, date_trunc('hour', begins, 'UTC'), 3600, sum(compute_s), sum(wait_s), sum(send_s),
        max(temperature_c)
    FROM gone
    GROUP BY 1, 2
    ON CONFLICT (device, begins, seconds) DO UPDATE
    SET compute_s = l.compute_s + excluded.compute_s,
        wait_s = l.wait_s + excluded.wait_s,
        send_s = l.send_s + excluded.send_s,
        temperature_c = greatest(l.temperature_c, excluded.temperature_c)
)
SELECT set_config(
    'motley.pruned',
    greatest(current_setting('motley.pruned')::bigint, (SELECT count(*) FROM gone), (SELECT count(*) FROM old))::text,
    true
);

--# write prune_usage(days integer, rows bigint) -> json
WITH u AS (
    DELETE FROM usage_days
    WHERE ctid = ANY (
        ARRAY(SELECT ctid FROM usage_days WHERE day < (now() - :days::integer * interval '1 day')::date LIMIT :rows)
    )
    RETURNING 1
),
r AS (
    DELETE FROM arrivals
    WHERE job IN (
        SELECT job
        FROM arrivals
        WHERE arrived_at < now() - :days::integer * interval '1 day'
        ORDER BY arrived_at
        LIMIT :rows
    )
    RETURNING 1
),
w AS (DELETE FROM sooner WHERE asked_at < now() - interval '1 day' RETURNING 1)
SELECT json_build_object(
    'more', greatest(current_setting('motley.pruned')::bigint, (SELECT count(*) FROM u), (SELECT count(*) FROM r)) >=
        :rows
);
