package pacecar

// A keyClock relates a key's clock, as the answers tell it, to this process's
// own time. Both count microseconds; no clock of another machine is trusted
// for more than differences.
type keyClock struct {
	heard  int64 // when the last answer came, by this process's time; 0: never
	diff   int64 // this process's time minus the window's, at most
	least  int64 // the same, at least
	most   mark  // what diff is made of
	low    mark  // what least is made of
	offset int64
	resume int64
}

// A mark is a bound that was seen at a time of this process.
type mark struct{ bound, at int64 }

// drift is how much two clocks may go apart: one part in so many.
const drift = 5000

// learn takes in an answer to a query that was sent at sent. The window's time
// was read between sent and heard, so the difference lies between the two: the
// tightest bounds of late hold. By diff, a slot is never taken to be earlier
// than it is; by least, a departure is never taken to be less late. A slow reply
// makes no slot later.
func (c *keyClock) learn(sent, heard int64, a *answer) {
	most, low := mark{heard - a.now, heard}, mark{sent - a.now, heard}
	c.diff, c.least = c.most.bound+(heard-c.most.at)/drift, c.low.bound-(heard-c.low.at)/drift
	if c.heard == 0 || most.bound < c.least || low.bound > c.diff { // or the window's clock has jumped
		c.diff, c.least, c.most, c.low = most.bound, low.bound, most, low
	}
	if most.bound <= c.diff {
		c.diff, c.most = most.bound, most
	}
	if low.bound >= c.least {
		c.least, c.low = low.bound, low
	}
	c.heard, c.offset, c.resume = heard, a.offset, a.resume
}

// until returns when the key's clock runs again, in this process's time; a time
// that has passed when it runs.
func (c *keyClock) until() int64 { return c.resume + c.diff }

// local returns when a slot is, in this process's time.
func (c *keyClock) local(slot int64) int64 {
	return max(slot+c.offset, c.resume) + c.diff
}

// key returns what the key's clock reads at a time of this process.
func (c *keyClock) key(local int64) int64 {
	return max(local-c.diff, c.resume) - c.offset
}

// lateness returns how long after a slot a time of this process is, at most.
func (c *keyClock) lateness(slot, local int64) int64 {
	return max(0, max(local-c.least, c.resume)-c.offset-slot)
}
