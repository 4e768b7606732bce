-- Stores rates for the whole fleet (see state.lua: policy and rates), and returns their version.
--
-- KEYS[1]  clock
-- KEYS[2]  fleet
-- ARGV[1]  the rates; empty: each process goes back to its own
--
-- The version only grows, whatever the server's clock does. The clock does not expire from here on. Where nobody has
-- used the quota since rates were first stored, there is nobody to tell that they are gone: then all of it goes, and
-- the reply is 0.

local call = redis.call
local clock, fleet, rates = KEYS[1], KEYS[2], ARGV[1]

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local policy = math.max(now, (call('HGET', clock, 'policy') or 0) + 1)
if rates == '' and call('HLEN', clock) <= 2 and call('ZCARD', fleet) == 0 then -- no more than policy and rates
  call('DEL', clock)
  return 0
end
call('HSET', clock, 'policy', string.format('%.0f', policy), 'rates', rates)
call('HDEL', clock, 'turn') -- a line at the old pace
call('PERSIST', clock)
return policy
