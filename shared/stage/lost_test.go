package stage_test

import (
	"context"
	"testing"
	"time"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/testkit"
)

// TestAFileThatKillsItsWorker takes only itself along: an attempt lost in
// company is told and takes a number, but only those lost alone count.
func TestAFileThatKillsItsWorker(t *testing.T) {
	world(t, func(r *rig) {
		r.config.Grace = time.Millisecond
		dying := make(chan struct{}, 10)
		r.worker.Script = func(ctx context.Context, in event.FrameFixed, _ event.Work) error {
			switch in.Frame {
			case "killer.tif":
				dying <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			case "bystander.tif":
				if r.worker.ActsOn(in.Slot) == 1 {
					<-ctx.Done()
					return ctx.Err()
				}
			}
			return nil
		}
		policy := testkit.Policy(2, time.Second)
		r.send("bystander.tif", "b", policy)
		r.start()
		testkit.Eventually(r, "the bystander", func() bool { return len(r.worker.Acts()) == 1 })
		r.send("killer.tif", "k", policy)
		for range 3 { // once in company, twice alone
			<-dying
			r.crash()
			r.start()
		}
		r.send("later.tif", "l", policy)
		r.once("bystander.tif", "later.tif")

		letters := r.letters()
		r.expect("letters", len(letters), 1)
		r.expect("its frame", letters[0].Header.Get(event.HeaderFrame), "killer%2Etif")
		r.expect("its code", letters[0].Header.Get(event.HeaderCode), fault.WorkerLost)
		r.expect("its attempts", letters[0].Header.Get(event.HeaderAttempts), 3)
		var killer, bystander []event.AttemptFailed
		for _, f := range r.failed() {
			r.expect("class", f.Class, "lost")
			if f.Frame == "killer.tif" {
				killer = append(killer, f)
			} else {
				bystander = append(bystander, f)
			}
		}
		r.expect("losses of the killer", len(killer), 3)
		r.expect("limit after one in company", killer[2].Limit, 3)
		r.expect("losses of the bystander", len(bystander), 1)
		for _, a := range r.worker.Acts() {
			if a.Work.Attempt > 1 && a.Beside > 0 {
				r.Errorf("attempt %d on %s had company", a.Work.Attempt, a.Work.Slot)
			}
		}
	})
}

// TestNothingRunsBesideASuspect: while it runs, neighbours wait.
func TestNothingRunsBesideASuspect(t *testing.T) {
	world(t, func(r *rig) {
		r.config.Grace = time.Millisecond
		lost := make(chan struct{})
		r.worker.Script = func(ctx context.Context, in event.FrameFixed, w event.Work) error {
			if in.Frame != "suspect.tif" {
				return nil
			}
			if w.Attempt == 1 {
				close(lost)
				<-ctx.Done()
				return ctx.Err()
			}
			time.Sleep(time.Minute)
			return nil
		}
		r.send("suspect.tif", "s", testkit.Policy(4, time.Second))
		r.start()
		<-lost
		r.crash()
		r.start()
		testkit.Eventually(r, "the second attempt", func() bool { return r.worker.ActsOn(testkit.Slot("suspect.tif")) == 2 })
		second := r.worker.Acts()[1]
		for _, s := range []string{"1", "2", "3", "4", "5"} {
			r.send(s, s, nil)
		}
		r.once("suspect.tif", "1", "2", "3", "4", "5")
		for _, a := range r.worker.Acts()[2:] {
			if a.Began.Before(second.Began.Add(time.Minute)) {
				r.Errorf("%s began beside the suspect", a.Work.Slot)
			}
		}
		r.expect("most at once", r.worker.Acts()[1].Beside, 0)
	})
}

// TestALostDiskRepeatsNothing: an empty set is rebuilt from the stage's own
// facts before the first pull, attempts and dead letters included.
func TestALostDiskRepeatsNothing(t *testing.T) {
	world(t, func(r *rig) {
		r.worker.Script = func(_ context.Context, in event.FrameFixed, w event.Work) error {
			switch {
			case in.Frame == "dead.tif":
				return fault.New("truncated", nil, "the file ends early")
			case in.Frame == "retry.tif" && w.Attempt < 3:
				return fault.New(fault.Timeout, nil, "no answer")
			}
			return nil
		}
		orders := []event.FrameFixed{
			testkit.Fixed(testkit.Slot("done.tif"), "a", nil), testkit.Fixed(testkit.Slot("dead.tif"), "b", nil),
			testkit.Fixed(testkit.Slot("retry.tif"), "c", testkit.Policy(4, time.Minute)),
		}
		for _, o := range orders {
			testkit.Publish(r, r.js, o)
		}
		r.start()
		testkit.Eventually(r, "all have begun", func() bool { return len(r.made()) == 1 && len(r.letters()) == 1 && len(r.failed()) == 2 })
		r.crash()
		r.disk.Close()
		r.disk = testkit.NewDisk(r)
		r.start()
		testkit.PublishRaw(r, r.js, orders[0].Subject(), nil, testkit.JSON(r, orders[0]))
		r.once("done.tif", "retry.tif")
		r.expect("acts on the done", r.worker.ActsOn(orders[0].Slot), 1)
		r.expect("acts on the dead", r.worker.ActsOn(orders[1].Slot), 1)
		r.expect("acts on the retried", r.worker.ActsOn(orders[2].Slot), 3)
		failed := r.failed()
		r.expect("failed attempts", len(failed), 3)
		acts := r.worker.Acts()
		for _, f := range failed {
			for _, a := range acts {
				if a.Work.Slot == f.Slot && a.Work.Attempt == f.Attempt+1 && a.Began.Before(f.NotBefore) {
					r.Errorf("attempt %d of %s did not wait for %v", a.Work.Attempt, f.Slot, f.NotBefore)
				}
			}
		}
		testkit.PublishRaw(r, r.js, orders[1].Subject(), nil, testkit.JSON(r, orders[1]))
		r.settled()
		r.expect("pass of the second letter", r.letters()[1].Header.Get(event.HeaderPass), 2)
	})
}

// TestPastTheWindow: a message sent again when the broker has forgotten its id
// is a hit, whatever was restarted in between.
func TestPastTheWindow(t *testing.T) {
	world(t, func(r *rig) {
		r.start()
		r.send("1.tif", "one", nil)
		r.settled()
		r.expect("sent again inside the window", r.send("1.tif", "one", nil).Duplicate, true)
		r.stop()
		time.Sleep(65 * time.Minute) // of virtual time
		r.start()
		r.expect("sent again past the window", r.send("1.tif", "one", nil).Duplicate, false)
		r.settled()
		r.expect("acts", len(r.worker.Acts()), 1)
		made := r.made()
		r.expect("facts", len(made), 2) // the log takes it, each follower's own set absorbs it
		r.expect("their id", made[1].ID(), made[0].ID())
	})
}
