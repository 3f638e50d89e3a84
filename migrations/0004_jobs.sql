-- Files, models, data sets and jobs; the runs of jobs and what they leave.

CREATE TABLE blobs (
    sha256 text PRIMARY KEY CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    size bigint NOT NULL CHECK (size >= 0),
    path text,
    manifest json,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- A file that nothing refers to is dropped a while after somebody last asked for it or sent it.
    used_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX blobs_used ON blobs (used_at) WHERE path IS NULL;

-- By content. A model is kept as long as anything names it.
CREATE TABLE models (
    content text PRIMARY KEY,
    config json NOT NULL,
    files json NOT NULL,
    info json,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- Names are unique per owner.
CREATE TABLE model_names (
    name text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 200),
    content text NOT NULL REFERENCES models,
    owner bigint NOT NULL REFERENCES users,
    created_at timestamptz NOT NULL DEFAULT now(),
    id bigserial PRIMARY KEY,
    visibility text NOT NULL DEFAULT 'mine' CHECK (visibility IN ('mine', 'group', 'everyone')),
    grp bigint REFERENCES groups ON DELETE SET NULL,
    -- What the adapters of a model name as their base: {"name": "OWNER/NAME" of the hub or an absolute path of its owner's
    -- machine, "revision"?}. It belongs to the name, since others may have the same content from elsewhere; null: unknown.
    base json
);
CREATE UNIQUE INDEX model_names_own ON model_names (owner, name);
CREATE INDEX model_names_name ON model_names (name);
CREATE INDEX model_names_content ON model_names (content);

CREATE TABLE datasets (
    key text PRIMARY KEY CHECK (key ~ '^[0-9a-f]{64}$'),
    blob text NOT NULL,
    stats json NOT NULL,
    sizes bytea NOT NULL,                         -- per row two little-endian u32: tokens, labelled tokens
    created_at timestamptz NOT NULL DEFAULT now(),
    used_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX datasets_blob ON datasets (blob);
CREATE INDEX datasets_used ON datasets (used_at);

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
    stop_why text CHECK (stop_why IN ('cancel', 'hold', 'drain', 'time', 'lost', 'fault', 'yield', 'preempt', 'slice')),
    code text,
    why text,
    visibility text NOT NULL DEFAULT 'mine' CHECK (visibility IN ('mine', 'group', 'everyone')),
    grp bigint REFERENCES groups ON DELETE SET NULL,
    -- A while after a job has ended only its summary is kept (its row, its evaluations and samples, its last step, its last
    -- run): since when that is so.
    swept_at timestamptz,
    -- Service: 0 urgent, 1 normal, 2 scavenger (enum policy_service). A job waits since eligible_at: its submission, or the
    -- end of its hold or pause. It does not start before begin_at. Its time limit counts what it used after limit_from_ms.
    account bigint NOT NULL DEFAULT 0,
    service smallint NOT NULL DEFAULT 1 CHECK (service BETWEEN 0 AND 2),
    eligible_at timestamptz NOT NULL DEFAULT now(),
    begin_at timestamptz,
    limit_from_ms bigint NOT NULL DEFAULT 0,
    -- A job's labels, as its specification has them; null: none.
    labels jsonb,
    starts_at timestamptz,                        -- as predicted; null: unknown
    wait_code text,                               -- why it waits (scheduler/policy/policy.h)
    wait_subject bigint,                          -- the job that the reason names
    depends boolean NOT NULL DEFAULT false,
    -- Arrays: one row for jobs that differ in some values, and a row for each element once it may start.
    array_size integer NOT NULL DEFAULT 0,        -- elements of an array; 0: the job is none
    array_made integer NOT NULL DEFAULT 0,        -- elements that are jobs by now
    at_most integer NOT NULL DEFAULT 0,           -- elements that may be queued or run at once; 0: any number
    array_of bigint REFERENCES jobs,              -- of an element: its array
    array_index integer,                          -- of an element: its number, from 0
    ended_by text,                                -- of a job that succeeded so far: what ended it ('time_limit')
    held_by_admin boolean NOT NULL DEFAULT false,
    -- The predicted start of a queued job as a range; null: too little is known.
    starts_from timestamptz,
    starts_to timestamptz,
    plan_class bytea,                             -- null until the job is queued
    changed xid8 NOT NULL DEFAULT pg_current_xact_id() -- of a job that is queued or was before the change
) WITH (fillfactor = 90);
CREATE UNIQUE INDEX jobs_idempotency ON jobs (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX jobs_owner ON jobs (owner, id);
CREATE INDEX jobs_state ON jobs (state, id);
CREATE INDEX jobs_shared ON jobs (id) WHERE visibility <> 'mine';
CREATE INDEX jobs_unswept ON jobs (ended_at) WHERE ended_at IS NOT NULL AND swept_at IS NULL;
CREATE INDEX jobs_run ON jobs (run) WHERE run IS NOT NULL;      -- a run is removed without reading all jobs
CREATE INDEX jobs_unfinished ON jobs (account, owner) WHERE state IN ('held', 'queued');
CREATE INDEX jobs_due ON jobs (greatest(not_before, begin_at))
    WHERE state = 'queued' AND greatest(not_before, begin_at) IS NOT NULL;
CREATE INDEX jobs_labels ON jobs USING gin (labels) WHERE labels IS NOT NULL;
CREATE INDEX jobs_depends ON jobs (id) WHERE depends AND state IN ('held', 'queued');
CREATE UNIQUE INDEX jobs_elements ON jobs (array_of, array_index) WHERE array_of IS NOT NULL;
CREATE INDEX jobs_elements_open ON jobs (array_of)
    WHERE array_of IS NOT NULL AND state NOT IN ('succeeded', 'failed', 'cancelled');
CREATE INDEX jobs_arrays ON jobs (id) WHERE array_size > 0 AND state IN ('queued', 'running', 'stopping');
CREATE INDEX jobs_changed ON jobs (changed);
CREATE INDEX jobs_class ON jobs (plan_class) WHERE state = 'queued';

-- Jobs that come after others. A job with `depends` does not start: the scheduler clears it once those others have ended
-- as they are to, and fails the job once that cannot be. A job names only jobs that were there before it, so there are no
-- cycles.
CREATE TABLE job_after (
    job bigint NOT NULL REFERENCES jobs,
    after bigint NOT NULL REFERENCES jobs,
    however boolean NOT NULL,                     -- any end will do; false: it must succeed
    PRIMARY KEY (job, after, however)
);

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
    -- Seconds a step as the run's plan predicts them: forecasts of ends read them for every run that is active, and the plan
    -- itself is large.
    step_s double precision,
    -- A run is asked for a checkpoint so that it can yield to a job (save_why: scavenger, owner, urgent) or because its slice
    -- is over (slice). If none is stored by save_by the run goes on, and saves_missed counts that.
    save_bytes bigint NOT NULL DEFAULT 0,         -- of its last checkpoint, or as the plan predicts them
    saved_at timestamptz,                         -- when its last checkpoint was complete
    save_asked_at timestamptz,
    save_by timestamptz,                          -- null: it is not asked at present
    save_why text,
    save_for bigint,                              -- the job to which it is to yield
    saves_missed integer NOT NULL DEFAULT 0,
    -- The step that was predicted when the run was placed, as program/trace.h packs it; null of plans that are too long.
    timeline text,
    load_bytes bigint NOT NULL DEFAULT 0,         -- of weights that its largest rank loads, as the plan predicts them
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
    -- What runs measure of their devices.
    busy_s double precision,                      -- seconds of computing a step, as the run's plan predicts them
    compute_s double precision,                   -- the same as the rank measures them, smoothed over the last steps
    measured integer NOT NULL DEFAULT 0,          -- steps that were measured
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
CREATE INDEX checkpoints_run ON checkpoints (run);

CREATE TABLE artifacts (
    job bigint NOT NULL REFERENCES jobs,
    name text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 400),
    sha256 text NOT NULL CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    size bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job, name)
);
CREATE INDEX artifacts_files ON artifacts (sha256);

