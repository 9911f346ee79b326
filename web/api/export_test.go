// SPDX-License-Identifier: Apache-2.0

package api

// AppendJSONString is appendJSONString, for its fuzz test.
var AppendJSONString = appendJSONString

// AppendPlain is Problem.appendPlain.
func (p *Problem) AppendPlain(b []byte) []byte { return p.appendPlain(b) }

// Routes lists the table of routes as "METHOD pattern".
func (a *API) Routes() []string {
	var out []string
	for _, rt := range a.routes {
		out = append(out, rt.method+" "+rt.pattern)
	}
	return out
}

// ReadAside is for fuzzing.
var ReadAside = readAside
