-- Shows who has locked rows: the transaction that is the row's xmax, if it still runs.
--
--   $1  the key; NULL for all
--
-- Replies with a row for each: the key, and the session's pid, application_name, and for
-- how many milliseconds it has been idle, as in advisory_who.sql.

SELECT r.key, a.pid::text, a.application_name,
       (CASE a.state WHEN 'idle in transaction' THEN greatest(floor(extract(epoch FROM clock_timestamp() - a.state_change) * 1000), 0)::bigint
                     WHEN 'active' THEN 0 END)::text AS idle
FROM locker_row r JOIN pg_stat_activity a ON a.backend_xid = r.xmax AND a.datname = current_database()
WHERE $1::text IS NULL OR r.key = $1::text
