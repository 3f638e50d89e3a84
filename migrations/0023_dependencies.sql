-- Jobs that come after others. A job with `depends` does not start: the scheduler clears it once those others have ended
-- as they are to, and fails the job once that cannot be. A job names only jobs that were there before it, so there are no
-- cycles.
CREATE TABLE job_after (
    job bigint NOT NULL REFERENCES jobs,
    after bigint NOT NULL REFERENCES jobs,
    however boolean NOT NULL,                       -- any end will do; false: it must succeed
    PRIMARY KEY (job, after, however)
);
ALTER TABLE jobs ADD COLUMN depends boolean NOT NULL DEFAULT false;
CREATE INDEX jobs_depends ON jobs (id) WHERE depends AND state IN ('held', 'queued');

-- Why a job may not come after those that its specification names, or null.
CREATE FUNCTION motley_after_refused(spec json, viewer bigint, admin boolean) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    of record;
BEGIN
    FOR of IN SELECT k.key, a.n - 1 AS at, a.value AS id, j.id AS found, j.state
        FROM (VALUES ('after'), ('after_any')) k(key), json_array_elements_text(spec -> k.key) WITH ORDINALITY a(value, n)
        LEFT JOIN jobs j ON j.id = a.value::bigint
            AND motley_visible(j.owner, j.visibility, j.grp, viewer, motley_groups(viewer), admin)
        ORDER BY k.key, a.n LOOP
        IF of.found IS NULL THEN
            RETURN format('%s[%s]: there is no job %s', of.key, of.at, of.id);
        ELSIF of.key = 'after' AND of.state IN ('failed', 'cancelled') THEN
            RETURN format('after[%s]: job %s is %s, and this one would wait for its success', of.at, of.id, of.state);
        END IF;
    END LOOP;
    RETURN NULL;
END $$;
