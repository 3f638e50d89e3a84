-- The statements of migrate.c.

--# write migrate_lock -> text, void
SELECT set_config('lock_timeout', '30s', false), pg_advisory_lock(5570193042);

--# write migrate_unlock -> boolean
SELECT pg_advisory_unlock(5570193042);

--# read migrate_applied -> number integer, name text, digest text
SELECT number, name, digest FROM motley_migrations ORDER BY number;

--# read migrate_size -> bytes bigint
SELECT pg_database_size(current_database());

--# write bootstrap_token(name text, hash bytea(32), scopes integer, note text, expires_us bigint)
WITH made AS (
    INSERT INTO users (name) VALUES (:name) ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING id
)
INSERT INTO tokens (hash, user_id, scopes, note, expires_at)
SELECT :hash, id, :scopes::integer, :note,
    CASE WHEN :expires_us::bigint > 0 THEN to_timestamp(:expires_us::bigint / 1e6) END
FROM made
ON CONFLICT (hash) DO NOTHING;
