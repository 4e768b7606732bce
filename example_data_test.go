package pacecar_test

import (
	"fmt"
	"os"
	"strings"

	"github.com/pacecar-go/pacecar"
)

// Routes come from a file that can be checked without Redis, say before it is
// deployed. testdata/routes.yaml holds the same routes in YAML.
func ExampleReadRoutes() {
	f, err := os.Open("testdata/routes.json")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	routes, err := pacecar.ReadRoutes(f)
	if err != nil {
		fmt.Println(err)
		return
	}
	t, err := pacecar.New(pacecar.Config{Routes: routes, Base: upstream{}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.CloseIdleConnections()
	fmt.Println(len(routes), "routes, api.openf1.org at", routes["api.openf1.org/"].Rates)

	_, err = pacecar.ReadRoutes(strings.NewReader(`{
		"api.openf1.org/": {
			"rates": "3/s, 30/m",
			"max_wait": "5s"
		}
	}`))
	fmt.Println(err)
	// Output:
	// 5 routes, api.openf1.org at 3/s, 30/m
	// pacecar: line 4: Routes["api.openf1.org/"]: unknown field "max_wait", did you mean "maxWait"?
}

// Routes come from an environment variable. A library that fills a struct from
// the environment makes the same call for a field of type Routes.
func ExampleRoutes_UnmarshalText() {
	os.Setenv("PACECAR_ROUTES", `{"api.example.com/": {"rates": "3/s", "outage": "fail open", "replicas": 4}}`)
	defer os.Unsetenv("PACECAR_ROUTES")

	var routes pacecar.Routes
	if err := routes.UnmarshalText([]byte(os.Getenv("PACECAR_ROUTES"))); err != nil {
		fmt.Println("PACECAR_ROUTES:", err)
		return
	}
	policy := routes["api.example.com/"]
	fmt.Println(policy.Rates, policy.Outage, policy.Replicas)
	// Output: 3/s fail open 4
}
