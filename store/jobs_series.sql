-- The statements of jobs_series.c.

--# fragment series(name, value, mean)
{name},
CASE
    WHEN count({value}) > 0
        THEN json_build_object(
            'least', min({value}), 'mean', {mean}, 'most', max({value}),
            'last', (max(ARRAY[step::float8, {value}]) FILTER (WHERE {value} IS NOT NULL))[2]
        )
END,

--# fragment mean(value)
avg(({value})::numeric)::float8

-- :to_step is the step after the last one.
--# read job_metrics_buckets(job bigint, kind text, from_step bigint, to_step bigint, buckets bigint) -> json
WITH r AS (
    SELECT min(step) AS lo, max(step) AS hi
    FROM metrics
    WHERE job = :job AND kind = :kind AND step >= :from_step AND step < :to_step
),
w AS (
    SELECT (SELECT min(k) FROM generate_series(0, 62) k WHERE (hi >> k) - (lo >> k) < :buckets::bigint) AS k
    FROM r
    WHERE hi IS NOT NULL
),
d AS (
    SELECT m.step, m.step >> w.k AS bucket, x.loss, x.grad_norm, x.learning_rate, x.loss_scale, x.tokens, x.seconds,
        CASE WHEN x.seconds > 0 THEN x.tokens / x.seconds END AS speed, coalesce(x.skipped, false) AS skipped
    FROM w, metrics m,
        LATERAL json_to_record(m.document) AS x(
            loss float8, grad_norm float8, learning_rate float8, loss_scale float8, tokens float8, seconds float8,
            skipped boolean
        )
    WHERE m.job = :job AND m.kind = :kind AND m.step >= :from_step AND m.step < :to_step
),
b AS (
    SELECT bucket,
        json_build_object(
            'step', min(bucket << (SELECT k FROM w)), 'first', min(step), 'last', max(step), 'steps', count(*),
            'skipped', count(*) FILTER (WHERE skipped),
            @series('loss', loss, @mean(loss))
            @series('grad_norm', grad_norm, @mean(grad_norm))
            @series('learning_rate', learning_rate, @mean(learning_rate))
            @series('loss_scale', loss_scale, @mean(loss_scale))
            @series('seconds', seconds, @mean(seconds))
            @series('tokens_per_s', speed, (
                sum(tokens::numeric) FILTER (WHERE seconds > 0) / sum(seconds::numeric) FILTER (WHERE seconds > 0)
            )::float8)
            'tokens', sum(tokens::numeric)
        ) AS line
    FROM d
    GROUP BY bucket
)
SELECT json_build_object(
    'lines', '[]'::json, 'width', (SELECT 1::bigint << k FROM w),
    'buckets', coalesce((SELECT json_agg(line ORDER BY bucket) FROM b), '[]'::json), 'next', null
);
