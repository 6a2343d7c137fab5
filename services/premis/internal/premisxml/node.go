package premisxml

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// node is one element as the checks read it.
type node struct {
	space, name string
	attrs       map[string]string
	text        string
	kids        []*node
}

func (n *node) own() bool { return n.space == DetailNamespace }

// find gives the first element of a path of local names; never nil.
func (n *node) find(path ...string) *node {
	for _, name := range path {
		var next *node
		for _, k := range n.kids {
			if k.name == name {
				next = k
				break
			}
		}
		if next == nil {
			return &node{}
		}
		n = next
	}
	return n
}

func (n *node) all(name string) []*node {
	var out []*node
	for _, k := range n.kids {
		if k.name == name {
			out = append(out, k)
		}
	}
	return out
}

// walk visits an element and everything in it.
func (n *node) walk(visit func(*node)) {
	visit(n)
	for _, k := range n.kids {
		k.walk(visit)
	}
}

// children reads a document's top-level elements one at a time.
func children(r io.Reader, root func(*node) error, child func(*node)) error {
	d := xml.NewDecoder(r)
	var top *node
	for {
		t, err := d.Token()
		if err == io.EOF {
			if top == nil {
				return fmt.Errorf("premisxml: no document: %w", io.ErrUnexpectedEOF)
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("premisxml: not well-formed: %w", err)
		}
		start, ok := t.(xml.StartElement)
		if !ok {
			continue
		}
		if top == nil {
			top = begun(start)
			if err := root(top); err != nil {
				return err
			}
			continue
		}
		n, err := read(d, start)
		if err != nil {
			return fmt.Errorf("premisxml: not well-formed: %w", err)
		}
		child(n)
	}
}

func begun(s xml.StartElement) *node {
	n := &node{space: s.Name.Space, name: s.Name.Local, attrs: map[string]string{}}
	for _, a := range s.Attr {
		n.attrs[a.Name.Local] = a.Value
	}
	return n
}

func read(d *xml.Decoder, s xml.StartElement) (*node, error) {
	n := begun(s)
	var text strings.Builder
	for {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		switch t := t.(type) {
		case xml.StartElement:
			k, err := read(d, t)
			if err != nil {
				return nil, err
			}
			n.kids = append(n.kids, k)
		case xml.CharData:
			text.Write(t)
		case xml.EndElement:
			n.text = text.String()
			return n, nil
		}
	}
}
