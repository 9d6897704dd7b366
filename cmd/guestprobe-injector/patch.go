package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/guestprobe/guestprobe/cmd/internal/cli"
	"github.com/guestprobe/guestprobe/sidecar/inject"
)

// maxFile is far above any pod; a pipe that never ends must not fill the memory.
const maxFile = 8 << 20

// patchCommand does with files what the webhook does with pods.
func patchCommand(ctx context.Context, e cli.Env) error {
	fs := cli.NewFlags("guestprobe-injector patch", "-f POD [--vmi VMI] [--defaults SPEC] --image IMAGE [FLAGS]")
	var sidecar sidecarFlags
	sidecar.register(fs)
	podFile := fs.String("f", "", "`FILE` with the launcher pod, YAML or JSON; - is standard input")
	vmiFile := fs.String("vmi", "", "`FILE` with its VirtualMachineInstance; without it nothing is known of its network")
	defaultsFile := fs.String("defaults", "", "`FILE` with the namespace's defaults: the spec of a GuestProbes document")
	output := fs.String("o", "yaml", "what to print: yaml or json (the patched pod), or patch (the JSON patch, as YAML)")
	if done, err := cli.Parse(fs, e); done || err != nil {
		return err
	}
	if sidecar.cfg.Image == "" {
		sidecar.cfg.Image = "guestprobe"
	}
	cfg, err := sidecar.config()
	if err != nil {
		return err
	}
	if *podFile == "" {
		return cli.Usage(errors.New("-f is missing: name the file with the launcher pod"))
	}
	data, err := cli.ReadFile(ctx, e, *podFile, maxFile)
	if err != nil {
		return cli.Usagef("-f: %w", err)
	}
	raw, pod, err := readPod(cli.FileLabel(*podFile), data)
	if err != nil {
		return cli.Usage(err)
	}
	in := inject.Input{Pod: pod, Namespace: pod.Namespace}
	if *vmiFile != "" {
		data, err := cli.ReadFile(ctx, e, *vmiFile, maxFile)
		if err != nil {
			return cli.Usagef("--vmi: %w", err)
		}
		if in.VMI, err = readVMI(cli.FileLabel(*vmiFile), data); err != nil {
			return cli.Usage(err)
		}
		if in.Namespace == "" {
			in.Namespace = in.VMI.GetNamespace()
		}
	}
	if in.Namespace == "" {
		in.Namespace = "default"
	}
	if *defaultsFile != "" {
		data, err := cli.ReadFile(ctx, e, *defaultsFile, maxFile)
		if err != nil {
			return cli.Usagef("--defaults: %w", err)
		}
		in.Defaults = string(data)
	}
	result, err := inject.Inject(in, cfg)
	if err != nil {
		return err
	}
	for _, warning := range result.Warnings {
		fmt.Fprintf(e.Stderr, "warning: %s\n", warning)
	}
	if result.Skipped != "" {
		fmt.Fprintf(e.Stderr, "the pod is left as it is: %s\n", result.Skipped)
	}
	return print(e.Stdout, raw, result.Patch, *output)
}

// print writes the patched pod or the patch. The patch is applied to the file's own text, so that nothing is lost that
// this program does not know.
func print(w io.Writer, raw []byte, ops []inject.Operation, format string) error {
	if ops == nil {
		ops = []inject.Operation{}
	}
	patch, err := json.Marshal(ops)
	if err != nil {
		return fmt.Errorf("encoding the patch: %w", err)
	}
	if format == "patch" {
		raw = patch
	} else {
		decoded, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return fmt.Errorf("applying the patch: %w", err)
		}
		if raw, err = decoded.ApplyIndent(raw, "  "); err != nil {
			return fmt.Errorf("applying the patch: %w", err)
		}
	}
	switch format {
	case "json":
		raw = append(raw, '\n')
	case "yaml", "patch":
		if raw, err = yaml.JSONToYAML(raw); err != nil {
			return fmt.Errorf("encoding: %w", err)
		}
	default:
		return cli.Usagef("-o: %q is none of yaml, json, patch", format)
	}
	_, err = w.Write(raw)
	return err
}

// readPod returns the pod's text as JSON, and the pod.
func readPod(name string, data []byte) (raw []byte, pod *corev1.Pod, err error) {
	if raw, err = yaml.YAMLToJSON(data); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	pod = &corev1.Pod{}
	if err := json.Unmarshal(raw, pod); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	if pod.Kind != "Pod" || pod.APIVersion != "v1" {
		return nil, nil, fmt.Errorf("%s: it is of kind %q (%s), not a Pod (v1)", name, pod.Kind, pod.APIVersion)
	}
	return raw, pod, nil
}

func readVMI(name string, data []byte) (*unstructured.Unstructured, error) {
	vmi := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(data, &vmi.Object); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if vmi.GetKind() != "VirtualMachineInstance" {
		return nil, fmt.Errorf("%s: it is of kind %q, not a VirtualMachineInstance", name, vmi.GetKind())
	}
	return vmi, nil
}
