package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/guestprobe/guestprobe/cmd/internal/cli"
	"github.com/guestprobe/guestprobe/sidecar/inject"
)

// webhookPath is where the API server sends reviews; manifests/base says so to it.
const webhookPath = "/mutate-pod"

// serveFlags are the webhook's own.
type serveFlags struct {
	kubeconfig            string
	port                  int
	healthAddr, metrics   string
	certificates, certDir string
	rotation              rotation
	shutdownDelay         time.Duration
	log                   cli.LogFlags
}

func (f *serveFlags) register(fs *flag.FlagSet) {
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "`FILE` that says where the API server is; default: the pod's service account")
	fs.IntVar(&f.port, "webhook-port", 9443, "TCP `PORT` of the webhook")
	fs.StringVar(&f.healthAddr, "health-addr", ":8081", "`ADDR` of /healthz and /readyz")
	fs.StringVar(&f.metrics, "metrics-addr", ":8080", "`ADDR` of /metrics; 0: none")
	fs.StringVar(&f.certificates, "certificates", "managed", "managed (made, renewed and put into the webhook's configuration here) or mounted (read from --cert-dir)")
	fs.StringVar(&f.certDir, "cert-dir", "/tmp/certificates", "`DIR` of tls.crt and tls.key; with --certificates=managed a scratch directory")
	fs.StringVar(&f.rotation.namespace, "namespace", "guestprobe-system", "the injector's own `NAMESPACE`")
	fs.StringVar(&f.rotation.service, "service", "guestprobe-injector", "`NAME` of the Service in front of the webhook")
	fs.StringVar(&f.rotation.webhook, "webhook", "guestprobe-injector", "`NAME` of the MutatingWebhookConfiguration")
	fs.StringVar(&f.rotation.secret, "secret", "guestprobe-injector-tls", "`NAME` of the Secret with the managed certificates; it must exist, and may be empty")
	fs.DurationVar(&f.rotation.lifetime, "certificate-lifetime", 365*24*time.Hour, "`DURATION` that a managed certificate is valid")
	fs.DurationVar(&f.rotation.renewBefore, "certificate-renew-before", 90*24*time.Hour, "how long before its end a managed certificate is renewed")
	fs.DurationVar(&f.rotation.interval, "certificate-check-interval", time.Hour, "how often managed certificates are looked at")
	fs.DurationVar(&f.shutdownDelay, "shutdown-delay", 5*time.Second, "after the first signal, go on serving for this `DURATION`, unready: the API server may not have heard yet")
	f.log.Register(fs, "json", "info")
}

func serveCommand(ctx context.Context, e cli.Env) error {
	fs := cli.NewFlags("guestprobe-injector serve", "--image IMAGE [FLAGS]")
	var sidecar sidecarFlags
	var f serveFlags
	sidecar.register(fs)
	f.register(fs)
	if done, err := cli.Parse(fs, e); done || err != nil {
		return err
	}
	defer cli.DetachLog(&e)()
	log, err := f.log.Logger(e.Stderr)
	if err != nil {
		return err
	}
	cfg, err := sidecar.config()
	if err != nil {
		return err
	}
	if err := f.validate(); err != nil {
		return cli.Usage(err)
	}
	api, err := clientcmd.BuildConfigFromFlags("", f.kubeconfig)
	if err != nil {
		return cli.Usagef("finding the API server: %w", err)
	}
	// No limit of the client's own: when a node's VMs all start anew, a look-up that queued here would be given up, and the
	// VM get less than it could. The API server has its own limits, and two requests for a pod are few.
	api.UserAgent, api.QPS = "guestprobe-injector/"+cli.Version(), -1
	// Both libraries log to a logger of the process's own.
	logger := logr.FromSlogHandler(log.Handler())
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	return serve(ctx, &f, cfg, api, ctrlmetrics.Registry, log)
}

func (f *serveFlags) validate() error {
	switch {
	case f.certificates != "managed" && f.certificates != "mounted":
		return fmt.Errorf("--certificates: %q is neither managed nor mounted", f.certificates)
	case f.port < 1 || f.port > 65535:
		return fmt.Errorf("--webhook-port: %d is not between 1 and 65535", f.port)
	case f.shutdownDelay < 0:
		return fmt.Errorf("--shutdown-delay: %v is negative", f.shutdownDelay)
	case f.rotation.interval <= 0:
		return fmt.Errorf("--certificate-check-interval: %v is not positive", f.rotation.interval)
	case f.rotation.renewBefore <= 0 || f.rotation.renewBefore >= f.rotation.lifetime:
		return fmt.Errorf("--certificate-renew-before: %v is not between 0 and the lifetime, %v", f.rotation.renewBefore, f.rotation.lifetime)
	}
	return nil
}

