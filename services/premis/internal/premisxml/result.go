package premisxml

import (
	"colophon/shared/event"

	"colophon/services/premis/internal/record"
)

// hasOutcomeExtension tells whether [session.result] writes anything.
func hasOutcomeExtension(r *record.Record) bool {
	d := r.Data
	return d.Resolution != nil || d.Digest != nil || d.Identification != nil || len(d.Findings) > 0 || d.Technical != nil
}

// result is what stands in an event's eventOutcomeDetailExtension.
func (s *session) result(r *record.Record) {
	d := r.Data
	if d.Resolution != nil {
		s.resolution(d.Resolution)
	}
	if g := d.Digest; g != nil {
		s.only("d:digest", attr{"algorithm", "SHA-256"}, attr{"value", string(g.Value)}, attr{"expected", string(g.Expected)}, attr{"expectedFrom", g.ExpectedFrom})
	}
	if i := d.Identification; i != nil {
		s.only("d:identification", attr{"registryKey", i.PUID}, attr{"signatures", i.Signatures}, attr{"basis", i.Basis}, attr{"extent", i.Extent}, attr{"mime", i.MIME})
	}
	for _, f := range d.Findings {
		message := f.Message
		if message == "" {
			message = f.Code
		}
		s.text("d:finding", message, attr{"code", f.Code})
	}
	if d.Technical != nil {
		s.image(d.Technical)
	}
}

func (s *session) resolution(r *record.Resolution) {
	attrs := []attr{{"status", r.Status}, truth("late", r.Late)}
	if r.Code == "" && r.NotBefore.IsZero() {
		s.only("d:resolution", attrs...)
		return
	}
	s.begin("d:resolution", attrs...)
	message := r.Message
	if message == "" {
		message = r.Code
	}
	s.text("d:error", message, attr{"class", r.Class}, attr{"code", r.Code})
	s.text("d:notBefore", optional(r.NotBefore))
	s.end()
}

func (s *session) image(t *event.Technical) {
	s.only("d:image", number("width", t.Width), number("height", t.Height), number("bitsPerSample", t.BitsPerSample),
		number("samples", t.Samples), number("pages", t.Pages), attr{"colourSpace", t.ColourSpace}, attr{"compression", t.Compression}, attr{"profile", t.ICCName})
}
