-- Times in sentences are as motley_words() writes them.
DO $$
DECLARE
    f text;
BEGIN
    FOREACH f IN ARRAY ARRAY['motley_extend', 'motley_lease'] LOOP
        EXECUTE replace(pg_get_functiondef(f::regproc), 'motley_time(', 'motley_words(');
    END LOOP;
END $$;
