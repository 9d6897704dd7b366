//go:build !race

package daemon

func buildFlags() []string { return nil }
