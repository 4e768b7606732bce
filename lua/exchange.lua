-- One exchange between a process and the window that the fleet shares for one key: whatever the process
-- has to say about the key (slots not used, a pause asked for, ...) and to ask of it (slots), in one
-- atomic call. local.go is the same window in Go, and tests hold the two to the same answers.
--
-- All times and durations are whole microseconds. A *slot* is a time on the key's clock, which reads
-- max(TIME, resume) - offset: stopping it for d adds d to offset, so that everything booked moves together.
--
-- KEYS[1]  clock  hash: offset, resume; serial (slots ever booked, only grows); generation (made when the
--                 state is made or restored), origin and restored (from which generation and up to which
--                 serial, else 0); seen (TIME of the last write); until (when the state may expire); spares
--                 (entries in free); and for each rate n:NAME, l:NAME (number and logged time of the last
--                 slot booked)
-- KEYS[2]  free   sorted set: slots given back that wait for a new owner; member "slot:units", score slot
-- KEYS[3+] log    one sorted set a rate: score = number of slots booked so far, member = their time. An
--                 entry stands for the slots between the score before it and its own. Times are in order.
--
-- ARGV: for each rate NAME, limit, window (period and slack), grain (times are rounded up to it; 0: not),
-- then any of, in this order:
--   restore generation serial offset resume until rest*rates N (at number)*N
--                                                   what is known of a state that was lost: of each rate, `rest`
--                                                   more may have been used until `until`; serial must be newer
--   drop    generation N (slot units)*N             slots not used, and not for others
--   charge  N (at units)*N                          slots used without asking, the earliest first
--   back    generation N (slot units)*N             slots not used, the latest first
--   late    generation N (slot left units)*N        units of slot left at TIME left, the earliest first
--   pause   for heard                               heard: the resume known when the request was sent
--   reserve heard N (count cost longest)*N          heard: the serial known; longest: -1 for no bound
--
-- Reply: integers. now, offset, resume, serial, tail (no slot is booked later), generation, origin,
-- restored, lost (1: the state is older than `heard`, nothing was booked), free now of each rate, then for
-- each run of waiters: count, and their slot, or minus the wait that a refused one would have needed.

local call, floor, max, min = redis.call, math.floor, math.max, math.min
local clock, free = KEYS[1], KEYS[2]

local function text(x) return string.format('%.0f', x) end

local arg = 0
local function word() arg = arg + 1; return ARGV[arg] end
local function number() return tonumber(word()) end

-- State ---------------------------------------------------------------------------------------------

