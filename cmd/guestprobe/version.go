package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

func versionCommand(_ context.Context, e env) error {
	fs := newFlags("version", "")
	if done, err := parseFlags(fs, e, false); done || err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return usageErrorf("unexpected argument %q", fs.Arg(0))
	}
	fmt.Fprintf(e.stdout, "guestprobe %s %s %s/%s\n", buildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return nil
}

// buildVersion is the module's version, or the commit that it was built from.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "+dirty"
			}
		}
	}
	switch {
	case info.Main.Version != "" && info.Main.Version != "(devel)":
		return info.Main.Version
	case len(revision) >= 12:
		return "devel-" + revision[:12] + dirty
	}
	return "devel"
}
