package netprobe_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/guestprobe/guestprobe/netprobe"
)

// A probe is told its deadline by the context and its outcome by the error's type.
func Example() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	port := l.Addr().(*net.TCPAddr).Port
	probe := &netprobe.TCPSocket{Host: "127.0.0.1", Port: port}

	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	fmt.Println("listening:", probe.Probe(ctx))

	l.Close()
	var failed *netprobe.Failure
	if errors.As(probe.Probe(ctx), &failed) {
		fmt.Println("closed:", failed.Cause)
	}
	// Output:
	// listening: <nil>
	// closed: Refused
}
