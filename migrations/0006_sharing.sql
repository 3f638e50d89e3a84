-- Sharing: a ledger of every interval in which a job or a lease held a device, limits, leases, and what the queue promises.

-- One row for each assignment, made and closed by the transaction that starts and ends the assignment. What is charged is
-- the interval's seconds times speed times factor.
CREATE TABLE ledger (
    assignment bigint PRIMARY KEY,                -- outlives the assignment's own row
    run bigint NOT NULL,
    job bigint NOT NULL,
    user_id bigint NOT NULL,
    account text NOT NULL,                        -- the group's name, which outlives the group; '': the root
    device text NOT NULL,
    begins timestamptz NOT NULL DEFAULT now(),
    ends timestamptz,                             -- null: the device is still held
    speed double precision NOT NULL DEFAULT 1 CHECK (speed > 0), -- on this class of jobs, as a part of the reference card's
    origin text NOT NULL DEFAULT '',              -- where the speed is from; '': nothing was measured
    factor double precision NOT NULL DEFAULT 1 CHECK (factor >= 0),
    closed bigint                                 -- rises in the order in which rows were closed
);
CREATE INDEX ledger_open ON ledger (assignment) WHERE ends IS NULL;
CREATE UNIQUE INDEX ledger_closed ON ledger (closed) WHERE closed IS NOT NULL;
CREATE INDEX ledger_ends ON ledger (ends);
CREATE SEQUENCE ledger_closings;

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

-- Sums of ledger rows that are too old to be kept singly, by day in UTC.
CREATE TABLE usage_days (
    day date NOT NULL,
    user_id bigint NOT NULL,
    account text NOT NULL,
    device text NOT NULL,
    held_us bigint NOT NULL,                      -- microseconds of the device
    charged_s double precision NOT NULL,          -- normalised device-seconds
    PRIMARY KEY (day, user_id, account, device)
);

-- Why a job may not be submitted for its account, or null. `nth` counts the jobs of its batch for the same owner. An array
-- counts once in the queue, whatever elements it has there.
CREATE FUNCTION motley_refused(owner_id bigint, account bigint, devices bigint, nth bigint) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    of record;
    waiting bigint;
BEGIN
    FOR of IN SELECT 'user ' || name AS who, id, devices_max, queued_max, true AS person FROM users WHERE id = owner_id
        UNION ALL SELECT 'group ' || name, id, devices_max, queued_max, false FROM groups
            WHERE id IN (SELECT motley_above(account)) LOOP
        IF of.devices_max > 0 AND devices > of.devices_max THEN
            RETURN format('placement: it needs %s devices at once, and %s may hold %s', devices, of.who, of.devices_max);
        END IF;
        IF of.queued_max > 0 THEN
            IF of.person THEN
                SELECT count(*) INTO waiting FROM jobs j
                WHERE j.owner = of.id AND j.state IN ('held', 'queued') AND j.array_of IS NULL;
            ELSE
                SELECT count(*) INTO waiting FROM jobs j WHERE j.account IN (SELECT motley_below(of.id))
                    AND j.state IN ('held', 'queued') AND j.array_of IS NULL;
            END IF;
            IF waiting + nth > of.queued_max THEN
                RETURN format('account: %s may have %s jobs in the queue and has %s', of.who, of.queued_max, waiting);
            END IF;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

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

CREATE EXTENSION IF NOT EXISTS btree_gist;

CREATE TABLE leases (
    id bigserial PRIMARY KEY,
    device text NOT NULL,
    user_id bigint NOT NULL REFERENCES users,
    account text NOT NULL DEFAULT '',             -- the group that is charged; '': the root
    kind text NOT NULL CHECK (kind IN ('lease', 'maintenance')),
    note text NOT NULL DEFAULT '' CHECK (octet_length(note) <= 500),
    begins timestamptz NOT NULL,
    ends timestamptz NOT NULL,                    -- brought forward to the moment at which it is ended early
    opened boolean NOT NULL DEFAULT false,        -- its charge has begun
    settled boolean NOT NULL DEFAULT false,       -- it is over, and its charge is closed
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK (ends >= begins),
    CONSTRAINT leases_overlap EXCLUDE USING gist (device WITH =, tstzrange(begins, ends) WITH &&)
);
CREATE INDEX leases_open ON leases (device) WHERE NOT settled;
CREATE INDEX leases_user ON leases (user_id, ends);

CREATE FUNCTION motley_hours(seconds double precision) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT trim_scale(round((seconds / 3600)::numeric, 2)) || ' h'
$$;

