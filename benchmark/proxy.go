package main

import (
	"net"
	"sync"
	"time"
)

// A proxy adds a round trip time to the way to a TCP server: every byte comes
// out half of it later, in either direction, in order. Connecting costs a round
// trip too. A listener cannot delay the handshake of the kernel, so what a
// client sends at once counts as sent one round trip after it connected; for a
// client that must hear an answer before it goes on, as with TLS, that is the
// same.
type proxy struct {
	listener net.Listener
	target   string
	rtt      time.Duration

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	done  bool
}

// startProxy starts a proxy on a free port.
func startProxy(target string, rtt time.Duration) (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: listener, target: target, rtt: rtt, conns: map[net.Conn]struct{}{}}
	go p.serve()
	return p, nil
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// close ends the proxy and its connections.
func (p *proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = true
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		go p.connect(client, time.Now().Add(p.rtt))
	}
}

// connect joins a client, which is connected from that moment on, to the
// target. Where the target cannot be reached, the client's connection ends.
func (p *proxy) connect(client net.Conn, connected time.Time) {
	defer p.forget(client)
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer p.forget(server)
	if !p.remember(client, server) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.pipe(server, client, connected) })
	both.Go(func() { p.pipe(client, server, time.Time{}) })
	both.Wait()
}

// remember reports false when the proxy is closed already.
func (p *proxy) remember(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		p.conns[c] = struct{}{}
	}
	return !p.done
}

func (p *proxy) forget(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = c.Close()
	delete(p.conns, c)
}

// A chunk is bytes that are due at a time; none are the end of the stream.
type chunk struct {
	due  time.Time
	data []byte
}

// pipe carries bytes from src to dst. Nothing counts as sent before begin.
func (p *proxy) pipe(dst, src net.Conn, begin time.Time) {
	chunks := make(chan chunk, 1024)
	go func() {
		defer close(chunks)
		for {
			buf := make([]byte, 16<<10)
			n, err := src.Read(buf)
			sent := time.Now()
			if sent.Before(begin) {
				sent = begin
			}
			if n > 0 {
				chunks <- chunk{sent.Add(p.rtt / 2), buf[:n]}
			}
			if err != nil {
				chunks <- chunk{sent.Add(p.rtt / 2), nil}
				return
			}
		}
	}()
	broken := false
	for c := range chunks { // to the end, so that the reader ends too
		if broken {
			continue
		}
		time.Sleep(time.Until(c.due))
		if c.data == nil {
			_ = dst.(*net.TCPConn).CloseWrite()
		} else if _, err := dst.Write(c.data); err != nil {
			broken = true
			_ = src.Close()
		}
	}
}
