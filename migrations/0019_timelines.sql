-- Under which timeline of PostgreSQL the last leader began: a standby that is promoted begins another one.
ALTER TABLE leader ADD COLUMN timeline text;

-- Whether commits waited for a standby when the leader last gave a sign of life: then a standby that is promoted has them all.
ALTER TABLE leader_beat ADD COLUMN synchronous boolean NOT NULL DEFAULT false;

CREATE FUNCTION motley_timeline() RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
$$;
CREATE FUNCTION motley_synchronous() RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') IN ('on', 'remote_apply')
$$;
