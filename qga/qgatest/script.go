package qgatest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A Script is what a misbehaving guest agent does, step by step. Each time
// something happens, all steps for that are played in order.
type Script []Step

// A Step is one action. In TX, \xNN stands for a byte, ${S} for the token of
// the last synchronisation, ${I} for the id of the last command, ${echo} for
// the bytes of the last request, and ${parse_error} for the line with which an
// agent answers the byte 0xFF.
type Step struct {
	// On is what the step waits for: "connect", "sync" or "ping".
	On string `json:"on"`
	// TX is sent once.
	TX string `json:"tx"`
	// Repeat is sent over and over, Bytes bytes in all; 0: until the client
	// closes.
	Repeat string `json:"tx_repeat"`
	Bytes  int    `json:"bytes"`
	// DribbleMS is the pause after each byte of TX, in milliseconds.
	DribbleMS int `json:"dribble_ms"`
	// Close hangs up.
	Close bool `json:"close"`
}

// ServeScript plays the script to each client of l, until l is closed. It
// returns when all clients have gone, nil after a closed listener.
func ServeScript(l net.Listener, script Script) error {
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			return nil
		}
		clients.Go(func() { PlayScript(conn, script) })
	}
}

// PlayScript plays the script to one client, until that hangs up or the script
// does, and closes conn. Its error says what a client sent that is no request.
func PlayScript(conn net.Conn, script Script) error {
	defer conn.Close()
	p := player{conn: conn, script: script, token: "0", id: "0"}
	if !p.play("connect") {
		return nil
	}
	lines := bufio.NewReader(conn)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return nil
		}
		text := bytes.Trim(line, "\xff\r\n")
		if len(text) == 0 {
			continue
		}
		var request struct {
			Execute   string          `json:"execute"`
			ID        json.RawMessage `json:"id"`
			Arguments struct {
				ID json.RawMessage `json:"id"`
			} `json:"arguments"`
		}
		if err := json.Unmarshal(text, &request); err != nil {
			return fmt.Errorf("qgatest: script: request %q: %w", line, err)
		}
		p.echo = string(line)
		on := strings.TrimPrefix(request.Execute, "guest-")
		if strings.HasPrefix(on, "sync") {
			on, p.token = "sync", string(request.Arguments.ID)
		} else {
			p.id = string(request.ID)
		}
		if !p.play(on) {
			return nil
		}
	}
}

type player struct {
	conn            net.Conn
	script          Script
	token, id, echo string
}

// play plays the steps for what happened. It returns false when the
// conversation is over.
func (p *player) play(on string) bool {
	for _, step := range p.script {
		if step.On != on {
			continue
		}
		if !p.send(step) || step.Close {
			return false
		}
	}
	return true
}

func (p *player) send(step Step) bool {
	tx := p.expand(step.TX)
	if step.DribbleMS > 0 {
		for i := range tx {
			if _, err := p.conn.Write(tx[i : i+1]); err != nil {
				return false
			}
			time.Sleep(time.Duration(step.DribbleMS) * time.Millisecond)
		}
		return true
	}
	if _, err := p.conn.Write(tx); err != nil {
		return false
	}
	if step.Repeat == "" {
		return true
	}
	block := bytes.Repeat(p.expand(step.Repeat), 1+4096/len(step.Repeat))
	for sent := 0; step.Bytes == 0 || sent < step.Bytes; sent += len(block) {
		if step.Bytes > 0 {
			block = block[:min(len(block), step.Bytes-sent)]
		}
		if _, err := p.conn.Write(block); err != nil {
			return false
		}
	}
	return true
}

func (p *player) expand(text string) []byte {
	// Bytes first: an echo may hold what looks like an escape.
	text = regexp.MustCompile(`\\x[0-9a-f]{2}`).ReplaceAllStringFunc(text, func(s string) string {
		b, _ := strconv.ParseUint(s[2:], 16, 8)
		return string([]byte{byte(b)})
	})
	return []byte(strings.NewReplacer(
		"${S}", p.token,
		"${I}", p.id,
		"${echo}", p.echo,
		"${parse_error}", string(errorLine(nil, genericError("JSON parse error, stray '\uFFFD'"))),
	).Replace(text))
}
