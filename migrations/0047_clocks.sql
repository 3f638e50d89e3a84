-- How far the clock of a node's agent is ahead of the scheduler's, in seconds, as its heartbeats show it; null
-- before two of them were heard.
ALTER TABLE nodes ADD COLUMN clock_ahead_s double precision;
