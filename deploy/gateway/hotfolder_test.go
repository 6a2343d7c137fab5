package gateway

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/testkit"
)

// manyFiles is how many files come at once.
var manyFiles = 1000

// page is a master of some size; front lines look at no image.
func page(name string, n int) []byte {
	return bytes.Repeat([]byte("page "+name+"\n"), n)
}

// running runs a hot folder until the test ends.
func running(t testing.TB, h *HotFolder) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = h.Run(ctx, false)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

// moved waits until a batch has left the hot folder.
func (l *line) moved(hotDir string, b string) {
	l.Helper()
	testkit.EventuallyWithin(l, 4*time.Minute, b+" is taken in and moved", func() bool {
		_, err := os.Stat(filepath.Join(hotDir, b))
		return errors.Is(err, os.ErrNotExist)
	})
}

// TestHotFolder: however files come to be in it, each is taken in once and
// whole.
func TestHotFolder(t *testing.T) {
	t.Parallel()
	dir := testkit.TempDir(t)
	l := front(t, dir)
	h := hot(l.gateway("hot"), dir, filepath.Join(l.dir, "journal"), l.log.Logger())
	h.Ignore, h.Device, h.Operator = []string{"Thumbs.db", "*.bak"}, "left", "op-7"
	running(t, h)
	var writers sync.WaitGroup
	defer writers.Wait()

	t.Run("slow append", func(t *testing.T) {
		want := page("slow", 3000)
		f, err := os.Create(mkdir(t, dir, "slow") + "/a.tif")
		testkit.OK(t, err)
		for i := 0; i < len(want); i += len(want)/20 + 1 {
			_, err := f.Write(want[i:min(len(want), i+len(want)/20+1)])
			testkit.OK(t, err)
			time.Sleep(60 * time.Millisecond) // the slow writer; well below the settle time
		}
		testkit.OK(t, f.Close())
		l.moved(dir, "slow")
		l.exactlyOnce(dir, "slow", map[string][]byte{"a.tif": want})
	})
	t.Run("renamed into place, with sidecars", func(t *testing.T) {
		want := map[string][]byte{"sub/b.tif": page("b", 10), "a.tif": page("a", 10), "meta.xml": []byte("<meta/>"), "sub/b.xmp": []byte("x")}
		mkdir(t, dir, ".incoming") // hidden: nobody's batch
		for name, data := range want {
			write(t, filepath.Join(dir, ".incoming", name), data)
		}
		testkit.OK(t, os.Rename(filepath.Join(dir, ".incoming"), filepath.Join(dir, "renamed")))
		l.moved(dir, "renamed")
		l.exactlyOnce(dir, "renamed", want)
		for _, f := range l.facts(event.SubjectFrameFixed) {
			if f := f.(event.FrameFixed); f.Frame == "sub/b.tif" && (f.Captured.Device != "left" || f.Captured.Operator != "op-7" || f.Captured.Gateway != "hot" || f.Captured.Declared == "" || f.Sequence != 2) {
				t.Errorf("the fact lacks something: %+v", f.Captured)
			}
		}
	})
	t.Run("written under another name", func(t *testing.T) {
		b := mkdir(t, dir, "part")
		write(t, b+"/a.tif", page("a", 5))
		f, err := os.Create(b + "/b.tif.part")
		testkit.OK(t, err)
		want := page("b", 2000)
		for i := range 10 {
			_, err := f.Write(want[i*len(want)/10 : (i+1)*len(want)/10])
			testkit.OK(t, err)
			time.Sleep(60 * time.Millisecond) // see above
		}
		testkit.OK(t, errors.Join(f.Close(), os.Rename(b+"/b.tif.part", b+"/b.tif")))
		l.moved(dir, "part")
		l.exactlyOnce(dir, "part", map[string][]byte{"a.tif": page("a", 5), "b.tif": want})
	})
	t.Run("replaced again and again", func(t *testing.T) {
		b := mkdir(t, dir, "replaced")
		var last []byte
		for i := range 30 {
			last = page(fmt.Sprint("version ", i), 100+i)
			write(t, dir+"/.tmp-replaced", last)
			testkit.OK(t, os.Rename(dir+"/.tmp-replaced", b+"/a.tif"))
			time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond) // a writer's own pace
		}
		l.moved(dir, "replaced")
		l.exactlyOnce(dir, "replaced", map[string][]byte{"a.tif": last})
	})
	t.Run("left alone", func(t *testing.T) {
		b := mkdir(t, dir, "ignored")
		write(t, b+"/a.tif", page("a", 3))
		for _, name := range []string{".DS_Store", "Thumbs.db", "old.bak", ".hidden/x.tif"} {
			write(t, b+"/"+name, []byte("x"))
		}
		write(t, dir+"/loose.tif", page("loose", 1))
		testkit.Eventually(t, "the master is moved", func() bool { return len(files(t, dir+"/done/ignored")) == 1 })
		if left := files(t, b); len(left) != 4 || len(files(t, dir+"/done/ignored")["a.tif"]) == 0 {
			t.Errorf("what was to be left alone: %d files are left", len(left))
		}
	})
	t.Run("a second delivery of the same batch", func(t *testing.T) {
		b := mkdir(t, dir, "twice")
		write(t, b+"/1.tif", page("1", 3))
		l.moved(dir, "twice")
		mkdir(t, dir, "twice")
		write(t, b+"/2.tif", page("2", 3))
		write(t, b+"/1.tif", page("1", 3)) // once more
		l.moved(dir, "twice")
		done := files(t, dir+"/done/twice")
		if k := l.known("twice"); k.Count != 2 || len(k.Frames) != 2 || k.Frames["2.tif"].Sequence != 2 {
			t.Errorf("%+v", k)
		}
		if len(done) != 3 || !bytes.Equal(done["1.tif"], done["1~2.tif"]) {
			t.Errorf("done/ holds %d files", len(done))
		}
	})
}

