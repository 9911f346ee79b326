// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"container/list"
	"context"
	"sync"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
	"github.com/rialto-bridge/rialto/mqttgw/sparkplug"
)

// births are the last births of Sparkplug edge nodes and their devices. What they say of the metrics of a message is stored
// with the message, so nobody needs a birth afterwards: in memory is what may still be published. A birth is also a retained
// message below sparkplug.Certificates, in DOWN and so on no bus, and these are what a start reads.
//
// Above Limits.MaxBirthBytes the births of the node that was silent for longest are forgotten: its aliases are not resolved
// until it is born again. Older births are never used instead of later ones. Safe for concurrent use.
type births struct {
	g *Gateway

	mu     sync.Mutex
	nodes  map[nodeKey]*list.Element // guarded by mu; of *edgeNode
	recent *list.List                // guarded by mu; those first that were heard of last
	size   int                       // guarded by mu; of all
	said   bool                      // guarded by mu; the log knows that births are not retained
}

type nodeKey struct{ group, node string }

// edgeNode is what an edge node has announced.
type edgeNode struct {
	key     nodeKey
	own     *sparkplug.Births
	devices map[string]*sparkplug.Births
	size    int // of all its births
	// withdrawn are those, by device, "" for the node itself, that are not retained any more; see keep.
	withdrawn map[string]bool
}

// bareBirth is the memory of a birth beside its metrics and names: its places in maps and lists.
const bareBirth = 512

func birthSize(key nodeKey, device string, d *sparkplug.Births) int {
	return bareBirth + len(key.group) + len(key.node) + len(device) + d.Size()
}

func newBirths(g *Gateway) *births {
	return &births{g: g, nodes: map[nodeKey]*list.Element{}, recent: list.New()}
}

// load reads the births that were kept. The tails have come up to the end of the log.
func (b *births) load() {
	v := b.g.opts.Retained
	if v == nil {
		return
	}
	seqs := map[nodeKey]uint64{}
	var page []retainedEntry
	for _, filter := range [...]string{"/+/NBIRTH/+", "/+/DBIRTH/+/+"} {
		for after, done := "", false; !done; {
			var err error
			if page, after, done, err = v.match(sparkplug.Certificates+sparkplug.Namespace+filter, after, retainedAtOnce, page[:0]); err != nil {
				b.g.log.Error("births cannot be read: aliases are not resolved until the next ones", "err", err)
				return
			}
			for _, e := range page {
				b.restore(e, seqs)
			}
		}
	}
}

// restore takes up a birth that was kept, unless it is that of a device before the last birth of its node, or of a node whose last
// birth is not kept. seqs are where the births of nodes are.
func (b *births) restore(e retainedEntry, seqs map[nodeKey]uint64) {
	t, ok := sparkplug.ParseTopic(e.Record.MQTT.Topic[len(sparkplug.Certificates):])
	key := nodeKey{t.Group, t.Node}
	switch {
	case !ok:
		return
	case t.Device == "":
		seqs[key] = e.Seq
	case seqs[key] == 0 || e.Seq < seqs[key]:
		return
	}
	b.born(t, e.Record.Event.Data)
}

