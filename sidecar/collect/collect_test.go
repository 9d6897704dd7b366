package collect

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A node is the kubelet's folders of a node, with sidecars that answer as they are told.
type node struct {
	t          *testing.T
	pods, logs string
}

func newNode(t *testing.T) *node {
	n := &node{t: t, pods: filepath.Join(t.TempDir(), "pods"), logs: filepath.Join(t.TempDir(), "logs")}
	n.mkdir(n.pods)
	n.mkdir(n.logs)
	return n
}

func (n *node) mkdir(dir string) {
	n.t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) write(file, text string) {
	n.t.Helper()
	n.mkdir(filepath.Dir(file))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// pod makes the folders of a pod with the sidecar's volumes, laid out as the kubelet's, and returns that of the socket.
func (n *node) pod(uid, namespace, vm string) string {
	n.t.Helper()
	n.mkdir(filepath.Join(n.logs, namespace+"_virt-launcher-"+vm+"-x_"+uid))
	info := filepath.Join(n.pods, uid, "volumes/kubernetes.io~downward-api", VolumeInfo)
	n.write(filepath.Join(info, "..2026_1/vm"), vm)
	n.write(filepath.Join(info, "..2026_1/namespace"), "kube-system") // a pod may claim what it likes
	for link, to := range map[string]string{"..data": "..2026_1", "vm": "..data/vm", "namespace": "..data/namespace"} {
		if err := os.Symlink(to, filepath.Join(info, link)); err != nil {
			n.t.Fatal(err)
		}
	}
	run := filepath.Join(n.pods, uid, "volumes/kubernetes.io~empty-dir", VolumeRun)
	n.mkdir(run)
	return run
}

// listen opens a socket whose path may be longer than an address.
func listen(t *testing.T, dir string) *net.UnixListener {
	t.Helper()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), SocketFile)})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false) // as when the sidecar is killed
	return l
}

// sidecar answers /metrics with text until it is stopped.
func sidecar(t *testing.T, dir, text string) (stop func()) {
	t.Helper()
	l := listen(t, dir)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			fmt.Fprint(w, text)
		}
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	var stopped bool
	stop = func() {
		if !stopped {
			stopped = true
			server.Close()
			<-done
		}
	}
	t.Cleanup(stop)
	return stop
}

