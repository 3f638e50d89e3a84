-- Whom a certificate names: a node and its generation, which rises whenever the node is enrolled anew or removed.
-- A name that was seen, or removed, is taken for good: only a token bound to it with `replace`, or the old key
-- with a token bound to it, enrols it again.

ALTER TABLE nodes
    ADD COLUMN key_hash bytea CHECK (octet_length(key_hash) = 32), -- SHA-256 of its public key; NULL: enrolled before, or removed
    ADD COLUMN certified_until timestamptz,                        -- what it has runs out then, and cannot be renewed after
    ADD COLUMN removed_at timestamptz;                             -- not NULL: no node of the cluster any more

ALTER TABLE join_tokens
    ADD COLUMN node text,                                          -- good for that name alone; NULL: for any new one
    ADD COLUMN replace boolean NOT NULL DEFAULT false,             -- good for a name that is taken
    ADD CHECK (node IS NOT NULL OR NOT replace);
