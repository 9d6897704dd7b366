package netprobe

// maxText bounds the text of a failure in bytes. The kubelet has no bound of its own, but its
// events are cut at 1024 bytes.
const maxText = 4096

// A Warning is a success with a remark: the kubelet counts it as a success and records a
// ProbeWarning event. The only source is an HTTP status from 300 to 399 that was left after
// redirects.
type Warning struct {
	// Text is the kubelet's own text, with at most 10 KiB of the response's body.
	Text string
}

// Error returns w.Text.
func (w *Warning) Error() string { return w.Text }

// An Indeterminate error says that the attempt told nothing about the guest: the request could
// not be built, the body of a response broke off, or the caller cancelled the context. The
// kubelet repeats such an attempt at once, up to three times in all, and then counts nothing.
type Indeterminate struct {
	// Err is the reason and never nil.
	Err error
}

// Error returns the text of i.Err.
func (i *Indeterminate) Error() string { return i.Err.Error() }

// Unwrap returns i.Err.
func (i *Indeterminate) Unwrap() error { return i.Err }

// A Failure is a failed probe, the only outcome that counts against a failure threshold.
type Failure struct {
	// Cause says in one word what went wrong, from a closed set.
	Cause Cause
	// Text is what the kubelet would put into its Unhealthy event, at most 4 KiB.
	Text string
	// Err is the error below, where there is one.
	Err error
}

// Error returns f.Text.
func (f *Failure) Error() string { return f.Text }

// Unwrap returns f.Err.
func (f *Failure) Unwrap() error { return f.Err }

// failure makes a Failure with a bounded text.
func failure(cause Cause, text string, err error) *Failure {
	if len(text) > maxText {
		text = text[:maxText] + "…"
	}
	return &Failure{Cause: cause, Text: text, Err: err}
}
