// Package topology declares every stream, consumer, limit and subject once,
// and follows streams by position. Only `colophon provision` and the
// standalone create or change streams; a service checks and binds.
package topology

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
)

// Limits of the broker side.
const (
	DedupWindow   = time.Hour
	AckWait       = 5 * time.Second
	MaxAckPending = 20_000
	MaxMsgSize    = 256 << 10 // bytes, at the entrance
	// The broker takes 1 MiB. A dead letter is a message of the log with up to
	// 100 KiB of headers, so the log takes less; and a fact less than that, since
	// a failed attempt repeats the work it speaks of, and has headers too.
	MaxLogSize  = 576 << 10 // bytes of a message of the log, with its headers
	MaxFactSize = 512 << 10 // bytes of a fact
)

// Sizes are byte limits; a full stream refuses, it never drops.
type Sizes struct {
	Capture, Ingest, DeadLetter, Dispatch int64 // bytes; -1 is no limit
	Replicas                              int
}

// DefaultSizes suit one machine.
func DefaultSizes() Sizes {
	return Sizes{Capture: 4 << 30, Ingest: -1, DeadLetter: 4 << 30, Dispatch: 256 << 20, Replicas: 1}
}

// Streams is the one table of streams.
func Streams(s Sizes) []jetstream.StreamConfig {
	base := jetstream.StreamConfig{
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew, Storage: jetstream.FileStorage,
		MaxMsgs: -1, MaxConsumers: -1, MaxMsgsPerSubject: -1, Duplicates: DedupWindow,
		Replicas: max(s.Replicas, 1), AllowDirect: true,
	}
	mk := func(name, subject, about string, bytes int64, msg int32) jetstream.StreamConfig {
		c := base
		c.Name, c.Subjects, c.Description, c.MaxBytes, c.MaxMsgSize = name, []string{subject}, about, bytes, msg
		return c
	}
	capture := mk(event.StreamCapture, "capture.>", "the only place gateways may publish", s.Capture, MaxMsgSize)
	ingest := mk(event.StreamIngest, "ingest.>", "the log: every fact, for good", s.Ingest, MaxLogSize)
	ingest.DenyDelete, ingest.DenyPurge, ingest.AllowAtomicPublish = true, true, true
	dead := mk(event.StreamDeadLetter, event.SubjectDeadLetter+".*", "what a service gave up on", s.DeadLetter, -1)
	dispatch := mk(event.StreamDispatch, event.SubjectDispatch+".*", "frames asked of a device", s.Dispatch, MaxMsgSize)
	return []jetstream.StreamConfig{capture, ingest, dead, dispatch}
}

// Consumer is one durable consumer of the table.
type Consumer struct {
	Stream string
	Name   string
	Filter []string
}

// DeriverConsumer is the name of a profile's consumer.
func DeriverConsumer(profile string) string { return "deriver-" + event.Encode(profile) }

// The durable consumers of the services.
const (
	CaptureBatch = "capture-batch"
	CaptureFrame = "capture-frame"
	CaptureFault = "capture-fault"
	Hasher       = "hasher"
	Premis       = "premis"
	Quarantine   = "quarantine"
)

// Consumers is the one table of durable consumers, for the profiles that an
// installation offers.
func Consumers(profiles []string) []Consumer {
	out := []Consumer{
		{event.StreamCapture, CaptureBatch, []string{event.SubjectCaptureBatch + ".>"}},
		{event.StreamCapture, CaptureFrame, []string{event.SubjectCaptureFrame + ".>"}},
		{event.StreamCapture, CaptureFault, []string{event.SubjectCaptureFault + ".>"}},
		{event.StreamIngest, Hasher, []string{event.SubjectFrameCaptured}},
		{event.StreamIngest, Premis, nil},
		{event.StreamDeadLetter, Quarantine, nil},
	}
	for _, p := range profiles {
		out = append(out, Consumer{event.StreamIngest, DeriverConsumer(p), []string{event.SubjectFrameFixed}})
	}
	return out
}

func (c Consumer) config() jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: c.Name, FilterSubjects: c.Filter, AckPolicy: jetstream.AckExplicitPolicy, AckWait: AckWait,
		MaxDeliver: -1, MaxAckPending: MaxAckPending, DeliverPolicy: jetstream.DeliverAllPolicy, ReplayPolicy: jetstream.ReplayInstantPolicy,
	}
}

// Provision creates what the table says and is missing, and updates what
// differs. Doing it again changes nothing, and writes nothing.
func Provision(ctx context.Context, js jetstream.JetStream, s Sizes, profiles []string) error {
	drift, err := Check(ctx, js, s, profiles)
	if err != nil {
		return err
	}
	if len(drift) == 0 {
		return nil
	}
	for _, c := range Streams(s) {
		if _, err := js.CreateOrUpdateStream(ctx, c); err != nil {
			return fmt.Errorf("topology: stream %s: %w", c.Name, err)
		}
	}
	for _, c := range Consumers(profiles) {
		if _, err := js.CreateOrUpdateConsumer(ctx, c.Stream, c.config()); err != nil {
			return fmt.Errorf("topology: consumer %s of %s: %w", c.Name, c.Stream, err)
		}
	}
	return nil
}

