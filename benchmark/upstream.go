package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	stdlog "log"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/pacecar-go/pacecar"
)

// workerHeader tells the upstream which process a request comes from.
const workerHeader = "Benchmark-Worker"

// An upstreamJob is what the upstream is told when it starts.
type upstreamJob struct {
	Rates     pacecar.Rates
	TLS       bool
	Service   time.Duration
	ForeignAt int
	Foreign   time.Duration
}

// An upstreamHello is its answer.
type upstreamHello struct {
	Addr string
	Cert string // PEM; empty without TLS
}

// playUpstream is the upstream's process: it serves until stdin ends, and then
// hands over its log.
func playUpstream(stdin io.Reader, stdout io.Writer) error {
	in, out := json.NewDecoder(bufio.NewReader(stdin)), json.NewEncoder(stdout)
	var job upstreamJob
	if err := in.Decode(&job); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	hello := upstreamHello{Addr: listener.Addr().String()}
	if job.TLS {
		cert, text, err := selfSigned()
		if err != nil {
			return err
		}
		hello.Cert = text
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}})
	}
	books := newLedger(job.Rates, job.ForeignAt, job.Foreign)
	server := &http.Server{
		Handler:           &upstream{books, job.Service},
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          stdlog.New(io.Discard, "", 0), // handshakes that a worker gave up
	}
	go func() { _ = server.Serve(listener) }()
	if err := out.Encode(hello); err != nil {
		return err
	}
	if err := in.Decode(new(struct{})); err != io.EOF {
		return fmt.Errorf("upstream: want the end of stdin, got %v", err)
	}
	_ = server.Close()
	books.mu.Lock()
	defer books.mu.Unlock()
	return out.Encode(books.log)
}

// upstream is the handler.
type upstream struct {
	books   *ledger
	service time.Duration
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	worker, _ := strconv.Atoi(r.Header.Get(workerHeader))
	wait, ok := u.books.arrive(worker)
	if !ok {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((wait+time.Second-1)/time.Second), 10))
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	if u.service > 0 {
		time.Sleep(u.service)
	}
	_, _ = io.WriteString(w, "ok\n")
}

// selfSigned makes a certificate for 127.0.0.1, which is its own authority.
func selfSigned() (cert tls.Certificate, text string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return cert, "", err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:         true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return cert, "", err
	}
	text = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, text, nil
}
