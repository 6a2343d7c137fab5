package raster

import (
	"bytes"
	"fmt"
	"math"
)

// source is what both sides of a comparison are.
type source interface {
	Next(dst []byte) error
	Finish() error
}

// Equal compares two pages of one Info sample by sample and gives the first
// row in which they differ, or -1.
func Equal(info Info, a, b source) (int, error) {
	rowA, rowB := make([]byte, info.RowBytes()), make([]byte, info.RowBytes())
	differs := -1
	for y := range info.Height {
		if err := a.Next(rowA); err != nil {
			return y, err
		}
		if err := b.Next(rowB); err != nil {
			return y, err
		}
		if differs < 0 && !bytes.Equal(rowA, rowB) {
			differs = y
		}
	}
	if err := a.Finish(); err != nil {
		return differs, err
	}
	return differs, b.Finish()
}

// Quarter is the Info of a page reduced by 4 in both directions, as JPEG 2000
// counts: rounded up.
func Quarter(i Info) Info {
	i.Width, i.Height = (i.Width+3)/4, (i.Height+3)/4
	return i
}

// QuarterPSNR compares a page with another one that should be it, reduced by
// 4: the peak signal-to-noise ratio in decibels, +Inf if they are equal.
//
// The page is reduced by a filter of 1,2,2,2,1 eighths around each fourth
// sample in both directions. Its centre and its response up to the reduced
// image's own limit are close to those of two halvings by the 9-7 wavelet, so
// that what remains is small against any real difference.
func QuarterPSNR(info Info, page, reduced source) (float64, error) {
	q := &quarter{info: info, reduced: reduced, small: Quarter(info)}
	n := q.small.Width * info.Channels
	q.sum[0], q.sum[1] = make([]uint32, n), make([]uint32, n)
	q.got = make([]byte, q.small.RowBytes())
	row := make([]byte, info.RowBytes())
	across := make([]uint32, n)
	for y := range info.Height {
		if err := page.Next(row); err != nil {
			return 0, err
		}
		q.across(across, row)
		if err := q.down(y, across); err != nil {
			return 0, err
		}
	}
	if q.done < q.small.Height {
		if err := q.emit(); err != nil {
			return 0, err
		}
	}
	if q.done != q.small.Height {
		return 0, fmt.Errorf("reduced to %d rows instead of %d", q.done, q.small.Height)
	}
	if err := page.Finish(); err != nil {
		return 0, err
	}
	if err := reduced.Finish(); err != nil {
		return 0, err
	}
	mse := q.square / float64(int64(q.small.Height)*int64(n))
	return 10 * math.Log10(float64(info.Max())*float64(info.Max())/mse), nil
}

// quarter reduces rows and compares them with the other side's.
type quarter struct {
	info, small Info
	reduced     source
	sum         [2][]uint32 // of the row being made, and of the one after it
	weight      [2]uint32
	got         []byte
	done        int // rows compared
	square      float64
}

// across reduces one row; each value is a weighted mean times eight.
func (q *quarter) across(dst []uint32, row []byte) {
	ch, w := q.info.Channels, q.info.Width
	if q.info.SampleBytes() == 1 {
		for k := range q.small.Width {
			x := 4 * k
			for c := range ch {
				if x >= 2 && x+2 < w {
					p := row[(x-2)*ch+c:]
					_ = p[4*ch]
					dst[k*ch+c] = uint32(p[0]) + 2*(uint32(p[ch])+uint32(p[2*ch])+uint32(p[3*ch])) + uint32(p[4*ch])
					continue
				}
				dst[k*ch+c] = q.edge(row, x, c)
			}
		}
		return
	}
	for k := range q.small.Width {
		for c := range ch {
			dst[k*ch+c] = q.edge(row, 4*k, c)
		}
	}
}

var taps = [5]uint32{1, 2, 2, 2, 1}

// edge is across for any place and depth: taps outside the row are left out.
func (q *quarter) edge(row []byte, x, c int) uint32 {
	var sum, weight uint32
	for i, tap := range taps {
		at := x + i - 2
		if at < 0 || at >= q.info.Width {
			continue
		}
		sum += tap * sample(row, at*q.info.Channels+c, q.info.SampleBytes())
		weight += tap
	}
	if weight == 8 {
		return sum
	}
	return sum * 8 / weight
}

func sample(row []byte, i, size int) uint32 {
	if size == 1 {
		return uint32(row[i])
	}
	return uint32(row[2*i]) | uint32(row[2*i+1])<<8
}

// down adds row y to the reduced rows it belongs to.
func (q *quarter) down(y int, row []uint32) error {
	switch y & 3 {
	case 0, 1:
		q.add(0, row, 2)
	case 2:
		q.add(0, row, 1)
		q.add(1, row, 1)
		return q.emit()
	case 3:
		q.add(0, row, 2)
	}
	return nil
}

func (q *quarter) add(which int, row []uint32, weight uint32) {
	sum := q.sum[which]
	for i, v := range row {
		sum[i] += v * weight
	}
	q.weight[which] += weight
}

// emit compares the row that is complete and makes the next one current.
func (q *quarter) emit() error {
	if err := q.reduced.Next(q.got); err != nil {
		return err
	}
	scale := 1 / (8 * float64(q.weight[0]))
	size := q.info.SampleBytes()
	for i, v := range q.sum[0] {
		d := float64(v)*scale - float64(sample(q.got, i, size))
		q.square += d * d
	}
	clear(q.sum[0])
	q.sum[0], q.sum[1] = q.sum[1], q.sum[0]
	q.weight[0], q.weight[1] = q.weight[1], 0
	q.done++
	return nil
}
