package netprobe

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// healthServer starts an HTTP/2 server, plain or with TLS, that answers the health method with h.
func healthServer(t testing.TB, secure bool, h http.HandlerFunc) *peer {
	t.Helper()
	p := &peer{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+healthPath, h)
	s := p.handle(t, mux.ServeHTTP, func(s *httptest.Server) {
		if secure {
			s.EnableHTTP2 = true
			s.StartTLS()
			return
		}
		s.Config.Protocols = new(http.Protocols)
		s.Config.Protocols.SetUnencryptedHTTP2(true)
		s.Start()
	})
	p.setAddr(s.Listener.Addr())
	return p
}

// frame makes a gRPC frame.
func frame(flag byte, message []byte) []byte {
	b := append([]byte{flag}, binary.BigEndian.AppendUint32(nil, uint32(len(message)))...)
	return append(b, message...)
}

// answer writes a whole gRPC answer: a frame, if any, and the trailers.
func answerRPC(w http.ResponseWriter, data []byte, status, message string) {
	w.Header().Set("Content-Type", "application/grpc")
	if data != nil {
		w.Write(data)
		w.(http.Flusher).Flush()
	}
	w.Header().Set(http.TrailerPrefix+"Grpc-Status", status)
	w.Header().Set(http.TrailerPrefix+"Grpc-Message", message)
}

// answerHealth answers with a health status.
func answerHealth(s healthStatus) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		answerRPC(w, frame(0, []byte{1 << 3, byte(s)}), "0", "")
	}
}

func TestGRPCCases(t *testing.T) {
	for set, c := range loadCases(t) {
		for _, tc := range c.GRPC {
			t.Run(set+"/"+tc.Name, func(t *testing.T) {
				t.Parallel()
				g := grpcTarget(t, tc.Server)
				if tc.Mode == "TLS" {
					g.TLS = &TLS{}
				}
				timeout := time.Duration(tc.Timeout) * time.Millisecond
				if tc.Expect.Result == "success" || strings.HasPrefix(tc.Expect.Output, "service ") {
					timeout = patience // the server answers
				}
				err := g.Probe(withTimeout(t, timeout))
				result, probeError, text := outcome(t, err)
				if err == nil {
					text = "service healthy" // the kubelet's output of a success
				}
				if result != tc.Expect.Result || probeError != tc.Expect.ProbeError {
					t.Fatalf("got %s, error %v (%v); want %s, error %v", result, probeError, err, tc.Expect.Result, tc.Expect.ProbeError)
				}
				want := strings.ReplaceAll(tc.Expect.Output, `":32"`, strconv.Quote(hostPort(g.Host, g.Port)))
				if want != "" && text != want {
					t.Errorf("output %q, want %q", text, want)
				}
			})
		}
	}
}

// grpcTarget makes the probe for a case's server.
func grpcTarget(t *testing.T, server string) *GRPC {
	t.Helper()
	var p *peer
	switch server {
	case "refused":
		return &GRPC{Host: "127.0.0.1", Port: closedPort(t)}
	case "http1":
		p = startPeer(t, serverSpec{Kind: "fixed", Status: 200})
	case "serving":
		p = healthServer(t, false, answerHealth(statusServing))
	case "not-serving":
		p = healthServer(t, false, answerHealth(2))
	case "tls-serving":
		p = healthServer(t, true, answerHealth(statusServing))
	case "sleep-4s":
		p = healthServer(t, false, func(_ http.ResponseWriter, r *http.Request) {
			hold(4*time.Second, r.Context().Done())
		})
	default:
		t.Fatalf("no server %q", server)
	}
	return &GRPC{Host: p.host, Port: p.port}
}

// TestGRPCRequest checks what goes over the wire.
func TestGRPCRequest(t *testing.T) {
	var got http.Header
	var body []byte
	p := healthServer(t, false, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Clone()
		body, _ = io.ReadAll(r.Body)
		answerHealth(statusServing)(w, r)
	})
	g := &GRPC{Host: p.host, Port: p.port, Service: "liveness"}
	if err := g.Probe(withTimeout(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"Content-Type": "application/grpc", "Te": "trailers", "User-Agent": DefaultUserAgent,
		"Accept-Encoding": "", "Content-Length": "",
	} {
		if got.Get(name) != want {
			t.Errorf("%s: %q, want %q", name, got.Get(name), want)
		}
	}
	if v := got.Get("Grpc-Timeout"); !strings.HasSuffix(v, "u") || len(v) < 7 || len(v) > 9 {
		t.Errorf("Grpc-Timeout %q, want up to 8 digits of microseconds", v)
	}
	if want := string(frame(0, append([]byte{0x0a, 8}, "liveness"...))); string(body) != want {
		t.Errorf("body %q, want %q", body, want)
	}
}

