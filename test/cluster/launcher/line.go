package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// lineSocket leads to the guest's second serial port, on which its init runs what it is told (test/guest/init). QEMU
// serves one caller at a time; a second one waits.
const lineSocket = privateDir + "/line.sock"

// ask runs a line of shell in the guest and returns what it printed and its exit status.
func ask(ctx context.Context, command string) (out string, status int, err error) {
	conn, err := dial(ctx, 20*time.Second)
	if err != nil {
		return "", 0, err
	}
	defer conn.Close()
	id, err := write(conn, command)
	if err != nil {
		return "", 0, err
	}
	var b strings.Builder
	in := bufio.NewScanner(conn)
	for in.Scan() {
		line := strings.TrimRight(in.Text(), "\r")
		if text, ok := strings.CutPrefix(line, "| "); ok {
			b.WriteString(text + "\n")
		}
		if number, ok := strings.CutPrefix(line, "done "+id+" "); ok {
			status, err = strconv.Atoi(number)
			return b.String(), status, err
		}
	}
	return "", 0, fmt.Errorf("asking the guest: no answer (%v)", in.Err())
}

// send gives the guest a line of shell and does not wait for its end. QEMU forgets what the guest has not taken when the
// connection closes, so that stays open for a moment.
func send(ctx context.Context, command string) error {
	conn, err := dial(ctx, 2*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := write(conn, command); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

func dial(ctx context.Context, patience time.Duration) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", lineSocket)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(patience))
}

// write sends a command under an identity that no other process of this pod uses. It ends whatever stands on the line.
func write(conn net.Conn, command string) (id string, err error) {
	id = fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())
	_, err = fmt.Fprintf(conn, "\n%s %s\n", id, command)
	return id, err
}

// booted waits until the guest obeys. What is said to it too early is lost, so it is said again.
func booted(ctx context.Context) error {
	conn, err := dial(ctx, 5*time.Minute)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	lines := make(chan string)
	go func() { // ends with the connection
		defer close(lines)
		for in := bufio.NewScanner(conn); in.Scan(); {
			lines <- in.Text()
		}
	}()
	defer func() {
		conn.Close()
		for range lines {
		}
	}()
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				return fmt.Errorf("waiting for the guest to boot: the line is closed")
			}
			if strings.HasPrefix(line, "done ") {
				return nil
			}
		case <-tick.C:
			if _, err := write(conn, "true"); err != nil {
				return err
			}
		}
	}
}
