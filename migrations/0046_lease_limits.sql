-- Leases have a longest time, and count against the limits of devices and of the month as jobs do.

ALTER TABLE groups
    ADD COLUMN lease_limit_s double precision NOT NULL DEFAULT 0 CHECK (lease_limit_s >= 0);  -- 0: as the group above

-- The right to hold devices (the scope leases:write, 256) was a part of jobs:write (2). Who had all usual rights (55), or
-- those of an administrator (64), keeps it; a token that was made with fewer was not made to hold devices.
UPDATE tokens SET scopes = scopes | 256 WHERE user_id IS NOT NULL AND (scopes & 55 = 55 OR scopes & 64 > 0);

CREATE FUNCTION motley_hours(seconds double precision) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT trim_scale(round((seconds / 3600)::numeric, 2)) || ' h'
$$;

-- Checks a lease against the longest time (24 h where no group sets one; administrators: none) and the limits of its holder
-- and of the groups above. `of` is the lease that is changed and counts no more; 0: a new one. MO004 names the limit.
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
                    WHERE ends IS NULL AND job > 0 AND (user_id = ANY (who.users) OR account = ANY (who.accounts)))
                 + (SELECT count(*) FROM leases WHERE id <> of AND kind = 'lease' AND ends > greatest(now(), of_begins) AND begins < until
                    AND (user_id = ANY (who.users) OR account = ANY (who.accounts))) INTO has;
            IF has >= who.devices_max THEN
                RAISE EXCEPTION 'device: % may hold % devices at once, and hold or have booked %', who.name, who.devices_max, has
                    USING ERRCODE = 'MO004';
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
                    motley_hours(who.month_seconds_max), motley_hours(used), motley_hours(asked) USING ERRCODE = 'MO004';
            END IF;
        END IF;
    END LOOP;
    RETURN true;
END $$;

DROP FUNCTION motley_lease(bigint, text, text, text, timestamptz, bigint, bigint);
DROP FUNCTION motley_lease_any(bigint, text, text, text, timestamptz, bigint, bigint);
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