func newCollector(t *testing.T, n *node, timeout time.Duration) *Collector {
	t.Helper()
	c, err := New(Config{PodsDir: n.pods, PodLogsDir: n.logs, Node: "node-1", Listen: "127.0.0.1:0", Timeout: timeout, Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// scrape returns what is served after one more round.
func scrape(t *testing.T, c *Collector) string {
	t.Helper()
	if err := c.round(context.Background()); err != nil {
		t.Fatal(err)
	}
	return served(t, c)
}

func served(t *testing.T, c *Collector) string {
	t.Helper()
	rec := &recorder{header: http.Header{}}
	req, err := http.NewRequest(http.MethodGet, "/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Handler().ServeHTTP(rec, req)
	if rec.code != 0 && rec.code != http.StatusOK {
		t.Fatalf("%d %s", rec.code, rec.body.String())
	}
	return rec.body.String()
}

type recorder struct {
	header http.Header
	code   int
	body   strings.Builder
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(code int)        { r.code = code }
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }

func expect(t *testing.T, text string, want []string, not ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("no %s in:\n%s", w, text)
		}
	}
	for _, w := range not {
		if strings.Contains(text, w) {
			t.Errorf("%s in:\n%s", w, text)
		}
	}
}

const ready = "# HELP guestprobe_ready Whether.\n# TYPE guestprobe_ready gauge\nguestprobe_ready 1\n"

func TestTwoVMs(t *testing.T) {
	n := newNode(t)
	sidecar(t, n.pod("uid-a", "shop", "web"), ready+"# TYPE guestprobe_check_runs_total counter\nguestprobe_check_runs_total{check=\"a\",kind=\"readiness\"} 7 1000\n")
	sidecar(t, n.pod("uid-b", "shop", "db.one"), ready)
	n.mkdir(filepath.Join(n.pods, "uid-c/volumes")) // somebody else's pod
	c := newCollector(t, n, time.Second)
	text := scrape(t, c)
	expect(t, text, []string{
		`guestprobe_ready{name="web",namespace="shop",node="node-1"} 1`,
		`guestprobe_ready{name="db.one",namespace="shop",node="node-1"} 1`,
		`guestprobe_check_runs_total{check="a",kind="readiness",name="web",namespace="shop",node="node-1"} 7` + "\n",
		`guestprobe_collector_target_up{name="web",namespace="shop",node="node-1"} 1`,
		`guestprobe_collector_build_info{version="v1"} 1`,
	}, "kube-system")
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 1 { // the first sidecar gives no help for its counter
		t.Errorf("%v %v", problems, err)
	}
}

// TestComesAndGoes: a VM is there from its first answer to its last, and no longer.
func TestComesAndGoes(t *testing.T) {
	n := newNode(t)
	c := newCollector(t, n, time.Second)
	expect(t, scrape(t, c), []string{"guestprobe_collector_last_round_timestamp_seconds"}, "target_up")
	dir := n.pod("uid-a", "shop", "web")
	expect(t, scrape(t, c), nil, "target_up") // no socket yet
	stop := sidecar(t, dir, ready)
	expect(t, scrape(t, c), []string{"guestprobe_ready{"})
	stop()
	expect(t, scrape(t, c), []string{`target_up{name="web",namespace="shop",node="node-1"} 0`}, "guestprobe_ready{")
	if err := os.RemoveAll(filepath.Join(n.pods, "uid-a")); err != nil {
		t.Fatal(err)
	}
	expect(t, scrape(t, c), nil, "web")
}

// TestRestart: around a VM's restart two pods are there; the newer one speaks for it.
func TestRestart(t *testing.T) {
	n := newNode(t)
	old := n.pod("uid-old", "shop", "web")
	sidecar(t, old, "guestprobe_ready 0\n")
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(old, SocketFile), past, past); err != nil {
		t.Fatal(err)
	}
	sidecar(t, n.pod("uid-new", "shop", "web"), "guestprobe_ready 1\n")
	c := newCollector(t, n, time.Second)
	expect(t, scrape(t, c), []string{`guestprobe_ready{name="web",namespace="shop",node="node-1"} 1`}, `guestprobe_ready{name="web",namespace="shop",node="node-1"} 0`)
}

// TestHung: a sidecar that accepts and says nothing costs its own metrics; the scrape never waits for it.
func TestHung(t *testing.T) {
	n := newNode(t)
	hung := listen(t, n.pod("uid-a", "shop", "hung"))
	defer hung.Close()
	sidecar(t, n.pod("uid-b", "shop", "web"), ready)
	c := newCollector(t, n, 100*time.Millisecond)
	expect(t, scrape(t, c), []string{`guestprobe_ready{name="web"`, `target_up{name="hung",namespace="shop",node="node-1"} 0`}, `guestprobe_ready{name="hung"`)
	c.cfg.Timeout = time.Hour
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	conns := make(chan net.Conn)
	go func() {
		defer close(conns)
		for {
			conn, err := hung.Accept()
			if err != nil {
				return
			}
			conns <- conn
		}
	}()
	round := make(chan error, 1)
	go func() { round <- c.round(ctx) }()
	(<-conns).Close() // the backlog's, from the first round
	asked := <-conns
	expect(t, served(t, c), []string{`guestprobe_ready{name="web"`}) // while the second round hangs
	cancel()
	if err := <-round; err != nil {
		t.Error(err)
	}
	asked.Close()
	hung.Close()
	<-conns
}

// TestHostile: what a pod puts into its folder or says is held to be anything.
func TestHostile(t *testing.T) {
	n := newNode(t)
	sidecar(t, n.pod("uid-good", "shop", "web"), ready)

	// Names and series that are not its own.
	sidecar(t, n.pod("uid-pose", "evil", "pose"), ready+
		"guestprobe_live{namespace=\"shop\",name=\"web\",node=\"other\"} 0\nguestprobe_live{name=\"x\"} 1\n"+
		"guestprobe_collector_target_up{name=\"web\"} 0\nup 0\nprocess_open_fds 1\n"+
		"# TYPE guestprobe_started counter\nguestprobe_started 1\n")
	sidecar(t, n.pod("uid-type", "shop", "z"), "# TYPE guestprobe_started gauge\nguestprobe_started 1\n")
	sidecar(t, n.pod("uid-junk", "evil", "junk"), "guestprobe_ready{ 1\n\x00\xff")
	sidecar(t, n.pod("uid-huge", "evil", "huge"), strings.Repeat("# a comment that says nothing at all\n", maxAnswer/20))
	// A name that is none.
	sidecar(t, n.pod("uid-name", "evil", "a\",namespace=\"shop"), ready)
	// No log folder, so nobody vouches for the namespace.
	sidecar(t, n.pod("uid-claim", "evil", "claim"), ready)
	if err := os.RemoveAll(filepath.Join(n.logs, "evil_virt-launcher-claim-x_uid-claim")); err != nil {
		t.Fatal(err)
	}
	// Links instead of the socket and of the name.
	link := n.pod("uid-link", "evil", "link")
	if err := os.Symlink(filepath.Join(n.pods, "uid-good/volumes/kubernetes.io~empty-dir", VolumeRun, SocketFile), filepath.Join(link, SocketFile)); err != nil {
		t.Fatal(err)
	}
	outside := n.pod("uid-outside", "evil", "outside")
	sidecar(t, outside, ready)
	secret := filepath.Join(t.TempDir(), "secret")
	n.write(secret, "secret")
	vm := filepath.Join(n.pods, "uid-outside/volumes/kubernetes.io~downward-api", VolumeInfo, "vm")
	if err := os.Remove(vm); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, vm); err != nil {
		t.Fatal(err)
	}
	n.write(filepath.Join(n.pod("uid-file", "evil", "file"), SocketFile), "no socket")

	text := scrape(t, newCollector(t, n, 5*time.Second))
	expect(t, text, []string{
		`guestprobe_ready{name="web",namespace="shop",node="node-1"} 1`,
		`guestprobe_live{name="pose",namespace="evil",node="node-1"} 0`,
		`guestprobe_collector_target_up{name="web",namespace="shop",node="node-1"} 1`,
		`guestprobe_collector_target_up{name="junk",namespace="evil",node="node-1"} 0`,
		`guestprobe_collector_target_up{name="huge",namespace="evil",node="node-1"} 0`,
		`guestprobe_started{name="pose",namespace="evil",node="node-1"} 1`,
	}, `guestprobe_live{name="web"`, `node="other"`, "process_open_fds", "\nup ", "claim", "link", "secret", "outside", `guestprobe_started{name="z"`, `name="file"`)
	if n := strings.Count(text, "guestprobe_live{"); n != 1 {
		t.Errorf("a series is there %d times", n)
	}
}

