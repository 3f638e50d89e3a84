-- Fragments that statements of several files share (tools/sql.py says how they are written).

-- Gives the rows of a part of the leader's transaction (struct store_part) as a table `c`.
--# fragment records(columns)
json_to_recordset(:rows::json) AS c({columns})

-- SQL conditions over a row `o` of an owned object; `viewer` and `admin` are the parameters of store_param_viewer.
--# fragment visible(o, viewer, admin)
motley_visible(
    {o}.owner, {o}.visibility, {o}.grp, {viewer}::bigint, (SELECT motley_groups({viewer}::bigint)), {admin}::boolean
)

--# fragment owned(o, viewer, admin)
motley_owns({o}.owner, {viewer}::bigint, {admin}::boolean)

-- Whether a rank holds its device.
--# fragment rank_lives(a)
{a}.state IN ('sent', 'ready', 'running')

-- The body of a CTE that inserts one audit row for every row of `from`. It stands in the same statement as the
-- change, so that neither exists without the other. `actor` is the parameter of store_param_actor; the other
-- arguments are SQL.
--# fragment audit(actor, what, object, before, after, from)
INSERT INTO audit (who, user_id, token, address, what, object, before, after)
SELECT a.who, a.user_id, a.token, a.address, {what}, {object}, {before}, {after}
FROM {from}, json_to_record({actor}::json) AS a(who text, user_id bigint, token bigint, address text)

-- Seconds of a step by its metrics line m, where it has a number; null elsewhere.
--# fragment step_seconds
CASE json_typeof(m.document -> 'seconds') WHEN 'number' THEN (m.document ->> 'seconds')::float8 END

-- Seconds per step of the run r: predicted, times how much longer than predicted its slowest rank computes. Ranks
-- that compute for less than a tenth of a step do not count, as in replay/replan.h (REPLAN_PART). Where earlier
-- runs corrected the prediction, that may be in it already, so the longer of the two counts.
--# fragment run_step_s
r.step_s * (
    SELECT CASE
        WHEN r.corrected IS NULL THEN coalesce(max(a.compute_s / a.busy_s), 1)
        ELSE greatest(max(a.compute_s / a.busy_s) / r.corrected, 1)
    END
    FROM assignments a
    WHERE a.run = r.id AND a.measured > 0 AND a.busy_s > 0 AND greatest(a.compute_s, a.busy_s) >= r.step_s / 10
)

-- The latest runs that tell how far forecasts are off, by the device of their first rank: rows of (device, runs),
-- in which `runs` is a document as planner/given/taught.h has it. `:key` is the key of a job's profiles. A run whose
-- devices were measured anew since it was planned, or have other speeds by now, tells only what its ranks'
-- computing does not explain. What a part of a layer computes depends on the division, too, so for tensor and
-- expert runs that cannot be told apart.
--# fragment taught_runs
(
    SELECT device,
        json_agg(
            json_build_object(
                'placement', placement, 'devices', devices,
                'times', measured_s / priced_s * CASE
                    WHEN alike OR rebased OR placement IN ('tensor', 'expert') THEN 1
                    ELSE coalesce(planned_s / nullif(computed_s, 0), 1)
                END,
                'age_days', age_days, 'alike', alike AND key = :key
            ) ORDER BY id DESC
        ) AS runs
    FROM (
        SELECT r.id, r.key, r.placement, r.measured_s,
            coalesce(r.priced_s, r.step_s / coalesce(r.corrected, 1)) AS priced_s, r.priced_s IS NOT NULL AS rebased,
            (array_agg(a.device ORDER BY a.rank))[1] AS device, json_agg(DISTINCT a.device) AS devices,
            floor(extract(epoch FROM now() - r.ended_at) / 86400) AS age_days,
            sum(a.busy_s) FILTER (WHERE a.measured > 0) AS planned_s,
            sum(a.compute_s) FILTER (WHERE a.measured > 0) AS computed_s,
            bool_and(
                coalesce(p.measured_at < r.created_at, true) AND coalesce(s.at < r.created_at OR s.run = r.id, true)
            ) AS alike
        FROM (
            SELECT id, key, placement, measured_s, step_s, priced_s, corrected, created_at, ended_at
            FROM runs
            WHERE measured_s > 0 AND step_s > 0
            ORDER BY id DESC
            LIMIT 64
        ) r
        JOIN assignments a ON a.run = r.id
        LEFT JOIN profiles p ON p.device = a.device AND p.key = r.key
        LEFT JOIN device_speeds s ON s.device = a.device AND s.key = r.key
        WHERE r.key IS NOT NULL AND r.placement IS NOT NULL
        GROUP BY r.id, r.key, r.placement, r.measured_s, r.step_s, r.priced_s, r.corrected, r.created_at, r.ended_at
    ) m
    GROUP BY device
)

-- When the run r of the job j has used up the job's time limit; null: it has none.
--# fragment run_limit_at(j, r)
CASE
    WHEN {j}.time_limit_ms > 0
        THEN {r}.created_at + ({j}.time_limit_ms - {j}.used_ms + {j}.limit_from_ms) * interval '1 ms'
