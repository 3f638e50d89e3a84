-- What devices did, a row a device and minute; after two days a row a device and hour. Of a minute in which a device did
-- nothing there is no row, unless its agent told a temperature. Sends overlap computing and waiting.
CREATE TABLE device_load (
    device text NOT NULL,
    begins timestamptz NOT NULL,
    seconds integer NOT NULL CHECK (seconds IN (60, 3600)),
    compute_s double precision NOT NULL DEFAULT 0,
    wait_s double precision NOT NULL DEFAULT 0,
    send_s double precision NOT NULL DEFAULT 0,
    temperature_c real,                              -- the highest that was told
    PRIMARY KEY (device, begins, seconds)
);
CREATE INDEX device_load_begins ON device_load (begins) WHERE seconds = 60;

-- Adds what a device did in the `span` seconds before now to the minutes that they lie in, evenly.
CREATE FUNCTION motley_load(of_device text, span double precision, computes double precision, waits double precision,
    sends double precision) RETURNS TABLE (device text, begins timestamptz, compute_s double precision,
    wait_s double precision, send_s double precision) LANGUAGE sql STABLE AS $$
    SELECT of_device, m, part * computes, part * waits, part * sends FROM (SELECT m, extract(epoch FROM least(m + interval '1 minute', now())
            - greatest(m, now() - s * interval '1 second'))::float8 / s AS part
        FROM (SELECT least(greatest(span, 0.001), 86400) AS s) x,
            generate_series(date_trunc('minute', now() - s * interval '1 second'), now(), interval '1 minute') m) parts
$$;
