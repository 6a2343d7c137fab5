package standalone

import (
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
// of ours: the server has none.
type broker struct {
	srv  *server.Server
	lock *os.File
	file string // where others learn how to connect
}

// access is how another process of the same user connects.
type access struct {
	URL string `json:"url"` // with a password of this run: the file is for its owner only
	PID int    `json:"pid"`
}

func accessFile(archive string) string { return filepath.Join(archive, "state", "broker.json") }

// startBroker starts the server on a loopback address. listen may name host
// and port; empty takes a free port.
func startBroker(archive, listen string, log *slog.Logger) (*broker, error) {
	dir := filepath.Join(archive, "jetstream")
	for _, d := range []string{dir, filepath.Join(archive, "state")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("standalone: %w", err)
		}
	}
	lock, err := lockFile(lockPath(archive))
	if err != nil {
		return nil, err
	}
	b := &broker{lock: lock, file: accessFile(archive)}
	if err := b.start(dir, listen, log); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
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

func (b *broker) start(dir, listen string, log *slog.Logger) error {
	host, port := "127.0.0.1", server.RANDOM_PORT
	if listen != "" {
		h, p, err := net.SplitHostPort(listen)
		if err != nil {
			return fmt.Errorf("standalone: --listen: %w", err)
		}
		n, err := strconv.Atoi(p)
		if err != nil {
			return fmt.Errorf("standalone: --listen: %w", err)
		}
		ip := net.ParseIP(h)
		if h != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return fmt.Errorf("standalone: --listen %s: only loopback addresses are served without credentials of your own", listen)
		}
		host, port = h, n
		if port == 0 {
			port = server.RANDOM_PORT
		}
	}
	password := rand.Text()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost) // 128 random bits need no slow hash
	if err != nil {
		return fmt.Errorf("standalone: broker: %w", err)
	}
	srv, err := server.NewServer(&server.Options{
		ServerName: "colophon", Host: host, Port: port, NoSigs: true, Users: []*server.User{{Username: "colophon", Password: string(hash)}},
		JetStream: true, StoreDir: dir, SyncAlways: true, SyncInterval: syncInterval, DisableJetStreamBanner: true,
		JetStreamMaxStore: 1 << 40, MaxPayload: 1 << 20,
	})
	if err != nil {
		return fmt.Errorf("standalone: broker: %w", err)
	}
	srv.SetLoggerV2(brokerLog{log}, false, false, false)
	srv.Start()
	if !srv.ReadyForConnections(time.Minute) {
		srv.Shutdown()
		return errors.New("standalone: the broker did not start within a minute")
	}
	b.srv = srv
	u := url.URL{Scheme: "nats", User: url.UserPassword("colophon", password), Host: srv.Addr().String()}
	data, err := json.Marshal(access{u.String(), os.Getpid()})
	if err != nil {
		return fmt.Errorf("standalone: %w", err)
	}
	if err := writePrivate(b.file, data); err != nil {
		srv.Shutdown()
		return fmt.Errorf("standalone: %w", err)
	}
	return nil
}

func writePrivate(path string, data []byte) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func (b *broker) stop() {
	_ = os.Remove(b.file)
	b.srv.Shutdown()
	b.srv.WaitForShutdown()
	_ = b.lock.Close()
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
