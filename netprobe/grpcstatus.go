package netprobe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// A healthStatus is the enum of grpc.health.v1's answer. As an error it is any but SERVING.
type healthStatus int32

const statusServing healthStatus = 1

// String names s as the protocol's definition does, or by its number.
func (s healthStatus) String() string {
	switch s {
	case 0:
		return "UNKNOWN"
	case statusServing:
		return "SERVING"
	case 2:
		return "NOT_SERVING"
	case 3:
		return "SERVICE_UNKNOWN"
	}
	return strconv.Itoa(int(s))
}

func (s healthStatus) Error() string { return s.String() }

// A code is a gRPC status code.
type code uint32

const (
	codeCanceled          code = 1
	codeUnknown           code = 2
	codeDeadlineExceeded  code = 4
	codePermissionDenied  code = 7
	codeResourceExhausted code = 8
	codeUnimplemented     code = 12
	codeInternal          code = 13
	codeUnavailable       code = 14
	codeUnauthenticated   code = 16
)

// String names c as google.golang.org/grpc does.
func (c code) String() string {
	names := [...]string{"OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded",
		"NotFound", "AlreadyExists", "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
		"Aborted", "OutOfRange", "Unimplemented", "Internal", "Unavailable", "DataLoss", "Unauthenticated"}
	if int64(c) < int64(len(names)) {
		return names[c]
	}
	return fmt.Sprintf("Code(%d)", uint32(c))
}

// An rpcError is a gRPC status other than OK.
type rpcError struct {
	code    code
	message string
}

func (e *rpcError) Error() string {
	return fmt.Sprintf("rpc error: code = %v desc = %s", e.code, e.message)
}

// cause tells an answer that broke the protocol or a limit from one that is a plain refusal.
func (e *rpcError) cause() Cause {
	if e.code == codeResourceExhausted && strings.Contains(e.message, "larger than max") {
		return CauseTooLarge
	}
	return CauseRPC
}

// httpCode is the gRPC code for an HTTP status (google.golang.org/grpc v1.82.1
// internal/transport/http_util.go).
func httpCode(status int) code {
	switch status {
	case http.StatusBadRequest:
		return codeInternal
	case http.StatusUnauthorized:
		return codeUnauthenticated
	case http.StatusForbidden:
		return codePermissionDenied
	case http.StatusNotFound:
		return codeUnimplemented
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return codeUnavailable
	}
	return codeUnknown
}

// statusOf reads the status of an answer whose body was read to its end, or nil if it is OK.
func statusOf(res *http.Response) error {
	h := res.Trailer
	switch {
	case res.ContentLength == 0 && len(h) == 0:
		h = res.Header
	case len(h) == 0:
		return &rpcError{codeInternal, "server closed the stream without sending trailers"}
	}
	c, err := statusCode(h)
	if err != nil {
		return err
	}
	if c == 0 {
		return nil
	}
	return &rpcError{c, unescape(h.Get("Grpc-Message"))}
}

// statusCode reads the code from a header or trailers. One without is Unknown.
func statusCode(h http.Header) (code, error) {
	if _, ok := h["Grpc-Status"]; !ok {
		return codeUnknown, nil
	}
	n, err := strconv.ParseInt(h.Get("Grpc-Status"), 10, 32)
	if err != nil {
		return 0, &rpcError{codeUnknown, fmt.Sprintf("transport: malformed grpc-status: %v", err)}
	}
	return code(uint32(n)), nil
}

// unescape undoes the percent encoding of a status message and leaves alone what is none.
func unescape(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
				b.WriteByte(byte(n))
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// healthRequest encodes HealthCheckRequest{service} in its gRPC frame.
func healthRequest(service string) []byte {
	var message []byte
	if service != "" {
		message = append(message, 1<<3|wireBytes)
		message = binary.AppendUvarint(message, uint64(len(service)))
		message = append(message, service...)
	}
	frame := make([]byte, 5, 5+len(message))
	binary.BigEndian.PutUint32(frame[1:], uint32(len(message)))
	return append(frame, message...)
}

// The wire types of protocol buffers.
const (
	wireVarint     = 0
	wireFixed64    = 1
	wireBytes      = 2
	wireStartGroup = 3
	wireEndGroup   = 4
	wireFixed32    = 5
)

// parseHealth decodes HealthCheckResponse: field 1 is the status, the last one counts, and
// unknown fields are skipped.
func parseHealth(message []byte) (healthStatus, error) {
	malformed := &rpcError{codeInternal, "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data"}
	var status healthStatus
	var groups []uint64 // the numbers of those that are open
	for len(message) > 0 {
		tag, rest, err := uvarint(message)
		if err != nil || tag>>3 == 0 || tag>>3 > 1<<29-1 {
			return 0, malformed
		}
		message = rest
		switch tag & 7 {
		case wireStartGroup:
			groups = append(groups, tag>>3)
			continue
		case wireEndGroup:
			if len(groups) == 0 || groups[len(groups)-1] != tag>>3 {
				return 0, malformed
			}
			groups = groups[:len(groups)-1]
			continue
		}
		value, rest, err := field(tag&7, message)
		if err != nil {
			return 0, malformed
		}
		message = rest
		if tag == 1<<3|wireVarint && len(groups) == 0 {
			status = healthStatus(int32(uint32(value)))
		}
	}
	if len(groups) > 0 {
		return 0, malformed
	}
	return status, nil
}

// field takes a field of a wire type from the front of b. The value is a varint's.
func field(wireType uint64, b []byte) (value uint64, rest []byte, err error) {
	var size uint64
	switch wireType {
	case wireVarint:
		return uvarint(b)
	case wireFixed64:
		size = 8
	case wireFixed32:
		size = 4
	case wireBytes:
		if size, b, err = uvarint(b); err != nil {
			return 0, nil, err
		}
	default:
		return 0, nil, errors.New("unknown wire type")
	}
	if size > uint64(len(b)) {
		return 0, nil, errors.New("field beyond the end")
	}
	return 0, b[size:], nil
}

// uvarint takes a varint from the front of b.
func uvarint(b []byte) (uint64, []byte, error) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, errors.New("malformed varint")
	}
	return v, b[n:], nil
}
