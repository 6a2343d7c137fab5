package tifftest

// Want gives the rows that a reader should deliver: gray or RGB, 8 bits, or 16
// with the low byte first, white-is-zero turned, extra samples left out.
// palette gives the colours of an index, if there is one.
func (s Spec) Want(palette func(i int) [3]byte) [][]byte {
	var rows [][]byte
	for y := range s.Height {
		var row []byte
		for x := range s.Width {
			if palette != nil {
				rgb := palette(s.At(x, y, 0))
				row = append(row, rgb[:]...)
				continue
			}
			for c := range s.colours() {
				row = s.appendSample(row, s.At(x, y, c))
			}
		}
		rows = append(rows, row)
	}
	return rows
}

func (s Spec) appendSample(row []byte, v int) []byte {
	top := 1<<s.Bits - 1
	if s.Photometric == 0 {
		v = top - v
	}
	if s.Bits > 8 {
		return append(row, byte(v), byte(v>>8))
	}
	return append(row, byte(v*255/top))
}
