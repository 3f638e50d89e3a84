-- The statements of jobs_remove.c.

--# write job_remove(job bigint, viewer, actor) -> change_row
WITH old AS MATERIALIZED (
    SELECT j.id, j.name, @owned(j, :viewer, :admin) AS owned, u.name AS owner
    FROM jobs j
    JOIN users u ON u.id = j.owner
    WHERE j.id = :job AND @visible(j, :viewer, :admin)
    FOR UPDATE OF j
),
done AS MATERIALIZED (SELECT id, name, owner, motley_job_remove(id) AS doc FROM old WHERE owned),
said AS (
    @audit(
        :actor, 'job.remove', done.id::text, json_build_object('name', done.name, 'owner', done.owner), done.doc, done
    )
)
SELECT owned, owner, (SELECT doc FROM done)
FROM old;

-- Content that several of a person's jobs left counts once for that person, and once for each of several persons.
-- :user is the person, who is told of their groups; 0: everybody.
--# read storage_get(user bigint) -> json
WITH left_over AS (
    SELECT DISTINCT j.owner, 'results' AS what, f.sha256
    FROM artifacts f
    JOIN jobs j ON j.id = f.job
    WHERE :user::bigint IN (0, j.owner)
    UNION
    SELECT j.owner, 'checkpoints', s.sha256
    FROM checkpoints c
    JOIN jobs j ON j.id = c.job, unnest(motley_checkpoint_files(c.blobs)) AS s(sha256)
    WHERE :user::bigint IN (0, j.owner)
    UNION
    SELECT h.user_id, 'uploads', h.what
    FROM holds h
    WHERE h.sent AND :user::bigint IN (0, h.user_id)
),
sums AS (
    SELECT l.owner, coalesce(sum(b.size) FILTER (WHERE what = 'results'), 0) AS results,
        coalesce(sum(b.size) FILTER (WHERE what = 'checkpoints'), 0) AS checkpoints,
        coalesce(sum(b.size) FILTER (WHERE what = 'uploads'), 0) AS uploads
    FROM left_over l
    JOIN blobs b ON b.sha256 = l.sha256
    WHERE b.path IS NULL
    GROUP BY l.owner
)
SELECT json_build_object(
    'users', coalesce(
        json_agg(
            json_build_object(
                'user', u.name,
                'jobs', (
                    SELECT count(*)
                    FROM jobs j
                    WHERE j.owner = u.id AND j.state IN ('succeeded', 'failed', 'cancelled')
                ),
                'checkpoints_bytes', s.checkpoints, 'results_bytes', s.results, 'uploads_bytes', s.uploads,
                'kept_bytes_max', u.kept_bytes_max
            ) ORDER BY s.checkpoints + s.results + s.uploads DESC, u.name
        ), '[]'::json
    ),
    'groups', (
        SELECT coalesce(
            json_agg(
                json_build_object('group', g.name, 'retention_s', motley_retention(g.id)) ORDER BY g.name COLLATE "C"
            ), '[]'::json
        )
        FROM groups g
        WHERE motley_retention(g.id) > 0 AND (:user = 0 OR g.id = ANY (motley_groups(:user)))
    ),
    'database_bytes', pg_database_size(current_database())
)
FROM sums s
JOIN users u ON u.id = s.owner;
