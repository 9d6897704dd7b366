package qga

import (
	"context"
	"testing"
)

// A dial must end with its context, and must not make a connection of nothing.
func TestVsockDialCanceled(t *testing.T) {
	dial, err := dialer(Addr{Scheme: "vsock", CID: 4_000_000_001, Port: 1024})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if nc, err := dial(ctx); err == nil || nc != nil {
		t.Errorf("connection %v, error %v", nc, err)
	}
}
