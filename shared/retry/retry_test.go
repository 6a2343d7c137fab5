package retry_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"colophon/shared/fault"
	"colophon/shared/retry"
)

// policies draws valid policies over the whole range.
func policies() *rapid.Generator[retry.Policy] {
	return rapid.Custom(func(t *rapid.T) retry.Policy {
		initial := rapid.Int64Range(1, int64(time.Hour)).Draw(t, "initial")
		return retry.Policy{
			MaxAttempts: rapid.IntRange(1, 10).Draw(t, "max_attempts"), InitialDelay: retry.Duration(initial),
			MaxDelay: retry.Duration(rapid.Int64Range(initial, int64(24*time.Hour)).Draw(t, "max")),
			ExpBase:  rapid.Float64Range(1.0000001, 1000).Draw(t, "base"), Jitter: rapid.Bool().Draw(t, "jitter"),
			CircuitFailureThreshold: rapid.IntRange(1, 100).Draw(t, "threshold"), CircuitCooldown: retry.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "cooldown")),
			Retryable: rapid.SliceOf(rapid.SampledFrom(fault.TransientCodes())).Draw(t, "retryable"),
		}
	})
}

func TestDelayIsTheFormula(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, u := policies().Draw(t, "policy"), rapid.Float64Range(0, 1).Draw(t, "u")
		if u == 1 {
			u = math.Nextafter(1, 0)
		}
		n := rapid.IntRange(1, 10_000).Draw(t, "n")
		want := float64(p.InitialDelay)
		for range n - 1 { // by multiplication, another way than the code's
			if want *= p.ExpBase; want >= float64(p.MaxDelay) {
				break
			}
		}
		want = min(want, float64(p.MaxDelay))
		if p.Jitter {
			want += u * float64(p.InitialDelay)
		}
		got := p.Delay(n, func() float64 { return u })
		if math.Abs(float64(got)-want) > 2+want*1e-9 {
			t.Fatalf("Delay(%d) of %+v: %v, want %v", n, p, got, time.Duration(want))
		}
		if got < 0 || got > time.Duration(p.MaxDelay)+time.Duration(p.InitialDelay) {
			t.Fatalf("Delay(%d) of %+v: %v is out of bounds", n, p, got)
		}
		if next := p.Delay(n+1, func() float64 { return u }); next < got {
			t.Fatalf("Delay(%d) = %v, but Delay(%d) = %v", n, got, n+1, next)
		}
	})
}

func TestDelayGolden(t *testing.T) {
	t.Parallel()
	p := retry.Default() // 1 s, times 2, at most 1 min, with jitter
	half := func() float64 { return 0.5 }
	var got []time.Duration
	for n := 1; n <= 9; n++ {
		got = append(got, p.Delay(n, half))
	}
	ms := time.Millisecond
	want := []time.Duration{1500 * ms, 2500 * ms, 4500 * ms, 8500 * ms, 16500 * ms, 32500 * ms, 60500 * ms, 60500 * ms, 60500 * ms}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	p.Jitter = false
	if d := p.Delay(3, func() float64 { panic("asked for chance without jitter") }); d != 4*time.Second {
		t.Errorf("without jitter: %v", d)
	}
}

// TestJitterIsUniform: the random term lies in [0, initial) and fills 20 boxes
// evenly (chi-square with 19 degrees of freedom; 43.8 is passed once in 1,000
// honest runs, so the seed is fixed).
func TestJitterIsUniform(t *testing.T) {
	t.Parallel()
	const boxes, draws = 20, 20_000
	p := retry.Default()
	rng := rand.New(rand.NewPCG(2026, 11))
	var count [boxes]int
	for range draws {
		term := p.Delay(1, rng.Float64) - time.Second
		if term < 0 || term >= time.Second {
			t.Fatalf("random term %v", term)
		}
		count[int(term*boxes/time.Second)]++
	}
	chi := 0.0
	for _, c := range count {
		d := float64(c) - draws/boxes
		chi += d * d / (draws / boxes)
	}
	if chi > 43.8 {
		t.Errorf("chi-square %.1f: %v", chi, count)
	}
}

