package pacecar

import (
	"context"
	"math"
	"slices"
	"sort"
	"sync"
	"time"
)

// local is the window in this process's memory, for a Limiter without Redis. Its
// ledger is also the share during an outage, and the model that the script in
// lua/ is tested against: its functions have their twins there, most of them under
// the same name or that of the operation.
type local struct {
	start time.Time
	mu    sync.Mutex
	book  ledger // guarded by mu
}

func newLocal(bounds []bound) *local {
	return &local{start: time.Now(), book: newLedger(bounds)}
}

// exchange has no use for known, here, tell, policy and from, which are for who
// shares a window, and never fails.
func (w *local) exchange(_ context.Context, q *query) (*answer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// By the monotonic clock, from a date that makes every slot positive.
	now := w.start.UnixMicro() + time.Since(w.start).Microseconds()
	return w.book.exchange(now, q), nil
}

// with moves to other rates at once: this window is not used any more.
func (w *local) with(bounds []bound) window {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.book.rebind(bounds)
	w.book.turn = 0 // a line at the old pace
	return w
}

// A ledger is the state of one key. Its methods take the time; none waits.
type ledger struct {
	offset, resume int64
	serial         int64
	generation     int64
	restored       int64 // see answer
	origin         int64
	seen, until    int64
	seqs           map[string]int64 // of the last query of each process that gave back
	spares         []span           // slots given back, by time
	old            int64            // no slot that was booked under other rates is later
	turn           int64            // see grantBackground
	logs           []slotLog
	idle           map[string]idleLog // of rates that were in force before

	// Of the exchange under way:
	now, key int64
	dirty    bool
	out      *answer
}

// A slotLog is the log of one rate.
type slotLog struct {
	bound
	n, last int64 // number and logged time of the last slot booked
	entries []entry
}

// An idleLog is the log of a rate, and serial when that ceased to be in force.
type idleLog struct {
	slotLog
	serial int64
}

func newLedger(bounds []bound) ledger {
	l := ledger{logs: make([]slotLog, len(bounds))}
	for i, b := range bounds {
		l.logs[i].bound = b
	}
	return l
}

func (l *ledger) exchange(now int64, q *query) *answer {
	l.begin(now)
	return l.do(q)
}

// begin begins an exchange.
func (l *ledger) begin(now int64) {
	if l.until > 0 && now >= l.until { // Redis would have expired it
		*l = ledger{logs: l.logs}
		l.wipe()
	}
	l.now, l.dirty, l.out = now, false, &answer{}
	if now < l.seen { // the clock went back: the key's clock must not
		back := l.seen - now
		l.offset, l.resume = l.offset-back, l.resume-back
		l.change()
		l.tick()
		l.forget() // they may be taken for slots to come, and may have been before
	}
	l.tick()
}

// do does what q says.
func (l *ledger) do(q *query) *answer {
	if q.write {
		l.change()
	}
	if q.restore != nil {
		l.restore(q.restore)
	}
	again := len(q.drop)+len(q.back) > 0 && q.generation == l.generation && l.again(q.process, q.seq)
	if len(q.drop) > 0 && q.generation == l.generation && !again {
		l.drop(q.drop)
	}
	if len(q.charge) > 0 {
		l.charge(q.charge)
	}
	if len(q.back) > 0 && q.generation == l.generation && !again {
		l.giveBack(q.back)
	}
	if len(q.late) > 0 && q.generation == l.generation {
		l.late(q.late)
	}
	if q.pause > 0 {
		l.pause(q.pause, q.paused)
	}
	if q.resume || q.reset {
		l.endPause()
	}
	if q.reset {
		l.change()
		l.wipe()
		l.idle, l.old = nil, 0
	}
	if len(q.asks) > 0 {
		l.reserve(q.heard, q.asks)
	}
	return l.answer()
}

// tick reads the key's clock.
func (l *ledger) tick() { l.key = max(l.now, l.resume) - l.offset }

func (l *ledger) wipe() {
	l.spares, l.turn = nil, 0
	for i := range l.logs {
		l.logs[i] = slotLog{bound: l.logs[i].bound}
	}
}

// change must come before the first change of an exchange.
func (l *ledger) change() {
	if l.generation == 0 {
		l.wipe()
		l.generation = l.now
	}
	l.dirty = true
}

func (g *slotLog) append(at, units int64) {
	g.n, g.last = g.n+units, max(g.last, g.rounded(at))
	if k := len(g.entries); k > 0 && g.entries[k-1].at == g.last {
		g.entries[k-1].upto = g.n
		return
	}
	g.entries = append(g.entries, entry{g.last, g.n})
}

// tail is a time after which no slot is booked.
func (l *ledger) tail() int64 {
	tail := int64(1) << 62
	for i := range l.logs {
		tail = min(tail, l.logs[i].last)
	}
	return tail
}

// sweep drops what has left the window but for the last such entry, and
// returns how many slots are free now. It never looks at very many entries.
func (g *slotLog) sweep(key int64, most int, drop bool) (free int64) {
	gone, base := 0, int64(0)
	for _, e := range g.entries[:min(len(g.entries), most+32+256)] {
		if e.at+g.window > key {
			break
		}
		gone, base = gone+1, e.upto
	}
	if drop && gone > 1 {
		g.entries = slices.Delete(g.entries, 0, gone-1)
	}
	return max(0, g.limit-(g.n-base))
}

// spareLook is how many of the free slots an ask looks at.
const spareLook = 16

