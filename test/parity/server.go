package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A server plays a behaviour on loopback and remembers what it was asked.
type server struct {
	host string
	port int

	mu    sync.Mutex
	asked []string
	close func()
}

func (s *server) saw(request string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, request)
}

// take returns what was asked since the last call.
func (s *server) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := strings.Join(s.asked, "\n")
	s.asked = nil
	return all
}

// What a connection does once its answer is written.
type ending int

const (
	finish ending = iota // close with a FIN
	reset                // close with a RST
	stall                // keep quiet until the server ends
)

// An answer is what a raw server writes, byte for byte. "{port}" in it becomes the server's port.
type answer struct {
	parts []string // written one by one
	end   ending
	early bool // written before the request is read
	call  bool // ended only when an HTTP/2 request is there
}

// A rawServer answers /hop/N with the Nth answer, and everything else with the first.
type rawServer struct {
	*server
	listener net.Listener
	answers  []answer
	done     chan struct{}
	wg       sync.WaitGroup
}

// listen opens a listener for host, which is an address of loopback.
func listen(host string) (net.Listener, *server, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, nil, err
	}
	return l, &server{host: host, port: l.Addr().(*net.TCPAddr).Port}, nil
}

// startRaw starts a rawServer, with TLS if config is given.
func startRaw(host string, config *tls.Config, answers ...answer) (*server, error) {
	l, s, err := listen(host)
	if err != nil {
		return nil, err
	}
	if config != nil {
		l = tls.NewListener(l, config)
	}
	r := &rawServer{server: s, listener: l, answers: answers, done: make(chan struct{})}
	r.wg.Go(r.accept)
	s.close = func() {
		close(r.done)
		l.Close()
		r.wg.Wait()
	}
	return s, nil
}

func (r *rawServer) accept() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.wg.Go(func() { r.serve(conn) })
	}
}

// serve reads one request and plays its answer.
func (r *rawServer) serve(conn net.Conn) {
	defer conn.Close()
	stop := make(chan struct{})
	defer close(stop)
	r.wg.Go(func() {
		select {
		case <-r.done:
			_ = conn.SetDeadline(time.Unix(1, 0))
		case <-stop:
		}
	})
	a := r.answers[0]
	in := bufio.NewReader(conn)
	if !a.early {
		head, err := readHead(in)
		if err != nil {
			return
		}
		r.saw(head)
		a = r.pick(head)
	}
	for _, part := range a.parts {
		if _, err := io.WriteString(conn, strings.ReplaceAll(part, "{port}", strconv.Itoa(r.port))); err != nil {
			return
		}
	}
	if a.call {
		waitForHeaders(in)
	}
	switch a.end {
	case reset:
		if inner, ok := conn.(*tls.Conn); ok {
			conn = inner.NetConn()
		}
		_ = conn.(*net.TCPConn).SetLinger(0)
	case stall:
		<-r.done
	case finish:
	}
}

// waitForHeaders reads HTTP/2 frames up to the first HEADERS.
func waitForHeaders(in *bufio.Reader) {
	const preface, header, headers = "SM\r\n\r\n", 9, 1 // the rest of the preface, sizes and types of frames
	if _, err := in.Discard(len(preface)); err != nil {
		return
	}
	for {
		head, err := in.Peek(header)
		if err != nil {
			return
		}
		kind, size := head[3], int(head[0])<<16|int(head[1])<<8|int(head[2])
		if _, err := in.Discard(header + size); err != nil || kind == headers {
			return
		}
	}
}

// pick chooses the answer by the request line.
func (r *rawServer) pick(head string) answer {
	_, rest, _ := strings.Cut(head, " /hop/")
	number, _, _ := strings.Cut(rest, " ")
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 || n >= len(r.answers) {
		return r.answers[0]
	}
	return r.answers[n]
}

// readHead reads a request up to its empty line. A TLS handshake is no request.
func readHead(r *bufio.Reader) (string, error) {
	const handshake = 0x16
	if first, err := r.Peek(1); err != nil || first[0] == handshake {
		return "", errors.Join(err, errors.New("no HTTP"))
	}
	var head strings.Builder
	for {
		line, err := r.ReadString('\n')
		head.WriteString(line)
		if err != nil || line == "\r\n" {
			return head.String(), err
		}
	}
}

// startHTTP starts net/http's server for h with the given protocols.
func startHTTP(host string, config *tls.Config, protocols *http.Protocols, h http.HandlerFunc) (*server, error) {
	l, s, err := listen(host)
	if err != nil {
		return nil, err
	}
	web := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.saw(describe(r))
			h(w, r)
		}),
		Protocols: protocols,
		TLSConfig: config,
		ErrorLog:  log.New(io.Discard, "", 0),
	}
	// Handlers that stall wait for their request's context, which ends with this one.
	ctx, cancel := context.WithCancel(context.Background())
	web.BaseContext = func(net.Listener) context.Context { return ctx }
	done := make(chan struct{})
	go func() { // joined by close
		defer close(done)
		if config != nil {
			_ = web.ServeTLS(l, "", "")
			return
		}
		_ = web.Serve(l)
	}()
	s.close = func() {
		cancel()
		web.Close()
		<-done
	}
	return s, nil
}

// describe writes a parsed request down in a fixed order.
func describe(r *http.Request) string {
	var b strings.Builder
	b.WriteString(r.Method + " " + r.RequestURI + " " + r.Proto + " host=" + r.Host + "\n")
	names := make([]string, 0, len(r.Header))
	for name := range r.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if name != "Grpc-Timeout" { // what is left of the deadline
			b.WriteString(name + ": " + strings.Join(r.Header[name], "; ") + "\n")
		}
	}
	return b.String()
}

// startListener starts a server that is nothing but a listening socket.
func startListener(host string) (*server, error) {
	l, s, err := listen(host)
	if err != nil {
		return nil, err
	}
	s.close = func() { l.Close() }
	return s, nil
}

// startClosed reserves a port and does not listen on it, so that connections are refused and
// nobody else gets the port meanwhile.
func startClosed() (*server, error) {
	s, _, err := reserve()
	return s, err
}

// reserve binds a socket to a port of its own.
func reserve() (*server, int, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, os.NewSyscallError("socket", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		syscall.Close(fd)
		return nil, 0, os.NewSyscallError("bind", err)
	}
	addr, err := syscall.Getsockname(fd)
	if err != nil {
		syscall.Close(fd)
		return nil, 0, os.NewSyscallError("getsockname", err)
	}
	port := addr.(*syscall.SockaddrInet4).Port
	return &server{host: "127.0.0.1", port: port, close: func() { syscall.Close(fd) }}, fd, nil
}

// startFull listens with an accept queue that is full, so that further connections get no answer.
func startFull() (*server, error) {
	s, fd, err := reserve()
	if err != nil {
		return nil, err
	}
	if err := syscall.Listen(fd, 0); err != nil {
		syscall.Close(fd)
		return nil, os.NewSyscallError("listen", err)
	}
	var held []net.Conn
	for range 16 {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(s.host, strconv.Itoa(s.port)), 100*time.Millisecond)
		if err != nil {
			break
		}
		held = append(held, conn)
	}
	s.close = func() {
		for _, conn := range held {
			conn.Close()
		}
		syscall.Close(fd)
	}
	return s, nil
}
