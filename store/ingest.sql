-- The statements of ingest.c.

--# write ingest_ranks(rows json) -> void
WITH c AS MATERIALIZED (
    SELECT *
    FROM @records(
        run bigint, epoch bigint, rank integer, seq_before bigint, seq bigint, before text, state text, address text,
        identity text, code text, why text, own_fault boolean, memory json, compute_s double precision,
        measured integer
    )
),
upd AS (
    UPDATE assignments a
    SET last_seq = c.seq,
        state = c.state,
        address = coalesce(c.address, a.address),
        identity = coalesce(c.identity, a.identity),
        code = coalesce(c.code, a.code),
        why = coalesce(c.why, a.why),
        own_fault = a.own_fault OR coalesce(c.own_fault, false),
        memory = coalesce(c.memory, a.memory),
        compute_s = coalesce(c.compute_s, a.compute_s),
        measured = coalesce(c.measured, a.measured)
    FROM c
    JOIN runs r ON r.id = c.run AND r.epoch = c.epoch AND r.state IN ('starting', 'running', 'stopping')
    WHERE a.run = c.run AND a.rank = c.rank AND a.last_seq = c.seq_before AND a.state = c.before
    RETURNING 1
)
SELECT motley_expect((SELECT count(*) FROM upd), (SELECT count(*) FROM c), 'ranks');

--# write ingest_metrics(rows json)
WITH c AS MATERIALIZED (
    SELECT c.*, row_number() OVER () AS n
    FROM @records(job bigint, kind text, rank integer, step bigint, document json)
),
made AS (
    INSERT INTO metrics (job, kind, rank, step, document)
    SELECT job, kind, rank, step, document
    FROM c
    ORDER BY n
    ON CONFLICT DO NOTHING
    RETURNING job, kind, rank, step
),
load AS (
    INSERT INTO device_load AS l (device, begins, seconds, compute_s, wait_s, send_s)
    SELECT p.device, p.begins, 60, sum(p.compute_s), sum(p.wait_s), sum(p.send_s)
    FROM c
    JOIN made USING (job, kind, rank, step), json_to_record(c.document) AS d(
        device text, wall_s float8, compute_s float8, wait_s float8, send_s float8
    ), motley_load(
        d.device, coalesce(d.wall_s, 0), coalesce(d.compute_s, 0), coalesce(d.wait_s, 0), coalesce(d.send_s, 0)
    ) p
    WHERE c.kind = 'ranks' AND d.device IS NOT NULL
    GROUP BY p.device, p.begins
    ORDER BY p.device, p.begins
    ON CONFLICT (device, begins, seconds) DO UPDATE
    SET compute_s = l.compute_s + excluded.compute_s,
        wait_s = l.wait_s + excluded.wait_s,
        send_s = l.send_s + excluded.send_s
)
INSERT INTO events (job, type, body)
SELECT c.job, c.kind, c.document
FROM c
JOIN made USING (job, kind, rank, step)
WHERE c.kind <> 'ranks' OR c.rank < 64
ORDER BY c.n;

--# write ingest_progress(rows json)
UPDATE jobs j
SET step = greatest(j.step, c.step),
    loss = CASE WHEN c.step >= j.step THEN coalesce(c.loss, j.loss) ELSE j.loss END,
    updated_at = now()
FROM @records(job bigint, step bigint, loss double precision)
WHERE j.id = c.job;

--# write ingest_events(rows json)
INSERT INTO events (job, type, body) SELECT c.job, c.type, c.body FROM @records(job bigint, type text, body json);

