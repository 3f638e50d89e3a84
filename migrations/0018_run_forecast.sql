-- Seconds a step as the run's plan predicts them: forecasts of ends read them for every run that is active, and the plan
-- itself is large.
ALTER TABLE runs ADD COLUMN step_s double precision;
UPDATE runs SET step_s = (plan #>> '{costs,step_s}')::float8 WHERE state IN ('starting', 'running', 'stopping');
