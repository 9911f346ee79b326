// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/http"
)

// The exit codes. Scripts rely on them.
const (
	exitOK          = 0
	exitFailed      = 1 // it did not work, or there are differences
	exitUsage       = 2 // the command line is wrong
	exitNotFound    = 3
	exitAuth        = 4 // no key, or one that does not allow it
	exitConflict    = 5 // it has changed meanwhile, or is in use
	exitProblems    = 6 // a test ran and found problems
	exitUnreachable = 7 // no server there, or one that cannot answer now
)

// errQuiet wraps errors whose story has already been told.
var errQuiet = errors.New("said already")

// usageError is a command line that cannot be carried out.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// codeError carries its exit code.
type codeError struct {
	code int
	err  error
}

func (e *codeError) Error() string { return e.err.Error() }
func (e *codeError) Unwrap() error { return e.err }

// exitCode maps an error to the code that the process ends with.
func exitCode(err error) int {
	var (
		usage *usageError
		code  *codeError
		p     *problem
	)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &code):
		return code.code
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &p):
		return p.exitCode()
	}
	return exitFailed
}

func (p *problem) exitCode() int {
	switch p.Status {
	case http.StatusNotFound, http.StatusGone:
		return exitNotFound
	case http.StatusUnauthorized, http.StatusForbidden:
		return exitAuth
	case http.StatusConflict, http.StatusPreconditionFailed:
		return exitConflict
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return exitUnreachable
	}
	return exitFailed
}