-- A checkpoint that is reported late (for example by a node that was cut off for a day) may refer to files that
-- were removed in the meantime. It is taken only when all its files are present. That counts as use of the files,
-- so a removal that is under way checks them again. A part from a newer attempt restarts an incomplete checkpoint
-- of an older attempt. Of a complete checkpoint only `best` changes, because the last step's is stored before it
-- is evaluated. Of several best ones that come at once, the last one is best. If parts brought a routing
-- (expert_share), that of the job's last new checkpoint becomes an input of the job's next plan.
--# write ingest_checkpoints(rows json)
WITH c AS MATERIALIZED (
    SELECT *
    FROM @records(
        job bigint, run bigint, step bigint, rank integer, parts integer, best boolean, blobs jsonb,
        expert_share jsonb
    )
),
here AS MATERIALIZED (
    SELECT sha256
    FROM blobs
    WHERE sha256 IN (SELECT b.value #>> '{}' FROM c, jsonb_each(c.blobs) b)
    ORDER BY sha256
    FOR NO KEY UPDATE
),
used AS (UPDATE blobs b SET used_at = now() FROM here WHERE b.sha256 = here.sha256 RETURNING 1),
lacking AS MATERIALIZED (
    SELECT c.job, c.step, c.rank, count(*) AS n
    FROM c, jsonb_each(c.blobs) b
    WHERE b.value #>> '{}' NOT IN (SELECT sha256 FROM here)
    GROUP BY c.job, c.step, c.rank
),
said AS (
    INSERT INTO events (job, type, body)
    SELECT job, 'log',
        json_build_object(
            'level', 'warn',
            'text', format('the checkpoint after step %s is not taken: %s of its files are no longer kept', step, n),
            'rank', rank
        )
    FROM lacking
    RETURNING 1
),
one AS (
    SELECT c.job, c.step, max(c.run) AS run, max(c.parts) AS parts, array_agg(DISTINCT c.rank) AS ranks,
        jsonb_object_agg(b.key, b.value) FILTER (WHERE b.key IS NOT NULL) AS blobs, bool_or(c.best) AS best
    FROM c
    LEFT JOIN LATERAL jsonb_each(c.blobs) b ON true
    WHERE NOT EXISTS (SELECT 1 FROM lacking l WHERE l.job = c.job AND l.step = c.step)
    GROUP BY c.job, c.step
),
put AS (
    INSERT INTO checkpoints AS k (job, step, run, parts, ranks, blobs, best, complete)
    SELECT job, step, run, parts, ranks, coalesce(blobs, '{}'),
        coalesce(best, false)
            AND NOT EXISTS (
                SELECT 1
                FROM one o
                WHERE o.job = one.job AND o.step > one.step AND o.best AND cardinality(o.ranks) >= o.parts
            ), cardinality(ranks) >= parts
    FROM one
    ON CONFLICT (job, step) DO UPDATE
    SET run = excluded.run,
        parts = excluded.parts,
        ranks = CASE
            WHEN k.run = excluded.run THEN (SELECT array_agg(DISTINCT x) FROM unnest(k.ranks || excluded.ranks) x)
            ELSE excluded.ranks
        END,
        blobs = CASE WHEN k.run = excluded.run THEN k.blobs || excluded.blobs ELSE excluded.blobs END,
        best = excluded.best OR (k.best AND k.run = excluded.run),
        complete = CASE
            WHEN k.run = excluded.run THEN (SELECT count(DISTINCT x) FROM unnest(k.ranks || excluded.ranks) x)
            ELSE cardinality(excluded.ranks)
        END >= excluded.parts,
        created_at = now()
    WHERE NOT k.complete OR (excluded.best AND NOT k.best AND k.run = excluded.run AND k.blobs = excluded.blobs)
    RETURNING job, run, step, best, complete, blobs
),
sized AS (
    UPDATE runs r
    SET saved_at = now(), save_bytes = coalesce(s.bytes, r.save_bytes)
    FROM (
        SELECT put.run, sum(b.size) AS bytes
        FROM put
        LEFT JOIN LATERAL jsonb_each(put.blobs) x ON true
        LEFT JOIN blobs b ON b.sha256 = x.value #>> '{}'
        WHERE put.complete
        GROUP BY put.run
    ) s
    WHERE r.id = s.run
    RETURNING 1
),
worse AS (
    UPDATE checkpoints w
    SET best = false
    FROM put
    WHERE put.complete AND put.best AND w.job = put.job AND w.best AND w.step <> put.step
    RETURNING 1
),
routed AS (
    UPDATE jobs j
    SET inputs = (j.inputs::jsonb || jsonb_build_object('expert_share', r.expert_share))::json
    FROM (
        SELECT DISTINCT ON (c.job) c.job, c.expert_share
        FROM c
        JOIN put USING (job, step)
        WHERE put.complete AND jsonb_typeof(c.expert_share) = 'array'
        ORDER BY c.job, c.step DESC
    ) r
    WHERE j.id = r.job
    RETURNING 1
)
INSERT INTO events (job, type, body)
SELECT job, 'checkpoint', json_build_object('step', step, 'best', best)
FROM put
WHERE complete
ORDER BY job, step;

-- Removes a job's complete checkpoints except the last `checkpoint.keep` (from the job's specification) and the
-- best one.
--# write ingest_checkpoints_trim(rows json)
DELETE FROM checkpoints k USING (
    SELECT c.job, c.step, c.best, (SELECT spec FROM jobs WHERE id = c.job) AS spec,
        row_number() OVER (PARTITION BY c.job ORDER BY c.step DESC) AS n
    FROM checkpoints c
    WHERE c.complete AND c.job IN (SELECT job FROM @records(job bigint))
) o
WHERE k.job = o.job AND k.step = o.step AND NOT o.best
    AND o.n > greatest(coalesce((o.spec #>> '{checkpoint,keep}')::bigint, 2), 1);

--# write ingest_artifacts(rows json)
INSERT INTO artifacts (job, name, sha256, size)
SELECT DISTINCT ON (job, name) job, name, sha256, coalesce(size, 0)
FROM @records(job bigint, name text, sha256 text, size bigint)
ORDER BY job, name
ON CONFLICT (job, name) DO UPDATE SET sha256 = excluded.sha256, size = excluded.size, created_at = now();

--# write ingest_traces(rows json)
INSERT INTO traces (run, rank, seq, document)
SELECT run, rank, seq, document
FROM @records(run bigint, rank integer, seq bigint, document json)
ON CONFLICT DO NOTHING;

--# write ingest_nodes(rows json)
UPDATE nodes n
SET boot = c.boot,
    last_seq = greatest(c.seq, CASE WHEN n.boot = c.boot THEN n.last_seq ELSE 0 END),
    state = CASE WHEN c.hello THEN 'alive' ELSE n.state END,
    last_seen = now(),
    machine_id = coalesce(c.machine_id, n.machine_id),
    address = coalesce(c.address, n.address),
    leaves_at = CASE WHEN c.hello THEN now() + c.leaves_s * interval '1 s' ELSE n.leaves_at END,
    inventory = coalesce(c.inventory, n.inventory)
FROM @records(
    node text, boot text, seq bigint, hello boolean, machine_id text, address text, inventory json, leaves_s float8
)
WHERE n.name = c.node AND n.removed_at IS NULL AND (c.hello OR n.boot = c.boot);

-- First marks all devices of a node that said hello as missing; put_devices then marks those that the hello names
-- as present again. So a hello without devices leaves none present.
--# write ingest_devices_gone(rows json)
UPDATE devices d
SET present = false
FROM @records(node text, hello boolean)
WHERE c.hello AND d.node = c.node AND d.present;

-- Where a node could not connect or be connected to is measured again at once when its agent has started anew.
--# write ingest_unreachable(rows json)
DELETE FROM requests r
USING nodes n, @records(node text, boot text, hello boolean)
WHERE c.hello AND n.name = c.node AND n.boot IS DISTINCT FROM c.boot AND r.kind = 'links' AND r.unreachable
    AND c.node IN (r.device, r.key);

--# write ingest_devices(rows json)
WITH c AS MATERIALIZED (
    SELECT * FROM @records(name text, node text, kind text, digest text, memory_limit_bytes bigint, inventory json)
)
INSERT INTO devices (name, node, kind, digest, memory_limit_bytes, inventory)
SELECT DISTINCT ON (name) name, node, kind, digest, memory_limit_bytes, inventory
FROM c
ORDER BY name
ON CONFLICT (name) DO UPDATE
SET kind = excluded.kind,
    digest = excluded.digest,
    present = true,
    memory_limit_bytes = excluded.memory_limit_bytes,
    inventory = excluded.inventory
WHERE devices.node = excluded.node;

--# write ingest_seen(rows json)
UPDATE nodes n
SET last_seen = now(), state = 'alive', clock_ahead_s = coalesce(c.clock_ahead_s, n.clock_ahead_s)
FROM @records(node text, clock_ahead_s float8)
WHERE n.name = c.node AND n.boot IS NOT NULL AND n.removed_at IS NULL;

-- A node may report only its own devices and links, and confirm only its own messages; the conditions on c.node
-- check that.
--# write ingest_profiles(rows json)
WITH gone AS (
    DELETE FROM requests r
    USING @records(request bigint, node text, document json)
    WHERE r.id = c.request AND r.kind = 'profile' AND starts_with(r.device, c.node || '/')
    RETURNING r.device, r.key, r.content, r.digest, c.document
)
INSERT INTO profiles (device, key, content, digest, document)
SELECT device, key, content, digest, document
FROM gone
ON CONFLICT (device, key) DO UPDATE
SET content = excluded.content,
    digest = excluded.digest,
    document = excluded.document,
    measured_at = now();

--# write ingest_links(rows json)
WITH c AS MATERIALIZED (
    SELECT * FROM @records("from" text, "to" text, request bigint, document json)
),
gone AS (
    DELETE FROM requests r USING c WHERE r.id = c.request AND r.kind = 'links' AND r.device = c."from" RETURNING 1
)
INSERT INTO links (from_node, to_node, document)
SELECT DISTINCT ON (c."from", c."to") c."from", c."to", c.document
FROM c
JOIN nodes a ON a.name = c."from"
JOIN nodes b ON b.name = c."to"
ORDER BY c."from", c."to", c.request DESC
ON CONFLICT (from_node, to_node) DO UPDATE
SET document = excluded.document,
    measured_at = now(),
    changed = excluded.changed;

--# write ingest_failures(rows json)
UPDATE requests r
SET state = 'failed', why = c.why, unreachable = c.unreachable, deadline_at = now() + r.tries * interval '1 s'
FROM @records(request bigint, node text, why text, unreachable boolean)
WHERE r.id = c.request AND (r.device = c.node OR starts_with(r.device, c.node || '/'));

--# write ingest_health(rows json)
WITH c AS MATERIALIZED (SELECT * FROM @records(device text, node text, health json)),
hot AS (
    INSERT INTO device_load AS l (device, begins, seconds, temperature_c)
    SELECT c.device, date_trunc('minute', now()), 60, max((c.health ->> 'temperature_c')::real)
    FROM c
    JOIN devices d ON d.name = c.device AND d.node = c.node
    WHERE json_typeof(c.health -> 'temperature_c') = 'number'
    GROUP BY c.device
    ORDER BY c.device
    ON CONFLICT (device, begins, seconds) DO UPDATE
    SET temperature_c = greatest(l.temperature_c, excluded.temperature_c)
)
UPDATE devices d
SET health = c.health
FROM c
WHERE d.name = c.device AND d.node = c.node;

-- The second failure within a day drains the device, until a person undrains it. If the device is already drained,
-- the failure is only counted.
--# write ingest_faults(rows json)
WITH c AS MATERIALIZED (
    SELECT device, max(job) AS job, max(rank) AS rank, max(why) AS why, count(*) AS n
    FROM @records(device text, job bigint, rank integer, why text)
    GROUP BY device
),
old AS (
    SELECT d.name, d.drained, c.job, c.rank, c.why,
        c.n + CASE WHEN d.fault_at > now() - interval '1 day' THEN d.faults ELSE 0 END AS faults
    FROM devices d
    JOIN c ON c.device = d.name
    FOR UPDATE OF d
),
upd AS (
    UPDATE devices d
    SET faults = old.faults,
        fault_at = now(),
        drained = d.drained OR old.faults >= 2,
        drain_why = CASE
            WHEN d.drained OR old.faults < 2 OR d.drain_why IS NOT NULL THEN d.drain_why
            ELSE format('%s of its workers ended within a day; the last: %s', old.faults, old.why)
        END
    FROM old
    WHERE d.name = old.name
    RETURNING d.name, d.drained, d.drain_why
)
INSERT INTO events (job, type, body)
SELECT old.job, 'log',
    json_build_object(
        'level', 'warn',
        'text', format('%s is drained: %s. motley undrain %s lets it work again', upd.name, upd.drain_why, upd.name),
        'rank', old.rank
    )
FROM upd
JOIN old USING (name)
WHERE upd.drained AND NOT old.drained;

--# write ingest_unknown(rows json)
INSERT INTO unknown_jobs AS u (job, node, run, incarnation)
SELECT c.job, c.node, max(c.run), max(c.incarnation)
FROM @records(job bigint, node text, run bigint, incarnation text)
WHERE NOT EXISTS (SELECT 1 FROM jobs j WHERE j.id = c.job)
GROUP BY c.job, c.node
ON CONFLICT (job, node) DO NOTHING;

--# write ingest_received(rows json)
DELETE FROM outbox o USING @records(id bigint, node text) WHERE o.id = c.id AND o.node = c.node;

-- Followers are notified at the commit; PostgreSQL merges equal notifications.
--# write ingest_notify(rows json) -> void
SELECT pg_notify('motley_events', job) FROM (SELECT DISTINCT c.job FROM @records(job text)) t;
