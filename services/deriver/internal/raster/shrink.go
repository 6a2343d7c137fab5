package raster

// Fit gives the size of a page reduced, never enlarged, until its longer side
// has at most side pixels.
func Fit(width, height, side int) (int, int) {
	long := max(width, height)
	if long <= side {
		return width, height
	}
	return max(1, (width*side+long/2)/long), max(1, (height*side+long/2)/long)
}

// Shrink reduces a page to width by height samples of 8 bits: each is the mean
// of the area of the page that it stands for, in whole numbers, so that it is
// the same on every machine. Memory is two rows.
func Shrink(info Info, page source, width, height int) ([]byte, error) {
	ch := info.Channels
	s := &shrinker{info: info, width: width, across: make([]uint64, width*ch), sum: make([]uint64, width*ch), out: make([]byte, 0, width*height*ch)}
	row := make([]byte, info.RowBytes())
	// Lengths are counted so that a row of the page is height units high and one
	// of the result info.Height: the borders of both are whole numbers.
	border := info.Height
	for y := range info.Height {
		if err := page.Next(row); err != nil {
			return nil, err
		}
		s.reduce(row)
		top, bottom := y*height, (y+1)*height
		for bottom > border {
			s.add(border - top)
			s.emit()
			top, border = border, border+info.Height
		}
		s.add(bottom - top)
		if bottom == border {
			s.emit()
			border += info.Height
		}
	}
	return s.out, page.Finish()
}

type shrinker struct {
	info   Info
	width  int
	across []uint64 // the page's row, reduced to width, times info.Width
	sum    []uint64 // of the rows that the result's row stands for
	out    []byte
}

// reduce makes s.across of one row of the page.
func (s *shrinker) reduce(row []byte) {
	w, ch, size := s.info.Width, s.info.Channels, s.info.SampleBytes()
	for c := range ch {
		border, at, acc := w, c, uint64(0)
		for x := range w {
			v := uint64(sample(row, x*ch+c, size))
			left, right := x*s.width, (x+1)*s.width
			if right < border {
				acc += v * uint64(right-left)
				continue
			}
			s.across[at] = acc + v*uint64(border-left)
			at, acc = at+ch, v*uint64(right-border)
			border += w
		}
	}
}

func (s *shrinker) add(weight int) {
	for i, v := range s.across {
		s.sum[i] += v * uint64(weight)
	}
}

func (s *shrinker) emit() {
	whole := uint64(s.info.Width) * uint64(s.info.Height) * uint64(s.info.Max())
	for i, v := range s.sum {
		s.out = append(s.out, byte((v*255+whole/2)/whole))
		s.sum[i] = 0
	}
}
