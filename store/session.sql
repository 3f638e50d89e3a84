-- The statements of session.c, each of which answers one number. They run unprepared (pg_ask), so that they work
-- through any proxy.

--# read session_pid -> integer
SELECT pg_backend_pid();

--# read session_mark -> integer
SELECT length(set_config('motley.session', 'mine', false));

--# read session_marked -> integer
SELECT (coalesce(current_setting('motley.session', true), '') = 'mine')::integer;
