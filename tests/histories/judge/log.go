package main

import "fmt"

// A log is one append-only sequence over many ledgers, with a beginning that truncation moves. It has one writer at a
// time: opening it ends the one before. An entry's place is in the ledger that the writer had then; places rise, and have
// no gap within a ledger. A read begins where it was asked to, has no gap, and covers at least what is final: all that
// was there when the last writer opened or closed the log, and all ledgers before the newest one.
type log struct {
	last *entry
	// Indexes: where reads from the beginning begin, and where what is final ends.
	start, final int64
	writer       string
	// written is how many entries the writer has appended.
	written int64
}

func sameLog(one, other any) bool {
	a, b := one.(log), other.(log)
	return a.start == b.start && a.final == b.final && a.writer == b.writer && a.written == b.written && sameSequence(a.last, b.last)
}

// logObject makes the steps of one log. What has no effect that anybody saw is no step: failed operations; opens, closes
// and recoveries with an unknown outcome, as whoever called them appends nothing afterwards; appends with an unknown
// outcome of entries that no read shows.
func logObject(name string, records []*record) *object {
	o := &object{name: name, init: log{}, equal: sameLog}
	places := placesRead(records)
	ends := lastOfWriters(records, places)
	for _, r := range records {
		switch {
		case r.Op == "open" && r.isOk():
			o.add(r, openLog(r.Writer, ends))
		case r.Op == "append" && (r.isOk() || r.isUnknown()):
			for i, value := range r.Values {
				number := r.First + int64(i)
				if r.isUnknown() && number > ends[r.Writer] {
					continue
				}
				at := places[value]
				if r.At != nil {
					at = &place{r.At[0], r.At[1], r.At[2] + int64(i)}
				}
				o.add(r, appendToLog(r.Writer, number, value, at))
			}
		case r.Op == "read" && r.isOk():
			if r.Start == nil {
				o.add(r, beginRead(r.Runs))
			}
			o.add(r, readLog(r.Start, r.Runs))
		case r.Op == "truncate" && (r.isOk() || r.isUnknown()):
			o.add(r, truncateLog(*r.At))
		case (r.Op == "close" || r.Op == "recover") && r.isOk():
			o.add(r, closeLog(r.Writer, ends))
		}
	}
	return o
}

// placesRead returns where reads found each value.
func placesRead(records []*record) map[string]*place {
	places := map[string]*place{}
	for _, r := range records {
		if r.Op != "read" || !r.isOk() {
			continue
		}
		for _, run := range r.Runs {
			for i, value := range run.Values {
				if places[value] == nil {
					places[value] = &place{run.From[0], run.From[1], run.From[2] + int64(i)}
				}
			}
		}
	}
	return places
}

// lastOfWriters returns the number of the last entry of each writer that was acknowledged or read: those before it are
// in the log, too.
func lastOfWriters(records []*record, places map[string]*place) map[string]int64 {
	ends := map[string]int64{}
	for _, r := range records {
		if r.Op != "append" {
			continue
		}
		if _, isKnown := ends[r.Writer]; !isKnown {
			ends[r.Writer] = -1
		}
		for i, value := range r.Values {
			if r.isOk() || places[value] != nil {
				ends[r.Writer] = max(ends[r.Writer], r.First+int64(i))
			}
		}
	}
	return ends
}

// abandon says what a log lacks when its writer goes. Nothing of that writer can be appended later, so an order without it
// is given up here, and not only where somebody reads: it is this that keeps the search short.
func (s log) abandon(ends map[string]int64) string {
	if end, isKnown := ends[s.writer]; isKnown && s.written <= end {
		return fmt.Sprintf("entries %d to %d of writer %q were acknowledged or read: the log has no more than %d of them", s.written, end, s.writer, s.written)
	}
	return ""
}

func openLog(writer string, ends map[string]int64) func(any) (any, string) {
	return func(state any) (any, string) {
		s := state.(log)
		if why := s.abandon(ends); why != "" {
			return nil, fmt.Sprintf("writer %q cannot open the log: %s", writer, why)
		}
		return log{s.last, s.start, count(s.last), writer, 0}, ""
	}
}

