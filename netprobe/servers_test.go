package netprobe

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// serverSpec describes a peer of one of the cases' http_server_kinds.
type serverSpec struct {
	Kind       string
	Status     int
	Headers    map[string]string
	Body       string
	Location   string
	Then       answer
	WantHost   string `json:"want_host"`
	ElseStatus int    `json:"else_status"`
	MS         int
	Count      int
	Byte       string
	Prefix     string
	PrefixByte string `json:"prefix_byte"`
	PrefixLen  int    `json:"prefix_len"`
	Bytes      string
	HoldMS     int `json:"hold_ms"`
	ALPN       []string
	Max        string
	ClientCert string `json:"client_cert"`
	Frm, To    string
}

// An answer is what a redirect leads to.
type answer struct {
	Status int
	Body   string
}

// A peer is a running server and what it has seen.
type peer struct {
	host string
	port int
	// other is the base URL of a second server, where the kind has one.
	other string

	mu       sync.Mutex
	requests []string // raw heads for the kinds that read raw, else "METHOD URI"
	protos   []string
}

func (p *peer) saw(request, proto string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = append(p.requests, request)
	p.protos = append(p.protos, proto)
}

func (p *peer) seen() (requests, protos []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.requests), slices.Clone(p.protos)
}

func (p *peer) setAddr(addr net.Addr) {
	tcp := addr.(*net.TCPAddr)
	p.host, p.port = tcp.IP.String(), tcp.Port
}

// handle starts an HTTP server for h, plain or as configure makes it.
func (p *peer) handle(t testing.TB, h http.HandlerFunc, configure func(*httptest.Server)) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.saw(r.Method+" "+r.RequestURI, r.Proto)
		h(w, r)
	}))
	s.Config.ErrorLog = discardLog()
	if configure == nil {
		s.Start()
	} else {
		configure(s)
	}
	t.Cleanup(s.Close)
	return s
}

// serveRaw accepts connections and hands each to serve, which owns it for as long as it runs.
func (p *peer) serveRaw(t testing.TB, serve func(conn net.Conn, done <-chan struct{})) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.setAddr(l.Addr())
	serveListener(t, l, serve)
}

func serveListener(t testing.TB, l net.Listener, serve func(conn net.Conn, done <-chan struct{})) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				stop := make(chan struct{})
				defer close(stop)
				wg.Go(func() { // a blocked read must not outlive the test
					select {
					case <-done:
						_ = conn.SetDeadline(time.Unix(1, 0))
					case <-stop:
					}
				})
				serve(conn, done)
			})
		}
	})
	t.Cleanup(func() {
		close(done)
		l.Close()
		wg.Wait()
	})
}

// readHead reads a request's head, byte for byte.
func readHead(r *bufio.Reader) (string, error) {
	var head strings.Builder
	for {
		line, err := r.ReadString('\n')
		head.WriteString(line)
		if err != nil || line == "\r\n" {
			return head.String(), err
		}
	}
}

// hold waits for d or the end of the test.
func hold(d time.Duration, done <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-done:
	}
}

// sortedHeaders lists headers as "Name: value", by name, values in the order of arrival.
func sortedHeaders(h http.Header) []string {
	var lines []string
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for _, v := range h[name] {
			lines = append(lines, name+": "+v)
		}
	}
	return lines
}

