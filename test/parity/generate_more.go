package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// genTLS varies the handshake, and puts raw answers behind it.
func genTLS(r source) *scenario {
	text := pick(r, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{port}/\r\nContent-Length: 0\r\n\r\n", "", "garbage\r\n")
	a := answer{parts: []string{text}, end: pick(r, finish, finish, finish, reset, stall)}
	s := raw("", a)
	s.scheme = "HTTPS"
	expired := r.chance(4)
	versions := pick(r, [2]uint16{}, [2]uint16{}, [2]uint16{tls.VersionTLS10, tls.VersionTLS11}, [2]uint16{tls.VersionTLS12, tls.VersionTLS12}, [2]uint16{tls.VersionTLS13, tls.VersionTLS13})
	alpn := pick(r, nil, []string{"http/1.1"}, []string{"http/1.0"}, []string{"spdy/1"})
	client := pick(r, tls.NoClientCert, tls.NoClientCert, tls.NoClientCert, tls.RequestClientCert, tls.RequireAnyClientCert)
	s.start = func() (*server, error) {
		notAfter := time.Now().Add(24 * time.Hour)
		if expired {
			notAfter = time.Now().Add(-24 * time.Hour)
		}
		cert, err := selfSigned(notAfter, "localhost")
		if err != nil {
			return nil, err
		}
		return startRaw("127.0.0.1", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: alpn,
			MinVersion: versions[0], MaxVersion: versions[1], ClientAuth: client}, a)
	}
	s.name = fmt.Sprintf("%.30q end %d, expired %v, versions %x, ALPN %q, client %v", text, a.end, expired, versions, alpn, client)
	switch {
	case r.chance(8):
		s.scheme = "HTTP"
		s.name = "plain HTTP to " + s.name
	case r.chance(8):
		plain := answer{parts: []string{pick(r, "HTTP/1.0 400 Bad Request\r\n\r\n", "SSH-2.0-x\r\n", "", "\x16\x03\x01\x00\x01\x00", "\x15\x03\x03\x00\x02\x02\x28")},
			end: pick(r, finish, reset, stall), early: true}
		t := raw(fmt.Sprintf("no TLS behind the port: %q end %d", plain.parts[0], plain.end), plain)
		t.scheme = "HTTPS"
		return t
	case r.chance(4):
		s.host = "localhost"
	}
	return s
}

// webAnswer chooses a handler of net/http's server, which speaks HTTP/2.
func webAnswer(r source) (name string, h http.HandlerFunc, stalls bool) {
	status := pick(r, 200, 200, 200, 204, 299, 301, 304, 399, 400, 404, 500, 503, 599, 200+r.IntN(400))
	size := pick(r, 0, 2, 10239, 10240, 10241, 50000)
	header := http.Header{}
	for range r.IntN(3) {
		header.Set(pick(r, "Content-Type", "X-A", "Content-Encoding", "Set-Cookie", "Cache-Control"), pick(r, "a", "text/plain", "gzip", strings.Repeat("v", 9000)))
	}
	kind := pick(r, "whole", "whole", "whole", "flush", "abort before", "abort within", "stall before", "stall within", "redirect", "loop", "hints", "trailer")
	name = fmt.Sprintf("%s %d, %d bytes, %.40q", kind, status, size, header)
	return name, func(w http.ResponseWriter, req *http.Request) {
		for k, v := range header {
			w.Header()[k] = v
		}
		body := strings.Repeat("b", size)
		switch kind {
		case "abort before":
			panic(http.ErrAbortHandler)
		case "stall before":
			<-req.Context().Done()
			return
		case "redirect":
			if req.URL.Path != "/next" {
				http.Redirect(w, req, "/next", http.StatusFound)
				return
			}
		case "loop":
			http.Redirect(w, req, req.URL.Path+"x", http.StatusTemporaryRedirect)
			return
		case "hints":
			w.WriteHeader(103)
			w.WriteHeader(102)
		case "trailer":
			w.Header().Set(http.TrailerPrefix+"X-T", "v")
		}
		w.WriteHeader(status)
		if status == 204 || status == 304 {
			return
		}
		io.WriteString(w, body)
		if kind != "whole" {
			w.(http.Flusher).Flush()
		}
		switch kind {
		case "abort within":
			panic(http.ErrAbortHandler)
		case "stall within":
			<-req.Context().Done()
		}
	}, strings.HasPrefix(kind, "stall")
}

