package netprobe

import (
	"errors"
	"fmt"
	"net"
	"strconv"
)

// A noHTTP2Error means that a server's first bytes are no HTTP/2 SETTINGS frame.
type noHTTP2Error struct{ head []byte }

func (e noHTTP2Error) Error() string {
	return fmt.Sprintf("the server does not speak HTTP/2: %q", e.head)
}

// A prefaceConn watches the first bytes that a server sends, and tells preface about them once.
type prefaceConn struct {
	net.Conn
	preface chan<- error // nil once told; with room for one
	head    []byte
}

// Read is called by the transport's reading goroutine alone.
func (c *prefaceConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.preface == nil {
		return n, err
	}
	const header, settings = 9, 4 // the size of a frame's header, the type of SETTINGS
	c.head = append(c.head, p[:min(n, header-len(c.head))]...)
	switch {
	case len(c.head) == header && c.head[3] == settings && c.head[0] == 0:
		c.tell(nil)
	case len(c.head) == header:
		c.tell(noHTTP2Error{c.head})
	case err != nil:
		c.tell(err)
	}
	return n, err
}

func (c *prefaceConn) tell(err error) {
	c.preface <- err
	c.preface = nil
}

// A streamError has the fields of net/http's own error for a stream that was reset, which fills
// it in for errors.As.
type streamError struct {
	StreamID uint32
	Code     http2Code
	Cause    error
}

func (e streamError) Error() string {
	return fmt.Sprintf("stream terminated by RST_STREAM with error code: %v", e.Code)
}

// resetOf makes gRPC's status of a stream that the server reset, or nil if err is none such
// (google.golang.org/grpc v1.82.1 internal/transport/http_util.go).
func resetOf(err error) error {
	var e streamError
	if !errors.As(err, &e) || e.Cause == nil || e.Cause.Error() != "received from peer" {
		return nil
	}
	c := codeInternal
	switch e.Code {
	case http2FlowControl, http2EnhanceYourCalm:
		c = codeResourceExhausted
	case http2RefusedStream:
		c = codeUnavailable
	case http2Cancel:
		c = codeCanceled
	case http2InadequateSecurity:
		c = codePermissionDenied
	default:
		if e.Code > http2HTTP11Required {
			c = codeUnknown
		}
	}
	return &rpcError{c, e.Error()}
}

// isRefusedStream reports whether the server refused a stream without having processed it.
func isRefusedStream(err error) bool {
	var e streamError
	return errors.As(err, &e) && e.Code == http2RefusedStream
}

// A http2Code is an error code of HTTP/2 (RFC 9113, section 7).
type http2Code uint32

const (
	http2FlowControl        http2Code = 3
	http2RefusedStream      http2Code = 7
	http2Cancel             http2Code = 8
	http2EnhanceYourCalm    http2Code = 11
	http2InadequateSecurity http2Code = 12
	http2HTTP11Required     http2Code = 13
)

// String names c as the RFC does.
func (c http2Code) String() string {
	names := [...]string{"NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR",
		"SETTINGS_TIMEOUT", "STREAM_CLOSED", "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL",
		"COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED"}
	if int64(c) < int64(len(names)) {
		return names[c]
	}
	return "unknown error code 0x" + strconv.FormatUint(uint64(c), 16)
}
