// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/app"
	sealed "github.com/rialto-bridge/rialto/internal/secret"
	"github.com/rialto-bridge/rialto/internal/store/postgres"
	"github.com/rialto-bridge/rialto/internal/store/postgres/pgtest"
	"github.com/rialto-bridge/rialto/schema"
)

// runBridge runs a bridge in this process for as long as do takes.
func runBridge(t *testing.T, o app.Options, do func(a *app.App, env map[string]string)) {
	t.Helper()
	o.Listen, o.MQTT, o.Reserve = "127.0.0.1:0", "off", 1<<20
	a, err := app.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := a.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	do(a, map[string]string{"RIALTO_URL": "http://" + a.HTTPAddr(), "RIALTO_KEY": a.AdminKey()})
}

// want runs a command that must end with a code.
func want(t *testing.T, code int, env map[string]string, stdin string, args ...string) result {
	t.Helper()
	r := rialtoIn(t, env, stdin, args...)
	if r.code != code {
		t.Fatalf("rialto %s: code %d, want %d\n%s%s", strings.Join(args, " "), r.code, code, r.out, r.err)
	}
	return r
}

const movedDefinitions = `
kind: Bus
name: orders
retention: {maxAge: 48h}
---
kind: Target
name: hook
type: webhook
config: {url: "https://hook.example.com/a", secret: {value: whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=}}
---
kind: Device
name: box-17
password: {value: "correct horse battery staple"}
---
kind: Key
name: ci
scopes: ["definitions:*", "events:write:orders"]
---
kind: Rule
name: large
bus: orders
pattern: {data: {total: [{numeric: [">", 1000.5]}]}}
targets: [{target: hook}]
`

