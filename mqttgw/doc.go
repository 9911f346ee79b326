// SPDX-License-Identifier: Apache-2.0

// Package mqttgw is the MQTT gateway: devices connect to it with MQTT 3.1.1 or 5, what they publish becomes events on a
// bus, and what is on the bus reaches their subscriptions.
//
// The promises. A PUBACK or PUBREC leaves after the Publisher has said that the event is committed, in the order in
// which the messages came, and never because of a time-out. While a connection's window is full its socket is not read.
// A message is stored once; one reader follows the bus for all connections, matches it once, and encodes it once for
// each protocol version and QoS. A slow subscriber holds back neither that reader nor another subscriber: its QoS 0
// messages are dropped and counted, its QoS 1 messages stay in the log, and it reads on from its own position when it
// has room. Messages of one topic and QoS reach a subscriber in the order of the log.
//
// An idle connection is one goroutine and a few kilobytes: its reader. A writer exists only while there is something to
// write. Serve waits for every goroutine it started.
//
// A client shows who it is with a password, a certificate or a token, and may do what its rights allow, which are asked at
// PUBLISH, SUBSCRIBE, for its will and at each delivery, and follow changes of the Directory while it is connected. Which
// events publishes become the Mappings say.
//
// A session that outlives its connection is a small record with positions in the log, written to a stream before
// anything is promised that depends on it: it survives kill -9. QoS 1 is at least once and QoS 2 exactly once, both ways. A
// session that is away costs a kilobyte, however much is waiting for it. Retained messages are a view that is written in
// the order of the log. What the client cannot be given any more, because it left the log or expired or is too large, is
// counted, and a gap is said in an event. DESIGN.md has the data flow, the owner of each lock and goroutine, and what
// each crash leaves; docs/mqtt.md is the user's view.
package mqttgw
