// SPDX-License-Identifier: Apache-2.0

package sparkplug

import "strings"

// Namespace is the first level of topics.
const Namespace = "spBv1.0"

// Certificates is what stands before the topic of a birth where an aware server keeps it (Sparkplug 3.0, section 10).
const Certificates = "$sparkplug/certificates/"

// Topic is a topic of Sparkplug B, of an edge node or a device.
type Topic struct {
	Group   string
	Message string // NBIRTH, NDEATH, NDATA, NCMD, DBIRTH, DDEATH, DDATA or DCMD
	Node    string
	Device  string // "" = the edge node itself
}

// ParseTopic reads the topic of a message with a Payload: spBv1.0/<group>/<message>/<node>[/<device>]. ok is false for
// others; so it is for STATE messages, which are JSON.
func ParseTopic(topic string) (t Topic, ok bool) {
	rest, ok := strings.CutPrefix(topic, Namespace+"/")
	if !ok {
		return t, false
	}
	levels := strings.Split(rest, "/")
	if len(levels) < 3 || len(levels) > 4 || levels[0] == "" || levels[2] == "" {
		return t, false
	}
	t = Topic{Group: levels[0], Message: levels[1], Node: levels[2]}
	if len(levels) == 4 {
		t.Device = levels[3]
	}
	switch t.Message {
	case "NBIRTH", "NDEATH", "NDATA", "NCMD":
		return t, len(levels) == 3
	case "DBIRTH", "DDEATH", "DDATA", "DCMD":
		return t, t.Device != ""
	}
	return t, false
}

// IsBirth reports whether the message says which metrics there are.
func (t Topic) IsBirth() bool { return t.Message == "NBIRTH" || t.Message == "DBIRTH" }

// Certificate is the topic under which an aware server keeps the birth of the topic's node, or of its device.
func (t Topic) Certificate() string {
	if t.Device == "" {
		return Certificates + Namespace + "/" + t.Group + "/NBIRTH/" + t.Node
	}
	return Certificates + Namespace + "/" + t.Group + "/DBIRTH/" + t.Node + "/" + t.Device
}
