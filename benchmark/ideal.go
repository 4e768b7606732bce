package main

import (
	"container/heap"
	"time"

	"github.com/pacecar-go/pacecar"
)

// earliest returns when the next request may arrive, after those before it, by
// the exact windows alone.
func earliest(rates pacecar.Rates, before []time.Duration) (at time.Duration) {
	k := len(before)
	if k > 0 {
		at = before[k-1]
	}
	for _, r := range rates {
		if k >= r.Limit {
			at = max(at, before[k-r.Limit]+r.Per)
		}
	}
	return at
}

// An idealRun is what a limiter that knows everything at once, and costs
// nothing, makes of a workload.
type idealRun struct {
	span  time.Duration   // from the first arrival to the last
	waits []time.Duration // of each request, from asking to leaving
}

// ideal plays a workload: callers ask as soon as their last request is
// answered, and leave in the order in which they ask, each as soon as every
// window allows it.
func ideal(w *workload) idealRun {
	left := w.parts()
	var queue asks
	for range w.callers {
		for p := range left {
			if left[p] > 0 {
				left[p]--
				heap.Push(&queue, ask{order: len(queue), process: p})
			}
		}
	}
	var run idealRun
	slots := make([]time.Duration, 0, w.requests)
	var resume time.Duration // of the upstream that refuses everything
	for order := len(queue); len(queue) > 0; order++ {
		a := heap.Pop(&queue).(ask)
		slot := max(a.at, resume, earliest(w.rates, slots))
		if w.foreign > 0 && len(slots) == w.requests/2 {
			resume = slot + w.foreign
			slot = resume
		}
		slots = append(slots, slot)
		run.waits = append(run.waits, slot-a.at)
		if left[a.process] > 0 {
			left[a.process]--
			heap.Push(&queue, ask{slot + w.turnaround(), order, a.process})
		}
	}
	if len(slots) > 0 {
		run.span = slots[len(slots)-1] - slots[0]
	}
	return run
}

// An ask is a caller that asks for a slot.
type ask struct {
	at      time.Duration
	order   int // among those of one time
	process int
}

// asks is a heap, the earliest on top.
type asks []ask

func (q asks) Len() int { return len(q) }
func (q asks) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].order < q[j].order
}
func (q asks) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *asks) Push(x any)   { *q = append(*q, x.(ask)) }
func (q *asks) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
