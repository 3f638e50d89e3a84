-- The statements of jobs_command.c.

--# fragment audited(actor, name)
told AS (
    @audit(
        {actor}, {name}, upd.id::text, json_build_object('state', upd.before),
        json_build_object('state', upd.state, 'steps', upd.steps), upd
    )
),

--# fragment notify
(SELECT count(pg_notify('motley_jobs', '')) FROM upd), (SELECT count(pg_notify('motley_events', id::text)) FROM upd),

--# fragment fetches(job)
EXISTS (SELECT 1 FROM job_fetches f WHERE f.job = {job}.id)

-- :from and :to are the edges of the state machine, :what is the event's name in the audit. The elements of an
-- array take the same event if their state has it. A later cancel replaces a hold or a drain. Nothing replaces a
-- cancel, and a person's command does not replace a stop for a fault or for the time limit. The columns:
--   asked    the job's id as it was given
--   state    the job's state before the command; null: the asker sees no such job
--   changed  the job, or an element of it, took the event
--   reached  of a resume, the step of the last checkpoint; wanted: the last step that is wanted
--   barred   an administrator holds the job, and the asker is no administrator
--   fetched  the job's model is still to be fetched, or was not before it ended
--   gone     when the job's checkpoints went by its group's rule
--# write job_command(ids bigint[], viewer, edges, stop_why text, actor, what text, owner text)
--#    -> asked bigint, state text, changed boolean, document json, owned boolean, owner text, bigint, bigint,
--#       reached integer, wanted integer, barred boolean, fetched boolean, gone text
WITH asked AS MATERIALIZED (
    SELECT id, n
    FROM unnest(:ids::bigint[]) WITH ORDINALITY AS a(id, n)
    UNION ALL
    SELECT j.id, j.id
    FROM users u
    JOIN jobs j ON j.owner = u.id
    WHERE u.name = :owner::text AND j.array_of IS NULL AND j.state NOT IN ('succeeded', 'failed', 'cancelled')
),
old AS (
    SELECT id, state, stop_why, owner, array_of, @owned(j, :viewer, :admin) AS owned,
        j.held_by_admin AND NOT :admin::boolean AND :what = 'job.release' AS barred
    FROM jobs j
    WHERE id IN (SELECT id FROM asked UNION SELECT e.id FROM asked a JOIN jobs e ON e.array_of = a.id)
        AND @visible(j, :viewer, :admin)
    ORDER BY id
    FOR UPDATE
),
upd AS (
    UPDATE jobs j
    SET state = e.t,
        updated_at = now(),
        stop_why = CASE
            WHEN e.t <> 'stopping' THEN NULL
            WHEN o.stop_why IN ('fault', 'time') OR (o.stop_why = 'cancel' AND o.state = 'stopping') THEN o.stop_why
            ELSE :stop_why
        END,
        why = CASE WHEN e.t = 'stopping' THEN j.why END,
        not_before = NULL,
        starts_at = NULL,
        starts_from = NULL,
        starts_to = NULL,
        wait_code = NULL,
        wait_subject = NULL,
        eligible_at = CASE WHEN e.t = 'queued' THEN now() ELSE j.eligible_at END,
        held_by_admin = CASE
            WHEN :what = 'job.hold' THEN j.held_by_admin OR (:admin::boolean AND j.owner <> :viewer::bigint)
            ELSE j.held_by_admin AND e.t <> 'queued'
        END,
        ended_at = CASE WHEN e.t = 'cancelled' THEN coalesce(j.ended_at, now()) END
    FROM old o, unnest(:from::text[], :to::text[]) AS e(f, t)
    WHERE j.id = o.id AND o.state = e.f AND o.owned AND NOT o.barred AND NOT (:what = 'job.release' AND @fetches(j))
    RETURNING j.id, j.state, j.steps, j.stop_why, j.array_of, o.state AS before
),
@audited(:actor, :what::text) said AS (
    INSERT INTO events (job, type, body)
    SELECT id, 'state', json_build_object('state', state, 'from', before, 'why', stop_why)
    FROM upd
    WHERE state <> before OR stop_why IS NOT NULL
)
SELECT asked.id, old.state, upd.id IS NOT NULL OR EXISTS (SELECT 1 FROM upd e WHERE e.array_of = asked.id),
    json_build_object(
        'id', old.id, 'state', coalesce(upd.state, old.state), 'steps', (SELECT steps FROM jobs j WHERE j.id = old.id)
    ),
    old.owned, (SELECT name FROM users WHERE id = old.owner), @notify 0, 0, old.barred, @fetches(old), NULL
