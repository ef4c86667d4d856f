-- Shows which sessions wait for a lock.
--
--   $1  the pids of some
--
-- Replies with a row for each that does: the pid.

SELECT DISTINCT pid FROM pg_locks WHERE NOT granted AND pid = ANY ($1::int[])
