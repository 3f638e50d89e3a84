-- People, their groups and tokens, and the machines that they enrol.

-- Groups are the accounts that are charged. They form a tree, whose root has no row and is 0 in jobs.account. A limit of 0
-- is none.
CREATE TABLE groups (
    id bigserial PRIMARY KEY,
    name text NOT NULL UNIQUE CHECK (octet_length(name) BETWEEN 1 AND 200),
    created_at timestamptz NOT NULL DEFAULT now(),
    parent bigint REFERENCES groups,              -- null: directly below the root
    weight double precision NOT NULL DEFAULT 1 CHECK (weight > 0 AND weight <= 1e9),
    devices_max integer NOT NULL DEFAULT 0 CHECK (devices_max >= 0), -- held at once, with its subgroups
    running_max integer NOT NULL DEFAULT 0 CHECK (running_max >= 0), -- jobs at once
    queued_max integer NOT NULL DEFAULT 0 CHECK (queued_max >= 0), -- jobs that wait or are held
    month_seconds_max double precision NOT NULL DEFAULT 0 CHECK (month_seconds_max >= 0), -- charged in 30 days
    -- Of these the nearest group on the way to the root that has one counts.
    time_limit_s double precision NOT NULL DEFAULT 0 CHECK (time_limit_s >= 0), -- of jobs that name none
    slice_s double precision NOT NULL DEFAULT 0 CHECK (slice_s >= 0),
    lease_limit_s double precision NOT NULL DEFAULT 0 CHECK (lease_limit_s >= 0) -- a lease lasts at most so long
);

-- No group is below itself. Changes of parents wait for each other, so that two cannot make a cycle together.
CREATE FUNCTION motley_group_parent() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    above bigint := NEW.parent;
    depth integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(5570193043);
    WHILE above IS NOT NULL LOOP
        IF above = NEW.id THEN
            RAISE EXCEPTION 'parent: group "%" would be below itself', NEW.name USING ERRCODE = 'MO004';
        END IF;
        depth := depth + 1;
        IF depth > 16 THEN
            RAISE EXCEPTION 'parent: the tree of groups would be deeper than 16' USING ERRCODE = 'MO004';
        END IF;
        SELECT parent INTO above FROM groups WHERE id = above;
    END LOOP;
    RETURN NEW;
END $$;
CREATE TRIGGER group_parent BEFORE INSERT OR UPDATE OF parent ON groups FOR EACH ROW EXECUTE FUNCTION motley_group_parent();

-- The tree of accounts as statements ask for it. 0 is the root, which is above all groups and has no limits.
CREATE FUNCTION motley_above(account bigint) RETURNS SETOF bigint LANGUAGE sql STABLE AS $$
    WITH RECURSIVE up AS (
        SELECT id, parent FROM groups WHERE id = account
        UNION ALL SELECT g.id, g.parent FROM up JOIN groups g ON g.id = up.parent
    )
    SELECT id FROM up
$$;

CREATE FUNCTION motley_below(account bigint) RETURNS SETOF bigint LANGUAGE sql STABLE AS $$
    WITH RECURSIVE down AS (
        SELECT account AS id UNION ALL SELECT g.id FROM down JOIN groups g ON g.parent = down.id
    )
    SELECT id FROM down
$$;

CREATE TABLE users (
    id bigserial PRIMARY KEY,
    name text NOT NULL UNIQUE CHECK (octet_length(name) BETWEEN 1 AND 200),
    created_at timestamptz NOT NULL DEFAULT now(),
    priority_max integer NOT NULL DEFAULT 100,    -- above it a submit is refused
    account bigint REFERENCES groups ON DELETE SET NULL, -- charged when a job names no group
    disabled boolean NOT NULL DEFAULT false,
    devices_max integer NOT NULL DEFAULT 0 CHECK (devices_max >= 0),
    running_max integer NOT NULL DEFAULT 0 CHECK (running_max >= 0),
    queued_max integer NOT NULL DEFAULT 0 CHECK (queued_max >= 0),
    month_seconds_max double precision NOT NULL DEFAULT 0 CHECK (month_seconds_max >= 0)
);

