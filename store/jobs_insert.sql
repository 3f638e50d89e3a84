-- The statements of jobs_insert.c.

-- What became of each job of a batch.
--# columns job_made(n bigint, id bigint, created_us bigint, refusal text, full boolean)

--# fragment made_rows
SELECT g.n, m.id, (extract(epoch FROM m.created_at) * 1e6)::bigint,
    coalesce(g.wrong, g.over),
    g.wrong IS NULL AND coalesce(starts_with(g.over, 'account:'), false)
FROM charged g
LEFT JOIN made m USING (id)
ORDER BY g.n

-- The parameters are arrays with one element per job. Ids are taken before the insert, so that the result rows
-- keep the order of the array elements. `over` begins with "account:" where the queue is full for them, or what
-- their ended jobs left is too much, and with "placement:" where the job can never start under their limits.
-- motley_refused takes about 50 µs per job, so it is called only when somebody has a limit.
--# write jobs_insert(owner bigint[n], name text[n], key text[n], digest text[n], spec json[n] as text,
--#    inputs json[n] as text, priority bigint[n], state text[n], retries bigint[n], time_limit bigint[n],
--#    steps bigint[n], who text[n], token bigint[n], address text[n], labels text[n], service bigint[n],
--#    begin_us bigint[n], least bigint[n], size bigint[n], at_most bigint[n], class text[n],
--#    account text[n], admin bigint[n], depends bigint[n], wants text[n]) -> job_made
WITH given AS MATERIALIZED (
    SELECT nextval('jobs_id_seq') AS id, g.*
    FROM unnest(
        :owner::bigint[], :name::text[], :key::text[], :digest::text[], :spec::json[], :inputs::json[],
        :priority::bigint[], :state::text[], :retries::bigint[], :time_limit::bigint[], :steps::bigint[],
        :who::text[], :token::bigint[], :address::text[], :labels::text[], :service::bigint[], :begin_us::bigint[],
        :least::bigint[], :size::bigint[], :at_most::bigint[], :class::text[], :account::text[], :admin::bigint[],
        :depends::bigint[], :wants::text[]
    ) WITH ORDINALITY AS g(
        owner, name, key, digest, spec, inputs, priority, state, retries, time_limit, steps, who, token, address,
        labels, service, begin_us, least, size, at_most, class, account, admin, depends, wants, n
    )
),
charged AS MATERIALIZED (
    SELECT g.*,
        CASE
            WHEN u.disabled THEN format('user: %s is disabled', u.name)
            WHEN g.account IS NOT NULL AND a.id IS NULL
                THEN format('account: there is no group "%s" that %s is in', g.account, u.name)
            ELSE CASE WHEN g.depends = 1 THEN motley_after_refused(g.spec, g.owner, g.admin = 1) END
        END AS wrong,
        CASE
            WHEN u.devices_max > 0 OR u.queued_max > 0 OR u.kept_bytes_max > 0 OR coalesce(a.id, u.account, 0) > 0
                AND (
                    SELECT EXISTS (SELECT 1 FROM groups WHERE devices_max > 0 OR queued_max > 0 OR kept_bytes_max > 0)
                )
                THEN coalesce(
                    motley_refused(
                        g.owner, coalesce(a.id, u.account, 0), g.least,
                        row_number() OVER (PARTITION BY g.owner ORDER BY g.n)
                    ),
                    motley_kept_refused(g.owner, coalesce(a.id, u.account, 0))
                )
        END AS over,
        coalesce(a.id, u.account, 0) AS leaf
    FROM given g
    LEFT JOIN users u ON u.id = g.owner
    LEFT JOIN groups a ON a.name = g.account
        AND (g.admin = 1 OR EXISTS (SELECT 1 FROM group_members m WHERE m.grp = a.id AND m.user_id = g.owner))
),
made AS (
    INSERT INTO jobs (
        id, owner, name, idempotency_key, request_digest, spec, inputs, priority, state, retries_max, time_limit_ms,
        steps, labels, account, service, begin_at, depends, array_size, at_most, plan_class, why
    )
    SELECT id, owner, name, key, decode(digest, 'hex'), spec, inputs, priority, state, retries, time_limit, steps,
        labels::jsonb, leaf, service, to_timestamp(nullif(begin_us, 0) / 1e6),
        depends = 1, size, at_most, decode(nullif(class, ''), 'hex'),
        'its model ' || wants || ' is to be fetched from the Hub'
    FROM charged
    WHERE coalesce(wrong, over) IS NULL
    ORDER BY n
    ON CONFLICT (owner, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING id, created_at, state
),
linked AS (
    INSERT INTO job_after (job, after, however)
    SELECT m.id, a.value::bigint, k.key = 'after_any'
    FROM made m
    JOIN given g USING (id), (VALUES ('after'), ('after_any')) k(key), json_array_elements_text(g.spec -> k.key) a
    WHERE g.depends = 1
),
counted AS (INSERT INTO job_counts (state, n) SELECT state, count(*) FROM made GROUP BY state),
fetched AS (
    INSERT INTO job_fetches (job, hub, admin)
    SELECT m.id, g.wants, g.admin = 1
    FROM made m
    JOIN given g USING (id)
    WHERE g.wants IS NOT NULL
),
said AS (
    INSERT INTO audit (who, user_id, token, address, what, object, after)
    SELECT g.who, g.owner, nullif(g.token, 0), nullif(g.address, ''), 'job.submit', m.id::text,
        json_build_object('name', g.name, 'priority', g.priority)
    FROM made m
    JOIN given g USING (id)
)
@made_rows;

-- The same for jobs that come after no others, name no account, and wait for no model to be fetched: nearly all
-- jobs. It takes three quarters of the time: it begins no insert that would have no rows, and takes elements of the
-- arrays where they are needed, while unnest() of many arrays copies each of them first.
--# write jobs_insert_plain(owner bigint[n], name text[n], key text[n], digest text[n], spec json[n] as text,
--#    inputs json[n] as text, priority bigint[n], state text[n], retries bigint[n], time_limit bigint[n],
--#    steps bigint[n], who text[n], token bigint[n], address text[n], labels text[n], service bigint[n],
--#    begin_us bigint[n], least bigint[n], size bigint[n], at_most bigint[n], class text[n]) -> job_made
WITH charged AS MATERIALIZED (
    SELECT g.*, coalesce(u.account, 0) AS leaf,
        CASE WHEN u.disabled THEN format('user: %s is disabled', u.name) END AS wrong,
        CASE
            WHEN u.devices_max > 0 OR u.queued_max > 0 OR u.kept_bytes_max > 0 OR u.account > 0
                AND (
                    SELECT EXISTS (SELECT 1 FROM groups WHERE devices_max > 0 OR queued_max > 0 OR kept_bytes_max > 0)
                )
                THEN coalesce(
                    motley_refused(
                        g.owner, coalesce(u.account, 0), (:least::bigint[])[n],
                        (
                            SELECT count(*)
                            FROM unnest(:owner::bigint[]) WITH ORDINALITY AS b(owner, n)
                            WHERE b.owner = g.owner AND b.n <= g.n
                        )
                    ),
                    motley_kept_refused(g.owner, coalesce(u.account, 0))
                )
        END AS over
    FROM (
        SELECT nextval('jobs_id_seq') AS id, n, spec, (:owner::bigint[])[n] AS owner
        FROM unnest(:spec::json[]) WITH ORDINALITY AS s(spec, n)
    ) g
    LEFT JOIN users u ON u.id = g.owner
),
made AS (
    INSERT INTO jobs (
        id, owner, name, idempotency_key, request_digest, spec, inputs, priority, state, retries_max, time_limit_ms,
        steps, labels, account, service, begin_at, array_size, at_most, plan_class
    )
    SELECT id, owner, (:name::text[])[n], (:key::text[])[n], decode((:digest::text[])[n], 'hex'), spec,
        (:inputs::json[])[n], (:priority::bigint[])[n], (:state::text[])[n], (:retries::bigint[])[n],
        (:time_limit::bigint[])[n], (:steps::bigint[])[n], (:labels::text[])[n]::jsonb, leaf,
        (:service::bigint[])[n], to_timestamp(nullif((:begin_us::bigint[])[n], 0) / 1e6), (:size::bigint[])[n],
        (:at_most::bigint[])[n], decode(nullif((:class::text[])[n], ''), 'hex')
    FROM charged
    WHERE coalesce(wrong, over) IS NULL
    ON CONFLICT (owner, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING id, created_at, state
),
counted AS (INSERT INTO job_counts (state, n) SELECT state, count(*) FROM made GROUP BY state),
said AS (
    INSERT INTO audit (who, user_id, token, address, what, object, after)
    SELECT (:who::text[])[n], g.owner, nullif((:token::bigint[])[n], 0), nullif((:address::text[])[n], ''),
        'job.submit', m.id::text, json_build_object('name', (:name::text[])[n], 'priority', (:priority::bigint[])[n])
    FROM made m
    JOIN charged g USING (id)
)
@made_rows;

-- Wakes the scheduler. It is no part of the insert: a transaction that notifies holds a lock from before its commit's
-- flush to the end, so that no two batches would share a flush.
--# read jobs_wake() -> void
SELECT pg_notify('motley_jobs', '');

--# read jobs_find_by_key(owner bigint, key text) -> id bigint, state text, created_us bigint, digest text
SELECT id, state, (extract(epoch FROM created_at) * 1e6)::bigint, encode(request_digest, 'hex')
FROM jobs
WHERE owner = :owner AND idempotency_key = :key;
