-- Agents' events that the scheduler refused, by the error's name (common/err.h), kept for /metrics.
CREATE TABLE refused_events (
    reason text PRIMARY KEY,
    n bigint NOT NULL
);
