-- Refuses a statement as a whole: 'MO004' for a request that is wrong, 'MO005' for one in conflict with the state.
CREATE FUNCTION motley_refuse(code text, why text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%', why USING ERRCODE = code;
END $$;
