// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"fmt"
	"testing"
	"time"
)

// A device that shares its principal with thousands of others is shown with its own clients, in a list too.
func TestStatusOfDevicesOfOnePrincipal(t *testing.T) {
	d := NewDirectory()
	g := &Gateway{now: time.Now, opts: Options{Directory: d}, seen: map[sessionKey]seen{}}
	for i := range 3 * maxDeviceClients {
		g.seen[sessionKey{"fleet", fmt.Sprint(i)}] = seen{reason: endLost}
	}
	const devices = 20
	for i := range devices {
		name := fmt.Sprint("box-", i)
		d.Set(name, &Device{Name: name, Principal: "fleet", ClientIDs: []string{fmt.Sprint(i)}})
	}
	for i := range devices {
		name := fmt.Sprint("box-", i)
		if s, ok := g.DeviceStatus(name, true); !ok || len(s.Clients) != 1 || s.Clients[0].ClientID != fmt.Sprint(i) {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
