-- Devices, and what was measured of them and of the links between their machines.

CREATE TABLE devices (
    name text PRIMARY KEY,
    node text NOT NULL REFERENCES nodes,
    kind text NOT NULL,
    inventory json NOT NULL,
    digest text NOT NULL,                         -- of the inventory: a profile is good for one digest
    memory_limit_bytes bigint NOT NULL CHECK (memory_limit_bytes > 0),
    present boolean NOT NULL DEFAULT true,        -- named by the agent's last hello
    drained boolean NOT NULL DEFAULT false,
    -- How devices are, as their agents last told (agent/health.h), and those whose workers end for the card's own sake.
    health json,
    faults integer NOT NULL DEFAULT 0,            -- workers that ended with a lost or faulty device, the last a day ago at most
    fault_at timestamptz,
    drain_why text,                               -- why it is drained, in the words of the service or of a person
    owner bigint REFERENCES groups ON DELETE SET NULL,
    drain_at timestamptz                          -- of a drained device: what runs there goes on until then; null: it moves at once
);
CREATE INDEX devices_node ON devices (node);

-- What devices did, a row a device and minute; after two days a row a device and hour. Of a minute in which a device did
-- nothing there is no row, unless its agent told a temperature. Sends overlap computing and waiting.
CREATE TABLE device_load (
    device text NOT NULL,
    begins timestamptz NOT NULL,
    seconds integer NOT NULL CHECK (seconds IN (60, 3600)),
    compute_s double precision NOT NULL DEFAULT 0,
    wait_s double precision NOT NULL DEFAULT 0,
    send_s double precision NOT NULL DEFAULT 0,
    temperature_c real,                           -- the highest that was told
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

CREATE TABLE profiles (
    device text NOT NULL REFERENCES devices ON DELETE CASCADE,
    key text NOT NULL,                            -- digest of model shape, method, base, compute, length
    content text,                                 -- of the model it was asked for
    digest text NOT NULL,
    document json NOT NULL,
    measured_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (device, key)
);

-- Tables that were measured elsewhere (`motley profile import`). They stand beside what is measured here and never in
-- its place: a plan uses one only for the device of that name and inventory, and only while it is not measured.
CREATE TABLE imported_profiles (
    device text NOT NULL,
    key text NOT NULL CHECK (key ~ '^[0-9a-f]{64}$'),
    content text,
    digest text,                                  -- of the inventory of the device that was measured; null: any other device's
    document json NOT NULL,
    source text NOT NULL,                         -- what the document says of where it comes from
    imported_by bigint REFERENCES users,
    imported_at timestamptz NOT NULL DEFAULT now(),
    grp bigint REFERENCES groups ON DELETE SET NULL,
    visibility text NOT NULL DEFAULT 'everyone' CHECK (visibility IN ('mine', 'group', 'everyone'))
);
CREATE UNIQUE INDEX imported_profiles_own ON imported_profiles (device, key, coalesce(imported_by, 0));

-- How fast a device computes jobs of one shape (the key of profiles), as a multiple of what its profile says. It counts
-- until a newer profile is measured.
CREATE TABLE device_speeds (
    device text NOT NULL REFERENCES devices ON DELETE CASCADE,
    key text NOT NULL,
    speed double precision NOT NULL CHECK (speed > 0),
    run bigint,                                   -- that measured it
    at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (device, key)
);

-- Measurements that are under way.
CREATE TABLE requests (
    id bigserial PRIMARY KEY,
    kind text NOT NULL CHECK (kind IN ('profile', 'links')),
    device text,                                  -- of a profile; of links: the node
    key text NOT NULL,
    content text,
    digest text,
    tries integer NOT NULL DEFAULT 1,
    state text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'failed')),
    why text,
    asked_at timestamptz NOT NULL DEFAULT now(),
    deadline_at timestamptz NOT NULL,
    UNIQUE (kind, device, key)
);

-- Somebody wants to know what a job would do (POST /v1/jobs:validate): the devices are measured for it without a job.
CREATE TABLE measures (
    key text PRIMARY KEY,                         -- of the profiles wanted
    spec json NOT NULL,
    inputs json NOT NULL,
    until timestamptz NOT NULL                    -- who asks waits no longer than this
);

CREATE TABLE links (
    from_node text NOT NULL REFERENCES nodes ON DELETE CASCADE,
    to_node text NOT NULL REFERENCES nodes ON DELETE CASCADE,
    document json NOT NULL,
    measured_at timestamptz NOT NULL DEFAULT now(),
    -- Which transaction wrote it last, for schedulers that keep the links in memory (store/links.h).
    changed xid8 NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (from_node, to_node)
);
CREATE INDEX links_changed ON links (changed);

-- The links that were written by transactions which the snapshot does not see, as motley_jobs_since does for jobs.
CREATE FUNCTION motley_links_since(seen pg_snapshot) RETURNS SETOF links LANGUAGE sql STABLE ROWS 10 SET enable_seqscan = off AS $$
    SELECT * FROM links WHERE changed >= pg_snapshot_xmin(seen) AND NOT pg_visible_in_snapshot(changed, seen)
$$;

-- Agents' events that the scheduler refused, by the error's name (common/err.h), kept for /metrics.
CREATE TABLE refused_events (
    reason text PRIMARY KEY,
    n bigint NOT NULL
);
