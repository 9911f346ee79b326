// SPDX-License-Identifier: Apache-2.0

// Package app assembles the process: it opens the log, the views and the store, makes the bridge, the MQTT gateway and
// the API, and keeps them in step with the definitions. It is the only package that knows every kind of source and
// target.
//
// Start returns a running App; Close stops it in the reverse order: listeners first, then what is under way, then the
// log. Everything is named in Options, which Validate checks whole before anything is opened.
package app
