// SPDX-License-Identifier: Apache-2.0

// Package region links buses of one Rialto to buses of others. Links forwards: a cursor over a near bus for each link. Inlets
// takes in what links of others forward. DESIGN.md says what is kept where and what each failure leaves.
//
// Exactly once into the far log: the near side repeats whatever it is not sure of, and the far side recognises it by its
// position. In order within a lane (and, with ordering: log, altogether). An event keeps its attributes and its data byte for
// byte, unless the link transforms it; where it has been stands beside it, in event.Record.Hops.
//
// Every goroutine belongs to a Links or an Inlets, and Close waits for it.
package region
