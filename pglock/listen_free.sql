-- Shows which locks nobody holds: their holder may have ended without a word.
--
--   $1  the numbers
--
-- Replies with a row for each of them that is free: the number.

SELECT n FROM unnest($1::bigint[]) AS n
WHERE NOT EXISTS (
  SELECT FROM pg_locks l
  WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.classid::bigint << 32 | l.objid::bigint = n)