func mkdir(t testing.TB, parts ...string) string {
	t.Helper()
	p := filepath.Join(parts...)
	testkit.OK(t, os.MkdirAll(p, 0o755))
	return p
}

// TestHotFolderLists: a vendor's list says what is whole, and what is wrong.
func TestHotFolderLists(t *testing.T) {
	t.Parallel()
	dir := testkit.TempDir(t)
	l := front(t, dir)
	h := hot(l.gateway("hot"), dir, filepath.Join(l.dir, "journal"), l.log.Logger())
	running(t, h)
	a, b := page("a", 5), page("b", 7)
	sum5 := func(d []byte) string { return strings.ToUpper(fmt.Sprintf("%x", md5.Sum(d))) }
	sum256 := func(d []byte) string { return string(testkit.Digest(string(d))) }

	good := map[string][]byte{"img/a.tif": a, "img/b.tif": b, "md5sums.txt": []byte("\xef\xbb\xbf" + sum5(a) + "\t*img\\a.tif\r\n" + sum5(b) + "\t*img\\b.tif\r\n")}
	write(t, dir+"/good/md5sums.txt", good["md5sums.txt"]) // the list first: it waits for the files
	write(t, dir+"/good/img/a.tif", a)
	write(t, dir+"/good/img/b.tif", b)
	l.moved(dir, "good")
	l.exactlyOnce(dir, "good", good)

	held := func(batch, why string) {
		t.Helper()
		testkit.Eventually(t, batch+" is held", func() bool { return l.log.Count("batch_held") > 0 && strings.Contains(l.log.String(), why) })
		if k := l.known(event.Name(batch)); len(k.Frames) != 0 && batch != "wrong5" {
			t.Errorf("%s is held, and has %d frames", batch, len(k.Frames))
		}
	}
	write(t, dir+"/none/a.tif", a)
	write(t, dir+"/none/checksums.md5", []byte(sum5(a)+"  other.tif\n"))
	held("none", "the lists name not one")
	write(t, dir+"/missing/a.tif", a)
	write(t, dir+"/missing/checksums.md5", []byte(sum5(a)+"  a.tif\n"+sum5(b)+"  never-came.tif\n"))
	held("missing", "never-came.tif")
	write(t, dir+"/unlisted/a.tif", a)
	write(t, dir+"/unlisted/b.tif", b)
	write(t, dir+"/unlisted/a.sha256", []byte(sum256(a)+"  a.tif\n"))
	held("unlisted", "is on no list")

	write(t, dir+"/wrong5/a.tif", a)
	write(t, dir+"/wrong5/b.tif", b)
	write(t, dir+"/wrong5/checksums.md5", []byte(sum5(a)+"  a.tif\n"+sum5(a)+"  b.tif\n"))
	held("wrong5", "its MD5 is")
	l.until("the good one of them", "wrong5", func(k Known) bool {
		return k.Count == 2 && k.Frames["a.tif"].Pinned != "" && k.Totals.Missing == 1
	})
	write(t, dir+"/wrong5/b.tif", a) // mended
	l.moved(dir, "wrong5")

	write(t, dir+"/wrong256/a.tif", a)
	write(t, dir+"/wrong256/b.tif", b)
	write(t, dir+"/wrong256/manifest-sha256.txt", []byte(sum256(a)+"  a.tif\n"+sum256(a)+"  b.tif\n"))
	l.until("the line quarantines what the vendor's SHA-256 denies", "wrong256", func(k Known) bool {
		f := k.Frames["b.tif"]
		return len(f.Troubles) == 1 && f.Troubles[0].Code == string(fault.DigestMismatch) && k.Frames["a.tif"].Pinned != ""
	})
	write(t, dir+"/wrong256/b.tif", a)
	l.until("mended, and sent under the next pass", "wrong256", func(k Known) bool { return k.Frames["b.tif"].Pinned == event.Digest(sum256(a)) })
	l.moved(dir, "wrong256")
}

