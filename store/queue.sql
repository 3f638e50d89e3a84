-- The statements of queue.c.

-- Of a job that ran before, the step of its last checkpoint and the nodes that it avoids are read too; neither
-- changes while the job is queued.
--# fragment queue_columns
@job_columns, s.seen, j.state = 'queued' AND NOT j.depends AND j.array_size = 0, j.plan_class,
CASE WHEN j.attempt > 0 THEN (SELECT max(step) FROM checkpoints WHERE job = j.id AND complete) END,
CASE
    WHEN j.attempt > 0
        THEN (
            SELECT ' ' || string_agg(DISTINCT a.node, ' ') || ' '
            FROM assignments a
            JOIN runs r ON r.id = a.run
            WHERE a.run = j.run AND r.state = 'lost' AND a.state IN ('lost', 'failed') AND NOT a.own_fault
                AND coalesce(a.code, '') NOT IN ('network', 'timeout')
        )
END

--# columns queue_row(job_row, seen text, waits boolean, class bytea, step bigint, avoid text)

-- The result has a row without a job if there are none, so that it always says which snapshot was read.
--# read queue_whole(whole boolean) -> queue_row
SELECT @queue_columns
FROM (SELECT pg_current_snapshot()::text AS seen) s
LEFT JOIN jobs j ON j.state = 'queued' AND NOT j.depends AND j.array_size = 0
WHERE :whole::boolean;

--# read queue_changes(snapshot pg_snapshot as text) -> queue_row
SELECT @queue_columns
FROM (SELECT pg_current_snapshot()::text AS seen) s
LEFT JOIN (motley_jobs_since(:snapshot::pg_snapshot) AS c(id) JOIN jobs j USING (id)) ON true;

--# read queue_class_get(class text) -> json
SELECT json_build_object(
    'spec', spec, 'inputs', inputs, 'plan', (SELECT t.plans -> (j.inputs ->> 'plan') FROM trials t WHERE t.job = j.id)
)
FROM jobs j
WHERE plan_class = decode(:class, 'hex') AND state = 'queued'
ORDER BY id
LIMIT 1;
