package capture

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/profile"
	"colophon/shared/retry"
	"colophon/shared/storage"
)

// declarationIn is a capture.batch message.
type declarationIn struct {
	event.BatchDeclaration
	Gateway string
	body    event.Digest
}

// declarations is the worker of capture.batch: it accepts what a batch is to
// be. One at a time.
type declarations struct {
	declared
	store    *storage.Store
	agent    event.Agent
	policy   retry.Policy // the installation's default
	defaults []string     // profiles of a batch that names none
}

func (d *declarations) Decode(subject string, _ nats.Header, data []byte) (*declarationIn, error) {
	in := new(declarationIn)
	if err := event.Unmarshal(data, &in.BatchDeclaration); err != nil {
		return nil, err
	}
	if in.Schema != event.SchemaCaptureBatch {
		return nil, fmt.Errorf("%w: %q", event.ErrUnknownSchema, in.Schema)
	}
	if err := in.Validate(); err != nil {
		return nil, err
	}
	_, gateway, batch, err := event.ParseCaptureSubject(subject)
	if err != nil {
		return nil, err
	}
	if batch != in.Batch {
		return nil, fmt.Errorf("/batch: %q was sent under the subject of %q", in.Batch, batch)
	}
	sum := sha256.Sum256(data)
	in.Gateway, in.body = gateway, event.Digest(hex.EncodeToString(sum[:]))
	return in, nil
}

func (d *declarations) Work(in *declarationIn) event.Work {
	return event.Work{Slot: event.Slot{Batch: in.Batch}, Digest: in.body, Pass: 1}
}

func (d *declarations) Key(in *declarationIn) event.Key {
	return event.Key{Operation: event.BatchInvalid, Digest: in.body, Slot: event.Slot{Batch: in.Batch}}
}

// Turn lets one declaration of a batch at a time be decided.
func (d *declarations) Turn(in *declarationIn) string { return in.Batch.Encode() }

// Act decides: a first declaration opens the batch and pins policy and
// profiles; a later one may correct the count and the order and add profiles,
// and keeps what it does not mention; one that says what stands already
// changes nothing, whatever it follows.
func (d *declarations) Act(_ context.Context, in *declarationIn, _ event.Work) (event.BatchFact, error) {
	f, err := d.read(in)
	if err != nil {
		return event.BatchFact{}, err
	}
	now, known, err := d.get(in.Batch)
	if err != nil {
		return event.BatchFact{}, err
	}
	if !known {
		if in.Follows != nil {
			return event.BatchFact{}, fault.New(fault.BatchInvalid, nil, "the declaration corrects number %d, but none stands", *in.Follows)
		}
		f.State = "opened"
		return f, nil
	}
	inherit(in, now, &f)
	if err := pinned(now, f); err != nil {
		return event.BatchFact{}, err
	}
	if f.Count == now.Count && f.Order == now.Order && slices.Equal(f.Profiles, now.Profiles) && slices.Equal(f.Devices, now.Devices) {
		return now, nil
	}
	if in.Follows != nil && *in.Follows != now.Number {
		return event.BatchFact{}, fault.New(fault.BatchInvalid, nil, "the declaration corrects number %d, but number %d stands", *in.Follows, now.Number)
	}
	f.State, f.Number = "changed", now.Number+1
	return f, nil
}

// read checks a declaration by itself, and tells all that is wrong with it.
func (d *declarations) read(in *declarationIn) (event.BatchFact, error) {
	var wrong []string
	code := fault.UnknownProfile
	policy, err := d.policy, error(nil)
	if len(in.Policy) > 0 {
		if policy, err = retry.Parse(in.Policy); err != nil {
			code = fault.BatchInvalid
			wrong = append(wrong, "the retry policy is not valid: "+err.Error())
		}
	}
	profiles := slices.Clone(in.Profiles)
	if len(profiles) == 0 {
		profiles = slices.Clone(d.defaults)
	}
	slices.Sort(profiles)
	profiles = slices.Compact(profiles)
	for _, p := range profiles {
		if _, ok := profile.Named(p); !ok {
			wrong = append(wrong, fmt.Sprintf("there is no profile %q", p))
		}
	}
	if len(wrong) > 0 {
		return event.BatchFact{}, fault.New(code, err, "%s", fault.Clean(strings.Join(wrong, "; ")))
	}
	canonical, digest := policy.Canonical()
	return event.BatchFact{
		Schema: event.SchemaBatch, Batch: in.Batch, Count: in.Count, Order: cmp.Or(in.Order, event.OrderSequence), Policy: canonical, PolicyDigest: event.Digest(digest),
		Profiles: profiles, Devices: in.Devices, Operator: in.Operator, Gateway: in.Gateway, Agent: d.agent, At: time.Now().UTC(), Body: in.body,
	}, nil
}

// inherit takes over from the declaration that stands what a later one leaves out.
func inherit(in *declarationIn, now event.BatchFact, f *event.BatchFact) {
	if len(in.Policy) == 0 {
		f.Policy, f.PolicyDigest = now.Policy, now.PolicyDigest
	}
	if len(in.Profiles) == 0 {
		f.Profiles = now.Profiles
	}
	if len(in.Devices) == 0 {
		f.Devices = now.Devices
	}
	f.Order = cmp.Or(in.Order, now.Order)
}

// pinned holds a later declaration to what was promised for good.
func pinned(now, f event.BatchFact) error {
	if f.PolicyDigest != now.PolicyDigest {
		return fault.New(fault.PolicyConflict, nil, "the policy is pinned as %s and cannot become %s", now.PolicyDigest, f.PolicyDigest)
	}
	var gone []string
	for _, p := range now.Profiles {
		if !slices.Contains(f.Profiles, p) {
			gone = append(gone, strconv.Quote(p))
		}
	}
	if len(gone) > 0 {
		return fault.New(fault.BatchInvalid, nil, "profiles may not be taken away: %s", strings.Join(gone, ", "))
	}
	return nil
}

func (d *declarations) Fact(_ *declarationIn, out event.BatchFact, _ event.Work) event.Fact {
	return out
}

func (d *declarations) Tokens(in *declarationIn, out event.BatchFact) []string {
	return []string{d.Key(in).String(), declaredToken(out.Batch, out.Number)}
}

func (d *declarations) Learn(f event.Fact) ([]string, event.BatchFact, bool) {
	b, ok := f.(event.BatchFact)
	if !ok {
		return nil, b, false
	}
	if b.State == "converged" { // the keeper's: completes nothing here, and a log that lost it has it from here
		return nil, b, true
	}
	d.now.Spread()
	key := event.Key{Operation: event.BatchInvalid, Digest: b.Body, Slot: event.Slot{Batch: b.Batch}}
	return []string{key.String(), declaredToken(b.Batch, b.Number)}, b, true
}

// Finish wakes the frames that wait for this declaration.
func (d *declarations) Finish(context.Context, *declarationIn, event.BatchFact) error {
	d.now.Spread()
	return nil
}

func (d *declarations) Probe(_ context.Context, deep bool) error { return probe(d.store, deep) }
