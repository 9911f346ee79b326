// SPDX-License-Identifier: Apache-2.0

// Package files reads definitions from files: YAML documents between lines of ---, JSON values one after the other, or lists
// of either.
//
// Of a folder it takes every .yaml, .yml and .json below it, in the order of their paths, and nothing else. What begins with
// a dot is left out. A symlink to a file is followed unless it leads out of the folder, which is an error; one to a folder is
// not. Everything that is read is bounded, see Max*.
//
// A document knows where it comes from, and the line of each of its parts, so that whoever refuses it can say where. What a
// document means is not looked into beyond its head: kind, name and what it belongs to.
package files
