package premis

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/stage"
	"colophon/shared/topology"

	"colophon/services/premis/internal/checkpoint"
	"colophon/services/premis/internal/ledger"
)

// openSigner opens the key, and proves the ledger against the last checkpoint
// signed with it: that beside the key, and that among the records. A ledger
// that is behind the former is an older copy of itself: it may read the log on,
// and signs nothing until it has come to the same root.
func (s *Service) openSigner() error {
	if s.cfg.Key == "" {
		return nil
	}
	head := s.ledger.Head()
	signer, created, err := checkpoint.OpenSigner(s.cfg.Key, head.Origin)
	if errors.Is(err, checkpoint.ErrHeld) {
		s.log.Warn("checkpoint_key_held", slog.String("key", s.cfg.Key), slog.String("hint", "another copy of the ledger signs; this one follows"))
		return nil
	}
	if err != nil {
		return err
	}
	s.signer = signer
	if created {
		s.log.Warn("checkpoint_key_created", slog.String("key", s.cfg.Key), slog.String("public", signer.Public()),
			slog.String("hint", "back this file up apart from the archive, and give the public key to whoever will check the ledger: a lost key cannot be made again, and whoever has it can sign another history"))
	}
	_, last, _, err := signer.Last()
	if err != nil {
		return err
	}
	err = checkpoint.Holds(last, head.Size, s.ledger)
	if errors.Is(err, checkpoint.ErrShrunk) {
		s.log.Error("ledger_behind_checkpoint", slog.Int64("records", head.Size), slog.Int64("signed", last.Size),
			slog.String("hint", "an older copy of the ledger was put back, or it is being rebuilt; it signs nothing until the log has brought it to the signed root"))
		err = nil
	}
	s.due = head.Size > last.Size+1 // what an earlier run left unsigned
	return errors.Join(err, s.proveSigned())
}

// proveSigned compares the ledger with the latest checkpoint among its records
// that this key signed.
func (s *Service) proveSigned() error {
	v, err := s.signer.Verifier()
	if err != nil {
		return err
	}
	for c, err := range s.ledger.Signed() {
		if err != nil {
			return err
		}
		if t, err := checkpoint.Open([]byte(c.Note), v); err == nil {
			return checkpoint.Holds(t, s.ledger.Size(), s.ledger)
		}
	}
	return nil
}

// sign signs a checkpoint where one is due: a batch ended, or the ledger grew
// and the last one is a day old. It enters the ledger through the log, as
// everything does. Crash between signing and publishing: the next start tells
// the log of the last one signed.
func (s *Service) sign(ctx context.Context, js jetstream.JetStream) error {
	if s.signer == nil {
		return nil
	}
	msg, last, at, err := s.signer.Last()
	if err != nil {
		return ledgerError{err}
	}
	if err := s.retell(ctx, js); err != nil {
		return err
	}
	if err := s.tell(ctx, js, msg, last); err != nil {
		return err
	}
	head := s.ledger.Head()
	if msg == nil {
		at = s.started
	}
	grown := head.Size > last.Size+1 // a checkpoint is a record too
	if !grown || !s.due && time.Since(at) < s.cfg.Every {
		return nil
	}
	t := checkpoint.Tree{Origin: head.Origin, Size: head.Size, Root: head.Root}
	msg, err = s.signer.Sign(t, s.ledger)
	if errors.Is(err, checkpoint.ErrShrunk) {
		return nil // told at the start; the log is still being read
	}
	if err != nil {
		return ledgerError{err}
	}
	s.due = false
	s.log.Info("checkpoint_signed", slog.Int64("records", t.Size), slog.String("root", t.Root.String()))
	return s.tell(ctx, js, msg, t)
}

// tell publishes the fact of a checkpoint, unless the ledger has read it.
func (s *Service) tell(ctx context.Context, js jetstream.JetStream, msg []byte, t checkpoint.Tree) error {
	if t.Size == s.told {
		return nil
	}
	f := s.checkpointFact(msg, t)
	_, known, err := s.ledger.Number(f.MsgID())
	if err != nil {
		return ledgerError{err}
	}
	if !known {
		if _, err := stage.NewLog(js, s.log).PublishFact(ctx, f, nil); err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
	}
	s.told = t.Size
	return nil
}

// retell publishes every checkpoint that this key signed, where the log lacks
// the last of them: it was rolled back, and the ledger was not. The oldest goes
// first, so that the last one says that all are there. Those that the log has
// are dropped by their ids, or add nothing.
func (s *Service) retell(ctx context.Context, js jetstream.JetStream) error {
	if s.retold {
		return nil
	}
	own, last, err := s.ownCheckpoints()
	if err != nil {
		return ledgerError{err}
	}
	if len(own) > 0 {
		stream, err := js.Stream(ctx, event.StreamIngest)
		if err != nil {
			return fmt.Errorf("stream %s: %w", event.StreamIngest, err)
		}
		held, err := topology.Holds(ctx, stream, completed.Position{Sequence: last.Sequence, Stored: last.Stored, MsgID: last.MsgID})
		if err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
		if held {
			own = nil
		}
	}
	for _, f := range own {
		if _, err := stage.NewLog(js, s.log).PublishFact(ctx, f, nil); err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
	}
	s.retold = true
	return nil
}

// ownCheckpoints are the facts of those that this key signed, oldest first, and
// where the log tells of the last.
func (s *Service) ownCheckpoints() (out []event.OpFact, last ledger.Position, err error) {
	v, err := s.signer.Verifier()
	if err != nil {
		return nil, last, err
	}
	for c, err := range s.ledger.Signed() {
		if err != nil {
			return nil, last, err
		}
		t, err := checkpoint.Open([]byte(c.Note), v)
		if err != nil {
			continue // another key's
		}
		if len(out) == 0 {
			last = c.At
		}
		out = append(out, s.checkpointFact([]byte(c.Note), t))
	}
	slices.Reverse(out)
	return out, last, nil
}

func (s *Service) checkpointFact(msg []byte, t checkpoint.Tree) event.OpFact {
	return event.OpFact{
		Schema: event.SchemaOp, Kind: event.OpCheckpoint, Service: "premis", Instance: s.signer.ID(), Counter: uint64(t.Size),
		Reason: fmt.Sprintf("the first %d records are signed for", t.Size),
		Detail: map[string]string{
			"size": strconv.FormatInt(t.Size, 10),
			"note": base64.RawURLEncoding.EncodeToString(msg), "key": base64.RawURLEncoding.EncodeToString([]byte(s.signer.Public())),
		},
		Agent: event.Agent{Name: "premis", Version: s.cfg.Version}, At: time.Now().UTC(),
	}
}
