// SPDX-License-Identifier: Apache-2.0

package region

import (
	"encoding/binary"
	"errors"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// checkOrigin says what is wrong with how an event was published over MQTT: subscribers here are told it as it is, so it has to be
// what a client could have published (MQTT 5 section 3.3).
func checkOrigin(o *event.Origin) error {
	version := packet.Version(o.Version)
	switch {
	case !packet.ValidTopic([]byte(o.Topic)) || len(o.Topic) > 65535:
		return errors.New("its MQTT topic is none")
	case o.QoS > 2 || version != packet.V311 && version != packet.V5:
		return errors.New("it has no QoS, or no version, of MQTT")
	case len(o.Client) > 65535 || len(o.Principal) > 65535:
		return errors.New("its MQTT client has too long a name")
	case len(o.Properties) == 0:
		return nil
	}
	ps := packet.Properties(o.Properties)
	for _, id := range []packet.PropertyID{packet.TopicAlias, packet.SubscriptionID} { // they belong to a connection
		if _, ok := ps.Find(id); ok {
			return errors.New("its MQTT properties are not for passing on")
		}
	}
	body := append(binary.BigEndian.AppendUint16(nil, 1), 't')
	body = append(binary.AppendUvarint(body, uint64(len(ps))), ps...)
	if _, err := packet.Decode(byte(packet.TypePublish)<<4, body, packet.V5); err != nil {
		return errors.New("its MQTT properties are none")
	}
	return nil
}
