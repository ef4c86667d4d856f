-- Marks numbers as waited for: whoever gives one back notifies then.
--
--   $1  the numbers
--
-- Replies with a row for each. It waits for those who are giving one back just now, until
-- what they do can be seen.

SELECT pg_advisory_lock_shared((n >> 32)::int # 1819239275, (n << 32 >> 32)::int) FROM unnest($1::bigint[]) AS n
