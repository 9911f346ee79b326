// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/rialto-bridge/rialto/internal/app"
	"github.com/rialto-bridge/rialto/sources"
	hooks "github.com/rialto-bridge/rialto/sources/webhook"
)

var update = flag.Bool("update", false, "write docs/sources and docs/targets anew")

// field is what the pages show of a member of a config.
type field struct {
	Type        any              `json:"type"`
	Ref         string           `json:"$ref"`
	Description string           `json:"description"`
	Default     any              `json:"default"`
	Enum        []any            `json:"enum"`
	Properties  map[string]field `json:"properties"`
	Required    []string         `json:"required"`
	OneOf       []field          `json:"oneOf"`
	Items       *field           `json:"items"`
}

// words is what may stand there.
func (f field) words() string {
	switch {
	case strings.HasSuffix(f.Ref, "secrets"):
		return "secret, or a list of them"
	case strings.HasSuffix(f.Ref, "secret"):
		return "secret"
	case strings.HasSuffix(f.Ref, "signingKey"):
		return "secret, with `until` if it ends"
	case len(f.OneOf) > 0:
		var words []string
		for _, one := range f.OneOf {
			words = append(words, one.words())
		}
		return strings.Join(words, "; or ")
	case f.Type == "array" && f.Items != nil && f.Items.Ref != "":
		return "a list of them"
	case len(f.Enum) > 0:
		var words []string
		for _, v := range f.Enum {
			words = append(words, fmt.Sprintf("`%v`", v))
		}
		return strings.Join(words, ", ")
	case f.Type == nil:
		return "any JSON"
	}
	return fmt.Sprint(f.Type)
}

// rows writes a table row for each member, and below it for the members of that.
func rows(b *bytes.Buffer, prefix string, f field) {
	for _, name := range slices.Sorted(maps.Keys(f.Properties)) {
		p := f.Properties[name]
		about := strings.ReplaceAll(p.Description, "|", `\|`)
		if slices.Contains(f.Required, name) {
			about = strings.TrimSpace("**Required.** " + about)
		}
		if n, ok := p.Default.(float64); ok {
			p.Default = strconv.FormatFloat(n, 'f', -1, 64)
		}
		if p.Default != nil {
			about = strings.TrimSpace(fmt.Sprintf("%s Default `%v`.", about, p.Default))
		}
		fmt.Fprintf(b, "| `%s%s` | %s | %s |\n", prefix, name, p.words(), about)
		rows(b, prefix+name+".", p)
	}
}

// page is the documentation of a kind.
func page(t *testing.T, k sources.Kind) []byte {
	t.Helper()
	var root field
	if err := json.Unmarshal(k.ConfigSchema, &root); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "<!-- Written by `make docs` from the catalog of kinds: change the kind, not this page. -->\n\n# Sources of type `%s`\n\n%s\n\n", k.Name, k.Doc)
	fmt.Fprintf(&b, "## Example\n\n```yaml\n%s```\n\nPut in force by `rialto apply -f FILE`; `rialto get sources` says where it stands.\n\n", k.Example)
	b.WriteString("## `config`\n\n| | | |\n|---|---|---|\n")
	rows(&b, "", root)
	b.WriteString(secretForms(k.ConfigSchema))
	b.WriteString("\nBeside `config` a source has `bus` (default `default`), `paused`, `labels` and `description`")
	if k.Starts {
		b.WriteString(", and `start`: `latest` (the default)")
		if !k.Endless {
			b.WriteString(", `earliest`,")
		}
		b.WriteString(" or a time, where it begins when it has no position yet. `POST /v1/sources/<name>:reset` forgets the position")
	}
	b.WriteString(".\n")
	if k.Name == "webhook" {
		b.Write(providerDocs())
	}
	return b.Bytes()
}

// secretForms says what a secret may be, if a config has any.
func secretForms(schema []byte) string {
	if !bytes.Contains(schema, []byte(`"#/$defs/secret`)) {
		return ""
	}
	return "\nA secret is `{ref: NAME}`, which names a [Secret](../http.md#secrets), `{ref: \"env:NAME\"}`, `{ref: \"file:/path\"}` or `{value: \"...\"}`, which is never shown again.\n"
}

