-- Limits of leases hold for changes at the same moment, and what jobs hold now counts only for a lease that begins now.

-- Checks a lease against the longest time (24 h where no group sets one; administrators: none) and the limits of its holder
-- and of the groups above. `of` is the lease that is changed and counts no more; 0: a new one. MO004 names the limit. One check
-- at a time: what it allows is written before the next one counts.
CREATE OR REPLACE FUNCTION motley_lease_check(of bigint, holder bigint, admin boolean, of_begins timestamptz, until timestamptz)
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
