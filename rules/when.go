// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/conf"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/types"
	"github.com/expr-lang/expr/vm"

	"github.com/rialto-bridge/rialto/internal/event"
)

// Limits of an expression. Beside them, no loop of it goes on after maxRunTime.
const (
	MaxExpression  = 4 << 10 // bytes
	maxNodes       = 500     // of its syntax tree
	maxSteps       = 1_000_000
	maxTextBuilt   = 4 << 20 // bytes of text that one run may build
	maxMemoryUnits = 200_000 // elements of lists and maps that one run may build
	maxRunTime     = 100 * time.Millisecond
)

// Expression is a compiled expression over an event: attributes by their names, the payload as data. Strings, numbers
// and booleans are what they look like; time is a time; an attribute that is absent is "", an extension or anything in
// the payload that is absent is nil. It is immutable and safe for concurrent use.
type Expression struct {
	source  string
	program *vm.Program
	names   []string // variables that it reads
	loops   bool
}

// String returns the text of the expression.
func (e *Expression) String() string { return e.source }

// attributeTypes are the variables whose types are known. What else looks like an attribute is an extension.
var attributeTypes = map[string]types.Type{
	"id": types.String, "source": types.String, "type": types.String, "specversion": types.String, "subject": types.String,
	"datacontenttype": types.String, "dataschema": types.String, "time": types.TypeOf(time.Time{}), dataName: types.Any,
}

// unavailable are functions of the language that are not offered, and why.
var unavailable = map[string]string{
	"now":     "the same event must give the same result again",
	"toPairs": "the order of its result is random",
	"groupBy": "the order of its result is random",
	"reduce":  "its cost cannot be bounded",
}

// names of what compile adds.
const (
	budgetName = "_budget"
	stepName   = "_step"
	builtName  = "_built"
)

// compileExpression compiles source, and checks types as far as they are known. options say what it must result in.
func compileExpression(source string, options ...expr.Option) (*Expression, error) {
	if strings.TrimSpace(source) == "" {
		return nil, errors.New("the expression is empty; write a condition such as data.temperature > data.limit")
	}
	if len(source) > MaxExpression {
		return nil, fmt.Errorf("the expression has %d bytes; at most %d are allowed", len(source), MaxExpression)
	}
	config := conf.CreateNew()
	config.MaxNodes = maxNodes
	tree, err := parser.ParseWithConfig(source, config)
	if err != nil {
		return nil, wording(err)
	}
	used := &usage{declared: map[string]bool{}}
	ast.Walk(&tree.Node, used)
	if err := used.check(); err != nil {
		return nil, err
	}
	environment := types.Map{budgetName: types.Any}
	e := &Expression{source: source, loops: used.loops}
	for _, name := range used.variables {
		if t, ok := attributeTypes[name]; ok {
			environment[name] = t
		} else {
			environment[name] = types.Any
		}
		e.names = append(e.names, name)
	}
	options = append(options, expr.Env(environment), expr.MaxNodes(4*maxNodes), expr.Timezone("UTC"), expr.Patch(charge{}),
		expr.Function(stepName, stepFunction), expr.Function(builtName, builtFunction))
	for name := range unavailable {
		options = append(options, expr.DisableBuiltin(name))
	}
	for name, f := range replaced {
		options = append(options, expr.DisableBuiltin(name), expr.Function(name, f))
	}
	e.program, err = expr.Compile(source, options...)
	if err != nil {
		return nil, wording(err)
	}
	return e, nil
}

// wording is the message of an error of the language, without a drawing of where.
func wording(err error) error {
	var f *file.Error
	if errors.As(err, &f) {
		return fmt.Errorf("%s (line %d, column %d)", shorten(f.Message, 300), max(f.Line, 1), f.Column+1)
	}
	return errors.New(shorten(err.Error(), 300))
}

// usage is what an expression speaks of.
type usage struct {
	variables []string
	declared  map[string]bool // by let
	err       error
	loops     bool
}