func TestGRPCAnswers(t *testing.T) {
	serving := []byte{1 << 3, 1}
	const rpc = "error: health rpc probe failed: rpc error: code = "
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		cause  Cause
		text   string // "" means success
	}{
		"unknown fields around the status": {
			func(w http.ResponseWriter, _ *http.Request) {
				m := []byte{2<<3 | wireBytes, 2, 'h', 'i', 3<<3 | wireFixed32, 1, 2, 3, 4, 1 << 3, 2, 1 << 3, 1, 4<<3 | wireFixed64, 1, 2, 3, 4, 5, 6, 7, 8}
				answerRPC(w, frame(0, m), "0", "")
			}, 0, "",
		},
		"empty message is UNKNOWN": {
			func(w http.ResponseWriter, _ *http.Request) { answerRPC(w, frame(0, nil), "0", "") },
			CauseNotServing, `service unhealthy (responded with "UNKNOWN")`,
		},
		"a status nobody knows": {
			answerHealth(77), CauseNotServing, `service unhealthy (responded with "77")`,
		},
		"SERVICE_UNKNOWN": {
			answerHealth(3), CauseNotServing, `service unhealthy (responded with "SERVICE_UNKNOWN")`,
		},
		"status outranks message": {
			func(w http.ResponseWriter, _ *http.Request) { answerRPC(w, frame(0, serving), "5", "no %C3%A9 100%") },
			CauseRPC, rpc + "NotFound desc = no é 100%",
		},
		"unimplemented": {
			func(w http.ResponseWriter, _ *http.Request) { answerRPC(w, nil, "12", "unknown service") },
			CauseUnimplemented, "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service",
		},
		"the server's own deadline": {
			func(w http.ResponseWriter, _ *http.Request) { answerRPC(w, nil, "4", "x") },
			CauseTimeout, "timeout: health rpc did not complete within 20s",
		},
		"a status beyond the list": {
			func(w http.ResponseWriter, _ *http.Request) { answerRPC(w, nil, "99", "x") },
			CauseRPC, rpc + "Code(99) desc = x",
		},
		"a status that is no number": {
			func(w http.ResponseWriter, _ *http.Request) { answerRPC(w, nil, "ok", "x") },
			CauseRPC, rpc + `Unknown desc = transport: malformed grpc-status: strconv.ParseInt: parsing "ok": invalid syntax`,
		},
		"no message": {
			func(w http.ResponseWriter, _ *http.Request) { answerRPC(w, nil, "0", "") },
			CauseRPC, rpc + "Internal desc = cardinality violation: received no response message from non-server-streaming RPC",
		},
		"two messages": {
			func(w http.ResponseWriter, _ *http.Request) {
				answerRPC(w, append(frame(0, serving), frame(0, serving)...), "0", "")
			},
			CauseRPC, rpc + "Internal desc = cardinality violation: expected <EOF> for non server-streaming RPCs, but received another message",
		},
		"half a frame": {
			func(w http.ResponseWriter, _ *http.Request) { answerRPC(w, []byte{0, 0, 0, 0, 9, 1}, "0", "") },
			CauseRPC, rpc + "Internal desc = unexpected EOF",
		},
		"the beginning of a frame": {
			func(w http.ResponseWriter, _ *http.Request) { answerRPC(w, []byte{0, 0}, "0", "") },
			CauseRPC, rpc + "Internal desc = cardinality violation: received no response message from non-server-streaming RPC",
		},
		"groups are skipped": {
			func(w http.ResponseWriter, _ *http.Request) {
				answerRPC(w, frame(0, []byte{2<<3 | wireStartGroup, 1 << 3, 2, 2<<3 | wireEndGroup, 1 << 3, 1}), "0", "")
			}, 0, "",
		},
		"huge frame": {
			func(w http.ResponseWriter, _ *http.Request) { answerRPC(w, []byte{0, 255, 255, 255, 255}, "0", "") },
			CauseTooLarge, rpc + "ResourceExhausted desc = grpc: received message larger than max (4294967295 vs. 65536)",
		},
		"compressed": {
			func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Grpc-Encoding", "snappy")
				answerRPC(w, frame(1, serving), "0", "")
			},
			CauseRPC, rpc + `Internal desc = grpc: Decompressor is not installed for grpc-encoding "snappy"`,
		},
		"no protocol buffer": {
			func(w http.ResponseWriter, _ *http.Request) { answerRPC(w, frame(0, []byte{0xff}), "0", "") },
			CauseRPC, rpc + "Internal desc = grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data",
		},
		"no trailers": {
			func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/grpc")
				w.Write(frame(0, serving))
			},
			CauseRPC, rpc + "Internal desc = server closed the stream without sending trailers",
		},
		"a web server without the method": {
			func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no such page", http.StatusNotFound) },
			CauseUnimplemented,
			"error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unexpected HTTP status code received from server: 404 (Not Found); transport: received unexpected content-type \"text/plain; charset=utf-8\"\ndata: \"no such page\\n\"",
		},
		"aborted stream": {
			func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			CauseRPC, rpc + "Internal desc = stream terminated by RST_STREAM with error code: INTERNAL_ERROR",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := healthServer(t, false, tc.answer)
			err := (&GRPC{Host: p.host, Port: p.port}).Probe(withTimeout(t, patience))
			checkFailure(t, err, tc.cause, tc.text)
		})
	}
}

