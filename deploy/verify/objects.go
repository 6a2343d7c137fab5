package verify

import (
	"context"
	"io/fs"
	"path"
	"strings"
	"time"

	"colophon/shared/event"
	"colophon/shared/storage"
)

const (
	areaMasters     = "masters"
	areaDerivatives = "derivatives"
	areaStaging     = "staging"
	areaBatches     = "batches"
	areaBags        = "bags"
)

func unixTime(sec, nsec int64) time.Time { return time.Unix(sec, nsec) }

// judgeObjects reads every master and every derivative back, and looks for
// what should be there and is not, and for what should not.
func (j *judge) judgeObjects(ctx context.Context) error {
	pool := j.newPool(ctx)
	var err error
	if j.Batch != "" {
		err = j.queueBatch(pool)
	} else {
		err = j.queueAll(ctx, pool)
	}
	if err := pool.wait(err); err != nil {
		return err
	}
	if j.Batch != "" {
		return nil
	}
	if err := j.missing(ctx); err != nil {
		return err
	}
	return j.walk(ctx, areaStaging, j.staged)
}

func (j *judge) queueAll(ctx context.Context, p *pool) error {
	err := j.walk(ctx, areaMasters, func(key string, e fs.DirEntry) (bool, error) {
		if e.IsDir() {
			return true, nil
		}
		return false, j.master(p, key, e)
	})
	if err != nil {
		return err
	}
	return j.walk(ctx, areaDerivatives, func(key string, e fs.DirEntry) (bool, error) {
		if e.IsDir() {
			return true, nil
		}
		return false, j.derivative(p, key, e)
	})
}

// master judges a name below masters/ and queues its bytes.
func (j *judge) master(p *pool, key string, e fs.DirEntry) error {
	d := event.Digest(e.Name())
	if !d.Valid() || key != storage.MasterKey(storage.Digest(d)) || !e.Type().IsRegular() {
		j.out.drift("unexpected-file", key, "no master has this name")
		return nil
	}
	var f stored
	known, err := j.mem.getJSON(memMaster, string(d), &f)
	if err != nil {
		return err
	}
	size := int64(-1)
	if known {
		size = f.Size
	} else if err := j.orphan("master", key, d, e); err != nil {
		return err
	}
	return p.put(job{kind: "master", key: key, want: d, size: size, slot: f.Slot})
}

// derivative judges a name below derivatives/ and queues its bytes.
func (j *judge) derivative(p *pool, key string, e fs.DirEntry) error {
	var f stored
	known, err := j.mem.getJSON(memOutput, key, &f)
	if err != nil {
		return err
	}
	if known && e.Type().IsRegular() {
		return p.put(job{kind: "derivative", key: key, want: f.Digest, size: f.Size, slot: f.Slot})
	}
	d, ok := masterOf(key)
	if !ok || !e.Type().IsRegular() {
		j.out.drift("unexpected-file", key, "no derivative has this name")
		return nil
	}
	return j.orphan("derivative", key, d, e)
}

// masterOf reads the master's digest from the key of a derivative:
// derivatives/<profile>/ab/cd/<digest>.jp2, or a page in a folder <digest>.
func masterOf(key string) (event.Digest, bool) {
	parts := strings.Split(key, "/")
	if len(parts) != 5 && len(parts) != 6 {
		return "", false
	}
	d := event.Digest(strings.TrimSuffix(parts[4], path.Ext(parts[4])))
	return d, d.Valid() && parts[2] == string(d[:2]) && parts[3] == string(d[2:4])
}

// orphan judges an object that no fact speaks of: an act whose fact is still
// to come, or one whose fact is lost.
func (j *judge) orphan(kind, key string, d event.Digest, e fs.DirEntry) error {
	if info, err := e.Info(); err != nil || j.meanwhile(info) {
		return nil // gone again, or newer than the log as it was read
	}
	captured, pending, err := j.anyPending(d)
	switch {
	case err != nil:
		return err
	case pending:
		j.out.note(kind+"-orphan", key, "no fact speaks of it yet; its frame is pending")
	case captured || kind == "derivative":
		j.out.drift(kind+"-orphan", key, "no fact says that it was made, and no pending frame will")
	default:
		j.out.damage(kind+"-orphan", key, "no fact of the log knows these bytes")
	}
	return nil
}

// missing looks for objects that facts speak of and that are not there.
func (j *judge) missing(ctx context.Context) error {
	for _, of := range []struct{ mem, kind string }{{memMaster, "master"}, {memOutput, "derivative"}} {
		for p, err := range j.mem.each(of.mem, "") {
			if err != nil {
				return err
			}
			f, key, err := readStored(p)
			if err != nil {
				return err
			}
			j.present(of.kind, key, f.Slot, f.Seq)
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	return nil
}

// present reports whether an object is there, and says so where it is not.
func (j *judge) present(kind, key string, slot event.Slot, seq uint64) bool {
	info, err := j.root.Lstat(key)
	if err == nil && info.Mode().IsRegular() {
		return true
	}
	j.out.damage(kind+"-missing", key, "fact %d of frame %s of batch %s says that it is there", seq, slot.Frame.Display(), slot.Batch.Display())
	return false
}

// queueBatch queues the objects of one batch.
func (j *judge) queueBatch(p *pool) error {
	for e, err := range j.mem.each(memSlot, j.Batch.Encode()+"/") {
		if err != nil {
			return err
		}
		s, err := readProgress(e)
		if err != nil {
			return err
		}
		if s.Fixed == nil {
			continue
		}
		jobs := []job{{kind: "master", key: s.Fixed.Master, want: s.Digest, size: s.Fixed.Size, slot: s.Slot}}
		for _, d := range s.Derived {
			for _, o := range d.Outputs {
				jobs = append(jobs, job{kind: "derivative", key: o.Key, want: o.Digest, size: o.Size, slot: s.Slot})
			}
		}
		for _, q := range jobs {
			if seen, err := j.mem.has(memSeen, q.key); err != nil || seen || !j.present(q.kind, q.key, q.slot, s.Effect) {
				if err != nil {
					return err
				}
				continue
			}
			if err := j.mem.set(memSeen, q.key, nil); err != nil {
				return err
			}
			if err := p.put(q); err != nil {
				return err
			}
		}
	}
	return nil
}

// staged judges what is in staging: bytes stay there until their slot is
// fixed, or while a case about them is open.
func (j *judge) staged(key string, e fs.DirEntry) (bool, error) {
	if e.IsDir() {
		return true, nil
	}
	var s event.Slot
	known, err := j.mem.getJSON(memStaged, key, &s)
	if err != nil {
		return false, err
	}
	if !known {
		if info, err := e.Info(); err == nil && !j.meanwhile(info) {
			j.out.note("staging-unknown", key, "no fact speaks of these bytes: on their way, or refused and waiting for a decision")
		}
		return false, nil
	}
	state, err := j.stateOf(s.String())
	if err == nil && (state == event.StateDone || state == event.StateDiscarded) {
		j.out.drift("staging-left", key, "its frame is %s; the bytes should be gone from staging", state)
	}
	return false, err
}
