-- Takes a key and mints the token of the grant, in one step.
--
--   KEYS[1]  the lock's key
--   KEYS[2]  the token counter
--   ARGV[1]  the holder's value
--   ARGV[2]  the lease in milliseconds, at least 1
--
-- Replies with the token (an integer) if the key was free, or holds this very
-- value because the command was sent twice; else with an array of the value that
-- holds the key and its PTTL.
--
-- Errors are passed on as the server words them, so that their code stays in
-- front. The key is written last: whatever fails before it leaves the key free.

local ttl = tonumber(ARGV[2])
if not ttl or ttl < 1 then
  return redis.error_reply('ERR the lease must be at least 1 ms')
end

local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then
  return holder
end
if holder and holder ~= ARGV[1] then
  return {holder, redis.call('PTTL', KEYS[1])}
end

local last = redis.pcall('GET', KEYS[2])
if type(last) == 'table' then
  return last
end
if last and not string.find(last, '^%d+$') then
  return redis.error_reply('WRONGTYPE the token counter is not a number')
end
local now = redis.call('TIME')
local token = math.max(tonumber(last or 0) + 1, now[1] * 1000000 + now[2])
if token >= 9007199254740992 then
  -- From 2^53 on, a Lua number no longer tells one integer from the next.
  return redis.error_reply('WRONGTYPE the token counter is too large')
end
-- Lua writes large numbers with 14 digits unless told otherwise.
local done = redis.pcall('SET', KEYS[2], string.format('%.0f', token))
if done.err then
  return done
end

if not holder then
  done = redis.pcall('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  if done.err then
    return done
  end
end
return token