local fields = {'offset', 'resume', 'serial', 'generation', 'origin', 'restored', 'seen', 'until', 'spares'}
local logs = {}
for i = 3, #KEYS do
  local log = {key = KEYS[i], name = word(), limit = number(), window = number(), grain = number()}
  logs[#logs + 1] = log
  fields[#fields + 1] = 'n:' .. log.name
  fields[#fields + 1] = 'l:' .. log.name
end

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local state, stored = {}, call('HMGET', clock, unpack(fields))
for i, field in ipairs(fields) do state[field] = tonumber(stored[i] or 0) end
for _, log in ipairs(logs) do log.n, log.last = state['n:' .. log.name], state['l:' .. log.name] end
local dirty = false

if now < state.seen then -- the server's clock went back: the key's clock must not
  local back = state.seen - now
  state.offset, state.resume = state.offset - back, state.resume - back
  dirty = true
end
local key = max(now, state.resume) - state.offset

local function wipe()
  call('DEL', free, unpack(KEYS, 3))
  state.spares = 0
  for _, log in ipairs(logs) do log.n, log.last = 0, 0 end
end

local function change()
  if state.generation == 0 then -- new, expired or lost; nothing of an older state may be left over
    wipe()
    state.generation = now
  end
  dirty = true
end

-- Logs ----------------------------------------------------------------------------------------------

local function rounded(log, at) -- up; math.fmod is exact where % is not
  local over = log.grain > 0 and math.fmod(at, log.grain) or 0
  return over > 0 and at + log.grain - over or at
end

local function append(log, at, units)
  log.n, log.last = log.n + units, max(log.last, rounded(log, at))
  call('ZADD', log.key, text(log.n), text(log.last))
end

-- insert adds the slots in used, the earliest first, among those booked: every run behind counts that much
-- more. What is out of the window is left out.
local function insert(log, used)
  local entries, i, n, more = call('ZRANGE', log.key, 0, -1, 'WITHSCORES'), 1, 0, 0
  local function pass(at) -- over the entries before
    while entries[i] and tonumber(entries[i]) < at do
      n = tonumber(entries[i + 1]) + more
      if more > 0 then call('ZADD', log.key, text(n), entries[i]) end
      i = i + 2
    end
  end
  for _, one in ipairs(used) do
    local at = rounded(log, one.at)
    if at + log.window > key then
      if not entries[1] then at = max(at, log.last) end -- they were evicted
      pass(at)
      if not entries[i] then n = log.n + more end
      more = more + one.units
      if entries[i] ~= text(at) then
        n = n + one.units
        call('ZADD', log.key, text(n), text(at))
        log.last = max(log.last, at)
      end
    end
  end
  pass(math.huge)
  log.n = log.n + more
end

-- remove takes units away from the entries named in gone (logged time -> units): every run behind counts
-- that much less. It returns how many were found.
local function remove(log, gone)
  local low
  for at in pairs(gone) do
    local score = call('ZSCORE', log.key, at)
    if score then low = min(low or math.huge, tonumber(score)) end
  end
  if not low then return 0 end
  local before = call('ZREVRANGEBYSCORE', log.key, '(' .. text(low), '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local last, n, cut = tonumber(before[1] or 0), tonumber(before[2] or 0), 0
  local entries = call('ZRANGEBYSCORE', log.key, text(low), '+inf', 'WITHSCORES')
  for i = 1, #entries, 2 do
    local at, upto = entries[i], tonumber(entries[i + 1])
    local left = max(n, upto - cut - (gone[at] or 0))
    cut = upto - left
    if left == n then
      call('ZREM', log.key, at)
    else
      call('ZADD', log.key, text(left), at)
      last, n = tonumber(at), left
    end
  end
  log.n, log.last = n, last
  return cut
end

local function removeAll(gone) -- slot -> units
  for _, log in ipairs(logs) do
    local found, any = {}, false
    for slot, units in pairs(gone) do
      local at = rounded(log, slot)
      if at + log.window > key then -- else it is out of the window, and may be what the log starts from
        found[text(at)] = (found[text(at)] or 0) + units
        any = true
      end
    end
    if any then remove(log, found) end
  end
end

-- sweep drops what has left the window but for the last such entry, which says where the rest begins, and
-- returns how many slots are free now. It looks at few entries first, which is enough when calls are
-- frequent, and never at very many: at worst it says too few.
local function sweep(log, most)
  local gone, base = 0, 0
  for _, look in ipairs({most, 32, 256}) do
    local entries, before = call('ZRANGE', log.key, gone, gone + look - 1, 'WITHSCORES'), gone
    for i = 1, #entries, 2 do
      if tonumber(entries[i]) + log.window > key then break end
      gone, base = gone + 1, tonumber(entries[i + 1])
    end
    if gone < before + look then break end
  end
  if dirty and gone > 1 then call('ZREMRANGEBYRANK', log.key, 0, gone - 2) end
  return max(0, log.limit - (log.n - base))
end

-- Free slots ----------------------------------------------------------------------------------------

local function offer(slot, units)
  for _, member in ipairs(call('ZRANGEBYSCORE', free, text(slot), text(slot))) do
    units = units + tonumber(string.match(member, ':(%d+)$'))
    call('ZREM', free, member)
    state.spares = state.spares - 1
  end
  call('ZADD', free, text(slot), text(slot) .. ':' .. text(units))
  state.spares = state.spares + 1
end

-- take finds the earliest free slots that fit. Those whose time has passed unused leave the logs.
local function take(count, cost, longest)
  local gone, any, slot, taken = {}, false, nil, 0
  for _, member in ipairs(state.spares > 0 and call('ZRANGE', free, 0, 15) or {}) do
    local at, units = string.match(member, '^(%d+):(%d+)$')
    at, units = tonumber(at), tonumber(units)
    if at < key then
      gone[at], any = units, true
      call('ZREM', free, member)
      state.spares = state.spares - 1
    elseif units >= cost and (longest < 0 or at + state.offset - now <= longest) then
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

-- Operations ----------------------------------------------------------------------------------------

local ops, runs, lost = {}, {}, 0

local function booked(at) -- whether a slot is booked later than that
  for _, log in ipairs(logs) do
    if log.last > rounded(log, at) then return true end
  end
  return false
end

function ops.restore()
  local origin, serial, offset, resume = number(), number(), number(), number()
  local till, rest, pairs = number(), {}, {}
  for i = 1, #logs do rest[i] = number() end
  for i = 1, 2 * number() do pairs[i] = number() end
  if serial <= state.serial then return end
  change()
  local moved, booked, since = offset - state.offset, state.serial - state.restored, {}
  for i, log in ipairs(logs) do since[i] = log.last end
  wipe()
  local paused = max(0, state.resume - max(now, resume))
  state.offset, state.resume = offset + paused, max(resume, state.resume)
  state.generation, state.origin, state.restored = state.generation + 1, origin, serial
  state.serial = serial + booked + max(unpack(rest))
  key = max(now, state.resume) - state.offset
  for i, log in ipairs(logs) do
    for j = 1, #pairs, 2 do append(log, pairs[j], pairs[j + 1] - log.n) end
    if booked > 0 then append(log, since[i] - moved, booked) end
    if rest[i] > 0 then append(log, till, rest[i]) end
  end
end

function ops.drop()
  local gone, void = {}, number() ~= state.generation
  for _ = 1, number() do
    local slot, units = number(), number()
    gone[slot] = (gone[slot] or 0) + units
  end
  if void then return end -- slots of a state that was lost
  change()
  removeAll(gone)
end

function ops.charge()
  local used, gone = {}, {}
  for i = 1, number() do
    used[i] = {at = min(number(), key), units = number()}
    state.serial = state.serial + used[i].units
  end
  change()
  if state.spares > 0 then -- they were free before this
    for _, member in ipairs(call('ZRANGE', free, 0, -1)) do
      local at, units = string.match(member, '^(%d+):(%d+)$')
      gone[tonumber(at)] = tonumber(units)
    end
    removeAll(gone)
    call('DEL', free)
    state.spares = 0
  end
  for _, log in ipairs(logs) do insert(log, used) end
end

function ops.back()
  local gone, any, void = {}, false, number() ~= state.generation
  if not void then change() end
  for _ = 1, number() do
    local slot, units = number(), number()
    if void then -- slots of a state that was lost
    elseif not booked(slot) then
      removeAll({[slot] = units})
    elseif slot < key then
      gone[slot], any = (gone[slot] or 0) + units, true
    else
      offer(slot, units)
    end
  end
  if any then removeAll(gone) end
end

function ops.late()
  local void, late, worst, left = number() ~= state.generation, {}, 0, 0
  for i = 1, number() do
    late[i] = {slot = number(), left = min(number() - state.offset, key), units = number()}
    worst, left = max(worst, late[i].left - late[i].slot), max(left, late[i].left)
  end
  if void or worst <= 0 then return end
  change()
  if booked(left) then
    state.offset = state.offset + worst
    key = max(now, state.resume) - state.offset
    return
  end
  for _, one in ipairs(late) do
    for _, log in ipairs(logs) do
      local found = remove(log, {[text(rounded(log, one.slot))] = one.units})
      if found > 0 then append(log, one.left, found) end
    end
  end
end

function ops.pause()
  local wait, heard = number(), number()
  if heard < state.resume or now + wait <= state.resume then return end
  change()
  state.offset = state.offset + now + wait - max(now, state.resume)
  state.resume = now + wait
end

-- earliest says when the next cost slots may leave, and how many such bookings may leave together then.
local function earliest(cost)
  local slot, together = key, math.huge
  for _, log in ipairs(logs) do
    local first, at, upto = log.n + cost - log.limit, nil, 0
    if first > 0 then
      local entry = call('ZRANGEBYSCORE', log.key, text(first), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      at, upto = tonumber(entry[1] or log.last), tonumber(entry[2] or log.n) -- no entry: it was evicted
      slot = max(slot, at + log.window)
    end
    together = min(together, floor((upto + log.limit - log.n) / cost))
  end
  return slot, together
end

local function answer(count, what)
  local last = #runs
  if runs[last] == what then
    runs[last - 1] = runs[last - 1] + count
  else
    runs[last + 1], runs[last + 2] = count, what
  end
end

local function book(count, cost, longest)
  while count > 0 do
    local slot, some = take(count, cost, longest)
    if not slot then
      slot, some = earliest(cost)
      some = min(some, count)
      local wait = slot + state.offset - now
      if longest >= 0 and wait > longest then return answer(count, -wait) end
      for _, log in ipairs(logs) do append(log, slot, some * cost) end
    end
    state.serial = state.serial + some * cost
    answer(some, slot)
    count = count - some
  end
end

function ops.reserve()
  local heard, groups = number(), number()
  if state.serial < heard then lost = 1 else change() end
  for _ = 1, groups do
    local count, cost, longest = number(), number(), number()
    if lost == 0 then book(count, cost, longest) end
  end
end

while arg < #ARGV do ops[word()]() end

-- Reply ---------------------------------------------------------------------------------------------

local tail = math.huge
for _, log in ipairs(logs) do tail = min(tail, log.last) end
local reply = {now, state.offset, state.resume, state.serial, tail, state.generation, state.origin, state.restored,
               lost}
for _, log in ipairs(logs) do reply[#reply + 1] = sweep(log, 4 + #runs) end
for _, word in ipairs(runs) do reply[#reply + 1] = word end

if dirty then
  local latest, window = key, 0
  for _, log in ipairs(logs) do latest, window = max(latest, log.last), max(window, log.window) end
  -- Past the last slot, its window, and a second. Never shorter than another process asked for.
  state['until'], state.seen = max(state['until'], latest + state.offset + window + 1000000), now
  for _, log in ipairs(logs) do state['n:' .. log.name], state['l:' .. log.name] = log.n, log.last end
  local values = {}
  for _, field in ipairs(fields) do
    values[#values + 1] = field
    values[#values + 1] = text(state[field])
  end
  call('HSET', clock, unpack(values))
  local ttl = text(math.ceil((state['until'] - now) / 1000))
  for i = 1, #KEYS do
    if i ~= 2 or state.spares > 0 then call('PEXPIRE', KEYS[i], ttl) end
  end
end
return reply
