//go:build race

package daemon

// buildFlags make the program look for data races when the test does.
func buildFlags() []string { return []string{"-race"} }
