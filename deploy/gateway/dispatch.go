package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
	"colophon/shared/topology"
)

// Obey scans what the line asks of the device, one frame after the other, until
// ctx ends. A dispatch is acked once the broker, or the spool, has the frame
// that answers it; until then it comes again.
func (s *Scanner) Obey(ctx context.Context) error {
	for {
		cons, err := s.Gateway.js.CreateOrUpdateConsumer(ctx, event.StreamDispatch, jetstream.ConsumerConfig{
			Durable: topology.DispatchConsumer(s.Device), FilterSubject: event.Dispatch{Device: s.Device}.Subject(),
			AckPolicy: jetstream.AckExplicitPolicy, AckWait: topology.AckWait, MaxDeliver: -1, MaxAckPending: 1,
		})
		if err == nil {
			err = s.obey(ctx, cons)
		}
		if ctx.Err() != nil {
			return nil
		}
		s.Log.Warn("dispatches_unreachable", slog.String("device", s.Device), slog.Any("error", err))
		if wait(ctx, time.Second) != nil {
			return nil
		}
	}
}

func (s *Scanner) obey(ctx context.Context, cons jetstream.Consumer) error {
	for ctx.Err() == nil {
		batch, err := cons.Fetch(1, jetstream.FetchMaxWait(2*time.Second))
		if err != nil {
			return err
		}
		for m := range batch.Messages() {
			if err := s.answer(ctx, m); err != nil {
				return err
			}
		}
		if err := batch.Error(); err != nil && !errors.Is(err, jetstream.ErrNoMessages) {
			return err
		}
	}
	return nil
}

// answer settles one dispatch.
func (s *Scanner) answer(ctx context.Context, msg jetstream.Msg) error {
	var d event.Dispatch
	err := event.Unmarshal(msg.Data(), &d)
	if err == nil {
		err = d.Slot.Validate()
	}
	if err != nil || d.Schema != event.SchemaDispatch || d.Device != s.Device || d.Sequence < 0 {
		s.Log.Error("dispatch_unreadable", slog.String("subject", msg.Subject()), slog.Any("error", err))
		return msg.Term() // nobody's; it stays in the stream as evidence
	}
	alive, end := context.WithCancel(ctx)
	defer end()
	go func() { // a scan may take longer than an ack wait
		for wait(alive, topology.AckWait/3) == nil {
			_ = msg.InProgress()
		}
	}()
	s.Log.Info("dispatched", slog.String("batch_id", d.Batch.Display()), slog.String("frame_id", d.Frame.Display()), slog.String("reason", d.Reason))
	err = s.rescan(ctx, d)
	var device *deviceError
	if errors.As(err, &device) {
		if err := s.report(ctx, device, event.CaptureFault{Batch: d.Batch, Frame: d.Frame, Sequence: d.Sequence}); err != nil {
			return err
		}
	}
	if err != nil {
		s.Log.Warn("dispatch_waits", slog.String("frame_id", d.Frame.Display()), slog.Any("error", err))
		return msg.NakWithDelay(s.Again)
	}
	return msg.DoubleAck(ctx)
}

// rescan scans the one page. It is kept under a name of this dispatch, so that
// a dispatch that comes again sends the same page again.
func (s *Scanner) rescan(ctx context.Context, d event.Dispatch) error {
	dir := filepath.Join(s.Dir, d.Batch.Encode(), "rescans")
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // the line reads here
		return fmt.Errorf("gateway: %w", err)
	}
	m := event.FrameMessage{Slot: d.Slot, Sequence: max(d.Sequence, 1), Pass: d.Pass, Replaces: d.Replaces, Answers: d.MsgID()}
	name := event.Encode(d.MsgID())
	if len(name) > 200 {
		name = name[:120] + "~" + string(event.SourceToken(d.MsgID(), event.SourceStat{}))
	}
	path := filepath.Join(dir, name+s.Suffix)
	if _, err := os.Lstat(path); err != nil {
		pattern := filepath.Join(escapePercent(dir), ".scan-%d"+s.Suffix)
		pages, err := s.scan(ctx, pattern, 1, 1, func(_ int, scanned string) error { return os.Rename(scanned, path) })
		if err != nil {
			return err
		}
		if pages == 0 {
			return errors.New("gateway: the feeder is empty")
		}
	}
	return s.send(ctx, m, path)
}
