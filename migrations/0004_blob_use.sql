-- A file that nothing refers to is dropped a while after somebody last asked for it or sent it.
ALTER TABLE blobs ADD COLUMN used_at timestamptz NOT NULL DEFAULT now();
CREATE INDEX blobs_used ON blobs (used_at) WHERE path IS NULL;
