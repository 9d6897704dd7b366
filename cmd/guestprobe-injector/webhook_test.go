package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/guestprobe/guestprobe/sidecar/inject"
)

const (
	vmiPath      = "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances/web"
	defaultsPath = "/api/v1/namespaces/shop/configmaps/guestprobe"
)

// testPod is a launcher pod with a readiness probe that asks the guest's agent.
func testPod(t *testing.T, annotations ...string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/pod.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if data, err = yaml.YAMLToJSON(data); err != nil {
		t.Fatal(err)
	}
	var pod map[string]any
	if err := json.Unmarshal(data, &pod); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(annotations); i += 2 {
		pod["metadata"].(map[string]any)["annotations"].(map[string]any)[annotations[i]] = annotations[i+1]
	}
	if data, err = json.Marshal(pod); err != nil {
		t.Fatal(err)
	}
	return data
}

func testReview(pod []byte, change func(*admissionv1.AdmissionRequest)) []byte {
	review := admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{UID: "42", Namespace: "shop", Operation: admissionv1.Create}}
	review.APIVersion, review.Kind = "admission.k8s.io/v1", "AdmissionReview"
	review.Request.Resource.Version, review.Request.Resource.Resource = "v1", "pods"
	review.Request.Object.Raw = pod
	if change != nil {
		change(review.Request)
	}
	data, _ := json.Marshal(review)
	return data
}

func newWebhook(t *testing.T, api *apiServer) (*webhook, *prometheus.Registry) {
	t.Helper()
	cfg := inject.DefaultConfig()
	cfg.Image = "registry.example/guestprobe:v1"
	reg := prometheus.NewPedanticRegistry()
	m, err := newMetrics(reg, func() time.Time { return time.Time{} })
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(api.config())
	if err != nil {
		t.Fatal(err)
	}
	return &webhook{cfg: &cfg, lookup: &lookup{client: client}, metrics: m, log: slog.New(slog.DiscardHandler)}, reg
}

