// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/rialto-bridge/rialto/internal/app"
	"github.com/rialto-bridge/rialto/internal/egress"
	"github.com/rialto-bridge/rialto/targets"
)

// guides are the pages that people have written of a kind.
var guides = map[string]string{
	"webhook":  "What a receiver gets, how it answers and how to verify signatures: [webhooks.md](../webhooks.md).",
	"http":     "Examples for pagers and gateways, and what templates can do: [http-target.md](../http-target.md).",
	"device":   "When a command counts as delivered: [device-target.md](../device-target.md).",
	"bus":      "What is stored there, and how loops end: [bus-target.md](../bus-target.md).",
	"function": "How to write one, and what it may do: [functions.md](../functions.md); those that run elsewhere: [functions.md](../functions.md#functions-elsewhere).",
	"slack":    chatGuide,
	"dingtalk": chatGuide,
	"feishu":   chatGuide,
	"wecom":    chatGuide,
	"email":    "How mails are sent and what answers mean: [email.md](../email.md).",
}

const chatGuide = "What messages look like, how fast they go and what answers mean: [chat.md](../chat.md)."

func targetPage(t *testing.T, k targets.Kind) []byte {
	t.Helper()
	var root field
	if err := json.Unmarshal(k.ConfigSchema, &root); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "<!-- Written by `make docs` from the catalog of kinds: change the kind, not this page. -->\n\n# Targets of type `%s`\n\n%s %s\n\n", k.Name, k.Doc, guides[k.Name])
	fmt.Fprintf(&b, "## Example\n\n```yaml\n%s```\n\nPut in force by `rialto apply -f FILE`; `rialto get targets` says where it stands.\n\n", k.Example)
	b.WriteString("## `config`\n\n| | | |\n|---|---|---|\n")
	rows(&b, "", root)
	b.WriteString(secretForms(k.ConfigSchema))
	b.WriteString("\nBeside `config` a target has `delivery`, which [webhooks.md](../webhooks.md#when-it-is-tried-again) describes for all types, `paused`, `labels` and `description`.\n")
	return b.Bytes()
}

// The targets of the guides can be used as they stand.
func TestTargetGuides(t *testing.T) {
	kinds := app.TargetKinds(egress.New(egress.Options{}), nil)
	blocks := regexp.MustCompile("(?s)```yaml\n(kind: Target.*?)(?:---|```)").FindAllSubmatch(slices.Concat(read(t, "docs/http-target.md"), read(t, "docs/functions.md"), read(t, "docs/bus-target.md")), -1)
	if len(blocks) < 9 {
		t.Fatalf("%d examples", len(blocks))
	}
	for _, block := range blocks {
		doc, err := yaml.YAMLToJSON(block[1])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := targets.ParseDefinition(doc, kinds); err != nil {
			t.Errorf("%s%v", block[1], err)
		}
	}
}

// Every kind of target has a page that says what the program does. go test ./internal/app -run TestTargetPages -update
// writes them.
func TestTargetPages(t *testing.T) {
	kinds := app.TargetKinds(egress.New(egress.Options{}), nil)
	want := map[string][]byte{}
	for _, name := range kinds.Names() {
		k, _ := kinds.Lookup(name)
		want[name] = targetPage(t, k)
		if guides[name] == "" {
			t.Errorf("there is no guide to %s", name)
		}
		doc, err := yaml.YAMLToJSON([]byte(k.Example))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := targets.ParseDefinition(doc, kinds); err != nil {
			t.Errorf("the example of %s is not valid: %v", name, err)
		}
	}
	checkPages(t, "targets", want)
}
