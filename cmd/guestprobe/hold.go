package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/guestprobe/guestprobe/cmd/internal/cli"
)

// holdCommand makes or removes a running sidecar's hold file: a container that holds nothing but this program has no
// shell to do it with.
func holdCommand(_ context.Context, e cli.Env) error {
	fset := cli.NewFlags("guestprobe hold", "--hold-file PATH [--for DURATION | --release]")
	path := fset.String("hold-file", "", "the sidecar's --hold-file `PATH`")
	span := fset.Duration("for", 0, "let the hold expire after this `DURATION`; default: it lasts until it is released")
	release := fset.Bool("release", false, "end the hold")
	if done, err := parse(fset, e); done || err != nil {
		return err
	}
	switch {
	case *path == "":
		return cli.Usagef("--hold-file is missing: name the file that the sidecar was told to look at")
	case *span < 0:
		return cli.Usagef("--for: %v is negative", *span)
	case *release && *span != 0:
		return cli.Usagef("--release and --for exclude each other")
	}
	if *release {
		if err := os.Remove(*path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		fmt.Fprintln(e.Stdout, "released")
		return nil
	}
	text, until := "", "it is released"
	if *span > 0 {
		until = time.Now().Add(*span).UTC().Format(time.RFC3339)
		text = until + "\n"
	}
	if err := writeWhole(*path, text); err != nil {
		return err
	}
	fmt.Fprintf(e.Stdout, "held until %s\n", until)
	return nil
}

// writeWhole replaces the file at once: half a time would be a hold without an expiry.
func writeWhole(path, text string) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	_, err = tmp.WriteString(text)
	const allRead = 0o644 // the sidecar may be another user's
	if err = errors.Join(err, tmp.Chmod(allRead), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}
