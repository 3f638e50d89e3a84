-- The statements of models.c.

--# write model_put(name text, content text, config json, files json, info json, viewer, sharing, actor, base json,
--#    fetched boolean)
WITH kept AS (
    INSERT INTO models (content, config, files, info)
    VALUES (:content, :config, :files, :info)
    ON CONFLICT (content) DO UPDATE SET files = excluded.files, info = coalesce(excluded.info, models.info)
    RETURNING content
),
was AS (SELECT content, visibility FROM model_names WHERE owner = :viewer AND name = :name),
put AS (
    INSERT INTO model_names (name, content, owner, visibility, grp, base, fetched)
    SELECT :name, content, :viewer, :visibility, motley_group(:visibility, :grp, :viewer, :admin), :base::json,
        :fetched::boolean
    FROM kept
    ON CONFLICT (owner, name) DO UPDATE
    SET content = excluded.content,
        created_at = now(),
        visibility = excluded.visibility,
        grp = excluded.grp,
        base = excluded.base,
        fetched = excluded.fetched
    RETURNING name, owner, content, visibility
)
@audit(
    :actor, 'model.put', u.name || '/' || put.name,
    (SELECT json_build_object('content', content, 'visibility', visibility) FROM was),
    json_build_object('content', put.content, 'visibility', put.visibility), put JOIN users u ON u.id = put.owner
);

-- A bare name means the asker's own model; else the oldest one that the asker may see as a person; else one that
-- the asker sees only as an administrator.
--# fragment named
named AS (
    SELECT n.id, n.name, n.content, n.owner, u.name AS owner_name, n.visibility, n.grp, n.base
    FROM model_names n
    JOIN users u ON u.id = n.owner
    WHERE n.name IN (:called, substring(:called FROM '/([^/]*)$'))
        AND (n.name = :called OR u.name || '/' || n.name = :called) AND @visible(n, :viewer, :admin)
    ORDER BY n.owner = :viewer DESC, @visible(n, :viewer, false) DESC, n.id
    LIMIT 1
)

--# fragment model_json
'owner', n.owner_name, 'visibility', n.visibility, 'group', (SELECT name FROM groups WHERE id = n.grp),
'content', m.content, 'info', m.info, 'base', n.base

--# read model_get(called text, viewer) -> json
WITH @named,
by_id AS (
    SELECT n.id, n.name, n.content, n.owner, u.name AS owner_name, n.visibility, n.grp, n.base
    FROM model_names n
    JOIN users u ON u.id = n.owner
    WHERE n.content = :called AND @visible(n, :viewer, :admin)
    ORDER BY n.owner = :viewer DESC, n.created_at DESC, n.id
    LIMIT 1
),
n AS (
    SELECT *
    FROM named
    UNION ALL
    SELECT *
    FROM by_id
    WHERE NOT EXISTS (SELECT 1 FROM named)
    UNION ALL
    SELECT NULL, content, content, NULL, NULL, NULL, NULL, NULL
    FROM models
    WHERE content = :called AND motley_uses(:called, :viewer, :admin)
    LIMIT 1
)
SELECT json_build_object(
    'name', n.name, @model_json, 'config', m.config, 'files', m.files, 'created', motley_time(m.created_at)
)
FROM n
JOIN models m USING (content);

--# read model_list(viewer) -> json
SELECT json_build_object(
    'models', coalesce(
        json_agg(
            json_build_object('name', n.name, @model_json, 'created', motley_time(n.created_at))
            ORDER BY n.name COLLATE "C", n.owner_name COLLATE "C"
        ), '[]'::json
    )
)
FROM (
    SELECT n.*, u.name AS owner_name
    FROM model_names n
    JOIN users u ON u.id = n.owner
    WHERE @visible(n, :viewer, :admin)
) n
JOIN models m USING (content);

--# write model_remove(called text, viewer, actor) -> change_row
WITH @named,
gone AS (
    DELETE FROM model_names n USING named WHERE n.id = named.id AND @owned(n, :viewer, :admin) RETURNING n.content
),
said AS (
    @audit(
        :actor, 'model.remove', named.owner_name || '/' || named.name, json_build_object('content', gone.content),
        NULL::json, gone, named
    )
)
SELECT EXISTS (SELECT 1 FROM gone), owner_name, json_build_object('name', name, 'owner', owner_name)
FROM named;

--# write blob_put(sha256 text, size bigint, path text, manifest json, user bigint, node text)
WITH put AS (
    INSERT INTO blobs (sha256, size, path, manifest)
    VALUES (:sha256, :size, :path, :manifest)
    ON CONFLICT (sha256) DO UPDATE
    SET manifest = coalesce(excluded.manifest, blobs.manifest),
        used_at = now(),
        path = CASE WHEN excluded.path IS NULL THEN NULL ELSE blobs.path END
    RETURNING sha256
)
INSERT INTO holds (what, user_id, node, sent)
SELECT sha256, nullif(:user::bigint, 0), :node::text, true
FROM put
WHERE :user > 0 OR :node IS NOT NULL
ON CONFLICT DO NOTHING;

-- Whether the asking person, or the asking node if :node is not null, may read a file.
--# fragment may_read
(motley_reads(:sha256, :viewer, :admin) OR (:node::text IS NOT NULL AND motley_node_reads(:sha256, :node)))

