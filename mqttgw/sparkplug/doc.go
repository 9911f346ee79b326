// SPDX-License-Identifier: Apache-2.0

// Package sparkplug reads Sparkplug B (Sparkplug 3.0): topics, payloads (protobuf message
// org.eclipse.tahu.protobuf.Payload), and what a payload leaves to the birth of its edge node or device.
//
// A message is stored as it was published, since subscribers get it byte for byte. What it leaves to its birth, the names
// behind aliases and the types, is looked up once, when it is published, and stored beside it (event.Origin.Sparkplug). So
// View, which makes JSON of it, needs nothing but the stored message, and makes the same bytes each time, whatever became of
// the birth since.
//
// Everything is a pure function of its arguments, safe for concurrent use. Payloads are bounded: MaxMetrics, MaxDepth,
// MaxName, and MaxJSON for what is made of them.
package sparkplug

// Limits of a payload. One that is above them is not decoded; it is stored and passed on all the same.
const (
	MaxMetrics = 20_000  // metrics, those inside templates included
	MaxDepth   = 8       // templates and property sets inside each other
	MaxName    = 1 << 10 // bytes of the name of a metric, property, parameter or column
	MaxJSON    = 1 << 20 // bytes of what is made of it
)