// take finds the earliest free slots that fit. Those whose time has passed
// unused leave the logs.
func (l *ledger) take(a ask) (slot, taken int64) {
	passed := 0
	for i, s := range l.spares[:min(len(l.spares), spareLook)] {
		if s.slot < l.key {
			passed++
			continue
		}
		if s.units < a.cost || s.slot < l.key+a.delay || a.longest >= 0 && s.slot+l.offset-l.now > a.longest {
			continue
		}
		slot, taken = s.slot, min(a.count, s.units/a.cost)
		if l.spares[i].units -= taken * a.cost; l.spares[i].units == 0 {
			l.spares = slices.Delete(l.spares, i, i+1)
		}
		break
	}
	if passed > 0 {
		l.remove(l.spares[:passed])
		l.spares = slices.Delete(l.spares, 0, passed)
	}
	return slot, taken
}

// pause stops the clock for wait from now. The longest pause wins, and a
// request sent before the last one cannot ask for more.
func (l *ledger) pause(wait, heard int64) {
	if heard < l.resume || l.now+wait <= l.resume {
		return
	}
	l.change()
	l.offset += l.now + wait - max(l.now, l.resume)
	l.resume = l.now + wait
}

// nearEnd is how long before its end a pause is left to end by itself: who has
// just heard of it leaves by that, without asking again. It covers lookAfter, and
// a slow reply.
const nearEnd = 300_000

// endPause has the clock go on.
func (l *ledger) endPause() {
	if l.resume > l.now+nearEnd {
		l.change()
		l.offset, l.resume = l.offset-(l.resume-l.now), l.now
	}
}

// earliest says when the next cost slots may leave, and how many such bookings
// may leave together then, with keep more left free.
func (l *ledger) earliest(cost, delay, keep int64) (slot, together int64) {
	slot, together = l.key+delay, 1<<62
	for i := range l.logs {
		g := &l.logs[i]
		limit, upto := g.limit-keep, int64(0)
		if first := g.n + cost - limit; first > 0 {
			e := g.entries[sort.Search(len(g.entries), func(i int) bool { return g.entries[i].upto >= first })]
			slot, upto = max(slot, e.at+g.window), e.upto
		}
		together = min(together, (upto+limit-g.n)/cost)
	}
	return slot, together
}

// reserve books in order. Who would wait too long is refused and charged
// nothing.
func (l *ledger) reserve(heard int64, asks []ask) {
	if l.serial < heard {
		return
	}
	l.change()
	l.trim()
	least, longest := forever, int64(0)
	for i := range l.logs {
		least, longest = min(least, l.logs[i].limit), max(longest, l.logs[i].window)
	}
	for _, a := range asks {
		switch {
		case a.cost+a.keep > least: // never: it would be searched for without an end
			l.out.add(run{count: a.count, wait: longest})
		case a.keep > 0:
			l.grantBackground(a)
		default:
			l.grant(a)
		}
	}
}

// grantBackground books what leaves the reserve free. Such slots are never booked
// ahead, where others would be behind them: a process that gets too few is told
// when to ask again, one after the other at the pace of what is left to them. A
// turn that comes a little too soon is soon another.
func (l *ledger) grantBackground(a ask) {
	pace := 0.0
	for _, g := range l.logs {
		pace = max(pace, float64(a.cost)*float64(g.window)/float64(g.limit-a.keep))
	}
	pace = math.Floor(pace * 65 / 64) // so that what comes a little late does not make the next too soon
	for a.count > 0 {
		slot, some := l.earliest(a.cost, a.delay, a.keep)
		line := !a.again || slot > l.key+a.delay+2*int64(pace)
		if line {
			slot = max(slot, l.turn)
		}
		if slot <= l.key+a.delay {
			some = min(some, a.count)
			for i := range l.logs {
				l.logs[i].append(slot, some*a.cost)
			}
			l.serial += some * a.cost
			l.out.add(run{count: some, slot: slot})
			a.count -= some
			continue
		}
		wait := slot + l.offset - l.now
		if line && (a.longest < 0 || wait <= a.longest) {
			l.turn = slot + int64(pace)
		}
		l.out.add(run{count: a.count, wait: wait})
		return
	}
}

func (l *ledger) grant(a ask) {
	for a.count > 0 {
		slot, some := l.take(a)
		if some == 0 {
			slot, some = l.earliest(a.cost, a.delay, 0)
			some = min(some, a.count)
			if wait := slot + l.offset - l.now; a.longest >= 0 && wait > a.longest {
				l.out.add(run{count: a.count, wait: wait})
				return
			}
			for i := range l.logs {
				l.logs[i].append(slot, some*a.cost)
			}
		}
		l.serial += some * a.cost
		l.out.add(run{count: some, slot: slot})
		a.count -= some
	}
}

// add appends a run, or lengthens the last one if it says the same.
func (a *answer) add(r run) {
	if k := len(a.runs); k > 0 && a.runs[k-1].slot == r.slot && a.runs[k-1].wait == r.wait {
		a.runs[k-1].count += r.count
		return
	}
	a.runs = append(a.runs, r)
}

func (l *ledger) answer() *answer {
	a := l.out
	a.now, a.offset, a.resume = l.now, l.offset, l.resume
	a.serial, a.generation, a.origin, a.restored = l.serial, l.generation, l.origin, l.restored
	a.tail = l.tail()
	latest, window := l.key, int64(0)
	for i := range l.logs {
		g := &l.logs[i]
		a.free = append(a.free, g.sweep(l.key, 4+2*len(a.runs), l.dirty))
		latest, window = max(latest, g.last), max(window, g.window)
	}
	if l.dirty {
		l.seen = l.now
		l.until = max(l.until, latest+l.offset+window+time.Second.Microseconds())
	}
	l.out = nil
	return a
}