END

-- Parts of statements that change named rows by a document `d` of changes: the limits as members of a document,
-- and the columns of limits as they are after the change.
--# fragment limits_of(t)
'devices_max', {t}.devices_max, 'running_max', {t}.running_max, 'queued_max', {t}.queued_max,
'month_seconds_max', {t}.month_seconds_max, 'kept_bytes_max', {t}.kept_bytes_max

--# fragment set_limits(t)
devices_max = coalesce((d ->> 'devices_max')::integer, {t}.devices_max),
running_max = coalesce((d ->> 'running_max')::integer, {t}.running_max),
queued_max = coalesce((d ->> 'queued_max')::integer, {t}.queued_max),
month_seconds_max = coalesce((d ->> 'month_seconds_max')::float8, {t}.month_seconds_max),
kept_bytes_max = coalesce((d ->> 'kept_bytes_max')::bigint, {t}.kept_bytes_max)

-- Whether the agent of node n is ending (leaving), or has ended after it said so (left).
--# fragment leaves(which)
({which} AND NOT n.barred AND coalesce(n.leaves_at <= now(), false))

--# fragment leaving
@leaves(n.state = 'alive')

--# fragment left
@leaves(n.state = 'unreachable')

-- A query that gives {state: number of jobs}; `:states` are the names of all states.
--# fragment count_jobs
SELECT json_object_agg(s.state, coalesce(c.n, 0))
FROM unnest(:states::text[]) AS s(state)
LEFT JOIN (SELECT state, sum(n)::bigint AS n FROM job_counts GROUP BY state) c USING (state)

-- SQL of the members of the scheduler's state: {"state","why"?,"since"?,"set_aside_count"}. state: "deciding",
-- "failing" (each try fails, since `since`), "silent" (nothing was decided for more than 10 s, since `since`), or
-- "absent" (no scheduler has ever led). `why`, of all states but the first, is a sentence for people. The members
-- change only with the state, so that answers that hold them keep their ETag.
--# fragment scheduler_members
'state', s.state, 'since', s.since,
'why', CASE s.state
    WHEN 'failing'
        THEN format(
            'the scheduler %s: since %s each try has failed (%s); its log has more',
            CASE s.task
                WHEN 'events' THEN 'cannot store what agents report'
                WHEN 'redis' THEN 'does not reach agents, as Redis does not answer'
                ELSE 'cannot decide, and nothing starts'
            END,
            s.since, s.error
        )
    WHEN 'silent'
        THEN format(
            'the scheduler has decided nothing since %s, and nothing starts: see whether motley-scheduler runs and reaches PostgreSQL (its log says why)',
            s.since
        )
    WHEN 'absent' THEN 'no scheduler has led yet, and nothing starts: motley-scheduler must run'
END,
'set_aside_count', coalesce(s.aside_count, 0)

-- The row s of these members.
--# fragment scheduler_row
(
    SELECT h.state, h.task, h.why AS error, h.failures, h.age, h.asides, h.aside_count,
        motley_time(
            date_trunc('second', CASE h.state WHEN 'failing' THEN h.failing_since WHEN 'silent' THEN h.good_at END)
        ) AS since
    FROM (
        SELECT r.*, extract(epoch FROM now() - r.good_at)::float8 AS age,
            CASE
                WHEN r.at IS NULL THEN 'absent'
                WHEN r.failing_since IS NOT NULL AND r.at > now() - interval '10 s' THEN 'failing'
                WHEN r.good_at < now() - interval '10 s' THEN 'silent'
                ELSE 'deciding'
            END AS state
        FROM (SELECT 1) one
        LEFT JOIN scheduler_health r ON true
    ) h
) s

--# fragment scheduler_state
(SELECT json_strip_nulls(json_build_object(@scheduler_members)) FROM @scheduler_row)

--# fragment micros(column)
coalesce((extract(epoch FROM {column}) * 1e6)::bigint, 0)

-- The columns that store_read_job reads, of a table j of jobs.
--# fragment job_columns
j.id, j.owner, j.priority, j.state, j.stop_why, j.attempt, j.losses, j.retries_max, j.time_limit_ms,
j.used_ms - j.limit_from_ms, @micros(j.not_before), j.steps, coalesce(j.run, 0), j.account, j.service,
@micros(j.eligible_at), @micros(j.begin_at), j.step, @micros(j.starts_at), j.wait_code, coalesce(j.wait_subject, -1),
j.why
--# columns job_row(id bigint, owner bigint, priority integer, state text, stop_why text, attempt integer,
--#    losses integer, retries_max integer, time_limit_ms bigint, used_ms bigint, not_before_us bigint,
--#    steps bigint, run bigint, account bigint, service smallint, eligible_us bigint, begin_us bigint,
--#    reported bigint, starts_us bigint, wait_code text, wait_subject bigint, why text)

-- What a change that only the owner or an administrator may make answers (store_one_change).
--# columns change_row(made boolean, owner text, document json)
