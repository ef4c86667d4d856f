-- Tries to take locks, and mints the token of each that it gets.
--
--   $1  the numbers
--
-- Replies with a row for each number, in their order: the token; NULL if the lock is
-- held, by another session.

SELECT CASE WHEN pg_try_advisory_lock(n) THEN locker_token END
FROM unnest($1::bigint[]) AS n
