-- The statements of jobs_read.c.

-- The reason of a rank that has not ended is what it waits for, or what is wrong with its node.
--# fragment ranks_json
(
    SELECT coalesce(
        json_agg(
            json_build_object(
                'rank', a.rank, 'node', a.node, 'device', a.device, 'state', a.state, 'code', a.code,
                'why', coalesce(
                    CASE
                        WHEN a.state IN ('sent', 'ready', 'running')
                            THEN CASE
                                WHEN n.state = 'unreachable'
                                    THEN format(
                                        'its node has not been heard since %s%s', motley_words(n.last_seen),
                                        CASE
                                            WHEN n.lost_at > now()
                                                THEN '; unless it is heard before ' || motley_words(n.lost_at) ||
                                                    ', the attempt is given up, and the job goes on from its last checkpoint'
                                        END
                                    )
                                ELSE n.inventory -> 'lacking' ->> a.device
                            END
                    END,
                    nullif(a.why, '')
                ), 'memory', a.memory
            ) ORDER BY a.rank
        ), '[]'::json
    )
    FROM assignments a
    LEFT JOIN nodes n ON n.name = a.node
    WHERE a.run = r.id
)

-- The reason of a job, or who may let it go on where it is held.
--# fragment job_why
coalesce(
    j.why,
    CASE
        WHEN j.state = 'held'
            THEN CASE
                WHEN j.held_by_admin
                    THEN 'an administrator holds it, and only one may release it (motley release ' || j.id || ')'
                ELSE 'until motley release ' || j.id
            END
    END
)

--# read job_get(job bigint, viewer) -> json
SELECT json_build_object(
    'id', j.id, 'name', j.name, 'owner', u.name, 'visibility', j.visibility,
    'group', (SELECT name FROM groups WHERE id = j.grp), 'state', j.state, 'priority', j.priority,
    'created', motley_time(j.created_at), 'updated', motley_time(j.updated_at), 'started', motley_time(j.started_at),
    'ended', motley_time(j.ended_at),
    'files_until', CASE
        WHEN j.files_gone_at IS NULL THEN motley_time(j.ended_at + motley_retention(j.account) * interval '1 s')
    END,
    'files_gone', motley_time(j.files_gone_at), 'attempt', j.attempt, 'losses', j.losses,
    'labels', coalesce(j.labels, '{}'), 'step', j.step, 'steps', j.steps, 'loss', j.loss, 'stop_why', j.stop_why,
    'held_by_admin', j.held_by_admin, 'why', coalesce(q.why, @job_why), 'code', j.code, 'ended_by', j.ended_by,
    'account', (SELECT name FROM groups WHERE id = j.account),
    'service', (ARRAY['urgent', 'normal', 'scavenger'])[j.service + 1], 'begins', motley_time(j.begin_at),
    'place', q.place, 'wait', coalesce(q.code, j.wait_code),
    'waits_for', CASE WHEN q.code IS NULL THEN j.wait_subject ELSE q.subject END, 'array_of', j.array_of,
    'index', j.array_index,
    'array', CASE
        WHEN j.array_size > 0
            THEN json_build_object(
                'size', j.array_size, 'made', j.array_made, 'at_most', nullif(j.at_most, 0),
                'states', (
                    SELECT coalesce(json_object_agg(state, n), '{}')
                    FROM (SELECT state, count(*) AS n FROM jobs e WHERE e.array_of = j.id GROUP BY state) c
                )
            )
    END,
    'starts', motley_time(j.starts_at), 'trial', (SELECT document FROM trials t WHERE t.job = j.id), 'spec', j.spec,
    'inputs', j.inputs,
    'run', (
        SELECT json_build_object(
            'id', r.id, 'attempt', r.attempt, 'epoch', r.epoch, 'state', r.state, 'why', r.why,
            'yields', CASE
                WHEN r.save_by IS NOT NULL
                    THEN json_build_object('why', r.save_why, 'job', r.save_for, 'by', motley_time(r.save_by))
            END,
            'plan_answer', r.answer, 'limit_at', motley_time(@run_limit_at(j, r)), 'step_s', @run_step_s,
            'ranks', @ranks_json, 'started', motley_time(r.started_at), 'ended', motley_time(r.ended_at)
        )
        FROM runs r
        WHERE r.id = j.run
    ),
    'checkpoints', (
        SELECT coalesce(
            json_agg(
                json_build_object('step', c.step, 'best', c.best, 'at', motley_time(c.created_at), 'blobs', c.blobs)
                ORDER BY c.step
            ), '[]'::json
        )
        FROM checkpoints c
        WHERE c.job = j.id AND c.complete
    ),
    'artifacts', (
        SELECT coalesce(
            json_agg(
                json_build_object('name', f.name, 'sha256', f.sha256, 'size', f.size) ORDER BY f.name COLLATE "C"
            ), '[]'::json
        )
        FROM artifacts f
        WHERE f.job = j.id
    ),
    'notices', CASE
        WHEN @owned(j, :viewer, :admin)
            THEN (
                SELECT coalesce(
                    json_agg(
                        json_build_object(
                            'id', n.id, 'event', n.event, 'state', n.state, 'attempts', n.attempts,
                            'at', motley_time(n.at),
                            'next', CASE WHEN n.state = 'waiting' THEN motley_time(n.due_at) END, 'why', n.why
                        ) ORDER BY n.id
                    ), '[]'::json
                )
                FROM (SELECT * FROM notices WHERE job = j.id ORDER BY id DESC LIMIT 20) n
            )
    END
)
FROM jobs j
JOIN users u ON u.id = j.owner
LEFT JOIN LATERAL motley_place(j.id) q ON j.state = 'queued'
WHERE j.id = :job AND @visible(j, :viewer, :admin);

