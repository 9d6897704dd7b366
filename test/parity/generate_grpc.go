package main

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// genGRPC varies the answer to a health call, and what stands in its way.
func genGRPC(r source) *scenario {
	if r.chance(5) {
		return genNoGRPC(r)
	}
	s := &scenario{handler: "grpc", service: pick(r, "", "", "liveness", strings.Repeat("s", 200), "\u00fc/x")}
	name, h := grpcAnswer(r, s)
	protocols := new(http.Protocols)
	secure := r.chance(4)
	s.tls = secure
	if secure {
		protocols.SetHTTP2(true)
	} else {
		protocols.SetUnencryptedHTTP2(true)
	}
	s.name = fmt.Sprintf("%s, TLS %v, service %.10q", name, secure, s.service)
	s.start = func() (*server, error) {
		if !secure {
			return startHTTP("127.0.0.1", nil, protocols, h)
		}
		cert, err := selfSigned(time.Now().Add(24*time.Hour), "localhost")
		if err != nil {
			return nil, err
		}
		return startHTTP("127.0.0.1", &tls.Config{Certificates: []tls.Certificate{cert}}, protocols, h)
	}
	return s
}

// genNoGRPC is about ports where no gRPC connection comes about.
func genNoGRPC(r source) *scenario {
	s := &scenario{handler: "grpc", timeout: impatience, tls: r.chance(4)}
	switch kind := pick(r, "closed", "silent", "http1", "tls", "name", "port", "full", "broken"); kind {
	case "closed":
		s.start = startClosed
	case "full":
		s.start = startFull
	case "silent":
		s.start = func() (*server, error) { return startRaw("127.0.0.1", nil, answer{end: stall, early: true}) }
	case "http1":
		text := pick(r, "HTTP/1.1 400 Bad Request\r\n\r\n", "SSH-2.0-x\r\n", "", "\x00\x00\x00\x07\x00\x00\x00\x00\x00", "\x15\x03\x01\x00\x02\x02\x16")
		end := pick(r, finish, reset, stall)
		s.start = func() (*server, error) {
			return startRaw("127.0.0.1", nil, answer{parts: []string{text}, end: end, early: true})
		}
		s.name = fmt.Sprintf("%q end %d ", text, end)
	case "tls":
		alpn := pick(r, nil, []string{"http/1.1"})
		s.start = func() (*server, error) {
			cert, err := selfSigned(time.Now().Add(24*time.Hour), "localhost")
			if err != nil {
				return nil, err
			}
			return startRaw("127.0.0.1", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: alpn}, answer{end: stall, early: true})
		}
		s.name = fmt.Sprintf("ALPN %q ", alpn)
	case "broken": // it speaks HTTP/2 and then no more
		s.tls, s.timeout = false, patience
		text := pick(r, "", "\x00\x00\x00\x04\x01\x00\x00\x00\x00", "\x00\x00\x01\x06\x00\x00\x00\x00\x00\x00", "garbage garbage")
		end := pick(r, finish, reset)
		s.start = func() (*server, error) {
			return startRaw("127.0.0.1", nil, answer{parts: []string{"\x00\x00\x00\x04\x00\x00\x00\x00\x00", text}, end: end, call: true})
		}
		s.name = fmt.Sprintf("SETTINGS and %q end %d ", text, end)
	case "name":
		s.host, s.port = "no-such-host.invalid", 80
	case "port":
		s.host, s.port = "127.0.0.1", pick(r, -1, 0x10000)
	}
	s.name += fmt.Sprintf("%q %d, TLS %v", s.host, s.port, s.tls)
	return s
}

// frame makes a gRPC frame.
func frame(flag byte, message string) string {
	return string(append([]byte{flag}, binary.BigEndian.AppendUint32(nil, uint32(len(message)))...)) + message
}

// grpcAnswer chooses a handler for a health call.
func grpcAnswer(r source, s *scenario) (string, http.HandlerFunc) {
	message := pick(r, "\x08\x01", "\x08\x01", "\x08\x01", "\x08\x02", "\x08\x03", "\x08\x00", "", "\x08\x4d",
		"\x12\x02hi\x08\x01", "\x08\x02\x08\x01", "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x08\x81\x80\x80\x80\x10",
		"\xff", "\x08", "\x00\x01", "\x09\x00\x00\x00\x00\x00\x00\x00\x00", "\x12\x05hi", "\x0d\x00\x00\x00\x00\x08\x01",
		"\x0b\x08\x01\x0c\x08\x01", "\x0b\x08\x01", "\x0c", "\x0e\x01", "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
	status := pick(r, "0", "0", "0", "0", "1", "2", "3", "4", "5", "7", "8", "12", "13", "14", "16", "17", "99", "-1", "", "ok", "4294967296")
	text := pick(r, "", "unknown service", "no %C3%A9 100%", "%", "%zz%41", strings.Repeat("m", 6000))
	contentType := pick(r, "application/grpc", "application/grpc", "application/grpc", "application/grpc+proto", "application/grpc;x=y",
		"application/grpcx", "text/html", "application/json")
	code := pick(r, 200, 200, 200, 200, 200, 200, 400, 401, 403, 404, 429, 500, 502, 503, 504, 418)
	kind := pick(r, "whole", "whole", "whole", "whole", "whole", "trailers only", "no trailers", "two messages", "half a frame", "compressed", "odd flag",
		"large frame", "huge frame", "abort before", "abort within", "stall before", "stall within")
	data := frame(0, message)
	switch kind {
	case "two messages":
		data += data
	case "half a frame":
		data = data[:1+r.IntN(len(data)-1)]
	case "compressed":
		data = frame(1, message)
	case "odd flag":
		data = frame(byte(2+r.IntN(200)), message)
	case "large frame":
		n := pick(r, 60<<10, 100<<10, 1<<20)
		data = frame(0, "\x08\x01\x12"+string(binary.AppendUvarint(nil, uint64(n)))+strings.Repeat("x", n))
		s.frameBytes = len(data) - 5
	case "huge frame":
		data = "\x00\xff\xff\xff\xff"
		s.frameBytes = 1<<32 - 1
	case "stall before", "stall within":
		s.timeout = impatience
	}
	encoding := pick(r, "", "", "", "identity", "snappy")
	return fmt.Sprintf("%s %q, status %q %.20q, %d %s, encoding %q", kind, message, status, text, code, contentType, encoding),
		func(w http.ResponseWriter, req *http.Request) {
			switch kind {
			case "abort before":
				panic(http.ErrAbortHandler)
			case "stall before":
				<-req.Context().Done()
				return
			}
			h := w.Header()
			h.Set("Content-Type", contentType)
			if encoding != "" {
				h.Set("Grpc-Encoding", encoding)
			}
			if kind == "trailers only" {
				h.Set("Grpc-Status", status)
				h.Set("Grpc-Message", text)
				w.WriteHeader(code)
				return
			}
			w.WriteHeader(code)
			w.Write([]byte(data))
			if kind == "no trailers" {
				return
			}
			w.(http.Flusher).Flush()
			switch kind {
			case "abort within":
				panic(http.ErrAbortHandler)
			case "stall within":
				<-req.Context().Done()
				return
			}
			if status != "" {
				h.Set(http.TrailerPrefix+"Grpc-Status", status)
			}
			h.Set(http.TrailerPrefix+"Grpc-Message", text)
		}
}
