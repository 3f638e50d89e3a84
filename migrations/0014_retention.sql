-- How long groups keep the checkpoints and results of jobs that have ended.

-- Of groups on the way to the root the nearest one that has a time counts; 0: none.
ALTER TABLE groups ADD COLUMN retention_s double precision NOT NULL DEFAULT 0 CHECK (retention_s >= 0);
ALTER TABLE jobs ADD COLUMN files_gone_at timestamptz; -- null: what the job made has not gone by such a rule
CREATE INDEX jobs_files ON jobs (account, ended_at) WHERE ended_at IS NOT NULL AND files_gone_at IS NULL;

-- Seconds for which an account keeps what a job left; null: for ever.
CREATE FUNCTION motley_retention(of_account bigint) RETURNS double precision LANGUAGE sql STABLE AS $$
    WITH RECURSIVE up AS (
        SELECT parent, retention_s FROM groups WHERE id = of_account
        UNION ALL SELECT g.parent, g.retention_s FROM up JOIN groups g ON g.id = up.parent WHERE up.retention_s = 0
    )
    SELECT retention_s FROM up WHERE retention_s > 0
$$;

-- Removes the checkpoints and results of at most `most` jobs whose time is over, those that ended first, but for those from which
-- a job starts that has not ended. Files that nothing refers to any more are made due for the sweep of unused files, as in
-- motley_job_remove. Answers how many jobs they were.
CREATE FUNCTION motley_files_prune(most bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[];
    made text[];
BEGIN
    WITH kept AS MATERIALIZED (SELECT id, motley_retention(id) * interval '1 s' AS for_s FROM groups),
        needed AS MATERIALIZED (SELECT DISTINCT unnest(motley_job_files(inputs::jsonb, spec::jsonb)) AS sha256 FROM jobs
            WHERE state IN ('held', 'queued', 'starting', 'running', 'stopping'))
    SELECT coalesce(array_agg(id), '{}') INTO ids FROM (SELECT j.id FROM kept k JOIN jobs j ON j.account = k.id
        WHERE j.ended_at < now() - k.for_s AND j.ended_at IS NOT NULL AND j.files_gone_at IS NULL
            AND NOT EXISTS (SELECT 1 FROM artifacts f JOIN needed n ON n.sha256 = f.sha256 WHERE f.job = j.id)
            AND NOT EXISTS (SELECT 1 FROM checkpoints c, unnest(motley_checkpoint_files(c.blobs)) AS s(sha256)
                JOIN needed n ON n.sha256 = s.sha256 WHERE c.job = j.id)
        ORDER BY j.ended_at LIMIT most FOR UPDATE OF j SKIP LOCKED) old;
    made := ARRAY(SELECT sha256 FROM artifacts WHERE job = ANY (ids)
        UNION SELECT unnest(motley_checkpoint_files(blobs)) FROM checkpoints WHERE job = ANY (ids));
    DELETE FROM checkpoints WHERE job = ANY (ids);
    DELETE FROM artifacts WHERE job = ANY (ids);
    UPDATE jobs SET files_gone_at = now() WHERE id = ANY (ids);
    UPDATE blobs b SET used_at = 'epoch' WHERE b.sha256 = ANY (made) AND b.path IS NULL AND b.used_at < now() - interval '1 hour'
        AND NOT EXISTS (SELECT 1 FROM artifacts f WHERE f.sha256 = b.sha256)
        AND NOT EXISTS (SELECT 1 FROM checkpoints c WHERE motley_checkpoint_files(c.blobs) @> ARRAY[b.sha256])
        AND NOT EXISTS (SELECT 1 FROM models m WHERE motley_model_files(m.files::jsonb) @> ARRAY[b.sha256]);
    RETURN cardinality(ids);
END $$;
