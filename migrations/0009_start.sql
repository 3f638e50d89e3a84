-- Bytes of weights that the largest of a run's ranks loads, as the plan predicts them: how long a start may take follows.
ALTER TABLE runs ADD COLUMN load_bytes bigint NOT NULL DEFAULT 0;
