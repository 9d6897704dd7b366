package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// copySelf puts this program at path, for a container that has it not: in a virt-launcher pod, compute's liveness
// probe runs it. The copy is there as a whole or not at all, also for somebody who runs an older one just now.
func copySelf(path string) (err error) {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
	}()
	_, err = io.Copy(tmp, self)
	const everybodyRuns = 0o755
	if err = errors.Join(err, tmp.Chmod(everybodyRuns), tmp.Close()); err != nil {
		return fmt.Errorf("copying to %s: %w", path, err)
	}
	return os.Rename(tmp.Name(), path)
}
