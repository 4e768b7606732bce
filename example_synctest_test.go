package pacecar_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pacecar-go/pacecar"
)

// TestOfOnesOwn is how a program that uses a Transport can test itself: without
// Redis and in virtual time, where a minute of waiting takes none. docs/faq.md
// quotes it.
func TestOfOnesOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport, err := pacecar.New(pacecar.Config{
			Redis:  nil, // in memory
			Routes: pacecar.Routes{"/": {Rates: pacecar.MustRates("3/s, 30/m")}},
			Base:   upstream{}, // a RoundTripper of one's own: no network, which knows no virtual time
		})
		if err != nil {
			t.Fatal(err)
		}
		client := &http.Client{Transport: transport}

		began := time.Now()
		for range 31 {
			resp, err := client.Get("https://api.example.com/")
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
		if took := time.Since(began); took < time.Minute || took > 61*time.Second {
			t.Errorf("31 requests at 30 a minute took %v", took)
		}
	})
}
