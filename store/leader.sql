-- The statements of leader.c.

--# columns leader_row(epoch bigint, pid integer, synchronous boolean)

-- :waited says whether commits waited for a standby, as far as we know. The keepalives let the server notice a
-- dead client on another machine. A frozen leader keeps its connection, so it is detected by its last beat. Only
-- the session that wrote the last beat is ended, never a session that has just won the lock.
--# write leader_stand(name text, silent_ms integer, waited boolean) -> leader_row, behind boolean, bigint
WITH alive AS MATERIALIZED (
    SELECT set_config('tcp_keepalives_idle', '2', false), set_config('tcp_keepalives_interval', '1', false),
        set_config('tcp_keepalives_count', '2', false)
),
taken AS MATERIALIZED (SELECT pg_try_advisory_lock(5570193040) AS ok FROM alive),
here AS MATERIALIZED (
    SELECT motley_timeline() AS timeline,
        :waited::boolean AND coalesce((SELECT synchronous FROM leader_beat), false) AS whole
    FROM taken
    WHERE taken.ok
),
up AS (
    UPDATE leader
    SET epoch = epoch + 1,
        name = :name,
        since = now(),
        timeline = CASE WHEN whole OR leader.timeline IS NULL THEN here.timeline ELSE leader.timeline END
    FROM here
    RETURNING epoch, leader.timeline <> here.timeline AS behind
),
beat AS (
    INSERT INTO leader_beat (pid, beat, synchronous)
    SELECT pg_backend_pid(), now(), motley_synchronous() AND NOT up.behind
    FROM up
    ON CONFLICT (one) DO UPDATE SET pid = excluded.pid, beat = excluded.beat, synchronous = excluded.synchronous
    RETURNING 1
),
frozen AS (
    SELECT count(pg_terminate_backend(l.pid)) AS ended
    FROM taken, pg_locks l, leader_beat b
    WHERE NOT taken.ok AND l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
        AND (l.classid::bigint << 32 | l.objid::bigint) = 5570193040 AND l.pid = b.pid
        AND b.beat < now() - :silent_ms::integer * interval '1 ms'
)
SELECT up.epoch, pg_backend_pid(), motley_synchronous(), up.behind, frozen.ended
FROM frozen
LEFT JOIN up ON true;

-- Checks whether the session still holds the lock and the epoch is unchanged, and writes a beat at most every 500
-- ms.
--# write leader_confirm -> leader_row
WITH beat AS (
    UPDATE leader_beat
    SET beat = now(), synchronous = motley_synchronous()
    WHERE pid = pg_backend_pid() AND beat < now() - interval '500 ms'
    RETURNING 1
)
SELECT epoch, pg_backend_pid(), motley_synchronous()
FROM leader;
