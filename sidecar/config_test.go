package sidecar

import (
	"io"
	"log/slog"
	"testing"

	"github.com/guestprobe/guestprobe/sidecar/manifest"
)

func discard() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func TestConfigNamesWhatIsMissing(t *testing.T) {
	m, err := manifest.Parse("vm.yaml", []byte(`
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
spec:
  readinessProbe: {httpGet: {port: 1500}}
  livenessProbe: {guestAgentPing: {}}
`))
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(Config{Manifest: m})
	want := "spec.readinessProbe: this probe goes to the guest and names no host: --guest-host is missing\n" +
		"spec.livenessProbe: this probe asks the guest agent: --agent is missing"
	if err == nil || err.Error() != want {
		t.Errorf("New = %v\nwant  %s", err, want)
	}
	if _, err := New(Config{}); err == nil {
		t.Error("a configuration without a manifest was accepted")
	}
}
