-- The statements of links.c.

--# columns link_row(from_node text, to_node text, document json, seen text)

-- Like those of the queue, the results have a row without a link if there are none.
--# read links_whole(whole boolean) -> link_row
SELECT l.from_node, l.to_node, l.document, s.seen
FROM (SELECT pg_current_snapshot()::text AS seen) s
LEFT JOIN links l ON true
WHERE :whole::boolean;

--# read links_changes(snapshot pg_snapshot as text) -> link_row
SELECT l.from_node, l.to_node, l.document, s.seen
FROM (SELECT pg_current_snapshot()::text AS seen) s
LEFT JOIN motley_links_since(:snapshot::pg_snapshot) l ON true;
