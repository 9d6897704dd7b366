package inject

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/sidecar/collect"
)

// TestCollectorFindsIt: the collector looks for what is injected here. It cannot share the names: it links no k8s.io.
func TestCollectorFindsIt(t *testing.T) {
	want := []string{VolumeRun, VolumeInfo, InfoNamespace, InfoVM, socketPath}
	got := []string{collect.VolumeRun, collect.VolumeInfo, collect.InfoNamespace, collect.InfoVM, sharedDir + "/" + collect.SocketFile}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-inject +collect):\n%s", diff)
	}
}