--# read jobs_unseen(jobs bigint[n], viewers bigint[n]) -> json
SELECT coalesce(json_agg(json_build_array(q.job, q.viewer)), '[]'::json)
FROM unnest(:jobs::bigint[], :viewers::bigint[]) AS q(job, viewer)
WHERE NOT EXISTS (SELECT 1 FROM jobs j WHERE j.id = q.job AND @visible(j, q.viewer, false));

--# fragment page(from, where)
SELECT json_build_object(
    'jobs', coalesce(json_agg(t.doc ORDER BY t.id DESC), '[]'::json),
    'next', CASE WHEN count(*) = :most THEN min(t.id) END
)
FROM (
    SELECT j.id,
        json_build_object(
            'id', j.id, 'name', j.name, 'owner', u.name, 'visibility', j.visibility,
            'group', (SELECT name FROM groups WHERE id = j.grp), 'labels', coalesce(j.labels, '{}'), 'state', j.state,
            'priority', j.priority, 'created', motley_time(j.created_at), 'updated', motley_time(j.updated_at),
            'attempt', j.attempt, 'step', j.step, 'steps', j.steps, 'loss', j.loss,
            'why', coalesce(CASE WHEN j.state = 'queued' THEN (SELECT why FROM motley_place(j.id)) END, @job_why),
            'ended_by', j.ended_by, 'array_of', j.array_of, 'index', j.array_index,
            'elements', nullif(j.array_size, 0)
        ) AS doc
    FROM {from} j
    JOIN users u ON u.id = j.owner
    WHERE j.id < :before {where}
    ORDER BY j.id DESC
    LIMIT :most
) t

-- The jobs that a person sees: a page of their own jobs and a page of shared ones, each found by its own index.
--# fragment seen(where)
(
    (SELECT * FROM jobs j WHERE j.id < :before AND j.owner = :viewer {where} ORDER BY j.id DESC LIMIT :most) UNION ALL (
        SELECT *
        FROM jobs j
        WHERE j.id < :before AND j.visibility <> 'mine' AND j.owner <> :viewer
            AND @visible(j, :viewer, :admin) {where}
        ORDER BY j.id DESC
        LIMIT :most
    )
)

--# fragment states
AND j.state = ANY (:states::text[])

-- :valued are labels with values, :keys are those with any value. Null stands for any.
--# fragment filters
@states AND (:owner::text IS NULL OR j.owner = (SELECT id FROM users WHERE name = :owner))
    AND (:group::text IS NULL OR (SELECT id FROM groups WHERE name = :group) IN (j.grp, j.account))
    AND (:valued::jsonb IS NULL OR j.labels @> :valued) AND (:keys::text[] IS NULL OR j.labels ?& :keys)
    AND (:from_us::bigint IS NULL OR j.created_at >= to_timestamp(:from_us / 1e6))
    AND (:to_us::bigint IS NULL OR j.created_at < to_timestamp(:to_us / 1e6))
    AND (:array::bigint IS NULL OR j.array_of = :array)

-- Mentions both parameters of the asker, so that an administrator's statements have as many parameters as the
-- others. :admin says whether the asker is an administrator.
--# fragment admin
AND :viewer::bigint IS NOT NULL AND :admin::boolean

-- The pages that an administrator sees: all jobs, those in some states, and those that all filters let through.
--# read job_page_all(before bigint, most bigint, viewer) -> json
@page(jobs, @admin);

--# read job_page_state(before bigint, most bigint, viewer, states text[]) -> json
@page(jobs, @admin @states);

