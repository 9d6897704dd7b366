package sidecar

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/qga/qgatest"
	"github.com/guestprobe/guestprobe/sidecar/manifest"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// An authority signs certificates for a test.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	a.cert, a.key = a.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour)})
	return a
}

// sign makes a key and signs template for it; the first time by the key itself.
func (a *authority) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.Subject = pkix.Name{CommonName: fmt.Sprint(template.SerialNumber)}
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

func (a *authority) leaf(notAfter time.Time) (*x509.Certificate, *ecdsa.PrivateKey) {
	return a.sign(&x509.Certificate{
		NotAfter: notAfter, DNSNames: []string{"guest"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

// caFile replaces a file by the authority's certificate, in one step.
func (a *authority) caFile(name string) {
	a.t.Helper()
	writePEM(a.t, name, "CERTIFICATE", a.cert.Raw)
}

// clientFiles replaces two files by a client's certificate and its key.
func (a *authority) clientFiles(certFile, keyFile string) {
	a.t.Helper()
	cert, key := a.leaf(time.Now().Add(time.Hour))
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	writePEM(a.t, certFile, "CERTIFICATE", cert.Raw)
	writePEM(a.t, keyFile, "EC PRIVATE KEY", der)
}

func writePEM(t *testing.T, name, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(name+".next", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".next", name); err != nil {
		t.Fatal(err)
	}
}

// serve starts an HTTPS server, with gRPC's health protocol, and returns its port. With clients it demands their certificates.
func (a *authority) serve(notAfter time.Time, clients *authority) string {
	a.t.Helper()
	cert, key := a.leaf(notAfter)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/grpc.health.v1.") {
			w.Header().Set("Content-Type", "application/grpc")
			_, _ = w.Write([]byte{0, 0, 0, 0, 2, 0x08, 1}) // status: SERVING
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		}
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}}
	if clients != nil {
		s.TLS.ClientAuth, s.TLS.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		s.TLS.ClientCAs.AddCert(clients.cert)
	}
	s.StartTLS()
	a.t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		a.t.Fatal(err)
	}
	return port
}

// says waits until an endpoint's answer contains text.
func (r *rig) says(path, text string) {
	r.t.Helper()
	r.eventually(path+" says "+text, func(Status) bool {
		_, body := r.get(path)
		return strings.Contains(body, text)
	})
}

// TestTLSReasonsAreToldApart: whoever reads /readyz sees which of the four things is wrong, and /status has it as one
// word; and what is put right in the files is seen without a restart.
func TestTLSReasonsAreToldApart(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	good, soon := t.TempDir(), time.Now().Add(time.Hour)
	file := func(name string) string { return filepath.Join(good, name) }
	other.caFile(file("ca.pem")) // the wrong one, for now
	ca.caFile(file("right.pem"))
	other.clientFiles(file("client.pem"), file("client.key"))

	vm := newVM(t, qgatest.Config{Status: "running"})
	// Handshakes cost time; the gRPC probes that fail take all they are given.
	probe := func(name, port, settings string) string {
		return fmt.Sprintf("  - {name: %s, kind: readiness, periodSeconds: 10, timeoutSeconds: 10, httpGet: {port: %s, scheme: HTTPS}, tls: {%s}}\n", name, port, settings)
	}
	grpc := func(name, port, settings string) string {
		return fmt.Sprintf("  - {name: %s, kind: readiness, periodSeconds: 10, timeoutSeconds: 2, grpc: {port: %s}, tls: {%s}}\n", name, port, settings)
	}
	plain, mutual := ca.serve(soon, nil), ca.serve(soon, ca)
	r := start(t, vm, config(t, vm, "  checks:\n"+
		probe("ca", plain, "verify: true, caFile: "+file("ca.pem"))+
		probe("name", plain, "verify: true, serverName: shop, caFile: "+file("right.pem"))+
		probe("date", ca.serve(time.Now().Add(-time.Hour), nil), "verify: true, caFile: "+file("right.pem"))+
		probe("client", mutual, "verify: true, caFile: "+file("right.pem"))+
		probe("stranger", mutual, fmt.Sprintf("certFile: %s, keyFile: %s", file("client.pem"), file("client.key")))+
		probe("files", plain, "verify: true, caFile: "+file("none.pem"))+
		probe("fine", plain, "verify: true, serverName: guest, caFile: "+file("right.pem"))+
		probe("unverified", ca.serve(time.Now().Add(-time.Hour), nil), "")+
		grpc("grpc", plain, "verify: true, caFile: "+file("ca.pem"))+
		grpc("grpc-unverified", plain, "")+
		grpc("grpc-client", mutual, fmt.Sprintf("certFile: %s, keyFile: %s", file("client.pem"), file("client.key")))))

	// causes waits until each check has this cause; "" is success.
	causes := func(want ...string) {
		t.Helper()
		r.eventually(strings.Join(want, " "), func(s Status) bool {
			for i, c := range s.Checks {
				if c.Cause != want[i] || (c.Outcome == "success") != (want[i] == "") || want[i] != "" && c.Failures < 3 {
					return false
				}
			}
			return true
		})
		for i, c := range r.status().Checks {
			line := fmt.Sprintf("[+]%s ok\n", c.Name)
			if want[i] != "" {
				line = fmt.Sprintf("[-]%s failed: ProbeFailed: %s: ", c.Name, want[i])
			}
			r.says("/readyz?verbose", line)
		}
	}
	causes("TLSUnknownCA", "TLSName", "TLSExpired", "TLSClientCert", "TLSClientCert", "TLSFiles", "", "", "TLSUnknownCA", "", "TLSClientCert")
	_, metrics := r.get("/metrics")
	if strings.Contains(metrics, "TLS") {
		t.Error("a cause is in the metrics")
	}

	// The files are replaced under the running daemon.
	ca.caFile(file("ca.pem"))
	ca.caFile(file("none.pem"))
	ca.clientFiles(file("client.pem"), file("client.key"))
	causes("", "TLSName", "TLSExpired", "TLSClientCert", "", "", "", "", "", "", "")
}

