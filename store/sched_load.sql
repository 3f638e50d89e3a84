-- The statements of sched_load.c. Those of Q_WHOLE and Q_CHANGES are in queue.sql, those of Q_LINKS_WHOLE and Q_LINKS
-- in links.sql.

--# fragment active
('starting', 'running', 'stopping')

--# read sched_now -> now_us bigint, next_due_us bigint, spread float8
SELECT @micros(now()),
    (
        SELECT @micros(min(greatest(not_before, begin_at)))
        FROM jobs
        WHERE state = 'queued' AND greatest(not_before, begin_at) > now()
    ),
    (
        SELECT coalesce(stddev_samp(ln(measured_s / step_s)), 0)
        FROM (SELECT measured_s, step_s FROM runs WHERE measured_s > 0 AND step_s > 0 ORDER BY id DESC LIMIT 64) m
        HAVING count(*) >= 8
    );

--# read sched_active -> job_row
SELECT @job_columns FROM jobs j WHERE j.id IN (SELECT job FROM runs WHERE state IN @active) ORDER BY j.id;

--# read sched_runs
--#    -> id bigint, job bigint, epoch bigint, attempt integer, state text, stop_why text, created_us bigint,
--#       started_us bigint, stopping_us bigint, killed_us bigint, why text, advanced boolean, lost_before bigint,
--#       step_s float8, save_bytes bigint, saved_us bigint, save_asked_us bigint, save_by_us bigint,
--#       save_for bigint, saves_missed integer, start_step bigint, load_bytes bigint, trial json, corrected float8
SELECT id, job, epoch, attempt, state, stop_why, @micros(created_at), @micros(started_at), @micros(stopping_at),
    @micros(killed_at), why,
    EXISTS (SELECT 1 FROM checkpoints c WHERE c.job = r.job AND c.complete AND c.step > r.start_step),
    (SELECT count(*) FROM runs p WHERE p.job = r.job AND p.state = 'lost' AND p.start_step = r.start_step),
    coalesce(step_s, 0), save_bytes, @micros(saved_at), @micros(save_asked_at), @micros(save_by),
    coalesce(save_for, 0), saves_missed, start_step, load_bytes,
    (SELECT t.document FROM trials t WHERE t.job = r.job AND t.open), coalesce(corrected, 0)
FROM runs r
WHERE state IN @active
ORDER BY id;

--# read sched_ranks
--#    -> run bigint, assignment bigint, rank integer, node text, device text, state text, last_seq bigint,
--#       address text, identity text, code text, why text, own_fault boolean, busy_s float8, compute_s float8,
--#       measured integer
SELECT a.run, a.id, a.rank, a.node, a.device, a.state, a.last_seq, a.address, a.identity, a.code, a.why, a.own_fault,
    coalesce(a.busy_s, 0), coalesce(a.compute_s, 0), a.measured
FROM assignments a
JOIN runs r ON r.id = a.run
WHERE r.state IN @active
ORDER BY a.run, a.rank;

--# read sched_nodes
--#    -> name text, boot text, machine_id text, address text, state text, last_seq bigint, generation bigint,
--#       redis_hash bytea, seal_key bytea, admitted boolean, leaves_us bigint
SELECT name, boot, machine_id, address, state, last_seq, generation, redis_hash, seal_key,
    redis_hash IS NOT NULL AND seal_key IS NOT NULL AND NOT barred,
    CASE WHEN leaves_at IS NULL THEN 9223372036854775807 ELSE @micros(leaves_at) END
FROM nodes
WHERE removed_at IS NULL
ORDER BY name;

--# read sched_devices
--#    -> name text, node text, kind text, digest text, inventory json, memory_limit_bytes bigint, present boolean,
--#       drained boolean, drain_why text, health json, owner bigint, lacks text, drain_at_us bigint
SELECT d.name, node, kind, digest, d.inventory, memory_limit_bytes, present, drained, drain_why, health,
    coalesce(d.owner, 0), n.inventory -> 'lacking' ->> d.name,
    CASE WHEN d.drain_at = 'infinity' THEN 9223372036854775807 ELSE @micros(nullif(d.drain_at, 'infinity')) END
FROM devices d
JOIN nodes n ON n.name = node AND n.removed_at IS NULL
ORDER BY d.name;

--# read sched_requests
--#    -> id bigint, kind text, device text, key text, digest text, tries integer, state text, why text,
--#       deadline_us bigint, unreachable boolean
SELECT id, kind, device, key, digest, tries, state, why, @micros(deadline_at), unreachable FROM requests ORDER BY id;

--# read sched_measures -> spec json, inputs json
SELECT spec, inputs FROM measures WHERE until > now() ORDER BY until DESC LIMIT 16;

--# columns limit_row(devices_max integer, running_max integer, month_seconds_max float8)

