-- Answers to requests with an Idempotency-Key, for a day: the same request is answered so again and changes nothing. Keys
-- of submits stand with their jobs.
CREATE TABLE answers (
    asker bigint NOT NULL,                          -- a user's id, or a node's token negated
    key text NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 200),
    digest bytea NOT NULL CHECK (octet_length(digest) = 32),  -- SHA-256 of the request
    status integer,                                 -- null: the request is under way, or its answer was lost
    body json,                                      -- null: the answer had none, or it is not kept
    kept boolean NOT NULL DEFAULT false,            -- the answer may be given again
    at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (asker, key)
);
CREATE INDEX answers_at ON answers (at);
