-- The statements of store.c.

--# read store_schema_version -> integer
SELECT coalesce(max(number), 0) FROM motley_migrations;
