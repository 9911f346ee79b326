// SPDX-License-Identifier: Apache-2.0

package email

import (
	"bytes"
	"errors"
	"fmt"
	"net/mail"
	"strings"

	gomail "github.com/wneessen/go-mail"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/notice"
)

const (
	maxSubject = 200       // characters
	maxFact    = 1000      // bytes of a title or a fact in a default text
	maxData    = 256 << 10 // of the data in a default text: who wants more attaches the event
)

// message is a mail that is ready to be sent.
type message struct {
	from       string
	recipients []string // without repetitions
	body       []byte   // headers and all
}

func transformError(format string, args ...any) error {
	return &targets.Error{Reason: targets.ReasonTransform, Permanent: true, Err: fmt.Errorf(format, args...)}
}

// compose makes a mail of a delivery.
func (t *target) compose(d *notice.Draft) (*message, error) {
	m := gomail.NewMsg(gomail.WithNoDefaultUserAgent())
	out := &message{from: t.from.Address}
	m.FromMailAddress(t.from)
	for _, list := range []struct {
		places []address
		set    func(...*mail.Address)
	}{{t.to, m.ToMailAddress}, {t.cc, m.CcMailAddress}, {t.bcc, m.BccMailAddress}} {
		found, err := fill(list.places, d)
		if err != nil {
			return nil, err
		}
		if len(found) > 0 {
			list.set(found...)
		}
		out.add(found)
	}
	if t.replyTo != nil {
		found, err := fill([]address{*t.replyTo}, d)
		if err != nil {
			return nil, err
		}
		m.ReplyToMailAddress(found...)
	}
	subject := notice.Title(d.Event)
	if t.subject != nil {
		var err error
		if subject, err = d.Render(t.subject); err != nil {
			return nil, err
		}
	}
	m.Subject(notice.CutRunes(notice.Line(subject), maxSubject))
	_, domain, _ := strings.Cut(t.from.Address, "@")
	m.SetMessageIDWithValue(messageID(d.ID) + "@" + domain)
	m.SetDateWithValue(t.env.Now())
	m.SetGenHeader("Auto-Submitted", "auto-generated")
	m.SetGenHeader("X-Auto-Response-Suppress", "All")
	if err := t.write(m, d); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if _, err := m.WriteTo(&b); err != nil {
		return nil, &targets.Error{Reason: targets.ReasonInternal, Err: err}
	}
	if out.body = b.Bytes(); len(out.body) > t.maxSize {
		return nil, &targets.Error{Reason: targets.ReasonTooLarge, Permanent: true, Err: fmt.Errorf("a mail of %d bytes; maxSize is %d", len(out.body), t.maxSize)}
	}
	return out, nil
}

// add adds recipients.
func (m *message) add(found []*mail.Address) {
next:
	for _, a := range found {
		for _, r := range m.recipients {
			if strings.EqualFold(r, a.Address) {
				continue next
			}
		}
		m.recipients = append(m.recipients, a.Address)
	}
}

// fill fills places for addresses.
func fill(places []address, d *notice.Draft) ([]*mail.Address, error) {
	var found []*mail.Address
	for _, p := range places {
		text, err := d.Render(p.text)
		if err != nil {
			return nil, err
		}
		a, err := parseAddress(text)
		if err != nil {
			return nil, transformError("%s: what the event fills in %w", strings.TrimPrefix(p.pointer, "/"), err)
		}
		found = append(found, a)
	}
	return found, nil
}

// messageID is the left part of a Message-ID: a delivery's id, of which every character stands for itself.
func messageID(id string) string {
	var b strings.Builder
	for i := range len(id) {
		if c := id[i]; c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "=%02x", c)
		}
	}
	return b.String()
}

// write writes what a mail says.
func (t *target) write(m *gomail.Msg, d *notice.Draft) error {
	set := m.SetBodyString // and after the first part AddAlternativeString
	if t.text == nil && t.html == nil {
		set(gomail.TypeTextPlain, summary(d))
	}
	for _, part := range []struct {
		kind gomail.ContentType
		text *rules.Text
	}{{gomail.TypeTextPlain, t.text}, {gomail.TypeTextHTML, t.html}} {
		if part.text == nil {
			continue
		}
		s, err := d.Render(part.text)
		if err != nil {
			return err
		}
		set(part.kind, s)
		set = m.AddAlternativeString
	}
	return t.attachTo(m, d)
}

// summary is a default text.
func summary(d *notice.Draft) string {
	var b strings.Builder
	b.WriteString(notice.Cut(notice.Title(d.Event), maxFact) + "\n\n")
	for _, f := range notice.Facts(d.Delivery) {
		fmt.Fprintf(&b, "%-8s %s\n", f.Name+":", notice.Cut(f.Value, maxFact))
	}
	if data := notice.Data(d.Event, maxData); data != "" {
		b.WriteString("\n" + data + "\n")
	}
	return b.String()
}

// attachTo attaches the event, if that is asked for.
func (t *target) attachTo(m *gomail.Msg, d *notice.Draft) error {
	if !t.attach {
		return nil
	}
	err := m.AttachReader("event.json", bytes.NewReader(event.AppendJSON(nil, d.Event)), gomail.WithFileContentType("application/cloudevents+json"))
	if err != nil {
		return &targets.Error{Reason: targets.ReasonInternal, Err: errors.New("attach the event: " + err.Error())}
	}
	return nil
}
