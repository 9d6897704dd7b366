package qga

import (
	"bytes"
	"fmt"
	"io"
)

// sentinel is the byte that the agent puts before the reply to
// guest-sync-delimited, and that resets a QEMU JSON parser when it gets one.
// It is never part of UTF-8 text.
const sentinel = 0xFF

// frameLimit says how much of the peer's output a frameReader takes.
type frameLimit struct {
	frame   int  // bytes of one line
	skip    bool // drop a longer line instead of failing: it is stale anyway
	stringN int  // keep only that many bytes of each JSON string; 0 keeps all
}

// A frame is one line of the peer, without its line end.
type frame struct {
	data      []byte // valid until the next call of next
	delimited bool   // a sentinel came right before it
}

// A frameReader cuts what a guest agent or a QEMU monitor sends into lines, in
// bounded memory. A sentinel in the middle of a line drops what came before.
//
// It is used by one goroutine. Its account function is called with the number
// of bytes after each read, and returns the limits for them or an error that
// ends the reading; so a limit may change while a read blocks.
type frameReader struct {
	r       io.Reader
	account func(n int) (frameLimit, error)

	buf        []byte
	start, end int // buf[start:end] is unread
	scanned    int // buf[start:scanned] holds no line end and no sentinel
	delimited  bool
	dropping   bool // the rest of an over-long line is to be skipped

	// Where the scan of JSON strings stands, at end.
	inString, escaped bool
	stringLen         int
}

const (
	readChunk = 4 << 10
	// idleBuffer is what a reader keeps between frames: a rare big reply must
	// not cost memory for ever.
	idleBuffer = 64 << 10
)

func newFrameReader(r io.Reader, account func(n int) (frameLimit, error)) *frameReader {
	return &frameReader{r: r, account: account, buf: make([]byte, readChunk)}
}

// fixedLimit is the account function of a reader whose limit never changes.
func fixedLimit(frame int) func(int) (frameLimit, error) {
	return func(int) (frameLimit, error) { return frameLimit{frame: frame}, nil }
}

// next returns the next line. LF and CRLF both end one. At the end of the
// stream an unfinished line is dropped, and the reader's error is returned
// as it is.
func (f *frameReader) next() (frame, error) {
	for {
		if fr, ok := f.cut(); ok {
			return fr, nil
		}
		if err := f.fill(); err != nil {
			return frame{}, err
		}
	}
}

// cut takes the next complete line off the buffer.
func (f *frameReader) cut() (frame, bool) {
	for f.scanned < f.end {
		rest := f.buf[f.scanned:f.end]
		n := bytes.IndexByte(rest, '\n')
		if n >= 0 {
			rest = rest[:n]
		}
		if s := bytes.LastIndexByte(rest, sentinel); s >= 0 {
			f.start = f.scanned + s + 1
			f.delimited, f.dropping = true, false
		}
		if n < 0 {
			f.scanned = f.end
			return frame{}, false
		}
		lineEnd := f.scanned + n
		fr := frame{data: f.buf[f.start:lineEnd], delimited: f.delimited}
		dropped := f.dropping
		f.start, f.scanned = lineEnd+1, lineEnd+1
		f.delimited, f.dropping = false, false
		if dropped {
			continue
		}
		fr.data = bytes.TrimSuffix(fr.data, []byte{'\r'})
		return fr, true
	}
	return frame{}, false
}

// fill reads once. All that is buffered belongs to one unfinished line.
func (f *frameReader) fill() error {
	f.makeRoom()
	n, err := f.r.Read(f.buf[f.end:])
	if n > 0 {
		limit, lerr := f.account(n)
		if lerr != nil {
			return lerr
		}
		f.end += f.scanStrings(f.buf[f.end:f.end+n], limit.stringN)
		switch {
		case f.dropping:
			f.dropUnfinished()
		case f.unfinished() <= limit.frame:
		case limit.skip:
			f.dropUnfinished()
		default:
			return fmt.Errorf("%w: a line of more than %d bytes", ErrTooLarge, limit.frame)
		}
		return nil // a read may bring bytes and an error; the error comes again
	}
	if err == nil {
		return io.ErrNoProgress
	}
	return err
}

// makeRoom moves the unfinished line to the front, and grows or shrinks the
// buffer.
func (f *frameReader) makeRoom() {
	size := f.end - f.start
	switch {
	case size == 0 && len(f.buf) > idleBuffer && !f.dropping:
		f.buf = make([]byte, readChunk)
	case len(f.buf)-size < readChunk/2:
		grown := make([]byte, 2*len(f.buf))
		copy(grown, f.buf[f.start:f.end])
		f.buf = grown
	default:
		copy(f.buf, f.buf[f.start:f.end])
	}
	f.start, f.end, f.scanned = 0, size, f.scanned-f.start
}

// unfinished returns the length of the line that begins at start, as far as it
// has come.
func (f *frameReader) unfinished() int {
	line := f.buf[f.start:f.end]
	if n := bytes.IndexByte(line[f.scanned-f.start:], '\n'); n >= 0 {
		return f.scanned - f.start + n
	}
	return len(line)
}

// dropUnfinished forgets the over-long line at start, to its end if that has
// come, and else marks it to be skipped. A sentinel in it stays: what follows
// a sentinel is a line of its own.
func (f *frameReader) dropUnfinished() {
	line := f.buf[f.start : f.start+f.unfinished()]
	if s := bytes.IndexByte(line, sentinel); s >= 0 {
		f.start += s
		f.scanned = f.start
		return
	}
	f.start += len(line)
	f.scanned = f.start
	f.dropping, f.delimited = true, false
}

// scanStrings follows the JSON strings in p, cuts each to keep bytes (0: not at
// all) and returns the length of what is left, which is at the front of p.
//
// Cutting while reading is what lets the output of a guest command of 16 MiB
// pass through a few KiB of memory (qemu-10.0 qga/commands.c sends it base64
// encoded, on one line). A cut never splits an escape sequence: base64 has none.
func (f *frameReader) scanStrings(p []byte, keep int) int {
	out := 0
	for _, b := range p {
		switch {
		case b == '\n' || b == sentinel:
			f.inString, f.escaped = false, false
		case !f.inString:
			if b == '"' {
				f.inString, f.stringLen = true, 0
			}
		case f.escaped:
			f.escaped = false
			f.stringLen++
		case b == '"':
			f.inString = false
		default:
			f.escaped = b == '\\'
			f.stringLen++
			if keep > 0 && f.stringLen > keep && !f.escaped {
				continue
			}
		}
		p[out] = b
		out++
	}
	return out
}
