-- The statements of records.c.

-- The classes and sets of devices that the rows of `c` name, with their ids; missing ones are inserted.
--# fragment classes(speeds)
k AS (
    INSERT INTO classes (digest, speeds)
    SELECT DISTINCT ON (class) decode(class, 'hex'), {speeds}
    FROM c
    ON CONFLICT (digest) DO UPDATE
    SET speeds = CASE WHEN excluded.speeds::text = '{}' THEN classes.speeds ELSE excluded.speeds END
    RETURNING id, encode(digest, 'hex') AS class
),
s AS (
    INSERT INTO device_sets (devices)
    SELECT DISTINCT devices
    FROM c
    WHERE devices IS NOT NULL
    ON CONFLICT (devices) DO UPDATE SET devices = excluded.devices
    RETURNING id, devices
)

-- Of the predictions of a job's start, one is kept, each with equal probability (reservoir sampling). Beside it
-- stand the devices and the forecast of the job's last run.
--# fragment said(column)
{column} = CASE
    WHEN arrivals.started_at IS NULL AND excluded.said_at IS NOT NULL
        AND (
            arrivals.said_at IS NULL
                OR (hashint8(arrivals.job * 1000003 + arrivals.said_count) & 2147483647) < 2147483647 /
                    (arrivals.said_count + 1)
        ) THEN excluded.{column}
    ELSE arrivals.{column}
END,

--# write records_arrivals(rows json)
WITH c AS MATERIALIZED (
    SELECT *
    FROM @records(
        job bigint, class text, speeds json, devices text[], step_s float8, starts_us bigint, from_us bigint,
        to_us bigint, place integer
    )
),
@classes(coalesce(speeds, '{}'))
INSERT INTO arrivals (
    job, arrived_at, said_at, starts_at, starts_from, starts_to, said_place, said_count, started_at, class, devices,
    step_s
)
SELECT DISTINCT ON (j.id) j.id, least(now(), greatest(j.eligible_at, j.begin_at)),
    CASE WHEN c.starts_us > 0 THEN now() END, CASE WHEN c.starts_us > 0 THEN to_timestamp(c.starts_us / 1e6) END,
    to_timestamp(c.from_us / 1e6), to_timestamp(c.to_us / 1e6), c.place, CASE WHEN c.starts_us > 0 THEN 1 ELSE 0 END,
    CASE WHEN s.id IS NOT NULL THEN now() END, k.id, s.id, c.step_s
FROM c
JOIN jobs j ON j.id = c.job
JOIN k USING (class)
LEFT JOIN s USING (devices)
ORDER BY j.id, s.id
ON CONFLICT (job) DO UPDATE
SET @said(said_at) @said(starts_at) @said(starts_from) @said(starts_to) @said(said_place)
    said_count = arrivals.said_count + excluded.said_count,
    started_at = coalesce(arrivals.started_at, excluded.started_at),
    devices = coalesce(excluded.devices, arrivals.devices),
    step_s = coalesce(excluded.step_s, arrivals.step_s);

--# write records_forecasts(rows json)
WITH c AS MATERIALIZED (SELECT * FROM @records(class text, devices text[], step_s float8)),
@classes('{}'::json)
INSERT INTO forecasts (class, devices, step_s)
SELECT DISTINCT ON (k.id, s.id) k.id, s.id, c.step_s
FROM c
JOIN k USING (class)
JOIN s USING (devices)
ORDER BY k.id, s.id, c.step_s
ON CONFLICT (class, devices) DO UPDATE SET step_s = excluded.step_s;

-- Adds the steps and seconds of the runs that end to the forecasts. A forecast belongs to a class of jobs and a
-- set of devices.
--# write records_ends(rows json)
WITH c AS MATERIALIZED (
    SELECT r.job, r.start_step, extract(epoch FROM now() - r.started_at) AS seconds
    FROM @records(run bigint, state text)
    JOIN runs r ON r.id = c.run
    WHERE c.state NOT IN ('starting', 'running', 'stopping') AND r.started_at IS NOT NULL
),
ran AS (UPDATE arrivals a SET ran_s = a.ran_s + c.seconds FROM c WHERE a.job = c.job RETURNING 1)
UPDATE forecasts f
SET runs = f.runs + x.runs, steps = f.steps + x.steps, seconds = f.seconds + x.seconds
FROM (
    SELECT a.class, a.devices, count(*) AS runs, sum(j.step - c.start_step) AS steps, sum(c.seconds) AS seconds
    FROM c
    JOIN jobs j ON j.id = c.job
    JOIN arrivals a ON a.job = c.job
    WHERE j.step > c.start_step
    GROUP BY 1, 2
) x
WHERE f.class = x.class AND f.devices = x.devices;

--# write records_sharing(rows json)
INSERT INTO sharing (document)
SELECT document
FROM @records(document json)
ON CONFLICT (one) DO UPDATE SET document = excluded.document;

-- Stores the answer to a question, which is then no longer open.
--# write records_sooner(rows json)
UPDATE sooner s
SET changes = c.changes, answered_at = now()
FROM @records(job bigint, changes json)
WHERE s.job = c.job;