func ask(t *testing.T, w *webhook, body []byte, query string) (*admissionv1.AdmissionResponse, *httptest.ResponseRecorder) {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, webhookPath+query, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json; charset=utf-8")
	rec := httptest.NewRecorder()
	w.ServeHTTP(rec, r)
	if rec.Code != http.StatusOK {
		return nil, rec
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(rec.Body.Bytes(), &review); err != nil {
		t.Fatal(err)
	}
	if review.Kind != "AdmissionReview" || review.Response == nil || review.Response.UID != "42" {
		t.Fatalf("no answer to the review: %s", rec.Body)
	}
	return review.Response, rec
}

func masquerade() map[string]any {
	return onPodNetwork(map[string]any{"masquerade": map[string]any{}, "ports": []any{map[string]any{"port": 80}}})
}

// onPodNetwork is a VMI with an interface of the given binding.
func onPodNetwork(iface map[string]any) map[string]any {
	iface["name"] = "default"
	return map[string]any{"spec": map[string]any{
		"networks": []any{map[string]any{"name": "default", "pod": map[string]any{}}},
		"domain":   map[string]any{"devices": map[string]any{"interfaces": []any{iface}}},
	}}
}

// TestReviews: whatever is sent, the pod is admitted, but for the one case in which refusing was asked for.
func TestReviews(t *testing.T) {
	tests := map[string]struct {
		pod      []byte
		request  func(*admissionv1.AdmissionRequest)
		vmi      map[string]any
		status   int // of the VMI
		defaults map[string]any
		refuse   bool

		want    string // the result as metrics have it
		patched []string
		warning string
	}{
		"injected": {vmi: masquerade(), want: resultInjected, patched: []string{"httpGet", "guestAgentPing"}},
		"VMI gone": {want: resultInjected, patched: []string{"guestAgentPing"}, warning: "VMI shop/web cannot be read: NotFound"},
		"VMI forbidden": {
			vmi: masquerade(), status: http.StatusForbidden, want: resultInjected, patched: []string{"--listen="}, warning: "VMI shop/web cannot be read: Forbidden",
		},
		"defaults": {
			vmi: masquerade(), defaults: map[string]any{"data": map[string]any{"probes": "livenessProbe: {guestAgentPing: {}}"}},
			want: resultInjected, patched: []string{"livez"},
		},
		"defaults of a wrong key": {
			vmi: masquerade(), defaults: map[string]any{"data": map[string]any{"probe": "x"}},
			want: resultInjected, warning: "unknown key probe",
		},
		"broken annotation": {
			pod: testPod(t, inject.AnnotationProbes, "livenessProbe: {httpGet: {}}"), vmi: masquerade(),
			want: resultInjected, warning: "livenessProbe.httpGet.port",
		},
		"broken annotation, strict": {
			pod: testPod(t, inject.AnnotationProbes, "livenessProbe: {httpGet: {}}"), vmi: masquerade(), refuse: true,
			want: resultRefused, warning: "livenessProbe.httpGet.port",
		},
		"opted out": {pod: testPod(t, inject.AnnotationInject, "false"), want: resultSkipped, warning: "VMI"},
		"opted out, VMI readable": {
			pod: testPod(t, inject.AnnotationInject, "false"), vmi: masquerade(), want: resultSkipped,
		},
		"temporary pod": {pod: testPod(t, "kubevirt.io/ephemeral-provisioning", "true"), want: resultSkipped},
		"no compute":    {pod: []byte(`{"metadata":{"labels":{"kubevirt.io":"virt-launcher"}},"spec":{"containers":[{"name":"a"}]}}`), want: resultSkipped},
		"unknown binding": {
			pod: testPod(t, inject.AnnotationProbes, "readinessProbe: {tcpSocket: {port: 22}}"), vmi: onPodNetwork(map[string]any{"binding": map[string]any{"name": "acme"}}),
			want: resultInjected, patched: []string{`"--listen="`}, warning: `nothing is known of the network binding "acme"`,
		},
		"defaults too large": {
			vmi: masquerade(), defaults: map[string]any{"data": map[string]any{"probes": "checks: [{name: a, kind: readiness, exec: {command: [" + strings.Repeat("a", 900<<10) + "]}}]"}},
			want: resultInjected, patched: []string{"guestAgentPing"}, warning: "too large",
		},
		"not a launcher":    {pod: []byte(`{"metadata":{"name":"a"}}`), want: resultSkipped},
		"not a pod's shape": {pod: []byte(`{"spec":[]}`), want: resultError, warning: "the pod cannot be read"},
		"no object":         {pod: []byte(`null`), want: resultError, warning: "the pod cannot be read"},
		"an update": {
			request: func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Update },
			want:    resultSkipped, warning: "not for UPDATE of pods",
		},
		"another resource": {
			request: func(r *admissionv1.AdmissionRequest) { r.Resource.Resource = "secrets" },
			want:    resultSkipped, warning: "not for CREATE of secrets",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			api := newAPIServer(t)
			if tt.vmi != nil {
				api.put(vmiPath, tt.vmi)
			}
			if tt.status != 0 {
				api.status[vmiPath] = tt.status
			}
			if tt.defaults != nil {
				api.put(defaultsPath, tt.defaults)
			}
			w, _ := newWebhook(t, api)
			w.cfg.RefuseBroken = tt.refuse
			pod := tt.pod
			if pod == nil {
				pod = testPod(t)
			}
			res, _ := ask(t, w, testReview(pod, tt.request), "?timeout=5s")
			if res.Allowed != (tt.want != resultRefused) {
				t.Errorf("allowed: %v", res.Allowed)
			}
			if got := testutil.ToFloat64(w.metrics.reviews.WithLabelValues(tt.want)); got != 1 {
				t.Errorf("result %s was counted %v times", tt.want, got)
			}
			said := strings.Join(res.Warnings, "\n")
			if res.Result != nil {
				said += res.Result.Message
			}
			if tt.warning == "" && said != "" || !strings.Contains(said, tt.warning) {
				t.Errorf("warnings %q, want one with %q", said, tt.warning)
			}
			if (res.Patch != nil) != (tt.want == resultInjected) || (res.Patch != nil) != (res.PatchType != nil) {
				t.Errorf("patch %s of type %v with result %s", res.Patch, res.PatchType, tt.want)
			}
			for _, want := range tt.patched {
				if !strings.Contains(string(res.Patch), want) {
					t.Errorf("the patch has no %s: %s", want, res.Patch)
				}
			}
		})
	}
}

