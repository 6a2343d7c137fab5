package capture

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sort"
	"strconv"

	"github.com/nats-io/nats.go"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/storage"
)

// deviceFaults are the codes of what gateways report.
var deviceFaults = map[string]fault.Code{
	event.FaultBusy: fault.DeviceBusy, event.FaultJam: fault.DeviceJam, event.FaultCoverOpen: fault.DeviceCoverOpen, event.FaultIO: fault.IOError,
}

// deviceMessages say it to people where the gateway did not.
var deviceMessages = map[string]string{
	event.FaultBusy: "the device is busy", event.FaultJam: "paper jam", event.FaultCoverOpen: "the device's cover is open", event.FaultIO: "input/output error of the device",
}

// deviceName names a device among the things that work leans on.
func deviceName(device string) string { return "device:" + event.Encode(device) }

// faultIn is a capture.fault message.
type faultIn struct {
	event.CaptureFault
	Gateway string
	batch   event.BatchFact // filled by Work
}

// told is what became of a report: the number of the attempt it is of its
// slot, or of the op fact where it names no frame.
type told struct {
	Number   uint64 `json:"number"`
	Instance string `json:"instance,omitempty"`
}

// reports is the worker of capture.fault: it makes each report a fact, and
// counts it on the device's breaker.
//
// A frame's device tries before the line ever hears of the frame; those tries
// are attempts of its capture in pass 0, numbered as they are reported.
type reports struct {
	declared
	set      *completed.Set
	store    *storage.Store
	agent    event.Agent
	instance string
	heard    func(ctx context.Context, device string, err error)
}

func (r *reports) Decode(subject string, _ nats.Header, data []byte) (*faultIn, error) {
	in := new(faultIn)
	if err := event.Unmarshal(data, &in.CaptureFault); err != nil {
		return nil, err
	}
	if in.Schema != event.SchemaCaptureFault {
		return nil, fmt.Errorf("%w: %q", event.ErrUnknownSchema, in.Schema)
	}
	if err := in.Validate(); err != nil {
		return nil, err
	}
	kind, gateway, last, err := event.ParseCaptureSubject(subject)
	if err != nil {
		return nil, err
	}
	if want := cmp.Or(in.Batch, event.Name(in.Device)); kind != "fault" || last != want {
		return nil, fmt.Errorf("/batch: %q was sent under the subject of %q", want, last)
	}
	in.Gateway = gateway
	return in, nil
}

func (in *faultIn) slot() event.Slot {
	if in.Frame == "" {
		return event.Slot{}
	}
	return event.Slot{Batch: in.Batch, Frame: in.Frame}
}

func (in *faultIn) err() *fault.Error {
	return fault.New(deviceFaults[in.Kind], nil, "%s", fault.Clean(cmp.Or(in.Message, deviceMessages[in.Kind])))
}

func (r *reports) Work(in *faultIn) event.Work {
	w := event.Work{Slot: in.slot(), Sequence: in.Sequence, Pass: 1}
	if b, ok, err := r.get(in.Batch); err == nil && ok && w.Frame != "" {
		in.batch = b
		w.Policy, w.Profiles = b.Policy, b.Profiles
	}
	return w
}

func (r *reports) Key(in *faultIn) event.Key { return reportKey(in.MsgID(), in.slot()) }

// reportKey names one report, by its message id.
func reportKey(id string, s event.Slot) event.Key {
	sum := sha256.Sum256([]byte(id))
	return event.Key{Operation: "report", Digest: event.Digest(hex.EncodeToString(sum[:])), Slot: s}
}

// Turn lets one report of a slot at a time take its number.
func (r *reports) Turn(in *faultIn) string { return in.slot().String() }

// numberToken is where the n-th report of a slot is kept: they are numbered
// from 1 without gaps.
func numberToken(s event.Slot, n uint64) string {
	return event.Key{Operation: "report-number", Digest: event.Digest(strconv.FormatUint(n, 10)), Slot: s}.String()
}

