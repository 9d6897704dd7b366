package netprobe

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// An authority signs certificates for a test.
type authority struct {
	t    testing.TB
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	file string // its certificate
}

func newAuthority(t testing.TB, name string) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour),
	})
	a.file = filepath.Join(a.dir, "ca.pem")
	writePEM(t, a.file, "CERTIFICATE", a.cert.Raw)
	return a
}

// sign makes a key and signs template for it; without a certificate of its own, by the key itself.
func (a *authority) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore = time.Now().Add(-2 * time.Hour)
	parent, signer := template, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// leaf signs a certificate for 127.0.0.1 and the name guest, which lasts until notAfter.
func (a *authority) leaf(notAfter time.Time) (*x509.Certificate, *ecdsa.PrivateKey) {
	return a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "leaf"}, NotAfter: notAfter,
		DNSNames: []string{"guest"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

// files writes a leaf and its key to PEM files, over those that are there.
func (a *authority) files(name string) (certFile, keyFile string) {
	cert, key := a.leaf(time.Now().Add(time.Hour))
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+".key")
	writePEM(a.t, certFile, "CERTIFICATE", cert.Raw)
	writePEM(a.t, keyFile, "EC PRIVATE KEY", der)
	return certFile, keyFile
}

// writePEM replaces name in one step, so that its identity changes as a mounted secret's does.
func writePEM(t testing.TB, name, kind string, der []byte) {
	t.Helper()
	next := name + ".next"
	if err := os.WriteFile(next, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, name); err != nil {
		t.Fatal(err)
	}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// serve starts an HTTPS server with a leaf of a's. It answers the gRPC health method too.
func (a *authority) serve(notAfter time.Time, clients *authority, minVersion, maxVersion uint16) *peer {
	p := &peer{}
	cert, key := a.leaf(notAfter)
	s := p.handle(a.t, answerHealth(statusServing), func(s *httptest.Server) {
		s.EnableHTTP2 = true
		s.TLS = &tls.Config{
			Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}},
			MinVersion:   minVersion, MaxVersion: maxVersion,
		}
		if clients != nil {
			s.TLS.ClientAuth, s.TLS.ClientCAs = tls.RequireAndVerifyClientCert, clients.pool()
		}
		s.StartTLS()
	})
	p.setAddr(s.Listener.Addr())
	return p
}

func TestTLSCauses(t *testing.T) {
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	soon := time.Now().Add(time.Hour)
	certFile, keyFile := ca.files("client")
	otherCert, otherKey := other.files("client")
	good := ca.serve(soon, nil, 0, 0)
	expired := ca.serve(time.Now().Add(-time.Hour), nil, 0, 0)
	mutual13 := ca.serve(soon, ca, tls.VersionTLS13, 0)
	mutual12 := ca.serve(soon, ca, 0, tls.VersionTLS12)
	const success = Cause(255)
	for name, tc := range map[string]struct {
		peer *peer
		tls  *TLS
		want Cause
	}{
		"not verified":         {good, nil, success},
		"verified":             {good, &TLS{Verify: true, CAFile: ca.file}, success},
		"verified by name":     {good, &TLS{Verify: true, CAFile: ca.file, ServerName: "guest"}, success},
		"the system's CAs":     {good, &TLS{Verify: true}, CauseTLSUnknownCA},
		"wrong CA":             {good, &TLS{Verify: true, CAFile: other.file}, CauseTLSUnknownCA},
		"wrong name":           {good, &TLS{Verify: true, CAFile: ca.file, ServerName: "host"}, CauseTLSName},
		"expired":              {expired, &TLS{Verify: true, CAFile: ca.file}, CauseTLSExpired},
		"expired, who cares":   {expired, nil, success},
		"client demanded 1.3":  {mutual13, &TLS{Verify: true, CAFile: ca.file}, CauseTLSClientCert},
		"client demanded 1.2":  {mutual12, &TLS{Verify: true, CAFile: ca.file}, CauseTLSClientCert},
		"client demanded, nil": {mutual13, nil, CauseTLSClientCert},
		"client refused 1.3":   {mutual13, &TLS{CertFile: otherCert, KeyFile: otherKey}, CauseTLSClientCert},
		"client refused 1.2":   {mutual12, &TLS{CertFile: otherCert, KeyFile: otherKey}, CauseTLSClientCert},
		"client accepted 1.3":  {mutual13, &TLS{Verify: true, CAFile: ca.file, CertFile: certFile, KeyFile: keyFile}, success},
		"client accepted 1.2":  {mutual12, &TLS{CertFile: certFile, KeyFile: keyFile}, success},
		"no CA file":           {good, &TLS{Verify: true, CAFile: ca.file + ".no"}, CauseTLSFiles},
		"no CA in the file":    {good, &TLS{Verify: true, CAFile: keyFile}, CauseTLSFiles},
		"key without cert":     {good, &TLS{KeyFile: keyFile}, CauseTLSFiles},
		"another's key":        {good, &TLS{CertFile: certFile, KeyFile: otherKey}, CauseTLSFiles},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for kind, probe := range map[string]prober{
				"http": &HTTPGet{Scheme: "HTTPS", Host: tc.peer.host, Port: tc.peer.port, TLS: tc.tls},
				"grpc": &GRPC{Host: tc.peer.host, Port: tc.peer.port, TLS: orZero(tc.tls)},
			} {
				timeout := patience
				if kind == "grpc" && tc.want != success {
					timeout = 1500 * time.Millisecond // it tries again until then
				}
				err := probePatiently(t, probe, timeout)
				var f *Failure
				switch {
				case tc.want == success && err != nil:
					t.Errorf("%s: %v", kind, err)
				case tc.want != success && (!errors.As(err, &f) || f.Cause != tc.want):
					t.Errorf("%s: %T %v, want a failure of cause %v", kind, err, err, tc.want)
				}
			}
		})
	}
}