FROM asked
LEFT JOIN old ON old.id = asked.id
LEFT JOIN upd ON upd.id = asked.id
ORDER BY asked.n;

-- As job_command; :more_steps is the number of further steps.
--# write job_resume(ids bigint[], viewer, edges, more_steps bigint, actor, what text)
--#    -> asked bigint, state text, changed boolean, document json, owned boolean, owner text, bigint, bigint,
--#       reached bigint, wanted bigint, barred boolean, fetched boolean, gone text
WITH asked AS MATERIALIZED (SELECT id FROM unnest(:ids::bigint[]) AS a(id)),
old AS (
    SELECT j.id, j.state, j.steps,
        coalesce((SELECT max(c.step) FROM checkpoints c WHERE c.job = j.id AND c.complete), 0) AS reached, j.owner,
        @owned(j, :viewer, :admin) AS owned, j.state = 'held' AND j.held_by_admin AND NOT :admin::boolean AS barred,
        j.files_gone_at
    FROM jobs j
    WHERE j.id IN (SELECT id FROM asked) AND @visible(j, :viewer, :admin)
    FOR UPDATE OF j
),
goal AS (
    SELECT *, CASE WHEN :more_steps::bigint > 0 THEN reached + :more_steps ELSE steps END AS wanted FROM old
),
upd AS (
    UPDATE jobs j
    SET state = e.t,
        updated_at = now(),
        stop_why = NULL,
        why = NULL,
        code = NULL,
        not_before = NULL,
        ended_at = NULL,
        swept_at = NULL,
        losses = 0,
        ended_by = NULL,
        held_by_admin = false,
        depends = j.attempt = 0 AND EXISTS (SELECT 1 FROM job_after WHERE job = j.id),
        limit_from_ms = CASE WHEN g.state = 'held' THEN j.limit_from_ms ELSE j.used_ms END,
        eligible_at = now(),
        steps = g.wanted,
        spec = CASE
            WHEN :more_steps > 0 THEN jsonb_set(j.spec::jsonb, '{train,steps}', to_jsonb(g.wanted))::json
            ELSE j.spec
        END
    FROM goal g, unnest(:from::text[], :to::text[]) AS e(f, t)
    WHERE j.id = g.id AND g.owned AND NOT g.barred AND g.state = e.f AND (g.wanted > g.reached OR g.wanted = 0)
        AND g.wanted <= 1000000000 AND j.array_size = 0 AND j.files_gone_at IS NULL AND NOT @fetches(j)
    RETURNING j.id, j.state, j.steps, j.stop_why, g.state AS before
),
@audited(:actor, :what::text) said AS (
    INSERT INTO events (job, type, body)
    SELECT id, 'state', json_build_object('state', state, 'from', before, 'why', 'resume')
    FROM upd
)
SELECT asked.id, g.state, upd.id IS NOT NULL, json_build_object('id', upd.id, 'state', upd.state, 'steps', upd.steps),
    g.owned, (SELECT name FROM users WHERE id = g.owner), @notify g.reached, g.wanted, g.barred, @fetches(g),
    motley_words(g.files_gone_at)
FROM asked
LEFT JOIN goal g ON g.id = asked.id
LEFT JOIN upd ON upd.id = asked.id;

--# write job_change(job bigint, viewer, changes jsonb, actor) -> change_row, void
WITH d AS (SELECT :changes::jsonb AS d),
old AS (
    SELECT id, owner, state, priority, begin_at, at_most, array_size, started_at, @owned(j, :viewer, :admin) AS owned
    FROM jobs j
    WHERE id = :job AND @visible(j, :viewer, :admin)
    FOR UPDATE
),
kept AS MATERIALIZED (
    SELECT CASE
        WHEN state IN ('succeeded', 'failed', 'cancelled')
            THEN motley_refuse('MO005', format('job %s is %s', id, state))
        WHEN d ? 'begin' AND state NOT IN ('held', 'queued')
            THEN motley_refuse('MO005', format('begin: job %s is %s', id, state))
        WHEN d ? 'begin' AND started_at IS NOT NULL
            THEN motley_refuse('MO005', format('begin: job %s is %s and has started before', id, state))
        WHEN d ? 'at_most' AND array_size = 0 THEN motley_refuse('MO005', format('at_most: job %s is no array', id))
        ELSE true
    END AS kept
    FROM old, d
    WHERE owned
),
upd AS (
    UPDATE jobs j
    SET priority = coalesce((d ->> 'priority')::integer, j.priority),
        begin_at = CASE WHEN d ? 'begin' THEN to_timestamp((d ->> 'begin_us')::bigint / 1e6) ELSE j.begin_at END,
        at_most = CASE
            WHEN d ? 'at_most' AND j.id = old.id THEN coalesce((d ->> 'at_most')::integer, 0)
            ELSE j.at_most
        END,
        spec = (j.spec::jsonb || (CASE WHEN j.id = old.id THEN d ELSE d - 'at_most' END) - 'begin_us')::json,
        updated_at = now()
    FROM old, d, kept
    WHERE kept AND (j.id = old.id OR (j.array_of = old.id AND j.state IN ('held', 'queued')))
    RETURNING j.id, j.state, j.priority, j.begin_at, j.at_most
),
said AS (
    @audit(
        :actor, 'job.change', upd.id::text,
        json_build_object('priority', old.priority, 'begin', motley_time(old.begin_at), 'at_most', old.at_most),
        (d.d - 'begin_us')::json, upd JOIN old USING (id), d
    )
)
SELECT old.owned, (SELECT name FROM users WHERE id = old.owner),
    json_build_object(
        'id', upd.id, 'state', upd.state, 'priority', upd.priority, 'begins', motley_time(upd.begin_at),
        'at_most', nullif(upd.at_most, 0)
    ), pg_notify('motley_jobs', '')
