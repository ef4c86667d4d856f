-- Shows held keys, in their order.
--
--   $1  the key after which to begin
--   $2  how many keys at most
--
-- Replies with a row for each: the key, the value that holds it, for how many
-- microseconds more (NULL: without end), and the token.

SELECT key, holder,
       CASE WHEN isfinite(expires_at)
            THEN (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint
       END AS remaining,
       token
FROM locker_lease
WHERE key > $1::text AND holder <> '' AND expires_at > clock_timestamp()
ORDER BY key LIMIT $2::int
