package qga

import "sync"

const (
	maxInboxItems = 4096
	maxInboxBytes = 8 << 20
)

// An inboxItem is an event, or a reply to the command of that name.
type inboxItem struct {
	command string // empty: an event
	msg     qmpMessage
	err     error // the connection ended before the reply
}

// A qmpInbox carries what the reader of a connection decodes to the one who
// follows it, in the order it came: an event between two replies tells which
// of them is older. It never makes the reader wait. Events beyond its bounds
// are dropped and remembered as lost; replies always fit, for few are awaited.
type qmpInbox struct {
	ready chan struct{} // holds a token while items may be there

	mu    sync.Mutex
	items []inboxItem
	bytes int
	lost  bool
}

func newQMPInbox() *qmpInbox {
	return &qmpInbox{ready: make(chan struct{}, 1)}
}

func (b *qmpInbox) put(it inboxItem) {
	b.mu.Lock()
	if it.command == "" && (len(b.items) >= maxInboxItems || b.bytes+len(it.msg.line) > maxInboxBytes) {
		b.lost = true
	} else {
		b.items = append(b.items, it)
		b.bytes += len(it.msg.line)
	}
	b.mu.Unlock()
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// take returns all items, and whether events were lost after them.
func (b *qmpInbox) take() (items []inboxItem, lost bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	items, lost = b.items, b.lost
	b.items, b.bytes, b.lost = nil, 0, false
	return items, lost
}