// TestHotFolderKilled: many files at once, a gateway killed at any moment and a
// broker that goes away: every file exactly once, none half.
func TestHotFolderKilled(t *testing.T) {
	t.Parallel()
	dir := testkit.TempDir(t)
	l := front(t, dir)
	want := map[string][]byte{}
	for i := range manyFiles {
		want[fmt.Sprintf("%02d/%05d.tif", i/100, i)] = page(fmt.Sprint(i), 20+i%50)
	}
	writing := make(chan struct{})
	go func() {
		defer close(writing)
		for name, data := range want {
			write(t, filepath.Join(dir, "many", name), data)
		}
	}()
	start := func() *testkit.Child { return testkit.StartChild(t, "hotfolder", l.url, dir, l.dir) }
	c := start()
	kills := 0
	for end := time.Now().Add(4*time.Minute + time.Duration(manyFiles)*50*time.Millisecond); ; {
		time.Sleep(time.Duration(50+rand.IntN(900)) * time.Millisecond) // the moment of the kill
		if _, err := os.Stat(filepath.Join(dir, "many")); errors.Is(err, os.ErrNotExist) && kills > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d files are left in the hot folder", len(files(t, filepath.Join(dir, "many"))))
		}
		if kills >= 12 { // enough: let it come to an end
			continue
		}
		c.Kill()
		kills++
		if kills == 4 {
			l.broker.Kill()
			c = start()
			time.Sleep(300 * time.Millisecond) // the gateway goes on without a broker
			l.broker.Start()
			continue
		}
		c = start()
	}
	<-writing
	c.Kill()
	t.Logf("%d files, %d kills", manyFiles, kills)
	l.exactlyOnce(dir, "many", want)
}

// TestHotFolderWithoutBroker: what cannot be told now is told later, also by
// the next process.
func TestHotFolderWithoutBroker(t *testing.T) {
	t.Parallel()
	dir := testkit.TempDir(t)
	l := front(t, dir)
	l.nc.Close()
	l.broker.Stop()
	want := map[string][]byte{"a.tif": page("a", 5), "b.tif": page("b", 5)}
	for name, data := range want {
		write(t, filepath.Join(dir, "away", name), data)
	}
	spool := filepath.Join(l.dir, "spool")
	c := testkit.StartChild(t, "hotfolder", l.url, dir, l.dir)
	testkit.Eventually(t, "declaration and frames are spooled", func() bool { return len(files(t, spool)) == 3 })
	c.Kill()
	l.broker.Start()
	l.nc, l.js = l.broker.Connect()
	c = testkit.StartChild(t, "hotfolder", l.url, dir, l.dir)
	defer c.Kill()
	l.moved(dir, "away")
	l.exactlyOnce(dir, "away", want)
	if left := files(t, spool); len(left) != 0 {
		t.Errorf("%d messages are left in the spool", len(left))
	}
}

// TestHotFolderOnFullDisk: a folder without a byte left loses nothing, and
// takes nothing in half.
func TestHotFolderOnFullDisk(t *testing.T) {
	t.Parallel()
	dir := testkit.TempDir(t)
	disk := mkdir(t, dir, "disk")
	testkit.OK(t, syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=512k"))
	t.Cleanup(func() { testkit.OK(t, syscall.Unmount(disk, syscall.MNT_DETACH)) })
	l := front(t, disk)
	want := map[string][]byte{}
	for i := range 20 {
		name := fmt.Sprintf("%02d.tif", i)
		want[name] = page(name, 300)
		write(t, filepath.Join(disk, "full", name), want[name])
	}
	ballast := filepath.Join(disk, ".ballast")
	f, err := os.Create(ballast)
	testkit.OK(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	testkit.OK(t, f.Close())
	// The last file comes in half, and its writer gives up and comes back.
	half := page("half", 600)
	if err := os.WriteFile(filepath.Join(disk, "full", "half.tif.part"), half, 0o644); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk takes %d bytes: %v", len(half), err)
	}
	h := hot(l.gateway("hot"), disk, filepath.Join(disk, ".colophon"), l.log.Logger()) // the journal is on it, too
	running(t, h)
	testkit.Eventually(t, "what is whole is taken in all the same", func() bool { return len(l.facts(event.SubjectFrameFixed)) == len(want) })
	testkit.OK(t, os.Remove(ballast))
	want["half.tif"] = half
	write(t, filepath.Join(disk, "full", "half.tif.part"), half)
	testkit.OK(t, os.Rename(filepath.Join(disk, "full", "half.tif.part"), filepath.Join(disk, "full", "half.tif")))
	l.moved(disk, "full")
	l.exactlyOnce(disk, "full", want)
}
