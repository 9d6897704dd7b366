package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/version"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/guestprobe/guestprobe/sidecar/inject"
)

const (
	secretPath  = "/api/v1/namespaces/guestprobe-system/secrets/guestprobe-injector-tls"
	webhookConf = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/guestprobe-injector"
	serverName  = "guestprobe-injector.guestprobe-system.svc"
)

// TestServe runs the whole of serve: it makes a certificate, puts its authority into the webhook's configuration, answers
// a review sent as the API server sends it, renews a certificate that is about to expire, and stops late.
func TestServe(t *testing.T) {
	api := newAPIServer(t)
	api.put(vmiPath, masquerade())
	api.put(secretPath, map[string]any{"type": "Opaque"})
	api.put(webhookConf, map[string]any{"webhooks": []any{
		map[string]any{"name": "a.guestprobe.dev", "clientConfig": map[string]any{}},
		map[string]any{"name": "b.guestprobe.dev", "clientConfig": map[string]any{}},
	}})
	cfg := inject.DefaultConfig()
	cfg.Image = "registry.example/guestprobe:v1"
	f := &serveFlags{
		port: freePort(t), healthAddr: freeAddr(t), metrics: freeAddr(t), certificates: "managed", certDir: t.TempDir(),
		rotation: rotation{
			secret: "guestprobe-injector-tls", namespace: "guestprobe-system", service: "guestprobe-injector", webhook: "guestprobe-injector",
			lifetime: 48 * time.Hour, renewBefore: 24 * time.Hour, interval: time.Hour,
		},
		shutdownDelay: time.Second,
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- serve(ctx, f, &cfg, api.config(), ctrlmetrics.Registry, slog.New(slog.DiscardHandler)) }()

	ready := "http://" + f.healthAddr + "/readyz"
	eventually(t, "ready", done, func() error { return status(ready, http.StatusOK) })
	for i := range 2 {
		bundle := nested(t, api.get(webhookConf), i)
		if err := sendReview(t, f.port, bundle); err != nil {
			t.Fatalf("webhook %d: %v", i, err)
		}
	}
	first := served(t, f.port)
	if time.Until(first.NotAfter) < 47*time.Hour {
		t.Errorf("the certificate ends on %v", first.NotAfter)
	}
	body, err := fetch("http://" + f.metrics + "/metrics")
	if err != nil || !strings.Contains(body, `guestprobe_injector_reviews_total{result="injected"} 2`) {
		t.Errorf("metrics: %v", err)
	}

	// A certificate that ends within the renewal window is replaced as soon as it is seen.
	api.put(secretPath, expiringSecret(t, time.Now().Add(time.Hour)))
	eventually(t, "renewed", done, func() error {
		if now := served(t, f.port); now.Equal(first) || time.Until(now.NotAfter) < 47*time.Hour {
			return fmt.Errorf("the certificate served ends on %v, the first one on %v", now.NotAfter, first.NotAfter)
		}
		return sendReview(t, f.port, nested(t, api.get(webhookConf), 0))
	})

	cancel()
	eventually(t, "unready", done, func() error { return status(ready, http.StatusInternalServerError) })
	if err := sendReview(t, f.port, nested(t, api.get(webhookConf), 0)); err != nil {
		t.Errorf("a review during the shutdown delay: %v", err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("serve: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("serve goes on after its delay")
	}
}

// eventually waits for a condition of another process's timing; serve ending early is the end of waiting.
func eventually(t *testing.T, what string, done <-chan error, check func() error) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(30 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case end := <-done:
			t.Fatalf("serve ended before it was %s: %v", what, end)
		case <-limit:
			t.Fatalf("not %s: %v", what, err)
		}
	}
}

func nested(t *testing.T, config map[string]any, webhook int) []byte {
	t.Helper()
	hooks, _, _ := unstructured.NestedSlice(config, "webhooks")
	text, _, _ := unstructured.NestedString(hooks[webhook].(map[string]any), "clientConfig", "caBundle")
	bundle, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(bundle) == 0 {
		t.Fatalf("webhook %d has no authority: %q, %v", webhook, text, err)
	}
	return bundle
}

// sendReview sends a review as the API server does: trusting the webhook's authority alone, by the Service's name.
func sendReview(t *testing.T, port int, bundle []byte) error {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		t.Fatalf("no authority: %s", bundle)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: serverName}, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Post(
		fmt.Sprintf("https://127.0.0.1:%d%s?timeout=5s", port, webhookPath), "application/json", bytes.NewReader(testReview(testPod(t), nil)))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(resp.Body).Decode(&review); err != nil {
		return err
	}
	if review.Response == nil || !review.Response.Allowed || len(review.Response.Patch) == 0 {
		return fmt.Errorf("answer: %+v", review.Response)
	}
	return nil
}