func TestParseRefusesAndTellsAllAtOnce(t *testing.T) {
	t.Parallel()
	for data, want := range map[string][]string{
		`{"max_attempts":0,"initial_delay":"-1s","max_delay":"-2s","exp_base":1,"circuit_failure_threshold":0,"circuit_cooldown":"0s","retryable":["timeout","digest-mismatch"]}`: {
			"/max_attempts", "/initial_delay", "/max_delay", "/exp_base", "/circuit_failure_threshold", "/circuit_cooldown", "/retryable/1",
		},
		`{"max_attempts":11}`:                 {"/max_attempts"},
		`{"tries":3}`:                         {"unknown field"},
		`{"initial_delay":"soon"}`:            {"soon"},
		`{"initial_delay":5}`:                 {"initial_delay"},
		`{"max_attempts":3} {}`:               {"more than one"},
		`{"max_attempts":3} x`:                {"more than one"},
		`{"max_attempts":3,"max_attempts":4}`: {"twice"},
		`[]`:                                  {"policy"},
		`{"max_attempts":3`:                   {"policy"},
		`{"exp_base":1e999}`:                  {"exp_base"},
		`{"retryable":["worker-died"]}`:       {"/retryable/0"},
	} {
		_, err := retry.Parse([]byte(data))
		if err == nil {
			t.Errorf("%s is accepted", data)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v does not speak of %s", data, err, w)
			}
		}
	}
	for _, empty := range []string{"", " \n", "{}"} {
		p, err := retry.Parse([]byte(empty))
		if a, _ := p.Canonical(); err != nil || string(a) != string(canonical(retry.Default())) {
			t.Errorf("%q: %s, %v", empty, a, err)
		}
	}
}

func canonical(p retry.Policy) []byte {
	data, _ := p.Canonical()
	return data
}

func TestCanonicalIsStable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := policies().Draw(t, "policy")
		data, digest := p.Canonical()
		q, err := retry.Parse(data)
		if err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		again, digest2 := q.Canonical()
		if string(again) != string(data) || digest != digest2 || !json.Valid(data) {
			t.Fatalf("%s, then %s", data, again)
		}
		if !slices.Contains(q.Retryable, fault.WorkerLost) || !slices.IsSorted(q.Retryable) {
			t.Fatalf("retryable: %v", q.Retryable)
		}
		rand.Shuffle(len(p.Retryable), func(i, j int) { p.Retryable[i], p.Retryable[j] = p.Retryable[j], p.Retryable[i] })
		if _, d := p.Canonical(); d != digest {
			t.Fatal("the order of the codes matters")
		}
	})
	const want = `{"max_attempts":4,"initial_delay":"1s","max_delay":"1m0s","exp_base":2,"jitter":true,"circuit_failure_threshold":5,"circuit_cooldown":"30s","retryable":["bad-gateway","connection-refused",`
	if got := string(canonical(retry.Default())); !strings.HasPrefix(got, want) {
		t.Errorf("default: %s", got)
	}
}

// A policy that says nothing of rescans, and one that says the default, are
// spelled as before there was a word for it: their digests stand.
func TestRescanIsPinned(t *testing.T) {
	t.Parallel()
	_, plain := retry.Default().Canonical()
	for data, want := range map[string]struct{ rescans, spelled bool }{
		`{}`: {true, false}, `{"rescan":true}`: {true, false}, `{"rescan":null}`: {true, false}, `{"rescan":false}`: {false, true},
	} {
		p, err := retry.Parse([]byte(data))
		if err != nil {
			t.Fatal(err)
		}
		canonical, digest := p.Canonical()
		if p.Rescans() != want.rescans || strings.Contains(string(canonical), "rescan") != want.spelled || (digest != plain) != want.spelled {
			t.Errorf("%s: rescans %v, %s", data, p.Rescans(), canonical)
		}
		again, err := retry.Parse(canonical)
		if err != nil || again.Rescans() != want.rescans {
			t.Errorf("%s: read back as %v, %v", canonical, again.Rescans(), err)
		}
	}
	diff, err := retry.Diff([]byte(`{}`), []byte(`{"rescan":false}`))
	if want := []retry.Difference{{Field: "rescan", A: "true", B: "false"}}; err != nil || !slices.Equal(diff, want) {
		t.Errorf("%v, %v", diff, err)
	}
	if diff, err := retry.Diff([]byte(`{"rescan":true}`), nil); err != nil || len(diff) > 0 {
		t.Errorf("%v, %v", diff, err)
	}
}

