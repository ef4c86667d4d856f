-- Ends the session that has locked the row of a key, if it is still this one.
--
--   $1  the key
--   $2  the session's pid
--   $3  its application_name
--
-- Replies with a row if it was: whether it has ended, for which the server waits.

SELECT pg_terminate_backend(a.pid, 5000)
FROM locker_row r JOIN pg_stat_activity a ON a.backend_xid = r.xmax
WHERE r.key = $1::text AND a.pid = $2::int AND a.application_name = $3::text
