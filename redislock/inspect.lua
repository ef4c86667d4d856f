-- Shows who holds a key.
--
--   KEYS[1]  the lock's key
--
-- Replies with 0 if the key is free, else with an array of the value that holds
-- it and its PTTL.

local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then
  return holder
end
if not holder then
  return 0
end
return {holder, redis.call('PTTL', KEYS[1])}
