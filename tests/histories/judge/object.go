package main

import (
	"fmt"
	"math"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// step is one thing that a history says happened to an object, somewhere between the call and the end of its record.
type step struct {
	record *record
	// apply returns the state after the step, or says why the step is impossible in this state.
	apply func(state any) (any, string)
}

// object is a ledger, a log, or what one reader saw of it: the unit that is judged by itself.
type object struct {
	name  string
	init  any
	equal func(one, other any) bool
	steps []step
}

func (o *object) add(r *record, apply func(state any) (any, string)) {
	o.steps = append(o.steps, step{r, apply})
}

func (o *object) operations() []porcupine.Operation {
	clients := map[string]int{}
	var operations []porcupine.Operation
	for i := range o.steps {
		one := &o.steps[i]
		id, isKnown := clients[one.record.Client]
		if !isKnown {
			id = len(clients)
			clients[one.record.Client] = id
		}
		operations = append(operations, porcupine.Operation{ClientId: id, Input: one, Call: one.record.Call, Return: one.record.end()})
	}
	return operations
}

func (o *object) model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return o.init },
		Step: func(state, input, _ any) (bool, any) {
			next, why := input.(*step).apply(state)
			return why == "", next
		},
		Equal: o.equal,
		DescribeOperation: func(input, _ any) string {
			return describe(input.(*step).record)
		},
	}
}

// finding is why an object's history is not linearizable.
type finding struct {
	Object    string   `json:"object"`
	Verdict   string   `json:"verdict"`
	Operation string   `json:"operation,omitempty"`
	Why       string   `json:"why,omitempty"`
	Before    []string `json:"before,omitempty"`
}

// trailLength is how many operations before the impossible one a finding shows.
const trailLength = 6

// Verdicts of a finding.
const (
	notLinearizable = "not linearizable"
	unknown         = "unknown"
)

// hintTime is how long the judge looks for where the orders of an unknown history stop.
const hintTime = 2 * time.Second

// judge returns nil when the object's history is linearizable.
func (o *object) judge(limit time.Duration) *finding {
	operations, model := o.operations(), o.model()
	switch porcupine.CheckOperationsTimeout(model, operations, limit) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		_, info := porcupine.CheckOperationsVerbose(model, operations, min(limit, hintTime))
		found := o.explain(info)
		found.Verdict = unknown
		found.Why = fmt.Sprintf("no order was found or excluded in %s; the best one in %s stops here: %s", limit, min(limit, hintTime), found.Why)
		return found
	}
	_, info := porcupine.CheckOperationsVerbose(model, operations, limit)
	return o.explain(info)
}

func (o *object) undecided(why string) *finding {
	return &finding{Object: o.name, Verdict: unknown, Why: why}
}

// explain names the operation that no order of the operations has a place for. Of the orders that were found it takes the
// one that gets furthest in time; the operation is the one that was over first of those that are left.
func (o *object) explain(info porcupine.LinearizationInfo) *finding {
	found := &finding{Object: o.name, Verdict: notLinearizable}
	var order, left []*step
	for _, partial := range info.PartialLinearizationsOperations()[0] {
		isDone, done := map[*step]bool{}, make([]*step, len(partial))
		for i, operation := range partial {
			done[i] = operation.Input.(*step)
			isDone[done[i]] = true
		}
		if rest := o.without(isDone); left == nil || rest[0].record.end() > left[0].record.end() {
			order, left = done, rest
		}
	}
	if left == nil { // not even a first operation has a place
		left = o.without(nil)
	}
	state := o.init
	for i, one := range order {
		state, _ = one.apply(state)
		if i == len(order)-1 || order[i+1].record != one.record {
			found.Before = append(found.Before, describe(one.record))
		}
	}
	found.Before = found.Before[max(0, len(found.Before)-trailLength):]
	for _, one := range left {
		if _, why := one.apply(state); why != "" && one.record.Call <= left[0].record.end() {
			found.Operation, found.Why = describe(one.record), why
			break
		}
	}
	return found
}

// without returns the steps that are not done, by when they were over.
func (o *object) without(isDone map[*step]bool) []*step {
	var left []*step
	for i := range o.steps {
		if one := &o.steps[i]; !isDone[one] {
			left = append(left, one)
		}
	}
	sort.SliceStable(left, func(i, j int) bool { return left[i].record.end() < left[j].record.end() })
	return left
}

func milliseconds(ns int64) float64 {
	if ns == math.MaxInt64 {
		return math.Inf(1)
	}
	return math.Round(float64(ns)/1e3) / 1e3
}