func TestRetries(t *testing.T) {
	t.Parallel()
	p := retry.Default()
	narrow := p
	narrow.Retryable = []fault.Code{fault.DeviceBusy}
	for _, tc := range []struct {
		p       retry.Policy
		code    fault.Code
		attempt int
		want    bool
	}{
		{p, fault.Timeout, 1, true}, {p, fault.Timeout, 3, true}, {p, fault.Timeout, 4, false}, {p, fault.DigestMismatch, 1, false},
		{p, fault.StoreFull, 1, false}, {p, "never-heard-of", 1, false}, {narrow, fault.Timeout, 1, false}, {narrow, fault.DeviceBusy, 1, true},
		{narrow, fault.WorkerLost, 1, true}, {narrow, fault.WorkerLost, 4, false},
	} {
		if got := tc.p.Retries(fault.New(tc.code, nil, ""), tc.attempt); got != tc.want {
			t.Errorf("%s after %d: %v", tc.code, tc.attempt, got)
		}
	}
}

// TestRunHonoursTheDelays in virtual time: exactly as many tries as the
// operation asks for, each after the delay that it wrote down.
func TestRunHonoursTheDelays(t *testing.T) {
	t.Parallel()
	final := errors.New("final")
	for _, end := range []error{nil, final} {
		synctest.Test(t, func(t *testing.T) {
			delays := []time.Duration{time.Hour, 0, 3 * time.Millisecond, -time.Second, 24 * time.Hour}
			var began []time.Time
			err := retry.Run(t.Context(), func(context.Context) error {
				began = append(began, time.Now())
				if len(began) > len(delays) {
					return end
				}
				return &retry.Again{After: delays[len(began)-1], Cause: errors.New("busy")}
			})
			if !errors.Is(err, end) || len(began) != len(delays)+1 {
				t.Fatalf("%d tries, %v", len(began), err)
			}
			for i, d := range delays {
				if got := began[i+1].Sub(began[i]); got != max(d, 0) {
					t.Errorf("delay %d: %v, want %v", i, got, max(d, 0))
				}
			}
		})
	}
}

func TestCancelInterruptsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		tries := 0
		ended := make(chan error)
		go func() {
			ended <- retry.Run(ctx, func(context.Context) error {
				tries++
				return &retry.Again{After: 10 * time.Hour, Cause: errors.New("busy")}
			})
		}()
		time.Sleep(time.Hour)
		began := time.Now()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
		if time.Since(began) != 0 || tries != 1 {
			t.Errorf("after %v and %d tries", time.Since(began), tries)
		}
	})
}

func TestSteadyGivesUpOnlyWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries, heard := 0, 0
		var longest time.Duration
		hear := func(err error, wait time.Duration) {
			heard++
			longest = max(longest, wait)
		}
		err := retry.Steady(t.Context(), func(context.Context) error {
			if tries++; tries < 5000 {
				return errors.New("away")
			}
			return nil
		}, hear)
		if err != nil || tries != 5000 || heard != 4999 || longest != 2*time.Second {
			t.Errorf("%v after %d tries, heard of %d, longest wait %v", err, tries, heard, longest)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		err = retry.Steady(ctx, func(context.Context) error { return errors.New("away") }, hear)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
