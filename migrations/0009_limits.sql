-- How many jobs are in each state, as steps up and down whose sum is the count: counting the jobs anew would cost
-- more the longer a cluster lives.
CREATE TABLE job_counts (
    id bigserial PRIMARY KEY,
    state text NOT NULL,
    n bigint NOT NULL
);
INSERT INTO job_counts (state, n) SELECT state, count(*) FROM jobs GROUP BY state;

CREATE FUNCTION motley_jobs_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO job_counts (state, n) SELECT state, count(*) FROM added GROUP BY state;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_added AFTER INSERT ON jobs REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION motley_jobs_added();

CREATE FUNCTION motley_job_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO job_counts (state, n) VALUES (OLD.state, -1), (NEW.state, 1);
    RETURN NULL;
END $$;
CREATE TRIGGER job_moved AFTER UPDATE OF state ON jobs
    FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION motley_job_moved();

CREATE FUNCTION motley_jobs_removed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO job_counts (state, n) SELECT state, -count(*) FROM removed GROUP BY state;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_removed AFTER DELETE ON jobs REFERENCING OLD TABLE AS removed
    FOR EACH STATEMENT EXECUTE FUNCTION motley_jobs_removed();

-- Now and then the steps are added together. Rows that another transaction is adding together are left to it:
-- nobody waits, so that no two can wait for each other.
CREATE FUNCTION motley_job_counts_fold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        DELETE FROM job_counts WHERE id IN (SELECT id FROM job_counts FOR UPDATE SKIP LOCKED) RETURNING state, n
    )
    INSERT INTO job_counts (state, n) SELECT state, sum(n) FROM gone GROUP BY state HAVING sum(n) <> 0;
    RETURN NULL;
END $$;
CREATE TRIGGER job_counts_fold AFTER INSERT ON job_counts
    FOR EACH ROW WHEN (NEW.id % 1000 = 0) EXECUTE FUNCTION motley_job_counts_fold();

-- Which contents a person sent: they count against what one may keep here.
ALTER TABLE holds ADD COLUMN sent boolean NOT NULL DEFAULT false;
CREATE INDEX holds_sent ON holds (user_id) WHERE sent;
