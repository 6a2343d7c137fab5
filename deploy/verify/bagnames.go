package verify

import (
	"bufio"
	"io"
	"strings"

	"colophon/shared/event"
)

// eachName goes through names.tsv: path, profile and frame, each
// percent-encoded; a line that begins with # is a remark.
func (g *bag) eachName(r io.Reader, each func(path, profile, frame event.Name) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<10)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, "\t")
		var names [3]event.Name
		bad := len(fields) != len(names)
		for i := range names {
			if bad {
				break
			}
			var err error
			names[i], err = event.DecodeName(fields[i])
			bad = err != nil
		}
		if bad {
			g.out.damage("bag-names", g.key+"/"+bagNames, "line %d: %q", n, line)
			continue
		}
		if err := each(names[0], names[1], names[2]); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		g.out.damage("bag-names", g.key+"/"+bagNames, "it cannot be read: %v", err)
	}
	return nil
}
