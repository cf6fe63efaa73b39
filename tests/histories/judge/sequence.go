package main

import (
	"fmt"
	"hash/fnv"
)

// entry is the newest entry of an append-only sequence, with the sequence before it. It never changes, so states share it.
type entry struct {
	before *entry
	index  int64
	value  string
	// at is where a log keeps the entry; nil for a ledger's, and for one whose place no client knows.
	at   *place
	hash uint64
}

func count(last *entry) int64 {
	if last == nil {
		return 0
	}
	return last.index + 1
}

func hashOf(last *entry) uint64 {
	if last == nil {
		return 0
	}
	return last.hash
}

func appended(last *entry, value string, at *place) *entry {
	sum := fnv.New64a()
	var before [8]byte
	for i := range before {
		before[i] = byte(hashOf(last) >> (8 * i))
	}
	sum.Write(before[:])
	sum.Write([]byte(value))
	return &entry{before: last, index: count(last), value: value, at: at, hash: sum.Sum64()}
}

// upTo is the entry of an index of the sequence that ends at last.
func upTo(last *entry, index int64) *entry {
	for last != nil && last.index > index {
		last = last.before
	}
	return last
}

// sameSequence compares by length and hash chain: states that porcupine compares differ in neither or in both.
func sameSequence(one, other *entry) bool {
	return one == other || (count(one) == count(other) && hashOf(one) == hashOf(other))
}

// otherwise says whose bytes a value is, where it is another entry's than it was read as.
func otherwise(last *entry, value string) string {
	for ; last != nil; last = last.before {
		if last.value == value {
			return fmt.Sprintf(", and that is entry %d", last.index)
		}
	}
	return ""
}