// TestFailingFamiliesAreNamed: of a check that runs in both families, the ones that fail.
func TestFailingFamiliesAreNamed(t *testing.T) {
	six, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	defer six.Close()
	port := fmt.Sprint(six.Addr().(*net.TCPAddr).Port) // nothing is there at 127.0.0.1, save by chance
	vm := newVM(t, qgatest.Config{Status: "running"})
	cfg := config(t, vm, `
  checks:
  - {name: both, kind: readiness, tcpSocket: {port: `+port+`}, ipFamilies: [IPv4, IPv6], periodSeconds: 1}
  - {name: six, kind: readiness, tcpSocket: {port: `+port+`}, ipFamilies: [IPv6], periodSeconds: 1}
  - {name: none, kind: readiness, httpGet: {port: 1}, ipFamilies: [IPv6, IPv4], periodSeconds: 1}
  - {name: literal, kind: readiness, tcpSocket: {port: `+port+`, host: "[::1]"}, periodSeconds: 1}
  - {name: zone, kind: readiness, tcpSocket: {port: `+port+`, host: "::1%lo"}, periodSeconds: 1}
  - {name: first, kind: readiness, tcpSocket: {port: `+port+`}, periodSeconds: 1, severity: warn}
`)
	cfg.GuestHost = "127.0.0.1, [::1]"
	r := start(t, vm, cfg)
	st := r.eventually("failures", func(s Status) bool {
		return s.Checks[0].Failures > 2 && s.Checks[2].Failures > 2 && s.Checks[5].Failures > 2 &&
			s.Checks[1].State == "success" && s.Checks[3].State == "success" && s.Checks[4].State == "success"
	})
	if e := st.Checks[0]; !strings.HasPrefix(e.Error, "IPv4: dial tcp4 127.0.0.1:") || strings.Contains(e.Error, "IPv6") || e.Cause != "Refused" {
		t.Errorf("both: %q, cause %q", e.Error, e.Cause)
	}
	if e := st.Checks[2].Error; !strings.Contains(e, "IPv6: Get \"http://[::1]:1/\"") || !strings.Contains(e, "; IPv4: Get \"http://127.0.0.1:1/\"") {
		t.Errorf("none: %q does not name both", e)
	}
	r.says("/readyz?verbose", "[-]both failed: ProbeFailed: IPv4: dial tcp4")
	for _, c := range st.Checks {
		if strings.Contains(c.Handler, "[[") || strings.Contains(c.Handler, ",") {
			t.Errorf("%s is described as %q", c.Name, c.Handler)
		}
	}
}

