-- The statements of decide.c.

--# fragment unfinished
('sent', 'ready', 'running')

-- What a job with train.compute: auto is computed in is decided with its first run, and then stays. The job is
-- looked up in subqueries. A join would be slow: PostgreSQL expects 10,000 rows from two lists of records, and so
-- reads all jobs.
--# write decide_runs_new(rows json)
WITH c AS MATERIALIZED (
    SELECT *
    FROM @records(
        run bigint, job bigint, attempt integer, epoch bigint, plan json, answer json, timeline text,
        start_step bigint, step_s double precision, save_bytes bigint, load_bytes bigint, ranks json, compute text,
        key text
    )
),
made AS (
    INSERT INTO runs (
        id, job, attempt, epoch, state, plan, answer, timeline, start_step, step_s, load_bytes, key, placement,
        corrected, save_bytes, reported
    )
    SELECT run, job, attempt, epoch, 'starting', plan, answer, timeline, start_step, step_s, coalesce(load_bytes, 0),
        key, plan ->> 'placement', (plan -> 'costs' ->> 'corrected')::float8,
        coalesce(
            (
                SELECT p.save_bytes
                FROM runs p
                WHERE p.job = c.job AND p.saved_at IS NOT NULL
                ORDER BY p.attempt DESC
                LIMIT 1
            ), c.save_bytes, 0
        ),
        (SELECT step FROM jobs WHERE id = c.job)
    FROM c
    RETURNING 1
),
fixed AS (
    UPDATE jobs j
    SET inputs = (j.inputs::jsonb || jsonb_build_object('compute', c.compute))::json
    FROM c
    WHERE j.id = c.job AND c.compute IS NOT NULL AND j.inputs ->> 'compute' IS NULL
    RETURNING 1
),
x AS MATERIALIZED (
    SELECT c.run, c.job, x.*
    FROM c,
        json_to_recordset(c.ranks) AS x(
            assignment bigint, rank integer, node text, device text, busy_s double precision, speed double precision,
            origin text, factor double precision
        )
),
held AS (
    INSERT INTO ledger (assignment, run, job, user_id, account, device, speed, origin, factor)
    SELECT x.assignment, x.run, x.job, (SELECT owner FROM jobs WHERE id = x.job),
        coalesce((SELECT g.name FROM jobs j JOIN groups g ON g.id = j.account WHERE j.id = x.job), ''), x.device,
        coalesce(x.speed, 1), coalesce(x.origin, ''), coalesce(x.factor, 1)
    FROM x
)
INSERT INTO assignments (id, run, rank, node, device, state, busy_s)
SELECT assignment, run, rank, node, device, 'sent', busy_s
FROM x;

--# write decide_ranks_lost(rows json)
UPDATE assignments a
SET state = 'lost', why = coalesce(a.why, c.why)
FROM @records(run bigint, rank integer, why text)
WHERE a.run = c.run AND a.rank = c.rank AND a.state IN @unfinished;

-- When a run ends, its unconfirmed messages are dropped and its unfinished ranks become lost. The first of its
-- steps fills caches and is no measure.
--# write decide_runs(rows json) -> void
WITH c AS MATERIALIZED (
    SELECT *, state NOT IN ('starting', 'running', 'stopping') AS final
    FROM @records(run bigint, before text, state text, stop_why text, why text, kill boolean)
),
upd AS (
    UPDATE runs r
    SET state = c.state,
        stop_why = coalesce(c.stop_why, r.stop_why),
        why = coalesce(c.why, r.why),
        started_at = CASE WHEN c.state = 'running' THEN now() ELSE r.started_at END,
        stopping_at = CASE WHEN c.state = 'stopping' THEN coalesce(r.stopping_at, now()) ELSE r.stopping_at END,
        killed_at = CASE WHEN c.kill THEN now() ELSE r.killed_at END,
        ended_at = CASE WHEN c.final THEN now() END,
        measured_s = CASE
            WHEN c.final
                THEN (
                    SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY m.seconds)
                    FROM (
                        SELECT @step_seconds AS seconds
                        FROM metrics m
                        WHERE m.job = r.job AND m.kind = 'step' AND m.step > r.reported
                        ORDER BY m.step
                        LIMIT 200
                    ) m
                    HAVING count(*) >= 4
                )
        END
    FROM c
    WHERE r.id = c.run AND r.state = c.before
    RETURNING 1
),
dropped AS (DELETE FROM outbox WHERE run IN (SELECT run FROM c WHERE final) RETURNING 1),
lost AS (
    UPDATE assignments
    SET state = 'lost'
    WHERE run IN (SELECT run FROM c WHERE final) AND state IN @unfinished
    RETURNING 1
)
SELECT motley_expect((SELECT count(*) FROM upd), (SELECT count(*) FROM c), 'runs');

