-- The step that was predicted when the run was placed, as program/trace.h packs it; null of plans that are too long.
ALTER TABLE runs ADD COLUMN timeline text;
