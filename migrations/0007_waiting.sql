-- Of an unreachable node: when what runs there is given up, unless the node is heard before.
ALTER TABLE nodes ADD COLUMN lost_at timestamptz;

-- A queued job's place and why it waits. Of what the scheduler does not decide about now (a job that is to begin later or
-- pauses after a loss, an array) there is no place.
CREATE OR REPLACE FUNCTION motley_place(of_job bigint) RETURNS TABLE (place integer, code text, subject bigint, why text)
    LANGUAGE sql STABLE ROWS 1 AS $$
    WITH undecided AS (
        SELECT *, CASE WHEN depends THEN NULL WHEN begin_at > now() THEN 'begin' WHEN not_before > now() THEN 'pause'
            WHEN array_size > 0 THEN 'array' END AS because
        FROM jobs WHERE id = of_job AND state = 'queued'
    )
    SELECT NULL::integer, u.because, NULL::bigint, CASE u.because
        WHEN 'begin' THEN 'is to begin at ' || to_char(u.begin_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS')
        WHEN 'pause' THEN concat_ws('; ', u.why, 'is tried again at ' || to_char(u.not_before AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'))
        ELSE format('%s of its %s elements are jobs (motley jobs --array %s)', u.array_made, u.array_size, u.id) END
    FROM undecided u WHERE u.because IS NOT NULL
    UNION ALL
    SELECT p.places[at.n], r.code, r.subject, r.why
    FROM queue_places p CROSS JOIN LATERAL (SELECT array_position(p.jobs, of_job) AS n) at JOIN queue_reasons r ON r.id = p.reasons[at.n]
    WHERE p.chunk = of_job >> 9 AND NOT EXISTS (SELECT FROM undecided u WHERE u.because IS NOT NULL)
$$;
