package main

import (
	"fmt"
	"runtime/metrics"
	"time"
)

// budget bounds what a judgement may take. A history is hard to judge where many operations overlap: their orders are
// exponentially many, and the checker remembers each that it tried.
type budget struct {
	limit       time.Duration
	deadline    time.Time
	memoryBytes uint64
}

// looksEvery is how often memory is looked at.
const looksEvery = 50 * time.Millisecond

// judge returns nil when the object's history is linearizable; its verdict is unknown when the budget is over.
func (b *budget) judge(o *object) *finding {
	limit := min(b.limit, time.Until(b.deadline))
	if limit <= 0 {
		return o.undecided("the time for all ledgers and logs was over before its turn")
	}
	done := make(chan *finding, 1)
	go func() { done <- o.judge(limit) }()
	looks := time.NewTicker(looksEvery)
	defer looks.Stop()
	for {
		select {
		case found := <-done:
			return found
		case <-looks.C:
			if heapBytes() > b.memoryBytes {
				// The checker cannot be stopped but by its limit, so nothing else is judged beside it.
				b.deadline = time.Now()
				return o.undecided(fmt.Sprintf("no order was found or excluded in %d MiB", b.memoryBytes>>20))
			}
		}
	}
}

func heapBytes() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
