package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// An apiServer is as much of a Kubernetes API server as the injector talks to: objects in collections that can be got,
// listed, watched and updated, with versions and conflicts.
type apiServer struct {
	t   *testing.T
	url string

	mu       sync.Mutex
	version  int
	objects  map[string]map[string]any // by path, e.g. /api/v1/namespaces/a/secrets/b
	kinds    map[string][2]string      // collection name -> apiVersion, kind
	watchers map[chan event]string     // -> path of the collection
	status   map[string]int            // path -> the HTTP status it is answered with
	minor    string                    // of the server's version
	hang     chan struct{}             // if set, objects are answered once it is closed
}

type event struct {
	Type   string         `json:"type"`
	Object map[string]any `json:"object"`
}

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{
		t: t, version: 1, minor: "37", objects: map[string]map[string]any{}, watchers: map[chan event]string{}, status: map[string]int{},
		kinds: map[string][2]string{
			"secrets":                       {"v1", "Secret"},
			"configmaps":                    {"v1", "ConfigMap"},
			"mutatingwebhookconfigurations": {"admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"},
			"virtualmachineinstances":       {"kubevirt.io/v1", "VirtualMachineInstance"},
		},
	}
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	s.url = server.URL
	return s
}

func (s *apiServer) config() *rest.Config {
	return &rest.Config{Host: s.url, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}}
}

// put stores an object and tells the watchers. It sets kind and version.
func (s *apiServer) put(path string, obj map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(path, obj)
}

func (s *apiServer) store(path string, obj map[string]any) {
	collection, name := path[:strings.LastIndex(path, "/")], path[strings.LastIndex(path, "/")+1:]
	kind := s.kinds[collection[strings.LastIndex(collection, "/")+1:]]
	s.version++
	metadata, _ := obj["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
	}
	metadata["name"], metadata["resourceVersion"] = name, strconv.Itoa(s.version)
	if parts := strings.Split(path, "/namespaces/"); len(parts) == 2 {
		metadata["namespace"] = strings.Split(parts[1], "/")[0]
	}
	obj["apiVersion"], obj["kind"], obj["metadata"] = kind[0], kind[1], metadata
	_, old := s.objects[path]
	s.objects[path] = obj
	for ch, watched := range s.watchers {
		if watched == collection {
			ch <- event{Type: map[bool]string{false: "ADDED", true: "MODIFIED"}[old], Object: obj}
		}
	}
}

func (s *apiServer) get(path string) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[path]
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	collection := path[strings.LastIndex(path, "/")+1:]
	_, isCollection := s.kinds[collection]
	switch {
	case path == "/version":
		fmt.Fprintf(w, `{"major":"1","minor":%q,"gitVersion":"v1.%s.2"}`, s.minor, s.minor)
	case isCollection && r.URL.Query().Get("watch") != "":
		s.watch(w, r)
	case isCollection:
		s.list(w, path, collection)
	case r.Method == http.MethodPut:
		s.update(w, r)
	default:
		s.answer(w, r)
	}
}

func (s *apiServer) answer(w http.ResponseWriter, r *http.Request) {
	if s.hang != nil {
		select {
		case <-s.hang:
		case <-r.Context().Done():
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	obj, ok := s.objects[r.URL.Path]
	switch code := s.status[r.URL.Path]; {
	case code != 0:
		fail(w, code)
	case !ok:
		fail(w, http.StatusNotFound)
	default:
		send(w, http.StatusOK, obj)
	}
}

func (s *apiServer) update(w http.ResponseWriter, r *http.Request) {
	var obj map[string]any
	if err := json.NewDecoder(r.Body).Decode(&obj); err != nil {
		fail(w, http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.objects[r.URL.Path]
	if !ok {
		fail(w, http.StatusNotFound)
		return
	}
	if obj["metadata"].(map[string]any)["resourceVersion"] != old["metadata"].(map[string]any)["resourceVersion"] {
		fail(w, http.StatusConflict)
		return
	}
	s.store(r.URL.Path, obj)
	send(w, http.StatusOK, obj)
}

func (s *apiServer) list(w http.ResponseWriter, path, collection string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []any{}
	for p, obj := range s.objects {
		if strings.HasPrefix(p, path+"/") {
			items = append(items, obj)
		}
	}
	send(w, http.StatusOK, map[string]any{
		"apiVersion": s.kinds[collection][0], "kind": s.kinds[collection][1] + "List",
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version)}, "items": items,
	})
}

// watch streams events, after those that stand for the objects there are where the client asks for them.
func (s *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	ch := make(chan event, 100)
	s.mu.Lock()
	s.watchers[ch] = path
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		kind := [2]string{}
		for p, obj := range s.objects {
			if strings.HasPrefix(p, path+"/") {
				ch <- event{Type: "ADDED", Object: obj}
			}
		}
		kind = s.kinds[path[strings.LastIndex(path, "/")+1:]]
		ch <- event{Type: "BOOKMARK", Object: map[string]any{"apiVersion": kind[0], "kind": kind[1], "metadata": map[string]any{
			"resourceVersion": strconv.Itoa(s.version), "annotations": map[string]any{"k8s.io/initial-events-end": "true"},
		}}}
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, ch)
		s.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flusher := w.(http.Flusher)
	flusher.Flush()
	for {
		select {
		case e := <-ch:
			if json.NewEncoder(w).Encode(e) != nil {
				return
			}
			flusher.Flush()
		case <-r.Context().Done():
			return
		}
	}
}

func send(w http.ResponseWriter, code int, obj any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(obj) // the client is a test's; it fails by itself
}

func fail(w http.ResponseWriter, code int) {
	reason := map[int]string{http.StatusNotFound: "NotFound", http.StatusConflict: "Conflict", http.StatusForbidden: "Forbidden"}[code]
	send(w, code, map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason})
}
