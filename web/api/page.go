// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"html/template"
	"net/http"
)

var pageTemplate = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Rialto</title>
<meta name="viewport" content="width=device-width">
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:50rem;margin:3rem auto;padding:0 1rem}
dt{font-weight:600;margin-top:1rem}dd{margin:0}code{font:14px ui-monospace,monospace;overflow-wrap:anywhere}</style>
<h1>Rialto</h1>
<p>An event bridge{{with .Version}}, version {{.}}{{end}}. What listens where:</p>
<dl>{{range .Listeners}}<dt>{{.Name}} <code>{{.Address}}</code></dt>{{with .Try}}<dd><code>{{.}}</code></dd>{{end}}{{end}}</dl>
<p><a href="/openapi.json">openapi.json</a> describes every route; <a href="/readyz?verbose">readyz</a> says how it is going;
<a href="/metrics">metrics</a> has the numbers.</p>
</html>
`))

// showPage answers a page that says what listens where.
func (a *API) showPage(w *reply, r *http.Request) error {
	if _, err := noQuery(r); err != nil {
		return err
	}
	var b bytes.Buffer
	err := pageTemplate.Execute(&b, struct {
		Version   string
		Listeners []Listener
	}{a.o.Version, a.o.Listeners()})
	if err != nil {
		return err
	}
	h := w.Header()
	h["Content-Security-Policy"] = []string{"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}
	return w.send(http.StatusOK, []string{"text/html; charset=utf-8"}, b.Bytes())
}
