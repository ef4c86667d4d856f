-- Gives a key back that an acquire may have taken, or may be taking just now. Arguments
-- and replies are those of lease_release.sql, whose token has no use here.
--
-- An acquire that is about to commit is not to be seen yet, not even by an update. A
-- conflict with what it writes is waited out, and then sees it. Where no row is yet, this
-- writes a free one.

WITH freed AS (
  INSERT INTO locker_lease AS t (key, holder, token, expires_at)
  VALUES ($1::text, NULL, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, '-infinity')
  ON CONFLICT (key) DO UPDATE SET holder = NULL, expires_at = '-infinity'
  WHERE t.holder = $2::text AND t.expires_at > clock_timestamp()
  RETURNING $3::bigint
)
SELECT 'freed' AS outcome,
       CASE WHEN NOT pg_try_advisory_xact_lock($4::int, $5::int) THEN pg_notify($6::text, $7::text) END::text AS woken
FROM freed
UNION ALL
SELECT 'taken', NULL FROM locker_lease
WHERE key = $1::text AND holder NOT IN ('', $2::text) AND NOT EXISTS (SELECT FROM freed)
