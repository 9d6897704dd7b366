package qga

import (
	"github.com/digitalocean/go-libvirt"
)

// A libvirtReader reads a domain's state. Its calls end with the connection.
type libvirtReader struct {
	conn      *libvirtConn
	domain    string
	agentPath string
}

// read makes a reading, with the live description if xml.
func (r *libvirtReader) read(xml bool) (libvirtReading, error) {
	reading, err := r.calls(xml)
	if libvirt.IsNotFound(err) { // perhaps between two of the calls
		return libvirtReading{}, nil
	}
	return reading, r.conn.explain(err)
}

func (r *libvirtReader) calls(xml bool) (libvirtReading, error) {
	rpc := r.conn.rpc
	dom, err := r.conn.domain(rpc, r.domain)
	if err != nil {
		return libvirtReading{}, err
	}
	state, reason, err := rpc.DomainGetState(dom, 0)
	if err != nil {
		return libvirtReading{}, err
	}
	reading := libvirtReading{found: true, dom: dom, state: libvirtState{state, reason}}
	if !xml || dom.ID < 0 {
		return reading, nil
	}
	text, err := rpc.DomainGetXMLDesc(dom, 0)
	if err != nil {
		return libvirtReading{}, err
	}
	x, err := parseLibvirtXML(text)
	if err != nil {
		return libvirtReading{}, err
	}
	var socket string
	reading.hasXML = true
	reading.port, socket = x.agentPort(r.agentPath)
	reading.boundAt = statSocket(socket).modTime
	return reading, nil
}
