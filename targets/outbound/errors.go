// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"

	"github.com/rialto-bridge/rialto/internal/egress"
	"github.com/rialto-bridge/rialto/targets"
)

// Failure says why an attempt failed that does not speak HTTP: err is what its connection, or its dialer, has said. ctx is that
// of the attempt: when it is done it is the cause.
func Failure(ctx context.Context, err error) *targets.Error { return failure(ctx, err) }

// failure says why a request got no complete answer. ctx is that of the attempt: when it is done it is the cause,
// whatever the connection said about it.
func failure(ctx context.Context, err error) *targets.Error {
	reason := reasonOf(err)
	switch ctxErr := ctx.Err(); {
	case errors.Is(ctxErr, context.DeadlineExceeded):
		reason, err = targets.ReasonTimeout, ctxErr
	case ctxErr != nil:
		reason, err = targets.ReasonInterrupted, ctxErr
	}
	return &targets.Error{Reason: reason, Err: &cause{text: describe(reason, err), err: err}}
}

func reasonOf(err error) targets.Reason {
	var blocked *egress.BlockedError
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &blocked):
		return targets.ReasonBlockedAddress
	case errors.As(err, &dns):
		return targets.ReasonDNS
	case isTLS(err):
		return targets.ReasonTLS
	case errors.As(err, &op) && op.Op == "dial":
		return targets.ReasonConnect
	case isReset(err):
		return targets.ReasonReset
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return targets.ReasonTimeout
	}
	return targets.ReasonProtocol
}

func isTLS(err error) bool {
	var record tls.RecordHeaderError
	var verify *tls.CertificateVerificationError
	var alert tls.AlertError
	var authority x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	var op *net.OpError
	switch {
	case errors.As(err, &record), errors.As(err, &verify), errors.As(err, &alert), errors.As(err, &authority),
		errors.As(err, &hostname), errors.As(err, &invalid), errors.Is(err, http.ErrSchemeMismatch):
		return true
	case errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error"): // how crypto/tls names alerts
		return true
	}
	return strings.Contains(err.Error(), "TLS handshake timeout") || strings.HasPrefix(rootText(err), "tls: ")
}

func isReset(err error) bool {
	for _, target := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, net.ErrClosed} {
		if errors.Is(err, target) {
			return true
		}
	}
	text := err.Error() // errors of net/http that have no type
	return strings.Contains(text, "server closed idle connection") || strings.Contains(text, "connection reset") ||
		strings.Contains(text, "RST_STREAM") || strings.Contains(text, "stream error") || strings.Contains(text, "GOAWAY")
}

func rootText(err error) string {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err.Error()
		}
		err = next
	}
}

// describe puts an error in words for people: without the URL, which may hold secrets, and without what a stranger sent
// as it came.
func describe(reason targets.Reason, err error) string {
	switch reason {
	case targets.ReasonTimeout:
		return "no complete answer in time"
	case targets.ReasonInterrupted:
		return "stopped"
	}
	var dns *net.DNSError
	if errors.As(err, &dns) { // whose own words give the name server away
		switch {
		case dns.IsNotFound:
			return "the name does not exist"
		case dns.IsTimeout:
			return "no name server answered in time"
		}
		return "the name cannot be resolved"
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	text := err.Error()
	var op *net.OpError
	if errors.As(err, &op) {
		text = op.Err.Error()
		if op.Op == "dial" && op.Addr != nil && reason == targets.ReasonConnect {
			text = op.Addr.String() + ": " + text
		}
	}
	text = Sanitise([]byte(text))
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "")
	}
	return text
}

const maxText = 200 // of an error

// cause is an error with another text.
type cause struct {
	text string
	err  error
}

func (c *cause) Error() string { return c.text }
func (c *cause) Unwrap() error { return c.err }
