-- Deletes rows that nobody needs any more, out of a small part of the table.
--
--   $1  the table's name
--   $2  where the part begins, from 0 to 1
--   $3  how many blocks it has
--
-- A row may go when its key is free and its token is a day old: the next token comes from
-- the clock, and is larger unless that is set back by a day. Rows that are locked are left.

WITH part AS (
  SELECT floor($2::float8 * pg_relation_size($1::text::regclass) / current_setting('block_size')::int)::bigint AS first
)
DELETE FROM locker_lease
WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM locker_lease
  WHERE ctid >= (SELECT format('(%s,0)', first)::tid FROM part)
    AND ctid < (SELECT format('(%s,0)', first + $3::int)::tid FROM part)
    AND (holder <> '' AND expires_at > clock_timestamp()) IS NOT TRUE
    AND token < (extract(epoch FROM clock_timestamp() - interval '1 day') * 1000000)::bigint
  FOR UPDATE SKIP LOCKED
))
