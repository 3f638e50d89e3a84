-- The statements of restore.c.

-- Takes the leader's lock, since a leader could write in the meantime.
--# write restore_lock -> won boolean
SELECT pg_try_advisory_xact_lock(5570193040);

--# write restore_incarnation -> incarnation text
UPDATE cluster
SET incarnation = fresh.text, since = now(), restored = true
FROM (SELECT motley_incarnation() AS text) fresh
WHERE fresh.text > incarnation
RETURNING incarnation;

-- Advances each sequence by a million, and in addition, for each second since a leader's last sign of life, by the
-- most ids that are given out in one second. The leader's epoch rises too, so that an old leader that still runs
-- somewhere finds itself replaced.
--# write restore_sequences -> bigint, seconds bigint
WITH quiet AS (
    SELECT greatest(
        0,
        extract(
            epoch
            FROM clock_timestamp() - greatest(
                (SELECT max(beat) FROM leader_beat), (SELECT max(updated_at) FROM jobs), (SELECT since FROM leader)
            )
        )
    )::bigint AS seconds
),
moved AS (
    SELECT setval(
        format('%I.%I', s.schemaname, s.sequencename)::regclass,
        coalesce(s.last_value, 0) + 1000000 + q.seconds * CASE s.sequencename
            WHEN 'events_id_seq' THEN 100000
            ELSE 10000
        END
    )
    FROM pg_sequences s, quiet q
    WHERE s.schemaname = current_schema()
),
led AS (
    UPDATE leader SET epoch = epoch + 1000000 + q.seconds, timeline = motley_timeline() FROM quiet q RETURNING 1
)
SELECT (SELECT count(*) FROM moved), (SELECT seconds FROM quiet);

-- :why is for people.
--# write restore_runs(why text) -> jobs bigint, bigint, bigint, bigint
WITH r AS (
    UPDATE runs
    SET state = 'lost', ended_at = now(), why = :why
    WHERE state IN ('starting', 'running', 'stopping')
    RETURNING 1
),
a AS (
    UPDATE assignments SET state = 'lost' WHERE state IN ('sent', 'ready', 'running') RETURNING 1
),
j AS (
    UPDATE jobs
    SET state = CASE stop_why WHEN 'cancel' THEN 'cancelled' WHEN 'hold' THEN 'held' ELSE 'queued' END,
        ended_at = CASE stop_why WHEN 'cancel' THEN now() END,
        stop_why = NULL,
        not_before = NULL,
        updated_at = now(),
        why = :why || '; goes on from its last checkpoint'
    WHERE state IN ('starting', 'running', 'stopping')
    RETURNING id, state, why, attempt
),
e AS (
    INSERT INTO events (job, type, body)
    SELECT id, 'state', json_build_object('state', state, 'why', why, 'attempt', attempt)
    FROM j
    RETURNING 1
)
SELECT (SELECT count(*) FROM j), (SELECT count(*) FROM r), (SELECT count(*) FROM a), (SELECT count(*) FROM e);

-- Forgets the messages for agents, the measurements that agents were asked for, and the numbers of agents' last
-- events. A backup from another server may also name transactions that this server has not begun yet
-- (jobs.changed).
--# write restore_forget -> bigint, bigint, bigint, bigint
WITH o AS (DELETE FROM outbox RETURNING 1),
q AS (DELETE FROM requests RETURNING 1),
j AS (UPDATE jobs SET changed = pg_current_xact_id() WHERE changed > pg_current_xact_id()),
m AS (DELETE FROM measures RETURNING 1),
n AS (
    UPDATE nodes
    SET boot = NULL, last_seq = 0, state = CASE state WHEN 'joining' THEN state ELSE 'unreachable' END
    RETURNING 1
)
SELECT (SELECT count(*) FROM o), (SELECT count(*) FROM q), (SELECT count(*) FROM m), (SELECT count(*) FROM n);