--# write decide_saves(rows json)
UPDATE runs r
SET save_asked_at = CASE WHEN c.wait_ms IS NULL THEN r.save_asked_at ELSE now() END,
    save_by = now() + c.wait_ms * interval '1 ms',
    save_why = c.why,
    save_for = c.for_job,
    saves_missed = r.saves_missed + CASE WHEN c.missed THEN 1 ELSE 0 END
FROM @records(run bigint, wait_ms bigint, why text, for_job bigint, missed boolean)
WHERE r.id = c.run AND r.state = 'running';

--# write decide_jobs(rows json) -> void, bigint
WITH c AS MATERIALIZED (
    SELECT *, state IN ('succeeded', 'failed', 'cancelled') AS final
    FROM @records(
        job bigint, before text, state text, stop_why text, why text, code text, ended_by text, behind boolean,
        delay_ms bigint, losses integer, run bigint
    )
),
upd AS (
    UPDATE jobs j
    SET state = c.state,
        stop_why = CASE WHEN c.state = 'stopping' THEN coalesce(c.stop_why, j.stop_why) END,
        why = c.why,
        code = c.code,
        ended_by = c.ended_by,
        eligible_at = CASE WHEN c.behind THEN now() ELSE j.eligible_at END,
        updated_at = now(),
        run = coalesce(c.run, j.run),
        starts_at = NULL,
        starts_from = NULL,
        starts_to = NULL,
        wait_code = NULL,
        wait_subject = NULL,
        attempt = j.attempt + CASE WHEN c.run IS NULL THEN 0 ELSE 1 END,
        losses = coalesce(c.losses, j.losses),
        not_before = CASE WHEN c.delay_ms > 0 THEN now() + c.delay_ms * interval '1 ms' END,
        started_at = CASE WHEN c.state = 'running' THEN coalesce(j.started_at, now()) ELSE j.started_at END,
        ended_at = CASE WHEN c.final THEN now() END,
        used_ms = j.used_ms + CASE
            WHEN c.before IN ('starting', 'running', 'stopping')
                AND c.state NOT IN ('starting', 'running', 'stopping')
                THEN coalesce(
                    (SELECT (extract(epoch FROM now() - r.created_at) * 1000)::bigint FROM runs r WHERE r.id = j.run),
                    0
                )
            ELSE 0
        END
    FROM c
    WHERE j.id = c.job AND j.state = c.before
    RETURNING j.id, c.before, j.state, j.why, j.code, j.stop_why, j.attempt
),
said AS (
    INSERT INTO events (job, type, body)
    SELECT id, 'state',
        json_strip_nulls(
            json_build_object(
                'state', state, 'from', before, 'why', coalesce(why, stop_why), 'code', code, 'attempt', attempt
            )
        )
    FROM upd
    WHERE state <> before
    RETURNING job
)
SELECT motley_expect((SELECT count(*) FROM upd), (SELECT count(*) FROM c), 'jobs'),
    (SELECT count(pg_notify('motley_events', job::text)) FROM said);

-- Drains the devices of a node on which three starts of at least two people's jobs failed within a day without a
-- fault of the jobs. A start has failed when its run ended before all ranks ran. A rank that only lost the
-- connection to its peers does not count, nor one whose agent was about to end.
--# write decide_drain_nodes(rows json)
WITH ended AS (
    SELECT DISTINCT a.node
    FROM @records(run bigint, state text)
    JOIN runs r ON r.id = c.run
    JOIN assignments a ON a.run = r.id
    WHERE c.state = 'lost' AND r.started_at IS NULL
),
bad AS (
    SELECT e.node, count(DISTINCT r.id) AS starts, count(DISTINCT j.owner) AS people, max(a.why) AS why
    FROM ended e
    JOIN nodes n ON n.name = e.node
    JOIN assignments a ON a.node = e.node
    JOIN runs r ON r.id = a.run
    JOIN jobs j ON j.id = r.job
    WHERE r.state = 'lost' AND r.started_at IS NULL AND a.state = 'failed' AND NOT a.own_fault
        AND coalesce(a.code, '') NOT IN ('network', 'timeout')
        AND (coalesce(a.code, '') <> 'cancelled' OR r.killed_at IS NOT NULL)
        AND r.ended_at > greatest(n.starts_from, now() - interval '1 day')
    GROUP BY e.node
    HAVING count(DISTINCT r.id) >= 3 AND count(DISTINCT j.owner) >= 2
)
UPDATE devices d
SET drained = true,
    drain_at = 'infinity',
    drain_why = coalesce(
        d.drain_why,
        format(
            '%s starts of %s people failed on %s within a day; the last: %s', bad.starts, bad.people, bad.node,
            bad.why
        )
    )