// startPeer starts a server of the spec's kind on loopback.
func startPeer(t testing.TB, spec serverSpec) *peer {
	t.Helper()
	p := &peer{}
	var h http.HandlerFunc
	var configure func(*httptest.Server)
	switch spec.Kind {
	case "fixed":
		h = func(w http.ResponseWriter, _ *http.Request) {
			for k, v := range spec.Headers {
				w.Header()[k] = []string{v}
			}
			w.WriteHeader(spec.Status)
			io.WriteString(w, spec.Body)
		}
	case "echo-headers":
		h = echoHeaders
	case "echo-header-count":
		h = func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, len(r.Header)) }
	case "echo-header-names":
		h = func(w http.ResponseWriter, r *http.Request) {
			names := make([]string, 0, len(r.Header))
			for name := range r.Header {
				names = append(names, name)
			}
			slices.Sort(names)
			io.WriteString(w, strings.Join(names, "\n"))
		}
	case "echo-host":
		h = func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Host) }
	case "echo-request":
		p.serveRaw(t, func(conn net.Conn, _ <-chan struct{}) {
			head, err := readHead(bufio.NewReader(conn))
			if err != nil {
				return
			}
			p.saw(head, "raw")
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		})
		return p
	case "abort":
		p.serveRaw(t, func(net.Conn, <-chan struct{}) {})
		return p
	case "sleep":
		h = func(_ http.ResponseWriter, r *http.Request) {
			hold(time.Duration(spec.MS)*time.Millisecond, r.Context().Done())
		}
	case "redirect-once":
		h = func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/" {
				w.Header().Set("Location", spec.Location)
				w.WriteHeader(spec.Status)
				return
			}
			w.WriteHeader(spec.Then.Status)
			io.WriteString(w, spec.Then.Body)
		}
	case "redirect-server":
		second := p.handle(t, redirectServer, nil)
		p.other = second.URL
		h = redirectServer
	case "redirect-then-check-host":
		h = func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/redirect":
				http.Redirect(w, r, spec.Location, http.StatusFound)
			case r.URL.Path == spec.Location && r.Host == spec.WantHost:
				w.WriteHeader(http.StatusOK)
			default:
				w.WriteHeader(spec.ElseStatus)
			}
		}
	case "redirect-chain":
		h = func(w http.ResponseWriter, r *http.Request) {
			n, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
			if n < spec.Count {
				http.Redirect(w, r, "/"+strconv.Itoa(n+1), http.StatusFound)
			}
		}
	case "redirect-host":
		h = func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+net.JoinHostPort(spec.To, strconv.Itoa(p.port))+"/", http.StatusFound)
		}
	case "redirect-to-https-same-host":
		second := p.handle(t, func(http.ResponseWriter, *http.Request) {}, (*httptest.Server).StartTLS)
		h = func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, second.URL+"/", http.StatusFound) }
	case "set-cookie-redirect":
		h = func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == spec.Location {
				echoHeaders(w, r)
				return
			}
			http.SetCookie(w, &http.Cookie{Name: "session", Value: "1"})
			http.Redirect(w, r, spec.Location, http.StatusFound)
		}
	case "repeat":
		h = func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, strings.Repeat(spec.Byte, spec.Count)) }
	case "stall-body":
		h = func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(spec.Status)
			io.WriteString(w, spec.Prefix+strings.Repeat(spec.PrefixByte, spec.PrefixLen))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	case "raw":
		p.serveRaw(t, func(conn net.Conn, done <-chan struct{}) {
			head, err := readHead(bufio.NewReader(conn))
			if err != nil {
				return
			}
			p.saw(head, "raw")
			io.WriteString(conn, spec.Bytes)
			hold(time.Duration(spec.HoldMS)*time.Millisecond, done)
		})
		return p
	case "refused":
		p.host, p.port = "127.0.0.1", closedPort(t)
		return p
	case "tls":
		h = func(http.ResponseWriter, *http.Request) {}
		configure = func(s *httptest.Server) {
			s.TLS = &tls.Config{NextProtos: spec.ALPN}
			s.EnableHTTP2 = slices.Contains(spec.ALPN, "h2")
			if spec.Max == "1.1" {
				s.TLS.MinVersion, s.TLS.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
			}
			if spec.ClientCert == "require-any" {
				s.TLS.ClientAuth = tls.RequireAnyClientCert
			}
			s.StartTLS()
		}
	case "h2c":
		h = func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(spec.Status)
			io.WriteString(w, spec.Body)
		}
		configure = func(s *httptest.Server) {
			s.Config.Protocols = new(http.Protocols)
			s.Config.Protocols.SetUnencryptedHTTP2(true)
			s.Start()
		}
	default:
		t.Fatalf("no server for kind %q", spec.Kind)
	}
	s := p.handle(t, h, configure)
	p.setAddr(s.Listener.Addr())
	return p
}

func echoHeaders(w http.ResponseWriter, r *http.Request) {
	for _, line := range sortedHeaders(r.Header) {
		io.WriteString(w, line+"\n")
	}
}

// redirectServer redirects /redirect?loc=X to X, /loop to itself, serves /success.
func redirectServer(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/redirect":
		loc, err := url.QueryUnescape(r.URL.Query().Get("loc"))
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		http.Redirect(w, r, loc, http.StatusFound)
	case "/loop":
		http.Redirect(w, r, "/loop", http.StatusFound)
	case "/success":
	default:
		w.WriteHeader(http.StatusInternalServerError)
	}
}
