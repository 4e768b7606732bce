package main

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// The pictures have no background, and colors that can be read on white and on
// black.
var (
	ink   = color.NRGBA{R: 0x80, G: 0x86, B: 0x8f, A: 0xff}
	good  = color.NRGBA{R: 0x2f, G: 0x81, B: 0xc9, A: 0xff}
	other = color.NRGBA{R: 0x8a, G: 0x94, B: 0xa3, A: 0xff}
	over  = color.NRGBA{R: 0xd9, G: 0x4f, B: 0x45, A: 0xff}
)

// shown are the limiters in the picture of arrivals, in this order.
var shown = []string{ours, "redis_rate", "retry-after"}

// drawAll draws the plain workload: arrivals.svg and limiters.svg. What was not
// measured is not drawn.
func drawAll(dir string, results []result) error {
	var plain []*result
	for i := range results {
		if r := &results[i]; r.workload.name == "plain" && r.measured {
			plain = append(plain, r)
		}
	}
	if len(plain) == 0 {
		return fmt.Errorf("-svg: the workload %q was not measured", "plain")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var arrivals []*plot.Plot
	longest, most := horizon(plain)
	for _, name := range shown {
		if i := slices.IndexFunc(plain, func(r *result) bool { return r.adapter.name == name }); i >= 0 {
			p, err := drawArrivals(plain[i], longest, most)
			if err != nil {
				return err
			}
			arrivals = append(arrivals, p)
		}
	}
	if len(arrivals) > 0 {
		rate := plain[0].workload.rates[0]
		arrivals[0].Y.Label.Text = fmt.Sprintf("arrivals in the last %v, limit %d", rate.Per, rate.Limit)
		if err := writeSVG(filepath.Join(dir, "arrivals.svg"), 780, 250, arrivals); err != nil {
			return err
		}
	}
	bars, err := drawBars(plain)
	if err != nil {
		return err
	}
	return writeSVG(filepath.Join(dir, "limiters.svg"), 780, vg.Length(60+22*len(plain)), bars)
}

// newPlot returns an empty plot in our colors.
func newPlot(title string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	p.Title.Text = title
	p.Title.Padding = 6
	p.Title.TextStyle.Font.Size = 12
	p.Title.TextStyle.Color = ink
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Color, a.Label.TextStyle.Color, a.Tick.Color, a.Tick.Label.Color = ink, ink, ink, ink
		a.Label.TextStyle.Font.Size, a.Tick.Label.Font.Size = 11, 11
	}
	for _, f := range []*font.Font{&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font,
		&p.X.Tick.Label.Font, &p.Y.Tick.Label.Font} {
		f.Variant = "Sans"
	}
	return p
}

// horizon returns what all pictures of arrivals have room for.
func horizon(results []*result) (longest time.Duration, most int) {
	for _, r := range results {
		if slices.Contains(shown, r.adapter.name) && len(r.log.At) > 0 {
			longest = max(longest, r.log.At[len(r.log.At)-1]-r.log.At[0])
			most = max(most, mostIn(r.workload.rates[0].Per, r.log.At))
		}
	}
	return longest, most
}

// drawArrivals draws how many arrivals the upstream saw in the window that ends
// at each moment, and the limit. What is above it is what it refused, or would
// have, had it counted those that it refused.
func drawArrivals(r *result, longest time.Duration, most int) (*plot.Plot, error) {
	rate := r.workload.rates[0]
	p := newPlot(fmt.Sprintf("%s: %d refused", r.adapter.name, r.refused))
	p.X.Label.Text = "seconds"
	p.X.Min, p.X.Max = 0, longest.Seconds()
	p.Y.Min, p.Y.Max = 0, 1.05*float64(max(most, rate.Limit))
	counts := thin(trailing(rate.Per, r.log.At), longest.Seconds()/1000)
	within, above := slices.Clone(counts), slices.Clone(counts)
	for i := range counts {
		if within[i].Y > float64(rate.Limit) {
			within[i].Y = float64(rate.Limit)
		} else {
			above[i].Y = 0 // no red below the blue, which would shine through at its edges
		}
	}
	for _, layer := range []struct {
		points plotter.XYs
		color  color.NRGBA
	}{{above, over}, {within, good}} {
		line, err := plotter.NewLine(layer.points)
		if err != nil {
			return nil, err
		}
		line.StepStyle = plotter.PostStep
		line.Width = 0
		line.FillColor = layer.color
		p.Add(line)
	}
	limit, err := plotter.NewLine(plotter.XYs{{X: 0, Y: float64(rate.Limit)}, {X: longest.Seconds(), Y: float64(rate.Limit)}})
	if err != nil {
		return nil, err
	}
	limit.Color, limit.Width, limit.Dashes = ink, 1, []vg.Length{4, 3}
	p.Add(limit)
	return p, nil
}

