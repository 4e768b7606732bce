package sdktest

import (
	"context"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	vault "github.com/hashicorp/vault/api"

	"github.com/pacecar-go/pacecar"
)

var vaultSDK = &sdk{
	name: "vault",
	client: func(t *testing.T, rt http.RoundTripper, url string, retries bool) func(context.Context) error {
		config := vault.DefaultConfig()
		config.Address = url
		config.HttpClient.Transport = rt
		if !retries {
			config.MaxRetries = 0
		}
		client, err := vault.NewClient(config)
		if err != nil {
			t.Fatal(err)
		}
		return func(ctx context.Context) error {
			_, err := client.Logical().WriteWithContext(ctx, "secret/box", map[string]any{"lap": 1})
			return err
		}
	},
	answer:  `{"data": {}}`,
	limited: `{"errors": ["request path rate limit quota exceeded"]}`,
	wait:    map[string]string{"Retry-After": "0.1"},
	is429: func(err error) bool {
		var e *vault.ResponseError
		return errors.As(err, &e) && e.StatusCode == http.StatusTooManyRequests
	},
	own: ownRetries{down: 3, limited: 3, refused: 3, made429: 1, waits: time.Minute},
}

// TestVaultTLS: the client's TLS goes into the *http.Transport that it expects
// to find, so it is configured first, and that transport is then pacecar's Base.
func TestVaultTLS(t *testing.T) {
	t.Parallel()
	u := &upstream{sdk: vaultSDK, statuses: []int{http.StatusOK}}
	server := httptest.NewTLSServer(u)
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})

	config := vault.DefaultConfig()
	config.Address = server.URL
	config.MaxRetries = 0
	if err := config.ConfigureTLS(&vault.TLSConfig{CACertBytes: ca}); err != nil {
		t.Fatal(err)
	}
	limited, err := pacecar.New(pacecar.Config{
		Routes: map[string]pacecar.Policy{"/": {Rates: pacecar.MustRates("1000/s")}},
		Base:   config.HttpClient.Transport,
	})
	if err != nil {
		t.Fatal(err)
	}
	config.HttpClient.Transport = limited
	t.Cleanup(limited.CloseIdleConnections)
	client, err := vault.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = client.Logical().ReadWithContext(t.Context(), "secret/box"); err != nil {
		t.Fatal(err)
	}
	if n := len(u.sendings()); n != 1 {
		t.Errorf("%d requests arrived, want 1", n)
	}

	// The other way round is an error, not a connection without the CA.
	err = config.ConfigureTLS(&vault.TLSConfig{CACertBytes: ca})
	if err == nil || !strings.Contains(err.Error(), "unsupported HTTPClient transport type") {
		t.Errorf("ConfigureTLS after wrapping gave %v", err)
	}
}
