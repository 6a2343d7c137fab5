package deriver

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"colophon/shared/fault"
)

// notImage are the codes of permanent faults that scanning again does not mend.
var notImage = []string{
	"format-mismatch", "master-damaged", "image-too-large", "too-many-images", "expansion-bomb", // and all that begin with unsupported-
}

// Each permanent code of the image check is decided on: shared/fault knows the
// image faults by name, and a new one must not be forgotten there.
func TestEachCodeIsAnImageFaultOrNot(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "internal/fault/fault.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || !strings.HasPrefix(g.Doc.Text(), "Codes of permanent faults") {
			continue
		}
		for _, s := range g.Specs {
			code, err := strconv.Unquote(s.(*ast.ValueSpec).Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			seen++
			other := strings.HasPrefix(code, "unsupported-")
			for _, n := range notImage {
				other = other || n == code
			}
			if fault.OfImage(fault.Code(code)) == other {
				t.Errorf("%s: an image fault is %v, another is %v", code, !other, other)
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d codes were found", seen)
	}
}
