package pacecar

import "slices"

// A memory is what a process remembers of a key's bookings, so that a Redis
// that lost them (a flush, a restart with nothing kept, a failover that lost the
// last writes) does not hand the quota out twice. Each answer says how many
// slots the fleet had booked by then, and that none of them is later than the
// tail: enough to write logs anew whose times are the same or later.
type memory struct {
	grain   int64 // pairs and own are kept this far apart at least
	pairs   []entry
	own     []own
	pending *past // to be told with the next exchange
}

// own are bookings of this process: units, the last with that serial, none
// later than at.
type own struct{ at, serial, units int64 }

// memoryGrains is how many pairs a memory keeps for the longest window.
const memoryGrains = 64

// learn remembers an answer that brought so many units to this process.
func (m *memory) learn(a *answer, units int64) {
	at := max(a.tail, a.key()) // a booking made without a wait may be behind the clock by now
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

// serial returns the highest serial heard of for bookings that are not older
// than since; 0 if there is none.
func (m *memory) serial(since int64) int64 {
	if k := len(m.pairs); k > 0 && m.pairs[k-1].at > since {
		return m.pairs[k-1].upto
	}
	return 0
}

// restore has all that is remembered told with the next exchange.
func (m *memory) restore(c keyClock) {
	if k := len(m.pairs); k > 0 {
		m.pending = &past{m.pairs[k-1].upto, c.offset, c.resume, slices.Clone(m.pairs)}
	}
}

// take returns what restore asked for, once.
func (m *memory) take() *past {
	p := m.pending
	m.pending = nil
	return p
}

// renew meets a state that was made anew, and restored up to a serial. It
// returns how many of this process's own bookings that does not cover, and up
// to which serial it covers them.
func (m *memory) renew(restored int64) (uncovered, covered int64) {
	if k := len(m.pairs); k == 0 || m.pairs[k-1].upto <= restored {
		return 0, restored
	}
	for _, o := range m.own {
		if o.serial > restored {
			uncovered += o.units
		}
	}
	m.pairs, m.own = nil, nil
	return uncovered, restored
}