// genHTTP2 is HTTP/2 by ALPN.
func genHTTP2(r source) *scenario {
	name, h, stalls := webAnswer(r)
	s := &scenario{name: name, handler: "http", scheme: "HTTPS", path: pick(r, "/", "/x?y", "")}
	if stalls {
		s.timeout = impatience
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetHTTP1(r.chance(4))
	client := pick(r, tls.NoClientCert, tls.NoClientCert, tls.NoClientCert, tls.NoClientCert, tls.RequireAnyClientCert)
	s.start = func() (*server, error) {
		cert, err := selfSigned(time.Now().Add(24*time.Hour), "localhost")
		if err != nil {
			return nil, err
		}
		return startHTTP("127.0.0.1", &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: client}, protocols, h)
	}
	return s
}

// genH2C is HTTP/2 without TLS, and servers that do not speak it.
func genH2C(r source) *scenario {
	if r.chance(4) {
		a := answer{parts: []string{pick(r, "HTTP/1.1 400 Bad Request\r\n\r\n", "", "SSH-2.0-x\r\n",
			"\x00\x00\x00\x04\x00\x00\x00\x00\x00", // SETTINGS and no more
			"\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x0b", // and GOAWAY
			"\x00\x00\x00\x07\x00\x00\x00\x00\x00", "\xff\xff\xff\x04\x00\x00\x00\x00\x00", "\x00\x00\x01\x04\x00\x00\x00\x00\x00\x00")},
			end: pick(r, finish, reset, stall)}
		s := raw(fmt.Sprintf("%q end %d", a.parts[0], a.end), a)
		s.handler = "h2c"
		return s
	}
	name, h, stalls := webAnswer(r)
	s := &scenario{name: name, handler: "h2c", scheme: "HTTP", path: "/"}
	if stalls {
		s.timeout = impatience
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	s.start = func() (*server, error) { return startHTTP("127.0.0.1", nil, protocols, h) }
	return s
}

// genTCP is about connections and nothing else.
func genTCP(r source) *scenario {
	s := &scenario{handler: "tcp"}
	switch kind := pick(r, "accepts", "backlog", "closed", "full", "ipv6", "other address", "port", "name", "family", "resets"); kind {
	case "accepts":
		s.start = func() (*server, error) { return startRaw("127.0.0.1", nil, answer{end: finish, early: true}) }
	case "resets":
		s.start = func() (*server, error) { return startRaw("127.0.0.1", nil, answer{end: reset, early: true}) }
	case "backlog":
		s.start = func() (*server, error) { return startListener("127.0.0.1") }
	case "ipv6":
		s.host = pick(r, "::1", "::1%lo", "[::1]")
		s.start = func() (*server, error) { return startListener("::1") }
	case "closed":
		s.start = startClosed
	case "full":
		s.start, s.timeout = startFull, impatience
	case "other address":
		s.host = pick(r, "127.0.0.3", "localhost", "::1", "0.0.0.0")
		s.start = func() (*server, error) { return startListener("127.0.0.1") }
	case "port":
		s.host, s.port = "127.0.0.1", pick(r, -1, 65536, 70000, 1<<30)
	case "name":
		s.host, s.port = pick(r, "no-such-host.invalid", "a b", "%zz", "127.0.0.256", "1.2.3", "::1::", "..", strings.Repeat("a", 300)), 80
	case "family":
		s.host = "localhost"
		s.start = func() (*server, error) { return startListener("::1") }
	}
	s.name = fmt.Sprintf("%.40q %d, timeout %v", s.host, s.port, s.timeout)
	return s
}

// genLimits is about answers that are larger than netprobe takes.
func genLimits(r source) *scenario {
	switch pick(r, "header", "header", "line", "text", "location") {
	case "header":
		n := pick(r, 200<<10, 255<<10, 300<<10, 1<<20, 4<<20)
		line := "X-Long: " + strings.Repeat("v", 1000) + "\r\n"
		head := "HTTP/1.1 200 OK\r\n" + strings.Repeat(line, n/len(line)) + "Content-Length: 2\r\n\r\n"
		s := raw(fmt.Sprintf("a header of %d bytes", len(head)), whole(head+"ok"))
		s.headerBytes = len(head)
		return s
	case "line":
		head := "HTTP/1.1 200 OK\r\nX-Long: " + strings.Repeat("v", pick(r, 100<<10, 500<<10)) + "\r\nContent-Length: 2\r\n\r\n"
		s := raw(fmt.Sprintf("a header line of %d bytes", len(head)), whole(head+"ok"))
		s.headerBytes = len(head)
		return s
	case "text":
		text := strings.Repeat("x", pick(r, 1000, 3000, 5000, 100000)) + "\r\n"
		return raw(fmt.Sprintf("a line of %d bytes that is no HTTP", len(text)), whole(text))
	default:
		location := "http://[" + strings.Repeat("x", pick(r, 1000, 3000, 9000))
		return raw(fmt.Sprintf("a bad Location of %d bytes", len(location)), whole("HTTP/1.1 302 Found\r\nLocation: "+location+"\r\nContent-Length: 0\r\n\r\n"))
	}
}
