package verify

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"colophon/shared/event"
)

func keep(in []Finding, prefix string) []Finding {
	return slices.DeleteFunc(in, func(f Finding) bool { return !strings.HasPrefix(f.Kind, prefix) })
}

// manifestCases are manifests that are not what the log says.
func manifestCases() map[string]seeded {
	const key = "batches/vol%201.json"
	change := func(from, to string) func(*world) {
		return func(w *world) {
			w.rewrite(key, func(s string) string { return strings.Replace(s, from, to, 1) })
		}
	}
	return map[string]seeded{
		"truncated":          {func(w *world) { w.ok(os.Truncate(w.path(key), 700)) }, key, []string{"manifest-unreadable"}},
		"empty":              {func(w *world) { w.ok(os.Truncate(w.path(key), 0)) }, key, []string{"manifest-unreadable"}},
		"something behind":   {func(w *world) { w.rewrite(key, func(s string) string { return s + "{}" }) }, key, []string{"manifest-unreadable"}},
		"gone":               {func(w *world) { w.ok(os.Remove(w.path(key))) }, key, []string{"manifest-missing"}},
		"another digest":     {change(string(sha([]byte("third page"))), string(sha([]byte("x")))), key + " a/0003.tif", []string{"manifest-frame"}},
		"another derivative": {change(string(sha([]byte("jp2 of third page"))), string(sha([]byte("x")))), key + " a/0003.tif", []string{"manifest-frame"}},
		"another state":      {change(`"state": "done"`, `"state": "failed"`), key, []string{"manifest-totals", "manifest-frame"}},
		"a done one discarded": {func(w *world) {
			change(`"state": "done"`, `"state": "discarded"`)(w)
			change(`"done": 4,`, `"done": 3,`)(w)
		}, key, []string{"manifest-totals", "manifest-frame"}},
		"another order": {func(w *world) {
			w.rewrite(key, func(s string) string {
				return strings.NewReplacer(`"a/0001.tif"`, `"a/0002.tif"`, `"a/0002.tif"`, `"a/0001.tif"`).Replace(s)
			})
		}, key, []string{"manifest-order", "manifest-frame"}},
		"an unknown frame": {change(`"a/0001.tif"`, `"a/0000.tif"`), key, []string{"manifest-order", "manifest-frame"}},
		"another policy":   {change(string(sha(policy)), string(sha(nil))), key, []string{"manifest-head"}},
		"another batch":    {change(`"batch": "vol 1"`, `"batch": "vol 2"`), key, []string{"manifest-head"}},
		"an older one":     {change(`"state": "converged"`, `"state": "settled"`), key, []string{"manifest-stale"}},
		"a later schema":   {change(manifestSchema, "colophon/manifest/v9"), key, []string{"manifest-head"}},
	}
}

