-- One cluster: who leads, and which life of the database this is. Documents that must come back byte for byte
-- (specification, plan, metrics) are json, not jsonb. States are texts; their machines stand in store/states.c, which every
-- change of state goes through.

-- RFC 3339, as every document shows times.
CREATE FUNCTION motley_time(t timestamptz) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT to_char(t AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;

-- Ends the transaction unless a statement changed exactly what it must.
CREATE FUNCTION motley_expect(changed bigint, wanted bigint, what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF changed IS DISTINCT FROM wanted THEN
        RAISE EXCEPTION '%: % of % could be changed', what, changed, wanted USING ERRCODE = 'MO002';
    END IF;
END $$;

-- Refuses a statement as a whole: 'MO004' for a request that is wrong, 'MO005' for one in conflict with the state.
CREATE FUNCTION motley_refuse(code text, why text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%', why USING ERRCODE = code;
END $$;

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

-- The leader's sign of life: a standby ends the session of one that holds the lock and does nothing.
CREATE TABLE leader_beat (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    pid integer NOT NULL,                         -- the server process of the leader's session
    beat timestamptz NOT NULL
);

-- How the leading scheduler's passes go (store/health.h), written by it every two seconds and after each change.
CREATE TABLE scheduler_health (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    name text NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),        -- when the scheduler wrote this row
    good_at timestamptz NOT NULL DEFAULT now(),   -- when nothing was left to decide
    failing_since timestamptz,                    -- null: the last try succeeded
    failures bigint NOT NULL DEFAULT 0,           -- tries that have failed since then
    task text,                                    -- what fails: passes or events
    why text,
    asides json NOT NULL DEFAULT '[]',            -- [{"part","job"?,"until","why"}]: parts that passes leave out for a while
    aside_count bigint NOT NULL DEFAULT 0
);

-- Which life of the database this is. A backup that is restored gets a new one (`motley-scheduler --restored`): the
-- wall clock in microseconds as 16 hexadecimal digits, so that a later one compares greater, and eight random ones.
CREATE FUNCTION motley_incarnation() RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1e6)::bigint), 16, '0') || '-' ||
           left(gen_random_uuid()::text, 8)
$$;

CREATE TABLE cluster (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    incarnation text NOT NULL CHECK (incarnation ~ '^[0-9a-f]{16}-[0-9a-f]{8}$'),
    since timestamptz NOT NULL DEFAULT now(),
    restored boolean NOT NULL DEFAULT false
);
INSERT INTO cluster (incarnation) VALUES (motley_incarnation());

-- The section `sharing` of the leader's configuration.
CREATE TABLE sharing (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    document json NOT NULL
);
