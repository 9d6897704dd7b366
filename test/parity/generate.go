package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/netprobe"
)

const (
	defaultCount   = 2400
	defaultSeed    = 20261130
	defaultWorkers = 16

	// patience is the timeout of a probe that should not run into it, even on a busy machine.
	patience = 30 * time.Second
	// impatience is the timeout of one that should.
	impatience = 500 * time.Millisecond
)

// A source is the random source of one scenario.
type source struct{ *rand.Rand }

// chance is true in one of n cases.
func (r source) chance(n int) bool { return r.IntN(n) == 0 }

// pick chooses one of the choices.
func pick[T any](r source, choices ...T) T { return choices[r.IntN(len(choices))] }

// generate makes count scenarios. The families take turns, and each scenario has a source of its
// own, so that one more choice in a family leaves all other scenarios as they were.
func generate(seed uint64, count int) []*scenario {
	families := []struct {
		name   string
		make   func(source) *scenario
		weight int
	}{
		{"status", genStatus, 4},
		{"header", genHeader, 3},
		{"body", genBody, 4},
		{"redirect", genRedirect, 4},
		{"no answer", genNoAnswer, 2},
		{"request", genRequest, 4},
		{"tls", genTLS, 2},
		{"http2", genHTTP2, 2},
		{"h2c", genH2C, 2},
		{"tcp", genTCP, 2},
		{"grpc", genGRPC, 3},
		{"limits", genLimits, 1},
	}
	var turns []int
	for i, f := range families {
		for range f.weight {
			turns = append(turns, i)
		}
	}
	all := make([]*scenario, count)
	for i := range all {
		f := families[turns[i%len(turns)]]
		s := f.make(source{rand.New(rand.NewPCG(seed, uint64(i)))})
		s.family = f.name
		s.name = fmt.Sprintf("%04d %s: %s", i, f.name, s.name)
		if s.timeout == 0 {
			s.timeout = patience
		}
		all[i] = s
	}
	return all
}

// raw makes a scenario of an HTTP probe of a rawServer.
func raw(name string, answers ...answer) *scenario {
	s := &scenario{name: name, handler: "http", scheme: "HTTP", path: "/", early: answers[0].early}
	for _, a := range answers {
		if a.end == stall {
			s.timeout = impatience
		}
	}
	s.start = func() (*server, error) { return startRaw("127.0.0.1", nil, answers...) }
	return s
}

// whole is an answer that is written in one piece.
func whole(text string) answer { return answer{parts: []string{text}} }