// bagCases are bags that RFC 8493 or the batch does not bear out.
func bagCases() map[string]seeded {
	const dir = "bags/vol%201/"
	master := dir + "data/masters/a/0003.tif"
	change := func(name, from, to string) func(*world) {
		return func(w *world) {
			w.rewrite(dir+name, func(s string) string { return strings.Replace(s, from, to, 1) })
		}
	}
	line := func(name string) *regexp.Regexp {
		return regexp.MustCompile(`(?m)^[0-9a-f]{64}  ` + regexp.QuoteMeta(name) + `\n`)
	}
	drop := func(file, name string) func(*world) {
		return func(w *world) {
			w.rewrite(dir+file, func(s string) string { return line(name).ReplaceAllString(s, "") })
		}
	}
	return map[string]seeded{
		"gone":                {func(w *world) { w.ok(os.RemoveAll(w.path(dir))) }, "bags/vol%201", []string{"bag-missing"}},
		"a payload file gone": {func(w *world) { w.ok(os.Remove(w.path(master))) }, master, []string{"bag-file-missing", "bag-oxum"}},
		"a digest in the manifest": {
			change(bagManifest, string(sha([]byte("third page"))), string(sha([]byte("x")))), master, []string{"bag-file-damaged", "bag-payload"},
		},
		"a copy with other bytes": {func(w *world) {
			w.ok(os.Remove(w.path(master)))
			w.file(master, []byte("THIRD page"))
		}, master, []string{"bag-file-damaged"}},
		"a line gone": {drop(bagManifest, "data/masters/a/0003.tif"), master, []string{"bag-file-unlisted", "bag-payload"}},
		"a frame left out": {func(w *world) {
			drop(bagManifest, "data/masters/a/0003.tif")(w)
			w.ok(os.Remove(w.path(master)))
			change(bagInfo, "Oxum: 110.8", "Oxum: 100.7")(w)
		}, master, []string{"bag-payload"}},
		"a file too many":         {func(w *world) { w.file(dir+"data/x", []byte("x")) }, dir + "data/x", []string{"bag-file-unlisted", "bag-oxum"}},
		"another Oxum":            {change(bagInfo, "Payload-Oxum: ", "Payload-Oxum: 1"), "bags/vol%201", []string{"bag-oxum"}},
		"no Oxum":                 {change(bagInfo, "Payload-Oxum", "Payload"), bagInfo, []string{"bag-info"}},
		"another version":         {change(bagDeclaration, "1.0", "0.97"), bagDeclaration, []string{"bag-declaration"}},
		"no declaration":          {func(w *world) { w.ok(os.Remove(w.path(dir + bagDeclaration))) }, bagDeclaration, []string{"bag-tag-missing"}},
		"a tag file's bit":        {func(w *world) { w.flip(dir+bagInfo, 16) }, bagInfo, []string{"bag-tag-damaged"}},
		"a tag file too many":     {func(w *world) { w.file(dir+"metadata/x", nil) }, "metadata/x", []string{"bag-tag-unlisted"}},
		"no tag manifest":         {func(w *world) { w.ok(os.Remove(w.path(dir + bagTagManifest))) }, bagTagManifest, []string{"bag-tag-missing", "bag-tag-unlisted"}},
		"a line of nonsense":      {change(bagManifest, "  data/masters/a/0003.tif", "  ../x"), bagManifest, []string{"bag-manifest", "bag-file-unlisted", "bag-payload"}},
		"of an older convergence": {change(bagInfo, "Convergence: 1", "Convergence: 0"), "bags/vol%201", []string{"bag-stale"}},
		"of one that never was":   {change(bagInfo, "Convergence: 1", "Convergence: 2"), "bags/vol%201", []string{"bag-info"}},
		"a copy of another state": {change(bagCopy, `"state": "converged"`, `"state": "settled"`), bagCopy, []string{"bag-copy"}},
	}
}

// TestAlteredNames: a frame whose name cannot stand in a bag is found under
// the path that names.tsv gives.
func TestAlteredNames(t *testing.T) {
	t.Parallel()
	const dir = "bags/vol%201/"
	w := built(t)
	w.write(w.book())
	w.ok(os.Rename(w.path(dir+"data/masters/a/0003.tif"), w.path(dir+"data/masters/a/other.tif")))
	w.rewrite(dir+bagManifest, func(s string) string {
		return strings.Replace(s, "data/masters/a/0003.tif", "data/masters/a/other.tif", 1)
	})
	expectKinds(t, w.run(), "data/masters/a/0003.tif", "bag-payload")
	table := "# path, profile, frame\n" + event.Encode("data/masters/a/other.tif") + "\t\t" + event.Encode("a/0003.tif") + "\n"
	w.file(dir+bagNames, []byte(table))
	w.rewrite(dir+bagTagManifest, func(s string) string { return s + string(sha([]byte(table))) + "  " + bagNames + "\n" })
	if r := w.run(); !r.Clean() {
		t.Errorf("%v", r.Findings)
	}
	w.rewrite(dir+bagNames, func(s string) string { return s + "nonsense\n" })
	expectKinds(t, w.run(), bagNames, "bag-names")
}

