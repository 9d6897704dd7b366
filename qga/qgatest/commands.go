package qgatest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// A CommandError is an agent's answer that says no.
type CommandError struct{ Class, Desc string }

// Error returns the text.
func (e *CommandError) Error() string { return e.Class + ": " + e.Desc }

func genericError(format string, args ...any) *CommandError {
	return &CommandError{"GenericError", fmt.Sprintf(format, args...)}
}

// An Exec is what a client asked guest-exec to run.
type Exec struct {
	Path      string
	Args, Env []string
	Input     []byte
}

// A Process is how a program of guest-exec behaves.
type Process struct {
	// Running, if not nil, is closed when the program ends. nil: it has ended
	// by the time of the first guest-exec-status.
	Running <-chan struct{}
	// ExitCode is its exit code; Signal, if not 0, what ended it instead.
	ExitCode, Signal int
	// Stdout and Stderr are its output.
	Stdout, Stderr []byte
}

// answer returns the line that answers one JSON value, and the name of the
// command in it, if it is one.
func (a *Agent) answer(value []byte) (name string, line []byte) {
	if err := checkJSON(value); err != nil {
		return name, errorLine(nil, genericError("%s", err))
	}
	var request map[string]json.RawMessage
	if json.Unmarshal(value, &request) != nil || request == nil {
		return name, errorLine(nil, genericError("QMP input must be a JSON object"))
	}
	id := request["id"]
	for member, raw := range request {
		switch member {
		case "arguments":
		case "execute":
			if json.Unmarshal(raw, &name) != nil {
				return name, errorLine(id, genericError("QMP input member 'execute' must be a string"))
			}
		case "id":
			if a.cfg.NoIDs {
				return name, errorLine(nil, genericError("QMP input object member 'id' is unexpected"))
			}
		default:
			return name, errorLine(id, genericError("QMP input member '%s' is unexpected", member))
		}
	}
	if name == "" {
		return name, errorLine(id, genericError("QMP input lacks member 'execute'"))
	}
	ret, err := a.run(name, request["arguments"])
	if err != nil {
		var said *CommandError
		if !errors.As(err, &said) {
			said = genericError("%s", err)
		}
		return name, errorLine(id, said)
	}
	if name == "guest-sync-delimited" {
		line = append(line, 0xFF)
	}
	return name, appendReturn(line, ret, id)
}

// run runs one command.
func (a *Agent) run(name string, args json.RawMessage) (any, error) {
	command, known := a.commands()[name]
	switch {
	case !known:
		return nil, &CommandError{"CommandNotFound", "The command " + name + " has not been found"}
	case slices.Contains(a.cfg.Blocked, name):
		return nil, &CommandError{"CommandNotFound", "Command " + name + " has been disabled: the command is not allowed"}
	case a.isFrozen() && !allowedFrozen(name):
		return nil, &CommandError{"CommandNotFound", "Command " + name + " has been disabled: the agent is in frozen state"}
	}
	return command(args)
}

// commands returns all commands of the agent by name.
func (a *Agent) commands() map[string]func(json.RawMessage) (any, error) {
	all := map[string]func(json.RawMessage) (any, error){
		"guest-ping":           a.ping,
		"guest-sync":           a.sync,
		"guest-sync-delimited": a.sync,
		"guest-info":           a.info,
		"guest-exec":           a.exec,
		"guest-exec-status":    a.execStatus,
		"guest-fsfreeze-status": func(args json.RawMessage) (any, error) {
			if a.isFrozen() {
				return "frozen", noArguments(args)
			}
			return "thawed", noArguments(args)
		},
	}
	maps.Copy(all, a.cfg.Commands)
	return all
}

// allowedFrozen is the list in qemu-10.0 qga/main.c.
func allowedFrozen(name string) bool {
	switch name {
	case "guest-ping", "guest-info", "guest-sync", "guest-sync-delimited",
		"guest-fsfreeze-status", "guest-fsfreeze-thaw":
		return true
	}
	return false
}

// arguments decodes args into into, which holds one pointer per known name.
func arguments(args json.RawMessage, into map[string]any) error {
	if args == nil {
		args = json.RawMessage("{}")
	}
	var given map[string]json.RawMessage
	if json.Unmarshal(args, &given) != nil {
		return genericError("QMP input member 'arguments' must be an object")
	}
	for name, raw := range given {
		to, known := into[name]
		if !known {
			return genericError("Parameter '%s' is unexpected", name)
		}
		if json.Unmarshal(raw, to) != nil {
			return genericError("Invalid parameter type for '%s', expected: %s", name, expected(to))
		}
	}
	return nil
}