--# fragment blob_json
json_build_object('sha256', sha256, 'size', size, 'path', path, 'manifest', manifest)

-- The statement updates used_at, since the asker may be about to refer to the file.
--# read blob_get(sha256 text, viewer, node text) -> json
WITH may AS MATERIALIZED (SELECT * FROM blobs WHERE sha256 = :sha256 AND @may_read),
used AS (
    UPDATE blobs b
    SET used_at = now()
    FROM may
    WHERE b.sha256 = may.sha256 AND b.used_at < now() - interval '1 minute'
)
SELECT @blob_json
FROM may;

--# write blob_hold(sha256 text, viewer, node text) -> json
WITH may AS MATERIALIZED (SELECT * FROM blobs WHERE sha256 = :sha256 AND @may_read),
used AS (
    UPDATE blobs b
    SET used_at = now()
    FROM may
    WHERE b.sha256 = may.sha256 AND b.used_at < now() - interval '1 minute'
),
held AS (
    INSERT INTO holds (what, user_id, node)
    SELECT sha256, nullif(:viewer::bigint, 0), :node
    FROM may
    WHERE :viewer > 0 OR :node IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT @blob_json
FROM may;

--# write job_hold(user bigint, inputs jsonb, spec jsonb)
INSERT INTO holds (what, user_id)
SELECT h, :user::bigint
FROM unnest(motley_job_files(:inputs::jsonb, :spec::jsonb)) h
UNION
SELECT blob, :user::bigint
FROM datasets
WHERE key IN (:inputs::jsonb ->> 'train', :inputs::jsonb ->> 'eval')
ON CONFLICT DO NOTHING;

-- `named` lists every file that something refers to: stored checkpoints, artifacts, encoded rows, models, and the
-- adapters that jobs start from. The DELETE checks used_at again, because a file may have been used in the
-- meantime.
--# write blobs_drop(unused_s float8, most bigint) -> json
WITH old AS (
    SELECT sha256
    FROM blobs
    WHERE path IS NULL AND used_at < now() - make_interval(secs => :unused_s)
    ORDER BY used_at
    LIMIT :most
),
named AS (
    SELECT coalesce(b.value ->> 'sha256', b.value #>> '{}') AS sha256
    FROM checkpoints c, jsonb_each(c.blobs) b
    UNION
    SELECT sha256
    FROM artifacts
    UNION
    SELECT blob
    FROM datasets
    UNION
    SELECT f.value ->> 'sha256'
    FROM models m, json_array_elements(m.files) f
    UNION
    SELECT coalesce(a.value ->> 'sha256', a.value #>> '{}')
    FROM jobs j,
        json_each(
            CASE json_typeof(j.inputs -> 'adapter') WHEN 'object' THEN j.inputs -> 'adapter' ELSE '{}'::json END
        ) a
),
gone AS (
    DELETE FROM blobs b
    USING old
    WHERE b.sha256 = old.sha256 AND b.used_at < now() - make_interval(secs => :unused_s)
        AND NOT EXISTS (SELECT 1 FROM named n WHERE n.sha256 = b.sha256)
    RETURNING b.sha256
),
let_go AS (DELETE FROM holds h USING gone WHERE h.what = gone.sha256),
kept AS (
    UPDATE blobs b
    SET used_at = now()
    FROM old
    WHERE b.sha256 = old.sha256 AND EXISTS (SELECT 1 FROM named n WHERE n.sha256 = b.sha256)
)
SELECT json_build_object('sha256', coalesce(json_agg(sha256), '[]'::json), 'looked_at', (SELECT count(*) FROM old))
FROM gone;

-- What the person sent, and what the server fetched for them, unless it is of the model :besides.
--# read blobs_sent(user bigint, besides text) -> bigint
SELECT coalesce(sum(size), 0)::bigint
FROM (
    SELECT b.sha256, b.size
    FROM holds h
    JOIN blobs b ON b.sha256 = h.what AND b.path IS NULL
    WHERE h.sent AND h.user_id = :user
    UNION
    SELECT f.value ->> 'sha256', (f.value ->> 'size')::bigint
    FROM model_names n
    JOIN models m USING (content), json_array_elements(m.files) f
    WHERE n.owner = :user AND n.fetched AND n.base ->> 'name' IS DISTINCT FROM :besides
) s;

--# write dataset_put(key text, blob text, stats json, sizes bytea)
INSERT INTO datasets (key, blob, stats, sizes)
VALUES (:key, :blob, :stats, :sizes)
ON CONFLICT (key) DO UPDATE SET blob = excluded.blob, stats = excluded.stats, sizes = excluded.sizes, used_at = now();

-- The statement updates used_at, since the asker may be about to refer to the data set.
--# read dataset_get(key text) -> key text, blob text, stats json, sizes bytea
WITH used AS (
    UPDATE datasets SET used_at = now() WHERE key = :key AND used_at < now() - interval '1 minute'
)
SELECT key, blob, stats, sizes
FROM datasets
WHERE key = :key;

--# read dataset_may(key text, viewer, source text) -> integer
SELECT 1
WHERE EXISTS (SELECT 1 FROM blobs WHERE sha256 = :source AND motley_reads(:source, :viewer, :admin)) OR :admin
    OR EXISTS (SELECT 1 FROM holds WHERE what = :key AND user_id = :viewer)
    OR motley_shared(ARRAY[:key::text], :viewer);
