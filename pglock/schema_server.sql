-- Shows what the server is.
--
-- Replies with one row: the version as a number, whether it is a standby, the session's
-- encoding, the clock in microseconds, whether its transactions only read.

SELECT current_setting('server_version_num')::int,
       pg_is_in_recovery(),
       current_setting('client_encoding'),
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       current_setting('transaction_read_only') = 'on'
