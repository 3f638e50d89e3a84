-- Arrays: one row for jobs that differ in some values, and a row for each element once it may start.
ALTER TABLE jobs
    ADD COLUMN array_size integer NOT NULL DEFAULT 0,   -- elements of an array; 0: the job is none
    ADD COLUMN array_made integer NOT NULL DEFAULT 0,   -- elements that are jobs by now
    ADD COLUMN at_most integer NOT NULL DEFAULT 0,      -- elements that may be queued or run at once; 0: any number
    ADD COLUMN array_of bigint REFERENCES jobs,         -- of an element: its array
    ADD COLUMN array_index integer;                     -- of an element: its number, from 0
CREATE UNIQUE INDEX jobs_elements ON jobs (array_of, array_index) WHERE array_of IS NOT NULL;
CREATE INDEX jobs_elements_open ON jobs (array_of)
    WHERE array_of IS NOT NULL AND state NOT IN ('succeeded', 'failed', 'cancelled');
CREATE INDEX jobs_arrays ON jobs (id) WHERE array_size > 0 AND state IN ('queued', 'running', 'stopping');

-- Why a job may not be submitted for its account, or null. `nth` counts the jobs of its batch for the same owner. An array
-- counts once in the queue, whatever elements it has there.
CREATE OR REPLACE FUNCTION motley_refused(owner_id bigint, account bigint, devices bigint, nth bigint) RETURNS text
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