// A bridge is moved from its data directory to Postgres and back, with a schema that came in between.
func TestExportAndImport(t *testing.T) {
	dsn := pgtest.Start(t).Database(t)
	first, second := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")
	none := map[string]string{}

	sealing := sealed.NewKey()
	var secret string
	runBridge(t, app.Options{Data: first, SecretKey: sealing}, func(_ *app.App, env map[string]string) {
		out := want(t, exitOK, env, movedDefinitions, "apply", "-f", "-").out
		_, rest, _ := strings.Cut(out, "shown this once: ")
		secret = strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0])
		if r := rialtoIn(t, none, "", "export", "--data", first); r.code != exitFailed || !strings.Contains(r.err, "in use") {
			t.Errorf("export of a directory in use: %d %s", r.code, r.err)
		}
	})
	// What the bridge knows by this key must be the same wherever its definitions are.
	look := func(o app.Options) string {
		var all string
		runBridge(t, o, func(_ *app.App, env map[string]string) {
			env["RIALTO_KEY"] = secret
			for _, kind := range []string{"buses", "targets", "rules"} {
				all += want(t, exitOK, env, "", "get", kind, "-o", "yaml").out
			}
		})
		return all
	}
	before := look(app.Options{Data: first, SecretKey: sealing})

	one := want(t, exitOK, none, "", "export", "--data", first).out
	for _, text := range []string{`"sealed":"v1.`, "$argon2id$", "1000.5"} {
		if !strings.Contains(one, text) {
			t.Errorf("the export does not hold %s", text)
		}
	}
	if strings.Contains(one, "whsec_") {
		t.Error("the export holds a secret that is not sealed")
	}
	file := filepath.Join(t.TempDir(), "export.jsonl")
	if err := os.WriteFile(file, []byte(one), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"RIALTO_POSTGRES": dsn}
	want(t, exitOK, env, "", "import", file)
	if r := want(t, exitOK, env, "", "import", file); !strings.Contains(r.err, "0 documents written") {
		t.Errorf("the same import again: %s", r.err)
	}
	if diff := cmp.Diff(one, want(t, exitOK, env, "", "export").out); diff != "" {
		t.Errorf("Postgres holds something else (-directory +database):\n%s", diff)
	}
	if diff := cmp.Diff(before, look(app.Options{Data: filepath.Join(t.TempDir(), "data"), Postgres: dsn, SecretKey: sealing})); diff != "" {
		t.Errorf("a bridge on Postgres (-before +after):\n%s", diff)
	}

	schemas, err := postgres.OpenSchemas(t.Context(), postgres.Options{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	defer schemas.Close()
	order := schema.Name{Group: "shop", Schema: "Order"}
	for i := range 3 {
		if _, err := schemas.AddVersion(t.Context(), schema.Version{Ref: schema.Ref{Name: order, Version: i + 1}, Text: fmt.Sprint(i), Hash: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	two := want(t, exitOK, env, "", "export").out
	if strings.Count(two, `"store":"schemas"`) < 3 {
		t.Errorf("the schemas are not in the export:\n%s", two)
	}
	want(t, exitOK, env, two, "import", "--data", second, "-")
	if diff := cmp.Diff(two, want(t, exitOK, none, "", "export", "--data", second).out); diff != "" {
		t.Errorf("the directory holds something else (-database +directory):\n%s", diff)
	}
	if diff := cmp.Diff(before, look(app.Options{Data: second, SecretKey: sealing})); diff != "" {
		t.Errorf("a bridge on a new directory (-before +after):\n%s", diff)
	}

	other := strings.Replace(one, "1000.5", "2000.5", 1)
	if r := want(t, exitConflict, env, other, "import", "-"); !strings.Contains(r.err, "Rule/orders/large is there already") {
		t.Errorf("import over something else: %s", r.err)
	}
	if diff := cmp.Diff(two, want(t, exitOK, env, "", "export").out); diff != "" {
		t.Errorf("an import that was refused wrote something:\n%s", diff)
	}
	want(t, exitOK, env, other, "import", "--replace", "-")
	if now := want(t, exitOK, env, "", "export").out; now != strings.Replace(two, "1000.5", "2000.5", 1) {
		t.Errorf("after import --replace:\n%s", cmp.Diff(two, now))
	}
	runBridge(t, app.Options{Data: filepath.Join(t.TempDir(), "data"), Postgres: dsn, SecretKey: sealing}, func(a *app.App, _ map[string]string) {
		if status := probe(t, a, secret); status != http.StatusAccepted {
			t.Errorf("publish with the key that was moved: %d", status)
		}
	})
}

// probe sends an event with a key.
func probe(t *testing.T, a *app.App, key string) int {
	t.Helper()
	req, err := http.NewRequest("POST", "http://"+a.HTTPAddr()+"/v1/buses/orders/events", strings.NewReader(`{"specversion":"1.0","id":"1","source":"/t","type":"t"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Authorization": {"Bearer " + key}, "Content-Type": {"application/cloudevents+json"}}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

func TestImportRefuses(t *testing.T) {
	const head, end = `{"format":"rialto definitions 1"}` + "\n", `{"count":1}` + "\n"
	const bus = `{"store":"definitions","kind":"Bus","name":"b","document":{}}` + "\n"
	dir := filepath.Join(t.TempDir(), "data")
	for what, c := range map[string]struct{ text, want string }{
		"nothing":             {"", "not whole"},
		"another file":        {"kind: Bus\n", "line 1: is no line"},
		"another format":      {`{"format":"rialto definitions 2"}` + "\n", "line 1: is not the head"},
		"half a file":         {head + bus, "not whole"},
		"a missing line":      {head + end, "line 2: there are 0 documents, and were 1"},
		"something after it":  {head + bus + end + bus, "line 4: the export has ended"},
		"an unknown member":   {head + `{"store":"definitions","kind":"Bus","name":"b","document":{},"more":1}` + "\n" + end, "line 2: is no line"},
		"an unknown store":    {head + `{"store":"events","kind":"Bus","name":"b","document":{}}` + "\n" + end, "line 2: store must be"},
		"no document":         {head + `{"store":"definitions","kind":"Bus","name":"b"}` + "\n" + end, "line 2: not a JSON document"},
		"no name":             {head + `{"store":"definitions","kind":"Bus","document":{}}` + "\n" + end, "line 2: a definition needs"},
		"the same name twice": {head + bus + bus + end, "line 3: Bus/b is there twice"},
	} {
		if r := rialtoIn(t, nil, c.text, "import", "--data", dir, "-"); r.code != exitFailed || !strings.Contains(r.err, c.want) {
			t.Errorf("import of %s: %d %s", what, r.code, r.err)
		}
	}
	if r := rialtoIn(t, nil, head+bus+end, "import", "--data", dir, "--postgres", "host=h", "-"); r.code != exitUsage {
		t.Errorf("import into two places: %d %s", r.code, r.err)
	}
	if r := rialtoIn(t, nil, "", "export", "--data", filepath.Join(t.TempDir(), "none")); r.code != exitFailed || !strings.Contains(r.err, "there is no bridge's data") {
		t.Errorf("export of nothing: %d %s", r.code, r.err)
	}
}

func TestMigrate(t *testing.T) {
	pg := pgtest.Start(t)
	dsn := pg.Database(t)
	if r := want(t, exitOK, nil, "", "migrate", "--postgres", dsn); !strings.HasPrefix(r.out, "migrated: 1") {
		t.Errorf("migrate of a new database: %s", r.out)
	}
	if r := want(t, exitOK, map[string]string{"RIALTO_POSTGRES": dsn}, "", "migrate"); r.out != "nothing to do\n" {
		t.Errorf("migrate again: %s", r.out)
	}
	want(t, exitUsage, nil, "", "migrate")
	want(t, exitUsage, nil, "", "migrate", "--postgres", "postgres://host:port/")
	pg.Stop(t)
	want(t, exitUnreachable, nil, "", "migrate", "--postgres", dsn)
	want(t, exitUnreachable, nil, "", "export", "--postgres", dsn)
}
