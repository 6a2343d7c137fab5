package stage_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/testkit"
)

// matrix is what becomes of one message when one outside call of its path fails
// once: before it did anything ("not done"), or behind it ("reported", done but
// reported as failed). Its act succeeds, fails transiently under a policy of
// two attempts, fails for good, or finds its surroundings broken once.
//
// An end is: halted, where the consumer stopped meanwhile and resumed alone;
// the number of acts; the failed attempts in the log; and what the message is
// then. In every row nothing is lost, nothing is told twice, and the numbers of
// attempts have no gap.
const matrix = `
act          call that fails                 not done                                        reported
-----------  ------------------------------  ----------------------------------------------  ----------------------------------------------
succeeds     check                           halted, 1 act = done                            halted, 1 act = done
succeeds     attempt read                    halted, 1 act = done                            halted, 1 act = done
succeeds     attempt begun                   halted, 1 act = done                            halted, 1 act + worker-lost = done
succeeds     act                             2 act + io-error = done                         2 act + io-error = done
succeeds     publish ingest.derivative.jp2   halted, 1 act = done                            halted, 1 act = done
succeeds     record                          halted, 1 act = done                            halted, 1 act = done
succeeds     finish                          halted, 1 act = done                            halted, 1 act = done
succeeds     ack                             1 act = done                                    1 act = done
transient    check                           halted, 2 act + timeout, timeout = dead 2       halted, 2 act + timeout, timeout = dead 2
transient    attempt read                    halted, 2 act + timeout, timeout = dead 2       halted, 2 act + timeout, timeout = dead 2
transient    attempt begun                   halted, 2 act + timeout, timeout = dead 2       halted, 2 act + worker-lost, timeout, timeout = dead 3
transient    act                             2 act + io-error, timeout = dead 2              2 act + io-error, timeout = dead 2
transient    attempt failed                  halted, 2 act + timeout, timeout = dead 2       halted, 2 act + timeout, timeout = dead 2
transient    publish ingest.attempt.failed   halted, 2 act + timeout, timeout = dead 2       halted, 2 act + timeout, timeout = dead 2
transient    publish deadletter.deriver      halted, 2 act + timeout, timeout = dead 2       halted, 2 act + timeout, timeout = dead 2
transient    dead                            halted, 2 act + timeout, timeout = dead 2       halted, 2 act + timeout, timeout = dead 2
transient    ack                             2 act + timeout, timeout = dead 2               2 act + timeout, timeout = dead 2
permanent    check                           halted, 1 act + truncated = dead 1              halted, 1 act + truncated = dead 1
permanent    attempt read                    halted, 1 act + truncated = dead 1              halted, 1 act + truncated = dead 1
permanent    attempt begun                   halted, 1 act + truncated = dead 1              halted, 1 act + worker-lost, truncated = dead 2
permanent    act                             2 act + io-error, truncated = dead 2            2 act + io-error, truncated = dead 2
permanent    attempt failed                  halted, 1 act + truncated = dead 1              halted, 1 act + truncated = dead 1
permanent    publish ingest.attempt.failed   halted, 1 act + truncated = dead 1              halted, 1 act + truncated = dead 1
permanent    publish deadletter.deriver      halted, 1 act + truncated = dead 1              halted, 1 act + truncated = dead 1
permanent    dead                            halted, 1 act + truncated = dead 1              halted, 1 act + truncated = dead 1
permanent    ack                             1 act + truncated = dead 1                      1 act + truncated = dead 1
environment  check                           halted, 2 act = done                            halted, 2 act = done
environment  attempt read                    halted, 2 act = done                            halted, 2 act = done
environment  attempt begun                   halted, 2 act = done                            halted, 2 act + worker-lost = done
environment  act                             2 act + io-error = done                         2 act + io-error = done
environment  attempt released                halted, 2 act = done                            halted, 2 act = done
environment  publish ingest.op.halted        halted, 2 act = done                            halted, 2 act = done
environment  publish ingest.op.released      halted, 2 act = done                            halted, 2 act = done
environment  publish ingest.derivative.jp2   halted, 2 act = done                            halted, 2 act = done
environment  record                          halted, 2 act = done                            halted, 2 act = done
environment  finish                          halted, 2 act = done                            halted, 2 act = done
environment  ack                             halted, 2 act = done                            halted, 2 act = done
`

