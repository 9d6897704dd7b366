package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/guestprobe/guestprobe/sidecar/inject"
)

// The objects that are looked up; the closed set of the metric's label.
const (
	objectVMI      = "vmi"
	objectDefaults = "defaults"
)

// A lookup reads what a decision needs beside the pod. Both objects are read anew for every pod: a VM starts seldom,
// and a cache of all VMIs would be the largest part of this program.
type lookup struct {
	client dynamic.Interface
}

// A finding is what could be read in time. What could not is in failures, by object.
type finding struct {
	vmi      *unstructured.Unstructured
	defaults string
	failures map[string]error
	warnings []string
}

// find reads the VMI and the namespace's defaults, at the same time.
func (l *lookup) find(ctx context.Context, namespace, name string) finding {
	var vmi, defaults *unstructured.Unstructured
	var vmiErr, defaultsErr error
	var group errgroup.Group
	group.Go(func() error {
		vmi, vmiErr = l.get(ctx, schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}, namespace, name)
		return nil
	})
	group.Go(func() error {
		defaults, defaultsErr = l.get(ctx, schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, namespace, inject.DefaultsName)
		return nil
	})
	_ = group.Wait() // the errors are kept apart: neither object depends on the other
	f := finding{failures: map[string]error{}}
	if vmiErr != nil {
		f.failures[objectVMI] = vmiErr
		f.warnings = append(f.warnings, fmt.Sprintf("VMI %s/%s cannot be read: %s", namespace, name, brief(vmiErr)))
	} else {
		f.vmi = vmi
	}
	switch {
	case apierrors.IsNotFound(defaultsErr):
	case defaultsErr != nil:
		f.failures[objectDefaults] = defaultsErr
		f.warnings = append(f.warnings, fmt.Sprintf("ConfigMap %s/%s cannot be read: %s", namespace, inject.DefaultsName, brief(defaultsErr)))
	default:
		f.read(defaults)
	}
	return f
}

func (l *lookup) get(ctx context.Context, resource schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error) {
	return l.client.Resource(resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
}

// read takes the defaults out of their ConfigMap.
func (f *finding) read(configMap *unstructured.Unstructured) {
	data, _, err := unstructured.NestedStringMap(configMap.Object, "data")
	if err != nil {
		f.warnings = append(f.warnings, fmt.Sprintf("ConfigMap %s/%s: %v", configMap.GetNamespace(), inject.DefaultsName, err))
		return
	}
	f.defaults = data[inject.DefaultsKey]
	var unknown []string
	for key := range data {
		if key != inject.DefaultsKey {
			unknown = append(unknown, key)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		f.warnings = append(f.warnings, fmt.Sprintf("ConfigMap %s/%s: unknown key %s; the one that counts is %s",
			configMap.GetNamespace(), inject.DefaultsName, strings.Join(unknown, ", "), inject.DefaultsKey))
	}
}

// brief keeps an API error to what an owner can use.
func brief(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "the API server did not answer in time"
	}
	if reason := apierrors.ReasonForError(err); reason != metav1.StatusReasonUnknown {
		return string(reason)
	}
	return err.Error()
}
