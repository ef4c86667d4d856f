-- Locks the row of a key, and ends the transaction if its client is silent for too long.
--
--   $1  the key
--   $2  how long, in milliseconds
--   $3  the name under which the session is seen meanwhile
--   $4  after how many seconds of silence the server asks whether the client's machine is
--       there, and $5, after how many milliseconds it has to have taken what was sent
--
-- Replies with a row; with none if the row has been deleted meanwhile; with 55P03
-- if another transaction has locked it, unless that is waited for.

SELECT set_config('idle_in_transaction_session_timeout', $2::text, true), set_config('application_name', $3::text, true),
       set_config('tcp_keepalives_idle', $4::text, true), set_config('tcp_user_timeout', $5::text, true)
FROM (SELECT key FROM locker_row WHERE key = $1::text FOR UPDATE NOWAIT) AS locked
