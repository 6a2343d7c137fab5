package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"colophon/shared/transfer"
)

func connect(t *testing.T) (*nats.Conn, *nats.Conn) {
	t.Helper()
	s, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("server is not ready")
	}
	var out [2]*nats.Conn
	for i := range out {
		if out[i], err = nats.Connect("", nats.InProcessServer(s)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(out[i].Close)
	}
	return out[0], out[1]
}

// serve answers requests on "files" by sending what files holds, in order.
func serve(t *testing.T, nc *nats.Conn, send func(ctx context.Context, inbox string) error) {
	t.Helper()
	_, err := nc.Subscribe("files", func(m *nats.Msg) {
		ctx, cancel := context.WithTimeout(context.Background(), transfer.Timeout(m.Header, time.Second))
		go func() {
			defer cancel()
			answer := &nats.Msg{Header: nats.Header{}, Data: []byte("done")}
			if err := send(ctx, m.Header.Get(transfer.HeaderInbox)); err != nil {
				answer.Header.Set("Nats-Service-Error", strings.ReplaceAll(err.Error(), "\n", " "))
				answer.Header.Set("Nats-Service-Error-Code", "500")
			}
			_ = m.RespondMsg(answer)
		}()
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

type file struct {
	bytes.Buffer
	closed bool
}

func (f *file) Close() error { f.closed = true; return nil }

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestFilesArriveWhole(t *testing.T) {
	t.Parallel()
	server, client := connect(t)
	rng := rand.New(rand.NewPCG(1, 2))
	files := map[string][]byte{}
	var names []string
	for i, size := range []int{0, 1, transfer.PartSize - 1, transfer.PartSize, transfer.PartSize + 1, 3*transfer.PartSize + 17} {
		data := make([]byte, size)
		for j := range data {
			data[j] = byte(rng.Uint32())
		}
		name := fmt.Sprintf("part-%d.xml", i)
		files[name], names = data, append(names, name)
	}
	serve(t, server, func(ctx context.Context, inbox string) error {
		for _, n := range names {
			if err := transfer.Send(ctx, server, inbox, n, bytes.NewReader(files[n])); err != nil {
				return err
			}
		}
		return nil
	})
	got := map[string]*file{}
	var order []string
	answer, err := transfer.FetchAnswer(deadline(t), client, "files", map[string]string{"kind": "all"}, func(n string) (io.WriteCloser, error) {
		got[n], order = &file{}, append(order, n)
		return got[n], nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if string(answer) != "done" || fmt.Sprint(order) != fmt.Sprint(names) {
		t.Fatalf("answer %q, files %v", answer, order)
	}
	for n, want := range files {
		if !got[n].closed || !bytes.Equal(got[n].Bytes(), want) {
			t.Errorf("%s: closed %v, %d bytes of %d", n, got[n].closed, got[n].Len(), len(want))
		}
	}
}

func TestNoFilesIsAnAnswer(t *testing.T) {
	t.Parallel()
	server, client := connect(t)
	serve(t, server, func(context.Context, string) error { return nil })
	err := transfer.Fetch(deadline(t), client, "files", struct{}{}, func(string) (io.WriteCloser, error) {
		return nil, errors.New("no file was to come")
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestServerFailureIsTold(t *testing.T) {
	t.Parallel()
	server, client := connect(t)
	serve(t, server, func(ctx context.Context, inbox string) error {
		w := transfer.NewWriter(ctx, server, inbox, "a")
		if _, err := w.Write(make([]byte, 2*transfer.PartSize)); err != nil {
			return err
		}
		return errors.New("the ledger is damaged")
	})
	f := &file{}
	err := transfer.Fetch(deadline(t), client, "files", struct{}{}, func(string) (io.WriteCloser, error) { return f, nil })
	var service *transfer.ServiceError
	if !errors.As(err, &service) || !errors.Is(err, transfer.ErrBroken) || !strings.Contains(service.Message, "damaged") {
		t.Fatalf("got %v", err)
	}
	if !f.closed {
		t.Error("the broken file was left open")
	}
}

func TestClientFailureStopsTheServer(t *testing.T) {
	t.Parallel()
	server, client := connect(t)
	told := make(chan error, 1)
	serve(t, server, func(ctx context.Context, inbox string) error {
		err := transfer.Send(ctx, server, inbox, "a", bytes.NewReader(make([]byte, 10*transfer.PartSize)))
		told <- err
		return err
	})
	full := errors.New("no space left")
	err := transfer.Fetch(deadline(t), client, "files", struct{}{}, func(string) (io.WriteCloser, error) { return nil, full })
	if !errors.Is(err, full) {
		t.Errorf("client got %v", err)
	}
	if err := <-told; !errors.Is(err, transfer.ErrRefused) {
		t.Errorf("server got %v", err)
	}
}

func TestClientThatIsGone(t *testing.T) {
	t.Parallel()
	server, _ := connect(t)
	err := transfer.Send(deadline(t), server, "_INBOX.nobody", "a", strings.NewReader("x"))
	if !errors.Is(err, nats.ErrNoResponders) {
		t.Fatalf("got %v", err)
	}
}

func TestNobodyServes(t *testing.T) {
	t.Parallel()
	_, client := connect(t)
	err := transfer.Fetch(deadline(t), client, "nobody", struct{}{}, func(string) (io.WriteCloser, error) { return &file{}, nil })
	if !errors.Is(err, nats.ErrNoResponders) {
		t.Fatalf("got %v", err)
	}
}