FROM bad
WHERE d.node = bad.node AND NOT d.drained;

-- A row without a document only says which plan the job's next run begins with: none.
--# write decide_trials(rows json)
WITH c AS MATERIALIZED (
    SELECT * FROM @records(job bigint, open boolean, document json, plans json, plan text)
),
pinned AS (
    UPDATE jobs j
    SET inputs = (
        CASE
            WHEN c.plan IS NULL THEN j.inputs::jsonb - 'plan'
            ELSE j.inputs::jsonb || jsonb_build_object('plan', c.plan)
        END
    )::json
    FROM c
    WHERE j.id = c.job AND j.inputs ->> 'plan' IS DISTINCT FROM c.plan
    RETURNING 1
)
INSERT INTO trials AS t (job, open, document, plans)
SELECT job, open, document, coalesce(plans, '{}')
FROM c
WHERE document IS NOT NULL
ON CONFLICT (job) DO UPDATE
SET open = excluded.open,
    document = excluded.document,
    plans = CASE
        WHEN excluded.open THEN t.plans
        ELSE (
            SELECT coalesce(json_object_agg(key, value), '{}')
            FROM json_each(t.plans)
            WHERE key = excluded.document ->> 'plan'
        )
    END;

--# write decide_waits(rows json)
UPDATE jobs j
SET why = c.why
FROM @records(job bigint, why text)
WHERE j.id = c.job AND j.state = 'queued' AND j.why IS DISTINCT FROM c.why;

--# write decide_places(rows json)
UPDATE jobs j
SET starts_at = CASE WHEN c.starts_us > 0 THEN to_timestamp(c.starts_us / 1e6) END,
    starts_from = to_timestamp(c.from_us / 1e6),
    starts_to = to_timestamp(c.to_us / 1e6),
    wait_code = c.code,
    wait_subject = c.subject
FROM @records(job bigint, starts_us bigint, from_us bigint, to_us bigint, code text, subject bigint)
WHERE j.id = c.job AND j.state = 'queued';

-- Writes the list of the queue in place of the last one (migrations/0006_sharing.sql).
--# write decide_listing(rows json)
WITH c AS MATERIALIZED (SELECT * FROM @records(chunks json, reasons json)),
p AS MATERIALIZED (
    SELECT p.*
    FROM c, json_to_recordset(c.chunks) AS p(chunk bigint, jobs bigint[], places integer[], reasons integer[])
),
r AS MATERIALIZED (
    SELECT r.* FROM c, json_to_recordset(c.reasons) AS r(id integer, code text, subject bigint, why text)
),
gone AS (DELETE FROM queue_places WHERE chunk NOT IN (SELECT chunk FROM p)),
lost AS (DELETE FROM queue_reasons WHERE id NOT IN (SELECT id FROM r)),
said AS (
    INSERT INTO queue_reasons AS q (id, code, subject, why)
    SELECT id, code, subject, why
    FROM r
    ON CONFLICT (id) DO UPDATE SET code = excluded.code, subject = excluded.subject, why = excluded.why
    WHERE (q.code, q.subject, q.why) IS DISTINCT FROM (excluded.code, excluded.subject, excluded.why)
)
INSERT INTO queue_places AS q (chunk, jobs, places, reasons)
SELECT chunk, jobs, places, reasons
FROM p
ON CONFLICT (chunk) DO UPDATE SET jobs = excluded.jobs, places = excluded.places, reasons = excluded.reasons
WHERE (q.jobs, q.places, q.reasons) IS DISTINCT FROM (excluded.jobs, excluded.places, excluded.reasons);

--# write decide_ready(rows json)
UPDATE jobs j
SET depends = false, eligible_at = now(), why = NULL, wait_code = NULL, wait_subject = NULL
FROM @records(job bigint)
WHERE j.id = c.job AND j.state = 'queued';

