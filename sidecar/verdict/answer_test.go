package verdict

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestBody(t *testing.T) {
	in := well()
	in.Checks = append(in.Checks,
		check("r- site", ProbeFailed, "HTTP probe failed with statuscode: 500"),
		check("awr- qga", AgentTimeout, "no answer\nwithin 1s"))
	in.Link, in.LinkDetail = LinkStuck, "query-status: i/o timeout"
	v := Decide(in)
	tests := []struct{ name, got, want string }{
		{"readyz verbose", v.Readyz.Body("readyz", true), `[+]monitor warning: MonitorUnreachable: the monitor does not answer any more: query-status: i/o timeout
[+]vm ok
[+]boot ok
[+]web ok
[-]site failed: ProbeFailed: HTTP probe failed with statuscode: 500
[+]qga warning: AgentTimeout: no answer within 1s
readyz check failed: ProbeFailed: site: HTTP probe failed with statuscode: 500
`},
		{"readyz", v.Readyz.Body("readyz", false), "not ok: ProbeFailed: site: HTTP probe failed with statuscode: 500\n"},
		{"livez", v.Livez.Body("livez", false), "ok\n"},
		{"livez verbose", v.Livez.Body("livez", true), `[+]monitor warning: MonitorUnreachable: the monitor does not answer any more: query-status: i/o timeout
[+]vm ok
[+]agent ok
livez check passed
`},
		{"startupz verbose", Decide(well()).Startupz.Body("startupz", true), "[+]monitor ok\n[+]vm ok\n[+]boot ok\nstartupz check passed\n"},
		{"well", Decide(well()).Readyz.Body("readyz", false), "ok\n"},
		{"nothing checked", Decide(Input{Link: LinkUp, Status: "running"}).Readyz.Body("readyz", false),
			"ok: no readiness probe is configured: nothing else is checked\n"},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.name, tt.got, tt.want)
		}
	}
	in = well()
	in.Status = "paused"
	if got := Decide(in).Livez.Body("livez", true); !strings.Contains(got, "[+]vm warning: Paused: ") {
		t.Errorf("livez of a paused VM:\n%s", got)
	}
}

func TestLine(t *testing.T) {
	tests := []struct{ in, want string }{
		{"", ""},
		{"plain, späte Grüße", "plain, späte Grüße"},
		{"a\r\nb\x00\x1b[31mc", "a b [31mc"},
		{"bad \xff byte", "bad \uFFFD byte"},
		{strings.Repeat("x", 512), strings.Repeat("x", 512)},
		{strings.Repeat("x", 600), strings.Repeat("x", 512) + "…"},
		{strings.Repeat("x", 511) + "ß" + "yyy", strings.Repeat("x", 511) + "…"},
	}
	for _, tt := range tests {
		if got := line(tt.in); got != tt.want {
			t.Errorf("line(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
}

func FuzzLine(f *testing.F) {
	f.Add("a\nb")
	f.Add(strings.Repeat("\xe2\x82", 400))
	f.Fuzz(func(t *testing.T, s string) {
		got := line(s)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, unprintable) || len(got) > 3*maxDetail+3 {
			t.Errorf("line(%q) = %q", s, got)
		}
		if again := line(got); len(got) <= maxDetail && again != got {
			t.Errorf("line(%q) = %q, and of that %q", s, got, again)
		}
	})
}