func closeLog(writer string, ends map[string]int64) func(any) (any, string) {
	return func(state any) (any, string) {
		s := state.(log)
		if writer == "" || writer == s.writer {
			if why := s.abandon(ends); why != "" {
				return nil, "the log cannot be closed: " + why
			}
			s.final, s.writer, s.written = count(s.last), "", 0
		}
		return s, ""
	}
}

func appendToLog(writer string, number int64, value string, at *place) func(any) (any, string) {
	return func(state any) (any, string) {
		s := state.(log)
		if writer != s.writer {
			return nil, fmt.Sprintf("entry %d of writer %q cannot be appended: the log's writer is %q", number, writer, s.writer)
		}
		if number != s.written {
			return nil, fmt.Sprintf("entry %d of writer %q cannot be appended: the next one is %d", number, writer, s.written)
		}
		final := s.final
		if at != nil && s.last != nil && s.last.at != nil {
			before := *s.last.at
			if at[0] == before[0] && (at[1] != before[1] || at[2] != before[2]+1) {
				return nil, fmt.Sprintf("an entry at %s cannot follow the one at %s", at, before)
			}
			if at[0] < before[0] || (at[0] > before[0] && at[2] != 0) {
				return nil, fmt.Sprintf("an entry at %s cannot follow the one at %s", at, before)
			}
			if at[0] > before[0] {
				final = count(s.last)
			}
		}
		return log{appended(s.last, value, at), s.start, final, writer, number + 1}, ""
	}
}

// indexOf is how many entries lie before a place.
func indexOf(last *entry, at place) int64 {
	for ; last != nil; last = last.before {
		if last.at != nil && last.at.before(at) {
			return last.index + 1
		}
	}
	return 0
}

func beginRead(runs []run) func(any) (any, string) {
	return func(state any) (any, string) {
		s := state.(log)
		if len(runs) == 0 {
			if s.final > s.start {
				return nil, fmt.Sprintf("nothing was read: entries %d to %d are there for certain", s.start, s.final-1)
			}
			return s, ""
		}
		if first := indexOf(s.last, runs[0].From); first != s.start {
			return nil, fmt.Sprintf("a read from the beginning began with the log's entry %d (%s): the log begins with %d", first, runs[0].From, s.start)
		}
		return s, ""
	}
}

func readLog(start *place, runs []run) func(any) (any, string) {
	return func(state any) (any, string) {
		s := state.(log)
		next := s.start
		if start != nil {
			next = indexOf(s.last, *start)
		} else if len(runs) > 0 {
			next = indexOf(s.last, runs[0].From)
		}
		var read []string
		var places []place
		for _, run := range runs {
			for i, value := range run.Values {
				read = append(read, value)
				places = append(places, place{run.From[0], run.From[1], run.From[2] + int64(i)})
			}
		}
		stop := next + int64(len(read))
		if stop > count(s.last) {
			return nil, fmt.Sprintf("%d entries were read from entry %d on: the log holds %s", len(read), next, held(s.last))
		}
		for at := upTo(s.last, stop-1); at != nil && at.index >= next; at = at.before {
			i := at.index - next
			if read[i] != at.value {
				return nil, fmt.Sprintf("the log's entry %d was read as %s%s: it was appended as %s", at.index, read[i], otherwise(s.last, read[i]), at.value)
			}
			if at.at != nil && places[i] != *at.at {
				return nil, fmt.Sprintf("the log's entry %d was read at %s: it was appended at %s", at.index, places[i], *at.at)
			}
		}
		if stop < s.final && next < s.final {
			return nil, fmt.Sprintf("entries %d to %d of the log are lost: a read from entry %d on ended with %d", stop, s.final-1, next, stop-1)
		}
		return s, ""
	}
}

func truncateLog(at place) func(any) (any, string) {
	return func(state any) (any, string) {
		s := state.(log)
		s.start = max(s.start, indexOf(s.last, at))
		return s, ""
	}
}
