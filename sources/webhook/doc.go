// SPDX-License-Identifier: Apache-2.0

// Package webhook is the source for products that announce what happens by HTTP: each has its own way of proving who it
// is, its own questions that want an answer, and its own idea of an event. A provider, one to a file, knows these of one
// product; the rest is the same for all.
//
// What the header alone shows to be no good is refused before the body is read: no signature, or one that is none or too old.
// Any other request is read whole, within a limit, and proved on the raw bytes in constant time before anything looks into them.
// What is good becomes an event with the whole payload as data, and is answered only after the commit, within the time
// that the product allows. An id that was committed a short while ago is answered like the first time and not stored again.
package webhook
