package main

import (
	"io"
	"net/http"
)

// health answers grpc.health.v1.Health/Check, without a gRPC library: SERVING for the server as a whole (""), and
// NOT_FOUND for any service that is asked for by name. Its frames are what the protocol's specification draws
// (github.com/grpc/grpc doc/PROTOCOL-HTTP2.md): a flag, four bytes of length, the message.
func health(w http.ResponseWriter, r *http.Request) {
	const frameHeader = 5
	request, err := io.ReadAll(io.LimitReader(r.Body, 1024))
	if err != nil {
		return
	}
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	if len(request) > frameHeader {
		w.Header().Set("Grpc-Status", "5")
		return
	}
	_, _ = w.Write([]byte{0, 0, 0, 0, 2, 0x08, 1}) // status: SERVING
	w.Header().Set("Grpc-Status", "0")
}