-- A step once reported is never new again.
CREATE TABLE metrics (
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

-- Events are inserted under an advisory lock, so that ids become visible in order.
CREATE TABLE events (
    id bigserial PRIMARY KEY,
    job bigint,
    type text NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    body json NOT NULL
);
CREATE INDEX events_job ON events (job, id);
CREATE INDEX events_at ON events USING brin (at);

-- Messages to agents that are not confirmed yet.
CREATE TABLE outbox (
    id bigserial PRIMARY KEY,
    node text NOT NULL,
    run bigint,
    type text NOT NULL,
    payload json NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX outbox_run ON outbox (run);

-- Jobs that agents remember from an earlier incarnation and that this database has never heard of: they were
-- submitted after the backup.
CREATE TABLE unknown_jobs (
    job bigint NOT NULL,
    node text NOT NULL,
    run bigint NOT NULL,                          -- the newest there
    incarnation text NOT NULL,                    -- under which it ran
    reported_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job, node)
);

-- How many jobs are in each state, as steps up and down whose sum is the count: counting the jobs anew would cost
-- more the longer a cluster lives.
CREATE TABLE job_counts (
    id bigserial PRIMARY KEY,
    state text NOT NULL,
    n bigint NOT NULL
);

CREATE FUNCTION motley_job_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO job_counts (state, n) VALUES (OLD.state, -1), (NEW.state, 1);
    RETURN NULL;
END $$;
CREATE TRIGGER job_moved AFTER UPDATE OF state ON jobs
    FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION motley_job_moved();

CREATE FUNCTION motley_jobs_removed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO job_counts (state, n) SELECT state, -count(*) FROM removed GROUP BY state;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_removed AFTER DELETE ON jobs REFERENCING OLD TABLE AS removed
    FOR EACH STATEMENT EXECUTE FUNCTION motley_jobs_removed();

-- Now and then the steps are added together. Rows that another transaction is adding together are left to it:
-- nobody waits, so that no two can wait for each other.
CREATE FUNCTION motley_job_counts_fold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        DELETE FROM job_counts WHERE id IN (SELECT id FROM job_counts FOR UPDATE SKIP LOCKED) RETURNING state, n
    )
    INSERT INTO job_counts (state, n) SELECT state, sum(n) FROM gone GROUP BY state HAVING sum(n) <> 0;
    RETURN NULL;
