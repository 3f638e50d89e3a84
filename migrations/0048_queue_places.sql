-- The place of every queued job and why it waits, as the scheduler's last decision has them (scheduler/pass/pass_list.c).
-- All places change whenever a job starts, so they are arrays: a row of `jobs` for each would be far too slow.
CREATE TABLE queue_places (
    chunk bigint PRIMARY KEY,       -- of jobs whose id / 512 it is
    jobs bigint[] NOT NULL,
    places integer[] NOT NULL,      -- of each job, from 1
    reasons integer[] NOT NULL      -- of each job, queue_reasons.id
);
CREATE TABLE queue_reasons (
    id integer PRIMARY KEY,
    code text NOT NULL,
    subject bigint,                 -- the job that the reason names
    why text NOT NULL
);

CREATE FUNCTION motley_place(of_job bigint) RETURNS TABLE (place integer, code text, subject bigint, why text)
    LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT p.places[at.n], r.code, r.subject, r.why FROM queue_places p CROSS JOIN LATERAL (SELECT array_position(p.jobs, of_job) AS n) at
    JOIN queue_reasons r ON r.id = p.reasons[at.n] WHERE p.chunk = of_job >> 9
$$;

ALTER TABLE jobs DROP COLUMN place;
