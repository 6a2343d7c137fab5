package capture

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/profile"
	"colophon/shared/retry"
	"colophon/shared/storage"
)

// undeclaredAfter is how long frames wait for their declaration.
const undeclaredAfter = 24 * time.Hour

// declared knows the accepted declarations, and lets frames wait for theirs.
type declared struct {
	set *completed.Set
	now *news
}

// news wakes everybody who waits, each time something was accepted.
type news struct {
	mu sync.Mutex
	ch chan struct{}
}

func (n *news) next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch == nil {
		n.ch = make(chan struct{})
	}
	return n.ch
}

func (n *news) spread() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch != nil {
		close(n.ch)
		n.ch = nil
	}
}

// declaredToken is where the newest accepted declaration of a batch is kept.
func declaredToken(b event.Name) string {
	return event.Key{Operation: "declaration", Slot: event.Slot{Batch: b}}.String()
}

func (d declared) get(b event.Name) (event.BatchFact, bool, error) {
	var f event.BatchFact
	data, ok, err := d.set.Result(declaredToken(b))
	if err != nil || !ok {
		return f, false, err
	}
	return f, true, json.Unmarshal(data, &f)
}

func (d declared) wait(ctx context.Context, b event.Name) (event.BatchFact, error) {
	var late <-chan time.Time
	for {
		next := d.now.next()
		f, ok, err := d.get(b)
		if err != nil || ok {
			return f, err
		}
		if late == nil {
			t := time.NewTimer(undeclaredAfter)
			defer t.Stop()
			late = t.C
		}
		select {
		case <-next:
		case <-late:
			return f, fault.New(fault.BatchUndeclared, nil, "nobody declared the batch within %v", undeclaredAfter)
		case <-ctx.Done():
			return f, ctx.Err()
		}
	}
}

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
	view     *view
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

// Act decides: a first declaration opens the batch and pins policy and
// profiles; a later one may correct the count and the order and add profiles;
// one that says what stands already changes nothing.
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
		f.State = "opened"
		return f, nil
	}
	if len(in.Policy) == 0 {
		f.Policy, f.PolicyDigest = now.Policy, now.PolicyDigest
	}
	if len(in.Profiles) == 0 {
		f.Profiles = now.Profiles
	}
	if err := follows(in, now, f); err != nil {
		return event.BatchFact{}, err
	}
	if f.Count == now.Count && f.Order == now.Order && slices.Equal(f.Profiles, now.Profiles) && slices.Equal(f.Devices, now.Devices) {
		return now, nil
	}
	f.State, f.Number = "changed", now.Number+1
	return f, nil
}

// read checks a declaration by itself.
func (d *declarations) read(in *declarationIn) (event.BatchFact, error) {
	policy := d.policy
	if len(in.Policy) > 0 {
		var err error
		if policy, err = retry.Parse(in.Policy); err != nil {
			return event.BatchFact{}, fault.New(fault.BatchInvalid, err, "the retry policy is not valid: %s", fault.Clean(err.Error()))
		}
	}
	canonical, digest := policy.Canonical()
	profiles := slices.Clone(in.Profiles)
	if len(profiles) == 0 {
		profiles = slices.Clone(d.defaults)
	}
	slices.Sort(profiles)
	profiles = slices.Compact(profiles)
	for _, p := range profiles {
		if _, ok := profile.Named(p); !ok {
			return event.BatchFact{}, fault.New(fault.BatchInvalid, nil, "there is no profile %q", fault.Clean(p))
		}
	}
	order := in.Order
	if order == "" {
		order = event.OrderSequence
	}
	return event.BatchFact{
		Schema: event.SchemaBatch, Batch: in.Batch, Count: in.Count, Order: order, Policy: canonical, PolicyDigest: event.Digest(digest),
		Profiles: profiles, Devices: in.Devices, Operator: in.Operator, Gateway: in.Gateway, Agent: d.agent, At: time.Now().UTC(), Body: in.body,
	}, nil
}

// follows checks a later declaration against the one that stands.
func follows(in *declarationIn, now, f event.BatchFact) error {
	if in.Follows != nil && *in.Follows != now.Number && !(f.Count == now.Count && f.Order == now.Order) {
		return fault.New(fault.BatchInvalid, nil, "the declaration corrects number %d, but number %d stands", *in.Follows, now.Number)
	}
	if f.PolicyDigest != now.PolicyDigest {
		return fault.New(fault.PolicyConflict, nil, "the policy is pinned as %s and cannot become %s", now.PolicyDigest, f.PolicyDigest)
	}
	for _, p := range now.Profiles {
		if !slices.Contains(f.Profiles, p) {
			return fault.New(fault.BatchInvalid, nil, "profile %q may not be taken away", p)
		}
	}
	return nil
}

func (d *declarations) Fact(_ *declarationIn, out event.BatchFact, _ event.Work) event.Fact {
	return out
}

func (d *declarations) Tokens(in *declarationIn, out event.BatchFact) []string {
	return []string{d.Key(in).String(), declaredToken(out.Batch)}
}

func (d *declarations) Learn(f event.Fact) ([]string, event.BatchFact, bool) {
	b, ok := f.(event.BatchFact)
	if !ok || b.State == "converged" {
		return nil, b, false
	}
	d.now.spread()
	key := event.Key{Operation: event.BatchInvalid, Digest: b.Body, Slot: event.Slot{Batch: b.Batch}}
	return []string{key.String(), declaredToken(b.Batch)}, b, true
}

// Finish wakes the frames that wait for this declaration.
func (d *declarations) Finish(context.Context, *declarationIn, event.BatchFact) error {
	d.now.spread()
	return nil
}

func (d *declarations) Probe(_ context.Context, deep bool) error { return probe(d.store, deep) }
