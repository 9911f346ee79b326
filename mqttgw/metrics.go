// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"
)

// Label values, closed sets.
const (
	refusedTotal      = "connections"            // too many connections in all
	refusedAddress    = "connections-of-address" // too many of one address
	refusedConnecting = "connecting-of-address"  // too many of one address before CONNECT
	refusedRate       = "rate-of-address"        // new ones of one address come too fast
	refusedTimeout    = "timeout"                // no complete CONNECT in time
	refusedMalformed  = "malformed"
	refusedVersion    = "version"
	refusedClientID   = "client-id"
	refusedAuth       = "auth"
	refusedWill       = "will"
	refusedSessions   = "sessions" // too many kept sessions, or they cannot be written down

	resultStored  = "stored"
	resultRefused = "refused" // by the gateway: topic, format, quota
	resultFailed  = "failed"  // by the log

	droppedSlow     = "slow"      // QoS 0 to a client that does not keep up
	droppedTooLarge = "too-large" // above the client's Maximum Packet Size
	droppedExpired  = "expired"
	droppedGone     = "gone"        // no longer in the log when a slow client got to it
	droppedBarred   = "not-allowed" // the client may subscribe to it and not receive it

	authPassword = "password" // unknown user or wrong password
	authClientID = "client-id"
	authBlocked  = "blocked" // too many failures, not looked at
	authBusy     = "busy"    // too many password checks at once
	authMissing  = "missing" // no user name, and anonymous access is off
	authMethod   = "method"  // enhanced authentication with another method, or beside a certificate

	authToken       = "token"       // no good token, or of nobody known
	authCertificate = "certificate" // without a name in it
	authBanned      = "banned"      // blocked by a Device document
	authRights      = "rights"      // a principal or attribute that its access templates cannot take
)

// metrics are the rialto_mqtt_* series. They are counted without a Registerer too, which costs less than asking.
type metrics struct {
	connections   prometheus.Gauge
	refusals      *prometheus.CounterVec
	ends          *prometheus.CounterVec
	publishes     [3]map[string]prometheus.Counter
	deliveries    [3]prometheus.Counter
	dropped       map[string]prometheus.Counter
	authFailures  map[string]prometheus.Counter
	panics        prometheus.Counter
	lifecycleLost prometheus.Counter
	filters       prometheus.Gauge
	sessions      prometheus.Gauge
	feeds         prometheus.Gauge
	lateWills     prometheus.Gauge
	scanned       prometheus.Counter

	commandsWaiting prometheus.Gauge
	commands        [commandStates]prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "rialto", Subsystem: "mqtt", Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "rialto", Subsystem: "mqtt", Name: name, Help: help})
	}
	publishes := counter("publishes_total", "Messages that clients published, by QoS and result.", "qos", "result")
	deliveries := counter("deliveries_total", "Messages queued for subscribers, by QoS.", "qos")
	dropped := counter("dropped_total", "Messages that were not delivered to a subscriber, by reason.", "reason")
	failed := counter("auth_failures_total", "Connections refused for their credentials, by reason.", "reason")
	panics := counter("panics_total", "Connections that a programming error ended.")
	lost := counter("lifecycle_lost_total", "Events about clients that could not be stored.")
	scanned := counter("catch_up_bytes_total", "Bytes of the log read from disk for clients and shared groups that are far behind.")
	m := &metrics{
		connections: gauge("connections", "Clients that are connected."),
		filters:     gauge("subscriptions", "Subscriptions of all sessions."),
		sessions:    gauge("sessions", "Sessions that outlive their connection."),
		feeds:       gauge("feeds", "Streams that subscribers are served from."),
		lateWills:   gauge("wills_waiting", "Wills that their buses have not taken, and that are tried again."),
		scanned:     scanned.WithLabelValues(),
		refusals:    counter("refused_total", "Connections that did not get as far as CONNACK 0, by reason.", "reason"),
		ends:        counter("disconnects_total", "Connections of clients that have ended, by reason.", "reason"),
		dropped:     map[string]prometheus.Counter{}, authFailures: map[string]prometheus.Counter{},
		panics: panics.WithLabelValues(), lifecycleLost: lost.WithLabelValues(),
	}
	for qos, label := range []string{"0", "1", "2"} {
		m.publishes[qos] = map[string]prometheus.Counter{}
		for _, result := range []string{resultStored, resultRefused, resultFailed} {
			m.publishes[qos][result] = publishes.WithLabelValues(label, result)
		}
		m.deliveries[qos] = deliveries.WithLabelValues(label)
	}
	for _, r := range []string{droppedSlow, droppedTooLarge, droppedExpired, droppedGone, droppedBarred} {
		m.dropped[r] = dropped.WithLabelValues(r)
	}
	for _, r := range []string{authPassword, authClientID, authBlocked, authBusy, authMissing, authMethod, authToken, authCertificate, authBanned, authRights} {
		m.authFailures[r] = failed.WithLabelValues(r)
	}
	for _, r := range []string{refusedTotal, refusedAddress, refusedConnecting, refusedRate, refusedTimeout, refusedMalformed, refusedVersion,
		refusedClientID, refusedAuth, refusedWill, refusedSessions} {
		m.refusals.WithLabelValues(r)
	}
	for r := range maps.Values(endReasons) {
		m.ends.WithLabelValues(r)
	}
	for _, r := range []string{endLost, endStalled, endError} {
		m.ends.WithLabelValues(r)
	}
	m.commandsWaiting = gauge("commands_waiting", "Commands to devices that have not ended.")
	commands := counter("commands_total", "Commands to devices, by the status that they came to; queued counts those that were stored, and those that were taken back from a device.", "status")
	for state := range commandTold {
		m.commands[state] = commands.WithLabelValues(state.String())
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.connections, m.filters, m.sessions, m.feeds, m.lateWills, scanned, m.commandsWaiting, commands, m.refusals, m.ends, publishes, deliveries, dropped, failed, panics, lost} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) refused(why string)                { m.refusals.WithLabelValues(why).Inc() }
func (m *metrics) ended(why string)                  { m.ends.WithLabelValues(why).Inc() }
func (m *metrics) published(qos byte, result string) { m.publishes[qos][result].Inc() }
func (m *metrics) command(s commandState)            { m.commands[s].Inc() }
func (m *metrics) drop(why string)                   { m.dropped[why].Inc() }
