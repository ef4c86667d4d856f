-- Sets the remaining life of a key, if it is this holder's.
--
--   KEYS[1]  the lock's key
--   ARGV[1]  the holder's value
--   ARGV[2]  the lease in milliseconds, at least 1
--   ARGV[3]  'renew' never shortens what is left; 'extend' sets it exactly
--
-- Replies with 1 if it was done, 0 if there is no such key, -1 if it holds
-- something else. It never makes a key.

local ttl = tonumber(ARGV[2])
if not ttl or ttl < 1 then
  -- PEXPIRE would delete the key and call it a success.
  return redis.error_reply('ERR the lease must be at least 1 ms')
end

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
if ARGV[3] == 'renew' then
  -- PEXPIRE has its option GT from Redis 7.0 on only.
  -- Without an expiry (-1) the key would outlive its holder: that is mended.
  if redis.call('PTTL', KEYS[1]) >= ttl then
    return 1
  end
end
local done = redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
if type(done) == 'table' then
  return done
end
return 1
