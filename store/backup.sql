-- The statements of backup.c.

--# read backup_snapshot -> name text, schema integer
SELECT pg_export_snapshot(), (SELECT coalesce(max(number), 0) FROM motley_migrations);

--# read backup_files -> sha256 text, size bigint, path text
SELECT sha256, size, path FROM blobs ORDER BY sha256;

--# read backup_tables -> count bigint
SELECT count(*)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'S') AND n.nspname NOT LIKE 'pg\_%' AND n.nspname <> 'information_schema';

-- The files of models are json, of which no key's place is meant to last.
--# write backup_take_in(left_out text[])
WITH b AS (
    UPDATE blobs SET path = NULL WHERE path IS NOT NULL AND sha256 <> ALL (:left_out) RETURNING 1
)
UPDATE models
SET files = (
    SELECT json_agg(CASE WHEN f ->> 'sha256' = ANY (:left_out) THEN f ELSE f - 'path' END ORDER BY n)
    FROM jsonb_array_elements(files::jsonb) WITH ORDINALITY AS e (f, n)
)
WHERE EXISTS (SELECT 1 FROM jsonb_array_elements(files::jsonb) f WHERE f ? 'path');