--# read sched_accounts -> id bigint, parent bigint, name text, weight float8, limit_row, slice_s float8
SELECT id, coalesce(parent, 0), name, weight, devices_max, running_max, month_seconds_max, slice_s
FROM groups
ORDER BY id;

--# read sched_users -> id bigint, name text, disabled boolean, limit_row
SELECT id, name, disabled, devices_max, running_max, month_seconds_max FROM users ORDER BY id;

--# read sched_uses(closed bigint, from_us bigint)
--#    -> job bigint, user_id bigint, account bigint, begins_us bigint, ends_us bigint, closed bigint, rate float8
SELECT l.job, l.user_id, coalesce(g.id, 0), @micros(l.begins), @micros(l.ends), coalesce(l.closed, 0),
    l.speed * l.factor
FROM ledger l
LEFT JOIN groups g ON g.name = l.account
WHERE l.ends IS NULL OR (l.closed > :closed AND l.ends > to_timestamp(:from_us::bigint / 1e6))
ORDER BY l.closed NULLS LAST;

--# read sched_leases
--#    -> id bigint, device text, holder text, begins_us bigint, ends_us bigint, opened boolean, maintenance boolean
SELECT l.id, l.device, u.name, @micros(l.begins), @micros(l.ends), l.opened, l.kind = 'maintenance'
FROM leases l
JOIN users u ON u.id = l.user_id
WHERE NOT l.settled
ORDER BY l.id;

--# read sched_dependents -> id bigint, state text, open bigint, bad bigint, bad_state text
SELECT j.id, j.state, coalesce(d.open, 0), coalesce(b.id, 0), coalesce(b.state, 'succeeded')
FROM jobs j
CROSS JOIN LATERAL (
    SELECT min(o.id) FILTER (WHERE o.state NOT IN ('succeeded', 'failed', 'cancelled')) AS open,
        min(o.id) FILTER (WHERE o.state IN ('failed', 'cancelled') AND NOT a.however) AS bad
    FROM job_after a
    JOIN jobs o ON o.id = a.after
    WHERE a.job = j.id
) d
LEFT JOIN jobs b ON b.id = d.bad
WHERE j.depends AND j.state IN ('held', 'queued')
    AND (b.id IS NOT NULL OR (j.state = 'queued' AND (d.open IS NULL OR d.open IS DISTINCT FROM j.wait_subject)))
ORDER BY j.id
LIMIT 1000;

--# read sched_arrays
--#    -> id bigint, state text, stop_why text, size integer, made integer, at_most integer, open bigint,
--#       waiting bigint, held bigint, bad bigint, first_bad bigint, spec json, inputs json
SELECT j.id, j.state, j.stop_why, j.array_size, j.array_made, j.at_most, e.open, e.waiting, e.held,
    coalesce(b.bad, 0), coalesce(b.first, 0), CASE WHEN m.makes THEN j.spec END, CASE WHEN m.makes THEN j.inputs END
FROM jobs j
CROSS JOIN LATERAL (
    SELECT count(*) AS open, count(*) FILTER (WHERE state = 'queued') AS waiting,
        count(*) FILTER (WHERE state = 'held') AS held
    FROM jobs o
    WHERE o.array_of = j.id AND o.state NOT IN ('succeeded', 'failed', 'cancelled')
) e
CROSS JOIN LATERAL (
    SELECT j.state = 'queued' AND NOT j.depends AND j.array_made < j.array_size
        AND coalesce(greatest(j.not_before, j.begin_at) <= now(), true) AS makes
) m
LEFT JOIN LATERAL (
    SELECT count(*) AS bad, min(o.id) AS first
    FROM jobs o
    WHERE o.array_of = j.id AND o.state IN ('failed', 'cancelled')
) b ON e.open = 0 AND j.array_made = j.array_size
WHERE j.array_size > 0 AND j.state IN ('queued', 'running', 'stopping')
ORDER BY j.id;

--# read sched_asked(started_us bigint) -> json
SELECT json_build_object(
    'sooner', (
        SELECT coalesce(json_agg(json_build_array(s.job, s.age)), '[]')
        FROM (
            SELECT job, extract(epoch FROM now() - asked_at) AS age
            FROM sooner
            WHERE answered_at IS NULL
            ORDER BY asked_at
            LIMIT 4
        ) s
    ),
    'starts', (
        SELECT coalesce(
            json_agg(
                json_build_array(
                    extract(epoch FROM a.starts_at - a.said_at), extract(epoch FROM a.started_at - a.said_at),
                    a.said_place, @micros(a.started_at)
                ) ORDER BY a.started_at
            ), '[]'
        )
        FROM (
            SELECT *
            FROM arrivals
            WHERE said_at IS NOT NULL AND started_at > to_timestamp(:started_us::bigint / 1e6)
            ORDER BY started_at DESC
            LIMIT 512
        ) a
    )
);