// checkFailure checks for a failure, or for a success where text is empty.
func checkFailure(t *testing.T, err error, cause Cause, text string) {
	t.Helper()
	var f *Failure
	switch {
	case err == nil && text == "":
	case !errors.As(err, &f):
		t.Errorf("got %T %v, want a failure %q", err, err, text)
	case f.Cause != cause || f.Text != text:
		t.Errorf("got %v %q\nwant %v %q", f.Cause, f.Text, cause, text)
	}
}

// TestGRPCConnect is about peers that never get as far as a call.
func TestGRPCConnect(t *testing.T) {
	t.Run("silent", func(t *testing.T) {
		t.Parallel()
		p := &peer{}
		p.serveRaw(t, func(c net.Conn, _ <-chan struct{}) { io.Copy(io.Discard, c) })
		err := (&GRPC{Host: p.host, Port: p.port}).Probe(withTimeout(t, 300*time.Millisecond))
		checkFailure(t, err, CauseTimeout, "timeout: failed to connect service "+strconv.Quote(hostPort(p.host, p.port))+" within 300ms: context deadline exceeded")
	})
	for name, tc := range map[string]struct {
		bytes string
		cause Cause
	}{
		"closes":      {"", CauseClosed},
		"http1":       {"HTTP/1.1 400 Bad Request\r\n\r\n", CauseProtocol},
		"short":       {"SSH", CauseClosed},
		"wrong frame": {"\x00\x00\x00\x07\x00\x00\x00\x00\x00", CauseProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &peer{}
			p.serveRaw(t, func(c net.Conn, _ <-chan struct{}) {
				io.ReadFull(c, make([]byte, 24)) // the client's preface
				io.WriteString(c, tc.bytes)
				c.(*net.TCPConn).CloseWrite()
				io.Copy(io.Discard, c)
			})
			err := (&GRPC{Host: p.host, Port: p.port}).Probe(withTimeout(t, 2*time.Second))
			checkFailure(t, err, tc.cause, "timeout: failed to connect service "+strconv.Quote(hostPort(p.host, p.port))+" within 2s: context deadline exceeded")
		})
	}
	t.Run("closes, then silent", func(t *testing.T) {
		t.Parallel()
		var tries atomic.Int64
		p := &peer{}
		p.serveRaw(t, func(c net.Conn, _ <-chan struct{}) {
			if tries.Add(1) > 1 {
				io.Copy(io.Discard, c)
			}
		})
		err := (&GRPC{Host: p.host, Port: p.port}).Probe(withTimeout(t, 2*time.Second))
		var f *Failure
		if !errors.As(err, &f) || f.Cause == CauseTimeout || tries.Load() != 2 {
			t.Errorf("%v after %d tries, want the cause of the first, which was not cut short", err, tries.Load())
		}
	})
	t.Run("opens late", func(t *testing.T) {
		t.Parallel()
		port, listen := reservePort(t)
		time.AfterFunc(300*time.Millisecond, func() {
			l := listen()
			s := &http.Server{Handler: answerHealth(statusServing), Protocols: new(http.Protocols)}
			s.Protocols.SetUnencryptedHTTP2(true)
			t.Cleanup(func() { s.Close() })
			_ = s.Serve(l)
		})
		if err := (&GRPC{Host: "127.0.0.1", Port: port}).Probe(withTimeout(t, patience)); err != nil {
			t.Errorf("a port that opened within the deadline: %v", err)
		}
	})
}
