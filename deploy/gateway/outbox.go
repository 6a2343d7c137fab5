package gateway

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/stage"
)

// outbox publishes messages: at once while the broker confirms them, else from
// disk as soon as it does. A message that was confirmed without our hearing of
// it goes out again under its id, which the broker drops.
type outbox struct {
	dir string
	nc  *nats.Conn
	log *slog.Logger
	out *stage.Log

	mu      sync.Mutex
	waiting []string        // names of spooled messages, oldest first
	ids     map[string]bool // hashes of their ids
	more    chan struct{}
}

// sendWait bounds one direct try.
const sendWait = 5 * time.Second

func openOutbox(dir string, nc *nats.Conn, js jetstream.JetStream, log *slog.Logger) (*outbox, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("gateway: spool: %w", err)
	}
	o := &outbox{dir: dir, nc: nc, log: log, out: stage.NewLog(js, log), ids: map[string]bool{}, more: make(chan struct{}, 1)}
	all, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("gateway: spool: %w", err)
	}
	for _, e := range all { // sorted by name, which begins with the time
		if hash, ok := hashOf(e.Name()); ok {
			o.waiting = append(o.waiting, e.Name())
			o.ids[hash] = true
		}
	}
	return o, nil
}

// hashOf reads a spooled message's name: <time>-<hash of its id>.json.
func hashOf(name string) (string, bool) {
	base, json := strings.CutSuffix(name, ".json")
	_, hash, ok := strings.Cut(base, "-")
	return hash, ok && json
}

func (o *outbox) len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.waiting)
}

// send returns nil once the broker has stored the message, or the spool.
func (o *outbox) send(ctx context.Context, m *nats.Msg) error {
	if o.len() == 0 && o.nc.IsConnected() {
		err := o.publish(ctx, m)
		if err == nil || ctx.Err() != nil || refused(err) {
			return err
		}
		o.log.Warn("spooling", slog.String("subject", m.Subject), slog.Any("error", err))
	}
	return o.spool(m)
}

// refused reports a message that no broker will ever carry.
func refused(err error) bool {
	var f *fault.Error
	return errors.As(err, &f) && f.Class() == fault.Permanent
}

func (o *outbox) publish(ctx context.Context, m *nats.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, sendWait)
	defer cancel()
	_, err := o.out.Publish(ctx, m, nil)
	return err
}

// spooled is a message on disk.
type spooled struct {
	Subject string      `json:"subject"`
	Header  nats.Header `json:"header"`
	Data    []byte      `json:"data"`
}

func (o *outbox) spool(m *nats.Msg) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	hash := fmt.Sprintf("%x", sha256.Sum256([]byte(m.Header.Get(event.HeaderMsgID))))
	if o.ids[hash] {
		return nil
	}
	data, err := json.Marshal(spooled{m.Subject, m.Header, m.Data})
	if err != nil {
		return fmt.Errorf("gateway: spool: %w", err)
	}
	name := fmt.Sprintf("%020d-%s.json", time.Now().UnixNano(), hash)
	if err := writeFile(filepath.Join(o.dir, name), data); err != nil {
		return fmt.Errorf("gateway: spool: %w", err)
	}
	o.waiting, o.ids[hash] = append(o.waiting, name), true
	select {
	case o.more <- struct{}{}:
	default:
	}
	return nil
}

// run empties the spool whenever the broker takes messages, until ctx ends.
func (o *outbox) run(ctx context.Context) error {
	for ctx.Err() == nil {
		for o.len() > 0 && o.nc.IsConnected() && ctx.Err() == nil {
			if err := o.first(ctx); err != nil && ctx.Err() == nil {
				o.log.Warn("spool_waits", slog.Int("messages", o.len()), slog.Any("error", err))
				break
			}
		}
		select {
		case <-ctx.Done():
		case <-o.more:
		case <-time.After(200 * time.Millisecond):
		}
	}
	return nil
}

// first sends the oldest message. A crash behind the confirmation sends it
// again, under its id.
func (o *outbox) first(ctx context.Context) error {
	o.mu.Lock()
	name := o.waiting[0]
	o.mu.Unlock()
	path := filepath.Join(o.dir, name)
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("gateway: spool: %w", err)
	}
	var s spooled
	switch {
	case err != nil: // somebody took it away
		o.log.Error("spooled_message_gone", slog.String("name", name))
	case json.Unmarshal(data, &s) != nil: // half a file has no name; this one was damaged
		o.log.Error("spooled_message_damaged", slog.String("name", name))
		if err := os.Rename(path, path+".damaged"); err != nil {
			return fmt.Errorf("gateway: spool: %w", err)
		}
	default:
		err := o.publish(ctx, &nats.Msg{Subject: s.Subject, Header: s.Header, Data: s.Data})
		if err != nil && !refused(err) {
			return err
		}
		if err != nil {
			o.log.Error("spooled_message_refused", slog.String("name", name), slog.Any("error", err))
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("gateway: spool: %w", err)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	hash, _ := hashOf(name)
	delete(o.ids, hash)
	o.waiting = slices.Delete(o.waiting, 0, 1)
	return nil
}

// writeFile makes a file that is whole under its name, and durable.
func writeFile(path string, data []byte) (err error) {
	tmp := path + ".part"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp))
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(tmp, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// newUUID makes a random one (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