-- Makes elements of arrays into jobs. An element takes everything from its array except what its own specification
-- says; it counts as waiting since the array does.
--# write decide_elements(rows json) -> bigint
WITH c AS MATERIALIZED (
    SELECT * FROM @records("array" bigint, index integer, name text, spec json, steps bigint)
),
made AS (
    INSERT INTO jobs (
        owner, name, state, priority, spec, inputs, steps, retries_max, time_limit_ms, labels, account, service,
        begin_at, eligible_at, visibility, grp, array_of, array_index
    )
    SELECT j.owner, c.name, 'queued', j.priority, c.spec, (j.inputs::jsonb - 'rows')::json, c.steps, j.retries_max,
        j.time_limit_ms, j.labels, j.account, j.service, j.begin_at, j.eligible_at, j.visibility, j.grp, j.id, c.index
    FROM c
    JOIN jobs j ON j.id = c."array"
    WHERE j.state = 'queued' AND c.index >= j.array_made
    ORDER BY j.id, c.index
    RETURNING id, array_of, state
),
upd AS (
    UPDATE jobs j
    SET array_made = j.array_made + m.n, updated_at = now()
    FROM (SELECT array_of, count(*) AS n FROM made GROUP BY array_of) m
    WHERE j.id = m.array_of
),
counted AS (INSERT INTO job_counts (state, n) SELECT state, count(*) FROM made GROUP BY state)
SELECT count(*)
FROM made;

--# write decide_requests(rows json)
INSERT INTO requests AS r (id, kind, device, key, content, digest, deadline_at)
SELECT DISTINCT ON (kind, device, key) id, kind, device, key, content, coalesce(digest, ''),
    now() + deadline_ms * interval '1 ms'
FROM @records(id bigint, kind text, device text, key text, content text, digest text, deadline_ms bigint)
ORDER BY kind, device, key, id DESC
ON CONFLICT (kind, device, key) DO UPDATE
SET id = excluded.id,
    state = 'open',
    asked_at = now(),
    deadline_at = excluded.deadline_at,
    content = excluded.content,
    digest = excluded.digest,
    tries = CASE WHEN r.digest = excluded.digest THEN r.tries + 1 ELSE 1 END;

--# write decide_links(rows json)
INSERT INTO links (from_node, to_node, document)
SELECT DISTINCT ON (c."from", c."to") c."from", c."to", c.document
FROM @records("from" text, "to" text, document json)
ORDER BY c."from", c."to"
ON CONFLICT (from_node, to_node) DO UPDATE
SET document = excluded.document,
    measured_at = now(),
    changed = excluded.changed;

--# write decide_unreachable(rows json)
UPDATE nodes n
SET state = 'unreachable', lost_at = now() + c.left_ms * interval '1 ms'
FROM @records(node text, left_ms bigint)
WHERE n.state IN ('alive', 'unreachable') AND n.name = c.node;

--# write decide_said(rows json) -> bigint
WITH c AS MATERIALIZED (SELECT * FROM @records(job bigint, level text, text text, move json)),
made AS (
    INSERT INTO events (job, type, body)
    SELECT job, 'log', json_strip_nulls(json_build_object('level', level, 'text', text, 'move', move))
    FROM c
    RETURNING job
)
SELECT count(pg_notify('motley_events', job::text))
FROM made;

