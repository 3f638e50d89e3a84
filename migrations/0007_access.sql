-- Who may do what to which object. An object has one owner and a visibility: 'mine', 'group' (with a group) or
-- 'everyone'. The rules stand here, once; every statement that reads or changes what people own asks them.

CREATE TABLE groups (
    id bigserial PRIMARY KEY,
    name text NOT NULL UNIQUE CHECK (octet_length(name) BETWEEN 1 AND 200),
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE group_members (
    grp bigint NOT NULL REFERENCES groups ON DELETE CASCADE,
    user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE,
    PRIMARY KEY (user_id, grp)
);

ALTER TABLE users ADD COLUMN priority_max integer NOT NULL DEFAULT 100;   -- above it a submit is refused
ALTER TABLE tokens ADD COLUMN made_by bigint;                             -- the token it was made with

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

ALTER TABLE jobs ADD COLUMN visibility text NOT NULL DEFAULT 'mine' CHECK (visibility IN ('mine', 'group', 'everyone')),
    ADD COLUMN grp bigint REFERENCES groups ON DELETE SET NULL;
CREATE INDEX jobs_shared ON jobs (id) WHERE visibility <> 'mine';

-- Names of models are unique per owner. What everybody could use so far stays everyone's.
ALTER TABLE model_names DROP CONSTRAINT model_names_pkey;
ALTER TABLE model_names ADD COLUMN id bigserial PRIMARY KEY,
    ADD COLUMN visibility text NOT NULL DEFAULT 'everyone' CHECK (visibility IN ('mine', 'group', 'everyone')),
    ADD COLUMN grp bigint REFERENCES groups ON DELETE SET NULL;
ALTER TABLE model_names ALTER COLUMN visibility SET DEFAULT 'mine';
UPDATE model_names SET owner = (SELECT min(id) FROM users) WHERE owner IS NULL;
DELETE FROM model_names WHERE owner IS NULL;
ALTER TABLE model_names ALTER COLUMN owner SET NOT NULL;
CREATE UNIQUE INDEX model_names_own ON model_names (owner, name);
CREATE INDEX model_names_name ON model_names (name);
CREATE INDEX model_names_content ON model_names (content);

ALTER TABLE imported_profiles DROP CONSTRAINT imported_profiles_pkey;
ALTER TABLE imported_profiles ADD COLUMN grp bigint REFERENCES groups ON DELETE SET NULL,
    ADD COLUMN visibility text NOT NULL DEFAULT 'everyone' CHECK (visibility IN ('mine', 'group', 'everyone'));
CREATE UNIQUE INDEX imported_profiles_own ON imported_profiles (device, key, coalesce(imported_by, 0));

-- What content a person brought or used in a job of their own, and what a node stored: a file (blobs.sha256), a data
-- set (datasets.key) or a model (models.content). Who holds a file has shown its bytes, or could read it at that time.
CREATE TABLE holds (
    what text NOT NULL,
    user_id bigint REFERENCES users ON DELETE CASCADE,
    node text,
    at timestamptz NOT NULL DEFAULT now(),
    CHECK ((user_id IS NULL) <> (node IS NULL))
);
CREATE UNIQUE INDEX holds_user ON holds (what, user_id) WHERE user_id IS NOT NULL;
CREATE UNIQUE INDEX holds_node ON holds (what, node) WHERE node IS NOT NULL;

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
CREATE INDEX artifacts_files ON artifacts (sha256);
CREATE INDEX datasets_blob ON datasets (blob);
CREATE INDEX jobs_shared_files ON jobs USING gin (motley_job_files(inputs::jsonb, spec::jsonb)) WHERE visibility <> 'mine';

-- What jobs already use is held by their owners; what nodes already stored, by the nodes of those runs.
INSERT INTO holds (what, user_id)
    SELECT h, j.owner FROM jobs j, unnest(motley_job_files(j.inputs::jsonb, j.spec::jsonb)) h
    UNION SELECT d.blob, j.owner FROM jobs j JOIN datasets d ON d.key IN (j.inputs ->> 'train', j.inputs ->> 'eval');
INSERT INTO holds (what, node)
    SELECT h, a.node FROM checkpoints c JOIN assignments a ON a.run = c.run, unnest(motley_checkpoint_files(c.blobs)) h
    UNION SELECT f.sha256, a.node FROM artifacts f JOIN runs r ON r.job = f.job JOIN assignments a ON a.run = r.id;

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

-- What people and administrators changed. Documents hold no secret.
CREATE TABLE audit (
    id bigserial PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    who text NOT NULL,             -- the name of the user, or node:NAME
    user_id bigint,
    token bigint,                  -- tokens.id, not the token
    address text,                  -- where the request came from
    what text NOT NULL,            -- "model.put"
    object text NOT NULL,
    before json,
    after json
);
