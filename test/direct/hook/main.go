package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"

	v1 "kubevirt.io/api/core/v1"
	pluginv1alpha1 "kubevirt.io/api/plugin/v1alpha1"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/api"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/plugins"
	"sigs.k8s.io/yaml"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) != 2 {
		fmt.Fprintln(stderr, "usage: hook PLUGIN.yaml VM.yaml <DOMAIN.xml")
		return 2
	}
	domain, err := apply(args[0], args[1], stdin)
	if err != nil {
		fmt.Fprintln(stderr, "hook:", err)
		return 1
	}
	fmt.Fprintln(stdout, domain)
	return 0
}

// apply returns the domain as virt-launcher defines it.
func apply(pluginFile, vmFile string, domain io.Reader) (string, error) {
	text, err := io.ReadAll(domain)
	if err != nil {
		return "", fmt.Errorf("reading the domain: %w", err)
	}
	spec := &api.DomainSpec{}
	if err := xml.Unmarshal(text, spec); err != nil {
		return "", fmt.Errorf("decoding the domain: %w", err)
	}
	return applyTo(pluginFile, vmFile, spec)
}

func applyTo(pluginFile, vmFile string, spec *api.DomainSpec) (string, error) {
	plugin, err := readPlugin(pluginFile)
	if err != nil {
		return "", err
	}
	vmi, err := readVMI(vmFile)
	if err != nil {
		return "", err
	}
	_, result, err := plugins.ApplyDomainHooks([]pluginv1alpha1.Plugin{*plugin}, vmi, spec, pluginv1alpha1.InvocationContextBoot)
	return result, err
}

func readPlugin(file string) (*pluginv1alpha1.Plugin, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	plugin := &pluginv1alpha1.Plugin{}
	if err := yaml.UnmarshalStrict(text, plugin); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(plugin.Spec.DomainHooks) == 0 {
		return nil, fmt.Errorf("%s: no domain hooks", file)
	}
	plugin.Spec.FailureStrategy = pluginv1alpha1.FailureStrategyFail
	for i := range plugin.Spec.DomainHooks {
		plugin.Spec.DomainHooks[i].FailureStrategy = ""
	}
	return plugin, nil
}

// readVMI returns the file's VirtualMachineInstance, or the one that KubeVirt makes of its VirtualMachine as far as a
// condition looks at it.
func readVMI(file string) (*v1.VirtualMachineInstance, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if text, err = yaml.YAMLToJSON(text); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var kind struct{ Kind string }
	if err := json.Unmarshal(text, &kind); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	vmi := &v1.VirtualMachineInstance{}
	switch kind.Kind {
	case "VirtualMachineInstance":
		err = json.Unmarshal(text, vmi)
	case "VirtualMachine":
		vm := &v1.VirtualMachine{}
		if err = json.Unmarshal(text, vm); err == nil && vm.Spec.Template == nil {
			err = errors.New("spec.template is missing")
		}
		if err == nil {
			vmi.ObjectMeta, vmi.Spec = vm.Spec.Template.ObjectMeta, vm.Spec.Template.Spec
			vmi.Name, vmi.Namespace = vm.Name, vm.Namespace
		}
	default:
		err = fmt.Errorf("kind %q is neither VirtualMachine nor VirtualMachineInstance", kind.Kind)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return vmi, nil
}
