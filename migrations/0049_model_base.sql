-- What the adapters of a model name as their base: {"name": "OWNER/NAME" of the hub or an absolute path of its owner's
-- machine, "revision"?}. It belongs to the name, since others may have the same content from elsewhere; null: unknown.
ALTER TABLE model_names ADD COLUMN base json;
