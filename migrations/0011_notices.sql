-- People are told at addresses of their own (webhooks) when a job of theirs ends or is held.

-- Where a person is told of jobs that name no address; null: nowhere. With the key the api signs what it sends.
ALTER TABLE users ADD COLUMN notify text CHECK (octet_length(notify) BETWEEN 1 AND 1000);
ALTER TABLE users ADD COLUMN notify_key text NOT NULL DEFAULT replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '');

-- One row for each thing that a person is to be told. The apis take those that are due, and try again until one of a receiver's
-- answers is good, or eight tries have failed. Old rows go with old events (store/prune.c).
CREATE TABLE notices (
    id bigserial PRIMARY KEY,
    job bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    owner bigint NOT NULL REFERENCES users,
    event text NOT NULL,                          -- the job's new state
    state text NOT NULL CHECK (state IN ('waiting', 'delivered', 'given up', 'dropped')),
    url text NOT NULL,
    body text NOT NULL,                           -- what is sent, byte for byte
    at timestamptz NOT NULL DEFAULT now(),
    attempts integer NOT NULL DEFAULT 0,
    due_at timestamptz NOT NULL DEFAULT now(),    -- of a waiting one: when it is tried next
    taken_until timestamptz,                      -- an api is at it; it is tried again if that time passes
    ended_at timestamptz,
    why text                                      -- what the last attempt failed for, or why there was none
);
CREATE INDEX notices_due ON notices (due_at) WHERE state = 'waiting';
CREATE INDEX notices_waiting ON notices (owner) WHERE state = 'waiting';
CREATE INDEX notices_job ON notices (job);
CREATE INDEX notices_owner ON notices (owner, id);
CREATE INDEX notices_at ON notices (at);

-- Writes the notice in the transaction that changes the job's state, so that none is lost and none is of a change that was not
-- made. Of an array the whole is told, and not each element. Of more than 1,000 that wait for one person the rest is dropped.
CREATE FUNCTION motley_job_notice() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    who record;
    to_url text;
    number bigint;
    full_up boolean;
BEGIN
    SELECT name, notify, disabled INTO who FROM users WHERE id = NEW.owner;
    to_url := coalesce(NEW.spec ->> 'notify', who.notify, 'none');
    IF to_url = 'none' OR who.disabled THEN
        RETURN NULL;
    END IF;
    full_up := (SELECT count(*) FROM (SELECT 1 FROM notices WHERE owner = NEW.owner AND state = 'waiting' LIMIT 1000) w) = 1000;
    number := nextval('notices_id_seq');
    INSERT INTO notices (id, job, owner, event, state, url, why, ended_at, body)
        VALUES (number, NEW.id, NEW.owner, NEW.state, CASE WHEN full_up THEN 'dropped' ELSE 'waiting' END, to_url,
            CASE WHEN full_up THEN '1000 others of yours wait already' END, CASE WHEN full_up THEN now() END,
            json_build_object('notice', number, 'event', NEW.state, 'at', motley_time(now()), 'job', NEW.id, 'name', NEW.name,
                'owner', who.name, 'step', NEW.step, 'steps', NEW.steps, 'loss', NEW.loss, 'attempt', NEW.attempt,
                'code', NEW.code, 'why', NEW.why)::text);
    PERFORM pg_notify('motley_notices', '');
    RETURN NULL;
END $$;
CREATE TRIGGER job_notice AFTER UPDATE OF state ON jobs FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state AND NEW.state IN ('succeeded', 'failed', 'cancelled', 'held') AND NEW.array_of IS NULL)
    EXECUTE FUNCTION motley_job_notice();

-- No plan depends on `notify`. model/job/plan_class.c leaves out the same keys.
CREATE OR REPLACE FUNCTION motley_class(spec json, inputs json) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT sha256(convert_to(concat((s - 'train')::text, CASE WHEN jsonb_typeof(s -> 'train') = 'object' THEN (s -> 'train')
        - ARRAY['learning_rate', 'schedule', 'warmup_steps', 'final_fraction', 'cycles', 'power', 'decay_steps', 'weight_decay',
            'decay', 'betas', 'eps', 'clip_norm', 'label_smoothing', 'neftune_alpha', 'seed']
        ELSE s -> 'train' END, inputs::jsonb), 'UTF8'))
    FROM (SELECT spec::jsonb - ARRAY['name', 'priority', 'labels', 'account', 'service', 'begin', 'hold', 'limits', 'eval',
        'result', 'checkpoint', 'after', 'after_any', 'array', 'at_most', 'notify'] AS s) x
$$;