--# read job_page_filtered(before bigint, most bigint, viewer, states text[], owner text, group text, valued jsonb,
--#    keys text[]?, from_us bigint?, to_us bigint?, array bigint?) -> json
@page(jobs, @admin @filters);

-- The same pages for somebody else.
--# read job_page_seen(before bigint, most bigint, viewer) -> json
@page(@seen(),);

--# read job_page_both(before bigint, most bigint, viewer, states text[]) -> json
@page(@seen(@states),);

--# read job_page_seen_filtered(before bigint, most bigint, viewer, states text[], owner text, group text,
--#    valued jsonb, keys text[]?, from_us bigint?, to_us bigint?, array bigint?) -> json
@page(@seen(@filters),);

--# read counts(states text[]) -> json
SELECT json_build_object(
    'jobs', (@count_jobs), 'refused', (SELECT coalesce(json_object_agg(reason, n), '{}') FROM refused_events),
    'devices', (
        SELECT coalesce(
            json_agg(json_build_object('name', name, 'drained', drained, 'health', health) ORDER BY name), '[]'
        )
        FROM devices
        WHERE present
    ),
    'nodes', (
        SELECT coalesce(
            json_agg(
                json_strip_nulls(
                    json_build_object(
                        'name', n.name, 'alive', n.state = 'alive' AND NOT n.barred, 'left', @left,
                        'heard_s', extract(epoch FROM now() - n.last_seen),
                        'certified_s', extract(epoch FROM n.certified_until - now()),
                        'disk_bytes', CASE n.state WHEN 'alive' THEN n.inventory -> 'disk_bytes' END,
                        'disk_free_bytes', CASE n.state WHEN 'alive' THEN n.inventory -> 'disk_free_bytes' END
                    )
                ) ORDER BY n.name
            ), '[]'
        )
        FROM nodes n
        WHERE n.removed_at IS NULL
    ),
    'waits_s', (SELECT extract(epoch FROM now() - created_at) FROM jobs WHERE state = 'queued' ORDER BY id LIMIT 1),
    'scheduler', (
        SELECT json_build_object('state', s.state, 'age_s', s.age, 'set_aside_count', coalesce(s.aside_count, 0))
        FROM @scheduler_row
    )
);

--# read job_metrics(job bigint, kinds text[], after bigint, most bigint) -> json
SELECT json_build_object(
    'lines', coalesce(json_agg(t.document ORDER BY t.step, t.kind, t.rank), '[]'::json),
    'next', CASE WHEN count(*) >= :most THEN max(t.step) END
)
FROM (
    SELECT step, kind, rank, document
    FROM metrics
    WHERE job = :job AND kind = ANY (:kinds::text[]) AND step > :after
    ORDER BY step
    FETCH FIRST :most ROWS WITH TIES
) t;

--# read job_plan(job bigint) -> json
SELECT json_build_object('run', r.id, 'attempt', r.attempt, 'epoch', r.epoch, 'plan', r.plan, 'answer', r.answer)
FROM jobs j
JOIN runs r ON r.id = j.run
WHERE j.id = :job;

--# read job_runs(job bigint, before bigint, most bigint) -> json
SELECT json_build_object(
    'runs', coalesce(
        json_agg(
            json_build_object(
                'id', r.id, 'attempt', r.attempt, 'epoch', r.epoch, 'state', r.state, 'why', r.why,
                'start_step', r.start_step, 'created', motley_time(r.created_at),
                'started', motley_time(r.started_at), 'ended', motley_time(r.ended_at), 'ranks', @ranks_json
            ) ORDER BY r.id DESC
        ), '[]'::json
    ),
    'next', CASE WHEN count(*) = :most THEN min(r.id) END
)
FROM (SELECT * FROM runs WHERE job = :job AND id < :before ORDER BY id DESC LIMIT :most) r;

--# read job_trace(job bigint) -> json
SELECT json_build_object(
    'run', t.run, 'parts', json_agg(json_build_object('rank', t.rank, 'doc', t.document) ORDER BY t.rank, t.seq)
)
FROM traces t
WHERE t.run = (SELECT max(r.id) FROM runs r WHERE r.job = :job AND EXISTS (SELECT 1 FROM traces x WHERE x.run = r.id))
GROUP BY t.run;

--# read job_lanes(job bigint) -> json
SELECT json_build_object(
    'run', r.id, 'plan', r.plan, 'timeline', r.timeline,
    'parts', (
        SELECT coalesce(json_agg(t.document ORDER BY t.rank, t.seq), '[]'::json) FROM traces t WHERE t.run = r.id
    )
)
FROM runs r
WHERE r.job = :job
ORDER BY EXISTS (SELECT 1 FROM traces t WHERE t.run = r.id) DESC, r.id DESC
LIMIT 1;
