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

ALTER TABLE jobs
    ADD COLUMN plan_class bytea,                                         -- null until the job is queued
    ADD COLUMN changed xid8 NOT NULL DEFAULT pg_current_xact_id();      -- of a job that is queued or was before the change
UPDATE jobs SET plan_class = motley_class(spec, inputs) WHERE state = 'queued';
DROP INDEX jobs_queue, jobs_leaf;                                       -- the scheduler read the queue through them
CREATE INDEX jobs_changed ON jobs (changed);
CREATE INDEX jobs_class ON jobs (plan_class) WHERE state = 'queued';

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
CREATE TRIGGER job_queue BEFORE INSERT ON jobs FOR EACH ROW WHEN (NEW.state = 'queued') EXECUTE FUNCTION motley_job_queue();
CREATE TRIGGER job_queue_changed BEFORE UPDATE ON jobs FOR EACH ROW WHEN (OLD.state = 'queued' OR NEW.state = 'queued')
    EXECUTE FUNCTION motley_job_queue();

-- The jobs that were changed by transactions which the snapshot does not see. That is exact whatever the order of the
-- commits: a transaction that was open at the snapshot counts although its number is small. Without statistics of a
-- parameter the planner would read the whole table.
CREATE FUNCTION motley_jobs_since(seen pg_snapshot) RETURNS SETOF bigint LANGUAGE sql STABLE ROWS 10 SET enable_seqscan = off AS $$
    SELECT id FROM jobs WHERE changed >= pg_snapshot_xmin(seen) AND NOT pg_visible_in_snapshot(changed, seen)
$$;
