-- The statements of health.c.

-- :leader is the leader's epoch, :good_ms and :failing_ms are the times since the last good pass and since the
-- failing began, or null.
--# write health_put(leader bigint, name text, good_ms bigint?, failing_ms bigint?, failures bigint, task text,
--#    why text, asides json, aside_count bigint)
INSERT INTO scheduler_health AS h (name, good_at, failing_since, failures, task, why, asides, aside_count)
SELECT :name, now() - coalesce(:good_ms::bigint, 0) * interval '1 ms', now() - :failing_ms::bigint * interval '1 ms',
    :failures::bigint, :task, :why, :asides::json, :aside_count::bigint
FROM leader
WHERE epoch = :leader
ON CONFLICT (one) DO UPDATE
SET name = excluded.name,
    at = now(),
    failing_since = excluded.failing_since,
    good_at = CASE WHEN :good_ms::bigint IS NULL THEN h.good_at ELSE excluded.good_at END,
    failures = excluded.failures,
    task = excluded.task,
    why = excluded.why,
    asides = excluded.asides,
    aside_count = excluded.aside_count;

--# read health_get -> json
SELECT json_strip_nulls(
    json_build_object(
        @scheduler_members, 'age_s', s.age, 'failures', coalesce(s.failures, 0), 'set_aside',
        coalesce(s.asides, '[]'::json)
    )
)
FROM @scheduler_row;
