-- Gives a key back, if it is this holder's, and wakes those who wait for it.
--
--   $1      the key
--   $2      the holder's value
--   $3      the token; 0: any, for a grant of which nothing but the holder is known
--   $4, $5  the number that waiters mark as theirs
--   $6, $7  the channel to notify, and what to say
--
-- Replies with one row, 'freed' or 'taken' (somebody else's value is there), or with
-- none: the key was free, or its lease was over.
--
-- The row stays, for its token. synchronous_commit stays what it is: a release that a
-- crash takes back leaves a lock that its lease ends, and the token, which it does not
-- touch, was made durable by the grant.
--
-- The mark is tried, and the notification queued, per row of "freed": after the update.
-- Who marks itself as waiting meanwhile does so behind this transaction's lock on the
-- mark, and then sees the key free.

WITH freed AS (
  UPDATE locker_lease SET holder = NULL, expires_at = '-infinity'
  WHERE key = $1::text AND holder = $2::text AND $3::bigint IN (0, token) AND expires_at > clock_timestamp()
  RETURNING key
)
SELECT 'freed' AS outcome,
       CASE WHEN NOT pg_try_advisory_xact_lock($4::int, $5::int) THEN pg_notify($6::text, $7::text) END::text AS woken
FROM freed
UNION ALL
SELECT 'taken', NULL FROM locker_lease
WHERE key = $1::text AND holder NOT IN ('', $2::text) AND NOT EXISTS (SELECT FROM freed)