CREATE TABLE group_members (
    grp bigint NOT NULL REFERENCES groups ON DELETE CASCADE,
    user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE,
    PRIMARY KEY (user_id, grp)
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
    enrolled_at timestamptz NOT NULL DEFAULT now(),
    -- What a node may be believed by, and what came of it: its Redis user is made again from here whenever Redis lost it.
    redis_hash bytea CHECK (octet_length(redis_hash) = 32), -- SHA-256 of its Redis password; null: no user
    seal_key bytea CHECK (octet_length(seal_key) = 32), -- of the MAC on messages from and to it
    refused bigint NOT NULL DEFAULT 0,            -- messages refused since it was enrolled
    mark text,                                    -- the last reason
    marked_at timestamptz,
    barred boolean NOT NULL DEFAULT false,        -- no Redis user until it is enrolled anew
    -- Whom a certificate names: a node and its generation, which rises whenever the node is enrolled anew or removed.
    -- A name that was seen, or removed, is taken for good: only a token bound to it with `replace`, or the old key
    -- with a token bound to it, enrols it again.
    key_hash bytea CHECK (octet_length(key_hash) = 32), -- SHA-256 of its public key; NULL: enrolled before, or removed
    certified_until timestamptz,                  -- what it has runs out then, and cannot be renewed after
    removed_at timestamptz,                       -- not NULL: no node of the cluster any more
    -- Failures of starts on a node count from here on: a person has let it work again.
    starts_from timestamptz NOT NULL DEFAULT now(),
    -- How far the clock of a node's agent is ahead of the scheduler's, in seconds, as its heartbeats show it; null
    -- before two of them were heard.
    clock_ahead_s double precision,
    lost_at timestamptz                           -- of an unreachable node: when what runs there is given up
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
    made_by bigint,                               -- the token it was made with
    -- Sessions of the page: tokens that are made of a person's token, end with it at the latest, and live in a cookie.
    parent bigint REFERENCES tokens ON DELETE CASCADE, -- it is valid only while that one is
    session boolean NOT NULL DEFAULT false,       -- it is a session's, and makes no further sessions
    CHECK ((user_id IS NULL) <> (node IS NULL))
);
CREATE INDEX tokens_parent ON tokens (parent) WHERE parent IS NOT NULL;

-- A code is exchanged for a session of the token that it was made with, once and within ten minutes.
CREATE TABLE session_codes (
    hash bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
    token bigint NOT NULL REFERENCES tokens ON DELETE CASCADE,
    expires_at timestamptz NOT NULL,
    used_at timestamptz
);

CREATE TABLE join_tokens (
    hash bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
    user_id bigint REFERENCES users,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    used_at timestamptz,
    used_by text,
    node text,                                    -- good for that name alone; NULL: for any new one
    replace boolean NOT NULL DEFAULT false,       -- good for a name that is taken
    CHECK (node IS NOT NULL OR NOT replace)
);

-- What people and administrators changed. Documents hold no secret.
CREATE TABLE audit (
    id bigserial PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    who text NOT NULL,                            -- the name of the user, or node:NAME
    user_id bigint,
    token bigint,                                 -- tokens.id, not the token
    address text,                                 -- where the request came from
    what text NOT NULL,                           -- "model.put"
    object text NOT NULL,
    before json,
    after json
);

-- Answers to requests with an Idempotency-Key, for a day: the same request is answered so again and changes nothing. Keys
-- of submits stand with their jobs.
CREATE TABLE answers (
    asker bigint NOT NULL,                        -- a user's id, or a node's token negated
    key text NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 200),
    digest bytea NOT NULL CHECK (octet_length(digest) = 32), -- SHA-256 of the request
    status integer,                               -- null: the request is under way, or its answer was lost
    body json,                                    -- null: the answer had none, or it is not kept
    kept boolean NOT NULL DEFAULT false,          -- the answer may be given again
    at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (asker, key)
);
CREATE INDEX answers_at ON answers (at);
