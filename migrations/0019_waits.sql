-- What the policies said of a queued job last; null of every other job.
ALTER TABLE jobs
    ADD COLUMN place integer,                       -- in the queue, from 1
    ADD COLUMN starts_at timestamptz,               -- as predicted; null: unknown
    ADD COLUMN wait_code text,                      -- why it waits (scheduler/policy/policy.h)
    ADD COLUMN wait_subject bigint;                 -- the job that the reason names
