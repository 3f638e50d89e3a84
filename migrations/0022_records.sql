-- What a simulation reads (docs/SHARING.md): which jobs arrived when, what the planner predicts for their classes, and
-- what came of it. Everything else about a job is in its own row, which stays.
CREATE TABLE classes (                              -- jobs of one class have the same plans on the same devices
    id serial PRIMARY KEY,
    digest bytea NOT NULL UNIQUE,                   -- scheduler/pass/job_class.h
    speeds json NOT NULL DEFAULT '{}'               -- {device that it may use: its speed, as a part of the reference device's}
);
CREATE TABLE device_sets (
    id serial PRIMARY KEY,
    devices text[] NOT NULL UNIQUE
);
CREATE TABLE forecasts (
    class integer NOT NULL REFERENCES classes,
    devices integer NOT NULL REFERENCES device_sets,
    step_s double precision,                        -- predicted seconds a step; null: no plan fits on these devices
    runs integer NOT NULL DEFAULT 0,                -- runs on exactly these devices, their steps, and the seconds they took
    steps bigint NOT NULL DEFAULT 0,
    seconds double precision NOT NULL DEFAULT 0,
    PRIMARY KEY (class, devices)
);
CREATE TABLE arrivals (
    job bigint PRIMARY KEY,
    arrived_at timestamptz NOT NULL,                -- since when it might have started
    said_at timestamptz,                            -- when a start was predicted first, and which
    starts_at timestamptz,
    started_at timestamptz,                         -- when it was first given devices
    class integer NOT NULL,
    devices integer,                                -- of its last run
    step_s real,                                    -- seconds a step on them, as predicted
    ran_s real NOT NULL DEFAULT 0                   -- seconds that its runs took from their start on
);
CREATE INDEX arrivals_at ON arrivals (arrived_at);

-- The section `sharing` of the leader's configuration.
CREATE TABLE sharing (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    document json NOT NULL
);
