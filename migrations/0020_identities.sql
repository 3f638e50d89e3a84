-- By whose word a person signs in: what an OpenID provider calls them (iss and sub), or the unix account of the server's own
-- machine ("unix" and its number). One name of a provider is one person for good, whatever it is renamed to there.
CREATE TABLE identities (
    issuer text NOT NULL CHECK (octet_length(issuer) BETWEEN 1 AND 1000),
    subject text NOT NULL CHECK (octet_length(subject) BETWEEN 1 AND 255),
    user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (issuer, subject),
    UNIQUE (user_id, issuer)
);

-- Whose identity it is. A new one becomes a new user where `may_make`, and an existing user of that name where `may_link` and
-- no other identity of the same issuer is that user. `in_groups`: the groups here of which the user is a member from now on;
-- null leaves them.
CREATE FUNCTION motley_sign_in(of_issuer text, of_subject text, called text, from_address text, may_make boolean, may_link boolean,
    in_groups text[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    who bigint;
    made boolean := false;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(of_issuer || ' ' || called, 5570193044));
    SELECT user_id INTO who FROM identities WHERE issuer = of_issuer AND subject = of_subject;
    IF who IS NULL THEN
        SELECT id INTO who FROM users WHERE name = called;
        IF who IS NULL AND NOT may_make THEN
            RAISE EXCEPTION 'there is no user % here, and a sign-in makes none (allow_sign_up in the server''s configuration)', called
                USING ERRCODE = 'MO007';
        ELSIF who IS NULL THEN
            INSERT INTO users (name) VALUES (called) RETURNING id INTO who;
            made := true;
        ELSIF EXISTS (SELECT 1 FROM identities WHERE user_id = who AND issuer = of_issuer) THEN
            RAISE EXCEPTION 'the user % here is another person of that provider, who had the name before', called USING ERRCODE = 'MO007';
        ELSIF NOT may_link THEN
            RAISE EXCEPTION 'there is a user % here already, who was not made by this sign-in: an administrator lets it be theirs (account_linking in the server''s configuration)', called
                USING ERRCODE = 'MO007';
        END IF;
        INSERT INTO identities (issuer, subject, user_id) VALUES (of_issuer, of_subject, who);
        INSERT INTO audit (who, user_id, address, what, object, after) VALUES (called, who, nullif(from_address, ''), 'user.identity',
            called, json_build_object('issuer', of_issuer, 'subject', of_subject, 'made', made));
    END IF;
    IF EXISTS (SELECT 1 FROM users WHERE id = who AND disabled) THEN
        RAISE EXCEPTION 'the user % is disabled here', (SELECT name FROM users WHERE id = who) USING ERRCODE = 'MO007';
    END IF;
    IF in_groups IS NOT NULL THEN
        WITH gone AS (DELETE FROM group_members m USING groups g WHERE m.user_id = who AND g.id = m.grp AND g.name <> ALL (in_groups)
            RETURNING m.grp)
        UPDATE users SET account = NULL FROM gone WHERE users.id = who AND account = gone.grp;
        INSERT INTO group_members (grp, user_id) SELECT id, who FROM groups WHERE name = ANY (in_groups) ON CONFLICT DO NOTHING;
    END IF;
    RETURN who;
END $$;
