-- Which life of the database this is. A backup that is restored gets a new one (`motley-scheduler --restored`): the
-- wall clock in microseconds as 16 hexadecimal digits, so that a later one compares greater, and eight random ones.
CREATE FUNCTION motley_incarnation() RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1e6)::bigint), 16, '0') || '-' ||
           left(gen_random_uuid()::text, 8)
$$;
CREATE TABLE cluster (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    incarnation text NOT NULL CHECK (incarnation ~ '^[0-9a-f]{16}-[0-9a-f]{8}$'),
    since timestamptz NOT NULL DEFAULT now(),
    restored boolean NOT NULL DEFAULT false
);
INSERT INTO cluster (incarnation) VALUES (motley_incarnation());

-- Jobs that agents remember from an earlier incarnation and that this database has never heard of: they were
-- submitted after the backup.
CREATE TABLE unknown_jobs (
    job bigint NOT NULL,
    node text NOT NULL,
    run bigint NOT NULL,                          -- the newest there
    incarnation text NOT NULL,                    -- under which it ran
    reported_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job, node)
);

-- What grows for ever: a finished job keeps its summary (its row, its evaluations and samples, its last step, its
-- last run), the rest goes after a while; data sets go when nobody has used them for long.
ALTER TABLE jobs ADD COLUMN swept_at timestamptz;
CREATE INDEX jobs_unswept ON jobs (ended_at) WHERE ended_at IS NOT NULL AND swept_at IS NULL;
CREATE INDEX jobs_run ON jobs (run) WHERE run IS NOT NULL;      -- a run is removed without reading all jobs
CREATE INDEX checkpoints_run ON checkpoints (run);
ALTER TABLE datasets ADD COLUMN used_at timestamptz NOT NULL DEFAULT now();
CREATE INDEX datasets_used ON datasets (used_at);
