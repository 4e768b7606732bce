module github.com/pacecar-go/pacecar/docs/tour

go 1.26.0

replace (
	github.com/pacecar-go/pacecar => ../../
	github.com/pacecar-go/pacecar/pacecarprom => ../../pacecarprom
)

require (
	github.com/go-redis/redis_rate/v10 v10.0.1
	github.com/pacecar-go/pacecar v0.0.0
	github.com/pacecar-go/pacecar/pacecarprom v0.0.0
	github.com/prometheus/client_golang v1.25.0
	github.com/redis/go-redis/v9 v9.23.0
	golang.org/x/time v0.16.0
)

require (
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/hashicorp/go-retryablehttp v0.7.8 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/prometheus/client_model v0.6.3 // indirect
	github.com/prometheus/common v0.72.0 // indirect
	github.com/prometheus/procfs v0.22.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
