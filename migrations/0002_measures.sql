-- Somebody wants to know what a job would do (POST /v1/jobs:validate): the devices are measured for it without a job.
CREATE TABLE measures (
    key text PRIMARY KEY,          -- of the profiles wanted
    spec json NOT NULL,
    inputs json NOT NULL,
    until timestamptz NOT NULL     -- who asks waits no longer than this
);
