// SPDX-License-Identifier: Apache-2.0

package dingtalk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode"

	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/notice"
)

// The types of message.
const (
	asMarkdown   = "markdown"
	asText       = "text"
	asLink       = "link"
	asActionCard = "actionCard"
)

// Limits of DingTalk, which takes messages of 20,000 bytes altogether. What is JSON for a text may be longer than the text.
const (
	maxBody  = 20_000
	maxText  = 16_000
	minText  = 500
	maxTitle = 100 // characters; only notifications show it
)

// config is the config of a target, in the form that config.schema.json describes.
type config struct {
	URL        json.RawMessage `json:"url"`
	Secret     json.RawMessage `json:"secret"`
	Message    string          `json:"message"`
	Title      string          `json:"title"`
	Text       string          `json:"text"`
	MessageURL string          `json:"messageUrl"`
	PicURL     string          `json:"picUrl"`
	Buttons    []struct {
		Title string `json:"title"`
		URL   string `json:"url"`
	} `json:"buttons"`
	AtMobiles []string `json:"atMobiles"`
	AtUserIDs []string `json:"atUserIds"`
	AtAll     bool     `json:"atAll"`
}

// settings is a config that has been read.
type settings struct {
	message                    string
	title, text, link, picture *rules.Text // nil = the default
	buttons                    []button
	mobiles, users             []string
	all                        bool
	slots                      []targets.SecretSlot
}

type button struct{ title, url *rules.Text }

func parse(cfg json.RawMessage, checkURL func(string) error) (*settings, error) {
	var c config
	f := &notice.Form{}
	if json.Unmarshal(cfg, &c) != nil {
		f.Complain("", "is not a config of a dingtalk target")
		return nil, f.Err()
	}
	s := &settings{message: c.Message, mobiles: c.AtMobiles, users: c.AtUserIDs, all: c.AtAll}
	if s.message == "" {
		s.message = asMarkdown
	}
	f.Hook("/url", c.URL, checkURL)
	f.Secret("/secret", c.Secret, checkSecret)
	s.title = f.Text("/title", c.Title, notice.Line)
	escape := rules.Escape(notice.Plain)
	if s.message == asText || s.message == asLink {
		escape = nil
	}
	s.text = f.Text("/text", c.Text, escape)
	s.link, s.picture = f.Text("/messageUrl", c.MessageURL, nil), f.Text("/picUrl", c.PicURL, nil)
	for i, b := range c.Buttons {
		at := fmt.Sprintf("/buttons/%d", i)
		s.buttons = append(s.buttons, button{f.Text(at+"/title", b.Title, notice.Line), f.Text(at+"/url", b.URL, nil)})
	}
	switch {
	case s.message == asLink && c.MessageURL == "":
		f.Complain("/messageUrl", "is missing: it is where a message of type link leads to")
	case s.message != asLink && c.MessageURL != "":
		f.Complain("/messageUrl", "goes with message: link")
	case s.message != asLink && c.PicURL != "":
		f.Complain("/picUrl", "goes with message: link")
	case s.message == asActionCard && len(c.Buttons) == 0:
		f.Complain("/buttons", "is missing: an action card has one at least")
	case s.message != asActionCard && len(c.Buttons) > 0:
		f.Complain("/buttons", "goes with message: actionCard")
	}
	if mentions := len(s.mobiles) > 0 || len(s.users) > 0 || s.all; mentions && (s.message == asLink || s.message == asActionCard) {
		f.Complain("/message", "is a type in which nobody can be mentioned")
	}
	s.slots = f.Slots
	return s, f.Err()
}

func checkSecret(key string) error {
	if len(key) > 512 || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("is not the secret of a robot: printable ASCII without blanks")
	}
	return nil
}

type object = map[string]any

// content is what a message says. Only its text and its data may be cut.
type content struct {
	title, text string
	data        string // behind the text, as a block of code; "" = none
	rest        object // of a link or an action card
}

// body is the body of the request for a delivery. A text that makes it too large is cut.
func (t *target) body(d *notice.Draft) ([]byte, error) {
	c, err := t.contentOf(d)
	if err != nil {
		return nil, err
	}
	for limit := maxText; ; limit = limit * 2 / 3 {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(t.messageOf(c, limit)); err != nil {
			return nil, &targets.Error{Reason: targets.ReasonInternal, Err: err}
		}
		switch body := bytes.TrimRight(b.Bytes(), "\n"); {
		case len(body) <= maxBody:
			return body, nil
		case limit < minText:
			return nil, &targets.Error{Reason: targets.ReasonTooLarge, Permanent: true, Err: fmt.Errorf("a message of %d bytes; DingTalk takes %d", len(body), maxBody)}
		}
	}
}

