-- Shows which session holds a lock.
--
--   $1  the numbers
--
-- Replies with a row for each number, in their order: the session's pid, its
-- application_name, and for how many milliseconds it has been idle: 0 while it is not,
-- NULL if this role may not see it. All are NULL if nobody holds the lock.

SELECT h.pid, h.application_name, h.idle
FROM unnest($1::bigint[]) AS n
LEFT JOIN LATERAL (
  SELECT l.pid, a.application_name,
         CASE a.state WHEN 'idle' THEN greatest(floor(extract(epoch FROM clock_timestamp() - a.state_change) * 1000), 0)::bigint
                      WHEN 'active' THEN 0 END AS idle
  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
  WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.classid::bigint << 32 | l.objid::bigint = n
  LIMIT 1) AS h ON true
