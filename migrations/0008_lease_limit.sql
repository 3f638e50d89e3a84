-- A limit of devices or of the month that a lease would exceed is not a wrong request: MO006.
ALTER FUNCTION motley_lease_check(bigint, bigint, boolean, timestamptz, timestamptz) RENAME TO motley_lease_fits;
CREATE FUNCTION motley_lease_check(of bigint, holder bigint, admin boolean, of_begins timestamptz, until timestamptz)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN motley_lease_fits(of, holder, admin, of_begins, until);
EXCEPTION WHEN SQLSTATE 'MO004' THEN  -- what is left of them is a lease that lasts longer than any may
    PERFORM motley_refuse(CASE WHEN SQLERRM LIKE '%your leases last at most%' THEN 'MO004' ELSE 'MO006' END, SQLERRM);
    RETURN false;
END $$;
