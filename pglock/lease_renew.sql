-- Sets the remaining life of keys, of each if it is this holder's and its lease is not
-- over.
--
--   $1  the keys            (text[])
--   $2  the holders' values (text[])
--   $3  the tokens          (bigint[])
--   $4  the leases in microseconds (bigint[])
--   $5  false: never shorten what is left; true: set it exactly
--
-- Replies with one row for each: its position, from 1, and 'renewed', 'taken' (somebody
-- else's value is there), 'expired' (the key is gone, free, or its lease is over) or
-- 'busy' (the row could not be had; only with SKIP LOCKED).
--
-- The rows are locked first, in the order of their keys, so that two of these statements
-- cannot block each other. What decides is what they are then, and what time it is then.

WITH mine AS MATERIALIZED (
  SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])
  WITH ORDINALITY AS mine (key, holder, token, micros, n)
), locked AS MATERIALIZED (
  SELECT key, holder, token, expires_at FROM locker_lease
  WHERE key = ANY ($1::text[])
  ORDER BY key FOR NO KEY UPDATE
), renewed AS (
  UPDATE locker_lease AS t
  SET expires_at = greatest(clock_timestamp() + mine.micros * interval '1 microsecond',
                            CASE WHEN NOT $5::boolean THEN t.expires_at END)
  FROM mine JOIN locked USING (key, holder, token)
  WHERE t.key = mine.key AND locked.expires_at > clock_timestamp()
  -- A renewal has to outlive a crash of the server.
  RETURNING mine.key, mine.holder, mine.token,
    CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END
)
SELECT mine.n,
       CASE WHEN renewed.key IS NOT NULL THEN 'renewed'
            WHEN locked.holder NOT IN ('', mine.holder) THEN 'taken'
            WHEN locked.key IS NULL AND EXISTS (SELECT FROM locker_lease AS t WHERE t.key = mine.key) THEN 'busy'
            ELSE 'expired'
       END AS outcome
FROM mine
LEFT JOIN locked ON locked.key = mine.key
LEFT JOIN renewed ON renewed.key = mine.key AND renewed.holder = mine.holder AND renewed.token = mine.token
