package qga

import (
	"encoding/xml"
	"fmt"
)

// A libvirtXML is what is read of a domain's live description.
type libvirtXML struct {
	Name     string `xml:"name"`
	UUID     string `xml:"uuid"`
	Channels []struct {
		Source struct {
			Path string `xml:"path,attr"`
		} `xml:"source"`
		Target struct {
			Name  string `xml:"name,attr"`
			State string `xml:"state,attr"`
		} `xml:"target"`
		Alias struct {
			Name string `xml:"name,attr"`
		} `xml:"alias"`
	} `xml:"devices>channel"`
}

func parseLibvirtXML(text string) (libvirtXML, error) {
	var x libvirtXML
	if err := xml.Unmarshal([]byte(text), &x); err != nil {
		return libvirtXML{}, fmt.Errorf("%w: domain description: %s", ErrProtocol, clean(err.Error()))
	}
	return x, nil
}

// agentPort returns the state of the agent's channel and its socket's path,
// which may be of another mount namespace. want is a path, a device's alias or
// a port's name; empty: the standard name. libvirt tells the state of a
// running domain's channels alone.
func (x *libvirtXML) agentPort(want string) (port Port, socket string) {
	if want == "" {
		want = agentPortName
	}
	for _, c := range x.Channels {
		if c.Target.Name != want && c.Source.Path != want && c.Alias.Name != want {
			continue
		}
		switch c.Target.State {
		case "connected":
			return PortOpen, c.Source.Path
		case "disconnected":
			return PortClosed, c.Source.Path
		}
		return PortUnknown, c.Source.Path
	}
	return PortUnknown, ""
}
