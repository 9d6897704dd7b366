//go:build race

package e2e_test

// buildFlags make the binary under test look for data races when the test does.
func buildFlags() []string { return []string{"-race"} }
