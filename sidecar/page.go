package sidecar

import (
	"crypto/sha256"
	_ "embed" // for the page
	"encoding/base64"
	"io"
	"net/http"
	"strings"
)

//go:embed page.html
var pageHTML string

// servePage serves the page for people: one self-contained document that shows /status and nothing from elsewhere.
// Its policy lets the browser run the page's own script and ask this server, and nothing else.
func servePage() http.HandlerFunc {
	_, rest, _ := strings.Cut(pageHTML, "<script>")
	script, _, _ := strings.Cut(rest, "</script>")
	hash := sha256.Sum256([]byte(script))
	policy := "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; script-src 'sha256-" +
		base64.StdEncoding.EncodeToString(hash[:]) + "'"
	return func(w http.ResponseWriter, _ *http.Request) {
		setHeaders(w, "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", policy)
		_, _ = io.WriteString(w, pageHTML) // if the client has gone, there is nobody to tell
	}
}
