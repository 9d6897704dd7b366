package verdict

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxDetail is how many bytes of a detail are shown: some of it may come from a guest.
const maxDetail = 512

// String returns the component as one line in kube-apiserver's form:
//
//	[+]name ok
//	[+]name warning: Reason: detail
//	[-]name failed: Reason: detail
//
// As there, only "[-]" fails the answer; a warning is a "[+]" that is not merely ok.
func (c Component) String() string {
	mark, word := "[+]", " ok"
	switch {
	case !c.OK:
		mark, word = "[-]", " failed"
	case c.Reason != "":
		word = " warning"
	}
	return mark + c.Name + word + because(c.Reason, c.Detail)
}

func because(r Reason, detail string) string {
	s := ""
	if r != "" {
		s = ": " + string(r)
	}
	if detail != "" {
		s += ": " + detail
	}
	return s
}

// Body returns the body of an endpoint's answer, for the endpoint's name ("readyz").
// A 503 always has its reason.
func (a Answer) Body(endpoint string, verbose bool) string {
	reason := a.Reason
	if a.OK && reason == Ready {
		reason = ""
	}
	if !verbose {
		word := "ok"
		if !a.OK {
			word = "not ok"
		}
		return word + because(reason, a.Detail) + "\n"
	}
	var b strings.Builder
	for _, c := range a.Components {
		b.WriteString(c.String())
		b.WriteByte('\n')
	}
	word := " check passed"
	if !a.OK {
		word = " check failed"
	}
	b.WriteString(endpoint + word + because(reason, a.Detail) + "\n")
	return b.String()
}

// line makes s fit for one line of an answer or a log.
func line(s string) string {
	fits := len(s) <= maxDetail && utf8.ValidString(s)
	if fits && strings.IndexFunc(s, unprintable) < 0 {
		return s
	}
	if len(s) > maxDetail {
		end := maxDetail
		for end > maxDetail-utf8.UTFMax && !utf8.RuneStart(s[end]) {
			end--
		}
		s = s[:end] + "…"
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	return strings.Join(strings.FieldsFunc(s, unprintable), " ")
}

func unprintable(r rune) bool { return r != ' ' && !unicode.IsPrint(r) }
