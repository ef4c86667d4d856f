-- Gives locks back that a failed statement may have left. Nobody is woken.
--
--   $1  the numbers
--
-- Replies with a row for each number: whether there was one.

SELECT pg_advisory_unlock(n) FROM unnest($1::bigint[]) AS n
