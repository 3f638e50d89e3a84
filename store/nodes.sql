-- The statements of nodes.c.

--# read node_list -> json
SELECT json_build_object(
    'nodes', coalesce(
        json_agg(
            json_build_object(
                'name', n.name,
                'state', CASE
                    WHEN n.barred THEN 'barred'
                    WHEN @leaving THEN 'leaving'
                    WHEN @left THEN 'left'
                    ELSE n.state
                END,
                'leaves', motley_time(n.leaves_at), 'refused', n.refused, 'clock_ahead_s', n.clock_ahead_s,
                'lacking', l.text,
                'why', nullif(
                    concat_ws(
                        '; ',
                        CASE
                            WHEN @leaving
                                THEN
                                    'its agent is stopping: no job starts there, and those that run store a checkpoint and move'
                            WHEN @left THEN 'its agent ended in good order: the node is back when it is started again'
                            WHEN n.leaves_at > now()
                                THEN format(
                                    'its machine is taken away soon: jobs leave it at %s', motley_words(n.leaves_at)
                                )
                        END,
                        CASE
                            WHEN n.state = 'unreachable' AND NOT n.barred AND NOT @left
                                THEN format(
                                    'not heard since %s: its jobs go on elsewhere from their last checkpoint%s; if its agent does not run, start it again (without the token), else its network is cut',
                                    motley_words(n.last_seen),
                                    CASE WHEN n.lost_at > now() THEN ' from ' || motley_words(n.lost_at) || ' on' END
                                )
                        END,
                        CASE
                            WHEN n.state = 'joining' AND n.enrolled_at < now() - interval '10 s'
                                THEN
                                    'it joined over the api and was never heard over Redis: its agent''s log says why'
                        END,
                        CASE
                            WHEN abs(n.clock_ahead_s) >= 30
                                THEN format(
                                    'its clock is %s %s the scheduler''s',
                                    justify_interval(make_interval(secs => round(abs(n.clock_ahead_s)))),
                                    CASE WHEN n.clock_ahead_s > 0 THEN 'ahead of' ELSE 'behind' END
                                )
                        END,
                        l.text, n.inventory ->> 'unconfined', n.mark
                    ), ''
                ),
                'marked', motley_time(n.marked_at), 'address', n.address, 'release', n.inventory ->> 'release',
                'protocol', (n.inventory ->> 'protocol')::bigint,
                'disk_bytes', (n.inventory ->> 'disk_bytes')::bigint,
                'disk_free_bytes', (n.inventory ->> 'disk_free_bytes')::bigint,
                'faults', coalesce(n.inventory -> 'faults', '[]'), 'machine_id', n.machine_id,
                'last_seen', motley_time(n.last_seen), 'enrolled', motley_time(n.enrolled_at),
                'devices', (SELECT count(*) FROM devices d WHERE d.node = n.name AND d.present)
            ) ORDER BY n.name COLLATE "C"
        ), '[]'::json
    ),
    'incarnation', (SELECT incarnation FROM cluster),
    'unknown_jobs', (
        SELECT coalesce(
            json_agg(
                json_build_object('job', u.job, 'node', u.node, 'run', u.run, 'reported', motley_time(u.reported_at))
                ORDER BY u.job, u.node
            ), '[]'::json
        )
        FROM (SELECT * FROM unknown_jobs ORDER BY job DESC, node LIMIT 1000) u
    )
)
FROM nodes n
CROSS JOIN LATERAL (
    SELECT string_agg(format('%s: %s', d.names, d.why), '; ') AS text
    FROM (
        SELECT string_agg(key, ', ' ORDER BY key) AS names, value AS why
        FROM json_each_text(
            CASE json_typeof(n.inventory -> 'lacking') WHEN 'object' THEN n.inventory -> 'lacking' ELSE '{}' END
        )
        GROUP BY value
        ORDER BY 1
    ) d
) l
WHERE n.removed_at IS NULL;

-- Motley's own keys replace equal keys of a device's inventory. The job that runs on a device is shown only to
-- those who may see it, and its owner to everybody, as in the queue.
--# fragment job_seen
@visible(j, :viewer, :admin)

--# fragment lacks
n.inventory -> 'lacking' ->> d.name

--# fragment device_state
CASE
    WHEN NOT d.present THEN 'gone'
    WHEN n.state <> 'alive' OR n.barred THEN 'unreachable'
    WHEN d.drained OR n.leaves_at <= now() THEN CASE WHEN r.job IS NULL THEN 'drained' ELSE 'draining' END
    WHEN r.job IS NOT NULL THEN 'busy'
    WHEN @lacks IS NOT NULL THEN 'lacking'
    WHEN EXISTS (SELECT FROM leases l WHERE l.device = d.name AND l.begins <= now() AND l.ends > now()) THEN 'leased'
    ELSE 'free'
END

--# fragment devices_from
FROM devices d
JOIN nodes n ON n.name = d.node AND n.removed_at IS NULL
LEFT JOIN assignments a ON @rank_lives(a) AND a.device = d.name
LEFT JOIN runs r ON r.id = a.run

-- The time until which a job on a drained device may stay there.
--# fragment drain_at(at)
CASE WHEN isfinite({at}) THEN motley_time({at}) WHEN {at} IS NOT NULL THEN 'after jobs' END