// providerDocs has a section for each product that the kind webhook knows.
func providerDocs() []byte {
	var b bytes.Buffer
	b.WriteString("\n## Answers\n\nThe answer comes after the event is committed, within the time that the sender allows; an event that no rule wants is good as well. " +
		"An id that was committed within the last hour is answered the same and not stored again (10,000 ids a source, forgotten by a restart and when the source sends to another bus). " +
		"While a signature is good, which is up to twice the `tolerance` (of Amazon SNS, a day), more of them are known, up to 100,000 a source: at the default of 5 minutes that is enough " +
		"for 166 events a second, and beyond that who has recorded a request could send it again within these ten minutes. What is not proved is " +
		"answered with 401 or 403, before its body is read if the header alone shows it: it is counted (`rejected` in the status, `rialto_hook_requests_total`), logged at most every ten seconds, and not stored. " +
		"Fifty of these a second, of all sources together, are answered at once, the others after a second; with 4096 of them waiting, connections are closed " +
		"after the answer (`rialto_hook_refusals_held_total`). So a flood slows itself down, and nothing that is proved. What has `X-Forwarded-For`, `Forwarded` or `Via` " +
		"is answered at once, since a proxy shares its connections: it is for the proxy to bound floods, and one that is to have few connections to the bridge must set one of these. " +
		"A log that has no room answers 503 or 507, so that senders come again; so do requests when 1024 of a source wait for the log already. Bodies may be as large as events (1 MiB, unless `--max-data` says otherwise): " +
		"where the header alone proves who sends (`bearer`, `basic`, `clientCertificate`, `allowFrom` without `signature`, the token of GitLab), an event `io.rialto.source.refused` tells of a larger one; " +
		"where the body would have to be read, it is counted as `refused` and stands in the status. " +
		"Those of more than 16 KiB may hold 64 MiB a source together while they are under way, and beyond that the answer is 503.\n\n## Providers\n")
	for _, p := range hooks.Providers() {
		fmt.Fprintf(&b, "\n### `%s`: %s\n\n%s\n", p.Name, p.Title, p.Doc)
		if len(p.Fields) > 0 {
			fmt.Fprintf(&b, "\nNeeds `%s`.\n", strings.Join(p.Fields, "`, `"))
		}
		if len(p.Optional) > 0 {
			fmt.Fprintf(&b, "\nMay have `%s`.\n", strings.Join(p.Optional, "`, `"))
		}
	}
	return b.Bytes()
}

// Every kind of source has a page that says what the program does. go test ./internal/app -run TestSourcePages -update
// writes them.
func TestSourcePages(t *testing.T) {
	kinds := app.SourceKinds()
	want := map[string][]byte{}
	for _, name := range kinds.Names() {
		k, _ := kinds.Lookup(name)
		want[name] = page(t, k)
		doc, err := yaml.YAMLToJSON([]byte(k.Example))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sources.ParseDefinition(doc, kinds); err != nil {
			t.Errorf("the example of %s is not valid: %v", name, err)
		}
	}
	checkPages(t, "sources", want)
}

// checkPages compares the pages in a folder of docs with those that there should be, or writes them.
func checkPages(t *testing.T, folder string, want map[string][]byte) {
	t.Helper()
	dir := filepath.Join(root(t), "docs", folder)
	have, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range have {
		if want[strings.TrimSuffix(filepath.Base(file), ".md")] == nil {
			t.Errorf("%s is a page of a kind that there is not", file)
		}
	}
	for name, page := range want {
		file := filepath.Join(dir, name+".md")
		if *update {
			if err := cmp.Or(os.MkdirAll(dir, 0o755), os.WriteFile(file, page, 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(got, page) {
			t.Errorf("docs/%s/%s.md is not what the catalog says: make docs (%v)", folder, name, err)
		}
	}
}
