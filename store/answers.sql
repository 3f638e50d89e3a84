-- The statements of answers.c.

-- If another statement claims the same key and commits at this moment, the SELECT does not see its row yet; the
-- answer is then that of a request under way ("claimed" false, "status" null).
--# write answer_claim(asker bigint, key text, digest bytea(32)) -> json
WITH made AS (
    INSERT INTO answers (asker, key, digest) VALUES (:asker, :key, :digest) ON CONFLICT DO NOTHING RETURNING 1
)
SELECT json_build_object(
    'claimed', EXISTS (SELECT 1 FROM made), 'same', coalesce(a.digest = :digest, true), 'status', a.status,
    'kept', a.kept, 'body', a.body, 'age_s', coalesce(extract(epoch FROM now() - a.at), 0)
)
FROM (SELECT 1) x
LEFT JOIN answers a ON a.asker = :asker AND a.key = :key;

--# write answer_keep(asker bigint, key text, digest bytea(32), status integer, body json as text, kept boolean)
UPDATE answers
SET status = :status, body = :body::json, kept = :kept
WHERE asker = :asker AND key = :key AND digest = :digest;

--# write answer_drop(asker bigint, key text, digest bytea(32))
DELETE FROM answers WHERE asker = :asker AND key = :key AND digest = :digest AND status IS NULL;