// trailing returns the number of arrivals in the window that ends at each
// moment at which it changes, in seconds from the first arrival.
func trailing(per time.Duration, at []time.Duration) (xys plotter.XYs) {
	add := func(t time.Duration, n int) {
		xys = append(xys, plotter.XY{X: (t - at[0]).Seconds(), Y: float64(n)})
	}
	n, first := 0, 0
	for _, t := range at {
		for ; t-at[first] >= per; first++ {
			n--
			add(at[first]+per, n)
		}
		n++
		add(t, n)
	}
	return xys
}

// thin keeps of all points within a step only the largest and the last, which
// is what can be seen of them.
func thin(xys plotter.XYs, step float64) (few plotter.XYs) {
	for len(xys) > 0 {
		n, most := 1, 0
		for n < len(xys) && math.Floor(xys[n].X/step) == math.Floor(xys[0].X/step) {
			if xys[n].Y > xys[most].Y {
				most = n
			}
			n++
		}
		few = append(few, xys[most])
		if most < n-1 {
			few = append(few, xys[n-1])
		}
		xys = xys[n:]
	}
	return few
}

// drawBars draws one plot for each of the figures that tell most.
func drawBars(results []*result) (plots []*plot.Plot, err error) {
	for i, c := range []struct {
		title string
		value func(r *result) float64
		show  func(r *result) string
	}{
		{"share of the ideal speed", func(r *result) float64 { return r.share },
			func(r *result) string { return fmt.Sprintf("%.2f", r.share) }},
		{"429s", func(r *result) float64 { return float64(r.refused) },
			func(r *result) string { return strconv.Itoa(r.refused) }},
		{"Redis calls per request", func(r *result) float64 { return r.calls },
			func(r *result) string { return perRequest(r, r.calls, 1) }},
		{"p99 wait over the ideal", func(r *result) float64 { return r.p99.Seconds() },
			func(r *result) string { return fmt.Sprintf("%.2f s", r.p99.Seconds()) }},
	} {
		p := newPlot(c.title)
		p.X.Min, p.X.Max = 0, 0
		if err := addBars(p, results, c.value, c.show); err != nil {
			return nil, err
		}
		p.HideX()
		p.X.Max *= 1.3 // room for the last label
		p.Y.Min, p.Y.Max = -0.7, float64(len(results))-0.3
		p.Y.Width, p.Y.Tick.Width, p.Y.Tick.Length, p.Y.Padding = 0, 0, 0, 4
		ticks := make(plot.ConstantTicks, len(results))
		for j, r := range results {
			ticks[j].Value = float64(len(results) - 1 - j)
			if i == 0 {
				ticks[j].Label = r.adapter.name + "   " // room for a wider font than it is measured with
			} else {
				ticks[j].Label = " "
			}
		}
		p.Y.Tick.Marker = ticks
		plots = append(plots, p)
	}
	return plots, nil
}

// addBars adds a bar and its value for each result, the first on top.
func addBars(p *plot.Plot, results []*result, value func(*result) float64, show func(*result) string) error {
	labels := plotter.XYLabels{}
	for i, r := range results {
		at, v := float64(len(results)-1-i), value(r)
		bar, err := plotter.NewBarChart(plotter.Values{max(v, 0)}, 12)
		if err != nil {
			return err
		}
		bar.Horizontal, bar.XMin, bar.LineStyle.Width, bar.Color = true, at, 0, other
		if r.adapter.name == ours {
			bar.Color = good
		}
		p.Add(bar)
		p.X.Max = math.Max(p.X.Max, v)
		labels.XYs = append(labels.XYs, plotter.XY{X: max(v, 0), Y: at})
		labels.Labels = append(labels.Labels, " "+show(r))
	}
	if p.X.Max == 0 {
		p.X.Max = 1
	}
	text, err := plotter.NewLabels(labels)
	if err != nil {
		return err
	}
	for i := range text.TextStyle {
		text.TextStyle[i].Color = ink
		text.TextStyle[i].Font.Size = 11
		text.TextStyle[i].Font.Variant = "Sans"
		text.TextStyle[i].YAlign = draw.YCenter
	}
	text.Offset.Y = 1.5 // as high as the names
	p.Add(text)
	return nil
}

// writeSVG writes plots beside each other.
func writeSVG(name string, width, height vg.Length, plots []*plot.Plot) error {
	c := vgsvg.New(width, height)
	tiles := draw.Tiles{Rows: 1, Cols: len(plots), PadX: 14, PadTop: 2, PadBottom: 2, PadLeft: 2, PadRight: 8}
	for i, canvas := range plot.Align([][]*plot.Plot{plots}, tiles, draw.New(c))[0] {
		plots[i].Draw(canvas)
	}
	var buf bytes.Buffer
	if _, err := c.WriteTo(&buf); err != nil {
		return err
	}
	// Who has not the font that it was measured with has one of the same size.
	text := bytes.ReplaceAll(buf.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:'Liberation Sans',Arial,Helvetica,sans-serif"))
	return writeFile(name, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}