--# read profiles_get(key text, remeasure_ms bigint) -> json
SELECT coalesce(
    json_agg(
        json_build_object(
            'device', p.device, 'document', p.document, 'speed', CASE WHEN s.at > p.measured_at THEN s.speed END,
            'taught', t.runs,
            'stale', coalesce(
                (
                    s.speed < 0.9 AND s.at + :remeasure_ms::bigint * interval '1 ms' < now()
                        AND p.measured_at < s.at + (now() - s.at) / 2 OR (p.document ->> 'noise')::float8 > 0
                        AND p.measured_at + :remeasure_ms::bigint * interval '10 ms' < now()
                )
                    AND NOT EXISTS (
                        SELECT 1
                        FROM assignments a
                        WHERE a.device = p.device AND a.state IN ('sent', 'ready', 'running')
                    ), false
            )
        )
    ), '[]'::json
)
FROM profiles p
JOIN devices d ON d.name = p.device AND d.digest = p.digest
LEFT JOIN device_speeds s ON s.device = p.device AND s.key = p.key
LEFT JOIN @taught_runs t ON t.device = p.device
WHERE p.key = :key;

--# read sched_run_get(run bigint) -> json
SELECT json_build_object(
    'spec', j.spec, 'inputs', j.inputs, 'plan', r.plan, 'steps', j.steps, 'step', j.step,
    'started_s', coalesce(extract(epoch FROM r.started_at - r.created_at), 0),
    'moves', (SELECT count(*) FROM runs m WHERE m.job = j.id AND m.stop_why = 'yield') - coalesce(
        (t.document ->> 'moves')::integer, 0
    ), 'trial', t.document
)
FROM runs r
JOIN jobs j ON j.id = r.job
LEFT JOIN trials t ON t.job = j.id
WHERE r.id = :run;

--# read trial_get(run bigint) -> json
SELECT json_build_object(
    'repeats', coalesce(r.answer ->> 'repeats', r.answer ->> 'digest'),
    'started_s', coalesce(extract(epoch FROM r.started_at - r.created_at), 0),
    'gap_s', (
        SELECT extract(epoch FROM r.started_at - p.stopping_at)
        FROM runs p
        WHERE p.job = r.job AND p.attempt = r.attempt - 1 AND p.stop_why = 'yield'
    ),
    'lines', (
        SELECT coalesce(json_agg(json_build_array(m.seconds, m.tokens)), '[]')
        FROM (
            SELECT @step_seconds AS seconds, m.document -> 'tokens' AS tokens
            FROM metrics m
            WHERE m.job = r.job AND m.kind = 'step' AND m.step > r.reported
            ORDER BY m.step
            LIMIT 256
        ) m
    )
)
FROM runs r
WHERE r.id = :run;

--# read outbox_list -> json
SELECT json_build_object(
    'incarnation', (SELECT incarnation FROM cluster),
    'messages', (
        SELECT coalesce(
            json_agg(
                json_build_object('id', id, 'node', node, 'run', run, 'type', type, 'payload', payload) ORDER BY id
            ), '[]'::json
        )
        FROM outbox
    ),
    'plans', (
        SELECT coalesce(json_agg(json_build_object('run', id, 'plan', plan)), '[]'::json)
        FROM runs
        WHERE id IN (SELECT run FROM outbox WHERE type = 'assign' AND payload ->> 'plan_digest' IS NOT NULL)
    )
);

--# write sched_numbers(jobs bigint[], ranks integer, requests integer) -> json
WITH s AS (SELECT * FROM unnest(:jobs::bigint[]) WITH ORDINALITY AS s(id, n))
SELECT json_build_object(
    'runs', (
        SELECT coalesce(
            json_agg(json_build_object('run', nextval('runs_id_seq'), 'epoch', nextval('run_epochs'))), '[]'::json
        )
        FROM s
    ),
    'assignments', (
        SELECT coalesce(json_agg(nextval('assignments_id_seq')), '[]'::json) FROM generate_series(1, :ranks::integer)
    ),
    'requests', (
        SELECT coalesce(json_agg(nextval('requests_id_seq')), '[]'::json) FROM generate_series(1, :requests::integer)
    ),
    'jobs', (
        SELECT coalesce(
            json_agg(
                json_build_object(
                    'spec', j.spec, 'inputs', j.inputs, 'step', coalesce(c.step, -1), 'blobs', c.blobs,
                    'loss', (
                        SELECT min((m.document ->> 'loss')::float8)
                        FROM metrics m
                        WHERE m.job = j.id AND m.kind = 'eval' AND m.step <= c.step
                    )
                ) ORDER BY s.n
            ), '[]'::json
        )
        FROM s
        LEFT JOIN jobs j USING (id)
        LEFT JOIN LATERAL (
            SELECT step, blobs FROM checkpoints WHERE job = s.id AND complete ORDER BY step DESC LIMIT 1
        ) c ON true
    )
);
