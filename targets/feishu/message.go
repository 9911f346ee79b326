// SPDX-License-Identifier: Apache-2.0

package feishu

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/notice"
)

// The types of message.
const (
	asCard = "interactive"
	asPost = "post"
	asText = "text"
)

// Limits of Feishu, which takes requests of 20 KB. What is JSON for a text may be longer than the text.
const (
	maxBody  = 20_000
	maxText  = 16_000
	minText  = 500
	maxTitle = 150 // characters
	maxFact  = 500
)

// config is the config of a target, in the form that config.schema.json describes.
type config struct {
	URL       json.RawMessage `json:"url"`
	Secret    json.RawMessage `json:"secret"`
	Message   string          `json:"message"`
	Title     string          `json:"title"`
	Text      string          `json:"text"`
	Card      json.RawMessage `json:"card"`
	AtUserIDs []string        `json:"atUserIds"`
	AtAll     bool            `json:"atAll"`
}

// settings is a config that has been read.
type settings struct {
	message           string
	title, text, card *rules.Text // nil = the default
	mentioned         []string
	slots             []targets.SecretSlot
}

func parse(cfg json.RawMessage, checkURL func(string) error) (*settings, error) {
	var c config
	f := &notice.Form{}
	if json.Unmarshal(cfg, &c) != nil {
		f.Complain("", "is not a config of a feishu target")
		return nil, f.Err()
	}
	s := &settings{message: c.Message, mentioned: c.AtUserIDs}
	if c.AtAll {
		s.mentioned = append([]string{"all"}, s.mentioned...)
	}
	if s.message == "" {
		s.message = asCard
	}
	f.Hook("/url", c.URL, checkURL)
	f.Secret("/secret", c.Secret, checkSecret)
	s.title = f.Text("/title", c.Title, notice.Line)
	s.text = f.Text("/text", c.Text, map[string]rules.Escape{asCard: escape, asText: escapeText}[s.message])
	s.card = readCard(f, c.Card)
	switch {
	case c.Card == nil:
	case s.message != asCard:
		f.Complain("/card", "goes with message: interactive")
	case c.Title != "" || c.Text != "":
		f.Complain("/card", "is all of a message: title and text have no place beside it")
	case len(s.mentioned) > 0:
		f.Complain("/card", `is all of a message: write <at id=all></at> into it`)
	}
	if s.message == asText && c.Title != "" {
		f.Complain("/title", "is for cards and posts")
	}
	s.slots = f.Slots
	return s, f.Err()
}

func checkSecret(key string) error {
	if len(key) > 512 || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("is not the secret of a bot: printable ASCII without blanks")
	}
	return nil
}

// entities are what the characters of Markdown are written as in a card.
var entities = func() *strings.Replacer {
	var pairs []string
	for _, c := range "&<>*_~`[]()#!|\\" {
		pairs = append(pairs, string(c), "&#"+strconv.Itoa(int(c))+";")
	}
	return strings.NewReplacer(pairs...)
}()

// escape takes the meaning of Markdown from a value in a card.
func escape(s string) string { return entities.Replace(notice.Block(s)) }

// escapeText takes the meaning of a mention or a link from a value in a text, also if the next value goes on with it.
func escapeText(s string) string { return notice.Apart(s, "<", "＜", "〈", "]") }

// readCard reads the template of a card. Values are escaped in what Feishu reads as Markdown.
func readCard(f *notice.Form, raw json.RawMessage) *rules.Text {
	if len(raw) == 0 {
		return nil
	}
	var doc any
	if err := json.Unmarshal(raw, &doc); err != nil {
		f.Complain("/card", "is not JSON")
		return nil
	}
	marked := map[string]bool{}
	markedUp(doc, "", marked)
	return f.JSON("/card", raw, func(pointer string) rules.Escape {
		if marked[pointer] {
			return escape
		}
		return nil
	})
}

// markedUp notes the pointers of texts that are Markdown.
func markedUp(v any, pointer string, to map[string]bool) {
	switch v := v.(type) {
	case []any:
		for i := range v {
			markedUp(v[i], pointer+fault.Pointer(strconv.Itoa(i)), to)
		}
	case map[string]any:
		if v["tag"] == "lark_md" || v["tag"] == "markdown" {
			to[pointer+"/content"] = true
		}
		for name := range v {
			markedUp(v[name], pointer+fault.Pointer(name), to)
		}
	}
}

type object = map[string]any

// content is what a message says. Only its text and its data may be cut.
type content struct {
	title string
	text  string          // "" = the default
	facts []object        // of a default card
	data  string          // of a default card
	card  json.RawMessage // all of it
}

