-- Last part of the script (see state.lua): bookings, and the reply.

local runs = {}

-- take finds the earliest free slots that fit. Those whose time has passed unused leave the logs.
local function take(count, cost, longest, delay)
  if state.spares == 0 then return nil, 0 end
  corrections()
  local gone, any, slot, taken = {}, false, nil, 0
  for _, member in ipairs(call('ZRANGE', free, 0, 15)) do
    local at, units = string.match(member, '^(%d+):(%d+)$')
    at, units = tonumber(at), tonumber(units)
    if at < key then
      gone[at], any = units, true
      call('ZREM', free, member)
      state.spares = state.spares - 1
    elseif units >= cost and at >= key + delay and (longest < 0 or at + state.offset - now <= longest) then
      slot, taken = at, min(count, floor(units / cost))
      call('ZREM', free, member)
      state.spares = state.spares - 1
      if units > taken * cost then offer(at, units - taken * cost) end
      break
    end
  end
  if any then removeAll(gone) end
  return slot, taken
end

-- earliest says when the next cost slots may leave, and how many such bookings may leave together then, with
-- keep more left free.
local function earliest(cost, delay, keep)
  local slot, together = key + delay, math.huge
  for _, log in ipairs(logs) do
    local limit = log.limit - keep
    local first, at, upto = log.n + cost - limit, nil, 0
    if first > 0 then
      local entry = call('ZRANGEBYSCORE', log.key, first, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      at, upto = tonumber(entry[1] or log.last), tonumber(entry[2] or log.n) -- no entry: it was evicted
      slot = max(slot, at + log.window)
    end
    together = min(together, floor((upto + limit - log.n) / cost))
  end
  return slot, together
end

local function add(count, what)
  local last = #runs
  if runs[last] == what then
    runs[last - 1] = runs[last - 1] + count
  else
    runs[last + 1], runs[last + 2] = count, what
  end
end

local function grant(count, cost, longest, delay)
  while count > 0 do
    local slot, some = take(count, cost, longest, delay)
    if not slot then
      slot, some = earliest(cost, delay, 0)
      some = min(some, count)
      local wait = slot + state.offset - now
      if longest >= 0 and wait > longest then return add(count, -wait) end
      for _, log in ipairs(logs) do append(log, slot, some * cost) end
    end
    state.serial = state.serial + some * cost
    add(some, slot)
    count = count - some
  end
end

-- background books what leaves the reserve free. Such slots are never booked ahead, where others would be behind them:
-- a process that gets too few is told when to ask again, one after the other at the pace of what is left to them. A
-- turn that comes a little too soon is soon another.
local function grantBackground(count, cost, longest, delay, keep, again)
  local pace = 0
  for _, log in ipairs(logs) do pace = max(pace, cost * log.window / (log.limit - keep)) end
  pace = floor(pace * 65 / 64) -- so that what comes a little late does not make the next too soon
  while count > 0 do
    local slot, some = earliest(cost, delay, keep)
    local line = again == 0 or slot > key + delay + 2 * pace
    if line then slot = max(slot, state.turn) end
    if slot <= key + delay then
      some = min(some, count)
      for _, log in ipairs(logs) do append(log, slot, some * cost) end
      state.serial = state.serial + some * cost
      add(some, slot)
      count = count - some
    else
      local wait = slot + state.offset - now
      if line and (longest < 0 or wait <= longest) then state.turn = slot + pace end
      return add(count, -wait)
    end
  end
end

function ops.reserve()
  local heard, groups = number(), number()
  local least, longest = math.huge, 0
  for _, log in ipairs(logs) do least, longest = min(least, log.limit), max(longest, log.window) end
  local lost = state.serial < heard
  if not lost then
    change()
    if state.spares > 0 then
      corrections()
      trim()
    end
  end
  for _ = 1, groups do
    local count, cost, most, delay, keep, again = number(), number(), number(), number(), number(), number()
    if lost then -- pass over it
    elseif cost + keep > least then add(count, -longest) -- never: it would be searched for without an end
    elseif keep > 0 then grantBackground(count, cost, most, delay, keep, again)
    else grant(count, cost, most, delay) end
  end
end

if ours ~= '' then
  local longest = force and string.match(force, ' (%S-)=') -- whose log has what ours need
  if longest and force ~= ours and state.generation > 0 then
    if from ~= longest then return {state.policy, '', longest} end
    corrections()
    takeOver(from, KEYS[4 + #logs])
  end
  force = ours
end
if back > 0 then -- the free slots may be taken for slots to come, and may have been before
  change()
  corrections()
  forget()
end

while arg < #ARGV do
  local op = word()
  if not ops[op] then corrections() end
  ops[op]()
end

-- Reply ---------------------------------------------------------------------------------------------

local tail = math.huge
for _, log in ipairs(logs) do tail = min(tail, log.last) end
local reply = {now, state.offset, state.resume, state.serial, tail, state.generation, state.origin, state.restored,
               state.policy}
for _, log in ipairs(logs) do reply[#reply + 1] = sweep(log, 4 + #runs) end
for _, word in ipairs(runs) do reply[#reply + 1] = word end

if dirty then
  local latest, window = key, 0
  for _, log in ipairs(logs) do latest, window = max(latest, log.last), max(window, log.window) end
  -- Past the last slot, its window, and a second. Never shorter than another process asked for.
  state['until'], state.seen = max(state['until'], latest + state.offset + window + 1000000), now
  for _, log in ipairs(logs) do state['n:' .. log.name], state['l:' .. log.name] = log.n, log.last end
  local changed = {}
  if force and force ~= stored[1] then changed = {'force', force} end
  for i, field in ipairs(fields) do
    if state[field] ~= stored[i + 1] then
      changed[#changed + 1] = field
      changed[#changed + 1] = state[field]
    end
  end
  if changed[1] then call('HSET', clock, unpack(changed)) end
  local ttl = math.ceil((state['until'] - now) / 1000)
  if state.policy == 0 then call('PEXPIRE', clock, ttl) end
  if state.spares > 0 then call('PEXPIRE', free, ttl) end
  for _, log in ipairs(logs) do call('PEXPIRE', log.key, ttl) end
end
return reply
