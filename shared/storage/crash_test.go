package storage

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// child is this test binary run again, as a process that can be killed.
func child(role, root string) {
	s, err := Open(root)
	if err != nil {
		fmt.Println("FAILED", err)
		return
	}
	switch role {
	case "work":
		err = childWork(s)
	case "hold":
		err = childHold(s)
	}
	fmt.Println("FAILED", err)
}

// childWork stores, promotes and replaces for ever, and reports what it was
// told is stored.
func childWork(s *Store) error {
	ctx := context.Background()
	for i := 0; ; i++ {
		data := numbered(i) + numbered(rand.IntN(1<<20))
		d := digestOf(data)
		staged := StagingKey("b", "f", i, d)
		if _, err := s.Write(ctx, staged, strings.NewReader(data), Options{}); err != nil {
			return err
		}
		fmt.Println(staged)
		if _, err := s.Promote(ctx, staged, MasterKey(d), d); err != nil {
			return err
		}
		fmt.Println(MasterKey(d))
		if _, _, err := s.WriteDir(ctx, DerivativeKey("jp2", d, ""), parts(string(d), data, "two", "two"), Options{}); err != nil {
			return err
		}
		if _, err := s.ReplaceFile(ctx, ManifestKey("b"), []byte(string(d)+" "+data)); err != nil {
			return err
		}
		tree, err := s.NewTree(BagKey("b"))
		if err != nil {
			return err
		}
		if _, err := tree.Link(ctx, MasterKey(d), "data/"+string(d), d); err != nil {
			return err
		}
		if err := tree.Replace(ctx); err != nil {
			return err
		}
		fmt.Println(BagKey("b"))
	}
}

// childHold is in the middle of a file and of a folder until it is killed.
func childHold(s *Store) error {
	tree, err := s.NewTree(BagKey("b"))
	if err != nil {
		return err
	}
	if _, err := tree.Write(context.Background(), "x", strings.NewReader("x"), Options{}); err != nil {
		return err
	}
	_, err = s.Write(context.Background(), "staging/b/f", io.MultiReader(strings.NewReader("begun"), announce{}, os.Stdin), Options{})
	return err
}

// announce is an empty reader that says when it is reached.
type announce struct{}

func (announce) Read([]byte) (int, error) {
	fmt.Println("HOLDING")
	return 0, io.EOF
}

type victim struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
	stdin io.WriteCloser
}

func startChild(t *testing.T, role, root string) *victim {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "COLOPHON_STORAGE_CHILD="+role, "COLOPHON_STORAGE_ROOT="+root)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &victim{cmd: cmd, lines: bufio.NewScanner(out), stdin: in}
}

// kill ends the child with SIGKILL and gives the lines it still wrote.
func (v *victim) kill(t *testing.T) (rest []string) {
	t.Helper()
	if err := v.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	for v.lines.Scan() {
		rest = append(rest, v.lines.Text())
	}
	_ = v.cmd.Wait() // it was killed
	return rest
}

// TestKilled kills a working process at random moments. Whatever the moment:
// what it was told is stored is there, everything under a final name is whole,
// and a sweep leaves no temporary name.
func TestKilled(t *testing.T) {
	t.Parallel()
	swept := 0
	for round := range 25 {
		root := filepath.Join(t.TempDir(), "archive")
		v := startChild(t, "work", root)
		var told []string
		for range 1 + rand.IntN(40) {
			if !v.lines.Scan() {
				t.Fatal("the child ended by itself")
			}
			told = append(told, v.lines.Text())
		}
		// Some work of our own, so that the kill does not follow on a line.
		if _, _, err := Sum(t.Context(), io.LimitReader(zeros{}, rand.Int64N(8<<20))); err != nil {
			t.Fatal(err)
		}
		told = append(told, v.kill(t)...)

		s, err := Open(root)
		if err != nil {
			t.Fatal(err)
		}
		judge(t, s, told) // before the sweep: temporaries are never in the way
		n, err := s.SweepTemp(t.Context())
		if err != nil {
			t.Error(err)
		}
		swept += n
		noTemporaries(t, root)
		judge(t, s, told)
		if err := s.Close(); err != nil || t.Failed() {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	t.Logf("%d temporary files and folders were left by 25 kills, and swept", swept)
}

// judge compares everything under a final name with the digest that its name
// or its first word promises.
func judge(t *testing.T, s *Store, told []string) {
	t.Helper()
	for _, key := range told {
		if strings.HasPrefix(key, "FAILED") {
			t.Error(key)
		} else if _, err := s.Stat(key); err != nil {
			t.Errorf("told to be stored: %v", err)
		}
	}
	for _, area := range []string{"staging", "masters", "derivatives", "bags"} {
		for _, key := range listed(t, s, area) {
			want := path.Base(key)
			want = want[max(0, len(want)-64):]
			if want == "two" {
				want = string(digestOf("two"))
			}
			if got, _, err := s.Digest(t.Context(), key); err != nil || string(got) != want {
				t.Errorf("%s: digest %s, %v", key, got, err)
			}
			if area == "derivatives" && len(listed(t, s, path.Dir(key))) != 2 {
				t.Errorf("%s: half a folder", path.Dir(key))
			}
			if info, err := s.Stat(key); err != nil || info.Mode() != 0o444 {
				t.Errorf("%s: mode %v, %v", key, info.Mode(), err)
			}
		}
	}
	if ok, err := s.Exists(ManifestKey("b")); err != nil {
		t.Error(err)
	} else if ok {
		if d, data, _ := strings.Cut(content(t, s, ManifestKey("b")), " "); digestOf(data) != Digest(d) {
			t.Errorf("a torn manifest: %.80q", data)
		}
	}
}

// TestSweepSparesTheLiving: a live writer's temporaries stay, a dead one's go.
func TestSweepSparesTheLiving(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "archive")
	v := startChild(t, "hold", root)
	if !v.lines.Scan() || v.lines.Text() != "HOLDING" {
		t.Fatalf("the child says %q", v.lines.Text())
	}
	s, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // a test's end
	for range 3 {
		if n, err := s.SweepTemp(t.Context()); n != 0 || err != nil {
			t.Errorf("swept %d of a live writer's, %v", n, err)
		}
	}
	if got := files(t, root); len(got) != 3 { // the file, the folder, the file in it
		t.Errorf("the living has %q", got)
	}
	v.kill(t)
	if n, err := s.SweepTemp(t.Context()); n != 2 || err != nil {
		t.Errorf("swept %d of a dead writer's, %v", n, err)
	}
	if got := files(t, root); len(got) != 0 {
		t.Errorf("the dead left %q", got)
	}
}

// TestSweepAmongWriters: sweeps and writes at once disturb no write.
func TestSweepAmongWriters(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 300 {
			put(t, s, StagingKey("b", "f", i, digestOf(numbered(i))), numbered(i))
			if _, _, err := s.WriteDir(t.Context(), DerivativeKey("jp2", digestOf(numbered(i)), ""), parts("1", "1"), Options{}); err != nil {
				t.Error(err)
			}
		}
	}()
	for {
		select {
		case <-done:
			if got := len(files(t, s.Path())); got != 600 {
				t.Errorf("%d files", got)
			}
			return
		default:
		}
		if _, err := s.SweepTemp(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