// premisCases are documents that break one of MAPPING's checks.
func premisCases() map[string]seeded {
	const key = "bags/vol%201/metadata/premis/premis-0001.xml"
	change := func(expr, to string) func(*world) {
		return func(w *world) {
			r, once := regexp.MustCompile(expr), false
			w.rewrite(key, func(s string) string {
				return r.ReplaceAllStringFunc(s, func(m string) string {
					if once {
						return m
					}
					once = true
					return r.ReplaceAllString(m, to)
				})
			})
		}
	}
	const id = `[0-9a-f]{8}-[0-9a-f-]{27}`
	accession := "event:accession:" + string(newPage("", "", 1, "first page").digest()) + "@vol%201/a%2F0001%2Etif"
	return map[string]seeded{
		"cut":                   {func(w *world) { w.rewrite(key, func(s string) string { return s[:len(s)-30] }) }, key, []string{"premis-malformed"}},
		"no PREMIS":             {func(w *world) { w.rewrite(key, func(string) string { return "<a/>" }) }, key, []string{"premis-malformed", "premis-incomplete"}},
		"no events":             {change(`(?s)<premis:event>.*</premis:event>`, ""), key, []string{"premis-malformed", "premis-incomplete"}},
		"a dangling link":       {change(`(linkingObjectIdentifierValue>)`+id, "${1}00000000-0000-0000-0000-000000000000"), key, []string{"premis-link"}},
		"another identifier":    {change(`(eventIdentifierValue>)`+id, "${1}00000000-0000-5000-8000-000000000000"), key, []string{"premis-identifier"}},
		"another name":          {change(regexp.QuoteMeta(accession+"</"), "event:accession:x</"), key, []string{"premis-identifier", "premis-unknown-event", "premis-incomplete"}},
		"an element misplaced":  {change(`(<premis:eventType .*?</premis:eventType>)(<premis:eventDateTime>.*?</premis:eventDateTime>)`, "$2$1"), key, []string{"premis-schema"}},
		"a local time":          {change(`(<premis:eventDateTime>)[^<]*`, "${1}2025-11-24T09:00:00+01:00"), key, []string{"premis-time"}},
		"no time":               {change(`(<premis:eventDateTime>)[^<]*`, "${1}"), key, []string{"premis-empty"}},
		"an interval":           {change(`(recordedAt=")[^"]*`, "${1}2025-11-24/2025-11-25"), key, []string{"premis-time"}},
		"an unknown type":       {change(`>ingestion start<`, ">ingestion begin<"), key, []string{"premis-term"}},
		"another's URI":         {change(`(valueURI="[^"]*/eventType/)ins`, "${1}ine"), key, []string{"premis-term"}},
		"no authority":          {change(` authority="eventOutcome"`, ""), key, []string{"premis-term"}},
		"https":                 {change(`authorityURI="http:`, `authorityURI="https:`), key, []string{"premis-term"}},
		"an empty element":      {change(`(<premis:eventDetail>)[^<]*`, "${1} "), key, []string{"premis-empty"}},
		"no agent":              {change(`<premis:linkingAgentIdentifier>.*?</premis:linkingAgentIdentifier>`, ""), key, []string{"premis-unused"}},
		"an agent unused":       {change(`(<premis:agentIdentifierValue>)[^<]*`, "${1}other/1"), key, []string{"premis-unused", "premis-link"}},
		"an event twice":        {change(`(?s)(<premis:event>.*?</premis:event>)`, "${1}${1}"), key, []string{"premis-twice"}},
		"a gap":                 {change(`(?s)\n<premis:event>[^\n]*#1\.1</d:eventName>[^\n]*`, ""), key, []string{"premis-chain"}},
		"a path":                {change(`It happened`, "Read /srv/scans/1.tif"), key, []string{"premis-leak"}},
		"a secret":              {change(`It happened`, "From ftp://me:secret@host/x"), key, []string{"premis-leak"}},
		"an accession left out": {change(`(?s)\n<premis:event>[^\n]*`+regexp.QuoteMeta(accession)+`</[^\n]*`, ""), "bags/vol%201", []string{"premis-incomplete"}},
	}
}
