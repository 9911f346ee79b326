// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"math"
	"time"
)

// What the model knows of time: a session, a will and a message live for a time, and a kill makes it uncertain how long, since what
// ends is written down a moment later.

// seconds is a duration as MQTT says it.
func seconds(n uint32) time.Duration { return time.Duration(n) * time.Second }

// forever is the expiry of a session that does not expire.
const forever = math.MaxUint32 * time.Second

// bounds is a duration, or a time since the beginning, that is not known exactly.
type bounds struct{ least, most time.Duration }

func exactly(d time.Duration) bounds { return bounds{d, d} }

// take widens the bounds to what may be as well.
func (b *bounds) take(d time.Duration) { b.least, b.most = min(b.least, d), max(b.most, d) }

// count is how often a will has to be, and may be, in the log.
type count struct{ least, most int }

// life is how long a session lives when its client is away.
type life struct {
	left   bounds        // when the connection ended
	expiry bounds        // how long the session outlives it
	asked  time.Duration // the expiry in the last CONNECT
	used   bool          // it may hold messages
}

// unsure is for a CONNECT that was not answered: it may have been taken. surely is whether the session was there.
func (l *life) unsure(asked time.Duration, surely bool) {
	l.expiry.take(asked)
	if !surely {
		l.expiry.least = 0
	}
	l.asked = max(l.asked, asked)
}

// killed is for the end of the process: an away client may be taken for one that was there at that moment, with the session expiry that
// it had asked for.
func (l *life) killed(now time.Duration) {
	l.left.most = now
	l.expiry.take(l.asked)
}

// alive reports whether the device has a session.
func (d *modelDevice) alive() (surely, possibly bool) {
	if d.c != nil {
		return true, true
	}
	l, now := &d.session, d.m.now()
	return now < l.left.least+l.expiry.least, now < l.left.most+l.expiry.most
}

// pass lets time pass, after the process has begun and has noticed who is away. What has expired is not owed any more.
func (m *model) pass() {
	for m.pub.c == nil && !m.pub.connect(false) {
		m.kill()
	}
	for _, d := range m.devices {
		if d.c == nil && !d.noticed {
			d.awaitAway()
		}
	}
	m.clock.Add(int64(seconds(1 + m.rnd.Uint32N(12))))
	m.note("it is %v", m.now())
	for _, s := range m.all {
		if s.expired(m.now()) {
			clear(s.owed)
		}
	}
}

func (m *model) now() time.Duration { return time.Duration(m.clock.Load()) }

// expired reports whether a message may not be sent for the first time any more.
func (s *sent) expired(now time.Duration) bool { return s.expiry > 0 && now-s.at >= s.expiry }

// review takes back what is owed to a session that may have ended, and to the group when it may have.
func (m *model) review() {
	group, maybe := false, false
	for _, d := range m.devices {
		surely, _ := d.alive()
		if !surely {
			m.release(d)
		}
		group = group || surely && d.filters[sharedFilter]
		maybe = maybe || d.maybe[sharedFilter]
	}
	for _, s := range m.all {
		if !group {
			delete(s.owed, sharedFilter)
		}
		if !maybe {
			delete(s.may, sharedFilter)
		}
	}
}

// release takes back what is owed to a device's session. What a member of the group has in flight with QoS 2 ends with it, and nobody
// knows what that is (MQTT-4.8.2-5).
func (m *model) release(d *modelDevice) {
	for _, s := range m.all {
		delete(s.owed, d.name)
		if d.member && d.session.used && min(s.qos, d.qos) == 2 {
			delete(s.owed, sharedFilter)
		}
	}
	d.session.used = false
}
