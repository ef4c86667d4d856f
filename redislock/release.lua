-- Gives a key back, if it is this holder's, and wakes those who wait for it.
--
--   KEYS[1]  the lock's key
--   ARGV[1]  the holder's value
--   ARGV[2]  the key's wake-up channel
--
-- Replies with 1 if the key was this holder's and is free now, 0 if there is no
-- such key, -1 if it holds something else.

local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then
  if string.find(holder.err, 'WRONGTYPE', 1, true) then
    return -1
  end
  return holder
end
if not holder then
  return 0
end
if holder ~= ARGV[1] then
  return -1
end
local done = redis.pcall('DEL', KEYS[1])
if type(done) == 'table' then
  -- Whoever could take the key may write it, if not delete it: it is not to be
  -- stuck with it.
  done = redis.pcall('SET', KEYS[1], ARGV[1], 'PX', 1)
  if done.err then
    return done
  end
end
-- Nor does it need to publish: the waiters come by themselves.
redis.pcall('PUBLISH', ARGV[2], '')
return 1
