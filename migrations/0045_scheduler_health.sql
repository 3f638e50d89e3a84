-- How the leading scheduler's passes go (store/health.h), written by it every two seconds and after each change.
CREATE TABLE scheduler_health (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    name text NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),          -- when the scheduler wrote this row
    good_at timestamptz NOT NULL DEFAULT now(),     -- when nothing was left to decide
    failing_since timestamptz,                      -- null: the last try succeeded
    failures bigint NOT NULL DEFAULT 0,             -- tries that have failed since then
    task text,                                      -- what fails: passes or events
    why text,
    asides json NOT NULL DEFAULT '[]',              -- [{"part","job"?,"until","why"}]: parts that passes leave out for a while
    aside_count bigint NOT NULL DEFAULT 0
);