// born takes up a birth. That of a node ends those of its devices. One that cannot be read leaves aliases unresolved.
func (b *births) born(t sparkplug.Topic, payload []byte) {
	announced, err := sparkplug.ReadBirth(payload)
	if err != nil {
		b.g.log.Debug("birth cannot be read: aliases are not resolved", "err", err)
		announced = &sparkplug.Births{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	key := nodeKey{t.Group, t.Node}
	el := b.nodes[key]
	if el == nil {
		el = b.recent.PushFront(&edgeNode{key: key, devices: map[string]*sparkplug.Births{}})
		b.nodes[key] = el
	}
	b.recent.MoveToFront(el)
	n := el.Value.(*edgeNode)
	before := n.size
	if t.Device == "" {
		n.own, n.size = announced, 0
		clear(n.devices)
	} else if old := n.devices[t.Device]; old != nil {
		n.size -= birthSize(key, t.Device, old)
	}
	if t.Device != "" {
		n.devices[t.Device] = announced
	}
	n.size += birthSize(key, t.Device, announced)
	b.size += n.size - before
	for b.size > b.g.limits.MaxBirthBytes && b.recent.Len() > 0 {
		oldest := b.recent.Remove(b.recent.Back()).(*edgeNode)
		delete(b.nodes, oldest.key)
		b.size -= oldest.size
	}
}

// of returns the birth that holds for a message; it is empty if there is none.
func (b *births) of(t sparkplug.Topic) *sparkplug.Births {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found *sparkplug.Births
	if el := b.nodes[nodeKey{t.Group, t.Node}]; el != nil {
		b.recent.MoveToFront(el)
		n := el.Value.(*edgeNode)
		if found = n.own; t.Device != "" {
			found = n.devices[t.Device]
		}
	}
	if found == nil {
		found = &sparkplug.Births{}
	}
	return found
}

// maxStoredHeader is what the log takes of a header.
const maxStoredHeader = 60 << 10

// describe notes at a message what it leaves to its birth. It is called in the order in which a client publishes.
func (b *births) describe(rec *event.Record) {
	t, ok := sparkplug.ParseTopic(rec.MQTT.Topic)
	switch {
	case !ok:
		return
	case t.IsBirth():
		rec.MQTT.Sparkplug = []byte{}
		return
	}
	const spare = 8 << 10 // for what is to come: this header's name, and the marks of the bridge
	room := (maxStoredHeader - spare - len(event.AppendNATS(nil, rec))) / 4 * 3
	names, err := b.of(t).Names(rec.Event.Data, max(0, room))
	if err != nil { // readers see it at the event
		b.g.log.Debug("payload cannot be decoded", "clientId", rec.MQTT.Client, "err", err)
	}
	rec.MQTT.Sparkplug = names
}

// CertificateType is the type of births in DOWN.
const CertificateType = "io.rialto.sparkplug.certificate"

// keep takes up a birth that is on its way to the log, and has it retained. A process that is killed between the commits of
// the two leaves the birth before: by then the node has lost its connection, and is born again when it is back.
//
// DOWN keeps everything behind a command that waits, and a fleet that is born over and over must not take the room of the commands.
// So when it is above its bound a birth is not retained, and one that is retained from before is withdrawn, once: an old birth would
// give wrong names after a restart, and without one there are none until the next.
func (b *births) keep(ctx context.Context, rec *event.Record) {
	t, ok := sparkplug.ParseTopic(rec.MQTT.Topic)
	if !ok || !t.IsBirth() {
		return
	}
	b.born(t, rec.Event.Data)
	down := b.g.opts.Down
	if down == nil || b.g.opts.Retained == nil || len(rec.Event.Data) == 0 {
		return
	}
	data := rec.Event.Data
	if down.crowded() {
		data = nil
	}
	if !b.withdraw(t, data == nil) {
		return
	}
	origin := *rec.MQTT
	origin.Topic, origin.QoS, origin.Retain, origin.Sparkplug = t.Certificate(), 1, true, nil
	origin.Properties = lasting(origin.Properties)
	kept := b.g.own(event.Event{Source: rec.Event.Source, Type: CertificateType, Subject: origin.Topic, DataContentType: rec.Event.DataContentType, Data: data})
	kept.MQTT = &origin
	failed := func(err error) {
		b.withdraw(t, false) // it may be there still, and then the next time it is to go
		b.g.log.Error("birth is not kept", "clientId", rec.MQTT.Client, "err", err)
	}
	err := b.g.checkRetain(origin.Topic, kept)
	if err == nil {
		err = down.publish(ctx, "", kept, nil, func(r eventlog.Result) {
			if r.Err != nil {
				failed(r.Err)
			}
		})
	}
	if err != nil {
		failed(err)
	}
}

// lasting are properties without the expiry of the message: its birth holds until the next one.
func lasting(ps packet.Properties) packet.Properties {
	if _, ok := ps.Find(packet.MessageExpiry); !ok {
		return ps
	}
	kept := make(packet.Properties, 0, len(ps))
	for p := range ps.All() {
		if p.ID != packet.MessageExpiry {
			kept = append(kept, p.Raw...)
		}
	}
	return kept
}

// withdraw notes whether a birth is retained no more, and reports whether there is something to be stored: all but what says once
// more that it is not.
func (b *births) withdraw(t sparkplug.Topic, gone bool) (store bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	el := b.nodes[nodeKey{t.Group, t.Node}]
	if el == nil {
		return true // it was forgotten at once, for want of memory
	}
	n := el.Value.(*edgeNode)
	if !gone {
		b.said = false
		delete(n.withdrawn, t.Device)
		return true
	}
	if n.withdrawn[t.Device] {
		return false
	}
	if n.withdrawn == nil {
		n.withdrawn = map[string]bool{}
	}
	n.withdrawn[t.Device] = true
	if !b.said {
		b.said = true
		b.g.log.Warn("births are not retained for now: commands that wait keep the stream above its bound", "stream", DownlinkStream)
	}
	return true
}
