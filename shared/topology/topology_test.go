package topology_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
	"colophon/shared/testkit"
	"colophon/shared/topology"
)

var profiles = []string{"jp2", "jp2-lossless"}

func check(t *testing.T, js jetstream.JetStream) []string {
	t.Helper()
	drift, err := topology.Check(t.Context(), js, topology.DefaultSizes(), profiles)
	testkit.OK(t, err)
	var out []string
	for _, d := range drift {
		out = append(out, d.String())
	}
	return out
}

func TestProvisionTwiceIsProvisionOnce(t *testing.T) {
	t.Parallel()
	b, js := testkit.NewBroker(t, profiles...)
	infos := func() (out []any) {
		for _, s := range topology.Streams(topology.DefaultSizes()) {
			st, err := js.Stream(t.Context(), s.Name)
			testkit.OK(t, err)
			out = append(out, st.CachedInfo().Config, st.CachedInfo().Created)
		}
		for _, c := range topology.Consumers(profiles) {
			cons, err := js.Consumer(t.Context(), c.Stream, c.Name)
			testkit.OK(t, err)
			out = append(out, cons.CachedInfo().Config, cons.CachedInfo().Created)
		}
		return out
	}
	if d := check(t, js); len(d) > 0 {
		t.Fatalf("drift after provisioning: %q", d)
	}
	before := infos()
	b.Provision(profiles...)
	if after := infos(); !reflect.DeepEqual(before, after) {
		t.Errorf("provisioning again changed\n%v\nto\n%v", before, after)
	}
	b.Restart()
	testkit.Eventually(t, "the restart", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := js.Stream(ctx, event.StreamIngest)
		return err == nil
	})
	if d := check(t, js); len(d) > 0 {
		t.Errorf("drift after a restart: %q", d)
	}
}

func TestWhatCheckSees(t *testing.T) {
	t.Parallel()
	for name, weaken := range map[string]func(*jetstream.StreamConfig){
		"is backed by":          func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage },
		"keeps by":              func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy },
		"drops old messages":    func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld },
		"forgets after":         func(c *jetstream.StreamConfig) { c.MaxAge = 24 * time.Hour },
		"keeps only 5 messages": func(c *jetstream.StreamConfig) { c.MaxMsgs = 5 },
		"messages a subject":    func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 },
		"persists as": func(c *jetstream.StreamConfig) {
			c.PersistMode, c.AllowAtomicPublish = jetstream.AsyncPersistMode, false
		},
		"remembers ids for 2m0s":       func(c *jetstream.StreamConfig) { c.Duplicates = 2 * time.Minute },
		"deny-delete is false":         func(c *jetstream.StreamConfig) { c.DenyDelete = false },
		"deny-purge is false":          func(c *jetstream.StreamConfig) { c.DenyPurge = false },
		"takes messages of 1024 bytes": func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1024 },
		"does not acknowledge":         func(c *jetstream.StreamConfig) { c.NoAck, c.AllowAtomicPublish = true, false },
		"lets messages expire":         func(c *jetstream.StreamConfig) { c.AllowMsgTTL = true },
		"listens on":                   func(c *jetstream.StreamConfig) { c.Subjects = []string{"ingest.frame.>"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := testkit.StartBroker(t, testkit.TempDir(t))
			nc, js := b.Connect()
			t.Cleanup(func() {
				nc.Close()
				b.Stop()
			})
			for _, c := range topology.Streams(topology.DefaultSizes()) {
				if c.Name == event.StreamIngest {
					weaken(&c)
				}
				_, err := js.CreateStream(t.Context(), c)
				testkit.OK(t, err)
			}
			for _, c := range topology.Consumers(profiles) {
				if c.Stream != event.StreamIngest || name != "keeps by" && name != "listens on" {
					_, err := js.CreateConsumer(t.Context(), c.Stream, jetstream.ConsumerConfig{
						Durable: c.Name, FilterSubjects: c.Filter, AckPolicy: jetstream.AckExplicitPolicy, AckWait: topology.AckWait, MaxDeliver: -1, MaxAckPending: topology.MaxAckPending,
					})
					testkit.OK(t, err)
				}
			}
			found := 0
			for _, d := range check(t, js) {
				if strings.Contains(d, "stream INGEST: ") && strings.Contains(d, name) {
					found++
				}
			}
			if found != 1 {
				t.Errorf("check says %q", check(t, js))
			}
			err := topology.Refuse(t.Context(), js, event.StreamCapture, event.StreamIngest)
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("a service starts on it: %v", err)
			}
			if err := topology.Refuse(t.Context(), js, event.StreamCapture, event.StreamDeadLetter); err != nil {
				t.Errorf("a service that does not use it is refused: %v", err)
			}
		})
	}
}