func orZero(t *TLS) *TLS {
	if t == nil {
		return &TLS{}
	}
	return t
}

// TestTLSRotation swaps the files under a running probe.
func TestTLSRotation(t *testing.T) {
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	server := ca.serve(time.Now().Add(time.Hour), ca, 0, 0)
	certFile, keyFile := other.files("client")
	probe := &HTTPGet{Scheme: "HTTPS", Host: server.host, Port: server.port,
		TLS: &TLS{Verify: true, CAFile: other.file, CertFile: certFile, KeyFile: keyFile}}
	want := func(step string, want Cause) {
		t.Helper()
		err := probe.Probe(withTimeout(t, patience))
		var f *Failure
		if errors.As(err, &f) && f.Cause == want || err == nil && want == CauseOther {
			return
		}
		t.Errorf("%s: %T %v, want cause %v", step, err, err, want)
	}
	want("before", CauseTLSUnknownCA)
	writePEM(t, other.file, "CERTIFICATE", ca.cert.Raw)
	want("right CA, wrong client certificate", CauseTLSClientCert)
	newCert, newKey := ca.files("new")
	if err := os.Rename(newCert, certFile); err != nil {
		t.Fatal(err)
	}
	want("certificate without its key yet: the old pair stays", CauseTLSClientCert)
	if err := os.Rename(newKey, keyFile); err != nil {
		t.Fatal(err)
	}
	want("right pair", CauseOther)
	if err := os.Remove(other.file); err != nil {
		t.Fatal(err)
	}
	want("no CA file for now: the last good one stays", CauseOther)
	writePEM(t, other.file, "CERTIFICATE", other.cert.Raw)
	want("wrong CA again", CauseTLSUnknownCA)
}

// TestTLSFileBound checks that a file of any size is refused rather than read whole.
func TestTLSFileBound(t *testing.T) {
	name := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(name, make([]byte, maxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	var f *Failure
	err := (&HTTPGet{Scheme: "HTTPS", Host: "127.0.0.1", Port: 1, TLS: &TLS{Verify: true, CAFile: name}}).Probe(t.Context())
	if !errors.As(err, &f) || f.Cause != CauseTLSFiles {
		t.Errorf("%T %v, want a failure of cause TLSFiles", err, err)
	}
}

// TestSNI checks that the server name is the host of the URL and never the Host header.
func TestSNI(t *testing.T) {
	names := make(chan string, 4)
	p := &peer{}
	s := p.handle(t, func(http.ResponseWriter, *http.Request) {}, func(s *httptest.Server) {
		s.TLS = &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			names <- h.ServerName
			return nil, nil
		}}
		s.StartTLS()
	})
	p.setAddr(s.Listener.Addr())
	for host, want := range map[string]string{"localhost": "localhost", "127.0.0.1": ""} {
		g := &HTTPGet{Scheme: "HTTPS", Host: host, Port: p.port, Network: "tcp4", Headers: []Header{{"Host", "example.org"}}}
		if err := g.Probe(withTimeout(t, patience)); err != nil {
			t.Fatal(err)
		}
		if got := <-names; got != want {
			t.Errorf("SNI for %s: %q, want %q", host, got, want)
		}
	}
}