-- Checks a lease against the longest time (24 h where no group sets one; administrators: none) and the limits of its holder
-- and of the groups above. `of` is the lease that is changed and counts no more; 0: a new one. MO004: it is longer than any may
-- be; MO006: a limit of devices or of the month is used up. One check
-- at a time: what it allows is written before the next one counts.
CREATE FUNCTION motley_lease_check(of bigint, holder bigint, admin boolean, of_begins timestamptz, until timestamptz)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    leaf bigint := coalesce((SELECT account FROM users WHERE id = holder), 0);
    longest double precision;
    who record;
    has bigint;
    used double precision;
    asked double precision := extract(epoch FROM until - greatest(of_begins, now()));
BEGIN
    PERFORM pg_advisory_xact_lock(5570193044);  -- that of motley_lease
    WITH RECURSIVE up AS (
        SELECT parent, lease_limit_s, 0 AS depth FROM groups WHERE id = leaf
        UNION ALL SELECT g.parent, g.lease_limit_s, up.depth + 1 FROM up JOIN groups g ON g.id = up.parent
    )
    SELECT lease_limit_s INTO longest FROM up WHERE lease_limit_s > 0 ORDER BY depth LIMIT 1;
    longest := coalesce(longest, 86400);
    IF NOT admin AND extract(epoch FROM until - of_begins) > longest + 1 THEN
        RAISE EXCEPTION 'seconds: your leases last at most %, and this one would last %; an administrator can give your group more (motley group set NAME --lease-limit TIME)',
            motley_hours(longest), motley_hours(extract(epoch FROM until - of_begins)) USING ERRCODE = 'MO004';
    END IF;
    FOR who IN SELECT 'you' AS name, ARRAY[holder] AS users, NULL::text[] AS accounts, devices_max, month_seconds_max FROM users
            WHERE id = holder
        UNION ALL SELECT 'group ' || g.name, NULL, ARRAY(SELECT b.name FROM groups b WHERE b.id IN (SELECT motley_below(g.id))),
            g.devices_max, g.month_seconds_max FROM groups g WHERE g.id IN (SELECT motley_above(leaf)) LOOP
        IF who.devices_max > 0 THEN
            SELECT (SELECT count(*) FROM ledger
                    WHERE of_begins <= now() AND ends IS NULL AND job > 0 AND (user_id = ANY (who.users) OR account = ANY (who.accounts)))
                 + (SELECT count(*) FROM leases WHERE id <> of AND kind = 'lease' AND ends > greatest(now(), of_begins) AND begins < until
                    AND (user_id = ANY (who.users) OR account = ANY (who.accounts))) INTO has;
            IF has >= who.devices_max THEN
                RAISE EXCEPTION 'device: % may hold % devices at once, and hold or have booked %', who.name, who.devices_max, has
                    USING ERRCODE = 'MO006';
            END IF;
        END IF;
        IF who.month_seconds_max > 0 THEN
            SELECT coalesce((SELECT sum(speed * factor * extract(epoch FROM coalesce(ends, now()) - greatest(begins, now() - interval '30 days')))
                    FROM ledger WHERE (ends IS NULL OR ends > now() - interval '30 days')
                    AND (user_id = ANY (who.users) OR account = ANY (who.accounts))), 0)
                 + coalesce((SELECT sum(extract(epoch FROM ends - greatest(begins, now()))) FROM leases
                    WHERE id <> of AND kind = 'lease' AND ends > now() AND (user_id = ANY (who.users) OR account = ANY (who.accounts))), 0)
                INTO used;
            IF used + asked > who.month_seconds_max THEN
                RAISE EXCEPTION 'seconds: % may use % of devices in 30 days, have used or booked %, and this lease would use %', who.name,
                    motley_hours(who.month_seconds_max), motley_hours(used), motley_hours(asked) USING ERRCODE = 'MO006';
            END IF;
        END IF;
    END LOOP;
    RETURN true;
END $$;

