package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"colophon/shared/event"
	"colophon/shared/storage"
)

// job is one object to read back.
type job struct {
	kind string // master, derivative
	key  string
	want event.Digest
	size int64 // bytes; -1: no fact says
	slot event.Slot
}

// pool hashes objects, a bounded number at once.
type pool struct {
	j    *judge
	ctx  context.Context //nolint:containedctx // lives for one step
	stop context.CancelCauseFunc
	jobs chan job
	wg   sync.WaitGroup
}

func (j *judge) newPool(ctx context.Context) *pool {
	p := &pool{j: j, jobs: make(chan job, 4*j.Workers)}
	p.ctx, p.stop = context.WithCancelCause(ctx)
	for range j.Workers {
		p.wg.Go(func() {
			for q := range p.jobs {
				if p.ctx.Err() != nil {
					continue
				}
				if err := j.readBack(p.ctx, q); err != nil {
					p.stop(err)
				}
			}
		})
	}
	return p
}

// put queues a job; it waits while all workers are busy.
func (p *pool) put(q job) error {
	select {
	case p.jobs <- q:
		return nil
	case <-p.ctx.Done():
		return context.Cause(p.ctx)
	}
}

// wait returns when all that was queued is done, with the first error.
func (p *pool) wait(err error) error {
	close(p.jobs)
	p.wg.Wait()
	defer p.stop(nil)
	if p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	return err
}

// readBack reads one object and compares it with what it should be. Only an
// error of the judge's own is returned.
func (j *judge) readBack(ctx context.Context, q job) error {
	f, err := j.root.Open(q.key)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // told where missing objects are looked for
	}
	if err != nil {
		j.out.damage("object-unreadable", q.key, "%v", err)
		return nil
	}
	defer f.Close() //nolint:errcheck // only read from
	info, err := f.Stat()
	if err != nil {
		j.out.damage("object-unreadable", q.key, "%v", err)
		return nil
	}
	if mode := info.Mode().Perm(); mode != 0o444 {
		j.out.drift("object-mode", q.key, "its mode is %04o, not 0444", mode)
	}
	d, n, err := storage.Sum(ctx, f)
	j.out.bytes.Add(n)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		j.out.damage("object-unreadable", q.key, "at byte %d: %v", n, err)
		return nil
	}
	if q.kind == "master" {
		j.out.masters.Add(1)
	} else {
		j.out.derived.Add(1)
	}
	if event.Digest(d) != q.want || q.size >= 0 && n != q.size {
		j.out.damage(q.kind+"-damaged", q.key, "%s; expected %s%s", bytesOf(event.Digest(d), n), bytesOf(q.want, q.size), ofFrame(q.slot))
		return nil
	}
	id, known := inode(info)
	if !known {
		return nil
	}
	return j.mem.set(memInode, id, []byte(d))
}

func bytesOf(d event.Digest, n int64) string {
	if n < 0 {
		return string(d)
	}
	return fmt.Sprintf("%s (%d bytes)", d, n)
}

func ofFrame(s event.Slot) string {
	if s == (event.Slot{}) {
		return ""
	}
	return fmt.Sprintf("; first of frame %s of batch %s", s.Frame.Display(), s.Batch.Display())
}

// readStored reads an entry of memMaster or memOutput, and the object's key.
func readStored(p pair) (f stored, key string, err error) {
	if err := json.Unmarshal(p.value, &f); err != nil {
		return f, "", fmt.Errorf("scratch: %w", err)
	}
	if f.Key == "" {
		return f, string(p.key), nil
	}
	return f, f.Key, nil
}

// readProgress reads an entry of memSlot.
func readProgress(p pair) (*event.Progress, error) {
	s := new(event.Progress)
	if err := json.Unmarshal(p.value, s); err != nil {
		return nil, fmt.Errorf("scratch: %w", err)
	}
	return s, nil
}
