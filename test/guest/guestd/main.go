package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stderr))
}

func run(args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("guestd", flag.ContinueOnError)
	flags.SetOutput(stderr)
	web := flags.String("http", ":1500", "address of the web server")
	secure := flags.String("https", ":1543", "address of the same over HTTPS")
	ssh := flags.String("ssh", ":22", "address that greets like an SSH server")
	code := flags.String("code", "/run/guestd.code", "file with the status that /healthz answers")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	banner, err := net.Listen("tcp", *ssh)
	if err != nil {
		fmt.Fprintf(stderr, "guestd: %v\n", err)
		return 1
	}
	go greet(banner)
	s := &server{code: *code}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", s.healthz)
	mux.HandleFunc("/requests", s.requests)
	mux.HandleFunc("POST /grpc.health.v1.Health/Check", health)
	server := &http.Server{Addr: *web, Handler: mux, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	go func() { // ends with the process
		fmt.Fprintf(stderr, "guestd: %v\n", serveTLS(*secure, mux))
	}()
	err = server.ListenAndServe()
	fmt.Fprintf(stderr, "guestd: %v\n", err)
	return 1
}

// greet sends every caller a banner and closes; it ends with the listener.
func greet(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, "SSH-2.0-guestd\r\n")
		_ = conn.Close()
	}
}

type server struct {
	code string

	mu     sync.Mutex
	count  int
	header http.Header
}

func (s *server) healthz(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.count++
	s.header = r.Header.Clone()
	s.mu.Unlock()
	code := http.StatusOK
	if text, err := os.ReadFile(s.code); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && n >= 200 && n <= 599 {
			code = n
		}
	}
	w.WriteHeader(code)
	fmt.Fprintf(w, "code %d\n", code)
}

func (s *server) requests(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(struct {
		Healthz int         `json:"healthz"`
		Header  http.Header `json:"header"`
	}{s.count, s.header})
}
