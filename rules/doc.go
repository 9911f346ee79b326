// SPDX-License-Identifier: Apache-2.0

// Package rules decides which events a rule takes and what is delivered of them: the EventBridge pattern language,
// compiled rules, the index that events are matched against, transforms, and explanations of why a rule did or did not
// match.
//
// A pattern speaks of the whole CloudEvent in its JSON form: attributes at the top, the payload under data. Attributes
// are taken straight from the event; the payload is parsed once for all rules, and only when a rule that could still
// match asks for it. Data that is not JSON leaves only attributes to match.
//
// Patterns, rules, transforms and indexes are immutable once made and safe for concurrent use; a Scratch belongs to
// one goroutine at a time. Nothing here blocks, starts a goroutine or draws a random number, and no clock is read but to
// end an expression that loops too long: the same input gives the same bytes, which is what lets a retry render again
// instead of storing what was sent.
//
// What a user wrote is refused, when it is written, if it cannot work, with JSON pointers to where; Lint warns of what
// can, and is hardly meant. The cost of matching is linear in the event and follows the rules that are nearly met, not
// all there are; nothing recurses deeper than 1000.
//
// Left to others: where rules are stored, what happens to a match (package bridge), and conversion from YAML.
package rules
