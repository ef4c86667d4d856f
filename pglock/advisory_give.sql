-- Gives locks back, and wakes those who wait for them: but only if there are any, because
-- a notification takes a transaction id and a lock on the whole database.
--
--   $1  the numbers
--
-- Replies with a row for each number, in their order: whether the lock was this session's.
--
-- A waiter marks its number by a shared lock, and then looks at the key once more. So
-- either it is seen here, or it finds the key free: it is given back first.

SELECT CASE WHEN pg_advisory_unlock(n) THEN
         CASE WHEN pg_try_advisory_xact_lock((n >> 32)::int # 1819239275, (n << 32 >> 32)::int) THEN true
              ELSE pg_notify('locker', n::text) IS NOT NULL END
       ELSE false END
FROM unnest($1::bigint[]) AS n
