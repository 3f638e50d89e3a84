-- The statements of leases.c.

--# fragment lease_json
json_build_object(
    'id', l.id, 'device', l.device, 'holder', u.name, 'account', l.account, 'kind', l.kind, 'note', l.note,
    'begins', motley_time(l.begins), 'ends', motley_time(l.ends), 'active', l.begins <= now() AND l.ends > now()
)

--# read lease_list -> json
SELECT json_build_object('leases', coalesce(json_agg(@lease_json ORDER BY l.begins, l.id), '[]'::json))
FROM leases l
JOIN users u ON u.id = l.user_id
WHERE l.ends > now();

--# write lease_make(user bigint, device text, kind text, note text, begins timestamptz, seconds bigint,
--#    ahead_max bigint, admin boolean) -> bigint
SELECT motley_lease(
    :user::bigint, :device, :kind, :note, coalesce(:begins::timestamptz, now()), :seconds::bigint, :ahead_max::bigint,
    :admin::boolean
);

--# write lease_make_any(user bigint, device text, kind text, note text, begins timestamptz, seconds bigint,
--#    ahead_max bigint, admin boolean) -> bigint
SELECT motley_lease_any(
    :user::bigint, :device, :kind, :note, coalesce(:begins::timestamptz, now()), :seconds::bigint, :ahead_max::bigint,
    :admin::boolean
);

--# write lease_made(actor) -> json
WITH l AS (SELECT * FROM leases WHERE id = currval('leases_id_seq')),
said AS (
    @audit(
        :actor, 'lease.make', l.device, NULL::json, json_build_object('lease', l.id, 'ends', motley_time(l.ends)), l
    )
)
SELECT @lease_json
FROM l
JOIN users u ON u.id = l.user_id;

-- A lease that has begun keeps its beginning. A booking that is withdrawn becomes an empty interval at the present
-- moment: if it kept its time, jobs would still not be allowed to run past it.
--# write lease_change(viewer, lease bigint, seconds bigint, actor) -> change_row, void
WITH old AS (
    SELECT l.*, u.name AS holder, (:admin::boolean OR l.user_id = :viewer::bigint) AS own
    FROM leases l
    JOIN users u ON u.id = l.user_id
    WHERE l.id = :lease AND l.ends > now()
    FOR UPDATE OF l
),
checked AS MATERIALIZED (
    SELECT :seconds::bigint = 0 OR kind <> 'lease'
        OR motley_lease_check(id, user_id, :admin::boolean, begins, ends + :seconds::bigint * interval '1 s') AS good
    FROM old
    WHERE own
),
upd AS (
    UPDATE leases l
    SET begins = CASE WHEN :seconds::bigint > 0 THEN l.begins ELSE least(l.begins, now()) END,
        ends = CASE WHEN :seconds::bigint > 0 THEN l.ends + :seconds::bigint * interval '1 s' ELSE now() END
    FROM old, checked
    WHERE l.id = old.id AND old.own AND checked.good
    RETURNING l.*
),
said AS (
    @audit(
        :actor, CASE WHEN :seconds::bigint > 0 THEN 'lease.extend' ELSE 'lease.end' END, upd.device,
        json_build_object('lease', upd.id), json_build_object('ends', motley_time(upd.ends)), upd
    )
)
SELECT own, holder, (SELECT @lease_json FROM upd l JOIN users u ON u.id = l.user_id), pg_notify('motley_jobs', '')
FROM old;
