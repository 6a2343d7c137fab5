package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"colophon/shared/event"
)

// Scanner drives one device through SANE's scanimage. It believes the pages
// that scanimage names (--batch-print) and its exit status, nothing else: what
// it says beside them counts pages that failed.
type Scanner struct {
	Gateway *Gateway
	SANE    string   // SANE's name of the device
	Device  string   // the line's name of it
	Program string   // scanimage
	Options []string // of the device, name=value: resolution=300
	Dir     string   // absolute folder that pages are kept in; the line must be allowed to read there
	Suffix  string   // of pages: .tif
	// Again is how long a device is left alone behind a fault; Faults is how
	// many may follow each other without a page between.
	Again    time.Duration
	Faults   int
	Operator string
	Policy   []byte
	Profiles []string
	Log      *slog.Logger
}

// Exit statuses of scanimage are those of SANE.
const (
	saneBusy   = 3
	saneJammed = 6
	saneNoDocs = 7
	saneCover  = 8
	saneIO     = 9
)

var saneFaults = map[int]string{saneBusy: event.FaultBusy, saneJammed: event.FaultJam, saneCover: event.FaultCoverOpen, saneIO: event.FaultIO}

// deviceError is a fault of the device: it passes, or somebody clears it.
type deviceError struct{ kind, says string }

func (d *deviceError) Error() string { return d.kind + ": " + d.says }

// ErrDevice: the device failed too often without a page between.
var ErrDevice = errors.New("gateway: the device keeps failing")

// scan scans pages until there are no more, or n of them (0: all there are), as
// files that pattern names (with a %d), the first as number from. each hears of
// every page that is whole, at once. The number of pages stands also beside an
// error.
func (s *Scanner) scan(ctx context.Context, pattern string, from, n int, each func(number int, path string) error) (pages int, err error) {
	args := []string{"-d", s.SANE, "--format=tiff", "--batch=" + pattern, "--batch-print", "--batch-start=" + strconv.Itoa(from)}
	for _, o := range s.Options {
		if name, value, _ := strings.Cut(o, "="); len(name) == 1 { // -x and -y
			args = append(args, "-"+name, value)
			continue
		}
		args = append(args, "--"+o)
	}
	if n > 0 {
		args = append(args, "--batch-count="+strconv.Itoa(n))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) } // it ends the scan, and lets go of the device
	cmd.WaitDelay = 10 * time.Second
	tail := &tailBuffer{}
	cmd.Stderr = tail
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, fmt.Errorf("gateway: %s: %w", s.Program, err)
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("gateway: %s: %w", s.Program, err)
	}
	var heard error
	for lines := bufio.NewScanner(out); lines.Scan(); {
		path := lines.Text()
		if want := fmt.Sprintf(pattern, from+pages); path != want {
			heard = fmt.Errorf("gateway: %s names the page %q, not %q", s.Program, path, want)
		} else if heard = each(from+pages, path); heard == nil {
			pages++
		}
		if heard != nil {
			cancel()
			break
		}
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case heard != nil:
		return pages, heard
	case err == nil:
		return pages, nil
	case !errors.As(err, &exit):
		return pages, fmt.Errorf("gateway: %s: %w", s.Program, err)
	}
	switch kind, ok := saneFaults[exit.ExitCode()]; {
	case exit.ExitCode() == saneNoDocs:
		return pages, nil
	case ok:
		return pages, &deviceError{kind, tail.last()}
	}
	return pages, fmt.Errorf("gateway: %s: %w: %s", s.Program, err, tail.last())
}

// tailBuffer keeps the end of what a program says.
type tailBuffer struct{ bytes.Buffer }

func (t *tailBuffer) Write(p []byte) (int, error) {
	if t.Len() > 8<<10 {
		t.Next(t.Len() - 4<<10)
	}
	return t.Buffer.Write(p)
}

