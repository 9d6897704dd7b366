package qga

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/qga/qgatest"
)

// BenchmarkPing, BenchmarkBareReader and BenchmarkBareSocket are to be compared:
// the same command to the same real agent, through the client, through a plain
// loop with a reader, and through a plain loop. BenchmarkPingOverBare takes the
// first and the last in turns.
func BenchmarkPing(b *testing.B) {
	agent := startRealAgent(b, socketDir(b), nil).client(b)
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		if err := agent.Ping(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBareSocket(b *testing.B) {
	ping := barePing(b, startRealAgent(b, socketDir(b), nil))
	b.ReportAllocs()
	for b.Loop() {
		ping()
	}
}

// BenchmarkBareReader is the bare loop with a goroutine that always reads. A
// client that is to notice a hang-up between two calls, and to drain the
// channel, needs one; handing each reply over is what that costs when pings
// follow each other without a pause.
func BenchmarkBareReader(b *testing.B) {
	conn := startRealAgent(b, socketDir(b), nil).dial(b)
	request := []byte(`{"execute":"guest-ping","id":123456789012345}` + "\n")
	replies := make(chan int, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		reply := make([]byte, 4096)
		for {
			n, err := conn.Read(reply)
			if err != nil {
				return
			}
			replies <- n
		}
	}()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := conn.Write(request); err != nil {
			b.Fatal(err)
		}
		<-replies
	}
	conn.Close()
	<-done
}

// barePing returns a function that pings through nothing but a socket.
func barePing(b *testing.B, real *realAgent) func() {
	conn := real.dial(b)
	request := []byte(`{"execute":"guest-ping","id":123456789012345}` + "\n")
	reply := make([]byte, 4096)
	return func() {
		if _, err := conn.Write(request); err != nil {
			b.Fatal(err)
		}
		for n := 0; n == 0 || reply[n-1] != '\n'; {
			m, err := conn.Read(reply[n:])
			if err != nil {
				b.Fatal(err)
			}
			n += m
		}
	}
}

// BenchmarkPingOverBare pings in turns through the client and through a bare
// socket, each with an agent of its own, and reports the ratio of the medians:
// other work on the machine then hits both alike.
func BenchmarkPingOverBare(b *testing.B) {
	agent := startRealAgent(b, socketDir(b), nil).client(b)
	bare := barePing(b, startRealAgent(b, socketDir(b), nil))
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	var client, plain []time.Duration
	for b.Loop() {
		start := time.Now()
		if err := agent.Ping(ctx); err != nil {
			b.Fatal(err)
		}
		middle := time.Now()
		bare()
		client, plain = append(client, middle.Sub(start)), append(plain, time.Since(middle))
	}
	slices.Sort(client)
	slices.Sort(plain)
	b.ReportMetric(float64(client[len(client)/2])/float64(plain[len(plain)/2]), "ratio")
}

func BenchmarkSync(b *testing.B) {
	agent := startRealAgent(b, socketDir(b), nil).client(b)
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		if err := agent.Sync(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPingFake is the client's own cost and that of the simulated agent.
func BenchmarkPingFake(b *testing.B) {
	agent := runAgent(b, fakeAgent(b, qgatest.AgentConfig{}).Addr(), nil)
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		if err := agent.Ping(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseReply(b *testing.B) {
	line := []byte(`{"return": {}, "id": 123456789012345}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := parseReply(line); !ok {
			b.Fatal("not parsed")
		}
	}
}
