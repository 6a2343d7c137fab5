package capture

import (
	"testing"

	"colophon/shared/event"
	"colophon/shared/storage"
	"colophon/shared/testkit"
)

func (r *rig) decide(op event.Operation, slot event.Slot, state string) {
	r.Helper()
	testkit.Publish(r, r.js, event.CaseFact{Schema: event.SchemaCase, ID: event.CaseID(op, slot, ""), Slot: slot, Operation: op, Pass: 2, State: state, Number: 1})
}

func TestDiscards(t *testing.T) {
	r := newRig(t)
	r.premis()
	r.start()
	r.opened(3, 1)
	unfixed := r.take(r.message("unfixed", r.source("u.tif", "uuu")))
	other := r.take(r.message("other", r.source("o.tif", "ooo")))
	r.done(r.take(r.message("done", r.source("d.tif", "ddd"))))
	m := r.message("done", r.source("d.tif", "rewritten"))
	m.Pass = 2
	r.refuse(m)
	expect(t, "staged", len(r.stagedFiles()), 3)

	r.stop() // decided while nobody listens
	r.decide(event.Fixity, unfixed.Slot, event.CaseDiscarded)
	r.decide(event.Derivative("jp2"), other.Slot, event.CaseDiscarded)
	r.start()
	testkit.Eventually(t, "the bytes of the discarded slot go", func() bool { return !r.there(unfixed.Staging) })
	r.decide(event.SourceChanged, m.Slot, event.CaseDiscarded)
	testkit.Eventually(t, "the refused bytes go", func() bool { return len(r.stagedFiles()) == 1 })
	expect(t, "the bytes of a slot with a derivative waived stay", r.there(other.Staging), true)
	r.status("the done slot stays done", func(st event.BatchStatus) bool {
		return st.Totals == event.Totals{Declared: 3, Done: 1, Pending: 1, Discarded: 1}
	})

	// Refused once more, and then the source was restored: that case is resolved.
	m = r.message("done", r.source("d.tif", "rewritten again"))
	m.Pass = 3
	r.refuse(m)
	r.decide(event.SourceChanged, m.Slot, event.CaseResolved)
	testkit.Eventually(t, "the refused bytes go", func() bool { return len(r.stagedFiles()) == 1 })

	// A revision that is on its way is not what was refused.
	m.Pass, m.Replaces = 4, testkit.Digest("ddd")
	c := r.take(m)
	r.decide(event.SourceChanged, event.Slot{Batch: "b", Frame: "done"}, event.CaseRescan) // any fact behind it
	testkit.PublishRaw(t, r.js, event.SubjectCase+".discarded", nil, testkit.JSON(t, event.CaseFact{
		Schema: event.SchemaCase, Slot: c.Slot, Operation: event.SourceChanged, Pass: 3, State: event.CaseDiscarded, Number: 2,
	}))
	r.read()
	testkit.Eventually(t, "the decision is carried out", func() bool {
		left, err := r.svc.view.marked(viewUnstage)
		testkit.OK(t, err)
		return len(left) == 0
	})
	expect(t, "the revision's bytes", r.there(c.Staging), true)
	r.done(c)
	r.derive(r.fix(other))
	r.stands(1)
	expect(t, "staged at the end", len(r.stagedFiles()), 0)
	if r.there("bags/b/data/masters/unfixed") || !r.there("bags/b/data/masters/other") || r.there("bags/b/data/access/other.jp2") {
		t.Error("the bag holds what it should not, or lacks what it should")
	}
}

func TestAllDiscarded(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(1, 1)
	c := r.take(r.message("a", r.source("a.tif", "aaa")))
	r.decide(event.Fixity, c.Slot, event.CaseDiscarded)
	r.stands(1) // without a ledger, since there is nothing to bag
	expect(t, "a bag", r.there("bags/b"), false)
	r.manifestIsTheView()
}

func TestSweep(t *testing.T) {
	r := newRig(t)
	r.premis()
	r.start()
	r.opened(1, 1)
	c := r.take(r.message("a.tif", r.source("a.tif", "aaa")))
	put := func(key string) {
		_, err := r.store.Write(t.Context(), key, bytesOf("left"), storage.Options{})
		testkit.OK(t, err)
	}
	next := storage.StagingKey("b", "a.tif", 2, storage.Digest(testkit.Digest("next")))
	put(storage.StagingKey("b", "a.tif", 1, storage.Digest(testkit.Digest("old"))))
	put(next)
	put(storage.StagingKey("b", "stranger.tif", 1, storage.Digest(testkit.Digest("stranger"))))
	r.done(c)
	r.stands(1)
	expect(t, "staged", len(r.stagedFiles()), 2)
	expect(t, "the next revision", r.there(next), true)
}