-- Checks a lease and makes it; the document of the lease. MO004: something of the request is wrong; MO005: somebody has
-- the device then.
CREATE FUNCTION motley_lease(holder bigint, of_device text, of_kind text, of_note text, of_begins timestamptz, seconds bigint,
    ahead_max bigint, admin boolean)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    until timestamptz := of_begins + seconds * interval '1 s';
    other record;
    made bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(5570193044);
    IF of_begins < now() - interval '1 minute' THEN
        RAISE EXCEPTION 'begins: % has passed', motley_time(of_begins) USING ERRCODE = 'MO004';
    END IF;
    IF of_begins > now() + ahead_max * interval '1 s' THEN
        RAISE EXCEPTION 'begins: % is more than % days ahead', motley_time(of_begins), ahead_max / 86400 USING ERRCODE = 'MO004';
    END IF;
    IF NOT EXISTS (SELECT 1 FROM devices d JOIN nodes n ON n.name = d.node AND n.removed_at IS NULL WHERE d.name = of_device) THEN
        RAISE EXCEPTION 'device: there is no device "%"', of_device USING ERRCODE = 'MO004';
    END IF;
    SELECT l.id, u.name, motley_time(l.begins) AS begins, motley_time(l.ends) AS ends INTO other
        FROM leases l JOIN users u ON u.id = l.user_id
        WHERE l.device = of_device AND tstzrange(l.begins, l.ends) && tstzrange(of_begins, until) ORDER BY l.begins LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% is leased by % from % to % (lease %)', of_device, other.name, other.begins, other.ends, other.id
            USING ERRCODE = 'MO005';
    END IF;
    SELECT r.job INTO other FROM assignments a JOIN runs r ON r.id = a.run
        WHERE a.device = of_device AND a.state IN ('sent', 'ready', 'running');
    IF FOUND AND of_kind = 'lease' AND of_begins <= now() THEN
        RAISE EXCEPTION '% is held by job %: book it for later, when the job moves to other devices at a checkpoint',
            of_device, other.job USING ERRCODE = 'MO005';
    END IF;
    IF of_kind = 'lease' THEN
        PERFORM motley_lease_check(0, holder, admin, of_begins, until);
    END IF;
    INSERT INTO leases (device, user_id, account, kind, note, begins, ends)
        SELECT of_device, holder, coalesce((SELECT g.name FROM users u JOIN groups g ON g.id = u.account WHERE u.id = holder), ''),
               of_kind, of_note, of_begins, until RETURNING id INTO made;
    PERFORM pg_notify('motley_jobs', '');
    RETURN made;
END $$;

-- Leases the device that could be had first, of those that are like the text (in the device's or its machine's name, its kind,
-- or its model): a free one from now on, or else from when the job there is predicted to end, in the first gap between leases.
CREATE FUNCTION motley_lease_any(holder bigint, of_text text, of_kind text, of_note text, of_begins timestamptz, seconds bigint,
    ahead_max bigint, admin boolean)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    first record;
BEGIN
    PERFORM pg_advisory_xact_lock(5570193044);
    SELECT d.name, t.at INTO first FROM devices d JOIN nodes n ON n.name = d.node AND n.removed_at IS NULL AND n.state = 'alive'
        CROSS JOIN LATERAL (SELECT greatest(of_begins, max(CASE WHEN r.step_s > 0
                THEN now() + greatest(0, j.steps - j.step) * r.step_s * interval '1 s'
                ELSE now() + (now() - r.created_at) END)) AS at   -- without a forecast, as long again as it has run
            FROM assignments a JOIN runs r ON r.id = a.run JOIN jobs j ON j.id = r.job
            WHERE a.device = d.name AND a.state IN ('sent', 'ready', 'running')) f
        CROSS JOIN LATERAL (SELECT f.at UNION SELECT l.ends FROM leases l WHERE l.device = d.name AND l.ends > f.at) t
        WHERE d.present AND NOT d.drained AND t.at IS NOT NULL
          AND position(lower(of_text) IN lower(concat_ws(' ', d.name, d.kind, d.inventory ->> 'like', d.inventory ->> 'cpu'))) > 0
          AND NOT EXISTS (SELECT 1 FROM leases l WHERE l.device = d.name
            AND tstzrange(l.begins, l.ends) && tstzrange(t.at, t.at + seconds * interval '1 s'))
        ORDER BY t.at, d.name LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'any: no device that is there and not drained is like "%"', of_text USING ERRCODE = 'MO004';
    END IF;
    RETURN motley_lease(holder, first.name, of_kind, of_note, first.at, seconds, ahead_max, admin);
END $$;

-- The place of every queued job and why it waits, as the scheduler's last decision has them (scheduler/pass/pass_list.c).
-- All places change whenever a job starts, so they are arrays: a row of `jobs` for each would be far too slow.
CREATE TABLE queue_places (
    chunk bigint PRIMARY KEY,                     -- of jobs whose id / 512 it is
    jobs bigint[] NOT NULL,
    places integer[] NOT NULL,                    -- of each job, from 1
    reasons integer[] NOT NULL                    -- of each job, queue_reasons.id
);