// serve wires the webhook to the API server and runs until ctx is done, and a while longer.
func serve(ctx context.Context, f *serveFlags, cfg *inject.Config, api *rest.Config, reg prometheus.Registerer, log *slog.Logger) error {
	if err := checkVersion(api); err != nil {
		return err
	}
	store := &certStore{}
	mgr, err := newManager(f, api, store)
	if err != nil {
		return err
	}
	m, err := newMetrics(reg, store.expiry)
	if err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	dyn, err := dynamic.NewForConfig(api)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	var ready <-chan struct{}
	if f.certificates == "managed" {
		if err := os.MkdirAll(f.certDir, 0o700); err != nil {
			return err
		}
		if ready, err = manageCertificates(mgr, store, f.rotation, f.certDir, log); err != nil {
			return err
		}
	} else if err := mountedCertificates(mgr, store, f.certDir); err != nil {
		return err
	}
	mgr.GetWebhookServer().Register(webhookPath, &webhook{cfg: cfg, lookup: &lookup{client: dyn}, metrics: m, log: log})
	if err := addChecks(ctx, mgr, store, ready); err != nil {
		return err
	}
	// The manager stops its servers at once. They go on for a while, because the Service's endpoints lag behind, and a
	// review that finds no server leaves a VM without its sidecar.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	after := context.AfterFunc(ctx, func() {
		log.Info("stopping", "after", f.shutdownDelay)
		time.AfterFunc(f.shutdownDelay, stop)
	})
	defer after()
	log.Info("starting", "version", cli.Version(), "image", cfg.Image, "ipv6", cfg.IPv6, "refuseBroken", cfg.RefuseBroken)
	if err := mgr.Start(serving); err != nil {
		return fmt.Errorf("serving: %w", err)
	}
	return nil
}

// newManager makes the manager. It knows its few kinds by itself, so that nothing depends on the API server's discovery,
// and watches one Secret.
func newManager(f *serveFlags, api *rest.Config, store *certStore) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), admissionregistrationv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	secret := cache.ByObject{
		Namespaces: map[string]cache.Config{f.rotation.namespace: {}},
		Field:      fields.OneTermEqualSelector("metadata.name", f.rotation.secret),
	}
	grace := 10 * time.Second
	mgr, err := ctrl.NewManager(api, ctrl.Options{
		Scheme: scheme,
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
			mapper := meta.NewDefaultRESTMapper(nil)
			mapper.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)
			mapper.Add(admissionregistrationv1.SchemeGroupVersion.WithKind("MutatingWebhookConfiguration"), meta.RESTScopeRoot)
			return mapper, nil
		},
		Cache:                   cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.Secret{}: secret}},
		Metrics:                 metricsserver.Options{BindAddress: f.metrics},
		HealthProbeBindAddress:  f.healthAddr,
		GracefulShutdownTimeout: &grace,
		WebhookServer: ctrlwebhook.NewServer(ctrlwebhook.Options{Port: f.port, TLSOpts: []func(*tls.Config){func(c *tls.Config) {
			c.MinVersion = tls.VersionTLS12
			c.GetCertificate = store.get
		}}}),
	})
	if err != nil {
		return nil, fmt.Errorf("making the manager: %w", err)
	}
	return mgr, nil
}

// addChecks adds what /healthz and /readyz ask.
func addChecks(ctx context.Context, mgr manager.Manager, store *certStore, ready <-chan struct{}) error {
	return errors.Join(
		mgr.AddHealthzCheck("ping", func(*http.Request) error { return nil }),
		mgr.AddReadyzCheck("certificate", store.check),
		mgr.AddReadyzCheck("webhook", func(r *http.Request) error {
			if err := store.check(r); err != nil {
				return err // the check below would only fail its handshake
			}
			return mgr.GetWebhookServer().StartedChecker()(r)
		}),
		mgr.AddReadyzCheck("authority", func(*http.Request) error {
			if ready == nil {
				return nil
			}
			select {
			case <-ready:
				return nil
			default:
				return errors.New("the webhook's configuration does not have the authority yet")
			}
		}),
		mgr.AddReadyzCheck("shutdown", func(*http.Request) error {
			if ctx.Err() != nil {
				return errors.New("shutting down")
			}
			return nil
		}),
	)
}

// minKubernetes is the first minor version of Kubernetes 1 with native sidecars on by default. An older API server
// drops restartPolicy from the init container, which then never ends: no VM would start.
const minKubernetes = 29

func checkVersion(api *rest.Config) error {
	client, err := discovery.NewDiscoveryClientForConfig(api)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	v, err := client.ServerVersion()
	if err != nil {
		return fmt.Errorf("asking the API server for its version: %w", err)
	}
	return nativeSidecars(v)
}

func nativeSidecars(v *version.Info) error {
	// Some distributions write the minor version as "29+".
	major, errMajor := strconv.Atoi(v.Major)
	minor, errMinor := strconv.Atoi(strings.TrimRight(v.Minor, "+"))
	if err := errors.Join(errMajor, errMinor); err != nil {
		return fmt.Errorf("the API server's version %q: %w", v.GitVersion, err)
	}
	if major == 1 && minor < minKubernetes {
		return fmt.Errorf("the API server is Kubernetes %s: without native sidecars (1.%d) an injected VM would never start", v.GitVersion, minKubernetes)
	}
	return nil
}
