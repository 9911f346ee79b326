// SPDX-License-Identifier: Apache-2.0

// Package notice makes messages for people of events: what targets that write into chats and mailboxes have in common.
//
// Form reads the parts of their configs that are alike: secrets, the URL of a hook, templates. A Draft fills them in.
// Title, Facts and Data are what a message says that nobody has written a template for. Cut and its like keep texts within the
// limits of a platform, always between characters.
//
// All else here is a pure function of its arguments and safe for concurrent use. How a platform marks up text, and what it
// answers, is left to its own package.
package notice

import (
	"strings"
	"time"
	"unicode"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
)

// Draft is a message for a delivery that is being written. It belongs to one goroutine.
type Draft struct {
	targets.Delivery
	filler *rules.Filler // of the event, which is read once for all templates; nil until one of them wants something of it
}

// NewDraft returns a draft of nothing yet.
func NewDraft(d targets.Delivery) *Draft { return &Draft{Delivery: d} }

// Render fills a template in. The error is a permanent *targets.Error: the same event gives the same again.
func (d *Draft) Render(t *rules.Text) (string, error) {
	var b []byte
	var err error
	if d.filler == nil && !t.Static() {
		d.filler, err = rules.NewFiller(d.Event, rules.RenderContext{Rule: d.Rule, Bus: d.Bus, Received: d.Received}, nil)
	}
	if err == nil {
		b, err = t.Fill(d.filler)
	}
	if err != nil {
		return "", &targets.Error{Reason: targets.ReasonTransform, Permanent: true, Err: err}
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), nil
}

// Title names an event in one line: its type, and what it is about.
func Title(e *event.Event) string {
	if e.Subject == "" {
		return Line(e.Type)
	}
	return Line(e.Type + ": " + e.Subject)
}

// Fact is something that people want to know of an event.
type Fact struct{ Name, Value string }

// Facts tells where an event comes from, when, and why somebody is told.
func Facts(d targets.Delivery) []Fact {
	e := d.Event
	facts := []Fact{{"Source", Line(e.Source)}}
	if e.Subject != "" {
		facts = append(facts, Fact{"Subject", Line(e.Subject)})
	}
	if !e.Time.IsZero() {
		facts = append(facts, Fact{"Time", e.Time.UTC().Format(time.RFC3339)})
	}
	if d.Rule != "" {
		facts = append(facts, Fact{"Rule", d.Bus + "/" + d.Rule})
	}
	return append(facts, Fact{"Event", Line(e.ID)})
}

func isBinary(r rune) bool { return r < ' ' && r != '\n' && r != '\r' && r != '\t' || r == 0x7f }

// Line is a text in one line: runs of white space and control characters are one blank, and there are none at the ends.
func Line(s string) string {
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	}), " ")
}

// Block is a text of several lines, without control characters but \n and tabs, and without empty lines at its end.
func Block(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\r\n", "\n")
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\r':
			return '\n'
		case unicode.IsControl(r) && r != '\n' && r != '\t':
			return -1
		}
		return r
	}, s)
	return strings.TrimRight(s, " \t\n")
}