// Visit is called for every node, those inside it first.
func (u *usage) Visit(node *ast.Node) {
	switch n := (*node).(type) {
	case *ast.IdentifierNode:
		if !slices.Contains(u.variables, n.Value) {
			u.variables = append(u.variables, n.Value)
		}
	case *ast.VariableDeclaratorNode:
		u.declared[n.Name] = true
	case *ast.PredicateNode:
		u.loops = true
	case *ast.BuiltinNode:
		if why, ok := unavailable[n.Name]; ok {
			u.fail(fmt.Errorf("there is no %s() here: %s", n.Name, why))
		}
	case *ast.CallNode:
		if callee, ok := n.Callee.(*ast.IdentifierNode); ok {
			u.fail(unknownFunction(callee.Value))
		}
	case *ast.MemberNode:
		if base, ok := n.Node.(*ast.IdentifierNode); ok && base.Value != dataName && base.Value != "time" && !u.declared[base.Value] {
			u.fail(unknownMember(base.Value))
		}
	}
}

func (u *usage) fail(err error) {
	if u.err == nil {
		u.err = err
	}
}

func unknownFunction(name string) error {
	var known []string
	for name := range conf.CreateNew().Builtins {
		if unavailable[name] == "" {
			known = append(known, name)
		}
	}
	slices.Sort(known)
	if word := nearest(name, known); word != "" {
		return fmt.Errorf("there is no function %s(); did you mean %s()?", shorten(name, 60), word)
	}
	return fmt.Errorf("there is no function %s()", shorten(name, 60))
}

func unknownMember(name string) error {
	if name == "$env" {
		return errors.New("$env is not here; write attributes by their names, and the payload as data")
	}
	if word := nearest(name, []string{dataName}); word != "" {
		return fmt.Errorf("%s holds no values; did you mean %s?", shorten(name, 60), word)
	}
	return fmt.Errorf("the attribute %s is one value and holds no others; the payload is under data, as in data.%s", shorten(name, 60), shorten(name, 60))
}

// check refuses names that no event has, and drops those that let has declared.
func (u *usage) check() error {
	u.variables = slices.DeleteFunc(u.variables, func(name string) bool { return u.declared[name] })
	slices.Sort(u.variables)
	for _, name := range u.variables {
		if !isAttribute(name) {
			u.fail(fmt.Errorf("%q cannot be an attribute, whose names are a-z and 0-9 only; the payload is under data, as in data.%s", shorten(name, 60), shorten(name, 60)))
		}
	}
	return u.err
}

// charge makes an expression pay for what it does: for each round of a loop, and for text that it builds.
type charge struct{}

// Visit is called for every node, those inside it first.
func (charge) Visit(node *ast.Node) {
	switch n := (*node).(type) {
	case *ast.PredicateNode:
		n.Node = charged(stepName, n.Node)
	case *ast.BinaryNode:
		if t := n.Type(); n.Operator == "+" && !isNumeric(t.Kind()) {
			ast.Patch(node, charged(builtName, n))
		}
	}
}

func isNumeric(k reflect.Kind) bool {
	return reflect.Int <= k && k <= reflect.Float64
}

func charged(function string, node ast.Node) ast.Node {
	return &ast.CallNode{Callee: &ast.IdentifierNode{Value: function}, Arguments: []ast.Node{&ast.IdentifierNode{Value: budgetName}, node}}
}

// budget is what a run has left.
type budget struct {
	steps, text int
	until       time.Time
}

// errors of a run that costs too much.
var (
	errSteps = errors.New("it takes too many steps")
	errText  = errors.New("it builds too much text")
	errList  = errors.New("it builds too long a list")
	errTime  = errors.New("it takes too long")
)

func stepFunction(params ...any) (any, error) {
	b := params[0].(*budget)
	if b.steps--; b.steps < 0 {
		return nil, errSteps
	}
	if b.steps&15 == 0 && time.Now().After(b.until) {
		return nil, errTime
	}
	return params[1], nil
}

func builtFunction(params ...any) (any, error) {
	b := params[0].(*budget)
	if s, ok := params[1].(string); ok {
		if b.text -= len(s); b.text < 0 {
			return nil, errText
		}
	}
	return params[1], nil
}