// TestNoReview: what is no review gets an HTTP error, which is a failure of the webhook, and so never refuses a pod.
func TestNoReview(t *testing.T) {
	w, reg := newWebhook(t, newAPIServer(t))
	for _, tt := range []struct {
		body   string
		status int
		text   string
	}{
		{``, http.StatusBadRequest, "no AdmissionReview"},
		{`hello`, http.StatusBadRequest, "no AdmissionReview"},
		{`{}`, http.StatusBadRequest, `kind "" of ""`},
		{`{"apiVersion":"v1","kind":"Pod"}`, http.StatusBadRequest, `kind "Pod"`},
		{`{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"1"}}`, http.StatusBadRequest, "v1beta1"},
		{`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, http.StatusBadRequest, "no request"},
		{strings.Repeat(" ", maxReview+1), http.StatusRequestEntityTooLarge, "larger"},
	} {
		if _, rec := ask(t, w, []byte(tt.body), ""); rec.Code != tt.status || !strings.Contains(rec.Body.String(), tt.text) {
			t.Errorf("%.40q: %d %s, want %d with %q", tt.body, rec.Code, rec.Body, tt.status, tt.text)
		}
	}
	get := httptest.NewRecorder()
	w.ServeHTTP(get, httptest.NewRequest(http.MethodGet, webhookPath, nil))
	plain := httptest.NewRecorder()
	w.ServeHTTP(plain, httptest.NewRequest(http.MethodPost, webhookPath, strings.NewReader("{}")))
	if got := [2]int{get.Code, plain.Code}; got != [2]int{http.StatusMethodNotAllowed, http.StatusUnsupportedMediaType} {
		t.Errorf("GET and a POST without content type: %v", got)
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v %v", problems, err)
	}
	if n, err := testutil.GatherAndCount(reg, metricReviews, metricLookups, metricDuration, metricWarnings, metricExpiry, metricInfo); err != nil || n != 11 {
		t.Errorf("%d series, %v", n, err)
	}
}

// TestSlowAPIServer: a look-up that hangs costs a part of the time, not the answer.
func TestSlowAPIServer(t *testing.T) {
	api := newAPIServer(t)
	api.hang = make(chan struct{})
	defer close(api.hang)
	w, _ := newWebhook(t, api)
	started := time.Now()
	res, _ := ask(t, w, testReview(testPod(t), nil), "?timeout=2s")
	if took := time.Since(started); took > 1500*time.Millisecond {
		t.Errorf("answered after %v of 2s", took)
	}
	if !res.Allowed || res.Patch == nil || !strings.Contains(strings.Join(res.Warnings, "\n"), "did not answer in time") {
		t.Errorf("answer: %+v", res)
	}
}

// TestReinvocation: asked again after another webhook has changed the pod, the injector leaves its own work as it is.
func TestReinvocation(t *testing.T) {
	api := newAPIServer(t)
	api.put(vmiPath, masquerade())
	w, _ := newWebhook(t, api)
	pod := testPod(t, inject.AnnotationProbes, "livenessProbe: {guestAgentPing: {}}")
	for _, change := range []string{
		`[]`,
		`[{"op":"add","path":"/spec/containers/-","value":{"name":"istio-proxy"}},{"op":"add","path":"/metadata/annotations/sidecar.istio.io~1status","value":"{}"}]`,
		`[{"op":"add","path":"/spec/initContainers/0","value":{"name":"istio-init"}},{"op":"add","path":"/spec/containers/0","value":{"name":"first"}}]`,
		`[{"op":"add","path":"/spec/initContainers/-","value":{"name":"istio-proxy","restartPolicy":"Always"}}]`,
	} {
		res, _ := ask(t, w, testReview(pod, nil), "")
		changed := applyPatch(t, applyPatch(t, pod, res.Patch), []byte(change))
		if again, _ := ask(t, w, testReview(changed, nil), ""); !again.Allowed || again.Patch != nil || len(again.Warnings) > 0 {
			t.Errorf("after %s: %+v", change, again)
		}
	}
	if n := testutil.ToFloat64(w.metrics.reviews.WithLabelValues(resultSkipped)); n != 4 {
		t.Errorf("%v of 4 were left as they are", n)
	}
}

func applyPatch(t *testing.T, doc, patch []byte) []byte {
	t.Helper()
	decoded, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatal(err)
	}
	if doc, err = decoded.Apply(doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// TestCertificateCheck: an injector whose certificate has ended takes itself out of the Service, where it would only cost
// the API server a failed handshake; until then it serves.
func TestCertificateCheck(t *testing.T) {
	store := &certStore{}
	for _, tt := range []struct {
		expiry time.Duration // from now on; 0: no certificate
		want   string
	}{{0, "no certificate yet"}, {-time.Minute, "expired on"}, {time.Minute, ""}, {time.Hour, ""}} {
		if tt.expiry != 0 {
			store.current.Store(&tls.Certificate{Leaf: &x509.Certificate{NotAfter: time.Now().Add(tt.expiry)}})
		}
		err := store.check(nil)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v, want %q", tt.expiry, err, tt.want)
		}
	}
}

// TestPanic: a fault of ours is no fault of the VM.
func TestPanic(t *testing.T) {
	w, _ := newWebhook(t, newAPIServer(t))
	w.cfg = nil
	res, _ := ask(t, w, testReview(testPod(t), nil), "")
	if !res.Allowed || res.Patch != nil || testutil.ToFloat64(w.metrics.reviews.WithLabelValues(resultError)) != 1 {
		t.Errorf("answer: %+v", res)
	}
}

func TestDeadline(t *testing.T) {
	got := map[string]time.Duration{}
	for _, query := range []string{"", "?timeout=5s", "?timeout=1s", "?timeout=x", "?timeout=-3s", "?timeout=30s"} {
		got[query] = deadline(httptest.NewRequest(http.MethodPost, "/"+query, nil))
	}
	want := map[string]time.Duration{
		"": 4 * time.Second, "?timeout=5s": 4 * time.Second, "?timeout=1s": time.Second / 2, "?timeout=x": 4 * time.Second,
		"?timeout=-3s": 4 * time.Second, "?timeout=30s": 29 * time.Second,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