// Drift is one difference between the table and the broker.
type Drift struct {
	What string `json:"what"` // stream or consumer
	Name string `json:"name"`
	Says string `json:"says"` // the difference, in words
}

func (d Drift) String() string { return d.What + " " + d.Name + ": " + d.Says }

// Check lists every difference between the table and the broker. The byte
// limits are the installation's own and are not compared.
func Check(ctx context.Context, js jetstream.JetStream, s Sizes, profiles []string) ([]Drift, error) {
	var out []Drift
	for _, want := range Streams(s) {
		d, err := checkStream(ctx, js, want)
		if err != nil {
			return nil, err
		}
		out = append(out, d...)
	}
	for _, want := range Consumers(profiles) {
		d, err := checkConsumer(ctx, js, want)
		if err != nil {
			return nil, err
		}
		out = append(out, d...)
	}
	return out, nil
}

func checkStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) ([]Drift, error) {
	st, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return []Drift{{"stream", want.Name, "is missing"}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("topology: stream %s: %w", want.Name, err)
	}
	got := st.CachedInfo().Config
	var out []Drift
	differ := func(differs bool, format string, args ...any) {
		if differs {
			out = append(out, Drift{"stream", want.Name, fmt.Sprintf(format, args...)})
		}
	}
	differ(got.Storage != want.Storage, "is backed by %v, not %v", got.Storage, want.Storage)
	differ(got.Retention != want.Retention, "keeps by %v, not %v", got.Retention, want.Retention)
	differ(got.Discard != want.Discard, "drops old messages when full")
	differ(got.MaxAge != 0, "forgets after %v", got.MaxAge)
	differ(got.MaxMsgs > 0, "keeps only %d messages", got.MaxMsgs)
	differ(got.MaxMsgsPerSubject > 0, "keeps only %d messages a subject", got.MaxMsgsPerSubject)
	differ(got.PersistMode != want.PersistMode, "persists as %v", got.PersistMode)
	differ(got.Duplicates != want.Duplicates, "remembers ids for %v, not %v", got.Duplicates, want.Duplicates)
	differ(got.DenyDelete != want.DenyDelete, "deny-delete is %v", got.DenyDelete)
	differ(got.DenyPurge != want.DenyPurge, "deny-purge is %v", got.DenyPurge)
	differ(got.MaxMsgSize != want.MaxMsgSize, "takes messages of %d bytes, not %d", got.MaxMsgSize, want.MaxMsgSize)
	differ(got.NoAck, "does not acknowledge")
	differ(got.AllowMsgTTL, "lets messages expire by a header")
	differ(got.Sealed, "is sealed")
	differ(got.Replicas < want.Replicas, "has %d replicas, not %d", got.Replicas, want.Replicas)
	differ(got.SubjectTransform != nil, "renames subjects")
	differ(got.Mirror != nil || len(got.Sources) > 0, "copies another stream")
	differ(!slices.Equal(got.Subjects, want.Subjects), "listens on %s, not %s", strings.Join(got.Subjects, " "), strings.Join(want.Subjects, " "))
	return out, nil
}

func checkConsumer(ctx context.Context, js jetstream.JetStream, want Consumer) ([]Drift, error) {
	c, err := js.Consumer(ctx, want.Stream, want.Name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return []Drift{{"consumer", want.Name, "is missing"}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("topology: consumer %s: %w", want.Name, err)
	}
	got, w := c.CachedInfo().Config, want.config()
	filters := got.FilterSubjects
	if got.FilterSubject != "" {
		filters = []string{got.FilterSubject}
	}
	var out []Drift
	differ := func(differs bool, format string, args ...any) {
		if differs {
			out = append(out, Drift{"consumer", want.Name, fmt.Sprintf(format, args...)})
		}
	}
	differ(got.AckPolicy != w.AckPolicy, "acknowledges by %v", got.AckPolicy)
	differ(got.AckWait != w.AckWait, "waits %v for an ack, not %v", got.AckWait, w.AckWait)
	differ(got.MaxDeliver != w.MaxDeliver, "gives up after %d deliveries", got.MaxDeliver)
	differ(len(got.BackOff) > 0, "has a back-off of its own")
	differ(got.MaxAckPending != w.MaxAckPending, "allows %d unacknowledged messages, not %d", got.MaxAckPending, w.MaxAckPending)
	differ(got.DeliverPolicy != w.DeliverPolicy, "leaves out what was stored before it: delivers %v", got.DeliverPolicy)
	differ(got.HeadersOnly, "delivers headers only")
	differ(got.InactiveThreshold > 0, "is dropped when idle for %v", got.InactiveThreshold)
	differ(got.MemoryStorage, "is kept in memory")
	differ(!slices.Equal(filters, want.Filter), "filters %v, not %v", filters, want.Filter)
	return out, nil
}

// Refuse is the check every service makes before it starts: on a broker that
// differs from the table it does not run.
func Refuse(ctx context.Context, js jetstream.JetStream, names ...string) error {
	var errs []error
	for _, want := range Streams(DefaultSizes()) {
		if !slices.Contains(names, want.Name) {
			continue
		}
		drift, err := checkStream(ctx, js, want)
		if err != nil {
			return err
		}
		for _, d := range drift {
			errs = append(errs, errors.New(d.String()))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("topology: refusing to start (run `colophon provision`): %w", err)
	}
	return nil
}
