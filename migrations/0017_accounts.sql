-- The tree of accounts as statements ask for it. 0 is the root, which is above all groups and has no limits.
CREATE FUNCTION motley_above(account bigint) RETURNS SETOF bigint LANGUAGE sql STABLE AS $$
    WITH RECURSIVE up AS (
        SELECT id, parent FROM groups WHERE id = account
        UNION ALL SELECT g.id, g.parent FROM up JOIN groups g ON g.id = up.parent
    )
    SELECT id FROM up
$$;
CREATE FUNCTION motley_below(account bigint) RETURNS SETOF bigint LANGUAGE sql STABLE AS $$
    WITH RECURSIVE down AS (
        SELECT account AS id UNION ALL SELECT g.id FROM down JOIN groups g ON g.parent = down.id
    )
    SELECT id FROM down
$$;

-- Why a job may not be submitted for its account, or null. `nth` counts the jobs of its batch for the same owner.
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
                SELECT count(*) INTO waiting FROM jobs j WHERE j.owner = of.id AND j.state IN ('held', 'queued');
            ELSE
                SELECT count(*) INTO waiting FROM jobs j
                WHERE j.account IN (SELECT motley_below(of.id)) AND j.state IN ('held', 'queued');
            END IF;
            IF waiting + nth > of.queued_max THEN
                RETURN format('account: %s may have %s jobs in the queue and has %s', of.who, of.queued_max, waiting);
            END IF;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;
