package capture

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"colophon/shared/event"
	"colophon/shared/storage"
)

// manifest is the head of batches/<batch>.json; the frames follow, in order.
type manifest struct {
	Schema      string          `json:"schema"`
	Batch       event.Name      `json:"batch"`
	State       string          `json:"state"` // open, settled, converged
	Convergence int             `json:"convergence"`
	ConvergedAt time.Time       `json:"converged_at,omitzero"`
	Declaration int             `json:"declaration"`
	Order       string          `json:"order"`
	Profiles    []string        `json:"profiles"`
	Policy      json.RawMessage `json:"policy"`
	PolicySHA   event.Digest    `json:"policy_sha256"`
	Devices     []string        `json:"devices,omitempty"`
	Operator    string          `json:"operator,omitempty"`
	Totals      event.Totals    `json:"totals"`
}

// manifestFrame is one frame of the manifest.
type manifestFrame struct {
	Frame     event.Name                `json:"frame"`
	Sequence  int                       `json:"sequence"`
	State     event.State               `json:"state"`
	Revision  int                       `json:"revision,omitempty"`
	Digest    event.Digest              `json:"digest,omitempty"`
	Size      int64                     `json:"size,omitempty"`
	Master    string                    `json:"master,omitempty"`
	Format    string                    `json:"format,omitempty"`
	Derived   map[string][]event.Output `json:"derivatives,omitempty"`
	Waived    []event.Operation         `json:"waived,omitempty"`
	Cases     []event.Trouble           `json:"cases,omitempty"`
	Technical *event.Technical          `json:"technical,omitempty"`
}

// manifestDue writes the manifest if the batch is another than it speaks of:
// at settling at once, else every few seconds. It tells when it is due.
func (k *keeper) manifestDue(ctx context.Context, l look, r batchRecord, t *task) (time.Duration, error) {
	m, err := l.made(r.Batch)
	if err != nil {
		return 0, err
	}
	settled := r.Totals.Settled()
	if m.Of == r.Read && (!r.Converged || m.Manifest >= r.Convergence) {
		t.settled = settled
		return 0, nil
	}
	if d := time.Until(t.written.Add(manifestEvery)); d > 0 && (!settled || t.settled) && !(r.Converged && m.Manifest < r.Convergence) {
		return d, nil
	}
	sum, err := k.replaceManifest(ctx, l, r, m.SHA256)
	if err != nil {
		return 0, fmt.Errorf("capture: manifest: %w", err)
	}
	t.settled, t.written = settled, time.Now()
	return 0, k.view.note(r.Batch, func(m *made) {
		m.Of, m.SHA256 = r.Read, sum
		if r.Converged {
			m.Manifest = r.Convergence
		}
	})
}

// replaceManifest writes the manifest, unless it is, byte for byte, what stands.
func (s *Service) replaceManifest(ctx context.Context, l look, r batchRecord, stands string) (string, error) {
	key := storage.ManifestKey(string(r.Batch))
	h := sha256.New()
	if err := writeManifest(h, l, r); err != nil {
		return "", err
	}
	sum := hex.EncodeToString(h.Sum(nil))
	if sum == stands {
		if there, err := s.Store.Exists(key); err != nil || there {
			return sum, err
		}
	}
	pr, pw := io.Pipe()
	written := make(chan struct{})
	go func() {
		defer close(written)
		pw.CloseWithError(writeManifest(pw, l, r))
	}()
	_, err := s.Store.Replace(ctx, key, pr, storage.Options{Expect: storage.Digest(sum)})
	_ = pr.Close()
	<-written // it reads the view, which may be closed after us
	return sum, err
}

// writeManifest says what a look at the view says; the same state gives the
// same bytes.
func writeManifest(w io.Writer, l look, r batchRecord) error {
	state := "open"
	switch {
	case r.Converged:
		state = "converged"
	case r.Totals.Settled():
		state = "settled"
	}
	head, err := json.Marshal(manifest{
		"colophon/manifest/v1", r.Batch, state, r.Convergence, r.At, r.Number, r.Order, r.Profiles, r.Policy, r.PolicyDigest, r.Devices, r.Operator, r.Totals,
	})
	if err != nil {
		return err
	}
	b := bufio.NewWriterSize(w, 64<<10)
	_, _ = b.Write(head[:len(head)-1])
	_, _ = b.WriteString(`,"frames":[`)
	sep := "\n"
	for p, err := range l.frames(r.Batch, "") {
		if err != nil {
			return err
		}
		line, err := json.Marshal(manifestOf(&p.Progress, r.Profiles))
		if err != nil {
			return err
		}
		_, _ = b.WriteString(sep)
		if _, err := b.Write(line); err != nil {
			return err
		}
		sep = ",\n"
	}
	_, _ = b.WriteString("\n]}\n")
	return b.Flush()
}

func manifestOf(p *event.Progress, profiles []string) manifestFrame {
	f := manifestFrame{Frame: p.Frame, Sequence: p.Sequence, State: p.State(profiles), Revision: p.Revision, Digest: p.Digest}
	if p.Fixed != nil {
		f.Size, f.Master, f.Format = p.Fixed.Size, p.Fixed.Master, p.Fixed.Format.PUID
	}
	for _, profile := range profilesOf(p) {
		d := p.Derived[profile]
		if f.Derived == nil {
			f.Derived, f.Technical = map[string][]event.Output{}, &d.Technical
		}
		f.Derived[profile] = d.Outputs
	}
	for o, op := range p.Ops {
		if op.Waived {
			f.Waived = append(f.Waived, o)
		}
	}
	slices.Sort(f.Waived)
	if f.State != event.StateDone {
		f.Cases = p.Troubles(profiles)
	}
	return f
}
