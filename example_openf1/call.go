package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/pacecar-go/pacecar"
)

const (
	maxBody  = 8 << 20          // bytes; the longest answer seen is below 100 KB
	bodyWait = 30 * time.Second // for the end of an answer, once it has begun

	redisWait  = 20 * time.Second // for Redis to come back, when the policy is to fail closed
	redisPause = 500 * time.Millisecond
)

// fetch makes one call. It returns the JSON array of the answer, or why there
// is none; status is 0 if there was no response at all.
func fetch(ctx context.Context, client *http.Client, target string) (array json.RawMessage, status int, reason string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, 0, err.Error()
	}
	req.Header.Set("User-Agent", "pacecar-example (+https://github.com/pacecar-go/pacecar)")
	resp, err := send(client, req)
	if err != nil {
		if errors.Is(err, context.Canceled) {
			return nil, 0, interrupted
		}
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err // the report names the call beside the reason
		}
		return nil, 0, err.Error()
	}
	defer resp.Body.Close()
	defer time.AfterFunc(bodyWait, cancel).Stop()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, resp.StatusCode, "reading the answer: " + err.Error()
	case len(body) > maxBody:
		return nil, resp.StatusCode, fmt.Sprintf("the answer is longer than %d bytes", maxBody)
	}
	array, reason = readAnswer(resp, body)
	return array, resp.StatusCode, reason
}

// send sends a request, and is patient with Redis: a call that pacecar refused
// was not sent and cost nothing, so it may be made again whatever its method.
func send(client *http.Client, req *http.Request) (*http.Response, error) {
	for start := time.Now(); ; {
		resp, err := client.Do(req)
		if !errors.Is(err, pacecar.ErrUnavailable) || time.Since(start) > redisWait {
			return resp, err
		}
		select {
		case <-time.After(redisPause):
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
}

// readAnswer returns the array in an answer, or says why there is none. Some
// versions of the API answer 404 for an empty result, others an empty array.
// 401 is what anonymous callers get while a session is live: its text says so.
func readAnswer(resp *http.Response, body []byte) (array json.RawMessage, reason string) {
	var refusal struct{ Detail any }
	text := ""
	if json.Unmarshal(body, &refusal) == nil && refusal.Detail != nil {
		text = fmt.Sprint(refusal.Detail)
	}
	switch {
	case resp.StatusCode == http.StatusNotFound && text == noResults:
		return json.RawMessage("[]"), ""
	case resp.StatusCode == http.StatusOK && json.Valid(body) && bytes.HasPrefix(bytes.TrimSpace(body), []byte("[")):
		return body, ""
	case resp.StatusCode == http.StatusOK:
		return nil, "200 OK, but the answer is not a JSON array"
	}
	text = strings.Join(strings.Fields(cmp.Or(text, string(body))), " ")
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "…"
	}
	return nil, strings.TrimSuffix(resp.Status+": "+text, ": ")
}