func TestGuestHosts(t *testing.T) {
	for _, tt := range []struct{ hosts, network, want string }{
		{"192.0.2.1", "tcp", "192.0.2.1"},
		{"192.0.2.1", "tcp6", "192.0.2.1"}, // fails, and says so
		{"[fd00::1]", "tcp", "fd00::1"},
		{"fe80::1%eth0", "tcp6", "fe80::1%eth0"},
		{"[fe80::1%eth0]", "tcp", "fe80::1%eth0"},
		{"192.0.2.1,fd00::1", "tcp", "192.0.2.1"},
		{"192.0.2.1,fd00::1", "tcp4", "192.0.2.1"},
		{"192.0.2.1, [fd00::1]", "tcp6", "fd00::1"},
		{"fd00::1,192.0.2.1", "tcp", "fd00::1"},
		{"fd00::1,192.0.2.1", "tcp4", "192.0.2.1"},
		{"::ffff:192.0.2.1", "tcp4", "::ffff:192.0.2.1"},
		{"guest.example", "tcp6", "guest.example"},
	} {
		if got := hostFor(tt.hosts, tt.network); got != tt.want {
			t.Errorf("hostFor(%q, %s) = %q, want %q", tt.hosts, tt.network, got, tt.want)
		}
	}
	m, err := manifest.Parse("x", []byte("readinessProbe: {httpGet: {port: 80}}"))
	if err != nil {
		t.Fatal(err)
	}
	for host, ok := range map[string]bool{"::1": true, "a,b": true, ",": false, "a,": false} {
		if err := (&Config{Manifest: m, GuestHost: host}).Validate(); (err == nil) != ok {
			t.Errorf("--guest-host %q: %v", host, err)
		}
	}
}

// TestWarnShowsUpEverywhereAndFailsNothing of each kind.
func TestWarnShowsUpEverywhereAndFailsNothing(t *testing.T) {
	vm := newVM(t, qgatest.Config{Status: "running"})
	r := start(t, vm, config(t, vm, `
  readinessProbe: {guestAgentPing: {}, periodSeconds: 1}
  checks:
  - {name: web-ready, kind: readiness, severity: warn, httpGet: {port: 1500, path: /healthz}, periodSeconds: 1, failureThreshold: 2}
  - {name: web-live, kind: liveness, severity: warn, httpGet: {port: 1500, path: /healthz}, periodSeconds: 1, failureThreshold: 2}
  - {name: web-started, kind: startup, severity: warn, tcpSocket: {port: 1}, periodSeconds: 1, failureThreshold: 2}
`))
	before := len(r.reason(verdict.Ready).Transitions)
	r.eventually("all well but the startup", func(s Status) bool {
		return s.Checks[1].State == "success" && s.Checks[2].State == "success" && s.Checks[3].State == "failure"
	})
	vm.SetHTTPStatus(500)
	st := r.eventually("the warnings", func(s Status) bool { return s.Checks[1].State == "failure" && s.Checks[2].State == "failure" })
	if !st.Ready || !st.Live || !st.Started || st.Reason != verdict.Ready || st.Checks[1].Severity != "warn" {
		t.Errorf("ready %v, live %v, started %v, reason %s, severity %s", st.Ready, st.Live, st.Started, st.Reason, st.Checks[1].Severity)
	}
	for path, want := range map[string]string{
		"/readyz":   "[+]web-ready warning: ProbeFailed: HTTP probe failed with statuscode: 500\n",
		"/livez":    "[+]web-live warning: ProbeFailed: HTTP probe failed with statuscode: 500\n",
		"/startupz": "[+]web-started warning: StartupTimeout: ",
	} {
		r.says(path+"?verbose", want)
		if code, _ := r.get(path); code != http.StatusOK {
			t.Errorf("%s answers %d", path, code)
		}
	}
	if _, metrics := r.get("/metrics"); !strings.Contains(metrics, `guestprobe_check_success{check="web-live",kind="liveness"} 0`) {
		t.Error("the metrics do not show the failing check")
	}
	logged := func(what string) {
		t.Helper()
		r.eventually(what, func(Status) bool { return strings.Contains(r.logs.String(), what) })
	}
	logged(`level=WARN msg="check fails, with severity warn" check=web-live kind=liveness reason=ProbeFailed detail="HTTP probe failed with statuscode: 500"`)
	logged(`level=WARN msg="check fails, with severity warn" check=web-ready`)
	vm.SetHTTPStatus(200)
	logged(`level=INFO msg="check recovered" check=web-live kind=liveness lasted=`)
	if n := strings.Count(r.logs.String(), "check fails, with severity warn"); n != 3 {
		t.Errorf("%d records of three checks that began to fail", n)
	}
	if now := r.status().Transitions; len(now) != before {
		t.Errorf("transitions: %+v", now[before:])
	}
}
