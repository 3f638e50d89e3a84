-- Submits bring the class with them (model/job/plan_class.h); a new row's `changed` has its default.
DROP TRIGGER job_queue ON jobs;
CREATE TRIGGER job_queue BEFORE INSERT ON jobs FOR EACH ROW WHEN (NEW.state = 'queued' AND NEW.plan_class IS NULL)
    EXECUTE FUNCTION motley_job_queue();
