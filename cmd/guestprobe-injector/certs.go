package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// The members of the certificate's Secret, cert-manager's and cert-controller's alike.
const (
	certFile = "tls.crt"
	keyFile  = "tls.key"
)

// A certStore hands the newest certificate to the TLS server. It is filled from a Secret or from files.
type certStore struct {
	current atomic.Pointer[tls.Certificate]
}

// get is the TLS server's GetCertificate.
func (s *certStore) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if cert := s.current.Load(); cert != nil {
		return cert, nil
	}
	return nil, errors.New("there is no certificate yet")
}

func (s *certStore) expiry() time.Time {
	cert := s.current.Load()
	if cert == nil || cert.Leaf == nil {
		return time.Time{}
	}
	return cert.Leaf.NotAfter
}

// check is a readiness check.
func (s *certStore) check(*http.Request) error {
	switch expiry := s.expiry(); {
	case expiry.IsZero():
		return errors.New("there is no certificate yet")
	case time.Now().After(expiry):
		return fmt.Errorf("the certificate expired on %s", expiry.Format(time.RFC3339))
	}
	return nil
}

// A secretSource fills a store from a Secret as soon as it changes. A Secret mounted as a volume would reach the
// server only at the kubelet's next round, a minute in which the API server trusts one authority and is shown another.
type secretSource struct {
	store *certStore
	mgr   manager.Manager
	dir   string // where the certificate is left for cert-controller, which waits for a file
	log   *slog.Logger
}

// Start implements manager.Runnable.
func (s *secretSource) Start(ctx context.Context) error {
	informer, err := s.mgr.GetCache().GetInformer(ctx, &corev1.Secret{})
	if err != nil {
		return fmt.Errorf("watching the certificate's Secret: %w", err)
	}
	load := func(obj any) {
		if secret, ok := obj.(*corev1.Secret); ok {
			s.load(secret)
		}
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: load, UpdateFunc: func(_, obj any) { load(obj) },
	})
	if err != nil {
		return fmt.Errorf("watching the certificate's Secret: %w", err)
	}
	<-ctx.Done()
	return informer.RemoveEventHandler(registration)
}

func (s *secretSource) load(secret *corev1.Secret) {
	cert, key := secret.Data[certFile], secret.Data[keyFile]
	if len(cert) == 0 || len(key) == 0 {
		return // as installed, before the first rotation
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		s.log.Error("the Secret's certificate cannot be used", "secret", secret.Name, "err", err)
		return
	}
	s.store.current.Store(&pair)
	s.log.Info("certificate loaded", "expires", s.store.expiry())
	if err := os.WriteFile(filepath.Join(s.dir, certFile), cert, 0o600); err != nil {
		s.log.Error("the certificate cannot be left for its controller", "err", err)
	}
}

// A rotation says how certificates are made.
type rotation struct {
	secret, namespace, service, webhook string
	lifetime, renewBefore, interval     time.Duration
}

// manageCertificates makes the manager create the authority and the certificate, keep both in the Secret, renew them
// ahead of time, and write the authority into the webhook's configuration. Every replica does so; the Secret's version
// decides between them. ready is closed once all of it is in place.
func manageCertificates(mgr manager.Manager, store *certStore, r rotation, dir string, log *slog.Logger) (ready <-chan struct{}, err error) {
	if err := mgr.Add(&secretSource{store: store, mgr: mgr, dir: dir, log: log}); err != nil {
		return nil, err
	}
	host := r.service + "." + r.namespace + ".svc"
	done := make(chan struct{})
	err = rotator.AddRotator(mgr, &rotator.CertRotator{
		SecretKey:              types.NamespacedName{Namespace: r.namespace, Name: r.secret},
		CertDir:                dir,
		CAName:                 "guestprobe-injector-ca",
		CAOrganization:         "guestprobe",
		DNSName:                host,
		ExtraDNSNames:          []string{r.service + "." + r.namespace, host + ".cluster.local"},
		IsReady:                done,
		Webhooks:               []rotator.WebhookInfo{{Name: r.webhook, Type: rotator.Mutating}},
		FieldOwner:             "guestprobe-injector",
		ServerCertDuration:     r.lifetime,
		LookaheadInterval:      r.renewBefore,
		RotationCheckFrequency: r.interval,
	})
	if err != nil {
		return nil, fmt.Errorf("adding the certificate controller: %w", err)
	}
	return done, nil
}

// mountedCertificates fills the store from files that something else writes, e.g. cert-manager.
func mountedCertificates(mgr manager.Manager, store *certStore, dir string) error {
	watcher, err := certwatcher.New(filepath.Join(dir, certFile), filepath.Join(dir, keyFile))
	if err != nil {
		return fmt.Errorf("reading the certificate: %w", err)
	}
	watcher.RegisterCallback(func(cert tls.Certificate) { store.current.Store(&cert) })
	return mgr.Add(watcher)
}
