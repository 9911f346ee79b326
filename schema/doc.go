// SPDX-License-Identifier: Apache-2.0

// Package schema is the registry of what events look like: schemas in groups, their versions, what a new version may
// change, and whether an event fits.
//
// A schema is a name in a group, a format (JSON Schema, Avro or Protobuf) and a rule of compatibility. Its versions are
// numbered from 1, and a number is never given again: a deleted version stays as a tombstone, since events that name it
// may still be in a log. A version's content never changes; its state does. Content that is there already is the same
// version, whatever its blanks and the order of its members.
//
// Beside the registry stands Form: what the program's own definitions and configs must look like.
//
// Nothing in this package opens a file or a connection: a reference leads to another version of the registry or is
// refused. Store is the contract of where schemas are kept; everything else is computation. All types are safe for
// concurrent use once made, unless they say otherwise.
package schema