END $$;
CREATE TRIGGER job_counts_fold AFTER INSERT ON job_counts
    FOR EACH ROW WHEN (NEW.id % 1000 = 0) EXECUTE FUNCTION motley_job_counts_fold();

-- The queue that a scheduler keeps in memory between its decisions (store/queue.h): which transaction changed a queued job
-- last, and the job's class.

-- A job's class is all that a plan depends on: the specification without what concerns only people or the course of
-- training, and the inputs. scheduler/pass/job_class.c leaves out the same keys.
CREATE FUNCTION motley_class(spec json, inputs json) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT sha256(convert_to(concat((s - 'train')::text, CASE WHEN jsonb_typeof(s -> 'train') = 'object' THEN (s -> 'train')
        - ARRAY['learning_rate', 'schedule', 'warmup_steps', 'final_fraction', 'cycles', 'power', 'decay_steps', 'weight_decay',
            'decay', 'betas', 'eps', 'clip_norm', 'label_smoothing', 'neftune_alpha', 'seed']
        ELSE s -> 'train' END, inputs::jsonb), 'UTF8'))
    FROM (SELECT spec::jsonb - ARRAY['name', 'priority', 'labels', 'account', 'service', 'begin', 'hold', 'limits', 'eval',
        'result', 'checkpoint', 'after', 'after_any', 'array', 'at_most'] AS s) x
$$;

CREATE FUNCTION motley_job_class_stale() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.plan_class := NULL;
    RETURN NEW;
END $$;

CREATE FUNCTION motley_job_queue() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed := pg_current_xact_id();
    IF NEW.state = 'queued' AND NEW.plan_class IS NULL THEN
        NEW.plan_class := motley_class(NEW.spec, NEW.inputs);
    END IF;
    RETURN NEW;
END $$;
-- Triggers fire in the order of their names.
CREATE TRIGGER job_class_stale BEFORE UPDATE OF spec, inputs ON jobs FOR EACH ROW EXECUTE FUNCTION motley_job_class_stale();
CREATE TRIGGER job_queue BEFORE INSERT ON jobs FOR EACH ROW WHEN (NEW.state = 'queued' AND NEW.plan_class IS NULL)
    EXECUTE FUNCTION motley_job_queue();
CREATE TRIGGER job_queue_changed BEFORE UPDATE ON jobs FOR EACH ROW WHEN (OLD.state = 'queued' OR NEW.state = 'queued')
    EXECUTE FUNCTION motley_job_queue();

-- The jobs that were changed by transactions which the snapshot does not see. That is exact whatever the order of the
-- commits: a transaction that was open at the snapshot counts although its number is small. Without statistics of a
-- parameter the planner would read the whole table.
CREATE FUNCTION motley_jobs_since(seen pg_snapshot) RETURNS SETOF bigint LANGUAGE sql STABLE ROWS 10 SET enable_seqscan = off AS $$
    SELECT id FROM jobs WHERE changed >= pg_snapshot_xmin(seen) AND NOT pg_visible_in_snapshot(changed, seen)
$$;
