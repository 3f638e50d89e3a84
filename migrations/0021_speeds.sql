-- The speed of the device that was known before the run that measured it last: a run that is weighed twice counts once.
ALTER TABLE device_speeds ADD COLUMN before double precision NOT NULL DEFAULT 1 CHECK (before > 0);
