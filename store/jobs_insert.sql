-- The statements of jobs_insert.c.

-- The parameters are arrays with one element per job. Ids are taken before the insert, so that the result rows
-- keep the order of the array elements. `over` begins with "account:" where the queue is full for them, or what
-- their ended jobs left is too much, and with "placement:" where the job can never start under their limits.
-- motley_refused takes about 50 µs per job, so it is called only when somebody has a limit.
--# write jobs_insert(owner bigint[n], name text[n], key text[n], digest text[n], spec json[n] as text,
--#    inputs json[n] as text, priority bigint[n], state text[n], retries bigint[n], time_limit bigint[n],
--#    steps bigint[n], who text[n], token bigint[n], address text[n], account text[n], service bigint[n],
--#    begin_us bigint[n], least bigint[n], admin bigint[n], depends bigint[n], size bigint[n], at_most bigint[n],
--#    class text[n], wants text[n]) -> n bigint, id bigint, created_us bigint, void, refusal text, full boolean
WITH given AS MATERIALIZED (
    SELECT nextval('jobs_id_seq') AS id, g.*
    FROM unnest(
        :owner::bigint[], :name::text[], :key::text[], :digest::text[], :spec::json[], :inputs::json[],
        :priority::bigint[], :state::text[], :retries::bigint[], :time_limit::bigint[], :steps::bigint[],
        :who::text[], :token::bigint[], :address::text[], :account::text[], :service::bigint[], :begin_us::bigint[],
        :least::bigint[], :admin::bigint[], :depends::bigint[], :size::bigint[], :at_most::bigint[], :class::text[],
        :wants::text[]
    ) WITH ORDINALITY AS g(
        owner, name, key, digest, spec, inputs, priority, state, retries, time_limit, steps, who, token, address,
        account, service, begin_us, least, admin, depends, size, at_most, class, wants, n
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
        (spec -> 'labels')::jsonb, leaf, service, CASE WHEN begin_us > 0 THEN to_timestamp(begin_us / 1e6) END,
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
SELECT g.n, m.id, (extract(epoch FROM m.created_at) * 1e6)::bigint,
    CASE WHEN g.n = 1 THEN pg_notify('motley_jobs', '') END, coalesce(g.wrong, g.over),
    g.wrong IS NULL AND coalesce(starts_with(g.over, 'account:'), false)
FROM charged g
LEFT JOIN made m USING (id)
ORDER BY g.n;

--# read jobs_find_by_key(owner bigint, key text) -> id bigint, state text, created_us bigint, digest text
SELECT id, state, (extract(epoch FROM created_at) * 1e6)::bigint, encode(request_digest, 'hex')
FROM jobs
WHERE owner = :owner AND idempotency_key = :key;
