-- Lists the advisory locks of one number in this database, whoever holds them.
--
-- Replies with a row for each: the number, the session's pid, its application_name, and for
-- how many milliseconds it has been idle, as in advisory_who.sql.

SELECT (l.classid::bigint << 32 | l.objid::bigint)::text, l.pid::text, a.application_name,
       (CASE a.state WHEN 'idle' THEN greatest(floor(extract(epoch FROM clock_timestamp() - a.state_change) * 1000), 0)::bigint
                     WHEN 'active' THEN 0 END)::text AS idle
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
