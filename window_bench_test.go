package pacecar

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
)

// plainScript is what is in common use: a sliding window with an entry for each
// request, that answers yes or no.
var plainScript = redis.NewScript(`
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], now, ARGV[3])
redis.call('PEXPIRE', KEYS[1], math.ceil(ARGV[2] / 1000))
return 1`)

// BenchmarkBooking measures what a booking costs one redis-server, by its own
// account, beside the plain script: us/call is the time in the script, slots/s
// what one core could book.
func BenchmarkBooking(b *testing.B) {
	s := startRedis(b)
	rdb := s.client()
	defer rdb.Close()
	b.Run("plain", func(b *testing.B) {
		measure(b, rdb, 1, func(i int) error {
			return plainScript.Run(b.Context(), rdb, []string{"plain"}, 1_000_000, 1_000_000, strconv.Itoa(i)).Err()
		})
	})
	for _, c := range []struct {
		rates string
		slots int64
	}{
		{"1000/s", 1}, {"20/s", 1}, {"10/s, 100/20s", 1},
		{"1000000/s", 1}, {"1000000/s", 16}, {"1000000/s", 256}, {"1000000/s", 4096},
	} {
		b.Run(fmt.Sprintf("%s/%d", c.rates, c.slots), func(b *testing.B) {
			w := newShared(rdb, "bench", b.Name(), (&Policy{Rates: MustRates(c.rates)}).bounds())
			measure(b, rdb, c.slots, func(int) error {
				_, err := w.exchange(b.Context(), &query{process: "p", asks: []ask{{count: c.slots, cost: 1, longest: 1_000_000}}})
				return err
			})
		})
	}
}

// measure runs calls and reports what the server says of them.
func measure(b *testing.B, rdb *redis.Client, slots int64, call func(i int) error) {
	if err := call(0); err != nil {
		b.Fatal(err)
	}
	rdb.ConfigResetStat(b.Context())
	for i := 0; b.Loop(); i++ {
		if err := call(i + 1); err != nil {
			b.Fatal(err)
		}
	}
	stats := regexp.MustCompile(`cmdstat_evalsha:calls=\d+,usec=\d+,usec_per_call=([\d.]+)`).
		FindStringSubmatch(rdb.Info(b.Context(), "commandstats").Val())
	if stats == nil {
		b.Fatal("no statistics of evalsha")
	}
	micros, _ := strconv.ParseFloat(stats[1], 64)
	b.ReportMetric(micros, "us/call")
	b.ReportMetric(float64(slots)*1e6/micros, "slots/s")
}
