-- The counter of fencing tokens. It starts with the clock's microseconds, ahead of what
-- an earlier one, or the clock itself, has given out.
--
--   $1  the microseconds
--
-- The increment leaves room for the grants that are handed over locally. The cache of
-- one keeps tokens in the order of their grants.

CREATE SEQUENCE locker_token AS bigint INCREMENT BY 1024 START WITH $1 NO CYCLE CACHE 1
