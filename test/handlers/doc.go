// Package handlers has the built program probe one real guest by every handler there is, for every kind of check.
// What the VM's states mean is for other packages' tests.
package handlers
