package pacecar

// A keyClock relates a key's clock, as the answers tell it, to this process's
// own time. Both count microseconds; no clock of another machine is trusted
// for more than differences.
type keyClock struct {
	heard  int64 // when the last answer came, by this process's time; 0: never
	diff   int64 // this process's time minus the window's, at most
	offset int64
	resume int64
}

// drift is how much two clocks may go apart: one part in so many.
const drift = 5000

// learn takes in an answer to a query that was sent at sent. The window's time
// was read between sent and heard, so the difference lies between the two: the
// least upper bound of late holds, and a slot is never taken to be earlier than
// it is. A slow reply thus does not make a slot later.
func (c *keyClock) learn(sent, heard int64, a *answer) {
	c.diff += (heard - c.heard) / drift
	if upper := heard - a.now; c.heard == 0 || upper < c.diff || sent-a.now > c.diff {
		c.diff = upper
	}
	c.heard, c.offset, c.resume = heard, a.offset, a.resume
}

// local returns when a slot is, in this process's time.
func (c *keyClock) local(slot int64) int64 {
	return max(slot+c.offset, c.resume) + c.diff
}

// key returns what the key's clock reads at a time of this process.
func (c *keyClock) key(local int64) int64 {
	return max(local-c.diff, c.resume) - c.offset
}
