package pacecar

import (
	"slices"
	"time"
)

// A memory is what a process remembers of a key's bookings, so that a Redis
// that lost them (a flush, a restart with nothing kept, a failover that lost the
// last writes) does not hand the quota out twice. Each answer says how many
// slots the fleet had booked by then, and that none of them is later than the
// tail: enough to write logs anew whose times are the same or later.
type memory struct {
	grain   int64   // of pairs and own, one is kept for each multiple of this
	pairs   []entry // by the key's clock
	own     []own
	lines   []line // the states met, the last one last
	pending *past  // to be told with the next exchange
}

// A line is a state and up to which serial it has what the one before had.
type line struct{ generation, common int64 }

// maxLines is how many states are remembered.
const maxLines = 8

// own are bookings of this process: units, the last with that serial, none
// later than at.
type own struct{ at, serial, units int64 }

// memoryGrains is how many pairs a memory keeps for the longest window.
const memoryGrains = 64

// learn remembers an answer that brought so many units to this process.
func (m *memory) learn(a *answer, units int64) {
	at := max(a.tail, a.key())                                     // a booking made without a wait may be behind the clock by now
	for k := len(m.pairs) - 1; k >= 0 && m.pairs[k].at > at; k-- { // given back since
		m.pairs = m.pairs[:k]
	}
	for i := range m.own {
		m.own[i].at = min(m.own[i].at, at)
	}
	if k := len(m.pairs); k > 0 && m.pairs[k-1].at/m.grain == at/m.grain {
		m.pairs[k-1] = entry{at, a.serial}
	} else if k == 0 || m.pairs[k-1].upto < a.serial {
		m.pairs = append(m.pairs, entry{at, a.serial})
	}
	if units > 0 {
		if k := len(m.own); k > 0 && m.own[k-1].at/m.grain == at/m.grain {
			m.own[k-1] = own{at, a.serial, m.own[k-1].units + units}
		} else {
			m.own = append(m.own, own{at, a.serial, units})
		}
	}
}

// forget drops what is older than a time of the key's clock, but for the last
// such pair, from which the rest counts.
func (m *memory) forget(before int64) {
	i := 0
	for i+1 < len(m.pairs) && m.pairs[i+1].at < before {
		i++
	}
	m.pairs = slices.Delete(m.pairs, 0, i)
	m.own = slices.DeleteFunc(m.own, func(o own) bool { return o.at < before })
	for len(m.pairs) > 4*memoryGrains { // a very long queue: coarser, and so later
		m.pairs = slices.Delete(m.pairs, 1, 2)
	}
}

// unbook takes away units that were not used after all. Bookings are remembered
// together: theirs are among the first that are not older.
func unbook(booked []own, serial, units int64) {
	if i := slices.IndexFunc(booked, func(o own) bool { return o.serial >= serial }); i >= 0 {
		booked[i].units -= units
	}
}

func (m *memory) unbook(serial, units int64) { unbook(m.own, serial, units) }

// end has nothing used after a time of the key's clock, whatever was booked.
func (m *memory) end(at int64) {
	for i := range m.own {
		m.own[i].at = min(m.own[i].at, at)
	}
	if i := slices.IndexFunc(m.pairs, func(e entry) bool { return e.at > at }); i >= 0 {
		m.pairs[i].at = at // some of these slots may be earlier
		m.pairs = m.pairs[:i+1]
	}
}

// serial returns the highest serial heard of for bookings that are not older
// than since; 0 if there is none.
func (m *memory) serial(since int64) int64 {
	if k := len(m.pairs); k > 0 && m.pairs[k-1].at > since {
		return m.pairs[k-1].upto
	}
	return 0
}

// used returns how many slots the fleet had booked as of each pair, counted from
// the last pair that is not younger than since: if there is none, the slots
// before the first pair count too, up to most.
func (m *memory) used(since, most int64) []entry {
	i, base := 0, int64(0)
	for i < len(m.pairs) && m.pairs[i].at <= since {
		base = m.pairs[i].upto
		i++
	}
	if i == 0 && len(m.pairs) > 0 {
		base = max(0, m.pairs[0].upto-most)
	}
	used := slices.Clone(m.pairs[i:])
	for j := range used {
		used[j].upto -= base
	}
	return used
}

// restoreLocked has all that is remembered told with the next exchange.
func (l *Limiter) restoreLocked(now int64) {
	m, k := &l.memory, len(l.memory.pairs)
	if k == 0 {
		return
	}
	tail, until := m.pairs[k-1], now+lookAfter.Microseconds()
	p := &past{
		generation: l.generation(), serial: tail.upto, offset: l.clock.offset, resume: l.clock.resume,
		booked: slices.Clone(m.pairs),
		until:  l.clock.key(until), rest: make([]int64, len(l.bounds)),
	}
	if tail.at < p.until { // else who has booked since is yet to leave, and books again
		for i := range p.rest {
			p.rest[i] = l.unheardLocked(i, until)
		}
	}
	m.pending = p
}

