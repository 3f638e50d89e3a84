-- Finished jobs that are removed.

-- Removes a job that has ended, with the elements of an array, and all that it left: runs, checkpoints, results, metrics and
-- events. The ledger keeps what it used. Files that nothing refers to any more are made due for the sweep of unused files, but
-- for those that somebody sent or asked for within an hour. Answers {"id", "removed": [ids], "bytes": of those files}. MO005: the
-- job has not ended, is shared, or another job that has not ended comes after it or starts from what it made.
CREATE FUNCTION motley_job_remove(of_job bigint) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[] := ARRAY(SELECT id FROM jobs WHERE id = of_job OR array_of = of_job ORDER BY id FOR UPDATE);
    of_runs bigint[] := ARRAY(SELECT id FROM runs WHERE job = ANY (ids));
    made text[] := ARRAY(SELECT sha256 FROM artifacts WHERE job = ANY (ids)
        UNION SELECT unnest(motley_checkpoint_files(blobs)) FROM checkpoints WHERE job = ANY (ids));
    other record;
    freed bigint;
BEGIN
    SELECT id, state INTO other FROM jobs WHERE id = ANY (ids) AND state NOT IN ('succeeded', 'failed', 'cancelled') ORDER BY id LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'job % is %: only a job that has ended can be removed (motley cancel %)', other.id, other.state, other.id
            USING ERRCODE = 'MO005';
    END IF;
    SELECT j.id, CASE j.visibility WHEN 'group' THEN 'group ' || g.name ELSE 'everyone' END AS whom INTO other
        FROM jobs j LEFT JOIN groups g ON g.id = j.grp WHERE j.id = ANY (ids) AND j.visibility <> 'mine' ORDER BY j.id LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'job % is shared with %: take it back first (motley share % mine)', other.id, other.whom, other.id
            USING ERRCODE = 'MO005';
    END IF;
    SELECT a.after, j.id INTO other FROM job_after a JOIN jobs j ON j.id = a.job WHERE a.after = ANY (ids) AND j.id <> ALL (ids)
        AND j.state NOT IN ('succeeded', 'failed', 'cancelled') ORDER BY j.id LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'job % comes after job %, and has not ended', other.id, other.after USING ERRCODE = 'MO005';
    END IF;
    SELECT j.id INTO other FROM jobs j WHERE cardinality(made) > 0 AND j.id <> ALL (ids)
        AND j.state IN ('held', 'queued', 'starting', 'running', 'stopping')
        AND motley_job_files(j.inputs::jsonb, j.spec::jsonb) && made ORDER BY j.id LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'job % starts from what job % made, and has not ended', other.id, of_job USING ERRCODE = 'MO005';
    END IF;
    DELETE FROM traces WHERE run = ANY (of_runs);
    DELETE FROM outbox WHERE run = ANY (of_runs);
    DELETE FROM assignments WHERE run = ANY (of_runs);
    DELETE FROM checkpoints WHERE job = ANY (ids);
    DELETE FROM artifacts WHERE job = ANY (ids);
    DELETE FROM metrics WHERE job = ANY (ids);
    DELETE FROM events WHERE job = ANY (ids);
    DELETE FROM sooner WHERE job = ANY (ids);
    DELETE FROM job_after WHERE job = ANY (ids) OR after = ANY (ids);
    UPDATE jobs SET run = NULL WHERE id = ANY (ids);
    DELETE FROM runs WHERE id = ANY (of_runs);
    DELETE FROM jobs WHERE id = ANY (ids) AND id <> of_job;
    DELETE FROM jobs WHERE id = of_job;
    WITH free AS (SELECT b.sha256, b.size FROM blobs b WHERE b.sha256 = ANY (made) AND b.path IS NULL
            AND NOT EXISTS (SELECT 1 FROM artifacts f WHERE f.sha256 = b.sha256)
            AND NOT EXISTS (SELECT 1 FROM checkpoints c WHERE motley_checkpoint_files(c.blobs) @> ARRAY[b.sha256])
            AND NOT EXISTS (SELECT 1 FROM models m WHERE motley_model_files(m.files::jsonb) @> ARRAY[b.sha256])),
        due AS (UPDATE blobs b SET used_at = 'epoch' FROM free WHERE b.sha256 = free.sha256 AND b.used_at < now() - interval '1 hour')
    SELECT coalesce(sum(size), 0) INTO freed FROM free;
    RETURN json_build_object('id', of_job, 'removed', ids, 'bytes', freed);
END $$;