CREATE TABLE queue_reasons (
    id integer PRIMARY KEY,
    code text NOT NULL,
    subject bigint,                               -- the job that the reason names
    why text NOT NULL
);

-- A queued job's place and why it waits. Of what the scheduler does not decide about now (a job that is to begin later or
-- pauses after a loss, an array) there is no place.
CREATE FUNCTION motley_place(of_job bigint) RETURNS TABLE (place integer, code text, subject bigint, why text)
    LANGUAGE sql STABLE ROWS 1 AS $$
    WITH undecided AS (
        SELECT *, CASE WHEN depends THEN NULL WHEN begin_at > now() THEN 'begin' WHEN not_before > now() THEN 'pause'
            WHEN array_size > 0 THEN 'array' END AS because
        FROM jobs WHERE id = of_job AND state = 'queued'
    )
    SELECT NULL::integer, u.because, NULL::bigint, CASE u.because
        WHEN 'begin' THEN 'is to begin at ' || to_char(u.begin_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS')
        WHEN 'pause' THEN concat_ws('; ', u.why, 'is tried again at ' || to_char(u.not_before AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'))
        ELSE format('%s of its %s elements are jobs (motley jobs --array %s)', u.array_made, u.array_size, u.id) END
    FROM undecided u WHERE u.because IS NOT NULL
    UNION ALL
    SELECT p.places[at.n], r.code, r.subject, r.why
    FROM queue_places p CROSS JOIN LATERAL (SELECT array_position(p.jobs, of_job) AS n) at JOIN queue_reasons r ON r.id = p.reasons[at.n]
    WHERE p.chunk = of_job >> 9 AND NOT EXISTS (SELECT FROM undecided u WHERE u.because IS NOT NULL)
$$;

-- What would let a job start sooner, asked by people and answered by the scheduler.
CREATE TABLE sooner (
    job bigint PRIMARY KEY,
    asked_at timestamptz NOT NULL DEFAULT now(),
    answered_at timestamptz,                      -- null: not yet
    changes json                                  -- store/records.h
);
CREATE INDEX sooner_open ON sooner (asked_at) WHERE answered_at IS NULL;

-- What a simulation reads (docs/SHARING.md): which jobs arrived when, what the planner predicts for their classes, and
-- what came of it. Everything else about a job is in its own row, which stays. Jobs of one class have the same plans on the
-- same devices.
CREATE TABLE classes (
    id serial PRIMARY KEY,
    digest bytea NOT NULL UNIQUE,                 -- scheduler/pass/job_class.h
    speeds json NOT NULL DEFAULT '{}'             -- {device that it may use: its speed, as a part of the reference device's}
);

CREATE TABLE device_sets (
    id serial PRIMARY KEY,
    devices text[] NOT NULL UNIQUE
);

CREATE TABLE forecasts (
    class integer NOT NULL REFERENCES classes,
    devices integer NOT NULL REFERENCES device_sets,
    step_s double precision,                      -- predicted seconds a step; null: no plan fits on these devices
    runs integer NOT NULL DEFAULT 0,              -- runs on exactly these devices, their steps, and the seconds they took
    steps bigint NOT NULL DEFAULT 0,
    seconds double precision NOT NULL DEFAULT 0,
    PRIMARY KEY (class, devices)
);

CREATE TABLE arrivals (
    job bigint PRIMARY KEY,
    arrived_at timestamptz NOT NULL,              -- since when it might have started
    said_at timestamptz,                          -- when a start was predicted first, and which
    starts_at timestamptz,
    started_at timestamptz,                       -- when it was first given devices
    class integer NOT NULL,
    devices integer,                              -- of its last run
    step_s real,                                  -- seconds a step on them, as predicted
    ran_s real NOT NULL DEFAULT 0,                -- seconds that its runs took from their start on
    -- Of a job's predictions one is kept, each as likely as the others (reservoir sampling): said_at and starts_at, the place in
    -- the queue, and the range that was told with it.
    said_place integer,
    said_count integer NOT NULL DEFAULT 0,
    starts_from timestamptz,
    starts_to timestamptz
);
CREATE INDEX arrivals_at ON arrivals (arrived_at);
CREATE INDEX arrivals_started ON arrivals (started_at) WHERE said_at IS NOT NULL;