// unheardLocked returns how many slots of the i-th rate the fleet may have used
// from the last answer until a time: in a short window all that were free, and
// that became so. A longer one cannot be waited out: as many as the short
// windows let through, and at most half of what was free; nothing where there is no
// short one.
func (l *Limiter) unheardLocked(i int, until int64) int64 {
	b := &l.bounds[i]
	if l.heard == nil {
		if l.short(i) {
			return b.limit
		}
		return 0
	}
	free, freed, key := l.heard.free[i], int64(0), l.heard.key()
	if l.short(i) {
		for _, e := range l.memory.used(key-b.window, b.limit) {
			if e.at+b.window > l.clock.key(until) {
				break
			}
			freed = e.upto
		}
		return min(free+freed, b.limit)
	}
	through := int64(0)
	for j, s := range l.bounds {
		if l.short(j) {
			if n := s.limit * (2 + (until-l.clock.heard)/s.window); through == 0 || n < through {
				through = n
			}
		}
	}
	return min(through, free/2)
}

// short reports whether the i-th rate's window may be waited out.
func (l *Limiter) short(i int) bool { return l.policy.Rates[i].Per <= shortWindow }

// take returns what restoreLocked asked for, once.
func (m *memory) take() *past {
	p := m.pending
	m.pending = nil
	return p
}

// covered returns up to which serial a new state, restored from origin up to
// restored, has what this process knows of.
func (m *memory) covered(origin, restored int64) int64 {
	for _, l := range slices.Backward(m.lines) {
		if l.generation == origin {
			return restored
		}
		restored = min(restored, l.common)
	}
	return 0
}

// renew meets a new state that covers so much, and whose key clock reads moved
// more. It returns those of this process's own bookings that are not covered.
func (m *memory) renew(covered, moved int64) (uncovered []own) {
	for _, o := range m.own {
		if o.serial > covered {
			uncovered = append(uncovered, o)
		}
	}
	m.own = slices.DeleteFunc(m.own, func(o own) bool { return o.serial > covered })
	m.pairs = slices.DeleteFunc(m.pairs, func(p entry) bool { return p.upto > covered })
	for i := range m.own {
		m.own[i].at += moved
	}
	for i := range m.pairs {
		m.pairs[i].at += moved
	}
	return uncovered
}

// learnLocked takes in what an answer says of the key and of Redis.
func (l *Limiter) learnLocked(f *flight, now int64, a *answer) {
	if f.window != l.window {
		l.fitLocked(a)
	}
	units := int64(0)
	for i, slot := range eachGrant(a.runs) {
		if slot > 0 {
			units += f.units(i)
		}
	}
	for _, s := range f.query.charge {
		units += s.units
	}
	if a.generation != l.generation() {
		l.renewLocked(now, a)
	}
	if o := &l.outage; !o.away && f.sent < o.settle && f.sent-l.clock.heard > l.timeout.Microseconds() {
		o.settle = now + l.settleFor() // Redis may have been away again, and others have not found it
	}
	l.clock.learn(f.sent, now, a)
	l.heard = a
	l.memory.forget(a.key() - l.longest)
	l.memory.learn(a, units)
	l.busy = max(l.busy, l.clock.local(a.tail)+l.longest)
	if l.outage.away {
		l.endOutageLocked(now)
	}
}

// lostReason is what a loss means for those who wait.
const lostReason = "what it may have held besides counts as used"

// renewLocked meets a state that was made anew. Of what this process had booked
// in the old one, the state covers what it was restored to: those slots are at
// the same instants as before, but cannot be given back. Who waits for another
// books again; what has left is charged.
func (l *Limiter) renewLocked(now int64, a *answer) {
	// A state that was restored goes on with the old one's clock. Where it does not
	// know how far that was set back, slots stay at their instants; what it was set
	// back since moves them like all others.
	m, moved := &l.memory, max(0, l.clock.offset-a.offset)
	m.forget(l.clock.key(now) - l.longest)
	if m.serial(l.clock.key(now)-l.longest) > 0 { // else it has expired, or is the first
		l.tellLocked(noRequest, Event{Kind: EventLost, Until: time.Now().Add(duration(l.longest)), Reason: lostReason})
	}
	covered := m.covered(a.origin, a.restored)
	uncovered := m.renew(covered, moved)
	m.lines = append(m.lines[max(0, len(m.lines)-maxLines+1):], line{a.generation, covered})
	for _, w := range l.againLocked(covered) {
		unbook(uncovered, w.serial, w.units)
	}
	for w := range l.slotted {
		if w.state == holding {
			w.slot.slot, w.made = w.slot.slot+moved, a.generation
		}
	}
	for _, o := range uncovered {
		if o.units > 0 {
			l.sentLocked(span{min(now, l.clock.local(o.at)), o.units})
		}
	}
	l.lease.held, l.back, l.outage.dropped, l.backlog.turn = nil, nil, nil, 0
	if covered == 0 {
		l.late = nil
	}
	for i := range l.late {
		l.late[i].slot += moved
	}
	until := l.clock.until() // a state that was not restored does not know of the pause
	if until > l.pause.until && until-now > max(0, a.resume-a.now)+lookAfter.Microseconds() {
		l.pause = pauseAsk{until: until, heard: a.resume}
	}
}

// againLocked has all book again whose slots a state does not cover.
func (l *Limiter) againLocked(covered int64) (again []*waiter) {
	for w := range l.slotted {
		if w.state == holding && w.serial > covered {
			again = append(again, w)
			delete(l.slotted, w)
		}
	}
	slices.SortFunc(again, func(a, b *waiter) int { return bySlot(a.slot, b.slot) })
	for _, w := range again {
		w.state, w.share, w.looked = queued, span{}, false
		w.nudge()
	}
	l.requeueLocked(again)
	return again
}