// contentOf is what the message for a delivery says.
func (t *target) contentOf(d *notice.Draft) (c content, err error) {
	c.title = notice.Title(d.Event)
	if t.title != nil {
		if c.title, err = d.Render(t.title); err != nil {
			return c, err
		}
	}
	c.title = notice.CutRunes(notice.Line(c.title), maxTitle)
	switch t.message {
	case asLink:
		c.rest, err = t.linkOf(d)
	case asActionCard:
		c.rest, err = t.card(d)
	}
	if err != nil {
		return c, err
	}
	if t.text == nil {
		c.text, c.data = t.summary(d)
		return c, nil
	}
	c.text, err = d.Render(t.text)
	if err == nil && strings.TrimFunc(c.text, unicode.IsSpace) == "" {
		err = &targets.Error{Reason: targets.ReasonTransform, Permanent: true, Err: errors.New("text: is empty")}
	}
	return c, err
}

// messageOf is a message with a text of at most limit bytes.
func (t *target) messageOf(c content, limit int) object {
	text := notice.Cut(c.text, limit)
	if c.data != "" {
		text = notice.Cut(text, limit/2)
		if fenced := notice.Fence(c.data, limit-len(text)-2); fenced != "" {
			text += "\n\n" + fenced
		}
	}
	at := object{"atMobiles": list(t.mobiles), "atUserIds": list(t.users), "isAtAll": t.all}
	switch t.message {
	case asText:
		return object{"msgtype": asText, "text": object{"content": text}, "at": at}
	case asLink, asActionCard:
		c.rest["title"], c.rest["text"] = c.title, text
		return object{"msgtype": t.message, t.message: c.rest}
	}
	return object{"msgtype": asMarkdown, "markdown": object{"title": c.title, "text": text + t.mentions(text)}, "at": at}
}

func list(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// summary is a default text, and in Markdown the data that goes behind it.
func (t *target) summary(d *notice.Draft) (text, data string) {
	data = notice.Data(d.Event, maxText)
	if t.message == asText || t.message == asLink {
		text = notice.Title(d.Event)
		for _, f := range notice.Facts(d.Delivery) {
			text += "\n" + f.Name + ": " + f.Value
		}
		if data != "" {
			text += "\n\n" + data
		}
		return text, ""
	}
	text = "### " + notice.Plain(notice.Title(d.Event)) + "\n"
	for _, f := range notice.Facts(d.Delivery) {
		text += "\n- " + f.Name + ": " + notice.Plain(f.Value)
	}
	return text, data
}

// linkOf is a link without its text.
func (t *target) linkOf(d *notice.Draft) (object, error) {
	link, err := t.address(t.link, d, "messageUrl")
	if err != nil {
		return nil, err
	}
	picture := ""
	if t.picture != nil {
		if picture, err = t.address(t.picture, d, "picUrl"); err != nil {
			return nil, err
		}
	}
	return object{"messageUrl": link, "picUrl": picture}, nil
}

// mentions is what stands behind a text so that those who are mentioned see it: DingTalk looks for them there.
func (t *target) mentions(text string) string {
	var b strings.Builder
	for _, who := range append(append([]string(nil), t.mobiles...), t.users...) {
		if !names(text, who) {
			b.WriteString(" @" + who)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "\n\n" + b.String()[1:]
}

// names reports whether a text mentions somebody, and not only another whose name begins alike.
func names(text, who string) bool {
	for {
		_, rest, found := strings.Cut(text, "@"+who)
		switch {
		case !found:
			return false
		case rest == "" || !inName(rest[0]):
			return true
		}
		text = rest
	}
}

// inName reports whether a byte may stand in a name.
func inName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("_.@+-", c) >= 0
}

// card is an action card without its text.
func (t *target) card(d *notice.Draft) (object, error) {
	var buttons []object
	for i, b := range t.buttons {
		title, err := d.Render(b.title)
		if err != nil {
			return nil, err
		}
		address, err := t.address(b.url, d, fmt.Sprintf("buttons/%d/url", i))
		if err != nil {
			return nil, err
		}
		buttons = append(buttons, object{"title": notice.CutRunes(notice.Line(title), maxTitle), "actionURL": address})
	}
	if len(buttons) == 1 {
		return object{"singleTitle": buttons[0]["title"], "singleURL": buttons[0]["actionURL"]}, nil
	}
	return object{"btnOrientation": "0", "btns": buttons}, nil
}

// address fills a URL in. It must be one that a click may open.
func (t *target) address(text *rules.Text, d *notice.Draft, what string) (string, error) {
	s, err := d.Render(text)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(strings.TrimSpace(s))
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "dingtalk" {
		return "", &targets.Error{Reason: targets.ReasonTransform, Permanent: true, Err: errors.New(what + ": is not a URL that begins with https://, http:// or dingtalk://")}
	}
	return u.String(), nil
}
