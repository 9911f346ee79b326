// SPDX-License-Identifier: Apache-2.0

package email

import (
	"context"
	"errors"
	"fmt"
	"net/textproto"
	"strings"

	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

// tooLarge is a mail that the server says beforehand that it does not take.
type tooLarge struct{ size, most int }

func (e *tooLarge) Error() string {
	return fmt.Sprintf("a mail of %d bytes; the server takes %d", e.size, e.most)
}

const maxText = 200 // of an error

// failure says what an error of a session means, and keeps what the server has said.
func (s *session) failure(ctx context.Context, err error, login bool) *targets.Error {
	var reply *textproto.Error
	var large *tooLarge
	var malformed textproto.ProtocolError
	switch {
	case ctx.Err() != nil: // whatever was said about it
	case errors.As(err, &large):
		return &targets.Error{Reason: targets.ReasonTooLarge, Permanent: true, Err: large}
	case errors.As(err, &reply) && reply.Code >= 400 && reply.Code <= 599:
		return s.refusal(reply, login)
	case errors.As(err, &reply):
		return &targets.Error{Reason: targets.ReasonProtocol, Status: reply.Code, Err: errors.New("the server answers out of turn: " + s.said(textOf(reply), maxText/2))}
	case errors.As(err, &malformed): // which repeats what was said
		return &targets.Error{Reason: targets.ReasonProtocol, Err: errors.New("the answer is not one of SMTP")}
	case errors.Is(err, errNoStartTLS):
		return &targets.Error{Reason: targets.ReasonTLS, Err: errNoStartTLS}
	case errors.Is(err, errMechanism), login && !isConnection(err):
		return &targets.Error{Reason: targets.ReasonAuth, Err: errors.New(s.said(err.Error(), maxText))}
	}
	e := outbound.Failure(ctx, err)
	if e.Reason == targets.ReasonBlockedAddress {
		s.result = targets.Result{}
	}
	return e
}

// isConnection reports whether an error is one of the connection, rather than of what was said.
func isConnection(err error) bool {
	return outbound.Failure(context.Background(), err).Reason != targets.ReasonProtocol || errors.Is(err, errAnswers)
}

// refusal is what a reply of 4xx or 5xx means.
func (s *session) refusal(reply *textproto.Error, login bool) *targets.Error {
	s.result.Status = reply.Code
	var head strings.Builder
	for line := range strings.SplitSeq(reply.Msg, "\n") {
		if head.Len() > targets.MaxHead/2 {
			break
		}
		fmt.Fprintf(&head, "%d %s\n", reply.Code, s.said(line, maxText))
	}
	s.result.Head = head.String()
	e := &targets.Error{Reason: targets.ReasonStatus, Permanent: reply.Code >= 500, Status: reply.Code, Err: errors.New(s.said(textOf(reply), maxText))}
	switch {
	case login, reply.Code == 530, reply.Code == 535, reply.Code == 534, reply.Code == 538:
		e.Reason = targets.ReasonAuth
	case reply.Code == 552, reply.Code == 523:
		e.Reason = targets.ReasonTooLarge
	}
	return e
}

// textOf is a reply as the server gave it: that of a textproto.Error is quoted, so that what is hidden would not be found.
func textOf(reply *textproto.Error) string { return fmt.Sprintf("%d %s", reply.Code, reply.Msg) }

// said is what a server has said as text that can be shown, of at most limit bytes.
func (s *session) said(text string, limit int) string {
	for _, h := range s.hidden {
		text = strings.ReplaceAll(text, h, "[redacted]")
	}
	text = outbound.Sanitise([]byte(text))
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "")
	}
	return text
}