--# fragment devices
SELECT json_agg(
    (
        d.inventory::jsonb || jsonb_build_object(
            'name', d.name, 'group', (SELECT g.name FROM groups g WHERE g.id = d.owner), 'node', d.node,
            'kind', d.kind, 'memory_limit_bytes', d.memory_limit_bytes, 'drained', d.drained,
            'machine_id', n.machine_id, 'health', d.health::jsonb, 'drain_why', d.drain_why,
            'drain_at', @drain_at(d.drain_at),
            'catalogue', (
                SELECT p.document -> 'catalogue'
                FROM profiles p
                WHERE p.device = d.name AND p.digest = d.digest AND p.document -> 'catalogue' IS NOT NULL
                ORDER BY p.measured_at DESC
                LIMIT 1
            ),
            'job', CASE WHEN @job_seen THEN r.job END, 'job_owner', (SELECT u.name FROM users u WHERE u.id = j.owner),
            'lacks', @lacks, 'state', @device_state
        )
    )::json ORDER BY d.name COLLATE "C"
) @devices_from
LEFT JOIN jobs j ON j.id = r.job

--# read glance(states text[]) -> json
SELECT json_build_object(
    'jobs', (@count_jobs), 'devices', (SELECT coalesce(json_object_agg(d.name, @device_state), '{}') @devices_from)
);

--# read device_list(viewer) -> json
SELECT json_build_object(
    'devices', coalesce((@devices), '[]'::json),
    'unused', coalesce(
        (
            SELECT jsonb_agg(
                c.card || jsonb_build_object('node', n.name) ORDER BY n.name, c.card ->> 'kind', c.card ->> 'index'
            )
            FROM nodes n,
                jsonb_array_elements(
                    CASE jsonb_typeof(n.inventory::jsonb -> 'cards')
                        WHEN 'array' THEN n.inventory::jsonb -> 'cards'
                        ELSE '[]'
                    END
                ) AS c(card)
            WHERE n.removed_at IS NULL AND c.card ->> 'usable' = 'false'
        ), '[]'::jsonb
    )
);

--# read cluster_get(viewer, content text) -> json
SELECT json_build_object(
    'devices', coalesce((@devices), '[]'::json),
    'profiles', (
        SELECT coalesce(json_agg(p.document), '[]'::json)
        FROM profiles p
        JOIN devices d ON d.name = p.device AND d.digest = p.digest
        WHERE :content::text IS NULL OR p.content = :content
    ),
    'links', (SELECT coalesce(json_agg(document), '[]'::json) FROM links)
);

--# write device_drain(viewer, name text, drained boolean, actor, why text, at timestamptz) -> json, void
WITH old AS (SELECT name, drained FROM devices WHERE :name IN (name, node) FOR UPDATE),
upd AS (
    UPDATE devices d
    SET drained = :drained,
        drain_why = CASE WHEN :drained THEN coalesce(:why, d.drain_why) END,
        drain_at = CASE WHEN :drained THEN :at::timestamptz END,
        faults = CASE WHEN :drained THEN d.faults ELSE 0 END
    FROM old
    WHERE d.name = old.name
    RETURNING d.name, d.node, d.drained, d.drain_why, d.drain_at, old.drained AS was
),
again AS (
    DELETE FROM requests
    WHERE NOT :drained AND (state = 'failed' OR deadline_at < now())
        AND device IN (SELECT name FROM upd UNION SELECT node FROM upd)
),
fresh AS (
    UPDATE nodes SET starts_from = now() WHERE NOT :drained AND name IN (SELECT node FROM upd)
),
said AS (
    @audit(
        :actor, CASE WHEN upd.drained THEN 'device.drain' ELSE 'device.undrain' END, upd.name,
        json_build_object('drained', upd.was),
        json_build_object('drained', upd.drained, 'why', upd.drain_why, 'at', @drain_at(upd.drain_at)), upd
    )
)
SELECT json_build_object(
    'name', :name, 'drained', bool_and(u.drained), 'devices', json_agg(u.name ORDER BY u.name),
    'drain_why', min(u.drain_why), 'drain_at', @drain_at(min(u.drain_at)),
    'job', (
        SELECT min(j.id)
        FROM assignments a
        JOIN runs r ON r.id = a.run
        JOIN jobs j ON j.id = r.job
        WHERE a.device IN (SELECT name FROM upd) AND a.state IN ('sent', 'ready', 'running')
            AND @visible(j, :viewer, :admin)
    )
), pg_notify('motley_jobs', '')
FROM upd u
HAVING count(*) > 0;

--# write device_set(name text, changes jsonb, actor) -> json, void
WITH d AS (SELECT :changes::jsonb AS d),
old AS (SELECT name, owner FROM devices WHERE name = :name FOR UPDATE),
upd AS (
    UPDATE devices
    SET owner = CASE WHEN d ->> 'group' IS NULL THEN NULL ELSE motley_group('group', d ->> 'group', 0, true) END
    FROM old, d
    WHERE devices.name = old.name
    RETURNING devices.name, (SELECT g.name FROM groups g WHERE g.id = old.owner) AS was
),
said AS (
    @audit(:actor, 'device.set', upd.name, json_build_object('group', upd.was), d.d::json, upd, d)
)
SELECT json_build_object('name', upd.name, 'group', d.d -> 'group'), pg_notify('motley_jobs', '')
FROM upd, d;

--# write measure_want(key text, spec json, inputs json, seconds float8) -> void
WITH old AS (DELETE FROM measures WHERE until < now() AND key <> :key),
new AS (
    INSERT INTO measures (key, spec, inputs, until)
    VALUES (:key, :spec, :inputs, now() + make_interval(secs => :seconds))
    ON CONFLICT (key) DO UPDATE SET until = greatest(measures.until, excluded.until)
    RETURNING key
)
SELECT pg_notify('motley_jobs', '')
FROM new;
