// SPDX-License-Identifier: Apache-2.0

package wecom

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/notice"
)

// The types of message, and how many bytes WeCom takes of each.
const (
	asMarkdown  = "markdown"
	asText      = "text"
	maxMarkdown = 4096
	maxText     = 2048
	// maxMentions is how many bytes of Markdown those who are mentioned may take.
	maxMentions = 1024
)

// config is the config of a target, in the form that config.schema.json describes.
type config struct {
	URL     json.RawMessage `json:"url"`
	Message string          `json:"message"`
	Text    string          `json:"text"`
	Users   []string        `json:"mentionedUsers"`
	Mobiles []string        `json:"mentionedMobiles"`
}

// settings is a config that has been read.
type settings struct {
	message  string
	text     *rules.Text // nil = the default
	users    []string
	mobiles  []string
	mentions string // behind a text of Markdown
	slots    []targets.SecretSlot
}

func parse(cfg json.RawMessage, checkURL func(string) error) (*settings, error) {
	var c config
	f := &notice.Form{}
	if json.Unmarshal(cfg, &c) != nil {
		f.Complain("", "is not a config of a wecom target")
		return nil, f.Err()
	}
	s := &settings{message: c.Message, users: c.Users, mobiles: c.Mobiles}
	if s.message == "" {
		s.message = asMarkdown
	}
	f.Hook("/url", c.URL, checkURL)
	escape := rules.Escape(notice.Plain)
	if s.message == asText {
		escape = nil
	}
	s.text = f.Text("/text", c.Text, escape)
	if s.message == asMarkdown {
		s.mentions = mentions(c.Users)
		if len(s.mentions) > maxMentions {
			f.Complain("/mentionedUsers", "take %d bytes of the message; at most %d are allowed", len(s.mentions), maxMentions)
		}
		for i, u := range c.Users {
			if strings.TrimPrefix(u, "@") == "all" {
				f.Complain(fmt.Sprintf("/mentionedUsers/%d", i), "mentions nobody in Markdown: @all goes with message: text")
			}
		}
		if len(c.Mobiles) > 0 {
			f.Complain("/mentionedMobiles", "goes with message: text; in Markdown members are mentioned by their id")
		}
	}
	s.slots = f.Slots
	return s, f.Err()
}

// mentions is what stands behind a text of Markdown so that members are told.
func mentions(users []string) string {
	var b strings.Builder
	for _, u := range users {
		b.WriteString("<" + "@" + strings.TrimPrefix(u, "@") + ">")
	}
	if b.Len() == 0 {
		return ""
	}
	return "\n" + b.String()
}

type object = map[string]any

// body is the body of the request for a delivery.
func (t *target) body(d *notice.Draft) ([]byte, error) {
	text, err := t.textOf(d)
	if err != nil {
		return nil, err
	}
	m := object{"msgtype": asMarkdown, "markdown": object{"content": notice.Cut(text, maxMarkdown-len(t.mentions)) + t.mentions}}
	if t.message == asText {
		content := object{"content": notice.Cut(text, maxText)}
		if len(t.users) > 0 {
			content["mentioned_list"] = t.users
		}
		if len(t.mobiles) > 0 {
			content["mentioned_mobile_list"] = t.mobiles
		}
		m = object{"msgtype": asText, "text": content}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(m); err != nil {
		return nil, &targets.Error{Reason: targets.ReasonInternal, Err: err}
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// textOf is the text of a message, of any length.
func (t *target) textOf(d *notice.Draft) (string, error) {
	if t.text != nil {
		text, err := d.Render(t.text)
		if err == nil && strings.TrimSpace(text) == "" {
			err = &targets.Error{Reason: targets.ReasonTransform, Permanent: true, Err: errors.New("text: is empty")}
		}
		return text, err
	}
	var b strings.Builder
	begin, fact, plain := "### ", "\n> ", notice.Plain
	if t.message == asText {
		begin, fact, plain = "", "\n", func(s string) string { return s }
	}
	b.WriteString(begin + plain(notice.Title(d.Event)))
	for _, f := range notice.Facts(d.Delivery) {
		b.WriteString(fact + f.Name + ": " + plain(notice.Cut(f.Value, maxText/8)))
	}
	if data := notice.Data(d.Event, maxMarkdown); data != "" {
		b.WriteString("\n\n" + plain(data))
	}
	return b.String(), nil
}
