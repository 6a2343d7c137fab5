package event_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"colophon/shared/event"
)

func names() *rapid.Generator[event.Name] {
	return rapid.Custom(func(t *rapid.T) event.Name {
		return event.Name(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "bytes"))
	})
}

func TestNamesSurviveTheirEncodings(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := names().Draw(t, "name")
		e := n.Encode()
		if strings.Trim(e, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-%") != "" {
			t.Fatalf("%q is no subject token", e)
		}
		if back, err := event.DecodeName(e); err != nil || back != n {
			t.Fatalf("%q: %q, %v", e, back, err)
		}
		data, err := json.Marshal(n)
		if err != nil || !utf8.Valid(data) {
			t.Fatalf("%q: %v", data, err)
		}
		var back event.Name
		if err := event.Unmarshal(data, &back); err != nil || back != n {
			t.Fatalf("%s: %q, %v", data, back, err)
		}
		s := event.Slot{Batch: n, Frame: names().Draw(t, "frame")}
		if p, err := event.ParseSlot(s.String()); err != nil || p != s {
			t.Fatalf("%s: %v, %v", s, p, err)
		}
	})
}

func FuzzDecodeName(f *testing.F) {
	for _, s := range []string{"", "a", "a%2Fb", "%e9", "%4", "%41", "%zz", "a b", "é", "%C3%A9", "%%", "%+1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := event.DecodeName(s)
		if err == nil && n.Encode() != s {
			t.Errorf("%q and %q are one id", s, n.Encode())
		}
	})
}

func TestOneSpellingEach(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"%e9", "%41", "a b", "é", "%", "%4", "a/b", "a.b", "%2f"} {
		if n, err := event.DecodeName(s); err == nil {
			t.Errorf("%q is read as %q", s, n)
		}
	}
	for _, s := range []string{`{"percent_encoded":"abc"}`, `{"percent_encoded":"%e9"}`, `"\ud800"`, `"a\udc00b"`, "5", `["a"]`} {
		var n event.Name
		if err := json.Unmarshal([]byte(s), &n); err == nil {
			t.Errorf("%s is read as %q", s, n)
		}
	}
	for s, want := range map[string]event.Name{`{"percent_encoded":"caf%E9"}`: "caf\xe9", `"caf\u00e9"`: "café", `"\ufffd"`: "\ufffd", `"�"`: "\ufffd"} {
		var n event.Name
		if err := json.Unmarshal([]byte(s), &n); err != nil || n != want {
			t.Errorf("%s is read as %q, %v", s, n, err)
		}
	}
}

func TestUnmarshalIsStrict(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000)
	for name, data := range map[string]string{
		"a key twice": `{"batch":"a","batch":"b"}`, "a key twice, escaped": `{"batch":"a","\u0062atch":"b"}`, "a key twice inside": `{"x":[{"k":1,"k":2}]}`,
		"deep": deep, "deep arrays": strings.Repeat("[", 50) + strings.Repeat("]", 50), "trailing data": `{} {}`, "trailing bytes": `{}x`,
		"nothing": "", "half": `{"batch":`, "no UTF-8": "{\"batch\":\"caf\xe9\"}", "no UTF-8 in a key": "{\"\xe9\":1,\"\xea\":2}",
	} {
		var v struct {
			Batch event.Name `json:"batch"`
		}
		if err := event.Unmarshal([]byte(data), &v); err == nil {
			t.Errorf("%s is accepted as %+v", name, v)
		}
	}
	var v struct {
		Batch event.Name `json:"batch"`
	}
	if err := event.Unmarshal([]byte(" {\"batch\":\"a\",\"new\":{\"deep\":[1]}}\n"), &v); err != nil || v.Batch != "a" {
		t.Errorf("%+v, %v", v, err)
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(`{"batch":"a","count":1}`))
	f.Add([]byte(`{"batch":{"percent_encoded":"%E9"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var a, b event.BatchDeclaration
		if event.Unmarshal(data, &a) != nil {
			return
		}
		out, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		if err := event.Unmarshal(out, &b); err != nil || a.Batch != b.Batch {
			t.Errorf("%s became %s: %v", data, out, err)
		}
	})
}

func TestNaturalOrder(t *testing.T) {
	t.Parallel()
	want := []string{ // spelt out where the rule decides
		"1.tif < 2.tif", "2.tif < 10.tif", "9.tif < 10.tif", "10.tif < 100.tif", "a < a/1", "a/1 < a b", "a/2 < a/2/9", "a/2/9 < a/2/10", "a/2/10 < a/10", "a1b2 < a1b10", "a1b10 < a2",
		"page 9 < page 10", "page-9 < page-10", "18446744073709551616.tif < 99999999999999999999999.tif", "b/1.tif < b/2.tif", "b/001.tif < b/2.tif", "b/1.tif < b/002.tif",
	}
	for _, w := range want {
		a, b, _ := strings.Cut(w, " < ")
		if natural(a, b) >= 0 {
			t.Errorf("not %s", w)
		}
	}
}

func natural(a, b string) int { return bytes.Compare(event.NaturalKey(a), event.NaturalKey(b)) }

// TestNaturalOrderIsTotal: antisymmetric, transitive, and equal only for equal
// names; numbers without leading zeros compare as numbers.
func TestNaturalOrderIsTotal(t *testing.T) {
	t.Parallel()
	name := rapid.StringOfN(rapid.SampledFrom([]rune("019aB/. -é\x01")), 0, 8, -1)
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := name.Draw(t, "a"), name.Draw(t, "b"), name.Draw(t, "c")
		if natural(a, b) != -natural(b, a) || (natural(a, b) == 0) != (a == b) {
			t.Fatalf("%q and %q", a, b)
		}
		if natural(a, b) <= 0 && natural(b, c) <= 0 && natural(a, c) > 0 {
			t.Fatalf("%q, %q, %q", a, b, c)
		}
		m, n := rapid.Uint64().Draw(t, "m"), rapid.Uint64().Draw(t, "n")
		prefix := rapid.SampledFrom([]string{"", "p", "a/", "x 1-"}).Draw(t, "prefix")
		if m != n {
			if got := natural(prefix+strconv.FormatUint(m, 10)+".tif", prefix+strconv.FormatUint(n, 10)+".tif"); got != cmp.Compare(m, n) {
				t.Fatalf("%s%d and %s%d: %d", prefix, m, prefix, n, got)
			}
		}
	})
}
