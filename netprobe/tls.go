package netprobe

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// maxFile bounds a CA, certificate or key file in bytes.
const maxFile = 1 << 20

// TLS says how a probe speaks TLS. The zero value, like a nil *TLS, accepts every certificate and
// offers none, as the kubelet does. Files are looked at before each attempt and read again when
// they changed; while a changed file cannot be used, the last good one stays in use, since
// certificates and keys are seldom replaced in one step.
type TLS struct {
	// Verify checks the server's chain, dates and name.
	Verify bool
	// CAFile is a PEM file with the authorities to trust; "" means the system's.
	CAFile string
	// ServerName is the name to send and to verify; "" means the host of the URL.
	ServerName string
	// CertFile and KeyFile are the PEM files of the client certificate; both or neither.
	CertFile, KeyFile string
}

// A fileError says that one of our own files cannot be used.
type fileError struct{ err error }

func (e *fileError) Error() string { return e.err.Error() }
func (e *fileError) Unwrap() error { return e.err }

// A tlsState is a configuration and the versions of the files it came from.
type tlsState struct {
	config *tls.Config
	files  [3]fileVersion
}

// A fileVersion tells one version of a file from the next.
type fileVersion struct {
	info os.FileInfo
	size int64
	mod  time.Time
}

// same reports whether v and w are one version. Kubernetes replaces mounted secrets by switching
// a symbolic link, which shows as another file; editors show by size and time.
func (v fileVersion) same(w fileVersion) bool {
	if v.info == nil || w.info == nil {
		return v.info == nil && w.info == nil
	}
	return os.SameFile(v.info, w.info) && v.size == w.size && v.mod.Equal(w.mod)
}

// load returns last if it is still good, or else a new state. A nil t is the zero TLS.
func (t *TLS) load(last *tlsState) (*tlsState, error) {
	if t == nil {
		t = &TLS{}
	}
	versions := [3]fileVersion{}
	for i, name := range []string{t.CAFile, t.CertFile, t.KeyFile} {
		if name == "" {
			continue
		}
		if info, err := os.Stat(name); err == nil {
			versions[i] = fileVersion{info, info.Size(), info.ModTime()}
		}
	}
	if last != nil && versions[0].same(last.files[0]) && versions[1].same(last.files[1]) && versions[2].same(last.files[2]) {
		return last, nil
	}
	config, err := t.config()
	if err != nil {
		if last != nil {
			return last, nil
		}
		return nil, &fileError{err}
	}
	return &tlsState{config, versions}, nil
}

// config reads the files and makes a configuration of them.
func (t *TLS) config() (*tls.Config, error) {
	c := &tls.Config{
		InsecureSkipVerify: !t.Verify,
		ServerName:         t.ServerName,
	}
	if t.Verify && t.CAFile != "" {
		pem, err := readFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading CA file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("reading CA file %s: no PEM certificate in it", t.CAFile)
		}
	}
	var own tls.Certificate
	if t.CertFile != "" || t.KeyFile != "" {
		certificate, err := readFile(t.CertFile)
		if err != nil {
			return nil, fmt.Errorf("reading certificate file: %w", err)
		}
		key, err := readFile(t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("reading key file: %w", err)
		}
		if own, err = tls.X509KeyPair(certificate, key); err != nil {
			return nil, fmt.Errorf("using %s with %s: %w", t.CertFile, t.KeyFile, err)
		}
	}
	// A callback instead of Certificates: it also tells that the server asked at all.
	c.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		a := attemptOf(info.Context())
		a.asked.Store(true)
		a.offered.Store(len(own.Certificate) > 0)
		return &own, nil
	}
	return c, nil
}

// readFile is os.ReadFile with a bound.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = &os.PathError{Op: "read", Path: name, Err: errors.New("larger than 1 MiB")}
	}
	return data, err
}
