// SPDX-License-Identifier: Apache-2.0

package notice

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/internal/egress"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
)

// Form reads a config and gathers what is wrong with it. Pointers are those of the config.
type Form struct {
	Details []fault.Detail
	Slots   []targets.SecretSlot // the secrets that were read
}

// Complain notes what is wrong.
func (f *Form) Complain(pointer, format string, args ...any) {
	f.Details = append(f.Details, fault.Detail{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
}

// Err is a *fault.Error with all that is wrong; nil if nothing is.
func (f *Form) Err() error { return fault.Collect(f.Details) }

// Secret reads a secret; one that the config does not have is none. It reports whether there is one.
func (f *Form) Secret(pointer string, raw json.RawMessage, check func(text string) error) bool {
	if len(raw) == 0 || string(raw) == "null" {
		return false
	}
	s, details := targets.ReadSecret(pointer, raw, check)
	f.Slots, f.Details = append(f.Slots, s), append(f.Details, details...)
	return true
}

// Hook reads the secret URL of a hook. checkURL is the egress guard's CheckURL; nil when a config is loaded that was checked
// before. Of a reference it is asked when that is resolved, though not of the address, which is the dialer's business.
func (f *Form) Hook(pointer string, raw json.RawMessage, checkURL func(url string) error) bool {
	if checkURL == nil {
		checkURL = isURL
	}
	before := len(f.Slots)
	there := f.Secret(pointer, raw, checkURL)
	for i := before; i < len(f.Slots); i++ {
		f.Slots[i].Check = isURL
	}
	return there
}

// isURL says whether a text can be the URL of a hook at all.
func isURL(text string) error {
	err := guard.CheckURL(text)
	var blocked *egress.BlockedError
	if errors.As(err, &blocked) {
		return nil
	}
	return err
}

var guard = egress.New(egress.Options{})

// Text reads a template of text; nil when it is empty, or wrong.
func (f *Form) Text(pointer, text string, escape rules.Escape) *rules.Text {
	if text == "" {
		return nil
	}
	t, err := rules.ParseMessage(text, escape)
	if err != nil {
		f.Complain(pointer, "%v", err)
		return nil
	}
	return t
}

// JSON reads a template that is a JSON document; nil when there is none, or it is wrong. escape is that of
// rules.ParseMessageJSON.
func (f *Form) JSON(pointer string, raw json.RawMessage, escape func(pointer string) rules.Escape) *rules.Text {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	f.Details = append(f.Details, targets.RefuseSecrets(pointer, raw)...)
	t, err := rules.ParseMessageJSON(raw, escape)
	if err == nil {
		return t
	}
	var fe *fault.Error
	if errors.As(fault.At(pointer, err), &fe) {
		f.Details = append(f.Details, fe.Details...)
		return nil
	}
	f.Complain(pointer, "%v", err)
	return nil
}

// minHidden is how long a part of a URL is that may be a key. What is shorter is a word of the path, or a name.
const minHidden = 16

// Hide returns what nobody may be shown of a URL that is a secret, and of other secrets, longer texts before those they hold.
func Hide(u *url.URL, others ...string) []string {
	hidden := []string{u.String(), u.RequestURI()}
	for _, part := range strings.Split(u.EscapedPath(), "/") {
		if len(part) >= minHidden {
			hidden = append(hidden, part)
		}
	}
	for _, values := range u.Query() {
		others = append(others, values...)
	}
	for _, o := range others {
		hidden = append(hidden, Forms(o)...)
	}
	return inOrder(hidden)
}

// Forms returns a secret in all the forms in which a far side may repeat it.
func Forms(text string) []string { return inOrder(secret.Forms(text)) }

func inOrder(hidden []string) []string {
	hidden = slices.DeleteFunc(hidden, func(s string) bool { return len(s) < 4 }) // it would be found where it does not stand
	slices.SortFunc(hidden, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	return slices.Compact(hidden)
}
