// Package premis keeps the preservation ledger: every event once, in log order.
//
//   - Takes every fact of the stream INGEST, through the durable consumer
//     premis, up to 1,024 at a time, always in log order: what arrives late or
//     twice is read from the stream itself.
//   - Keys by the event's name (MAPPING section 2), made from type, content,
//     slot, pass and attempt; never from time or delivery.
//   - Does one thing: it maps facts to PREMIS events and appends those whose
//     names are new, with the tree's nodes and the position in the log, in one
//     synced commit. Appending is the effect, so recording comes first here and
//     the acknowledgement after it.
//   - Publishes nothing. It answers premis.export, premis.position and
//     premis.checkpoint.
//   - Refuses a ledger whose nodes do not give its root, a ledger of another
//     origin, and facts of a schema it does not know.
package premis

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"colophon/services/premis/internal/checkpoint"
	"colophon/services/premis/internal/ledger"
)

// Config is what the service is told.
type Config struct {
	Dir         string // the ledger's directory; created
	Origin      string // names the installation for good, such as archive.example.org/colophon
	Checkpoints string // where premis.checkpoint puts copies; default: beside Dir. What lies there at the start is removed
	// Key is the file of the key that signs checkpoints, outside Dir and
	// whatever is copied with it; made at the first start. Empty: this copy of
	// the ledger signs none. Of those that follow one log, one signs.
	Key     string
	Every   time.Duration // longest time between two checkpoints of a ledger that grows; default: a day
	Version string        // of this build, semantic: nats.go/micro asks for it
	Cache   int64         // bytes of the ledger's blocks kept in memory
	Batch   int           // most facts in one commit
	Exports int           // exports at once; further ones wait
	Wait    time.Duration // for the position an export asks for, where its client does not say
	Logger  *slog.Logger
}

// Defaults are the values of an installation that sets none.
func Defaults() Config {
	return Config{
		Origin: "localhost/colophon", Version: "0.0.0", Cache: 64 << 20, Batch: ledger.MaxBatch, Exports: 2, Wait: 30 * time.Second,
		Every:  24 * time.Hour,
		Logger: slog.New(slog.DiscardHandler),
	}
}

// withDefaults fills what is not set.
func (c Config) withDefaults() Config {
	d := Defaults()
	if c.Origin == "" {
		c.Origin = d.Origin
	}
	if c.Version == "" {
		c.Version = d.Version
	}
	if c.Cache == 0 {
		c.Cache = d.Cache
	}
	if c.Batch == 0 {
		c.Batch = d.Batch
	}
	if c.Exports == 0 {
		c.Exports = d.Exports
	}
	if c.Wait == 0 {
		c.Wait = d.Wait
	}
	if c.Every == 0 {
		c.Every = d.Every
	}
	if c.Logger == nil {
		c.Logger = d.Logger
	}
	if c.Checkpoints == "" && c.Dir != "" {
		c.Checkpoints = filepath.Join(filepath.Dir(filepath.Clean(c.Dir)), "premis-checkpoints")
	}
	return c
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("dir: the ledger needs a directory"))
	}
	if c.Batch < 1 || c.Batch > ledger.MaxBatch {
		errs = append(errs, fmt.Errorf("batch: %d is not in 1..%d", c.Batch, ledger.MaxBatch))
	}
	if c.Cache < 0 {
		errs = append(errs, fmt.Errorf("cache: %d bytes is negative", c.Cache))
	}
	if c.Exports < 1 {
		errs = append(errs, fmt.Errorf("exports: %d is less than 1", c.Exports))
	}
	if c.Wait < 0 {
		errs = append(errs, fmt.Errorf("wait: %v is negative", c.Wait))
	}
	if c.Key != "" && strings.Contains(c.Origin, "+") {
		errs = append(errs, fmt.Errorf("origin: %q holds a plus sign, which no signed checkpoint can", c.Origin))
	}
	if within(c.Key, c.Dir) {
		errs = append(errs, fmt.Errorf("key: %s lies inside the ledger's folder: whoever copies that would get the key with it", c.Key))
	}
	for _, r := range c.Origin {
		if r <= ' ' || r == 0x7f {
			errs = append(errs, fmt.Errorf("origin: %q holds a space or a control character", c.Origin))
			break
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("premis: configuration: %w", err)
	}
	return nil
}

func within(path, dir string) bool {
	if path == "" || dir == "" {
		return false
	}
	rel, err := filepath.Rel(filepath.Clean(dir), filepath.Clean(path))
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

// Service is the running service.
type Service struct {
	cfg     Config
	nc      *nats.Conn
	ledger  *ledger.Ledger
	log     *slog.Logger
	slots   chan struct{}      // one for each export under way
	signer  *checkpoint.Signer // nil: this copy signs nothing
	due     bool               // a checkpoint is to be signed
	retold  bool               // the log is known to hold every checkpoint
	started time.Time
	told    int64 // size of the last checkpoint that is known to be in the log
	ready   chan struct{}
}

// New opens the ledger. [Service.Run] serves it, [Service.Close] closes it.
func New(cfg Config, nc *nats.Conn) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	l, err := ledger.Open(cfg.Dir, ledger.Options{Origin: cfg.Origin, Cache: cfg.Cache, Logger: cfg.Logger})
	if err != nil {
		return nil, fmt.Errorf("premis: %w", err)
	}
	s := &Service{
		cfg: cfg, nc: nc, ledger: l, log: cfg.Logger, slots: make(chan struct{}, cfg.Exports), ready: make(chan struct{}),
		started: time.Now(),
	}
	if err := errors.Join(s.openSigner(), removeCopies(cfg.Checkpoints)); err != nil {
		return nil, fmt.Errorf("premis: %w", errors.Join(err, s.Close()))
	}
	return s, nil
}

// Ready is closed when the service follows the log and answers requests.
func (s *Service) Ready() <-chan struct{} { return s.ready }

// Close closes the ledger; Run has returned before.
func (s *Service) Close() error {
	err := s.ledger.Close()
	if s.signer != nil {
		err = errors.Join(err, s.signer.Close())
	}
	return err
}

// Position answers premis.position: where the ledger stands.
type Position struct {
	Sequence uint64    `json:"sequence"` // of the last fact taken in
	Stored   time.Time `json:"stored,omitzero"`
	MsgID    string    `json:"msg_id,omitempty"`
	Size     int64     `json:"size"` // records
	Root     string    `json:"root"` // base64
	Origin   string    `json:"origin"`
}

// Position tells where the ledger stands.
func (s *Service) Position() Position { return position(s.ledger.Head()) }

func position(h ledger.Head) Position {
	return Position{
		Sequence: h.Position.Sequence, Stored: h.Position.Stored, MsgID: h.Position.MsgID,
		Size: h.Size, Root: h.Root.String(), Origin: h.Origin,
	}
}
