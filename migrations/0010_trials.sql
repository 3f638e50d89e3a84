-- Trial steps: the first steps of a job, run on its best plans in turn (docs/PLANNER.md).

-- What was tried, as people see it, and the plans by their digests. The plan with which the job's next run begins is named in
-- jobs.inputs (`plan`). Once a trial has ended only that plan is kept.
CREATE TABLE trials (
    job bigint PRIMARY KEY REFERENCES jobs ON DELETE CASCADE,
    open boolean NOT NULL,
    document json NOT NULL,
    plans json NOT NULL
);

-- The steps whose metrics were here when the run was made: what it repeats says nothing new. And the median of its own steps'
-- seconds, once it has ended; beside step_s it tells how far forecasts are off.
ALTER TABLE runs ADD COLUMN reported bigint NOT NULL DEFAULT 0, ADD COLUMN measured_s double precision;
CREATE INDEX runs_measured ON runs (id) WHERE measured_s > 0 AND step_s > 0;
