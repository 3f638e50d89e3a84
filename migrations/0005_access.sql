-- Who may do what to which object. An object has one owner and a visibility: 'mine', 'group' (with a group) or
-- 'everyone'. The rules stand here, once; every statement that reads or changes what people own asks them.

-- May a person see it? Any owner that is no person's (null) is an administrator's.
CREATE FUNCTION motley_visible(owner bigint, visibility text, grp bigint, viewer bigint, groups bigint[], admin boolean)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT admin OR (viewer > 0 AND (owner = viewer OR visibility = 'everyone'
                                     OR (visibility = 'group' AND grp = ANY (groups))))
$$;

-- May a person change or remove it?
CREATE FUNCTION motley_owns(owner bigint, viewer bigint, admin boolean) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT admin OR (viewer > 0 AND owner = viewer)
$$;

CREATE FUNCTION motley_groups(viewer bigint) RETURNS bigint[] LANGUAGE sql STABLE AS $$
    SELECT coalesce(array_agg(grp), '{}') FROM group_members WHERE user_id = viewer
$$;

-- The group that an object is shared with: one that who shares is in. Null unless it is shared with a group.
CREATE FUNCTION motley_group(visibility text, called text, viewer bigint, admin boolean) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_id bigint;
BEGIN
    IF visibility <> 'group' THEN
        RETURN NULL;
    END IF;
    SELECT id INTO found_id FROM groups WHERE name = called AND (admin OR id = ANY (motley_groups(viewer)));
    IF found_id IS NULL THEN
        RAISE EXCEPTION 'no group of theirs' USING ERRCODE = 'MO003';
    END IF;
    RETURN found_id;
END $$;

-- What content a person brought or used in a job of their own, and what a node stored: a file (blobs.sha256), a data
-- set (datasets.key) or a model (models.content). Who holds a file has shown its bytes, or could read it at that time.
CREATE TABLE holds (
    what text NOT NULL,
    user_id bigint REFERENCES users ON DELETE CASCADE,
    node text,
    at timestamptz NOT NULL DEFAULT now(),
    -- Which contents a person sent: they count against what one may keep here.
    sent boolean NOT NULL DEFAULT false,
    CHECK ((user_id IS NULL) <> (node IS NULL))
);
CREATE UNIQUE INDEX holds_user ON holds (what, user_id) WHERE user_id IS NOT NULL;
CREATE UNIQUE INDEX holds_node ON holds (what, node) WHERE node IS NOT NULL;
CREATE INDEX holds_sent ON holds (user_id) WHERE sent;

-- The SHA-256 that documents refer to. Each takes only the members that the api itself filled or checked: a name of
-- a file, or any other text that a person chose, gives nobody the file whose hash it looks like.
CREATE FUNCTION motley_model_files(files jsonb) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_agg(f ->> 'sha256'), '{}') FROM jsonb_array_elements(files) f
$$;