-- How far a run moves what was known of a device's speed: all the way if its steps agree, and not at all if their
-- mean is as unsure as it is far from what was known (the positive part of Stein's estimate; James and Stein 1961).
-- How unsure, batches of successive steps tell, each the square root of all: a disturbance lasts many steps.
--# write decide_speeds(rows json)
WITH priced AS (
    UPDATE runs r
    SET priced_s = c.step_s
    FROM @records(run bigint, step_s double precision)
    WHERE r.id = c.run
    RETURNING 1
),
known AS MATERIALIZED (
    SELECT DISTINCT ON (c.device, c.key) c.*,
        coalesce(CASE WHEN s.at > p.measured_at THEN CASE WHEN s.run = c.run THEN s.before ELSE s.speed END END, 1)
            AS before,
        (
            SELECT var_samp(b.mean) / count(*)
            FROM (
                SELECT avg(m.log_s) AS mean
                FROM (
                    SELECT ln(m.seconds / m.tokens) AS log_s,
                        floor((row_number() OVER (ORDER BY m.step) - 1) / ceil(sqrt(count(*) OVER ()))) AS batch
                    FROM (
                        SELECT m.step, (m.document ->> 'compute_s')::float8 AS seconds,
                            (t.document ->> 'tokens')::float8 AS tokens
                        FROM runs r
                        JOIN assignments a ON a.run = r.id
                        JOIN metrics m ON m.job = r.job AND m.kind = 'ranks' AND m.rank = a.rank AND m.step > r.reported
                        JOIN metrics t ON t.job = r.job AND t.kind = 'step' AND t.step = m.step
                        WHERE r.id = c.run AND a.device = c.device
                        ORDER BY m.step DESC
                        LIMIT 64
                    ) m
                    WHERE m.seconds > 0 AND m.tokens > 0
                ) m
                GROUP BY m.batch
            ) b
        ) AS noise
    FROM @records(device text, key text, speed double precision, run bigint)
    LEFT JOIN device_speeds s ON s.device = c.device AND s.key = c.key
    LEFT JOIN profiles p ON p.device = c.device AND p.key = c.key
    ORDER BY c.device, c.key, c.run DESC
)
INSERT INTO device_speeds (device, key, speed, run, before)
SELECT device, key,
    before * power(
        speed / before, coalesce(greatest(0, 1 - coalesce(noise, 0) / nullif(ln(speed / before) ^ 2, 0)), 1)
    ),
    run, before
FROM known
ON CONFLICT (device, key) DO UPDATE
SET speed = excluded.speed, run = excluded.run, before = excluded.before, at = now();

--# write decide_measures(rows json)
INSERT INTO measures (key, spec, inputs, until)
SELECT DISTINCT ON (c.key) c.key, c.spec, c.inputs, now() + interval '1 day'
FROM @records(key text, spec json, inputs json)
ORDER BY c.key
ON CONFLICT (key) DO UPDATE SET until = greatest(measures.until, excluded.until);

--# write decide_messages(rows json) -> json
WITH c AS MATERIALIZED (
    SELECT nextval('outbox_id_seq') AS id, x.*
    FROM (SELECT *, row_number() OVER () AS n FROM @records(node text, run bigint, type text, payload json)) x
),
made AS (
    INSERT INTO outbox (id, node, run, type, payload)
    SELECT id, node, run, type, payload
    FROM c
    ORDER BY n
    RETURNING 1
)
SELECT json_agg(id ORDER BY n)
FROM c;

--# read decide_no_messages -> json
SELECT '[]'::json;

-- Begins the charge of a lease that began, and closes the charge of a lease that has ended. Maintenance, and a
-- lease that was given back before it began, are not charged.
--# write decide_leases_idle(rows json)
UPDATE leases l
SET ends = greatest(l.begins, now()), note = left(l.note || ' (idle: ended early)', 500)
FROM @records(id bigint, idle boolean)
WHERE c.idle AND l.id = c.id AND l.ends > now();

--# write decide_leases_open(rows json)
WITH due AS (
    UPDATE leases l
    SET opened = true
    FROM @records(id bigint)
    WHERE l.id = c.id AND NOT l.opened AND l.begins <= now()
    RETURNING l.*
)
INSERT INTO ledger (assignment, run, job, user_id, account, device, begins, origin)
SELECT -id, 0, 0, user_id, account, device, f.begins, 'lease'
FROM due
CROSS JOIN LATERAL (
    SELECT greatest(due.begins, max(coalesce(g.ends, now()))) AS begins
    FROM ledger g
    WHERE g.device = due.device AND (g.ends IS NULL OR g.ends > due.begins)
) f
WHERE kind = 'lease' AND ends > f.begins;

--# write decide_leases_settle(rows json)
WITH due AS (
    UPDATE leases l
    SET settled = true
    FROM @records(id bigint)
    WHERE l.id = c.id AND NOT l.settled AND l.ends <= now()
    RETURNING l.id, l.ends
)
UPDATE ledger g
SET ends = due.ends, closed = nextval('ledger_closings')
FROM due
WHERE g.assignment = -due.id AND g.ends IS NULL;

-- The reason for which a node was barred is kept; later refusals do not replace it.
--# write mark_nodes(rows json)
UPDATE nodes n
SET refused = n.refused + c.refused,
    mark = CASE WHEN n.barred THEN n.mark ELSE c.why END,
    marked_at = now(),
    barred = n.barred OR c.barred
FROM @records(node text, generation bigint, refused bigint, why text, barred boolean)
WHERE n.name = c.node AND n.generation = c.generation;

--# write count_refused(rows json)
INSERT INTO refused_events AS e (reason, n)
SELECT r.key, sum(r.value::bigint)
FROM @records(reasons json), json_each_text(c.reasons) r
GROUP BY r.key
ON CONFLICT (reason) DO UPDATE SET n = e.n + excluded.n;
