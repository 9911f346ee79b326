// SPDX-License-Identifier: Apache-2.0

package slack

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/notice"
)

// Limits of Slack, in characters but for the number of blocks.
const (
	maxText   = 40_000
	maxBlocks = 50
	maxBlock  = 3000
	maxHeader = 150
	maxField  = 2000
	maxButton = 75
	// maxMarkdown is for all blocks of Markdown in a message together.
	maxMarkdown = 12_000
	// maxParts is over how many blocks the data of an event goes: who wants more than some pages of it opens the journey.
	maxParts = 3
)

// blockMarkdown is the type of a block whose text is Markdown, as a string.
const blockMarkdown = "markdown"

// escape takes the meaning of markup from a value: what is no link, mention or entity is not one behind it.
var escape rules.Escape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace

// readBlocks reads the template of blocks. Values are escaped in texts that Slack looks for markup in.
func readBlocks(f *notice.Form, raw json.RawMessage) *rules.Text {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil || len(list) == 0 || len(list) > maxBlocks {
		f.Complain("/blocks", "is not a list of 1 to %d blocks", maxBlocks)
		return nil
	}
	var doc any
	if err := json.Unmarshal(raw, &doc); err != nil {
		f.Complain("/blocks", "is not JSON")
		return nil
	}
	marked := map[string]rules.Escape{}
	markedUp(doc, "", marked)
	return f.JSON("/blocks", raw, func(pointer string) rules.Escape { return marked[pointer] })
}

// escapeMarkdown takes the meaning of Markdown from a value, and of what Slack knows beside it.
var escapeMarkdown rules.Escape = func(s string) string { return escape(notice.Plain(s)) }

// markedUp notes the pointers of the texts of text objects, which Slack decodes, and of blocks of Markdown, and how values are written
// in them; other texts, such as those of rich text, it takes as they are.
func markedUp(v any, pointer string, to map[string]rules.Escape) {
	switch v := v.(type) {
	case []any:
		for i := range v {
			markedUp(v[i], pointer+fault.Pointer(strconv.Itoa(i)), to)
		}
	case map[string]any:
		switch {
		case isTextObject(v):
			to[pointer+"/text"] = escape
		case v["type"] == blockMarkdown:
			to[pointer+"/text"] = escapeMarkdown
		}
		for name := range v {
			markedUp(v[name], pointer+fault.Pointer(name), to)
		}
	}
}

func isTextObject(o map[string]any) bool { return o["type"] == "mrkdwn" || o["type"] == "plain_text" }

// message is the body of the request for a delivery.
func (t *target) message(d *notice.Draft) ([]byte, error) {
	m := struct {
		Channel     string `json:"channel,omitempty"`
		Text        string `json:"text"`
		Blocks      any    `json:"blocks,omitempty"`
		UnfurlLinks bool   `json:"unfurl_links"`
		UnfurlMedia bool   `json:"unfurl_media"`
	}{Text: escape(notice.Title(d.Event)), UnfurlLinks: t.unfurl, UnfurlMedia: t.unfurl}
	var err error
	if t.channel != nil {
		if m.Channel, err = d.Render(t.channel); err != nil {
			return nil, err
		}
		if m.Channel = strings.TrimSpace(m.Channel); m.Channel == "" {
			return nil, transformError("channel: is empty")
		}
	}
	if t.text != nil {
		if m.Text, err = d.Render(t.text); err != nil {
			return nil, err
		}
	}
	switch {
	case t.blocks != nil:
		text, err := d.Render(t.blocks)
		if err != nil {
			return nil, err
		}
		if m.Blocks, err = fitted(text); err != nil {
			return nil, err
		}
	case t.text == nil:
		m.Blocks = defaultBlocks(d)
	}
	if m.Text = notice.CutRunes(m.Text, maxText); strings.TrimSpace(m.Text) == "" && t.blocks == nil && t.text != nil {
		return nil, transformError("text: is empty")
	}
	return encode(m)
}

func transformError(text string) error {
	return &targets.Error{Reason: targets.ReasonTransform, Permanent: true, Err: errors.New(text)}
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, &targets.Error{Reason: targets.ReasonInternal, Err: err}
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

type object = map[string]any

// defaultBlocks says what an event is, where it comes from, and what it holds.
func defaultBlocks(d *notice.Draft) []object {
	blocks := []object{{"type": "header", "text": object{"type": "plain_text", "text": notice.CutRunes(escape(notice.Title(d.Event)), maxHeader), "emoji": false}}}
	var fields []object
	for _, f := range notice.Facts(d.Delivery) {
		fields = append(fields, object{"type": "mrkdwn", "text": notice.CutRunes("*"+f.Name+"*\n"+escape(f.Value), maxField), "verbatim": true})
	}
	blocks = append(blocks, object{"type": "section", "fields": fields})
	const fence = "```"
	for _, part := range notice.Parts(escape(notice.Unfenced(notice.Data(d.Event, maxParts*maxBlock))), maxBlock-2*len(fence), maxParts) {
		blocks = append(blocks, object{"type": "section", "text": object{"type": "mrkdwn", "text": fence + part + fence, "verbatim": true}})
	}
	return blocks
}

// fitted reads rendered blocks and cuts what is too long for Slack, which would refuse the whole message.
func fitted(text string) (any, error) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var blocks []any
	if err := dec.Decode(&blocks); err != nil {
		return nil, transformError("blocks: are not a list of JSON objects") // a template of JSON renders as JSON
	}
	var markdown []object
	for _, b := range blocks {
		fit(b, maxBlock)
		if o, ok := b.(object); ok && o["type"] == blockMarkdown {
			markdown = append(markdown, o)
		}
	}
	rest := maxMarkdown
	for i, o := range markdown {
		if s, ok := o["text"].(string); ok {
			s = fitText(s, rest-(len(markdown)-1-i)) // those behind have a character at least
			o["text"] = s
			rest -= utf8.RuneCountInString(s)
		}
	}
	return blocks, nil
}

// fit cuts the texts of text objects in v, which have at most limit characters. Slack takes no empty ones.
func fit(v any, limit int) {
	switch v := v.(type) {
	case []any:
		for i := range v {
			fit(v[i], limit)
		}
	case object:
		if s, ok := v["text"].(string); ok && isTextObject(v) {
			v["text"] = fitText(s, limit)
		}
		for name, member := range v {
			fit(member, limitOf(v["type"], name, limit))
		}
	}
}

// fitText cuts a text.
func fitText(s string, limit int) string {
	if s = notice.CutRunes(s, limit); strings.TrimSpace(s) == "" {
		return " "
	}
	return s
}

// limitOf is how many characters the texts in a member of an object may have.
func limitOf(kind any, member string, limit int) int {
	switch {
	case kind == "header":
		return maxHeader
	case kind == "section" && member == "fields":
		return maxField
	case slices.Contains([]any{"button", "static_select", "overflow"}, kind), member == "options":
		return maxButton
	}
	return limit
}

func checkToken(token string) error {
	if len(token) > 512 || !utf8.ValidString(token) || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("is not a token: printable ASCII without blanks")
	}
	return nil
}