// acted are the act of the matrix, by name.
var acted = map[string]func(act int) error{
	"succeeds": func(int) error { return nil },
	"transient": func(int) error {
		return fault.New(fault.Timeout, nil, "no answer")
	},
	"permanent": func(int) error { return fault.New("truncated", nil, "the file ends early") },
	"environment": func(act int) error {
		if act == 1 {
			return fault.New(fault.ScratchFull, nil, "no space in the scratch folder")
		}
		return nil
	},
}

func TestTheFaultMatrix(t *testing.T) {
	t.Parallel()
	rows := 0
	for line := range strings.Lines(matrix) {
		cells := strings.Split(strings.TrimRight(line, "\n"), "  ")
		cells = filled(cells)
		if len(cells) != 4 || acted[cells[0]] == nil {
			continue
		}
		for i, behind := range []bool{false, true} {
			rows++
			t.Run(cells[0]+"/"+cells[1]+"/"+[]string{"not done", "reported"}[i], func(t *testing.T) {
				world(t, func(r *rig) {
					got := r.matrixRow(cells[0], cells[1], behind)
					if got != cells[2+i] {
						r.Errorf("ends %q, not %q", got, cells[2+i])
					}
				})
			})
		}
	}
	if rows < 60 {
		t.Errorf("%d rows were read", rows)
	}
}

func filled(cells []string) (out []string) {
	for _, c := range cells {
		if c = strings.TrimSpace(c); c != "" {
			out = append(out, c)
		}
	}
	return out
}

func (r *rig) matrixRow(act, call string, behind bool) string {
	var acts, reached atomic.Int32
	r.config.Concurrency = 2
	r.worker.Script = func(_ context.Context, in event.FrameFixed, _ event.Work) error {
		if in.Frame != "1.tif" {
			return nil
		}
		n := int(acts.Add(1))
		if err := r.faults.Note("act"); err != nil {
			return fault.New(fault.IOError, err, "input/output error")
		}
		return acted[act](n)
	}
	r.worker.Finished = func(event.FrameFixed) error { return r.faults.Note("finish") }
	once := func(name string) error {
		if name != call || reached.Add(1) > 1 {
			return nil
		}
		return testkit.ErrInjected
	}
	if behind {
		r.faults.Set(nil, once)
	} else {
		r.faults.Set(once, nil)
	}
	r.send("1.tif", "one", testkit.Policy(2, 10*time.Second))
	r.start()
	r.once()
	testkit.EventuallyWithin(r, time.Minute, "it runs again", func() bool { return r.stage.Halted() == nil })
	r.send("2.tif", "two", testkit.Policy(2, 10*time.Second)) // the next message has no trouble
	r.once("2.tif")

	if reached.Load() == 0 {
		return "never called"
	}
	var end []string
	if r.log.Count("consumer_halted") > 0 {
		end = append(end, "halted,")
	}
	end = append(end, fmt.Sprintf("%d act", acts.Load()))
	var codes []string
	for _, f := range r.failed() {
		codes = append(codes, f.Code)
	}
	if len(codes) > 0 {
		end = append(end, "+ "+strings.Join(codes, ", "))
	}
	made, letters := len(r.made())-1, r.letters()
	switch {
	case made == 1 && len(letters) == 0:
		end = append(end, "= done")
	case made == 0 && len(letters) == 1:
		end = append(end, "= dead "+letters[0].Header.Get(event.HeaderAttempts))
	default:
		end = append(end, fmt.Sprintf("= %d facts, %d letters", made, len(letters)))
	}
	return strings.Join(end, " ")
}