func expected(to any) string {
	switch to.(type) {
	case *int64:
		return "integer"
	case *bool:
		return "boolean"
	case *[]string:
		return "array"
	default:
		return "string"
	}
}

func noArguments(args json.RawMessage) error { return arguments(args, nil) }

func (a *Agent) ping(args json.RawMessage) (any, error) {
	return struct{}{}, noArguments(args)
}

func (a *Agent) sync(args json.RawMessage) (any, error) {
	var id int64
	return &id, arguments(args, map[string]any{"id": &id})
}

func (a *Agent) info(args json.RawMessage) (any, error) {
	type command struct {
		Enabled bool   `json:"enabled"`
		Name    string `json:"name"`
		Answers bool   `json:"success-response"`
	}
	var list []command
	for _, name := range slices.Sorted(maps.Keys(a.commands())) {
		enabled := !slices.Contains(a.cfg.Blocked, name) && (!a.isFrozen() || allowedFrozen(name))
		list = append(list, command{enabled, name, true})
	}
	version := a.cfg.Version
	if version == "" {
		version = "7.2.22"
	}
	return struct {
		Version  string    `json:"version"`
		Commands []command `json:"supported_commands"`
	}{version, list}, noArguments(args)
}

func (a *Agent) exec(args json.RawMessage) (any, error) {
	var e Exec
	var capture bool
	err := arguments(args, map[string]any{
		"path": &e.Path, "arg": &e.Args, "env": &e.Env, "input-data": &e.Input, "capture-output": &capture,
	})
	if err != nil {
		return nil, err
	}
	if a.cfg.Exec == nil {
		return nil, genericError("Failed to execute child process “%s” (No such file or directory)", e.Path)
	}
	process, err := a.cfg.Exec(e)
	if err != nil {
		return nil, err
	}
	if !capture {
		process.Stdout, process.Stderr = nil, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lastPID++
	a.processes[a.lastPID] = process
	return map[string]int64{"pid": a.lastPID}, nil
}

func (a *Agent) execStatus(args json.RawMessage) (any, error) {
	var pid int64
	if err := arguments(args, map[string]any{"pid": &pid}); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	process, ok := a.processes[pid]
	if !ok {
		return nil, genericError("Invalid parameter 'pid'")
	}
	if process.Running != nil {
		select {
		case <-process.Running:
		default:
			return map[string]bool{"exited": false}, nil
		}
	}
	delete(a.processes, pid) // an agent tells the end once
	status := map[string]any{"exited": true}
	if process.Signal != 0 {
		status["signal"] = process.Signal
	} else {
		status["exitcode"] = process.ExitCode
	}
	if len(process.Stdout) > 0 {
		status["out-data"] = process.Stdout
	}
	if len(process.Stderr) > 0 {
		status["err-data"] = process.Stderr
	}
	return status, nil
}

func errorLine(id json.RawMessage, e *CommandError) []byte {
	line := []byte("{")
	if id != nil {
		line = append(line, `"id": `...)
		line = append(appendQEMU(line, id), ", "...)
	}
	line = append(line, `"error": {"class": `...)
	line = appendQEMU(line, quote(e.Class))
	line = append(line, `, "desc": `...)
	line = appendQEMU(line, quote(e.Desc))
	return append(line, "}}\n"...)
}

func appendReturn(line []byte, ret any, id json.RawMessage) []byte {
	line = append(line, `{"return": `...)
	if n, ok := ret.(*int64); ok {
		line = strconv.AppendInt(line, *n, 10)
	} else if raw, err := json.Marshal(ret); err == nil {
		line = appendQEMU(line, raw)
	} else {
		line = append(line, "null"...)
	}
	if id != nil {
		line = append(line, `, "id": `...)
		line = appendQEMU(line, id)
	}
	return append(line, "}\n"...)
}

// quote encodes s as a JSON string in which only what must be is escaped.
func quote(s string) []byte {
	out := []byte{'"'}
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			out = append(out, '\\', byte(r))
		case r < 0x20:
			out = appendEscaped(out, r)
		default:
			out = append(out, string(r)...)
		}
	}
	return append(out, '"')
}
