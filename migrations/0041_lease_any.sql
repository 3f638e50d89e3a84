-- Leases the device that could be had first, of those that are like the text (in the device's or its machine's name, its kind,
-- or its model): a free one from now on, or else from when the job there is predicted to end, in the first gap between leases.
CREATE FUNCTION motley_lease_any(holder bigint, of_text text, of_kind text, of_note text, of_begins timestamptz, seconds bigint,
    ahead_max bigint)
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
    RETURN motley_lease(holder, first.name, of_kind, of_note, first.at, seconds, ahead_max);
END $$;
