package e2e

import (
	"slices"
)

// judge demands everything of a converged batch whose every frame is done.
func (a *archive) judge(batch string, frames []frame, allowed ...string) {
	t := a.t
	t.Helper()
	var masters []string
	for _, f := range frames {
		masters = append(masters, a.master(f.data))
	}
	slices.Sort(masters)
	masters = slices.Compact(masters)
	if n := a.sha256sum(); n < len(masters) {
		t.Errorf("%d masters are stored, there should be %d", n, len(masters))
	}
	for _, d := range masters {
		a.decodes(d)
	}
	a.noStrays()
	payload := a.bag(batch)
	if len(payload) != 2*len(frames) {
		t.Errorf("the bag holds %d files for %d frames", len(payload), len(frames))
	}
	held := map[string]int{}
	for _, d := range payload {
		held[d]++
	}
	for _, d := range masters {
		if held[d] == 0 {
			t.Errorf("the bag lacks master %s", d)
		}
	}
	m := a.manifest(batch)
	if m.State != "converged" || m.Totals.Declared != len(frames) || m.Totals.Done != len(frames) || len(m.Frames) != len(frames) {
		t.Errorf("the manifest says %s, %+v, %d frames", m.State, m.Totals, len(m.Frames))
	}
	for i, f := range m.Frames {
		if f.Sequence != i+1 || f.State != "done" {
			t.Errorf("frame %d of the manifest: %+v", i+1, f)
		}
	}
	exactly(t, a.ledger(batch), names(batch, frames, a.outputs()), allowed...)
	a.verify(0)
}

// verify has the archive judged by the program that is written for it.
func (a *archive) verify(want int) {
	a.t.Helper()
	if !hasVerify() {
		return
	}
	a.run("verify", "--json").status(want)
}

// retried are the events of attempts that ended with their worker.
var retried = []string{"retry"}
