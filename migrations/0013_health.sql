-- How devices are, as their agents last told (agent/health.h), and those whose workers end for the card's own sake.
ALTER TABLE devices
    ADD COLUMN health json,
    ADD COLUMN faults integer NOT NULL DEFAULT 0,  -- workers that ended with a lost or faulty device, the last a day ago at most
    ADD COLUMN fault_at timestamptz,
    ADD COLUMN drain_why text;                     -- drained by the service itself: why; null: by a person, or not at all
