-- Runs that are asked for a checkpoint and stop once it is stored, devices with an owner, drains with a date and a reason,
-- time limits and slices of accounts, and what a time limit leaves.

-- A run is asked for a checkpoint so that it can yield to a job (save_why: scavenger, owner, urgent) or because its slice
-- is over (slice). If none is stored by save_by the run goes on, and saves_missed counts that.
ALTER TABLE runs
    ADD COLUMN save_bytes bigint NOT NULL DEFAULT 0,    -- of its last checkpoint, or as the plan predicts them
    ADD COLUMN saved_at timestamptz,                    -- when its last checkpoint was complete
    ADD COLUMN save_asked_at timestamptz,
    ADD COLUMN save_by timestamptz,                     -- null: it is not asked at present
    ADD COLUMN save_why text,
    ADD COLUMN save_for bigint,                         -- the job to which it is to yield
    ADD COLUMN saves_missed integer NOT NULL DEFAULT 0;

ALTER TABLE devices
    ADD COLUMN owner bigint REFERENCES groups ON DELETE SET NULL,
    ADD COLUMN drain_at timestamptz;                    -- of a drained device: what runs there goes on until then; null: it moves at once

-- A limit of 0 is none. The nearest account on the way to the root that has one counts.
ALTER TABLE groups
    ADD COLUMN time_limit_s double precision NOT NULL DEFAULT 0 CHECK (time_limit_s >= 0),  -- of jobs that name none
    ADD COLUMN slice_s double precision NOT NULL DEFAULT 0 CHECK (slice_s >= 0);

ALTER TABLE jobs
    ADD COLUMN ended_by text,                           -- of a job that succeeded so far: what ended it ('time_limit')
    ADD COLUMN held_by_admin boolean NOT NULL DEFAULT false;
ALTER TABLE jobs DROP CONSTRAINT jobs_stop_why_check;
ALTER TABLE jobs ADD CHECK (stop_why IN ('cancel', 'hold', 'drain', 'time', 'lost', 'fault', 'yield', 'preempt', 'slice'));

-- Failures of starts on a node count from here on: a person has let it work again.
ALTER TABLE nodes ADD COLUMN starts_from timestamptz NOT NULL DEFAULT now();

CREATE FUNCTION motley_time_limit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    seconds double precision;
BEGIN
    WITH RECURSIVE up AS (
        SELECT parent, time_limit_s, 0 AS depth FROM groups WHERE id = NEW.account
        UNION ALL SELECT g.parent, g.time_limit_s, up.depth + 1 FROM up JOIN groups g ON g.id = up.parent
    )
    SELECT time_limit_s INTO seconds FROM up WHERE time_limit_s > 0 ORDER BY depth LIMIT 1;
    NEW.time_limit_ms := coalesce((seconds * 1000)::bigint, 0);
    RETURN NEW;
END $$;
CREATE TRIGGER job_time_limit BEFORE INSERT ON jobs FOR EACH ROW WHEN (NEW.time_limit_ms = 0 AND NEW.account <> 0)
    EXECUTE FUNCTION motley_time_limit();

-- Lengthens a job's time limit; the new one in milliseconds. MO004: it has none; MO005: it has ended, or a job that is to
-- start on its devices would start later (administrators may do that).
CREATE FUNCTION motley_extend(of_job bigint, seconds bigint, admin boolean) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    j record;
    r record;
    q record;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = of_job FOR UPDATE;
    IF j.time_limit_ms = 0 THEN
        RAISE EXCEPTION 'seconds: job % has no time limit', of_job USING ERRCODE = 'MO004';
    END IF;
    IF j.state NOT IN ('held', 'queued', 'starting', 'running') THEN
        RAISE EXCEPTION 'job % is %', of_job, j.state USING ERRCODE = 'MO005';
    END IF;
    SELECT x.created_at + (j.time_limit_ms - j.used_ms + j.limit_from_ms) * interval '1 ms' AS by_limit,
           now() + greatest(0, j.steps - j.step) * coalesce(x.step_s, 0) * interval '1 s' AS by_steps
        INTO r FROM runs x WHERE x.id = j.run AND x.state IN ('starting', 'running');
    IF FOUND AND NOT admin AND r.by_limit < r.by_steps THEN
        SELECT w.id, w.starts_at INTO q FROM jobs w
            WHERE w.state = 'queued' AND w.wait_subject = of_job AND w.starts_at < least(r.by_steps, r.by_limit + seconds * interval '1 s')
            ORDER BY w.starts_at, w.id LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'job % is to start at % on the devices of job %', q.id, motley_time(q.starts_at), of_job
                USING ERRCODE = 'MO005';
        END IF;
    END IF;
    UPDATE jobs SET time_limit_ms = time_limit_ms + seconds * 1000, updated_at = now() WHERE id = of_job;
    PERFORM pg_notify('motley_jobs', '');
    RETURN j.time_limit_ms + seconds * 1000;
END $$;
