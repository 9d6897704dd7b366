package netprobe

import (
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"testing"
)

func benchmarkProbe(b *testing.B, p prober) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Probe(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHTTP(b *testing.B) {
	p := startPeer(b, serverSpec{Kind: "fixed", Status: 200, Body: "ok"})
	benchmarkProbe(b, &HTTPGet{Host: p.host, Port: p.port, Path: "/healthz"})
}

func BenchmarkHTTPS(b *testing.B) {
	p := startPeer(b, serverSpec{Kind: "tls", ALPN: []string{"h2", "http/1.1"}})
	benchmarkProbe(b, &HTTPGet{Scheme: "HTTPS", Host: p.host, Port: p.port, Path: "/healthz"})
}

// BenchmarkPlainGet is what net/http alone takes, for comparison.
func BenchmarkPlainGet(b *testing.B) {
	p := startPeer(b, serverSpec{Kind: "fixed", Status: 200, Body: "ok"})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	url := probeURL("http", p.host, p.port, "/healthz").String()
	b.ReportAllocs()
	for b.Loop() {
		res, err := client.Get(url)
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
}

func BenchmarkTCP(b *testing.B) {
	p := &peer{}
	p.serveRaw(b, func(net.Conn, <-chan struct{}) {})
	benchmarkProbe(b, &TCPSocket{Host: p.host, Port: p.port})
}

func BenchmarkTCPExpect(b *testing.B) {
	p := &peer{}
	p.serveRaw(b, func(c net.Conn, _ <-chan struct{}) { io.WriteString(c, "SSH-2.0-OpenSSH_9.6\r\n") })
	benchmarkProbe(b, &TCPSocket{Host: p.host, Port: p.port, Expect: regexp.MustCompile("^SSH-2.0")})
}

func BenchmarkGRPC(b *testing.B) {
	p := healthServer(b, false, answerHealth(statusServing))
	benchmarkProbe(b, &GRPC{Host: p.host, Port: p.port})
}
