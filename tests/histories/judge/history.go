package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// formatVersion is the one version of the format that this judge reads.
const formatVersion = 1

// lineBytesMax bounds one line: a read of a whole ledger is one line.
const lineBytesMax = 1 << 28

// place is where an entry lies in a log: the ledger's ordinal, the ledger, the entry. The text form is a JSON array.
type place [3]int64

func (p place) before(other place) bool {
	return p[0] < other[0] || (p[0] == other[0] && p[2] < other[2])
}

func (p place) String() string {
	return fmt.Sprintf("ordinal %d, ledger %d, entry %d", p[0], p[1], p[2])
}

// run is what a read of a log found in one ledger: consecutive entries from a place on.
type run struct {
	From   place    `json:"from"`
	Values []string `json:"values"`
}

// record is one line of a history (docs/histories.md).
type record struct {
	Op     string `json:"op"`
	Client string `json:"client"`
	Ledger *int64 `json:"ledger"`
	Log    string `json:"log"`
	Call   int64  `json:"call"`
	Return *int64 `json:"return"`
	Result string `json:"result"`
	Error  string `json:"error"`

	First     int64    `json:"first"`
	Values    []string `json:"values"`
	Entry     int64    `json:"entry"`
	Lac       int64    `json:"lac"`
	Relaxed   bool     `json:"relaxed"`
	LastEntry int64    `json:"last_entry"`
	Length    *int64   `json:"length"`

	Writer string `json:"writer"`
	At     *place `json:"at"`
	Start  *place `json:"start"`
	Runs   []run  `json:"runs"`
}

func (r *record) isOk() bool      { return r.Result == "ok" }
func (r *record) isUnknown() bool { return r.Result == "unknown" }

// mayBeLost: it takes effect at any time after its call, or never. So does an append to a ledger of relaxed durability
// that was acknowledged: its entries are promised once a sync or a LAC covers them.
func (r *record) mayBeLost() bool { return r.isUnknown() || r.Relaxed }

// end is when the operation had taken effect; one that may be lost need not have at any time.
func (r *record) end() int64 {
	if r.mayBeLost() || r.Return == nil {
		return math.MaxInt64
	}
	return *r.Return
}

func (r *record) object() string {
	if r.Ledger != nil {
		return fmt.Sprintf("ledger %d", *r.Ledger)
	}
	return "log " + r.Log
}

// results that each operation may have.
var results = map[string][]string{
	"append":   {"ok", "failed", "unknown"},
	"read":     {"ok", "denied", "failed"},
	"lac":      {"ok", "failed"},
	"sync":     {"ok", "failed", "unknown"},
	"close":    {"ok", "failed", "unknown"},
	"recover":  {"ok", "failed", "unknown"},
	"end":      {"ok"},
	"open":     {"ok", "failed", "unknown"},
	"truncate": {"ok", "failed", "unknown"},
}

// required returns the members without which the operation says nothing.
func (r *record) required() []string {
	ofLog := r.Log != ""
	switch {
	case r.Op == "append" && ofLog:
		return []string{"writer", "first", "values"}
	case r.Op == "append":
		return []string{"first", "values"}
	case r.Op == "open":
		return []string{"writer"}
	case r.Op == "close" && ofLog:
		return []string{"writer"}
	case r.Op == "truncate":
		return []string{"at"}
	case r.Op == "read" && r.Result == "denied":
		return []string{"entry"}
	case !r.isOk():
		return nil
	case r.Op == "read" && ofLog:
		return []string{"runs"}
	case r.Op == "read":
		return []string{"first", "values"}
	case r.Op == "lac":
		return []string{"lac"}
	case r.Op == "sync" || (!ofLog && (r.Op == "close" || r.Op == "recover" || r.Op == "end")):
		return []string{"last_entry"}
	}
	return nil
}

// check refuses what is no operation; members are those that the line has.
func (r *record) check(members map[string]json.RawMessage) error {
	if (r.Ledger == nil) == (r.Log == "") {
		return fmt.Errorf("it must name either a ledger or a log")
	}
	allowed, isKnown := results[r.Op]
	if !isKnown {
		return fmt.Errorf("op %q is unknown", r.Op)
	}
	if !contains(allowed, r.Result) {
		return fmt.Errorf("result %q of op %q is not one of %s", r.Result, r.Op, strings.Join(allowed, ", "))
	}
	if r.Client == "" {
		return fmt.Errorf("client is missing")
	}
	if !r.isUnknown() && (r.Return == nil || *r.Return < r.Call) {
		return fmt.Errorf("return is missing or before call")
	}
	if r.Relaxed && (r.Op != "append" || r.Ledger == nil) {
		return fmt.Errorf("relaxed is of appends to ledgers")
	}
	if r.Op == "sync" && r.Ledger == nil {
		return fmt.Errorf("sync is of ledgers")
	}
	for _, name := range r.required() {
		if text, isGiven := members[name]; !isGiven || string(text) == "null" {
			return fmt.Errorf("%s is missing", name)
		}
	}
	for _, value := range r.values() {
		if _, err := size(value); err != nil {
			return err
		}
	}
	return nil
}

// values of the record, a log's runs included.
func (r *record) values() []string {
	all := r.Values
	for _, run := range r.Runs {
		all = append(all[:len(all):len(all)], run.Values...)
	}
	return all
}

// size is the number of bytes of an entry, which a value names before its digest.
func size(value string) (int64, error) {
	text, _, found := strings.Cut(value, ":")
	bytes, err := strconv.ParseInt(text, 10, 64)
	if !found || err != nil || bytes < 0 {
		return 0, fmt.Errorf("value %q is not BYTES:DIGEST", value)
	}
	return bytes, nil
}

// readHistory returns the operations of a history in the order of the file.
func readHistory(from io.Reader) ([]*record, error) {
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 1<<16), lineBytesMax)
	var header struct {
		History int `json:"history"`
	}
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &header) != nil || header.History != formatVersion {
		return nil, fmt.Errorf("line 1 must be the header of a history of version %d, as {\"history\": %d}", formatVersion, formatVersion)
	}
	var all []*record
	for number := 2; lines.Scan(); number++ {
		one, members := &record{}, map[string]json.RawMessage{}
		if err := json.Unmarshal(lines.Bytes(), one); err != nil {
			return nil, fmt.Errorf("line %d: %v", number, err)
		}
		if err := json.Unmarshal(lines.Bytes(), &members); err != nil {
			return nil, fmt.Errorf("line %d: %v", number, err)
		}
		if err := one.check(members); err != nil {
			return nil, fmt.Errorf("line %d: %v", number, err)
		}
		all = append(all, one)
	}
	return all, lines.Err()
}

func contains(list []string, wanted string) bool {
	for _, one := range list {
		if one == wanted {
			return true
		}
	}
	return false
}
