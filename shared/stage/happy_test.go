package stage_test

import (
	"testing"

	"colophon/shared/event"
	"colophon/shared/testkit"
)

func TestOneMessageGoesThrough(t *testing.T) {
	world(t, func(r *rig) {
		r.start()
		r.send("1.tif", "one", nil)
		r.settled()
		made := r.made()
		r.expect("facts", len(made), 1)
		f := made[0].Fact(r).(event.DerivativeMade)
		r.expect("id", made[0].ID(), "derivative:jp2:"+string(testkit.Digest("one"))+"@b/1%2Etif#1")
		r.expect("attempt", []any{f.Attempt, f.Pass, f.Limit, f.Hit}, []any{1, 1, 4, false})
		r.expect("acts", len(r.worker.Acts()), 1)
	})
}
