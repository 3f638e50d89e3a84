-- The statements of call.c.

--# write store_events_lock -> void
SELECT pg_advisory_xact_lock(5570193041);

--# write store_fence(epoch bigint) -> void, void
SELECT motley_fence(:epoch), pg_advisory_xact_lock(5570193041);