// run evaluates the expression. values holds its variables; it is changed.
func (e *Expression) run(machine *vm.VM, values map[string]any, b *budget) (any, error) {
	*b = budget{steps: maxSteps, text: maxTextBuilt}
	if e.loops {
		b.until = time.Now().Add(maxRunTime)
	}
	values[budgetName] = b
	machine.MemoryBudget = maxMemoryUnits
	result, err := machine.Run(e.program, values)
	if err != nil {
		return nil, wording(err)
	}
	return result, nil
}

// evaluation is the memory of evaluating expressions on one event after the other, and the event's payload as they see
// it.
type evaluation struct {
	machine vm.VM
	values  map[string]any
	budget  budget
	doc     document
	data    any
	ready   bool // data is that of the event
}

func (n *evaluation) reset() { n.data, n.ready = nil, false }

// run evaluates e on an event.
func (n *evaluation) run(e *Expression, ev *event.Event) (any, error) {
	if n.values == nil {
		n.values = map[string]any{}
	}
	clear(n.values)
	for _, name := range e.names {
		n.values[name] = n.variable(name, ev)
	}
	return e.run(&n.machine, n.values, &n.budget)
}

// variable is what a name stands for.
func (n *evaluation) variable(name string, ev *event.Event) any {
	switch i := slices.Index(attributeNames, name); {
	case name == dataName:
		return n.payload(ev)
	case name == "time":
		return ev.Time
	case i >= 0:
		return attribute(ev, i)
	}
	v, _ := ev.Extension(name)
	if x, ok := v.(int32); ok {
		return int(x)
	}
	return v
}

// payload is the data of an event: a JSON value, a text, or nil.
func (n *evaluation) payload(ev *event.Event) any {
	if n.ready {
		return n.data
	}
	n.ready = true
	if notJSON(ev.DataContentType) == "" {
		n.doc.reset()
		if root, err := n.doc.parse(ev.Data); err == nil {
			n.data = n.doc.native(root)
			return n.data
		}
	}
	if ev.Data != nil && utf8.Valid(ev.Data) {
		n.data = string(ev.Data)
	}
	return n.data
}

// native is node i as Go has it: nil, bool, int, float64, string, []any and map[string]any; of members with one name
// the last. It works from the end of the nodes, so that it does not recurse.
func (d *document) native(root int32) any {
	values := make([]any, d.nodes[root].next-root)
	for i := d.nodes[root].next - 1; i >= root; i-- {
		n := &d.nodes[i]
		switch n.kind {
		case kindTrue, kindFalse:
			values[i-root] = n.kind == kindTrue
		case kindNumber:
			values[i-root] = nativeNumber(string(n.text))
		case kindString:
			values[i-root] = string(n.text)
		case kindArray:
			list := []any{}
			d.children(i, func(_ int, child int32) { list = append(list, values[child-root]) })
			values[i-root] = list
		case kindObject:
			object := map[string]any{}
			d.children(i, func(_ int, child int32) { object[string(d.nodes[child].key)] = values[child-root] })
			values[i-root] = object
		}
	}
	return values[0]
}

// nativeNumber is an int if the literal is written as one and fits, else the nearest float64.
func nativeNumber(literal string) any {
	if !strings.ContainsAny(literal, ".eE") {
		if n, err := strconv.Atoi(literal); err == nil {
			return n
		}
	}
	f, err := strconv.ParseFloat(literal, 64)
	if err != nil {
		return math.Copysign(math.Inf(1), f) // out of range
	}
	return f
}

// ParseWhen compiles the when of a rule: an expression that results in true or false.
func ParseWhen(source string) (*Expression, error) { return compileExpression(source, expr.AsBool()) }

// holds evaluates the when of a rule.
func (n *evaluation) holds(e *Expression, ev *event.Event) (bool, error) {
	result, err := n.run(e, ev)
	if err != nil {
		return false, err
	}
	if held, ok := result.(bool); ok {
		return held, nil
	}
	return false, fmt.Errorf("it results in %s, not in true or false", kindOfNative(result))
}

func kindOfNative(v any) string {
	switch v := v.(type) {
	case nil:
		return "nothing"
	case string:
		return kindString.String()
	case int, int64, int32, float64:
		return kindNumber.String()
	case bool:
		return kindOf(v).String()
	case []any:
		return kindArray.String()
	case map[string]any:
		return kindObject.String()
	}
	return fmt.Sprintf("a %T", v)
}
