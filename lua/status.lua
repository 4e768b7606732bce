-- What there is to see of one quota from outside (see state.lua for what is stored). It only reads.
--
-- KEYS[1]  clock
-- KEYS[2]  free
-- KEYS[3]  fleet
-- KEYS[4+] logs of the rates that are asked about
-- ARGV     since when a process must have been heard to be alive (microseconds back), then the period of each log
--
-- Reply: now, processes alive, offset, resume, free slots still to come, the clock's fields and values (those of
-- processes left out), and for each log its number of entries, the slots in its last period and those still to
-- come. An empty reply: there is no such quota.

local call, floor = redis.call, math.floor

local function text(x) return string.format('%.0f', x) end

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local state, known = {offset = 0, resume = 0, seen = 0}, {}
local fields = call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  if string.sub(fields[i], 1, 2) ~= 'p:' then
    state[fields[i]] = fields[i + 1]
    known[#known + 1] = fields[i]
    known[#known + 1] = fields[i + 1]
  end
end
local alive = call('ZCOUNT', KEYS[3], text(now - ARGV[1]), '+inf')
if not fields[1] and alive == 0 then return {} end

local back = math.max(0, state.seen - now) -- the server's clock went back: see state.lua
local offset, resume = state.offset - back, state.resume - back
local key = math.max(now, resume) - offset

-- upto returns the number of the last slot of a log at or before a time.
local function upto(log, at)
  local low, high = 0, call('ZCARD', log)
  while low < high do
    local middle = floor((low + high) / 2)
    if tonumber(call('ZRANGE', log, middle, middle)[1]) <= at then low = middle + 1 else high = middle end
  end
  if low == 0 then return 0 end
  return tonumber(call('ZRANGE', log, low - 1, low - 1, 'WITHSCORES')[2])
end

local spares = 0
for _, member in ipairs(call('ZRANGEBYSCORE', KEYS[2], '(' .. text(key), '+inf', 'LIMIT', 0, 1000)) do
  spares = spares + string.match(member, ':(%d+)$')
end

local reply = {now, alive, offset, resume, spares, known}
for i = 4, #KEYS do
  local log = KEYS[i]
  local last, n = call('ZRANGE', log, -1, -1, 'WITHSCORES'), upto(log, key)
  reply[#reply + 1] = {call('ZCARD', log), n - upto(log, key - ARGV[i - 2]), tonumber(last[2] or 0) - n}
end
return reply