func TestWhatCheckSeesOfConsumers(t *testing.T) {
	t.Parallel()
	b, js := testkit.NewBroker(t, profiles...)
	for name, weaken := range map[string]func(*jetstream.ConsumerConfig){
		"acknowledges by": func(c *jetstream.ConsumerConfig) {
			c.AckPolicy, c.MaxAckPending, c.AckWait = jetstream.AckNonePolicy, 0, 0
		},
		"waits 30s for an ack":      func(c *jetstream.ConsumerConfig) { c.AckWait = 30 * time.Second },
		"gives up after 5":          func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 5 },
		"has a back-off":            func(c *jetstream.ConsumerConfig) { c.BackOff, c.MaxDeliver = []time.Duration{time.Second}, 2 },
		"allows 7 unacknowledged":   func(c *jetstream.ConsumerConfig) { c.MaxAckPending = 7 },
		"filters":                   func(c *jetstream.ConsumerConfig) { c.FilterSubjects = []string{"ingest.frame.>"} },
		"leaves out":                func(c *jetstream.ConsumerConfig) { c.DeliverPolicy = jetstream.DeliverNewPolicy },
		"delivers headers only":     func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true },
		"is dropped when idle for ": func(c *jetstream.ConsumerConfig) { c.InactiveThreshold = time.Hour },
		"is kept in memory":         func(c *jetstream.ConsumerConfig) { c.MemoryStorage = true },
		"is missing":                nil,
	} {
		if err := js.DeleteConsumer(t.Context(), event.StreamIngest, topology.Hasher); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			t.Fatal(err)
		}
		if weaken != nil {
			c := jetstream.ConsumerConfig{
				Durable: topology.Hasher, FilterSubjects: []string{event.SubjectFrameCaptured}, AckPolicy: jetstream.AckExplicitPolicy, AckWait: topology.AckWait, MaxDeliver: -1, MaxAckPending: topology.MaxAckPending,
			}
			weaken(&c)
			_, err := js.CreateConsumer(t.Context(), event.StreamIngest, c)
			testkit.OK(t, err)
		}
		if d := fmt.Sprint(check(t, js)); !strings.Contains(d, "consumer hasher: "+name) {
			t.Errorf("%s: check says %s", name, d)
		}
	}
	_ = js.DeleteConsumer(t.Context(), event.StreamIngest, topology.Hasher) // gone or not
	b.Provision(profiles...)
	if d := check(t, js); len(d) > 0 {
		t.Errorf("drift after provisioning again: %q", d)
	}
}

// TestFullMeansRefused: a stream at its limit drops nothing.
func TestFullMeansRefused(t *testing.T) {
	t.Parallel()
	b := testkit.StartBroker(t, testkit.TempDir(t))
	nc, js := b.Connect()
	t.Cleanup(func() {
		nc.Close()
		b.Stop()
	})
	sizes := topology.DefaultSizes()
	sizes.Capture = 4096
	testkit.OK(t, topology.Provision(t.Context(), js, sizes, nil))
	stored := 0
	for {
		_, err := js.Publish(t.Context(), "capture.frame.g.b", make([]byte, 300))
		if err != nil {
			break
		}
		if stored++; stored > 100 {
			t.Fatal("the limit does not hold")
		}
	}
	if n := len(testkit.ReadAll(t, js, event.StreamCapture)); n != stored {
		t.Errorf("%d stored, %d left", stored, n)
	}
}