// last is the last line that says anything.
func (t *tailBuffer) last() string {
	lines := strings.Split(strings.TrimSpace(t.String()), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// Batch scans a batch: count pages, or, where count is 0, all that lie in the
// feeder. A batch that was interrupted goes on behind the last page that is
// there. It returns when the broker, or the spool, has every page.
func (s *Scanner) Batch(ctx context.Context, id event.Name, count int) error {
	dir := filepath.Join(s.Dir, id.Encode())
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // the line reads here
		return fmt.Errorf("gateway: %w", err)
	}
	if count > 0 {
		if err := s.declare(ctx, id, count); err != nil {
			return err
		}
	}
	pattern := filepath.Join(escapePercent(dir), "p%04d"+s.Suffix)
	next := 1
	send := func(number int, path string) error {
		if err := s.send(ctx, event.FrameMessage{Slot: event.Slot{Batch: id, Frame: frameOf(number, s.Suffix)}, Sequence: number, Pass: 1}, path); err != nil {
			return err
		}
		next = number + 1
		return nil
	}
	for { // what an earlier run scanned, and perhaps could not tell
		path := fmt.Sprintf(pattern, next)
		if _, err := os.Lstat(path); err != nil {
			break
		}
		if err := send(next, path); err != nil {
			return err
		}
	}
	for faults := 0; count == 0 || next <= count; {
		left := 0
		if count > 0 {
			left = count - next + 1
		}
		pages, err := s.scan(ctx, pattern, next, left, send)
		if pages > 0 {
			faults = 0
		}
		var device *deviceError
		switch {
		case errors.As(err, &device):
			if err := s.report(ctx, device, event.CaptureFault{Batch: id, Frame: frameOf(next, s.Suffix), Sequence: next}); err != nil {
				return err
			}
			if faults++; faults >= s.Faults {
				return fmt.Errorf("%w at page %d: %w", ErrDevice, next, device)
			}
		case err != nil:
			return err
		case count == 0:
			if next == 1 {
				return errors.New("gateway: the feeder is empty")
			}
			return s.declare(ctx, id, next-1)
		case next <= count:
			s.Log.Info("feeder_empty", slog.String("batch_id", id.Display()), slog.Int("pages", next-1), slog.Int("declared", count))
		}
		if next <= count || count == 0 {
			if err := wait(ctx, s.Again); err != nil {
				return err
			}
		}
	}
	return nil
}

func frameOf(number int, suffix string) event.Name {
	return event.Name(fmt.Sprintf("p%04d%s", number, suffix))
}

// escapePercent keeps a path from being read as a pattern.
func escapePercent(path string) string { return strings.ReplaceAll(path, "%", "%%") }

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// declare says how many pages there are. Where the line knows already, it says
// only what is news.
func (s *Scanner) declare(ctx context.Context, id event.Name, count int) error {
	d := event.BatchDeclaration{Batch: id, Count: count, Order: event.OrderSequence, Operator: s.Operator, Devices: []string{s.Device}, Policy: s.Policy, Profiles: s.Profiles}
	known, err := s.Gateway.Known(ctx, id)
	if err != nil && !errors.Is(err, ErrAway) {
		return err
	}
	if known.Known {
		if known.Count == count {
			return nil
		}
		d = event.BatchDeclaration{Batch: id, Count: count, Follows: &known.Number}
	}
	return s.Gateway.Declare(ctx, d, known.Declarations())
}

// send publishes a page that is whole.
func (s *Scanner) send(ctx context.Context, m event.FrameMessage, path string) error {
	_, sum, st, err := digests(path)
	if err != nil {
		return fmt.Errorf("gateway: page: %w", err)
	}
	m.Sources, m.Size, m.SHA256, m.DeclaredBy = []string{fileURI(path)}, &st.Size, event.Digest(hex.EncodeToString(sum)), s.Gateway.Name
	m.Device, m.Operator, m.ScannedAt = s.Device, s.Operator, st.ModTime
	m.Acquisition = map[string]string{"protocol": "sane", "device": s.SANE, "driver": "scanimage"}
	for _, o := range s.Options {
		if k, v, ok := strings.Cut(o, "="); ok {
			m.Acquisition[k] = v
		}
	}
	return s.Gateway.Frame(ctx, m)
}

func (s *Scanner) report(ctx context.Context, d *deviceError, f event.CaptureFault) error {
	f.Device, f.Kind, f.Message, f.At = s.Device, d.kind, d.says, time.Now().UTC()
	s.Log.Warn("device_fault", slog.String("device", s.Device), slog.String("kind", d.kind), slog.Int("sequence", f.Sequence), slog.String("message", d.says))
	return s.Gateway.Fault(ctx, f)
}
