-- The first schema. Documents that must come back byte for byte (specification, plan, metrics) are json, not jsonb.
-- States are texts; their machines stand in store/states.c, which every change of state goes through.

CREATE TABLE users (
    id bigserial PRIMARY KEY,
    name text NOT NULL UNIQUE CHECK (octet_length(name) BETWEEN 1 AND 200),
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE nodes (
    name text PRIMARY KEY CHECK (name ~ '^[a-z0-9][a-z0-9-]{0,63}$'),
    generation bigint NOT NULL DEFAULT 1,         -- rises with every enrolment under this name
    state text NOT NULL DEFAULT 'joining' CHECK (state IN ('joining', 'alive', 'unreachable')),
    boot text,                                    -- the agent process that said hello last
    last_seq bigint NOT NULL DEFAULT 0,           -- of node events of this boot
    machine_id text,
    address text,
    inventory json,
    last_seen timestamptz,
    enrolled_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE tokens (
    id bigserial PRIMARY KEY,
    hash bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    user_id bigint REFERENCES users,
    node text REFERENCES nodes ON DELETE CASCADE,
    scopes integer NOT NULL,
    note text,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    CHECK ((user_id IS NULL) <> (node IS NULL))
);

CREATE TABLE join_tokens (
    hash bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
    user_id bigint REFERENCES users,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    used_at timestamptz,
    used_by text
);

CREATE TABLE devices (
    name text PRIMARY KEY,
    node text NOT NULL REFERENCES nodes,
    kind text NOT NULL,
    inventory json NOT NULL,
    digest text NOT NULL,                         -- of the inventory: a profile is good for one digest
    memory_limit_bytes bigint NOT NULL CHECK (memory_limit_bytes > 0),
    present boolean NOT NULL DEFAULT true,        -- named by the agent's last hello
    drained boolean NOT NULL DEFAULT false
);
CREATE INDEX devices_node ON devices (node);

CREATE TABLE profiles (
    device text NOT NULL REFERENCES devices ON DELETE CASCADE,
    key text NOT NULL,                            -- digest of model shape, method, base, compute, length
    content text,                                 -- of the model it was asked for
    digest text NOT NULL,
    document json NOT NULL,
    measured_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (device, key)
);

CREATE TABLE requests (                           -- measurements that are under way
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

CREATE TABLE links (
    from_node text NOT NULL REFERENCES nodes ON DELETE CASCADE,
    to_node text NOT NULL REFERENCES nodes ON DELETE CASCADE,
    document json NOT NULL,
    measured_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (from_node, to_node)
);

CREATE TABLE models (                             -- by content; kept as long as anything names it
    content text PRIMARY KEY,
    config json NOT NULL,
    files json NOT NULL,
    info json,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE model_names (
    name text PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 200),
    content text NOT NULL REFERENCES models,
    owner bigint REFERENCES users,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE blobs (
    sha256 text PRIMARY KEY CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    size bigint NOT NULL CHECK (size >= 0),
    path text,
    manifest json,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE datasets (
    key text PRIMARY KEY CHECK (key ~ '^[0-9a-f]{64}$'),
    blob text NOT NULL,
    stats json NOT NULL,
    sizes bytea NOT NULL,                         -- per row two little-endian u32: tokens, labelled tokens
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE jobs (
    id bigserial PRIMARY KEY,                     -- never reused: sequences do not go back
    owner bigint NOT NULL REFERENCES users,
    name text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 200),
    state text NOT NULL CHECK (state IN ('held', 'queued', 'starting', 'running', 'stopping', 'succeeded', 'failed',
                                         'cancelled')),
    priority integer NOT NULL DEFAULT 0,
    spec json NOT NULL,
    inputs json NOT NULL,
    steps bigint NOT NULL DEFAULT 0,              -- in all
    retries_max integer NOT NULL DEFAULT 0,
    time_limit_ms bigint NOT NULL DEFAULT 0,
    idempotency_key text,
    request_digest bytea,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    ended_at timestamptz,
    not_before timestamptz,                       -- back-off between attempts
    attempt integer NOT NULL DEFAULT 0,
    losses integer NOT NULL DEFAULT 0,
    used_ms bigint NOT NULL DEFAULT 0,            -- spent in ended runs
    step bigint NOT NULL DEFAULT 0,               -- steps whose metrics are here
    loss double precision,
    run bigint,                                   -- the newest
    stop_why text CHECK (stop_why IN ('cancel', 'hold', 'drain', 'time', 'lost', 'fault', 'yield')),
    code text,
    why text
) WITH (fillfactor = 90);
CREATE UNIQUE INDEX jobs_idempotency ON jobs (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX jobs_owner ON jobs (owner, id);
CREATE INDEX jobs_state ON jobs (state, id);
CREATE INDEX jobs_queue ON jobs (priority DESC, id) WHERE state = 'queued';
CREATE INDEX jobs_due ON jobs (not_before) WHERE state = 'queued' AND not_before IS NOT NULL;

CREATE SEQUENCE run_epochs;

CREATE TABLE runs (
    id bigserial PRIMARY KEY,
    job bigint NOT NULL REFERENCES jobs,
    attempt integer NOT NULL,
    epoch bigint NOT NULL UNIQUE,
    state text NOT NULL CHECK (state IN ('starting', 'running', 'stopping', 'done', 'failed', 'lost', 'stopped')),
    plan json NOT NULL,
    answer json,
    stop_why text,
    start_step bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    stopping_at timestamptz,
    killed_at timestamptz,
    ended_at timestamptz,
    why text,
    UNIQUE (job, attempt)
);
CREATE INDEX runs_active ON runs (id) WHERE state IN ('starting', 'running', 'stopping');
ALTER TABLE jobs ADD FOREIGN KEY (run) REFERENCES runs;

CREATE TABLE assignments (
    id bigserial UNIQUE,
    run bigint NOT NULL REFERENCES runs,
    rank integer NOT NULL,
    node text NOT NULL,
    device text NOT NULL,
    state text NOT NULL CHECK (state IN ('sent', 'ready', 'running', 'done', 'failed', 'stopped', 'lost')),
    last_seq bigint NOT NULL DEFAULT 0,
    address text,
    identity text,
    own_fault boolean NOT NULL DEFAULT false,
    code text,
    why text,
    memory json,
    PRIMARY KEY (run, rank)
);
-- One device, one living rank: the database itself refuses a second.
CREATE UNIQUE INDEX assignments_device ON assignments (device) WHERE state IN ('sent', 'ready', 'running');

CREATE TABLE checkpoints (
    job bigint NOT NULL REFERENCES jobs,
    step bigint NOT NULL,
    run bigint NOT NULL REFERENCES runs,
    parts integer NOT NULL,
    ranks integer[] NOT NULL,
    blobs jsonb NOT NULL,
    best boolean NOT NULL DEFAULT false,
    complete boolean NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job, step)
);

CREATE TABLE artifacts (
    job bigint NOT NULL REFERENCES jobs,
    name text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 400),
    sha256 text NOT NULL CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    size bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job, name)
);

CREATE TABLE metrics (                            -- a step once reported is never new again
    job bigint NOT NULL,
    kind text NOT NULL CHECK (kind IN ('step', 'eval', 'sample', 'ranks')),
    step bigint NOT NULL,
    rank integer NOT NULL,
    document json NOT NULL,
    PRIMARY KEY (job, kind, step, rank)
);

CREATE TABLE traces (
    run bigint NOT NULL REFERENCES runs,
    rank integer NOT NULL,
    seq bigint NOT NULL,
    document json NOT NULL,
    PRIMARY KEY (run, rank, seq)
);

CREATE TABLE events (                             -- inserted under an advisory lock: ids become visible in order
    id bigserial PRIMARY KEY,
    job bigint,
    type text NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    body json NOT NULL
);
CREATE INDEX events_job ON events (job, id);
CREATE INDEX events_at ON events USING brin (at);

CREATE TABLE outbox (                             -- messages no agent has confirmed yet
    id bigserial PRIMARY KEY,
    node text NOT NULL,
    run bigint,
    type text NOT NULL,
    payload json NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX outbox_run ON outbox (run);

CREATE TABLE leader (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint NOT NULL,
    name text NOT NULL,
    since timestamptz NOT NULL DEFAULT now()
);
INSERT INTO leader (epoch, name) VALUES (0, 'nobody');

-- First statement of every write of a scheduler: refuses one that does not lead any more, and keeps the next
-- leader waiting until this transaction is over.
CREATE FUNCTION motley_fence(mine bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM leader WHERE epoch = mine FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'leader epoch % is stale', mine USING ERRCODE = 'MO001';
    END IF;
END $$;

-- Ends the transaction unless a statement changed exactly what it must.
CREATE FUNCTION motley_expect(changed bigint, wanted bigint, what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF changed IS DISTINCT FROM wanted THEN
        RAISE EXCEPTION '%: % of % could be changed', what, changed, wanted USING ERRCODE = 'MO002';
    END IF;
END $$;

-- RFC 3339, as every document shows times.
CREATE FUNCTION motley_time(t timestamptz) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT to_char(t AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;
