-- Second part of the script (see state.lua): what changes bookings that were made, and what else is rare. Few
-- exchanges need it, and making its functions costs as much as a booking, so they are made when they are called for.

local function corrections()
  if removeAll then return end

  -- takeOver brings logs up to date that were not in force: by all that was booked since they were, which is the end of
  -- source, the log of the rate `from`. What is older than its window counts at that one's beginning. A log that is new
  -- has what source holds of its window. No slot is later than the tail of those in force, whatever a log says.
  function takeOver(from, source)
    change()
    state.turn = 0 -- a line at the old pace
    local window = string.match(force, '^%d+')
    local kept, others, tail = {}, {}, math.huge
    for name in string.gmatch(force, ' (%S-)=') do
      tail = min(tail, tonumber(call('HGET', clock, 'l:' .. name) or 0))
    end
    tail = max(tail, key) -- what was charged may not be in all logs
    for _, log in ipairs(logs) do
      local group = string.find(force, ' ' .. log.name .. '=', 1, true) and kept or others
      group[#group + 1] = log
    end
    forget(kept) -- they fit the rates before, as do those that will be given back
    call('HSET', clock, 'old', tail)
    local entries = call('ZRANGE', source, 0, -1, 'WITHSCORES')
    local known = entries[1]
    if not known then -- nothing was booked, or it was evicted
      local last = call('HMGET', clock, 'l:' .. from, 'n:' .. from)
      entries = {last[1] or 0, last[2] or 0}
      for _, log in ipairs(kept) do
        if log.name == from then entries = {log.last, log.n} end
      end
    end
    local left = entries[1] + window <= key -- the first has left the window: the rest is what source holds
    for _, log in ipairs(others) do
      local since = tonumber(call('HGET', clock, 's:' .. log.name) or nil)
      local missed, i, parts = state.serial - (since or 0), #entries - 1, {}
      if not since then -- it is new
        call('DEL', log.key)
        log.n, log.last, missed = 0, 0, entries[#entries] - (left and entries[2] or 0)
        if left and known then append(log, min(tail, entries[1]), 0) end -- for another that takes over from this
      elseif log.last > tail then -- of slots that were given back since
        for _, at in ipairs(call('ZRANGE', log.key, 0, -1)) do
          if tonumber(at) >= tail then call('ZREM', log.key, at) end
        end
        log.last = tail
        call('ZADD', log.key, log.n, tail)
      end
      if not known and tonumber(entries[2]) == 0 then missed = 0 end -- nothing is booked
      while missed > 0 do
        local units = i == 1 and missed or min(missed, entries[i + 1] - entries[i - 1])
        parts[#parts + 1], missed, i = {min(tail, entries[i]), units}, missed - units, i - 2
      end
      for j = #parts, 1, -1 do append(log, parts[j][1], parts[j][2]) end
    end
    for name in string.gmatch(force, ' (%S-)=') do call('HSET', clock, 's:' .. name, state.serial) end
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

  local function logged(log, slot) -- when: it may have been before the log was coarse
    local at = rounded(log, slot)
    return at ~= slot and call('ZSCORE', log.key, text(slot)) and slot or at
  end

  function removeAll(gone, some) -- slot -> units, from some of the logs; nil: from all
    for _, log in ipairs(some or logs) do
      local there, any = {}, false
      for slot, units in pairs(gone) do
        local at = logged(log, slot)
        if at + log.window > key then -- else it is out of the window, and may be what the log starts from
          there[text(at)] = (there[text(at)] or 0) + units
          any = true
        end
      end
      if any then remove(log, there) end
    end
  end

  -- offer puts slots up for a new owner.
  function offer(slot, units)
    for _, member in ipairs(call('ZRANGEBYSCORE', free, text(slot), text(slot))) do
      units = units + tonumber(string.match(member, ':(%d+)$'))
      call('ZREM', free, member)
      state.spares = state.spares - 1
    end
    call('ZADD', free, text(slot), text(slot) .. ':' .. text(units))
    state.spares = state.spares + 1
  end

  -- forget takes the free slots out of some of the logs: nobody has them, and nobody gets them.
  function forget(some)
    if state.spares == 0 then return end
    change()
    local gone = {}
    for _, member in ipairs(call('ZRANGE', free, 0, -1)) do
      local at, units = string.match(member, '^(%d+):(%d+)$')
      gone[tonumber(at)] = tonumber(units)
    end
    removeAll(gone, some)
    call('DEL', free)
    state.spares = 0
  end

  local function booked(at) -- whether a slot is booked later than that
    for _, log in ipairs(logs) do
      if log.last > rounded(log, at) then return true end
    end
    return false
  end

  -- trim takes the last free slots out of the logs, as long as nobody is behind them any more: a line that was given up
  -- leaves nothing behind. It never looks at very many.
  function trim()
    for _ = 1, min(state.spares, 500) do
      local member = call('ZRANGE', free, -1, -1)[1]
      if not member then return end -- it was evicted
      local at, units = string.match(member, '^(%d+):(%d+)$')
      if booked(tonumber(at)) then return end
      removeAll({[tonumber(at)] = tonumber(units)})
      call('ZREM', free, member)
      state.spares = state.spares - 1
    end
  end

  function ops.write()
    change()
    call('HSET', clock, 'generation', state.generation) -- which Redis refuses when it is full
  end

  function ops.pause()
    local wait, heard = number(), number()
    if heard < state.resume or now + wait <= state.resume then return end
    change()
    state.offset = state.offset + now + wait - max(now, state.resume)
    state.resume = now + wait
  end

  function ops.here()
    local process, minute = word(), 60000000
    for _, gone in ipairs(call('ZRANGEBYSCORE', KEYS[3], '-inf', '(' .. text(now - minute))) do
      call('HDEL', clock, 'p:' .. gone)
    end
    call('ZREMRANGEBYSCORE', KEYS[3], '-inf', '(' .. text(now - minute))
    call('ZADD', KEYS[3], now, process)
    call('PEXPIRE', KEYS[3], text(max(minute, state['until'] - now) / 1000)) -- it names the p: fields to delete, and outlives them
  end

  function ops.policy()
    local policy, rates = number(), word()
    if policy <= state.policy then return end
    change()
    state.policy = policy
    call('HSET', clock, 'rates', rates)
    call('PERSIST', clock)
  end

  function ops.resume()
    if state.resume <= now + 300000 then return end -- who has just heard of its end leaves by that
    change()
    state.offset, state.resume = state.offset - (state.resume - now), now
  end

  function ops.reset()
    ops.resume()
    change()
    wipe()
    for _, word in ipairs(call('HGETALL', clock)) do -- of rates that are not in force, too
      if string.sub(word, 1, 2) == 's:' then call('HDEL', clock, word) end
    end
    call('HDEL', clock, 'old')
  end

  function ops.restore()
    local origin, serial, offset, resume = number(), number(), number(), number()
    local till, rest, entries = number(), {}, {}
    for i = 1, #logs do rest[i] = number() end
    for i = 1, 2 * number() do entries[i] = number() end
    if serial <= state.serial then return end
    change()
    local moved, booked, since = offset - state.offset, state.serial - state.restored, {}
    for i, log in ipairs(logs) do since[i] = log.last end
    wipe()
    local paused = max(0, state.resume - max(now, resume))
    state.offset, state.resume = offset + paused, max(resume, state.resume)
    state.generation, state.origin, state.restored = state.generation + 1, origin, serial
    state.serial = serial + booked + max(unpack(rest))
    tick()
    for i, log in ipairs(logs) do
      for j = 1, #entries, 2 do append(log, entries[j], entries[j + 1] - log.n) end
      if booked > 0 then append(log, since[i] - moved, booked) end
      if rest[i] > 0 then append(log, till, rest[i]) end
    end
  end

  local again -- whether this was here before: a client sends it again when the reply is lost
  local function void() -- whether what follows is of a lost state, or was here before
    local lost, process, seq = number() ~= state.generation, 'p:' .. word(), number()
    if not lost and again == nil then
      again = tonumber(call('HGET', clock, process) or 0) >= seq
      if not again then
        change()
        call('HSET', clock, process, seq)
      end
    end
    return lost or again
  end

  function ops.drop()
    local gone, void = {}, void()
    for _ = 1, number() do
      local slot, units = number(), number()
      gone[slot] = (gone[slot] or 0) + units
    end
    if not void then removeAll(gone) end
  end

  function ops.charge()
    local used = {}
    for i = 1, number() do
      used[i] = {at = min(number(), key), units = number()}
      state.serial = state.serial + used[i].units
    end
    change()
    forget() -- they were free before this
    for _, log in ipairs(logs) do insert(log, used) end
  end

  function ops.back()
    local gone, any, void = {}, false, void()
    local old = tonumber(call('HGET', clock, 'old') or 0)
    for _ = 1, number() do
      local slot, units = number(), number()
      if void then -- pass over it
      elseif not booked(slot) then
        removeAll({[slot] = units})
      elseif slot < key or slot <= old then
        gone[slot], any = (gone[slot] or 0) + units, true
      else
        offer(slot, units)
      end
    end
    if any then removeAll(gone) end
    if not void then trim() end
  end

  -- setBack sets the key's clock back. A first entry that comes back into its window stands for all before it: no more
  -- than the limit of those are in there.
  local function setBack(by)
    local before = key
    state.offset = state.offset + by
    tick()
    for _, log in ipairs(logs) do
      local first, out = call('ZRANGE', log.key, 0, 0, 'WITHSCORES'), key - log.window
      if first[1] and tonumber(first[1]) > out and first[1] + log.window <= before and tonumber(first[2]) > log.limit then
        call('ZADD', log.key, text(first[2] - log.limit), text(out))
      end
    end
  end

  function ops.late()
    local void, late, worst, left = number() ~= state.generation, {}, 0, 0
    for i = 1, number() do
      late[i] = {slot = number(), left = min(number() - state.offset, key), units = number()}
      worst, left = max(worst, late[i].left - late[i].slot), max(left, late[i].left)
    end
    if void or worst <= 0 then return end
    change()
    if booked(left) then return setBack(worst) end
    local missing = false
    for _, one in ipairs(late) do
      local moved = 0
      for _, log in ipairs(logs) do
        local found = remove(log, {[text(logged(log, one.slot))] = one.units})
        if found > 0 then append(log, one.left, found) end
        missing, moved = missing or found < one.units, max(moved, found)
      end
      state.serial = state.serial + moved -- as if booked then: see takeOver
    end
    if missing then -- it was logged at a later time than its own: where, is not known
      setBack(worst)
    end
  end
end
