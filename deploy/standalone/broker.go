package standalone

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/crypto/bcrypt"
)

// syncInterval bounds how late folders of the broker's files are synced; its
// data blocks are synced at each message (sync_interval: always).
const syncInterval = 10 * time.Second

// ErrRunning says that another process holds the archive's broker.
var ErrRunning = errors.New("standalone: the archive is in use by another process")

// broker is the embedded server, below jetstream/ of an archive, with a lock
// of ours: the server has none. A server that no longer stores messages is
// replaced by another one; see mind.
type broker struct {
	dir      string
	host     string
	port     int   // of the first server, and of every later one
	door     *door // of other machines; nil: there is none
	password string
	hash     string
	lock     *os.File
	file     string // where others learn how to connect
	mark     uint64 // bytes free that a server needs to be started again
	log      *slog.Logger

	mu     sync.Mutex
	srv    *server.Server // nil between two servers
	failed error          // why nothing is stored, nil while it is
	look   func(*server.Server) error

	end    context.CancelFunc
	minded chan struct{} // closed when nobody minds the server any more
}

// access is how another process of the same user connects.
type access struct {
	URL string `json:"url"` // with a password of this run: the file is for its owner only
	PID int    `json:"pid"`
	// Certificate is the digest of the broker's certificate, where it has one.
	Certificate string `json:"certificate,omitempty"`
}

func accessFile(archive string) string { return filepath.Join(archive, "state", "broker.json") }

// startBroker starts the server on a loopback address. listen may name host
// and port; empty takes a free port.
func startBroker(o Options, listen string) (*broker, error) {
	b := &broker{dir: filepath.Join(o.Archive, "jetstream"), file: accessFile(o.Archive), mark: o.mark(), log: o.Log, look: ailing, minded: make(chan struct{})}
	for _, d := range []string{b.dir, filepath.Join(o.Archive, "state")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("standalone: %w", err)
		}
	}
	var err error
	if b.door, err = o.Door.open(listen); err != nil {
		return nil, err
	}
	if b.lock, err = lockFile(lockPath(o.Archive)); err != nil {
		return nil, err
	}
	if err := b.first(listen); err != nil {
		return nil, errors.Join(err, b.lock.Close())
	}
	ctx, end := context.WithCancel(context.Background())
	b.end = end
	go b.mind(ctx)
	return b, nil
}

func lockPath(archive string) string {
	return filepath.Join(archive, "jetstream", "colophon.lock")
}

func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("standalone: lock: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errors.Join(ErrRunning, f.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("standalone: lock: %w", err), f.Close())
	}
	return f, nil
}

// first starts the first server and tells how to reach it.
func (b *broker) first(listen string) error {
	if err := b.address(listen); err != nil {
		return err
	}
	b.password = rand.Text()
	hash, err := bcrypt.GenerateFromPassword([]byte(b.password), bcrypt.MinCost) // 128 random bits need no slow hash
	if err != nil {
		return fmt.Errorf("standalone: broker: %w", err)
	}
	b.hash = string(hash)
	if err := b.start(); err != nil {
		return err
	}
	b.port = b.srv.Addr().(*net.TCPAddr).Port
	u := url.URL{Scheme: "nats", User: url.UserPassword("colophon", b.password), Host: b.srv.Addr().String()}
	if b.door != nil { // whatever it listens on, this machine reaches itself
		u.Host = net.JoinHostPort(reachable(b.host), strconv.Itoa(b.port))
	}
	data, err := json.Marshal(access{URL: u.String(), PID: os.Getpid(), Certificate: b.door.digest()})
	if err == nil {
		err = writePrivate(b.file, data)
	}
	if err != nil {
		b.shutdown()
		return fmt.Errorf("standalone: %w", err)
	}
	return nil
}

// address reads where to listen.
func (b *broker) address(listen string) error {
	b.host, b.port = "127.0.0.1", server.RANDOM_PORT
	if listen == "" {
		return nil
	}
	h, p, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("standalone: --listen: %w", err)
	}
	n, err := strconv.Atoi(p)
	if err != nil {
		return fmt.Errorf("standalone: --listen: %w", err)
	}
	b.host = h
	if n != 0 {
		b.port = n
	}
	return nil
}

// start starts a server on the folder.
func (b *broker) start() error {
	o := &server.Options{
		ServerName: "colophon", Host: b.host, Port: b.port, NoSigs: true, Users: []*server.User{{Username: "colophon", Password: b.hash}},
		JetStream: true, StoreDir: b.dir, SyncAlways: true, SyncInterval: syncInterval, DisableJetStreamBanner: true,
		JetStreamMaxStore: 1 << 40, MaxPayload: 1 << 20,
	}
	if err := b.door.admit(o); err != nil {
		return err
	}
	srv, err := server.NewServer(o)
	if err != nil {
		return fmt.Errorf("standalone: broker: %w", err)
	}
	srv.SetLoggerV2(brokerLog{b.log}, false, false, false)
	srv.Start()
	if !srv.ReadyForConnections(time.Minute) {
		srv.Shutdown()
		srv.WaitForShutdown()
		return errors.New("standalone: the broker did not start within a minute")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.srv = srv
	return nil
}

// InProcessConn implements [nats.InProcessConnProvider]: it reaches whichever
// server runs now, so that a connection outlives the server it was made to.
func (b *broker) InProcessConn() (net.Conn, error) {
	srv := b.server()
	if srv == nil {
		return nil, errors.New("standalone: the broker is down")
	}
	return srv.InProcessConn()
}

func (b *broker) server() *server.Server {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.srv
}

func writePrivate(path string, data []byte) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func (b *broker) stop() {
	b.end()
	<-b.minded
	_ = os.Remove(b.file)
	b.shutdown()
	_ = b.lock.Close()
}

func (b *broker) shutdown() {
	b.mu.Lock()
	srv := b.srv
	b.srv = nil
	b.mu.Unlock()
	if srv != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
	}
}

// readAccess tells how to reach the process that holds the archive.
func readAccess(archive string) (access, error) {
	var a access
	data, err := os.ReadFile(accessFile(archive))
	if err != nil {
		return a, fmt.Errorf("standalone: %w", err)
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return a, fmt.Errorf("standalone: %w", err)
	}
	return a, nil
}

// brokerLog passes the server's words to slog.
type brokerLog struct{ l *slog.Logger }

func (b brokerLog) say(l slog.Level, format string, args []any) {
	b.l.Log(nil, l, "broker", slog.String("message", fmt.Sprintf(format, args...))) //nolint:staticcheck // the server hands no context
}
func (b brokerLog) Noticef(format string, args ...any) { b.say(slog.LevelDebug, format, args) }
func (b brokerLog) Warnf(format string, args ...any)   { b.say(slog.LevelWarn, format, args) }
func (b brokerLog) Fatalf(format string, args ...any)  { b.say(slog.LevelError, format, args) }
func (b brokerLog) Errorf(format string, args ...any)  { b.say(slog.LevelError, format, args) }
func (b brokerLog) Debugf(format string, args ...any)  { b.say(slog.LevelDebug, format, args) }
func (b brokerLog) Tracef(format string, args ...any)  { b.say(slog.LevelDebug, format, args) }
