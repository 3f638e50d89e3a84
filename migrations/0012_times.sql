-- A time to the second as people read it in sentences, with its zone: clock_words() of common/clock.h in SQL.
CREATE FUNCTION motley_words(t timestamptz) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT to_char(t AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"')
$$;

-- As in 0006_sharing.sql, with times that say their zone.
CREATE OR REPLACE FUNCTION motley_place(of_job bigint) RETURNS TABLE (place integer, code text, subject bigint, why text)
    LANGUAGE sql STABLE ROWS 1 AS $$
    WITH undecided AS (
        SELECT *, CASE WHEN depends THEN NULL WHEN begin_at > now() THEN 'begin' WHEN not_before > now() THEN 'pause'
            WHEN array_size > 0 THEN 'array' END AS because
        FROM jobs WHERE id = of_job AND state = 'queued'
    )
    SELECT NULL::integer, u.because, NULL::bigint, CASE u.because
        WHEN 'begin' THEN 'it is to begin at ' || motley_words(u.begin_at)
        WHEN 'pause' THEN concat_ws('; ', u.why, 'it is tried again at ' || motley_words(u.not_before))
        ELSE format('%s of its %s elements are jobs (motley jobs --array %s)', u.array_made, u.array_size, u.id) END
    FROM undecided u WHERE u.because IS NOT NULL
    UNION ALL
    SELECT p.places[at.n], r.code, r.subject, r.why
    FROM queue_places p CROSS JOIN LATERAL (SELECT array_position(p.jobs, of_job) AS n) at JOIN queue_reasons r ON r.id = p.reasons[at.n]
    WHERE p.chunk = of_job >> 9 AND NOT EXISTS (SELECT FROM undecided u WHERE u.because IS NOT NULL)
$$;
