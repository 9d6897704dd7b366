package qga

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/qga/qgatest"
)

// caseFile is testdata/qga-cases.json, as far as the tests of this package use
// it. The file describes its own language.
type caseFile struct {
	Cases     []agentCase `json:"cases"`
	Wire      []wireCase  `json:"wire"`
	FakePeers []struct {
		Name       string         `json:"name"`
		Script     qgatest.Script `json:"script"`
		ClientMust string         `json:"client_must"`
		Why        string         `json:"why"`
	} `json:"fake_peers"`
}

func readCases(t *testing.T) caseFile {
	t.Helper()
	data, err := os.ReadFile("testdata/qga-cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases caseFile
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

// What each scripted peer must do to a client.
func TestAgentFakePeers(t *testing.T) {
	for _, peer := range readCases(t).FakePeers {
		t.Run(peer.Name, func(t *testing.T) {
			// Not parallel: it measures memory.
			addr := serveScript(t, peer.Script)
			agent := runAgent(t, addr, nil)
			timeout := long
			switch peer.ClientMust {
			case "timeout", "timeout-on-command":
				timeout = 300 * time.Millisecond
			case "fail-by-deadline":
				timeout = time.Second
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			err := agent.Ping(within(t, timeout))
			took := time.Since(start)
			runtime.ReadMemStats(&after)

			var said *Error
			ok := false
			switch peer.ClientMust {
			case "ok", "ok-or-resync", "accept-or-timeout":
				// The two choices are made: 0xFF drops what was buffered, and
				// a token without its sentinel is a token.
				ok = err == nil
			case "timeout", "timeout-on-command":
				ok = errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrProtocol)
			case "fail-by-deadline":
				ok = err != nil && took < timeout+time.Second
			case "fail-with-bounded-memory":
				ok = errors.Is(err, ErrTooLarge) && after.TotalAlloc-before.TotalAlloc < 4<<20
			case "protocol-error":
				ok = errors.Is(err, ErrProtocol) && !errors.Is(err, context.DeadlineExceeded)
			case "error":
				ok = errors.As(err, &said)
			case "connection-lost":
				ok = errors.Is(err, ErrConnectionLost)
			case "wrong-peer":
				ok = errors.Is(err, ErrWrongPeer)
			default:
				t.Fatalf("unknown verdict %q", peer.ClientMust)
			}
			if !ok {
				t.Errorf("error = %v after %v and %d bytes, want %s: %s",
					err, took, after.TotalAlloc-before.TotalAlloc, peer.ClientMust, peer.Why)
			}
		})
	}
}

// A client that goes on calling gets the same verdict again, or better: one
// call's trouble does not spoil the next.
func TestAgentFakePeersAgain(t *testing.T) {
	t.Parallel()
	for _, peer := range readCases(t).FakePeers {
		t.Run(peer.Name, func(t *testing.T) {
			t.Parallel()
			agent := runAgent(t, serveScript(t, peer.Script), nil)
			for range 4 {
				switch peer.ClientMust {
				case "ok", "ok-or-resync", "accept-or-timeout":
					if err := agent.Ping(within(t, long)); err != nil {
						t.Error(err)
					}
				default:
					if err := agent.Ping(within(t, short)); err == nil {
						t.Errorf("success, want %s", peer.ClientMust)
					}
				}
			}
		})
	}
}
