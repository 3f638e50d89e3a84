-- The statements of fetches.c.

-- Of rows that two apis choose at once, each is updated by one of them: the other sees the new `until`.
--# write fetch_claim(seconds float8, most bigint) -> json
WITH waits AS MATERIALIZED (
    SELECT f.job, f.hub, f.until >= now() AS taken
    FROM job_fetches f
    JOIN jobs j ON j.id = f.job
    WHERE j.state = 'held'
),
due AS (
    SELECT min(job) AS job FROM waits GROUP BY hub HAVING NOT coalesce(bool_or(taken), false) ORDER BY 1 LIMIT :most
),
up AS (
    UPDATE job_fetches f
    SET until = now() + make_interval(secs => :seconds)
    FROM due
    WHERE f.job = due.job AND coalesce(f.until < now(), true)
    RETURNING f.*
)
SELECT coalesce(
    json_agg(
        json_build_object(
            'job', up.job, 'hub', up.hub, 'spec', j.spec, 'owner', u.id, 'name', u.name,
            'priority_max', u.priority_max, 'admin', up.admin
        ) ORDER BY up.job
    ), '[]'::json
)
FROM up
JOIN jobs j ON j.id = up.job
JOIN users u ON u.id = j.owner;

--# write fetch_tell(job bigint, seconds float8, why text) -> bigint
WITH up AS (
    UPDATE job_fetches f
    SET until = now() + make_interval(secs => :seconds)
    FROM jobs j
    WHERE f.job = :job AND j.id = f.job AND j.state = 'held'
    RETURNING f.hub
),
said AS (
    UPDATE jobs j
    SET why = :why, updated_at = now()
    FROM job_fetches f
    JOIN up USING (hub)
    WHERE j.id = f.job AND j.state = 'held' AND j.why IS DISTINCT FROM :why
)
SELECT count(*)
FROM up;

--# fragment say_state
said AS (
    INSERT INTO events (job, type, body)
    SELECT id, 'state',
        json_strip_nulls(json_build_object('state', state, 'from', 'held', 'why', why, 'code', code, 'attempt', 0))
    FROM up
    WHERE state <> 'held'
)
SELECT id, pg_notify('motley_events', id::text), pg_notify('motley_jobs', '')
FROM up

--# write fetch_done(job bigint, spec json, inputs json, steps bigint, held boolean) -> bigint, void, void
WITH up AS (
    UPDATE jobs j
    SET spec = :spec,
        inputs = :inputs,
        steps = :steps,
        state = CASE WHEN :held::boolean THEN 'held' ELSE 'queued' END,
        why = NULL,
        eligible_at = now(),
        updated_at = now()
    WHERE id = :job AND state = 'held' AND EXISTS (SELECT 1 FROM job_fetches WHERE job = :job)
    RETURNING j.id, j.state, j.why, j.code
),
gone AS (DELETE FROM job_fetches WHERE job IN (SELECT id FROM up)),
@say_state;

--# write fetch_fail(job bigint, code text, why text) -> bigint, void, void
WITH up AS (
    UPDATE jobs j
    SET state = 'failed', code = :code, why = :why, ended_at = now(), updated_at = now()
    WHERE id = :job AND state = 'held' AND EXISTS (SELECT 1 FROM job_fetches WHERE job = :job)
    RETURNING j.id, j.state, j.why, j.code
),
@say_state;
