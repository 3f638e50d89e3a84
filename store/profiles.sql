-- The statements of profiles.c.

-- Imported profiles with the column `owner` that @visible needs.
--# fragment imported
(SELECT p.*, p.imported_by AS owner FROM imported_profiles p)

--# read profile_list(content text, viewer) -> json
WITH all_of AS (
    SELECT p.device, p.key, p.content, p.digest, p.document, p.measured_at AS at, 'measured' AS origin, NULL AS owner
    FROM profiles p
    JOIN devices d ON d.name = p.device AND d.digest = p.digest
    UNION ALL
    SELECT i.device, i.key, i.content, i.digest, i.document, NULL, 'imported', u.name
    FROM @imported i
    LEFT JOIN users u ON u.id = i.owner
    WHERE @visible(i, :viewer, :admin)
)
SELECT json_build_object(
    'profiles', (
        SELECT coalesce(
            json_agg(
                document::jsonb || jsonb_strip_nulls(
                    jsonb_build_object(
                        'device', device, 'key', key, 'content', content, 'digest', digest,
                        'measured_at', motley_time(at), 'origin', origin, 'owner', owner
                    )
                ) ORDER BY device COLLATE "C", key COLLATE "C", origin, owner COLLATE "C" NULLS FIRST
            ), '[]'::json
        )
        FROM all_of
        WHERE :content::text IS NULL OR content = :content
    ),
    'links', (SELECT coalesce(json_agg(document), '[]'::json) FROM links)
);

--# read link_list -> json
SELECT json_build_object(
    'links', coalesce(
        json_agg(
            document::jsonb || jsonb_build_object(
                'from', from_node, 'to', to_node, 'measured_at', motley_time(measured_at)
            ) ORDER BY from_node COLLATE "C", to_node COLLATE "C"
        ), '[]'::json
    )
)
FROM links
WHERE NOT EXISTS (SELECT 1 FROM nodes WHERE removed_at IS NOT NULL AND name IN (from_node, to_node));

--# read profile_plan(key text, viewer) -> json
WITH measured AS (
    SELECT p.device, p.document, s.speed, t.runs AS taught
    FROM profiles p
    JOIN devices d ON d.name = p.device AND d.digest = p.digest
    LEFT JOIN device_speeds s ON s.device = p.device AND s.key = p.key AND s.at > p.measured_at
    LEFT JOIN @taught_runs t ON t.device = p.device
    WHERE p.key = :key
),
imported AS (
    SELECT DISTINCT ON (i.device) i.device, i.document
    FROM @imported i
    JOIN devices d ON d.name = i.device AND d.digest = i.digest
    WHERE i.key = :key AND i.device NOT IN (SELECT device FROM measured) AND @visible(i, :viewer, :admin)
    ORDER BY i.device, i.owner IS NOT DISTINCT FROM :viewer DESC, i.imported_at DESC
)
SELECT coalesce(
    json_agg(
        json_build_object(
            'device', device, 'document', document, 'imported', imported, 'speed', speed, 'taught', taught
        )
    ), '[]'::json
)
FROM (
    SELECT device, document::jsonb, false AS imported, speed, taught
    FROM measured
    UNION ALL
    SELECT device, document::jsonb || '{"origin": "imported"}', true, NULL, NULL
    FROM imported
) x;

--# write profile_import(profiles json, source text, viewer, sharing, actor) -> json
WITH c AS (
    SELECT DISTINCT ON (x.device, x.key) x.*
    FROM json_to_recordset(:profiles::json) AS x(device text, key text, content text, digest text, document json)
),
put AS (
    INSERT INTO imported_profiles (device, key, content, digest, document, source, imported_by, visibility, grp)
    SELECT device, key, content, digest, document, :source, nullif(:viewer::bigint, 0), :visibility,
        motley_group(:visibility, :grp, :viewer, :admin)
    FROM c
    ON CONFLICT (device, key, coalesce(imported_by, 0)) DO UPDATE
    SET content = excluded.content,
        digest = excluded.digest,
        document = excluded.document,
        source = excluded.source,
        visibility = excluded.visibility,
        grp = excluded.grp,
        imported_at = now()
    RETURNING device, key
),
told AS (SELECT count(*) AS n, json_agg(DISTINCT device) AS devices FROM put),
said AS (
    @audit(
        :actor, 'profile.import', :source, NULL::json,
        json_build_object('imported', told.n, 'devices', told.devices, 'visibility', :visibility::text), told
    )
)
SELECT json_build_object('imported', n)
FROM told;
