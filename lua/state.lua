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
--                 (entries in free); turn (when background work that got nothing may ask again, at the
--                 earliest); force (the rates in force when it was last written: the longest window, and
--                 NAME=limit of each, that one's first); for each rate n:NAME, l:NAME (number and logged time
--                 of the last slot booked), s:NAME (serial when it ceased to be in force); old (no slot that was
--                 booked under other rates is later); and p:PROCESS, the last seq of that process. And what outlives all that: rates, those stored for the whole
--                 fleet ("" for none), and policy, TIME when they were
-- KEYS[2]  free   sorted set: slots given back that wait for a new owner; member "slot:units", score slot
-- KEYS[3]  fleet  sorted set: processes heard of in the last minute; score = TIME
-- KEYS[4+] log    one sorted set a rate: score = number of slots booked so far, member = their time. An
--                 entry stands for the slots between the score before it and its own. Times are in order.
--                 After them, if `from` is given, its log.
--
-- ARGV: the policy known (0: none), the rates in force from here on (like the field force; "": as before), `from`
-- (the NAME whose log those take over from that were not in force, else ""), the number of rates, for each rate NAME,
-- limit, window (period and slack), grain (times are rounded up to it; 0: not), then any of, in this order:
--   write                                           fail if the state cannot be written now
--   here    process                                 it is alive
--   policy  policy rates                            stored, if newer
--   restore generation serial offset resume until rest*rates N (at number)*N
--                                                   what is known of a state that was lost: of each rate, `rest`
--                                                   more may have been used until `until`; serial must be newer
--   drop    generation process seq N (slot units)*N slots not used, and not for others
--   charge  N (at units)*N                          slots used without asking, the earliest first
--   back    generation process seq N (slot units)*N slots not used, the latest first; like drop, and both
--                                                   together, it counts once for each seq of a process
--   late    generation N (slot left units)*N        units of slot left at TIME left, the earliest first
--   pause   for heard                               heard: the resume known when the request was sent
--   resume                                          end a pause
--   reset                                           forget all bookings, and end a pause
--   reserve heard N (count cost longest delay keep again)*N
--                                                   heard: the serial known; longest and delay: of the wait, at
--                                                   most (-1: any) and at least. With keep: at once or not at
--                                                   all, and so that as many slots stay free of each rate; again:
--                                                   1 if it asks when it was told to, else 0
--
-- Reply: if a newer policy is stored, nothing was done: policy, rates. If logs must take over from another than `from`,
-- nothing was done either: policy, "", and which. Else integers: now, offset, resume, serial, tail (no slot is booked
-- later), generation, origin, restored, policy, free now of each rate, then for each run of waiters: count, and their
-- slot, or minus the wait that a refused one would have needed; with keep, minus the wait until its turn. There are no
-- runs if serial is below `heard`: the state was lost, and nothing is booked.

local call, floor, max, min = redis.call, math.floor, math.max, math.min
local clock, free = KEYS[1], KEYS[2]

local function text(x) return string.format('%.0f', x) end -- call takes whole numbers as they are, .. does not

local arg = 0
local function word() arg = arg + 1; return ARGV[arg] end
local function number() return tonumber(word()) end

-- State ---------------------------------------------------------------------------------------------

local fields = {'policy', 'offset', 'resume', 'serial', 'generation', 'origin', 'restored', 'seen', 'until', 'spares',
                'turn'}
local known, ours, from, logs = number(), word(), word(), {}
for i = 1, number() do
  local log = {key = KEYS[3 + i], name = word(), limit = number(), window = number(), grain = number()}
  logs[i] = log
  fields[#fields + 1], fields[#fields + 2] = 'n:' .. log.name, 'l:' .. log.name
end

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local state, stored = {}, call('HMGET', clock, 'force', unpack(fields))
local force = stored[1]
for i, field in ipairs(fields) do
  stored[i + 1] = tonumber(stored[i + 1] or 0)
  state[field] = stored[i + 1]
end
if state.policy > known then return {state.policy, call('HGET', clock, 'rates')} end
if state.policy > 0 and state['until'] > 0 and now >= state['until'] then -- but for the policy it would have expired
  local rates = call('HGET', clock, 'rates')
  call('DEL', clock)
  call('HSET', clock, 'policy', state.policy, 'rates', rates)
  force, stored[1] = false, false
  for i = 2, #fields do state[fields[i]], stored[i + 1] = 0, 0 end
end
for _, log in ipairs(logs) do log.n, log.last = state['n:' .. log.name], state['l:' .. log.name] end

local back = max(0, state.seen - now) -- the server's clock went back: the key's clock must not
state.offset, state.resume = state.offset - back, state.resume - back
local key, dirty
local function tick() key = max(now, state.resume) - state.offset end
tick()

local function wipe()
  call('DEL', free)
  state.spares, state.turn = 0, 0
  for _, log in ipairs(logs) do
    call('DEL', log.key)
    log.n, log.last = 0, 0
  end
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
  call('ZADD', log.key, log.n, log.last)
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

-- What a process says of bookings, rather than asks for, is rare: see corrections.lua.
local ops, removeAll, offer, forget, trim, takeOver = {}, nil, nil, nil, nil, nil