// genStatus varies the status line.
func genStatus(r source) *scenario {
	status := fmt.Sprint(200 + r.IntN(400))
	if r.chance(3) {
		status = pick(r, "200", "204", "206", "299", "300", "304", "305", "399", "400", "401", "404", "429",
			"499", "500", "503", "599", "600", "999", "099", "000", "101", "100", "102", "103", "199",
			"2000", "20", "abc", "-200", "+200", " 200", "")
	}
	proto := "HTTP/1.1"
	if r.chance(5) {
		proto = pick(r, "HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "HTTP/0.9", "HTTP/1", "http/1.1", "HTTP/1.1.1", "HTTPS/1.1", "ICY", "")
	}
	reason := pick(r, " OK", "", " ", " Not \xff Found", " "+strings.Repeat("x", r.IntN(3000)), "\tOK")
	eol := pick(r, "\r\n", "\r\n", "\r\n", "\n")
	text := proto + " " + status + reason + eol + "Content-Length: 4" + eol + eol + "body"
	if r.chance(8) {
		text = "HTTP/1.1 " + pick(r, "100 Continue", "102 Processing", "103 Early Hints") + "\r\n\r\n" + text
	}
	return raw(fmt.Sprintf("%.60q", text), whole(text))
}

// genHeader varies the response's header.
func genHeader(r source) *scenario {
	lines := make([]string, 0, 8)
	for range 1 + r.IntN(6) {
		lines = append(lines, pick(r,
			"Content-Type: text/plain", "Content-Length: 2", "Content-Length: 2", "Content-Length: 3",
			"Content-Length: -1", "Content-Length: 2, 2", "Content-Length: two", "Content-Length: ",
			"Content-Length: 99999999999999999999", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip",
			"Transfer-Encoding: identity", "Transfer-Encoding: chunked, chunked", "transfer-encoding: CHUNKED",
			"Connection: close", "Connection: keep-alive", "Connection: upgrade\r\nUpgrade: foo",
			"Content-Encoding: gzip", "Trailer: X-T", "Set-Cookie: a=b", "X-Folded: a\r\n b", " X-Leading: a",
			"X Space: a", "X-Space : a", ": no name", "no colon", "X-Null: a\x00b", "X-Bin: \xff\xfe",
			"X-CR: a\rb", "Location: /elsewhere", "X-Long: "+strings.Repeat("v", r.IntN(20000)), "", "X-Empty:"))
	}
	body := pick(r, "ok", "", "2\r\nok\r\n0\r\n\r\n", "ok and more", "o")
	status := pick(r, "200 OK", "200 OK", "200 OK", "500 Oops", "302 Found", "204 No Content", "304 Not Modified")
	text := "HTTP/1.1 " + status + "\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n" + body
	return raw(fmt.Sprintf("%.100q", text), whole(text))
}

// genBody varies the body and how it ends.
func genBody(r source) *scenario {
	status := pick(r, "200 OK", "200 OK", "201 Created", "404 Not Found", "503 Unavailable", "300 Choices", "204 No Content")
	size := pick(r, 0, 1, r.IntN(200), r.IntN(20000), 10239, 10240, 10241, 10242, 65536)
	body := strings.Repeat("0123456789abcde\n", size/16+1)[:size]
	sent := body
	if r.chance(2) {
		sent = body[:r.IntN(size+1)]
	}
	head := "HTTP/1.1 " + status + "\r\n"
	framing := pick(r, "length", "length", "chunked", "chunked", "close", "http/1.0")
	switch framing {
	case "length":
		head += fmt.Sprintf("Content-Length: %d\r\n\r\n", size)
	case "chunked":
		head += "Transfer-Encoding: chunked\r\n\r\n"
		sent = chunks(r, sent)
	case "http/1.0":
		head = "HTTP/1.0 " + status + "\r\n\r\n"
	default:
		head += "\r\n"
	}
	end := pick(r, finish, finish, finish, reset, stall)
	a := answer{parts: []string{head, sent}, end: end}
	if r.chance(3) && len(sent) > 0 {
		cut := r.IntN(len(sent))
		a.parts = []string{head + sent[:cut], sent[cut:]}
	}
	return raw(fmt.Sprintf("%s %s, %d bytes, %d sent, end %d", framing, status, size, len(sent), end), a)
}

// chunks encodes body in chunks, and now and then does it wrong.
func chunks(r source, body string) string {
	var b strings.Builder
	for len(body) > 0 {
		n := 1 + r.IntN(len(body))
		size := fmt.Sprintf("%x", n)
		if r.chance(30) {
			size = pick(r, "ZZ", "", "-1", "fffffffffffffffff", size+";ext=1", "0x1", fmt.Sprintf("%x", n+3))
		}
		b.WriteString(size + "\r\n" + body[:n] + pick(r, "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\n", ""))
		body = body[n:]
	}
	b.WriteString(pick(r, "0\r\n\r\n", "0\r\n\r\n", "0\r\n\r\n", "0\r\nX-T: v\r\n\r\n", "0\r\n", "0\r\nbad trailer\r\n\r\n", ""))
	return b.String()
}

// genRedirect varies redirects: their number, their status, where they lead, what they carry.
func genRedirect(r source) *scenario {
	hops := pick(r, 0, 1, 1, 1, 2, 3, 8, 9, 10, 11)
	answers := make([]answer, 0, hops+1)
	var name strings.Builder
	for i := range hops {
		status := pick(r, "301", "302", "302", "303", "307", "308")
		next := fmt.Sprintf("/hop/%d", i+1)
		location := next
		if r.chance(2) {
			location = pick(r, "http://127.0.0.1:{port}"+next, "//127.0.0.1:{port}"+next, next+"?q=1", next+"#f",
				"./"+fmt.Sprint(i+1), "http://u:p@127.0.0.1:{port}"+next)
		}
		if r.chance(12) {
			location = pick(r, "http://localhost:{port}"+next, "http://example.invalid/", "http://127.0.0.1.:{port}"+next,
				"http://127.0.0.2:{port}"+next, "http://[::1]:{port}"+next, "https://127.0.0.1:{port}"+next, "ftp://127.0.0.1/x",
				"http://[::1%23/%zz", "", " ", "://", "http://127.0.0.1:1"+next, "http://127.0.0.1:99999"+next,
				"mailto:x", "?q", "/a b", "/%zz", "/\x01", "http://127.0.0.1:{port}"+next+" ", "/\xff")
		}
		fmt.Fprintf(&name, "%s %q ", status, location)
		body := strings.Repeat("r", pick(r, 0, 0, 10, 2048, 2049, 5000))
		head := "HTTP/1.1 " + status + " Redirect\r\nLocation: " + location + "\r\nSet-Cookie: a=b\r\n"
		if r.chance(20) {
			head = "HTTP/1.1 " + status + " Redirect\r\n" // without a Location
		}
		a := whole(head + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(body)) + body)
		if len(body) > 0 && r.chance(15) {
			a.parts[0] = a.parts[0][:len(a.parts[0])-1]
			a.end = pick(r, finish, reset, stall)
		}
		answers = append(answers, a)
	}
	last := pick(r, "200 OK", "200 OK", "204 No Content", "500 Oops", "404 Not Found", "308 Again", "304 Not Modified", "300 Choices")
	answers = append(answers, whole("HTTP/1.1 "+last+"\r\nContent-Length: 4\r\n\r\nlast"))
	s := raw(name.String()+last, answers...)
	if r.chance(4) {
		s.headers = []netprobe.Header{{Name: "Host", Value: "www.example.org"}, {Name: "Authorization", Value: "Basic eDp5"}, {Name: "Cookie", Value: "c=d"}}
	}
	if r.chance(10) {
		s.host = "localhost"
	}
	return s
}

