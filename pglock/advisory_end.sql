-- Ends the session that holds a lock, if it is still this one.
--
--   $1  the number
--   $2  the session's pid
--   $3  its application_name
--
-- Replies with a row if it was: whether it has ended, for which the server waits.

SELECT pg_terminate_backend(l.pid, 5000)
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.classid::bigint << 32 | l.objid::bigint = $1::bigint
  AND l.pid = $2::int AND a.application_name = $3::text
LIMIT 1
