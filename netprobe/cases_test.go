package netprobe

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
)

// cases is the part of kubelet-cases.json that concerns this package.
type cases struct {
	Kinds   map[string]string `json:"http_server_kinds"`
	HTTP    []httpCase        `json:"http"`
	URL     []urlCase         `json:"http_url"`
	Headers []headerCase      `json:"http_header_conversion"`
	TCP     []tcpCase         `json:"tcp"`
	GRPC    []grpcCase        `json:"grpc"`
}

type httpCase struct {
	Name    string
	Request struct {
		Path, Scheme string
		Headers      []Header
	}
	Server   serverSpec
	Timeout  int  `json:"timeout_ms"`
	Follow   bool `json:"follow_non_local_redirects"`
	Protocol string
	Expect   struct {
		Result         string
		ProbeError     bool     `json:"probe_error"`
		Contains       string   `json:"output_contains"`
		NotContains    string   `json:"output_not_contains"`
		Equals         *string  `json:"output_equals"`
		NotEqual       *string  `json:"output_not_equal"`
		Len            *int     `json:"output_len"`
		RequestLine    string   `json:"request_line"`
		RequestHeaders []string `json:"request_headers"`
		RequestsSeen   int      `json:"requests_seen"`
		ProtoSeen      string   `json:"proto_seen"`
	}
}

type urlCase struct {
	Name, Scheme, Host string
	Port               int
	Path, URL          string
	RequestURI         string `json:"request_uri"`
}

type headerCase struct {
	Name    string
	Headers []Header
	Want    map[string][]string
}

type tcpCase struct {
	Name, Target string
	Timeout      int `json:"timeout_ms"`
	Expect       struct {
		Result     string
		Contains   string `json:"output_contains"`
		ProbeError bool   `json:"probe_error"`
	}
}

type grpcCase struct {
	Name, Server, Mode string
	Timeout            int `json:"timeout_ms"`
	Expect             struct {
		Result, Output string
		ProbeError     bool `json:"probe_error"`
	}
}

// loadCases reads the golden data, and where another copy lies beside the repository, those of its
// cases that are not the same.
func loadCases(t testing.TB) map[string]cases {
	t.Helper()
	golden := readCases(t, filepath.Join("testdata", "kubelet-cases.json"))
	if len(golden.HTTP) == 0 || len(golden.URL) == 0 || len(golden.Headers) == 0 || len(golden.TCP) == 0 || len(golden.GRPC) == 0 {
		t.Fatal("a section of the golden data is empty")
	}
	all := map[string]cases{"golden": golden}
	other := filepath.Join("..", "..", "shared", "cases", "kubelet-cases.json")
	if _, err := os.Stat(other); err != nil {
		return all
	}
	more := readCases(t, other)
	more.HTTP = others(more.HTTP, golden.HTTP)
	more.URL = others(more.URL, golden.URL)
	more.Headers = others(more.Headers, golden.Headers)
	more.TCP = others(more.TCP, golden.TCP)
	more.GRPC = others(more.GRPC, golden.GRPC)
	all["more"] = more
	return all
}

func readCases(t testing.TB, file string) cases {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var c cases
	if err := json.Unmarshal(data, &c); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return c
}

// others returns those of list that are not in known.
func others[T any](list, known []T) []T {
	var rest []T
	for _, c := range list {
		if !slices.ContainsFunc(known, func(k T) bool { return reflect.DeepEqual(c, k) }) {
			rest = append(rest, c)
		}
	}
	return rest
}

// outcome names what err means in the words of the cases.
func outcome(t testing.TB, err error) (result string, probeError bool, text string) {
	t.Helper()
	var (
		w *Warning
		i *Indeterminate
		f *Failure
	)
	switch {
	case err == nil:
		return "success", false, ""
	case errors.As(err, &w):
		return "warning", false, w.Text
	case errors.As(err, &i):
		return "failure", true, i.Error()
	case errors.As(err, &f):
		return "failure", false, f.Text
	}
	t.Fatalf("error of no type of ours: %T %v", err, err)
	return "", false, ""
}
