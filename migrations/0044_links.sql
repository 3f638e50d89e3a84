-- The links that a scheduler keeps in memory between its decisions (store/links.h): which transaction wrote a link last.
ALTER TABLE links ADD COLUMN changed xid8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX links_changed ON links (changed);

-- The links that were written by transactions which the snapshot does not see, as motley_jobs_since does for jobs.
CREATE FUNCTION motley_links_since(seen pg_snapshot) RETURNS SETOF links LANGUAGE sql STABLE ROWS 10 SET enable_seqscan = off AS $$
    SELECT * FROM links WHERE changed >= pg_snapshot_xmin(seen) AND NOT pg_visible_in_snapshot(changed, seen)
$$;