// body is the body of the request for a delivery, signed if there is a key. A text that makes it too large is cut.
func (t *target) body(d *notice.Draft, key string) ([]byte, error) {
	c, err := t.contentOf(d)
	if err != nil {
		return nil, err
	}
	for limit := maxText; ; limit = limit * 2 / 3 {
		m := t.messageOf(c, limit)
		if key != "" {
			timestamp := strconv.FormatInt(t.env.Now().Unix(), 10)
			m["timestamp"], m["sign"] = timestamp, sign(timestamp, key)
		}
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(m); err != nil {
			return nil, &targets.Error{Reason: targets.ReasonInternal, Err: err}
		}
		switch body := bytes.TrimRight(b.Bytes(), "\n"); {
		case len(body) <= maxBody:
			return body, nil
		case limit < minText || c.card != nil:
			return nil, &targets.Error{Reason: targets.ReasonTooLarge, Permanent: true, Err: fmt.Errorf("a message of %d bytes; Feishu takes %d", len(body), maxBody)}
		}
	}
}

// contentOf is what the message for a delivery says.
func (t *target) contentOf(d *notice.Draft) (c content, err error) {
	if t.card != nil {
		card, err := d.Render(t.card)
		return content{card: json.RawMessage(card)}, err
	}
	c.title = notice.Title(d.Event)
	if t.title != nil {
		if c.title, err = d.Render(t.title); err != nil {
			return c, err
		}
	}
	c.title = notice.CutRunes(notice.Line(c.title), maxTitle)
	switch {
	case t.text != nil:
		if c.text, err = d.Render(t.text); err == nil && strings.TrimSpace(c.text) == "" {
			err = &targets.Error{Reason: targets.ReasonTransform, Permanent: true, Err: errors.New("text: is empty")}
		}
	case t.message == asText:
		c.text = escapeText(notice.Cut(notice.Title(d.Event), maxFact) + "\n" + summary(d))
	case t.message == asPost:
		c.text = summary(d)
	default:
		for _, f := range notice.Facts(d.Delivery) {
			c.facts = append(c.facts, object{"is_short": true, "text": object{"tag": "lark_md", "content": "**" + f.Name + "**\n" + escape(notice.Cut(f.Value, maxFact))}})
		}
		c.data = notice.Data(d.Event, maxText)
	}
	return c, err
}

// messageOf is a message with a text of at most limit bytes.
func (t *target) messageOf(c content, limit int) object {
	if c.card != nil {
		return object{"msg_type": asCard, "card": c.card}
	}
	text := notice.Cut(c.text, limit)
	switch t.message {
	case asText:
		for _, who := range t.mentioned {
			text += fmt.Sprintf(` <at user_id=%q></at>`, who)
		}
		return object{"msg_type": asText, "content": object{"text": text}}
	case asPost:
		return object{"msg_type": asPost, "content": object{"post": object{"zh_cn": object{"title": c.title, "content": t.paragraphs(text)}}}}
	}
	return object{"msg_type": asCard, "card": object{"config": object{"wide_screen_mode": true},
		"header": object{"template": "blue", "title": object{"tag": "plain_text", "content": c.title}}, "elements": t.elements(c, text, limit)}}
}

// summary is a default text, without a title.
func summary(d *notice.Draft) string {
	var lines []string
	for _, f := range notice.Facts(d.Delivery) {
		lines = append(lines, f.Name+": "+notice.Cut(f.Value, maxFact))
	}
	text := strings.Join(lines, "\n")
	if data := notice.Data(d.Event, maxText); data != "" {
		text += "\n\n" + data
	}
	return text
}

// paragraphs is the content of a post, in which nothing is marked up.
func (t *target) paragraphs(text string) [][]object {
	content := [][]object{{{"tag": "text", "text": text}}}
	var who []object
	for _, id := range t.mentioned {
		who = append(who, object{"tag": "at", "user_id": id})
	}
	if who != nil {
		content = append(content, who)
	}
	return content
}

// elements are the body of a card.
func (t *target) elements(c content, text string, limit int) []object {
	elements := []object{{"tag": "markdown", "content": text}}
	if text == "" {
		elements = []object{{"tag": "div", "fields": c.facts}}
		if c.data != "" {
			elements = append(elements, object{"tag": "hr"}, object{"tag": "div", "text": object{"tag": "plain_text", "content": notice.Cut(c.data, limit)}})
		}
	}
	mentions := ""
	for _, who := range t.mentioned {
		mentions += "<at id=" + who + "></at>"
	}
	if mentions != "" {
		elements = append(elements, object{"tag": "markdown", "content": mentions})
	}
	return elements
}