func (r *reports) Act(ctx context.Context, in *faultIn, _ event.Work) (told, error) {
	out, err := r.number(in.slot())
	if err != nil {
		return told{}, err
	}
	// Once per report: a redelivery finds the key, unless the process died
	// before it was recorded, and then the breaker is new as well.
	r.heard(ctx, in.Device, in.err())
	return out, nil
}

func (r *reports) number(s event.Slot) (told, error) {
	if s.Frame == "" {
		store, err := r.set.Incarnation()
		if err != nil {
			return told{}, err
		}
		n, err := r.set.Next("op")
		return told{n, r.instance + "." + store}, err
	}
	var err error
	free := func(n int) bool {
		if err != nil {
			return true
		}
		var taken bool
		_, taken, err = r.set.Result(numberToken(s, uint64(n))) //nolint:gosec // from 1
		return !taken
	}
	above := 1
	for !free(above) { // a scanner that is busy for a night reports thousands
		above *= 2
	}
	n := above/2 + 1 + sort.Search(above-above/2-1, func(i int) bool { return free(above/2 + 1 + i) })
	return told{Number: uint64(n)}, err //nolint:gosec // from 1
}

func (r *reports) Fact(in *faultIn, out told, w event.Work) event.Fact {
	f := in.err()
	at := in.At.UTC()
	if in.Frame == "" {
		detail := map[string]string{"device": in.Device, "kind": in.Kind, "gateway": in.Gateway, "report": in.MsgID()}
		if in.Batch != "" {
			detail["batch"] = in.Batch.Encode()
		}
		if in.Sequence > 0 {
			detail["sequence"] = strconv.Itoa(in.Sequence)
		}
		return event.OpFact{
			Schema: event.SchemaOp, Kind: event.OpDeviceFault, Service: r.agent.Name, Instance: out.Instance, Counter: out.Number,
			Code: string(f.Code), Reason: f.Message, Detail: detail, Agent: r.agent, At: at,
		}
	}
	w.Schema, w.Slot, w.Sequence, w.Digest, w.Pass, w.Attempt, w.Hit, w.Limit = event.SchemaAttemptFailed, in.slot(), in.Sequence, "", 0, int(out.Number), false, 0 //nolint:gosec // small
	w.Started, w.Ended = at, at
	w.Agent = event.Agent{Name: in.Gateway, Version: "reported"}
	return event.AttemptFailed{
		Work: w, Service: r.agent.Name, Operation: event.Capture, Class: string(f.Class()), Code: string(f.Code), Message: f.Message,
		Decision: event.DecisionRetry, Device: in.Device, Report: in.MsgID(),
	}
}

func (r *reports) Tokens(in *faultIn, out told) []string {
	return reportTokens(in.MsgID(), in.slot(), out)
}

func reportTokens(id string, s event.Slot, out told) []string {
	t := []string{reportKey(id, s).String()}
	if s.Frame != "" {
		t = append(t, numberToken(s, out.Number))
	}
	return t
}

func (r *reports) Learn(f event.Fact) ([]string, told, bool) {
	switch f := f.(type) {
	case event.AttemptFailed:
		if f.Report == "" {
			return nil, told{}, false
		}
		out := told{Number: uint64(max(f.Attempt, 0))} //nolint:gosec // not negative
		return reportTokens(f.Report, f.Slot, out), out, true
	case event.OpFact:
		if f.Kind != event.OpDeviceFault || f.Detail["report"] == "" {
			return nil, told{}, false
		}
		out := told{f.Counter, f.Instance}
		return reportTokens(f.Detail["report"], event.Slot{}, out), out, true
	}
	return nil, told{}, false
}

func (r *reports) Finish(context.Context, *faultIn, told) error { return nil }

func (r *reports) Probe(_ context.Context, deep bool) error { return probe(r.store, deep) }
