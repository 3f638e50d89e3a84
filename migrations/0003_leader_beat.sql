-- The leader's sign of life: a standby ends the session of one that holds the lock and does nothing.
CREATE TABLE leader_beat (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    pid integer NOT NULL,          -- the server process of the leader's session
    beat timestamptz NOT NULL
);