// certificates makes a sound authority, and a certificate of its for the webhook's Service.
func certificates(t *testing.T, end time.Time) (ca, caKey, cert, key []byte) {
	t.Helper()
	r := &rotator.CertRotator{CAName: "guestprobe-injector-ca", DNSName: serverName, ExtKeyUsages: &[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	begin := time.Now().Add(-time.Hour)
	authority, err := r.CreateCACert(begin, time.Now().Add(1000*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if cert, key, err = r.CreateCertPEM(authority, begin, end); err != nil {
		t.Fatal(err)
	}
	return authority.CertPEM, authority.KeyPEM, cert, key
}

func expiringSecret(t *testing.T, end time.Time) map[string]any {
	t.Helper()
	ca, caKey, cert, key := certificates(t, end)
	encode := base64.StdEncoding.EncodeToString
	return map[string]any{"type": "Opaque", "data": map[string]any{
		"ca.crt": encode(ca), "ca.key": encode(caKey), certFile: encode(cert), keyFile: encode(key),
	}}
}

// TestServeMounted: with somebody else's certificates nothing is asked of the API server but VMIs and defaults, and a
// renewed file is served.
func TestServeMounted(t *testing.T) {
	api := newAPIServer(t)
	api.put(vmiPath, masquerade())
	dir := t.TempDir()
	ca, _, cert, key := certificates(t, time.Now().Add(time.Hour))
	write(t, filepath.Join(dir, certFile), cert)
	write(t, filepath.Join(dir, keyFile), key)
	cfg := inject.DefaultConfig()
	cfg.Image = "registry.example/guestprobe:v1"
	f := &serveFlags{port: freePort(t), healthAddr: freeAddr(t), metrics: "0", certificates: "mounted", certDir: dir}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- serve(ctx, f, &cfg, api.config(), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	}()
	eventually(t, "ready", done, func() error { return status("http://"+f.healthAddr+"/readyz", http.StatusOK) })
	if err := sendReview(t, f.port, ca); err != nil {
		t.Fatal(err)
	}
	ca, _, cert, key = certificates(t, time.Now().Add(48*time.Hour))
	write(t, filepath.Join(dir, keyFile), key)
	write(t, filepath.Join(dir, certFile), cert)
	eventually(t, "renewed", done, func() error { return sendReview(t, f.port, ca) })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestServeRefuses: what would make VMs fail, or could never work, ends the injector at once.
func TestServeRefuses(t *testing.T) {
	cfg := inject.DefaultConfig()
	start := func(api *apiServer, f *serveFlags) error {
		return serve(context.Background(), f, &cfg, api.config(), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	}
	old := newAPIServer(t)
	old.minor = "28"
	if err := start(old, &serveFlags{}); err == nil || !strings.Contains(err.Error(), "would never start") {
		t.Errorf("Kubernetes 1.28: %v", err)
	}
	f := &serveFlags{port: freePort(t), healthAddr: freeAddr(t), metrics: "0", certificates: "mounted", certDir: t.TempDir()}
	if err := start(newAPIServer(t), f); err == nil || !strings.Contains(err.Error(), "tls.crt") {
		t.Errorf("no certificate: %v", err)
	}
	gone := newAPIServer(t)
	gone.url = "http://" + freeAddr(t)
	if err := start(gone, &serveFlags{}); err == nil || !strings.Contains(err.Error(), "its version") {
		t.Errorf("no API server: %v", err)
	}
}

func served(t *testing.T, port int) *x509.Certificate {
	t.Helper()
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0]
}

func status(url string, want int) error {
	resp, err := http.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != want {
		return fmt.Errorf("%s: %d %s", url, resp.StatusCode, body)
	}
	return nil
}

func fetch(url string) (string, error) {
	resp, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func freePort(t *testing.T) int {
	t.Helper()
	addr, err := net.ResolveTCPAddr("tcp", freeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	return addr.Port
}

func TestNativeSidecars(t *testing.T) {
	for _, tt := range []struct {
		major, minor string
		ok           bool
	}{{"1", "28", false}, {"1", "29", true}, {"1", "34+", true}, {"2", "0", true}, {"1", "", false}} {
		if err := nativeSidecars(&version.Info{Major: tt.major, Minor: tt.minor}); (err == nil) != tt.ok {
			t.Errorf("%s.%s: %v", tt.major, tt.minor, err)
		}
	}
}
