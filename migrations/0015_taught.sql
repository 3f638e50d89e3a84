-- What runs teach: by how much a measured step differed from its forecast corrects later forecasts (docs/PLANNER.md).

-- placement and key: of the run's plan, and of the profiles that it rests on. corrected: the factor that step_s contains; null:
-- none. priced_s: what a step takes without such a factor at the speeds that the run measured of its devices; null: it set none.
ALTER TABLE runs ADD COLUMN placement text, ADD COLUMN key text, ADD COLUMN corrected double precision, ADD COLUMN priced_s double precision;
