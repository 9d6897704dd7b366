package manifest

import (
	"errors"
	"path"
	"strings"
)

// Unwrap takes off the virt-probe command that KubeVirt puts around an exec probe or makes of a guestAgentPing
// (pkg/virt-controller/services/rendercontainer.go:268, template.go:1468). A VMI read from the API can carry it, even
// several times over (kubevirt issue 11755). ping tells that a guestAgentPing was inside; command is then nil. Any other
// command is returned as it is. The error tells of a virt-probe command that holds neither.
func Unwrap(command []string) (inner []string, ping bool, err error) {
	for len(command) > 0 && path.Base(command[0]) == "virt-probe" {
		command, ping, err = unwrapOnce(command[1:])
		if ping || err != nil {
			return nil, ping, err
		}
	}
	return command, false, nil
}

// unwrapOnce reads virt-probe's own flags up to "--". What follows is the guest's, whatever it looks like: it may hold
// "--", "--command" or "--guestAgentPing" of its own. The same goes for the value of --command.
func unwrapOnce(args []string) (command []string, ping bool, err error) {
	for len(args) > 0 {
		flag, value, inline := strings.Cut(args[0], "=")
		args = args[1:]
		if flag == "--" {
			break
		}
		switch flag {
		case "--guestAgentPing":
			ping = !inline || value == "true"
			continue
		case "--command", "--domainName", "--timeoutSeconds", "--socket":
		default:
			return nil, false, errors.New("cannot unwrap virt-probe: unknown argument " + quote(flag))
		}
		if !inline {
			if len(args) == 0 {
				return nil, false, errors.New("cannot unwrap virt-probe: " + flag + " has no value")
			}
			value, args = args[0], args[1:]
		}
		if flag == "--command" {
			command = []string{value}
		}
	}
	switch {
	case ping:
		return nil, true, nil
	case command == nil:
		return nil, false, errors.New("cannot unwrap virt-probe: it has neither --command nor --guestAgentPing")
	}
	return append(command, args...), false, nil
}

// expand replaces $(NAME) in an argument by what lookup knows of NAME, as the kubelet does with the environment of the
// probed container (k8s v1.37.2 third_party/forked/golang/expansion): unknown names stay as they are, $$ stands for $.
func expand(arg string, lookup func(string) (string, bool)) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(arg, "$")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		arg = rest
		switch {
		case strings.HasPrefix(rest, "$"):
			b.WriteByte('$')
			arg = rest[1:]
			continue
		case strings.HasPrefix(rest, "("):
			if name, after, closed := strings.Cut(rest[1:], ")"); closed {
				arg = after
				if value, ok := lookup(name); ok {
					b.WriteString(value)
				} else {
					b.WriteString("$(" + name + ")")
				}
				continue
			}
		}
		b.WriteByte('$')
	}
}

// escape is the reverse of expand: what it returns expands to arg, whatever the environment.
func escape(arg string) string {
	var b strings.Builder
	for i := range len(arg) {
		if arg[i] == '$' && i+1 < len(arg) && (arg[i+1] == '$' || arg[i+1] == '(') {
			b.WriteByte('$')
		}
		b.WriteByte(arg[i])
	}
	return b.String()
}
