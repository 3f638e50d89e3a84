-- Join tokens that are good for several machines: keys. `node` may end in *, and is then good for the names that begin so.

-- How many machines may still join with it; at the last one used_at is set. A release that does not know the column uses the
-- token up at once.
ALTER TABLE join_tokens ADD COLUMN uses integer NOT NULL DEFAULT 1 CHECK (uses >= 0);