CREATE FUNCTION motley_checkpoint_files(blobs jsonb) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_agg(coalesce(b.value ->> 'sha256', b.value #>> '{}')), '{}') FROM jsonb_each(blobs) b
$$;

-- Of a job: its model, its data sets, and the files that its specification names.
CREATE FUNCTION motley_job_files(inputs jsonb, spec jsonb) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT array_remove(ARRAY[inputs ->> 'model', inputs ->> 'train', inputs ->> 'eval',
            substring(spec #>> '{data,train}' FROM '^sha256:([0-9a-f]{64})$'),
            substring(spec #>> '{data,eval}' FROM '^sha256:([0-9a-f]{64})$'),
            substring(spec #>> '{method,start_from}' FROM '^sha256:([0-9a-f]{64})$')]
        || ARRAY(SELECT coalesce(a.value ->> 'sha256', a.value #>> '{}') FROM jsonb_each(
                 CASE jsonb_typeof(inputs -> 'adapter') WHEN 'object' THEN inputs -> 'adapter' ELSE '{}' END) a), NULL)
$$;
CREATE INDEX models_files ON models USING gin (motley_model_files(files::jsonb));
CREATE INDEX checkpoints_files ON checkpoints USING gin (motley_checkpoint_files(blobs));
CREATE INDEX jobs_shared_files ON jobs USING gin (motley_job_files(inputs::jsonb, spec::jsonb)) WHERE visibility <> 'mine';

-- Was this file of a job stored by a node that had a rank of it? What a job's nodes report alone gives nobody a file.
CREATE FUNCTION motley_made(file text, of_job bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT 1 FROM holds h JOIN assignments a ON a.node = h.node JOIN runs r ON r.id = a.run
                   WHERE h.what = file AND h.node IS NOT NULL AND r.job = of_job)
$$;

-- May a person see one of these contents (files, data sets, models) through a job that others share?
CREATE FUNCTION motley_shared(contents text[], viewer bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT 1 FROM jobs j WHERE j.visibility <> 'mine'
        AND motley_job_files(j.inputs::jsonb, j.spec::jsonb) && contents
        AND motley_visible(j.owner, j.visibility, j.grp, viewer, motley_groups(viewer), false))
$$;

-- May a person use this model? One used in a job of one's own, one under a name that one may see, or of a shared job.
CREATE FUNCTION motley_uses(model text, viewer bigint, admin boolean) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT admin OR (viewer > 0 AND (
        EXISTS (SELECT 1 FROM holds WHERE what = model AND user_id = viewer)
        OR EXISTS (SELECT 1 FROM model_names n WHERE n.content = model
                   AND motley_visible(n.owner, n.visibility, n.grp, viewer, motley_groups(viewer), false))
        OR motley_shared(ARRAY[model], viewer)))
$$;

-- May a person read this file? One's own, one of a model that one may use, or of a job that one may see.
CREATE FUNCTION motley_reads(file text, viewer bigint, admin boolean) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT admin OR (viewer > 0 AND (
        EXISTS (SELECT 1 FROM holds WHERE what = file AND user_id = viewer)
        OR EXISTS (SELECT 1 FROM models m WHERE motley_model_files(m.files::jsonb) @> ARRAY[file]
                   AND motley_uses(m.content, viewer, false))
        OR EXISTS (SELECT 1 FROM jobs j WHERE j.id IN (
                SELECT c.job FROM checkpoints c WHERE motley_checkpoint_files(c.blobs) @> ARRAY[file]
                UNION SELECT f.job FROM artifacts f WHERE f.sha256 = file)
            AND motley_visible(j.owner, j.visibility, j.grp, viewer, motley_groups(viewer), false)
            AND motley_made(file, j.id))
        OR motley_shared(ARRAY(SELECT file UNION SELECT key FROM datasets WHERE blob = file), viewer)))
$$;

-- May a node read this file? Its own, one of a run that it has a rank of, or of a model that it is to measure.
CREATE FUNCTION motley_node_reads(file text, of_node text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT 1 FROM holds WHERE what = file AND node = of_node)
        OR EXISTS (SELECT 1 FROM runs r JOIN assignments a ON a.run = r.id AND a.node = of_node JOIN jobs j ON j.id = r.job,
                unnest(motley_job_files(j.inputs::jsonb, '{}')) u
            WHERE r.state IN ('starting', 'running', 'stopping') AND (u = file
                OR EXISTS (SELECT 1 FROM datasets d WHERE d.key = u AND d.blob = file)
                OR EXISTS (SELECT 1 FROM models m WHERE m.content = u AND motley_model_files(m.files::jsonb) @> ARRAY[file])))
        OR EXISTS (SELECT 1 FROM runs r JOIN assignments a ON a.run = r.id AND a.node = of_node
                JOIN checkpoints c ON c.job = r.job
            WHERE r.state IN ('starting', 'running', 'stopping') AND motley_checkpoint_files(c.blobs) @> ARRAY[file]
            AND motley_made(file, r.job))
        OR EXISTS (SELECT 1 FROM requests q JOIN devices d ON d.name = q.device JOIN models m ON m.content = q.content
            WHERE q.kind = 'profile' AND q.state = 'open' AND d.node = of_node
            AND motley_model_files(m.files::jsonb) @> ARRAY[file])
$$;

-- Why a job may not come after those that its specification names, or null.
CREATE FUNCTION motley_after_refused(spec json, viewer bigint, admin boolean) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    of record;
BEGIN
    FOR of IN SELECT k.key, a.n - 1 AS at, a.value AS id, j.id AS found, j.state
        FROM (VALUES ('after'), ('after_any')) k(key), json_array_elements_text(spec -> k.key) WITH ORDINALITY a(value, n)
        LEFT JOIN jobs j ON j.id = a.value::bigint
            AND motley_visible(j.owner, j.visibility, j.grp, viewer, motley_groups(viewer), admin)
        ORDER BY k.key, a.n LOOP
        IF of.found IS NULL THEN
            RETURN format('%s[%s]: there is no job %s', of.key, of.at, of.id);
        ELSIF of.key = 'after' AND of.state IN ('failed', 'cancelled') THEN
            RETURN format('after[%s]: job %s is %s, and this one would wait for its success', of.at, of.id, of.state);
        END IF;
    END LOOP;
    RETURN NULL;
END $$;
