package collect

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// A target is one sidecar.
type target struct {
	uid             string // of its pod
	namespace, name string // of its VM
	socket          string // path of its socket
	modified        time.Time
}

// maxName bounds what is read of an info file; a name in Kubernetes has 253 characters at most.
const maxName = 1 << 10

// A finder reads the kubelet's folders.
type finder struct {
	podsDir, podLogsDir string
	name                *regexp.Regexp
}

func newFinder(podsDir, podLogsDir string) *finder {
	return &finder{podsDir: podsDir, podLogsDir: podLogsDir, name: regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)}
}

// find returns the sidecars there are. Of two pods of one VM, as around a restart, the one whose socket is newer counts.
// The error is about the folders as a whole; a pod that is half there is passed over.
func (f *finder) find() (map[string]target, error) {
	root, err := os.OpenRoot(f.podsDir)
	if err != nil {
		return nil, fmt.Errorf("opening the folder of pods: %w", err)
	}
	defer root.Close()
	namespaces, err := f.namespaces()
	if err != nil {
		return nil, err
	}
	pods, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("reading the folder of pods: %w", err)
	}
	found := map[string]target{}
	for _, pod := range pods {
		t, ok := f.target(root, pod.Name(), namespaces)
		if !ok {
			continue
		}
		key := t.namespace + "/" + t.name
		if other, twice := found[key]; twice && other.modified.After(t.modified) {
			continue
		}
		found[key] = t
	}
	return found, nil
}

// target looks at one pod. Links are followed within the folder of pods only, as the kubelet's own volumes have them.
func (f *finder) target(root *os.Root, uid string, namespaces map[string]string) (target, bool) {
	volumes := filepath.Join(uid, "volumes")
	socket := filepath.Join(volumes, "kubernetes.io~empty-dir", VolumeRun, SocketFile)
	info, err := root.Lstat(socket)
	if err != nil || info.Mode()&fs.ModeSocket == 0 {
		return target{}, false
	}
	infoDir := filepath.Join(volumes, "kubernetes.io~downward-api", VolumeInfo)
	t := target{uid: uid, socket: filepath.Join(f.podsDir, socket), modified: info.ModTime()}
	t.name = f.read(root, filepath.Join(infoDir, InfoVM))
	if f.podLogsDir == "" {
		t.namespace = f.read(root, filepath.Join(infoDir, InfoNamespace))
	} else {
		t.namespace = namespaces[uid]
	}
	return t, t.name != "" && t.namespace != ""
}

// read returns the name in a file; "" if there is none that could be one.
func (f *finder) read(root *os.Root, name string) string {
	file, err := root.Open(name)
	if err != nil {
		return ""
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxName))
	if err != nil || !f.name.Match(data) {
		return ""
	}
	return string(data)
}

// namespaces returns the namespace of each pod's UID, from the folders' names: NAMESPACE_POD_UID (kubelet,
// pkg/kubelet/kuberuntime/helpers.go).
func (f *finder) namespaces() (map[string]string, error) {
	if f.podLogsDir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(f.podLogsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the folder of pods' logs: %w", err)
	}
	namespaces := make(map[string]string, len(entries))
	for _, e := range entries {
		// No name in Kubernetes has an underscore.
		if parts := strings.Split(e.Name(), "_"); len(parts) == 3 {
			namespaces[parts[2]] = parts[0]
		}
	}
	return namespaces, nil
}
