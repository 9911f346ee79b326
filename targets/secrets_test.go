// SPDX-License-Identifier: Apache-2.0

package targets_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/targets"
)

func noBlank(s string) error {
	if strings.Contains(s, " ") {
		return errors.New("has a blank")
	}
	return nil
}

func TestReadSecret(t *testing.T) {
	for doc, want := range map[string]string{
		`{"value": "a"}`:       "",
		`{"ref": "env:A"}`:     "",
		`{"value": "a b"}`:     "/key: has a blank",
		`{"ref": "A"}`:         "/key: a reference is",
		`"a"`:                  "/key: a secret is",
		`{"value": "", "x":1}`: "/key: a secret is",
	} {
		s, details := targets.ReadSecret("/key", json.RawMessage(doc), noBlank)
		got := ""
		for _, d := range details {
			got += d.Pointer + ": " + d.Detail
		}
		if s.Pointer != "/key" || want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", doc, got, want)
		}
	}
}

func TestSecretSet(t *testing.T) {
	now := time.Unix(1000, 0)
	secrets := map[string]string{}
	asked := 0
	env := targets.Env{Now: func() time.Time { return now }, Logger: slog.New(slog.DiscardHandler), Secrets: func(ref string) (string, error) {
		asked++
		if s, ok := secrets[ref]; ok {
			return s, nil
		}
		return "", fmt.Errorf("secret %s: is not set", ref)
	}}
	slot := func(pointer, doc string) targets.SecretSlot {
		s, details := targets.ReadSecret(pointer, json.RawMessage(doc), noBlank)
		if len(details) > 0 {
			t.Fatal(details)
		}
		return s
	}
	s := targets.NewSecretSet(env, slot("/a", `{"ref": "env:A"}`), slot("/b", `{"value": "inline"}`))
	get := func() string {
		values, err := s.Values()
		if err != nil {
			return err.Error()
		}
		return values["/a"] + " " + values["/b"]
	}
	for _, step := range []struct {
		set   string
		after time.Duration
		want  string
	}{
		{"", 0, "secret env:A: is not set"},
		{"two words", 0, "/a: secret env:A: has a blank"},
		{"one", 0, "one inline"},
		{"two", 59 * time.Second, "one inline"},
		{"two", time.Second, "two inline"},
		{"two words", time.Minute, "two inline"},
		{"three", time.Minute, "three inline"},
	} {
		delete(secrets, "env:A")
		if step.set != "" {
			secrets["env:A"] = step.set
		}
		now = now.Add(step.after)
		if got := get(); got != step.want {
			t.Errorf("%q after %v: %q, want %q", step.set, step.after, got, step.want)
		}
	}
	secrets["env:A"] = "four"
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, "three inline"},
		{errors.New("x"), "three inline"},
		{&targets.Error{Reason: targets.ReasonStatus, Status: 500}, "three inline"},
		{&targets.Error{Reason: targets.ReasonAuth}, "four inline"},
	} {
		s.Doubt(c.err)
		if got := get(); got != c.want {
			t.Errorf("after %v: %q, want %q", c.err, got, c.want)
		}
	}
	secrets["env:A"] = "two words"
	s.Doubt(fmt.Errorf("far: %w", &targets.Error{Reason: targets.ReasonStatus, Status: 401}))
	if got := get(); got != "four inline" {
		t.Errorf("while it is refused: %q", got)
	}
	never := targets.NewSecretSet(env, slot("/a", `{"ref": "env:B"}`))
	never.Doubt(&targets.Error{Reason: targets.ReasonAuth})
	if _, err := never.Values(); err == nil {
		t.Error("a secret that never was one is used")
	}
	asked -= 3
	if asked != 6 {
		t.Errorf("asked %d times, want 6", asked)
	}
}
