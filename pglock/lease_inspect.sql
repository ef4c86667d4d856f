-- Shows who holds a key.
--
--   $1  the key
--
-- Replies with a row as in lease_list.sql, or with none: the key is free.

SELECT key, holder,
       CASE WHEN isfinite(expires_at)
            THEN (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint
       END AS remaining,
       token
FROM locker_lease
WHERE key = $1::text AND holder <> '' AND expires_at > clock_timestamp()
