-- The statements of load.c.

-- :device is one device, or null for all, and :by is "minute" or "hour": the length of one device's points.
--# read load_get(from_us bigint, to_us bigint, device text, by text) -> json
WITH span AS (
    SELECT to_timestamp(:from_us::bigint / 1e6) AS a, least(to_timestamp(:to_us::bigint / 1e6), now()) AS b
),
l AS MATERIALIZED (
    SELECT l.*
    FROM span, device_load l
    WHERE l.begins >= a AND l.begins < b AND (:device::text IS NULL OR l.device = :device)
),
sums AS (
    SELECT device, sum(compute_s) AS compute_s, sum(wait_s) AS wait_s, sum(send_s) AS send_s, max(temperature_c) AS t
    FROM l
    GROUP BY device
),
held AS (
    SELECT g.device, sum(extract(epoch FROM least(coalesce(g.ends, now()), b) - greatest(g.begins, a)))::float8 AS s
    FROM span, ledger g
    WHERE g.begins < b AND (g.ends IS NULL OR g.ends > a) AND (:device IS NULL OR g.device = :device)
    GROUP BY g.device
),
points AS (
    SELECT json_agg(
        json_build_object(
            'at', motley_time(at), 'compute_s', compute_s, 'wait_s', wait_s, 'send_s', send_s, 'temperature_c', t
        ) ORDER BY at
    ) AS list
    FROM (
        SELECT date_trunc(:by, begins, 'UTC') AS at, sum(compute_s) AS compute_s, sum(wait_s) AS wait_s,
            sum(send_s) AS send_s, max(temperature_c) AS t
        FROM l
        WHERE :device IS NOT NULL
        GROUP BY 1
    ) p
)
SELECT json_build_object(
    'from', motley_time(a), 'to', motley_time(b),
    'devices', (
        SELECT coalesce(
            json_agg(
                json_strip_nulls(
                    json_build_object(
                        'name', d.name, 'compute_s', coalesce(s.compute_s, 0), 'wait_s', coalesce(s.wait_s, 0),
                        'send_s', coalesce(s.send_s, 0), 'held_s', coalesce(h.s, 0),
                        'free_s', greatest(0, extract(epoch FROM b - a)::float8 - coalesce(h.s, 0)),
                        'temperature_c', s.t,
                        'points', CASE WHEN :device IS NOT NULL THEN coalesce(points.list, '[]'::json) END
                    )
                ) ORDER BY d.name COLLATE "C"
            ), '[]'::json
        )
        FROM points, devices d
        JOIN nodes n ON n.name = d.node AND n.removed_at IS NULL
        LEFT JOIN sums s ON s.device = d.name
        LEFT JOIN held h ON h.device = d.name
        WHERE :device IS NULL OR d.name = :device
    )
)
FROM span;
