-- Leases: a person holds a device for a time, now or from a booked time on, or an administrator keeps it for maintenance.
-- No job is on a device while a lease of it lasts. The scheduler charges a lease when it begins and closes the charge when
-- it ends (a row of the ledger with the assignment -id, run 0 and job 0).
CREATE EXTENSION IF NOT EXISTS btree_gist;

CREATE TABLE leases (
    id bigserial PRIMARY KEY,
    device text NOT NULL,
    user_id bigint NOT NULL REFERENCES users,
    account text NOT NULL DEFAULT '',               -- the group that is charged; '': the root
    kind text NOT NULL CHECK (kind IN ('lease', 'maintenance')),
    note text NOT NULL DEFAULT '' CHECK (octet_length(note) <= 500),
    begins timestamptz NOT NULL,
    ends timestamptz NOT NULL,                      -- brought forward to the moment at which it is ended early
    opened boolean NOT NULL DEFAULT false,          -- its charge has begun
    settled boolean NOT NULL DEFAULT false,         -- it is over, and its charge is closed
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK (ends >= begins),
    CONSTRAINT leases_overlap EXCLUDE USING gist (device WITH =, tstzrange(begins, ends) WITH &&)
);
CREATE INDEX leases_open ON leases (device) WHERE NOT settled;
CREATE INDEX leases_user ON leases (user_id, ends);

-- Checks a lease and makes it; the document of the lease. MO004: something of the request is wrong; MO005: somebody has
-- the device then.
CREATE FUNCTION motley_lease(holder bigint, of_device text, of_kind text, of_note text, of_begins timestamptz, seconds bigint,
    ahead_max bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    until timestamptz := of_begins + seconds * interval '1 s';
    other record;
    most integer;
    has bigint;
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
    SELECT devices_max INTO most FROM users WHERE id = holder;
    SELECT (SELECT count(*) FROM ledger WHERE user_id = holder AND ends IS NULL AND job > 0)
         + (SELECT count(*) FROM leases WHERE user_id = holder AND kind = 'lease' AND ends > greatest(now(), of_begins) AND begins < until)
        INTO has;
    IF of_kind = 'lease' AND most > 0 AND has >= most THEN
        RAISE EXCEPTION 'device: you may hold % devices at once, and hold or have booked %', most, has USING ERRCODE = 'MO004';
    END IF;
    INSERT INTO leases (device, user_id, account, kind, note, begins, ends)
        SELECT of_device, holder, coalesce((SELECT g.name FROM users u JOIN groups g ON g.id = u.account WHERE u.id = holder), ''),
               of_kind, of_note, of_begins, until RETURNING id INTO made;
    PERFORM pg_notify('motley_jobs', '');
    RETURN made;
END $$;
