-- The predicted start of a queued job as a range; null: too little is known.
ALTER TABLE jobs
    ADD COLUMN starts_from timestamptz,
    ADD COLUMN starts_to timestamptz;
-- Of a job's predictions one is kept, each as likely as the others (reservoir sampling): said_at and starts_at, the place in
-- the queue, and the range that was told with it.
ALTER TABLE arrivals
    ADD COLUMN said_place integer,
    ADD COLUMN said_count integer NOT NULL DEFAULT 0,
    ADD COLUMN starts_from timestamptz,
    ADD COLUMN starts_to timestamptz;
UPDATE arrivals SET said_place = 1 WHERE said_at IS NOT NULL;
CREATE INDEX arrivals_started ON arrivals (started_at) WHERE said_at IS NOT NULL;

-- What would let a job start sooner, asked by people and answered by the scheduler.
CREATE TABLE sooner (
    job bigint PRIMARY KEY,
    asked_at timestamptz NOT NULL DEFAULT now(),
    answered_at timestamptz,                        -- null: not yet
    changes json                                    -- store/records.h
);
CREATE INDEX sooner_open ON sooner (asked_at) WHERE answered_at IS NULL;
