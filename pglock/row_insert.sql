-- Makes the row of a key, if there is none.
--
--   $1  the key
--   $2  how long to wait, in milliseconds; 0: for ever
--
-- It does not wait for whoever has locked the row, but for a transaction that has made or
-- deleted it and goes on. 55P03 if that takes longer.

INSERT INTO locker_row (key) SELECT $1::text FROM set_config('lock_timeout', $2::text, true) ON CONFLICT (key) DO NOTHING
