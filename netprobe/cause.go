package netprobe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
)

// A Cause names why a probe failed. The set is closed, so a Cause may be a metric's label.
type Cause uint8

// The causes. What a peer can do wrong on every kind of probe comes first.
const (
	// CauseOther is what no other cause fits, such as a header value that HTTP forbids.
	CauseOther Cause = iota
	// CauseRefused: the address answered that nothing listens on the port.
	CauseRefused
	// CauseTimeout: the deadline passed before the peer did what it had to.
	CauseTimeout
	// CauseNoRoute: the address cannot be reached from here, or is of no such family.
	CauseNoRoute
	// CauseReset: the peer tore the connection down.
	CauseReset
	// CauseClosed: the peer closed the connection without an answer.
	CauseClosed
	// CauseDNS: the host's name did not resolve.
	CauseDNS
	// CauseProtocol: the peer answered in another protocol, or wrongly in this one.
	CauseProtocol
	// CauseTooLarge: the peer's answer broke a size limit.
	CauseTooLarge

	// CauseTLS: a TLS failure that is none of the following.
	CauseTLS
	// CauseTLSUnknownCA: the certificate is signed by nobody we were told to trust.
	CauseTLSUnknownCA
	// CauseTLSName: the certificate is for another name.
	CauseTLSName
	// CauseTLSExpired: the certificate has expired or is not valid yet.
	CauseTLSExpired
	// CauseTLSClientCert: the server demands a client certificate, or refuses ours.
	CauseTLSClientCert
	// CauseTLSFiles: our own CA, certificate or key file cannot be used.
	CauseTLSFiles

	// CauseStatus: HTTP answered with a status that is no success.
	CauseStatus
	// CauseRedirects: the tenth redirect, or one that cannot be followed.
	CauseRedirects
	// CauseBody: the body broke off or stalled, and HTTPGet.BodyErrorsFail is set.
	CauseBody

	// CauseExpect: the bytes do not match TCPSocket.Expect.
	CauseExpect
	// CauseSilent: the connection stood, but nothing came before the deadline.
	CauseSilent

	// CauseNotServing: grpc.health.v1 answered with another status than SERVING.
	CauseNotServing
	// CauseUnimplemented: the server has no grpc.health.v1 service.
	CauseUnimplemented
	// CauseRPC: the health call failed with some other gRPC status.
	CauseRPC
)

// Causes returns every Cause, in the order of their declaration.
func Causes() []Cause {
	all := make([]Cause, 0, CauseRPC+1)
	for c := CauseOther; c <= CauseRPC; c++ {
		all = append(all, c)
	}
	return all
}

// String returns the cause's name, such as "TLSUnknownCA".
func (c Cause) String() string {
	switch c {
	case CauseRefused:
		return "Refused"
	case CauseTimeout:
		return "Timeout"
	case CauseNoRoute:
		return "NoRoute"
	case CauseReset:
		return "Reset"
	case CauseClosed:
		return "Closed"
	case CauseDNS:
		return "DNS"
	case CauseProtocol:
		return "Protocol"
	case CauseTooLarge:
		return "TooLarge"
	case CauseTLS:
		return "TLS"
	case CauseTLSUnknownCA:
		return "TLSUnknownCA"
	case CauseTLSName:
		return "TLSName"
	case CauseTLSExpired:
		return "TLSExpired"
	case CauseTLSClientCert:
		return "TLSClientCert"
	case CauseTLSFiles:
		return "TLSFiles"
	case CauseStatus:
		return "Status"
	case CauseRedirects:
		return "Redirects"
	case CauseBody:
		return "Body"
	case CauseExpect:
		return "Expect"
	case CauseSilent:
		return "Silent"
	case CauseNotServing:
		return "NotServing"
	case CauseUnimplemented:
		return "Unimplemented"
	case CauseRPC:
		return "RPC"
	default:
		return "Other"
	}
}

// causeOf finds the cause of a network or TLS error. It returns CauseOther for an error that
// names neither; the caller may know better.
func causeOf(err error) Cause {
	var (
		dns     *net.DNSError
		addr    *net.AddrError
		timeout net.Error
	)
	switch {
	case errors.As(err, &dns):
		return CauseDNS
	case errors.Is(err, syscall.ECONNREFUSED):
		return CauseRefused
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH),
		errors.Is(err, syscall.ENETDOWN), errors.Is(err, syscall.EHOSTDOWN),
		errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.EAFNOSUPPORT),
		// A local firewall or policy route that prohibits answers with these.
		errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return CauseNoRoute
	case errors.As(err, &addr) && addr.Err == "no suitable address found":
		return CauseNoRoute
	case errors.Is(err, context.DeadlineExceeded):
		return CauseTimeout
	case errors.As(err, &timeout) && timeout.Timeout():
		return CauseTimeout
	}
	if c := tlsCause(err); c != CauseOther {
		return c
	}
	switch {
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNABORTED):
		return CauseReset
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return CauseClosed
	}
	return CauseOther
}

// tlsCause finds the cause of a TLS error. A demanded client certificate cannot be told from the
// error alone; see attempt.asked.
func tlsCause(err error) Cause {
	var (
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		invalid   x509.CertificateInvalidError
		verify    *tls.CertificateVerificationError
		record    tls.RecordHeaderError
		files     *fileError
	)
	switch {
	case errors.As(err, &files):
		return CauseTLSFiles
	case errors.As(err, &name):
		return CauseTLSName
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return CauseTLSExpired
	case errors.As(err, &authority):
		return CauseTLSUnknownCA
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return CauseProtocol
	case errors.As(err, &verify), errors.As(err, &invalid), isAlert(err):
		return CauseTLS
	}
	return CauseOther
}

// isAlert reports whether err is a TLS alert, sent by us or by the peer.
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error")
}
