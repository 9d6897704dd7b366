package netprobe

import (
	"net/textproto"
	"net/url"
	"strings"
	"testing"
)

// FuzzURL checks that no path can change where a probe goes, and that what is built can be sent
// or is refused.
func FuzzURL(f *testing.F) {
	for _, c := range loadCases(f) {
		for _, tc := range c.URL {
			f.Add(tc.Scheme, tc.Host, tc.Port, tc.Path)
		}
	}
	f.Add("HTTPS", "fe80::1%eth0", 443, "mailto:x")
	f.Add("HTTP", "a b", 80, "\x7f")
	f.Fuzz(func(t *testing.T, scheme, host string, port int, path string) {
		u := probeURL(scheme, host, port, path)
		if u.Host != hostPort(host, port) {
			t.Errorf("path %q moved the probe to %q", path, u.Host)
		}
		if want := strings.ToLower(scheme); u.Scheme != want && (want != "" || u.Scheme != "http") {
			t.Errorf("path %q changed the scheme %q to %q", path, scheme, u.Scheme)
		}
		req, err := (&HTTPGet{Scheme: scheme, Host: host, Port: port, Path: path}).request()
		if err != nil {
			return
		}
		// Opaque URLs have no host, and net/http refuses to send those.
		if req.URL.Opaque == "" && u.User == nil {
			again, err := url.Parse(u.String())
			if err != nil || again.Host != req.URL.Host {
				t.Errorf("path %q: host %q of the request, %v of the URL (%v)", path, req.URL.Host, again, err)
			}
		}
	})
}

// FuzzHeader checks that no header is lost or invented, and that the kubelet's rules for
// User-Agent and Accept hold for any of them.
func FuzzHeader(f *testing.F) {
	f.Add("Host", "example.org", "host", "")
	f.Add("user-agent", "", "Accept", "")
	f.Add("accept", "", "Accept", "text/html")
	f.Add("X-A\r\nX-B", "1\r\n\r\n", "\x00", "\xff")
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2 string) {
		headers := []Header{{name1, value1}, {name2, value2}}
		converted := httpHeader(headers)
		want := map[string][]string{}
		for _, h := range headers {
			key := textproto.CanonicalMIMEHeaderKey(h.Name)
			want[key] = append(want[key], h.Value)
		}
		if len(converted) != len(want) {
			t.Fatalf("got %v, want %v", converted, want)
		}
		for key, values := range want {
			if strings.Join(converted[key], "\n") != strings.Join(values, "\n") {
				t.Errorf("%s: got %q, want %q", key, converted[key], values)
			}
		}
		req, err := (&HTTPGet{Host: "h", Port: 1, Headers: headers}).request()
		if err != nil {
			t.Fatal(err)
		}
		if values, ok := want["User-Agent"]; ok && req.Header.Get("User-Agent") != values[0] {
			t.Errorf("User-Agent %q, want %q", req.Header.Get("User-Agent"), values[0])
		}
		if values, ok := want["Accept"]; ok && values[0] == "" && req.Header["Accept"] != nil {
			t.Errorf("Accept %q, want none", req.Header["Accept"])
		}
		if values, ok := want["Host"]; ok && req.Host != values[0] {
			t.Errorf("host %q, want %q", req.Host, values[0])
		}
	})
}

// FuzzHealth checks that a decoded health answer survives its own encoding.
func FuzzHealth(f *testing.F) {
	f.Add([]byte{1 << 3, 1})
	f.Add([]byte{2<<3 | wireBytes, 3, 'a', 'b', 'c', 1 << 3, 2})
	f.Add([]byte{1<<3 | wireFixed64, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, message []byte) {
		status, err := parseHealth(message)
		if err != nil {
			return
		}
		again, err := parseHealth(append(append([]byte(nil), message...), 1<<3, byte(statusServing)))
		if err != nil || again != statusServing {
			t.Errorf("%q with one more field: %v, %v", message, again, err)
		}
		if status.String() == "" {
			t.Errorf("status %d has no name", int32(status))
		}
	})
}

// FuzzUnescape checks that escaping and unescaping a status message gives it back.
func FuzzUnescape(f *testing.F) {
	f.Add("no %C3%A9 100%")
	f.Fuzz(func(t *testing.T, s string) {
		if got := unescape(url.PathEscape(s)); got != s {
			t.Errorf("%q came back as %q", s, got)
		}
		if len(unescape(s)) > len(s) {
			t.Errorf("%q grew", s)
		}
	})
}
