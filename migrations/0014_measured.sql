-- What runs measure of their devices.
ALTER TABLE assignments
    ADD COLUMN busy_s double precision,              -- seconds of computing a step, as the run's plan predicts them
    ADD COLUMN compute_s double precision,           -- the same as the rank measures them, smoothed over the last steps
    ADD COLUMN measured integer NOT NULL DEFAULT 0;  -- steps that were measured

-- How fast a device computes jobs of one shape (the key of profiles), as a multiple of what its profile says. It counts
-- until a newer profile is measured.
CREATE TABLE device_speeds (
    device text NOT NULL REFERENCES devices ON DELETE CASCADE,
    key text NOT NULL,
    speed double precision NOT NULL CHECK (speed > 0),
    run bigint,                                      -- that measured it
    at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (device, key)
);
