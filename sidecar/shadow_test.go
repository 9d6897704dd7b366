package sidecar

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestShadowWatchKnowsItsOwnAnswers(t *testing.T) {
	ours := newShadowWatch(discard(), nil)
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	server := httptest.NewServer(ours.sign(ok))
	defer server.Close()
	if err := ours.look(t.Context(), server.Listener.Addr().(*net.TCPAddr)); err != nil {
		t.Errorf("our own listener: %v", err)
	}

	// Somebody else behind our address: another web server, another sidecar, or nobody.
	other := httptest.NewServer(newShadowWatch(discard(), nil).sign(ok))
	defer other.Close()
	err := ours.look(t.Context(), other.Listener.Addr().(*net.TCPAddr))
	if err == nil || !strings.Contains(err.Error(), "is answered by another server") {
		t.Errorf("another sidecar's listener: %v", err)
	}
	gone := httptest.NewServer(ok)
	addr := gone.Listener.Addr().(*net.TCPAddr)
	gone.Close()
	if err := ours.look(t.Context(), addr); err == nil {
		t.Error("a closed port is taken for our own")
	}
}
