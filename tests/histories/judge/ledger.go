package main

import "fmt"

// A ledger is an append-only sequence of entries that ends once. Appends come in the order of their ids. Whoever closes
// or recovers it fixes its end; from then on nothing is appended, and everybody who learns the end learns this one.
// A LAC is a lower bound: it may lag behind, as bookies hear of it with later entries, but what it covers is there.
type ledger struct {
	last     *entry
	bytes    int64
	isClosed bool
}

func sameLedger(one, other any) bool {
	a, b := one.(ledger), other.(ledger)
	return a.isClosed == b.isClosed && a.bytes == b.bytes && sameSequence(a.last, b.last)
}

// ledgerObject makes the steps of one ledger. What has no effect and proves nothing is no step: failed operations, closes
// with an unknown outcome (whoever learns of the end closes the ledger in this model at the latest), and appends that may
// be lost of entries that nobody saw.
func ledgerObject(name string, records []*record) *object {
	o := &object{name: name, init: ledger{}, equal: sameLedger}
	seen := lastSeen(records)
	for _, r := range records {
		switch {
		case r.Op == "append" && (r.isOk() || r.isUnknown()):
			for i, value := range r.Values {
				if id := r.First + int64(i); !r.mayBeLost() || id <= seen {
					o.add(r, appendEntry(id, value))
				}
			}
		case r.Op == "read" && r.isOk():
			o.add(r, readEntries(r.First, r.Values))
		case r.Op == "read" && r.Result == "denied":
			o.add(r, denyEntry(r.Entry))
		case r.Op == "lac" && r.isOk():
			o.add(r, confirm(r.Lac, "confirmed"))
		case r.Op == "sync" && r.isOk():
			o.add(r, confirm(r.LastEntry, "synced"))
		case (r.Op == "close" || r.Op == "recover" || r.Op == "end") && r.isOk():
			o.add(r, end(r.LastEntry, r.Length))
		}
	}
	return o
}

// lastSeen is the highest entry that any client heard of.
func lastSeen(records []*record) int64 {
	seen := int64(-1)
	for _, r := range records {
		if !r.isOk() || r.Relaxed {
			continue
		}
		switch r.Op {
		case "append", "read":
			seen = max(seen, r.First+int64(len(r.Values))-1)
		case "lac":
			seen = max(seen, r.Lac)
		default:
			seen = max(seen, r.LastEntry)
		}
	}
	return seen
}

func appendEntry(id int64, value string) func(any) (any, string) {
	return func(state any) (any, string) {
		s := state.(ledger)
		if s.isClosed {
			return nil, fmt.Sprintf("the ledger was closed at entry %d: entry %d cannot be appended", count(s.last)-1, id)
		}
		if id != count(s.last) {
			return nil, fmt.Sprintf("the next entry is %d: entry %d cannot be appended", count(s.last), id)
		}
		bytes, _ := size(value)
		return ledger{appended(s.last, value, nil), s.bytes + bytes, false}, ""
	}
}

func readEntries(first int64, values []string) func(any) (any, string) {
	return func(state any) (any, string) {
		s := state.(ledger)
		last := first + int64(len(values)) - 1
		if last >= count(s.last) {
			return nil, fmt.Sprintf("entry %d was read: the ledger holds %s", last, held(s.last))
		}
		for at := upTo(s.last, last); at != nil && at.index >= first; at = at.before {
			if read := values[at.index-first]; read != at.value {
				return nil, fmt.Sprintf("entry %d was read as %s%s: it was appended as %s", at.index, read, otherwise(s.last, read), at.value)
			}
		}
		return s, ""
	}
}

func denyEntry(id int64) func(any) (any, string) {
	return func(state any) (any, string) {
		s := state.(ledger)
		if id < count(s.last) {
			return nil, fmt.Sprintf("entry %d is lost: the reader was answered that it does not exist, the ledger holds %s", id, held(s.last))
		}
		return s, ""
	}
}

func confirm(last int64, what string) func(any) (any, string) {
	return func(state any) (any, string) {
		s := state.(ledger)
		if last >= count(s.last) {
			return nil, fmt.Sprintf("entry %d was said to be %s: the ledger holds %s", last, what, held(s.last))
		}
		return s, ""
	}
}

func end(last int64, length *int64) func(any) (any, string) {
	return func(state any) (any, string) {
		s := state.(ledger)
		switch {
		case s.isClosed && last != count(s.last)-1:
			return nil, fmt.Sprintf("two ends: the ledger was closed at entry %d, and the end is said to be %d", count(s.last)-1, last)
		case last < count(s.last)-1:
			return nil, fmt.Sprintf("entries %d to %d are lost: the end is said to be %d, the ledger holds %s", last+1, count(s.last)-1, last, held(s.last))
		case last > count(s.last)-1:
			return nil, fmt.Sprintf("the end is said to be %d: the ledger holds %s", last, held(s.last))
		case length != nil && *length != s.bytes:
			return nil, fmt.Sprintf("the ledger is said to be %d bytes long: its entries are %d", *length, s.bytes)
		}
		return ledger{s.last, s.bytes, true}, ""
	}
}

func held(last *entry) string {
	if last == nil {
		return "nothing"
	}
	return fmt.Sprintf("entries 0 to %d", last.index)
}