// genNoAnswer is about servers that do not get as far as a status line.
func genNoAnswer(r source) *scenario {
	text := pick(r, "", "H", "HTTP", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nX-A: b\r\n", "HTTP/1.1 200 OK\r\nX-A",
		"SSH-2.0-OpenSSH_9.6\r\n", "220 mail ESMTP\r\n", "\x15\x03\x01\x00\x02\x02\x16", "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00",
		"\n", "\r\n\r\n", "<html>", "+OK\r\n", "RFB 003.008\n", "\x00", strings.Repeat("\x00", 5000), strings.Repeat("A", 5000),
		"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n")
	end := pick(r, finish, finish, reset, stall)
	a := answer{parts: []string{text}, end: end, early: r.chance(5)}
	s := raw(fmt.Sprintf("%.40q end %d early %v", text, end, a.early), a)
	if r.chance(8) {
		s.name = "closed port"
		s.start, s.timeout = startClosed, patience
	}
	return s
}

// genRequest varies what is asked for, and compares what is sent.
func genRequest(r source) *scenario {
	s := raw("", whole("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
	s.path = pick(r, "", "/", "/healthz", "healthz", "/a b", "/a%2Fb", "/q?x=1&y=a b", "?foo", "/x#frag", "//other/x", "http://other:1/x",
		"/%zz", "/a/../b", "/\u00fc", ":80/x", "//u:p@other/x", "mailto:x", "/\x7f", "/\x00", "/a;b=c", "/*", "*", "/?", "#", "/a?b?c#d#e",
		"/"+strings.Repeat("p", r.IntN(3000)), "http://[::1", "http:///x", "https://other/x?y", "/%41", "/a+b", "/[x]", "/<>\"", "../x", "/\xff", "//u:p%40@/x", "//%zz/x", "javascript:alert(1)")
	for range r.IntN(5) {
		s.headers = append(s.headers, netprobe.Header{
			Name: pick(r, "Host", "host", "User-Agent", "user-agent", "Accept", "accept", "Accept-Encoding", "Connection", "Content-Length",
				"Transfer-Encoding", "Te", "Trailer", "Upgrade", "Expect", "Cookie", "Authorization", "Referer", "X-A", "x-a", "X-B", "Range", "If-None-Match",
				"Content-Type", "Proxy-Connection", "Keep-Alive", "X_Under", "1"),
			Value: pick(r, "", "a", "keep-alive", "close", "upgrade", "text/html", "*/*", "gzip", "7", "chunked", "trailers", "www.example.org",
				"a:80", "a b", "\u00fc", "\xff", "a\tb", " a ", "a\r\nX-Injected: 1", "a\x00", "100-continue", "foo/1.0", "bytes=0-1", "[::1]:80", "bad host", "a/b"),
		})
	}
	s.scheme = pick(r, "HTTP", "HTTP", "HTTP", "", "http", "Http", "HTTPS", "ftp", "unix")
	s.host = pick(r, "", "", "", "", "localhost", "127.0.0.1", "127.0.0.2", "0.0.0.0", "::1", "::ffff:127.0.0.1", "::1%lo", "no-such-host.invalid",
		"a b", "%zz", "LOCALHOST", "[127.0.0.1]", "[::1]", "127.1", "\u00fc.invalid", "")
	if r.chance(15) {
		s.port = pick(r, -1, 65536, 70000, 1<<30)
	}
	s.name = fmt.Sprintf("%s %q %d %.30q %.80q", s.scheme, s.host, s.port, s.path, s.headers)
	return s
}
