package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"runtime/debug"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/guestprobe/guestprobe/sidecar/inject"
)

const (
	// maxReview is above the API server's own limit of 3 MiB for a request, which a review wraps.
	maxReview = 8 << 20
	// defaultDeadline is for a review that does not say how long the API server waits.
	defaultDeadline = 5 * time.Second
	// answerMargin is kept for the answer: a late answer is none.
	answerMargin = time.Second
	// lookupShare bounds the look-ups: a slow API server must not cost the whole answer.
	lookupShare = 2 * time.Second
)

// A webhook answers admission reviews. Every pod is admitted, but for one with a broken annotation where that is asked
// for; whatever goes wrong becomes a warning.
type webhook struct {
	cfg     *inject.Config
	lookup  *lookup
	metrics *metrics
	log     *slog.Logger
}

// ServeHTTP answers one review. What is no review gets a plain HTTP error, which the API server takes as the webhook's
// failure, and failurePolicy decides.
func (w *webhook) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	started := time.Now()
	review, status, err := readReview(r)
	if err != nil {
		w.metrics.reviews.WithLabelValues(resultInvalid).Inc()
		w.log.Warn("no admission review", "err", err, "from", r.RemoteAddr)
		http.Error(rw, err.Error(), status)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), deadline(r))
	defer cancel()
	response, result := w.review(ctx, review.Request)
	response.UID = review.Request.UID
	w.metrics.reviews.WithLabelValues(result).Inc()
	w.metrics.warnings.Add(float64(len(response.Warnings)))
	w.metrics.duration.Observe(time.Since(started).Seconds())

	answer := admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response}
	rw.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(rw).Encode(answer); err != nil {
		w.log.Debug("the answer could not be sent", "err", err)
	}
}

// readReview reads and checks the request; status is the HTTP status of its error.
func readReview(r *http.Request) (_ *admissionv1.AdmissionReview, status int, err error) {
	if r.Method != http.MethodPost {
		return nil, http.StatusMethodNotAllowed, fmt.Errorf("%s: this is a webhook, which is sent admission reviews by POST", r.Method)
	}
	if mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mediaType != "application/json" {
		return nil, http.StatusUnsupportedMediaType, fmt.Errorf("content type %q is not application/json", r.Header.Get("Content-Type"))
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxReview+1))
	if err != nil {
		return nil, http.StatusBadRequest, fmt.Errorf("reading the review: %w", err)
	}
	if len(body) > maxReview {
		return nil, http.StatusRequestEntityTooLarge, fmt.Errorf("the review is larger than %d bytes", maxReview)
	}
	review := &admissionv1.AdmissionReview{}
	if err := json.Unmarshal(body, review); err != nil {
		return nil, http.StatusBadRequest, fmt.Errorf("no AdmissionReview: %w", err)
	}
	if want := admissionv1.SchemeGroupVersion.String(); review.Kind != "AdmissionReview" || review.APIVersion != want {
		return nil, http.StatusBadRequest, fmt.Errorf("kind %q of %q is not an AdmissionReview of %s", review.Kind, review.APIVersion, want)
	}
	if review.Request == nil || review.Request.UID == "" {
		return nil, http.StatusBadRequest, errors.New("the AdmissionReview has no request")
	}
	return review, 0, nil
}

// deadline is how long the API server waits, less what the answer takes; it says so in the query.
func deadline(r *http.Request) time.Duration {
	wait, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || wait <= 0 {
		wait = defaultDeadline
	}
	return max(wait-answerMargin, wait/2)
}

// review decides. A panic is an error like any other: the VM starts without the sidecar.
func (w *webhook) review(ctx context.Context, req *admissionv1.AdmissionRequest) (response *admissionv1.AdmissionResponse, result string) {
	defer func() {
		if p := recover(); p != nil {
			w.log.Error("panic in a review", "panic", p, "stack", string(debug.Stack()))
			response, result = admit("not injected: the injector failed on this pod; its log says how"), resultError
		}
	}()
	if req.Operation != admissionv1.Create || req.Resource.Resource != "pods" || req.Resource.Group != "" || req.SubResource != "" {
		return admit(fmt.Sprintf("not injected: the webhook is for the creation of pods, not for %s of %s", req.Operation, req.Resource.Resource)), resultSkipped
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(req.Object.Raw, pod); err != nil {
		return admit(fmt.Sprintf("not injected: the pod cannot be read: %v", err)), resultError
	}
	in := inject.Input{Pod: pod, Namespace: req.Namespace}
	name := inject.VMIName(pod)
	if name != "" {
		lookupCtx, cancel := context.WithTimeout(ctx, lookupShare)
		found := w.lookup.find(lookupCtx, req.Namespace, name)
		cancel()
		in.VMI, in.Defaults, in.Warnings = found.vmi, found.defaults, found.warnings
		for object, err := range found.failures {
			w.metrics.lookups.WithLabelValues(object).Inc()
			w.log.Warn("look-up failed", "object", object, "namespace", req.Namespace, "vmi", name, "err", err)
		}
	}
	return w.decide(in, name)
}

// decide turns Inject's result into an answer, and logs what became of the pod.
func (w *webhook) decide(in inject.Input, name string) (*admissionv1.AdmissionResponse, string) {
	log := w.log.With("namespace", in.Namespace, "vmi", name)
	res, err := inject.Inject(in, w.cfg)
	switch {
	case errors.Is(err, inject.ErrBroken):
		log.Info("refused", "err", err)
		return &admissionv1.AdmissionResponse{Warnings: prefixed(in.Warnings), Result: &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
			Message: "guestprobe: " + err.Error(),
		}}, resultRefused
	case err != nil:
		log.Error("not injected", "err", err)
		return admit(append(in.Warnings, "not injected: "+err.Error())...), resultError
	}
	response := admit(res.Warnings...)
	if res.Skipped != "" {
		log.Debug("left as it is", "why", res.Skipped)
		return response, resultSkipped
	}
	if response.Patch, err = json.Marshal(res.Patch); err != nil {
		log.Error("not injected", "err", err)
		return admit(append(in.Warnings, "not injected: "+err.Error())...), resultError
	}
	patchType := admissionv1.PatchTypeJSONPatch
	response.PatchType = &patchType
	log.Info("injected", "warnings", response.Warnings)
	return response, resultInjected
}

// admit lets the pod pass.
func admit(warnings ...string) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Allowed: true, Warnings: prefixed(warnings)}
}

// prefixed says whose the warnings are: kubectl shows those of all webhooks in one heap.
func prefixed(warnings []string) []string {
	said := make([]string, len(warnings))
	for i, warning := range warnings {
		said[i] = "guestprobe: " + warning
	}
	return said
}
