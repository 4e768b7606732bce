package pacecar

import (
	"cmp"
	"slices"
	"sort"
)

// What changes bookings that were made: the twin of lua/corrections.lua.

// rebind puts other rates in force. A log that was not takes over all that was
// booked since it was, which is the end of the longest one that is; what is older
// than that one's window counts at its beginning. A log that is new has what the
// longest one holds of its window. No slot is later than the tail of those that
// are in force, whatever a log says.
func (l *ledger) rebind(bounds []bound) {
	if l.generation == 0 { // nothing was booked
		l.logs = newLedger(bounds).logs
		return
	}
	before, from := l.logs, 0
	tail := max(l.tail(), l.key) // what was charged may not be in all logs
	for i := range before {
		if before[i].window > before[from].window {
			from = i
		}
	}
	window := before[from].window
	l.dirty = true
	for i := range before {
		g := &before[i]
		if j := slices.IndexFunc(bounds, func(b bound) bool { return b.name == g.name }); j >= 0 {
			g.bound = bounds[j]
			g.removeSlots(l.spares, l.key)
		}
	}
	l.spares, l.old = nil, tail            // they fit the rates before, as do those that will be given back
	source, start := before[from], entry{} // of what source holds
	left := len(source.entries) > 0 && source.entries[0].at+window <= l.key
	if left {
		start = source.entries[0]
	}
	l.logs = make([]slotLog, len(bounds))
	for i, b := range bounds {
		if j := slices.IndexFunc(before, func(g slotLog) bool { return g.name == b.name }); j >= 0 {
			l.logs[i] = before[j]
			continue
		}
		g, missed := slotLog{bound: b}, source.n-start.upto
		if old, ok := l.idle[b.name]; ok {
			g, missed = old.slotLog, l.serial-old.serial
			g.bound = b
		} else if left {
			g.append(min(tail, start.at), 0) // for another that takes over from this
		}
		g.catchUp(source.entries, missed, tail)
		l.logs[i] = g
	}
	if l.idle == nil {
		l.idle = map[string]idleLog{}
	}
	for _, g := range before {
		l.idle[g.name] = idleLog{g, l.serial}
	}
}

// catchUp appends as many slots as were missed, from the end of another log. None
// is later than tail; what g says is later was given back since.
func (g *slotLog) catchUp(entries []entry, missed, tail int64) {
	g.entries = slices.Clone(g.entries)
	if g.last > tail {
		g.entries = slices.DeleteFunc(g.entries, func(e entry) bool { return e.at >= tail })
		g.entries = append(g.entries, entry{tail, g.n})
		g.last = tail
	}
	var parts []span
	for i := len(entries) - 1; i >= 0 && missed > 0; i-- {
		units := missed
		if i > 0 {
			units = min(missed, entries[i].upto-entries[i-1].upto)
		}
		parts = append(parts, span{entries[i].at, units})
		missed -= units
	}
	for _, p := range slices.Backward(parts) {
		g.append(min(tail, p.slot), p.units)
	}
}

// insert adds units at a time that may lie before others: every run behind
// counts that much more.
func (g *slotLog) insert(at, units int64) {
	i := sort.Search(len(g.entries), func(i int) bool { return g.entries[i].at >= at })
	if i == len(g.entries) {
		g.append(at, units)
		return
	}
	if g.entries[i].at > at {
		var before entry
		if i > 0 {
			before = g.entries[i-1]
		}
		g.entries = slices.Insert(g.entries, i, entry{at, before.upto})
	}
	for j := range g.entries[i:] {
		g.entries[i+j].upto += units
	}
	g.n += units
}

// remove takes units away from the entries named in gone, by logged time: every
// run behind counts that much less. It returns how many were found.
func (g *slotLog) remove(gone map[int64]int64) (cut int64) {
	low := slices.IndexFunc(g.entries, func(e entry) bool { _, ok := gone[e.at]; return ok })
	if low < 0 {
		return 0
	}
	var before entry
	if low > 0 {
		before = g.entries[low-1]
	}
	kept := g.entries[:low]
	for _, e := range g.entries[low:] {
		left := max(before.upto, e.upto-cut-gone[e.at])
		cut = e.upto - left
		if left > before.upto {
			before = entry{e.at, left}
			kept = append(kept, before)
		}
	}
	g.entries, g.n, g.last = kept, before.upto, before.at
	return cut
}

// remove takes slots out of every log.
func (l *ledger) remove(gone []span) {
	for i := range l.logs {
		l.logs[i].removeSlots(gone, l.key)
	}
}

// removeSlots takes slots out of the log. What has left the window stays: it may
// be what the log starts from.
func (g *slotLog) removeSlots(gone []span, key int64) {
	there := make(map[int64]int64, len(gone))
	for _, s := range gone {
		if at := g.logged(s.slot); at+g.window > key {
			there[at] += s.units
		}
	}
	g.remove(there)
}

// logged returns the time at which g has slot: that may have been logged before g
// was coarse.
func (g *slotLog) logged(slot int64) int64 {
	if _, exactly := slices.BinarySearchFunc(g.entries, slot, func(e entry, at int64) int { return cmp.Compare(e.at, at) }); exactly {
		return slot
	}
	return g.rounded(slot)
}

