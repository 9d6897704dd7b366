package qga

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/qga/qgatest"
)

// The log tells what changes, once; not each attempt, and not each probe.
func TestAgentLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		l := newPipeListener()
		here := make(chan struct{})
		agent := runAgent(t, "unix:/x", &AgentConfig{
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Dial: func(ctx context.Context) (net.Conn, error) {
				select {
				case <-here:
					return l.dial(ctx)
				default:
					return nil, os.ErrNotExist
				}
			},
		})
		check := func(want ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for line := range strings.Lines(log.String()) {
				_, text, _ := strings.Cut(line, "level=")
				got = append(got, strings.TrimSpace(text))
			}
			log.Reset()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("log (-want +got):\n%s", diff)
			}
		}
		time.Sleep(time.Hour)
		check(`INFO msg="no connection to the guest agent's channel" agent=unix:/x err="file does not exist"`)

		close(here)
		fake := fakeAgent(t, qgatest.AgentConfig{Listener: l, Sessions: true})
		time.Sleep(time.Minute)
		for range 100 {
			if err := agent.Ping(inSeconds(t, 1)); err != nil {
				t.Fatal(err)
			}
		}
		check(`INFO msg="the guest agent answers" agent=unix:/x`)

		fake.Stop()
		for range 100 {
			wantSilence(t, agent.Ping(inSeconds(t, 1)))
		}
		fake.Close()
		time.Sleep(time.Hour)
		check(`INFO msg="no connection to the guest agent's channel" agent=unix:/x err="connection lost: EOF"`,
			`INFO msg="no connection to the guest agent's channel" agent=unix:/x err="file does not exist"`)
	})
}
