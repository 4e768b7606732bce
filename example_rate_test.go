package pacecar_test

import (
	"encoding/json"
	"fmt"

	"github.com/pacecar-go/pacecar"
)

func ExampleParseRates() {
	rates, err := pacecar.ParseRates("3/s, 30/m, 1000000/24h")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range rates {
		fmt.Printf("at most %d in any %v\n", r.Limit, r.Per)
	}

	_, err = pacecar.ParseRates("3/s, 30/min")
	fmt.Println(err)
	// Output:
	// at most 3 in any 1s
	// at most 30 in any 1m0s
	// at most 1000000 in any 24h0m0s
	// pacecar: rates "3/s, 30/min": rate 2 "30/min": unknown unit "min", want ms, s, m, h or d
}

func ExampleRates_UnmarshalText() {
	var config struct{ Rates pacecar.Rates }
	if err := json.Unmarshal([]byte(`{"rates": "100/10s"}`), &config); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(config.Rates)
	// Output: 100/10s
}
