-- Turns the reservation of a waiter into its lock. The session's silence counts from here.
--
--   $1  for how long it may be silent, in milliseconds

SELECT set_config('idle_in_transaction_session_timeout', $1::text, true)
