package qga

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

type line struct {
	Data      string
	Delimited bool
}

func readFrames(r io.Reader, account func(int) (frameLimit, error)) ([]line, error) {
	frames := newFrameReader(r, account)
	var got []line
	for {
		f, err := frames.next()
		if err != nil {
			return got, err
		}
		got = append(got, line{string(f.data), f.delimited})
	}
}

func TestFrameReader(t *testing.T) {
	long := strings.Repeat("x", 300)
	tests := []struct {
		name, in string
		limit    frameLimit
		want     []line
		err      error
	}{
		{name: "lines", in: "a\nbc\r\n\nd", want: []line{{"a", false}, {"bc", false}, {"", false}}},
		{name: "sentinel first", in: "\xffa\nb\n", want: []line{{"a", true}, {"b", false}}},
		{name: "sentinel in mid line", in: "stale\xffa\n", want: []line{{"a", true}}},
		{name: "two sentinels", in: "x\xffy\xffa\n", want: []line{{"a", true}}},
		{name: "sentinel at the end of a line", in: "a\xff\nb\n", want: []line{{"", true}, {"b", false}}},
		{name: "too long", in: "ok\n" + long + "\n", limit: frameLimit{frame: 200}, want: []line{{"ok", false}}, err: ErrTooLarge},
		{name: "exactly long enough", in: long + "\n", limit: frameLimit{frame: 300}, want: []line{{long, false}}},
		{name: "skip", in: long + long + "\nb\n", limit: frameLimit{frame: 200, skip: true}, want: []line{{"b", false}}},
		{name: "skip to sentinel", in: long + "\xffa\nb\n", limit: frameLimit{frame: 200, skip: true}, want: []line{{"a", true}, {"b", false}}},
		{name: "cut strings", in: `{"key":"` + long + `","b":"\"` + long + "\"}\n", limit: frameLimit{frame: 200, stringN: 8},
			want: []line{{`{"key":"xxxxxxxx","b":"\"xxxxxx"}`, false}}},
		{name: "cut ends with the line", in: "\"" + long + "\n" + `"a"` + "\n", limit: frameLimit{frame: 200, stringN: 3},
			want: []line{{`"xxx`, false}, {`"a"`, false}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.limit.frame == 0 {
				tt.limit.frame = 1 << 10
			}
			if tt.err == nil {
				tt.err = io.EOF
			}
			account := func(int) (frameLimit, error) { return tt.limit, nil }
			// One byte at a time, so that a line that breaks the limit is
			// noticed at the same byte whatever the peer's writes are.
			got, err := readFrames(iotest.OneByteReader(strings.NewReader(tt.in)), account)
			if !errors.Is(err, tt.err) {
				t.Errorf("error = %v, want %v", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("frames (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFrameReaderMemory(t *testing.T) {
	endless := func(limit frameLimit) (int, error) {
		total := 0
		account := func(n int) (frameLimit, error) {
			if total += n; total > 8<<20 {
				return frameLimit{}, ErrTooLarge
			}
			return limit, nil
		}
		frames := newFrameReader(repeated("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"), account)
		_, err := frames.next()
		return len(frames.buf), err
	}
	for _, limit := range []frameLimit{{frame: 64 << 10}, {frame: 64 << 10, skip: true}} {
		size, err := endless(limit)
		if !errors.Is(err, ErrTooLarge) {
			t.Errorf("limit %+v: error = %v, want ErrTooLarge", limit, err)
		}
		if size > 256<<10 {
			t.Errorf("limit %+v: buffer grew to %d bytes", limit, size)
		}
	}
}

// repeated is an endless reader.
type repeated string

func (r repeated) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		n += copy(p[n:], r)
	}
	return n, nil
}

// However the bytes arrive, the lines are the same, and they are what a plain
// reading of the rule gives.
func FuzzFrameReader(f *testing.F) {
	f.Add([]byte("a\nb\xffc\r\n\n"), uint8(1))
	f.Add([]byte("{\"return\": {}}\n\xff{\"return\": 1}\n"), uint8(7))
	f.Fuzz(func(t *testing.T, in []byte, chunk uint8) {
		var want []line
		complete, _ := cutLast(in, '\n')
		for l := range bytes.Lines(complete) {
			data, delimited := l[:len(l)-1], false
			if i := bytes.LastIndexByte(data, sentinel); i >= 0 {
				data, delimited = data[i+1:], true
			}
			want = append(want, line{string(bytes.TrimSuffix(data, []byte("\r"))), delimited})
		}
		got, err := readFrames(&chunked{in, int(chunk) + 1}, fixedLimit(1<<20))
		if err != io.EOF {
			t.Fatalf("error = %v", err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("frames of %q (-want +got):\n%s", in, diff)
		}
	})
}

func cutLast(p []byte, sep byte) (before, after []byte) {
	i := bytes.LastIndexByte(p, sep) + 1
	return p[:i], p[i:]
}

type chunked struct {
	p []byte
	n int
}

func (c *chunked) Read(p []byte) (int, error) {
	if len(c.p) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.p[:min(c.n, len(c.p))])
	c.p = c.p[n:]
	return n, nil
}
