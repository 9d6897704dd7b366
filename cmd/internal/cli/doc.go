// Package cli is what the command lines of both programs have in common: the choice of a command, flags that may also
// come from the environment, exit codes, signals, the log and the version. The commands themselves it leaves to them.
package cli