FROM old
LEFT JOIN upd ON upd.id = old.id;

--# write job_extend(job bigint, viewer, seconds bigint, actor) -> change_row
WITH old AS (
    SELECT id, owner, @owned(j, :viewer, :admin) AS owned FROM jobs j WHERE id = :job AND @visible(j, :viewer, :admin)
),
upd AS (SELECT id, motley_extend(id, :seconds, :admin::boolean) AS limit_ms FROM old WHERE owned),
said AS (
    @audit(
        :actor, 'job.extend', upd.id::text, NULL::json,
        json_build_object('seconds', :seconds, 'limit_ms', upd.limit_ms), upd
    )
)
SELECT old.owned, (SELECT name FROM users WHERE id = old.owner),
    json_build_object('id', upd.id, 'time_limit_s', upd.limit_ms / 1000.0)
FROM old
LEFT JOIN upd ON true;

--# write job_share(job bigint, viewer, sharing, actor) -> change_row
WITH old AS (
    SELECT id, owner, visibility, grp, @owned(j, :viewer, :admin) AS owned
    FROM jobs j
    WHERE id = :job AND @visible(j, :viewer, :admin)
    FOR UPDATE
),
upd AS (
    UPDATE jobs j
    SET visibility = :visibility, grp = motley_group(:visibility, :grp, :viewer, :admin)
    FROM old
    WHERE (j.id = old.id OR j.array_of = old.id) AND old.owned
    RETURNING j.id, j.visibility, old.visibility AS was
),
said AS (
    @audit(
        :actor, 'job.share', upd.id::text, json_build_object('visibility', upd.was),
        json_build_object('visibility', upd.visibility, 'group', :grp::text), upd
    )
)
SELECT old.owned, (SELECT name FROM users WHERE id = old.owner),
    json_build_object('id', upd.id, 'visibility', upd.visibility, 'group', :grp::text)
FROM old
LEFT JOIN upd ON upd.id = old.id;

--# fragment events(from_where)
SELECT json_build_object(
    'events', coalesce(
        json_agg(
            json_build_object('id', t.id, 'job', t.job, 'type', t.type, 'at', motley_time(t.at), 'body', t.body)
            ORDER BY t.id
        ), '[]'::json
    ),
    'next', CASE WHEN count(*) = :most THEN max(t.id) END, 'last', coalesce(max(t.id), :after)
)
FROM (SELECT e.* FROM {from_where} ORDER BY e.id LIMIT :most) t

--# read event_list(after bigint, most bigint, job bigint, type text) -> json
@events(events e WHERE e.id > :after AND e.job = :job AND (:type::text IS NULL OR e.type = :type));

--# read event_feed(after bigint, most bigint, states boolean, jobs bigint[]) -> json
SELECT json_build_object(
    'events', coalesce(
        json_agg(
            json_build_object(
                'id', t.id, 'job', t.job, 'owner', t.owner, 'type', t.type, 'at', motley_time(t.at), 'body', t.body
            ) ORDER BY t.id
        ), '[]'::json
    ),
    'horizon', (SELECT coalesce(max(id), 0) FROM events)
)
FROM (
    SELECT e.*, u.name AS owner
    FROM events e
    JOIN jobs j ON j.id = e.job
    JOIN users u ON u.id = j.owner
    WHERE e.id > :after AND (:states::boolean AND e.type = 'state' OR e.job = ANY (:jobs::bigint[]))
    ORDER BY e.id
    LIMIT :most
) t;
