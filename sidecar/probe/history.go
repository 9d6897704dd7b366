package probe

// A history keeps the last records. What last returns stays valid and unchanged: add
// only ever writes behind it, and moves to new memory when that is full.
type history struct {
	keep    int
	records []Record
}

func (h *history) add(r Record) {
	if len(h.records) == cap(h.records) {
		next := make([]Record, 0, 2*h.keep)
		h.records = append(next, h.records[max(0, len(h.records)-h.keep+1):]...)
	}
	h.records = append(h.records, r)
}

// last returns up to keep records, oldest first, with no room to append.
func (h *history) last() []Record {
	n := len(h.records)
	return h.records[max(0, n-h.keep):n:n]
}
