// Judge says whether recorded histories of ledgers and logs are linearizable (docs/histories.md).
//
//	judge [-limit SECONDS] [-total SECONDS] [-memory MIB] [-html FOLDER] HISTORY
//
// It prints one JSON object. The exit status is 0 when every object's history is linearizable, 1 when one is not or its
// verdict is unknown, as time or memory were over, 2 when the file is no history.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

type report struct {
	Ledgers    int            `json:"ledgers"`
	Logs       int            `json:"logs"`
	Readers    int            `json:"readers"`
	Operations map[string]int `json:"operations"`
	Steps      int            `json:"steps"`
	Findings   []*finding     `json:"findings"`
	Seconds    float64        `json:"seconds"`
}

func main() {
	limit := flag.Float64("limit", 60, "seconds for one ledger or log")
	total := flag.Float64("total", 600, "seconds for all of them")
	memory := flag.Uint64("memory", 2048, "MiB of heap")
	html := flag.String("html", "", "folder for a picture of each history that is not linearizable")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	records, err := load(flag.Arg(0))
	if err != nil {
		fmt.Fprintf(os.Stderr, "judge: %s: %v\n", flag.Arg(0), err)
		os.Exit(2)
	}
	bounds := &budget{seconds(*limit), time.Now().Add(seconds(*total)), *memory << 20}
	result := judge(records, bounds, *html)
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	if err := out.Encode(result); err != nil {
		fmt.Fprintf(os.Stderr, "judge: %v\n", err)
		os.Exit(2)
	}
	if len(result.Findings) > 0 {
		os.Exit(1)
	}
}

func seconds(count float64) time.Duration { return time.Duration(count * float64(time.Second)) }

func load(path string) ([]*record, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readHistory(file)
}

// judge takes the history apart, as operations on different objects have nothing to do with each other.
func judge(records []*record, bounds *budget, html string) *report {
	began := time.Now()
	result := &report{Operations: map[string]int{}, Findings: []*finding{}}
	byObject, byReader := map[string][]*record{}, map[string][]*record{}
	for _, r := range records {
		result.Operations[r.Op+" "+r.Result]++
		byObject[r.object()] = append(byObject[r.object()], r)
		if r.Op == "lac" || r.Op == "end" {
			name := r.object() + ", client " + r.Client
			byReader[name] = append(byReader[name], r)
		}
	}
	var objects []*object
	for _, name := range sorted(byObject) {
		if strings.HasPrefix(name, "log ") {
			result.Logs++
			objects = append(objects, logObject(name, byObject[name]))
		} else {
			result.Ledgers++
			objects = append(objects, ledgerObject(name, byObject[name]))
		}
	}
	for _, name := range sorted(byReader) {
		result.Readers++
		objects = append(objects, readerObject(name, byReader[name]))
	}
	for _, o := range objects {
		result.Steps += len(o.steps)
		if found := bounds.judge(o); found != nil {
			result.Findings = append(result.Findings, found)
			if found.Verdict == notLinearizable {
				draw(o, bounds.limit, html)
			}
		}
	}
	result.Seconds = time.Since(began).Seconds()
	return result
}

func draw(o *object, limit time.Duration, folder string) {
	if folder == "" {
		return
	}
	_, info := porcupine.CheckOperationsVerbose(o.model(), o.operations(), limit)
	path := filepath.Join(folder, strings.NewReplacer(" ", "-", ",", "", "/", "-").Replace(o.name)+".html")
	if err := porcupine.VisualizePath(o.model(), info, path); err != nil {
		fmt.Fprintf(os.Stderr, "judge: %v\n", err)
	}
}

func sorted(groups map[string][]*record) []string {
	names := make([]string, 0, len(groups))
	for name := range groups {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// describe puts a record into words, with its times in ms.
func describe(r *record) string {
	what := r.Op
	switch {
	case r.Op == "append" && r.Log == "":
		what = fmt.Sprintf("append %d to %d", r.First, r.First+int64(len(r.Values))-1)
	case r.Op == "append":
		what = fmt.Sprintf("append %d to %d of writer %s", r.First, r.First+int64(len(r.Values))-1, r.Writer)
	case r.Op == "read" && r.Result == "denied":
		what = fmt.Sprintf("read %d", r.Entry)
	case r.Op == "read" && r.Log == "":
		what = fmt.Sprintf("read %d to %d", r.First, r.First+int64(len(r.Values))-1)
	case r.Op == "read":
		what = fmt.Sprintf("read of %d entries", len(r.values()))
	case r.Op == "sync":
		what = fmt.Sprintf("sync up to %d", r.LastEntry)
	case r.Op == "lac":
		what = fmt.Sprintf("lac %d", r.Lac)
	case r.Op == "open":
		what = "open by writer " + r.Writer
	case r.Op == "truncate" && r.At != nil:
		what = fmt.Sprintf("truncate before %s", *r.At)
	case r.Log == "" && r.isOk():
		what = fmt.Sprintf("%s: last entry %d", r.Op, r.LastEntry)
	}
	return fmt.Sprintf("%s: %s, %s [%.3f to %.3f ms]", r.Client, what, r.Result, milliseconds(r.Call), milliseconds(r.end()))
}
