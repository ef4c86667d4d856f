-- Takes marks back.
--
--   $1  the numbers
--
-- Replies with a row for each: whether there was one.

SELECT pg_advisory_unlock_shared((n >> 32)::int # 1819239275, (n << 32 >> 32)::int) FROM unnest($1::bigint[]) AS n
