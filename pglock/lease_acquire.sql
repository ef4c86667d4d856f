-- Takes a key and mints the token of the grant, in one statement.
--
--   $1  the key
--   $2  the holder's value
--   $3  the lease in microseconds
--
-- Replies with one row: the token; or NULL, the value that holds the key, and for how
-- many microseconds more (NULL: without end). No row at all: somebody else took the key
-- while this statement ran, and its snapshot does not show who.
--
-- A key that is held is only read: no row lock, no transaction id. What decides is
-- decided once more under the row's lock, with the clock as it is then. A row that
-- shows this very value was written by an earlier sending of this command: its token
-- stands.

WITH held AS MATERIALIZED (
  SELECT holder,
         CASE WHEN isfinite(expires_at)
              THEN (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint
         END AS remaining
  FROM locker_lease
  WHERE key = $1::text AND holder NOT IN ('', $2::text) AND expires_at > clock_timestamp()
), granted AS (
  INSERT INTO locker_lease AS t (key, holder, token, expires_at)
  SELECT $1::text, $2::text,
         (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
         clock_timestamp() + $3::bigint * interval '1 microsecond'
  WHERE NOT EXISTS (SELECT FROM held)
  ON CONFLICT (key) DO UPDATE SET
    holder = excluded.holder,
    token = CASE WHEN t.holder = excluded.holder AND t.expires_at > clock_timestamp()
                 THEN t.token
                 ELSE greatest(t.token + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
            END,
    expires_at = clock_timestamp() + $3::bigint * interval '1 microsecond'
  WHERE (t.holder NOT IN ('', excluded.holder) AND t.expires_at > clock_timestamp()) IS NOT TRUE
  -- A grant has to outlive a crash of the server.
  RETURNING t.token,
    CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END
)
SELECT token, NULL::text AS holder, NULL::bigint AS remaining FROM granted
UNION ALL
SELECT NULL, holder, remaining FROM held
