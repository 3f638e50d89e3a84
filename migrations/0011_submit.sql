-- A submit's jobs are counted by the statement that makes them (store/jobs_insert.c): the trigger began another
-- statement for each.
DROP TRIGGER jobs_added ON jobs;
DROP FUNCTION motley_jobs_added();