-- Opens a question if it is not open, and opens it again when its answer is five seconds old.
--# write sooner_ask(job bigint) -> json, bigint
WITH asked AS (
    INSERT INTO sooner AS s (job)
    SELECT id
    FROM jobs
    WHERE id = :job AND state = 'queued' AND EXISTS (SELECT FROM motley_place(:job) p WHERE p.place IS NOT NULL)
    ON CONFLICT (job) DO UPDATE SET asked_at = now(), answered_at = NULL
    WHERE s.answered_at < now() - interval '5 s'
    RETURNING 1
),
old AS (
    SELECT starts_from <= started_at + interval '1 s' AND started_at <= starts_to + interval '1 s' AS held
    FROM arrivals
    WHERE said_at IS NOT NULL AND started_at IS NOT NULL AND starts_to IS NOT NULL
    ORDER BY started_at DESC
    LIMIT 1000
)
SELECT json_build_object(
    'starts_earliest', motley_time(CASE WHEN j.starts_from IS NOT NULL THEN greatest(j.starts_from, now()) END),
    'starts_latest', motley_time(CASE WHEN j.starts_to IS NOT NULL THEN greatest(j.starts_to, now()) END),
    'ranges', (SELECT count(*) FROM old), 'ranges_right', (SELECT avg(held::integer)::float8 FROM old),
    'sooner', (
        SELECT (
            SELECT coalesce(json_agg(t.change ORDER BY t.place), '[]')
            FROM json_array_elements(s.changes) WITH ORDINALITY AS t (change, place)
            WHERE t.change ->> 'kind' <> 'run'
                OR NOT EXISTS (
                    SELECT FROM jobs e WHERE e.id = (t.change ->> 'job')::bigint AND e.ended_at IS NOT NULL
                )
        )
        FROM sooner s
        WHERE s.job = j.id AND s.answered_at > now() - interval '1 minute'
    )
),
    (SELECT count(pg_notify('motley_jobs', '')) FROM asked)
FROM jobs j
WHERE j.id = :job;

--# fragment limits_json(of)
'devices_max', {of}.devices_max, 'running_max', {of}.running_max, 'month_seconds_max', {of}.month_seconds_max

--# read records_get(from_us bigint, to_us bigint) -> json
WITH span AS (
    SELECT to_timestamp(:from_us::bigint / 1e6) AS a, to_timestamp(:to_us::bigint / 1e6) AS b
),
used AS (
    SELECT DISTINCT r.class FROM span, arrivals r WHERE r.arrived_at >= a AND r.arrived_at < b
)
SELECT json_build_object(
    'sharing', (SELECT document FROM sharing),
    'users', (
        SELECT coalesce(json_agg(json_build_object('name', u.name, @limits_json(u)) ORDER BY u.id), '[]') FROM users u
    ),
    'groups', (
        SELECT coalesce(
            json_agg(
                json_build_object('name', g.name, 'parent', p.name, 'weight', g.weight, @limits_json(g)) ORDER BY g.id
            ), '[]'
        )
        FROM groups g
        LEFT JOIN groups p ON p.id = g.parent
    ),
    'devices', (
        SELECT coalesce(
            json_agg(json_build_object('name', d.name, 'bytes', d.memory_limit_bytes) ORDER BY d.name), '[]'
        )
        FROM devices d
        JOIN nodes n ON n.name = d.node
        WHERE n.removed_at IS NULL
    ),
    'classes', (
        SELECT coalesce(json_agg(json_build_object('id', k.id, 'speeds', k.speeds) ORDER BY k.id), '[]')
        FROM classes k
        JOIN used ON used.class = k.id
    ),
    'forecasts', (
        SELECT coalesce(
            json_agg(
                json_build_object(
                    'class', f.class, 'devices', s.devices, 'step_s', f.step_s, 'runs', f.runs, 'steps', f.steps,
                    'seconds', f.seconds
                ) ORDER BY f.class, f.devices
            ), '[]'
        )
        FROM forecasts f
        JOIN used USING (class)
        JOIN device_sets s ON s.id = f.devices
    ),
    'leases', (
        SELECT coalesce(
            json_agg(
                json_build_object('device', l.device, 'begins', motley_time(l.begins), 'ends', motley_time(l.ends))
                ORDER BY l.id
            ), '[]'
        )
        FROM span, leases l
        WHERE l.begins < b AND l.ends > a
    )
)
FROM span;

-- :after is the last job of the previous page.
--# read records_page(from_us bigint, to_us bigint, after bigint, most bigint) -> json
WITH found AS MATERIALIZED (
    SELECT r.*, row_number() OVER (ORDER BY r.job) AS n
    FROM arrivals r
    WHERE r.arrived_at >= to_timestamp(:from_us::bigint / 1e6) AND r.arrived_at < to_timestamp(:to_us::bigint / 1e6)
        AND r.job > :after
    ORDER BY r.job
    LIMIT :most::bigint + 1
)
SELECT json_build_object(
    'arrivals', coalesce(
        json_agg(
            json_build_object(
                'id', f.job, 'at', motley_time(f.arrived_at), 'user', u.name, 'group', g.name, 'class', f.class,
                'service', (ARRAY['urgent', 'normal', 'scavenger'])[j.service + 1], 'priority', j.priority,
                'steps', j.steps, 'started', motley_time(f.started_at), 'ended', motley_time(j.ended_at),
                'state', j.state, 'devices', s.devices, 'step_s', f.step_s, 'ran_s', f.ran_s
            ) ORDER BY n
        ) FILTER (WHERE n <= :most),
        '[]'
    ),
    'next', CASE WHEN max(n) > :most THEN max(f.job) FILTER (WHERE n <= :most) END
)
FROM found f
JOIN jobs j ON j.id = f.job
JOIN users u ON u.id = j.owner
LEFT JOIN groups g ON g.id = j.account
LEFT JOIN device_sets s ON s.id = f.devices;
