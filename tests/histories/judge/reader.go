package main

import "fmt"

// The LAC that one reader of a ledger is given never falls, whichever bookies it asks. Readers are judged apart from each
// other: two of them may hear of different LACs in either order. The end of a closed ledger is the last of its LACs: a
// reader that has learned it does not forget it. The state is the highest LAC so far.
func readerObject(name string, records []*record) *object {
	o := &object{name: name, init: int64(-1), equal: func(one, other any) bool { return one == other }}
	for _, r := range records {
		switch {
		case r.Op == "end":
			o.add(r, rise(r.LastEntry))
		case r.isOk():
			o.add(r, rise(r.Lac))
		}
	}
	return o
}

func rise(lac int64) func(any) (any, string) {
	return func(state any) (any, string) {
		if lac < state.(int64) {
			return nil, fmt.Sprintf("the LAC of this reader fell from %d to %d", state, lac)
		}
		return lac, ""
	}
}