// forget takes the free slots out of the logs: nobody has them, and nobody gets
// them.
func (l *ledger) forget() {
	l.remove(l.spares)
	l.spares = nil
}

// offer puts a slot up for a new owner.
func (l *ledger) offer(s span) {
	i, found := slices.BinarySearchFunc(l.spares, s, bySlot)
	if found {
		l.spares[i].units += s.units
		return
	}
	l.spares = slices.Insert(l.spares, i, s)
}

func bySlot(a, b span) int { return cmp.Compare(a.slot, b.slot) }

func (l *ledger) restore(p *past) {
	if p.serial <= l.serial {
		return
	}
	l.change()
	moved, since := p.offset-l.offset, slices.Clone(l.logs)
	booked := l.serial - l.restored // since the state was made
	l.wipe()
	paused := max(0, l.resume-max(l.now, p.resume))
	l.offset, l.resume = p.offset+paused, max(p.resume, l.resume)
	l.generation, l.origin, l.restored = l.generation+1, p.generation, p.serial
	l.serial = p.serial + booked + slices.Max(p.rest)
	l.tick()
	for i := range l.logs {
		g := &l.logs[i]
		for _, b := range p.booked {
			g.append(b.at, b.upto-g.n)
		}
		if booked > 0 {
			g.append(since[i].last-moved, booked)
		}
		if p.rest[i] > 0 {
			g.append(p.until, p.rest[i])
		}
	}
}

// charge records what was used without asking, where it is still in a window.
// What was free for others before is so no more.
func (l *ledger) charge(used []span) {
	l.change()
	l.forget()
	for _, u := range used {
		l.serial += u.units
		for i := range l.logs {
			g := &l.logs[i]
			if at := g.rounded(min(u.slot, l.key)); at+g.window > l.key {
				g.insert(at, u.units)
			}
		}
	}
}

// again reports whether a query was here before. One without a number, from a
// share, was not.
func (l *ledger) again(process string, seq int64) bool {
	switch {
	case seq == 0:
		return false
	case l.seqs[process] >= seq:
		return true
	case l.seqs == nil:
		l.seqs = map[string]int64{}
	}
	l.change()
	l.seqs[process] = seq
	return false
}

// drop forgets slots that are not used, and are not for others.
func (l *ledger) drop(back []span) {
	l.change()
	l.remove(back)
}

// booked reports whether a slot is booked later than at.
func (l *ledger) booked(at int64) bool {
	return slices.ContainsFunc(l.logs, func(g slotLog) bool { return g.last > g.rounded(at) })
}

// giveBack frees slots. With nobody behind, or their time passed, they are
// forgotten; else the hole is for the next to ask. Never both: a slot that is
// removed and also offered would be sold twice.
func (l *ledger) giveBack(back []span) {
	l.change()
	var passed []span
	for _, s := range back {
		switch {
		case !l.booked(s.slot):
			l.remove([]span{s})
		case s.slot < l.key || s.slot <= l.old:
			passed = append(passed, s)
		default:
			l.offer(s)
		}
	}
	l.remove(passed)
	l.trim()
}

// trim takes the last free slots out of the logs, as long as nobody is behind them
// any more: a line that was given up leaves nothing behind. It never looks at very
// many.
func (l *ledger) trim() {
	for range min(len(l.spares), 500) {
		last := len(l.spares) - 1
		if l.booked(l.spares[last].slot) {
			return
		}
		l.remove(l.spares[last:])
		l.spares = l.spares[:last]
	}
}

// late moves bookings to when they were used, or, if others are booked behind
// that, sets the clock back so that they keep the distance.
func (l *ledger) late(lates []lateness) {
	var worst, left int64
	for _, d := range lates {
		at := min(d.left-l.offset, l.key)
		worst, left = max(worst, at-d.slot), max(left, at)
	}
	if worst <= 0 {
		return
	}
	l.change()
	if l.booked(left) {
		l.setBack(worst)
		return
	}
	missing := false
	for _, d := range lates {
		moved := int64(0)
		for i := range l.logs {
			g := &l.logs[i]
			found := g.remove(map[int64]int64{g.logged(d.slot): d.units})
			if found > 0 {
				g.append(min(d.left-l.offset, l.key), found)
			}
			missing, moved = missing || found < d.units, max(moved, found)
		}
		l.serial += moved // as if booked then: see rebind
	}
	if missing { // it was logged at a later time than its own: where, is not known
		l.setBack(worst)
	}
}

// setBack sets the key's clock back. A first entry that comes back into its window
// stands for all before it: no more than the limit of those are in there.
func (l *ledger) setBack(by int64) {
	before := l.key
	l.offset += by
	l.tick()
	for i := range l.logs {
		g := &l.logs[i]
		if len(g.entries) == 0 {
			continue
		}
		first, out := g.entries[0], l.key-g.window
		if first.at > out && first.at+g.window <= before && first.upto > g.limit {
			g.entries = slices.Insert(g.entries, 0, entry{out, first.upto - g.limit})
		}
	}
}
