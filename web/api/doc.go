// SPDX-License-Identifier: Apache-2.0

// Package api is the HTTP surface of the bridge: ingest, reading events, the stream of server-sent events, definitions,
// dead letters, the ledger, and what operators look at.
//
// An API is an http.Handler; the process decides where and with which certificates it listens. Two kinds of routes
// stand beside each other. The control plane (definitions and keys) is registered through huma, which describes it in
// OpenAPI. What events go through is plain chi: a handler decodes, calls one method of the bridge, encodes, and returns
// an error. Either way one function, API.problem, turns an error into a status, a problem document (RFC 9457), a log
// line and a metric; no handler writes an error itself.
//
// Every route says in the table which right it needs. Keys are looked up in memory (Keys), never in the store. A route
// that is not listed does not exist; a route that is listed is in /openapi.json, which a test compares.
//
// An answer 202 to an ingest means that every event of the request is in the log. An error may leave some events of a
// batch stored; sending the batch again stores the others, because events are known by source and id.
package api
