-- A job's labels, as its specification has them; null: none.
ALTER TABLE jobs ADD COLUMN labels jsonb;
CREATE INDEX jobs_labels ON jobs USING gin (labels) WHERE labels IS NOT NULL;
