-- What a node may be believed by, and what came of it: its Redis user is made again from here whenever Redis lost it.
ALTER TABLE nodes
    ADD COLUMN redis_hash bytea CHECK (octet_length(redis_hash) = 32), -- SHA-256 of its Redis password; null: no user
    ADD COLUMN seal_key bytea CHECK (octet_length(seal_key) = 32),     -- of the MAC on messages from and to it
    ADD COLUMN refused bigint NOT NULL DEFAULT 0,                      -- messages refused since it was enrolled
    ADD COLUMN mark text,                                              -- the last reason
    ADD COLUMN marked_at timestamptz,
    ADD COLUMN barred boolean NOT NULL DEFAULT false;                  -- no Redis user until it is enrolled anew
