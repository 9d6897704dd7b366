package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net/http"
	"time"
)

// serveTLS serves the same over HTTPS. The certificate is made at the start, signed by itself and good for the name
// guest: whoever wants to verify it gets it from the server first.
func serveTLS(addr string, h http.Handler) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), DNSNames: []string{"guest"}, BasicConstraintsValid: true, IsCA: true,
		// The guest's clock may be off from that of whoever verifies.
		NotBefore: now.AddDate(-1, 0, 0), NotAfter: now.AddDate(1, 0, 0),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	server := &http.Server{Addr: addr, Handler: h, TLSConfig: &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	}}
	return server.ListenAndServeTLS("", "")
}
