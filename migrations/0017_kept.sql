-- How many bytes of checkpoints and results the jobs of a person that have ended may leave, or those that are charged to a group
-- and to the groups below it. 0: any number.
ALTER TABLE users ADD COLUMN kept_bytes_max bigint NOT NULL DEFAULT 0 CHECK (kept_bytes_max >= 0);
ALTER TABLE groups ADD COLUMN kept_bytes_max bigint NOT NULL DEFAULT 0 CHECK (kept_bytes_max >= 0);

-- An amount of memory as units_bytes() of common/units.h writes it, but always with two digits behind the point.
CREATE FUNCTION motley_bytes(n bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN n < 1024 THEN n || ' B' ELSE round(n / 1024.0 ^ k, 2) || ' ' || (ARRAY['KiB', 'MiB', 'GiB', 'TiB', 'PiB'])[k] END
    FROM (SELECT least(5, floor(log(1024, greatest(n, 1)))::integer) AS k) x
$$;

-- What each ended job of a person, or of a group and those below it, left. Content that several of them left is the first one's.
CREATE FUNCTION motley_kept(of_user bigint, of_group bigint) RETURNS TABLE (job bigint, owner bigint, bytes bigint)
LANGUAGE sql STABLE AS $$
    WITH ended AS MATERIALIZED (SELECT j.id, j.owner FROM jobs j WHERE j.state IN ('succeeded', 'failed', 'cancelled')
            AND (j.owner = of_user OR j.account IN (SELECT motley_below(of_group)))),
        files AS (SELECT f.sha256, f.job FROM artifacts f JOIN ended e ON e.id = f.job
            UNION SELECT s.sha256, c.job FROM checkpoints c JOIN ended e ON e.id = c.job,
                unnest(motley_checkpoint_files(c.blobs)) AS s(sha256))
    SELECT e.id, e.owner, sum(b.size)::bigint FROM (SELECT f.sha256, min(f.job) AS id FROM files f GROUP BY 1) l
        JOIN ended e USING (id) JOIN blobs b ON b.sha256 = l.sha256 AND b.path IS NULL GROUP BY 1, 2
$$;

-- Why nothing more may be submitted for an account before something is removed, or null.
CREATE FUNCTION motley_kept_refused(owner_id bigint, account bigint) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    who record;
    has record;
BEGIN
    FOR who IN SELECT 'user ' || name AS name, id AS person, NULL::bigint AS grp, kept_bytes_max FROM users WHERE id = owner_id
        UNION ALL SELECT 'group ' || name, NULL, id, kept_bytes_max FROM groups WHERE id IN (SELECT motley_above(account)) LOOP
        CONTINUE WHEN who.kept_bytes_max = 0;
        SELECT coalesce(sum(k.bytes), 0) AS bytes, string_agg(format('%s (%s)', k.job, motley_bytes(k.bytes)), ', ' ORDER BY nth)
            FILTER (WHERE k.owner = owner_id AND nth <= 3) AS jobs INTO has
            FROM (SELECT *, row_number() OVER (PARTITION BY owner ORDER BY bytes DESC, job) AS nth FROM motley_kept(who.person, who.grp)) k;
        IF has.bytes >= who.kept_bytes_max THEN
            RETURN format('account: %s may keep %s of checkpoints and results of jobs that have ended, and has %s: %s', who.name,
                motley_bytes(who.kept_bytes_max), motley_bytes(has.bytes::bigint),
                coalesce('motley rm removes such jobs, and your largest are ' || has.jobs, 'others in the group have to remove some'));
        END IF;
    END LOOP;
    RETURN NULL;
END $$;
