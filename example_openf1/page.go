package main

import (
	_ "embed"
	"net"
	"net/http"
	"sync"
	"time"
)

//go:embed page.html
var pageHTML []byte

// pagePolicy lets the page load nothing but itself, and ask this server alone.
const pagePolicy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; " +
	"connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// A page shows one view after another. Its script asks for the next, four times
// a second.
type page struct {
	addr string
	srv  *http.Server

	mu   sync.Mutex
	view view // shared with those who read it: it is replaced, never changed
}

// servePage serves a page at an address until close is called.
func servePage(addr string) (*page, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	p := &page{addr: l.Addr().String()}
	if host, port, _ := net.SplitHostPort(p.addr); net.ParseIP(host).IsUnspecified() {
		p.addr = net.JoinHostPort("localhost", port) // what a browser can open
	}
	p.srv = &http.Server{Handler: p.handler(), ReadHeaderTimeout: 5 * time.Second}
	go p.srv.Serve(l)
	return p, nil
}

func (p *page) close() { p.srv.Close() }

// show replaces what is shown.
func (p *page) show(v view) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.view = v
}

func (p *page) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", pagePolicy)
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(pageHTML)
	})
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		v := p.view
		p.mu.Unlock()
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		writeJSON(w, http.StatusOK, v)
	})
	return mux
}
