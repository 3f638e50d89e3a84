-- Sessions of the page: tokens that are made of a person's token, end with it at the latest, and live in a cookie.
ALTER TABLE tokens
    ADD COLUMN parent bigint REFERENCES tokens ON DELETE CASCADE,  -- it is valid only while that one is
    ADD COLUMN session boolean NOT NULL DEFAULT false;             -- it is a session's, and makes no further sessions
CREATE INDEX tokens_parent ON tokens (parent) WHERE parent IS NOT NULL;

-- A code is exchanged for a session of the token that it was made with, once and within ten minutes.
CREATE TABLE session_codes (
    hash bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
    token bigint NOT NULL REFERENCES tokens ON DELETE CASCADE,
    expires_at timestamptz NOT NULL,
    used_at timestamptz
);
