-- Turns the reservation of a waiter into its lock. The session's silence counts from here.
--
--   $1      for how long it may be silent, in milliseconds
--   $2, $3  as $4 and $5 of row_take.sql

SELECT set_config('idle_in_transaction_session_timeout', $1::text, true),
       set_config('tcp_keepalives_idle', $2::text, true), set_config('tcp_user_timeout', $3::text, true)
