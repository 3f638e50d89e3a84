-- Sharing: a tree of accounts with weights and limits, and a ledger of every interval in which a job held a device.
-- An account is a group; the root of the tree has no row, and is 0 in jobs.account.

-- A limit of 0 is none.
ALTER TABLE groups
    ADD COLUMN parent bigint REFERENCES groups,      -- null: directly below the root
    ADD COLUMN weight double precision NOT NULL DEFAULT 1 CHECK (weight > 0 AND weight <= 1e9),
    ADD COLUMN devices_max integer NOT NULL DEFAULT 0 CHECK (devices_max >= 0),   -- held at once, with its subgroups
    ADD COLUMN running_max integer NOT NULL DEFAULT 0 CHECK (running_max >= 0),   -- jobs at once
    ADD COLUMN queued_max integer NOT NULL DEFAULT 0 CHECK (queued_max >= 0),     -- jobs that wait or are held
    ADD COLUMN month_seconds_max double precision NOT NULL DEFAULT 0 CHECK (month_seconds_max >= 0); -- charged in 30 days
ALTER TABLE users
    ADD COLUMN account bigint REFERENCES groups ON DELETE SET NULL,  -- charged when a job names no group
    ADD COLUMN disabled boolean NOT NULL DEFAULT false,
    ADD COLUMN devices_max integer NOT NULL DEFAULT 0 CHECK (devices_max >= 0),
    ADD COLUMN running_max integer NOT NULL DEFAULT 0 CHECK (running_max >= 0),
    ADD COLUMN queued_max integer NOT NULL DEFAULT 0 CHECK (queued_max >= 0),
    ADD COLUMN month_seconds_max double precision NOT NULL DEFAULT 0 CHECK (month_seconds_max >= 0);

-- No group is below itself. Changes of parents wait for each other, so that two cannot make a cycle together.
CREATE FUNCTION motley_group_parent() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    above bigint := NEW.parent;
    depth integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(5570193043);
    WHILE above IS NOT NULL LOOP
        IF above = NEW.id THEN
            RAISE EXCEPTION 'parent: group "%" would be below itself', NEW.name USING ERRCODE = 'MO004';
        END IF;
        depth := depth + 1;
        IF depth > 16 THEN
            RAISE EXCEPTION 'parent: the tree of groups would be deeper than 16' USING ERRCODE = 'MO004';
        END IF;
        SELECT parent INTO above FROM groups WHERE id = above;
    END LOOP;
    RETURN NEW;
END $$;
CREATE TRIGGER group_parent BEFORE INSERT OR UPDATE OF parent ON groups FOR EACH ROW EXECUTE FUNCTION motley_group_parent();

-- Service: 0 urgent, 1 normal, 2 scavenger (enum policy_service). A job waits since eligible_at: its submission, or the
-- end of its hold or pause. It does not start before begin_at. Its time limit counts what it used after limit_from_ms.
ALTER TABLE jobs
    ADD COLUMN account bigint NOT NULL DEFAULT 0,
    ADD COLUMN service smallint NOT NULL DEFAULT 1 CHECK (service BETWEEN 0 AND 2),
    ADD COLUMN eligible_at timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN begin_at timestamptz,
    ADD COLUMN limit_from_ms bigint NOT NULL DEFAULT 0;
UPDATE jobs SET eligible_at = created_at;
CREATE INDEX jobs_leaf ON jobs (owner, account, service, priority DESC, eligible_at, id) WHERE state = 'queued';
CREATE INDEX jobs_unfinished ON jobs (account, owner) WHERE state IN ('held', 'queued');
DROP INDEX jobs_due;
CREATE INDEX jobs_due ON jobs (greatest(not_before, begin_at))
    WHERE state = 'queued' AND greatest(not_before, begin_at) IS NOT NULL;

-- One row for each assignment, made and closed by the transaction that starts and ends the assignment. What is charged is
-- the interval's seconds times speed times factor.
CREATE TABLE ledger (
    assignment bigint PRIMARY KEY,                  -- outlives the assignment's own row
    run bigint NOT NULL,
    job bigint NOT NULL,
    user_id bigint NOT NULL,
    account text NOT NULL,                          -- the group's name, which outlives the group; '': the root
    device text NOT NULL,
    begins timestamptz NOT NULL DEFAULT now(),
    ends timestamptz,                               -- null: the device is still held
    speed double precision NOT NULL DEFAULT 1 CHECK (speed > 0),  -- on this class of jobs, as a part of the reference card's
    origin text NOT NULL DEFAULT '',                -- where the speed is from; '': nothing was measured
    factor double precision NOT NULL DEFAULT 1 CHECK (factor >= 0),
    closed bigint                                   -- rises in the order in which rows were closed
);
CREATE SEQUENCE ledger_closings;
CREATE INDEX ledger_open ON ledger (assignment) WHERE ends IS NULL;
CREATE UNIQUE INDEX ledger_closed ON ledger (closed) WHERE closed IS NOT NULL;
CREATE INDEX ledger_ends ON ledger (ends);

-- Whoever ends an assignment closes its row. A clock that stepped back ends no interval before its beginning.
CREATE FUNCTION motley_ledger_close() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE ledger SET ends = greatest(begins, now()), closed = nextval('ledger_closings')
    WHERE assignment = NEW.id AND ends IS NULL;
    RETURN NULL;
END $$;
CREATE TRIGGER ledger_close AFTER UPDATE OF state ON assignments FOR EACH ROW
    WHEN (OLD.state IN ('sent', 'ready', 'running') AND NEW.state NOT IN ('sent', 'ready', 'running'))
    EXECUTE FUNCTION motley_ledger_close();

-- What ran when this schema came is charged from its run's beginning.
INSERT INTO ledger (assignment, run, job, user_id, account, device, begins)
    SELECT a.id, r.id, r.job, j.owner, '', a.device, r.created_at FROM assignments a JOIN runs r ON r.id = a.run
    JOIN jobs j ON j.id = r.job WHERE a.state IN ('sent', 'ready', 'running');

-- Sums of ledger rows that are too old to be kept singly, by day in UTC.
CREATE TABLE usage_days (
    day date NOT NULL,
    user_id bigint NOT NULL,
    account text NOT NULL,
    device text NOT NULL,
    held_us bigint NOT NULL,                        -- microseconds of the device
    charged_s double precision NOT NULL,            -- normalised device-seconds
    PRIMARY KEY (day, user_id, account, device)
);
