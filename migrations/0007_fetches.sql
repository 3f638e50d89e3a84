-- Models that the api fetches from the Hub for the jobs that name them, and whom their bytes count for.

-- A job whose model is yet to come is held, and has no inputs. The row goes when the job has them; the row of a job that
-- ended before stays, so that it is neither released nor resumed without a model.
CREATE TABLE job_fetches (
    job bigint PRIMARY KEY REFERENCES jobs ON DELETE CASCADE,
    hub text NOT NULL,                            -- hf:OWNER/NAME@REVISION, perhaps with :FILE
    admin boolean NOT NULL,                       -- an administrator submitted it
    until timestamptz                             -- an api is fetching, as it said last; null: none began yet
);
CREATE INDEX job_fetches_hub ON job_fetches (hub);

-- The bytes of a model that the server fetched for somebody count as uploaded by them while they have it under a name.
ALTER TABLE model_names ADD COLUMN fetched boolean NOT NULL DEFAULT false;
