module github.com/pacecar-go/pacecar/yamltest

go 1.26.0

replace github.com/pacecar-go/pacecar => ../

require (
	github.com/caarlos0/env/v11 v11.4.2
	github.com/goccy/go-yaml v1.19.2
	github.com/kelseyhightower/envconfig v1.4.0
	github.com/pacecar-go/pacecar v0.0.0
	go.yaml.in/yaml/v3 v3.0.6
	go.yaml.in/yaml/v4 v4.0.0
	gopkg.in/yaml.v2 v2.4.0
	gopkg.in/yaml.v3 v3.0.1
	sigs.k8s.io/yaml v1.6.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/hashicorp/go-retryablehttp v0.7.8 // indirect
	github.com/redis/go-redis/v9 v9.23.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	go.yaml.in/yaml/v2 v2.4.2 // indirect
	golang.org/x/sys v0.48.0 // indirect
)