// TestDialNoFollow: a link that takes the socket's place after it was looked at is not followed.
func TestDialNoFollow(t *testing.T) {
	n := newNode(t)
	dir := n.pod("uid-a", "shop", "web")
	sidecar(t, dir, ready)
	link := filepath.Join(dir, "link")
	if err := os.Symlink(SocketFile, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, dir, filepath.Join(dir, "none")} {
		if conn, err := dial(context.Background(), path); err == nil {
			conn.Close()
			t.Errorf("connected to %s", path)
		}
	}
}

// TestRun: the whole of it, on a real port.
func TestRun(t *testing.T) {
	n := newNode(t)
	sidecar(t, n.pod("uid-a", "shop", "web"), ready)
	c := newCollector(t, n, time.Second)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.serve(ctx, l) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	transport := &http.Transport{DisableKeepAlives: true}
	client := &http.Client{Transport: transport}
	get := func(path string) (int, string) {
		resp, err := client.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	for code, _ := get("/healthz"); code != http.StatusOK; code, _ = get("/healthz") {
		<-tick.C
	}
	if _, body := get("/metrics"); !strings.Contains(body, `guestprobe_ready{name="web"`) {
		t.Error(body)
	}
	if code, _ := get("/"); code != http.StatusNotFound {
		t.Errorf("/: %d", code)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestConfig(t *testing.T) {
	if _, err := New(Config{Interval: -1}); err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("%v", err)
	}
	c, err := New(Config{PodsDir: filepath.Join(t.TempDir(), "none"), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "opening the folder of pods") {
		t.Errorf("%v", err)
	}
}

// TestWithoutLogs: the pod's own word on its namespace is taken where it is asked for.
func TestWithoutLogs(t *testing.T) {
	n := newNode(t)
	sidecar(t, n.pod("uid-a", "shop", "web"), ready)
	c := newCollector(t, n, time.Second)
	c.finder.podLogsDir = ""
	expect(t, scrape(t, c), []string{`guestprobe_ready{name="web",namespace="kube-system",node="node-1"} 1`})
}
