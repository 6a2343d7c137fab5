package standalone

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"colophon/shared/storage"
)

// A stream that could not be written once, as on a full disk, answers nobody
// any more, also when there is space again: only a new server on the same
// folder takes messages. Nothing that was acknowledged is lost by that.

const (
	mindEvery    = time.Second     // between two looks at the server
	maxPatience  = 5 * time.Minute // between two servers that both failed
	remindedOfIt = time.Minute     // between two lines about a disk that stays full
)

// mark is the free space, in bytes, that the broker needs to be started again.
func (o Options) mark() uint64 {
	if o.LowWater > 0 {
		return o.LowWater
	}
	return storage.LowWater(0)
}

// mind looks after the server until ctx ends: one that no longer stores
// messages is told of, and replaced once there is space again. The connections
// of this process and those of others come back to the new one by themselves.
func (b *broker) mind(ctx context.Context) {
	defer close(b.minded)
	patience, restarted := time.Duration(0), time.Time{}
	for last := error(nil); b.wait(ctx, mindEvery); {
		now := b.examined()
		if now == nil || last == nil { // twice: a stream that is just being made looks ill too
			last = now
			continue
		}
		last = nil
		if time.Since(restarted) > maxPatience {
			patience = 0
		}
		b.fail(now)
		b.log.Error("broker_failed", slog.Any("error", now), slog.String("decision", "nothing is stored until there is space; then the broker is started again"))
		if !b.wait(ctx, patience) || !b.spacious(ctx) {
			return
		}
		b.shutdown()
		for err := b.start(); err != nil; err = b.start() {
			b.log.Error("broker_not_started", slog.Any("error", err))
			if !b.wait(ctx, max(patience, mindEvery)) {
				return
			}
		}
		b.fail(nil)
		b.log.Warn("broker_restarted", slog.String("reason", now.Error()))
		patience, restarted = min(2*patience+mindEvery, maxPatience), time.Now()
	}
}

func (b *broker) examined() error {
	b.mu.Lock()
	srv, look := b.srv, b.look
	b.mu.Unlock()
	return look(srv)
}

// ailing tells why a server does not store messages, or nil. Whether it takes
// connections is not asked: a machine under load is no full disk.
func ailing(srv *server.Server) error {
	var errs []error
	for _, e := range srv.Healthz(&server.HealthzOptions{Details: true}).Errors {
		if e.Type != server.HealthzErrorConn {
			errs = append(errs, errors.New(e.Error))
		}
	}
	return errors.Join(errs...)
}

// spacious waits for space on the broker's file system; false when ctx ended.
func (b *broker) spacious(ctx context.Context) bool {
	for said := (time.Time{}); ; {
		err := b.space()
		if err == nil {
			return true
		}
		if time.Since(said) > remindedOfIt {
			said = time.Now()
			b.log.Error("broker_waits_for_space", slog.Any("error", err))
		}
		if !b.wait(ctx, mindEvery) {
			return false
		}
	}
}

// space is an error while less is free than the low-water mark, or than a
// tenth of a file system that is small.
func (b *broker) space() error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(b.dir, &st); err != nil {
		return fmt.Errorf("standalone: the broker's folder: %w", err)
	}
	unit := uint64(st.Bsize)
	return enough(st.Bavail*unit, st.Blocks*unit, b.mark)
}

func enough(free, size, mark uint64) error {
	if mark = min(mark, size/10); free < mark {
		return fmt.Errorf("standalone: %d bytes are free for the broker, %d are needed", free, mark)
	}
	return nil
}

func (b *broker) wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func (b *broker) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed = err
}

// health tells why nothing is stored, or nil.
func (b *broker) health() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed
}
