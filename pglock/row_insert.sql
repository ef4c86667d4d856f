-- Makes the row of a key, if there is none.
--
--   $1  the key
--
-- It does not wait for whoever has locked the row.

INSERT INTO locker_row (key) VALUES ($1::text) ON CONFLICT (key) DO NOTHING
