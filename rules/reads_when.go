// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"slices"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/conf"
	"github.com/expr-lang/expr/parser"

	"github.com/rialto-bridge/rialto/internal/event"
)

// Reads lists what an expression looks at; pointer says where it stands.
func (e *Expression) Reads(pointer string) []Read {
	config := conf.CreateNew()
	config.MaxNodes = maxNodes
	tree, err := parser.ParseWithConfig(e.source, config)
	if err != nil {
		panic("rules: an expression that was parsed before: " + err.Error())
	}
	r := reading{pointer: pointer}
	r.visit(tree.Node, asked{whole: true})
	return r.out
}

// reading walks an expression.
type reading struct {
	pointer     string
	out         []Read
	declared    []string // by let
	collections []event.Path
}

// asked is what surrounds a part of an expression and asks something of its value.
type asked struct {
	whole    bool // the value goes on to where all of it may count
	types    []string
	operator string
}

var (
	asNumber  = []string{"number"}
	asString  = []string{"string"}
	asBoolean = []string{"boolean"}
)

// place is where the value of a node comes from, if the node does nothing but go there.
func (r *reading) place(n ast.Node) (event.Path, bool) {
	switch n := n.(type) {
	case *ast.IdentifierNode:
		return event.Path{{Name: n.Value}}, !slices.Contains(r.declared, n.Value)
	case *ast.ChainNode:
		return r.place(n.Node)
	case *ast.PointerNode:
		if k := len(r.collections); n.Name == "" && k > 0 && r.collections[k-1] != nil {
			return append(slices.Clip(r.collections[k-1]), event.Step{Each: true}), true
		}
	case *ast.MemberNode:
		base, ok := r.place(n.Node)
		if !ok {
			return nil, false
		}
		switch p := n.Property.(type) {
		case *ast.StringNode:
			return append(slices.Clip(base), event.Step{Name: p.Value}), true
		case *ast.IntegerNode:
			return append(slices.Clip(base), indexStep(p.Value)), true
		case *ast.UnaryNode: // -1: from the end
			if _, number := p.Node.(*ast.IntegerNode); number {
				return append(slices.Clip(base), event.Step{Each: true}), true
			}
		}
	}
	return nil, false
}

func (r *reading) visit(n ast.Node, a asked) {
	if path, ok := r.place(n); ok {
		read := Read{Path: path, Pointer: r.pointer, Whole: a.whole, Types: a.types}
		if a.operator != "" {
			read.Operators = []string{a.operator}
		}
		r.out = append(r.out, read)
		return
	}
	all := asked{whole: true}
	switch n := n.(type) {
	case *ast.MemberNode:
		r.visit(n.Node, all)
		r.visit(n.Property, asked{})
	case *ast.ChainNode:
		r.visit(n.Node, a)
	case *ast.SliceNode:
		r.each(all, n.Node, n.From, n.To)
	case *ast.UnaryNode:
		types := asNumber
		if n.Operator == "!" || n.Operator == "not" {
			types = asBoolean
		}
		r.visit(n.Node, asked{types: types, operator: n.Operator})
	case *ast.BinaryNode:
		r.binary(n, a)
	case *ast.ConditionalNode:
		r.visit(n.Cond, asked{types: asBoolean})
		r.each(a, n.Exp1, n.Exp2)
	case *ast.BuiltinNode:
		r.builtin(n)
	case *ast.PredicateNode:
		r.visit(n.Node, a)
	case *ast.CallNode:
		r.each(all, n.Arguments...)
	case *ast.VariableDeclaratorNode:
		r.visit(n.Value, all)
		r.declared = append(r.declared, n.Name)
		r.visit(n.Expr, a)
	case *ast.SequenceNode:
		r.each(a, n.Nodes...)
	case *ast.ArrayNode:
		r.each(all, n.Nodes...)
	case *ast.MapNode:
		r.each(all, n.Pairs...)
	case *ast.PairNode:
		r.each(all, n.Key, n.Value)
	}
}

func (r *reading) each(a asked, nodes ...ast.Node) {
	for _, n := range nodes {
		if n != nil {
			r.visit(n, a)
		}
	}
}

func (r *reading) binary(n *ast.BinaryNode, a asked) {
	left, right := asked{operator: n.Operator}, asked{operator: n.Operator}
	switch n.Operator {
	case "&&", "and", "||", "or":
		left, right = asked{types: asBoolean}, asked{types: asBoolean}
	case "==", "!=":
		left.types, left.whole = literalTypes(n.Right)
		right.types, right.whole = literalTypes(n.Left)
	case "<", "<=", ">", ">=", "+":
		left.types, _ = literalTypes(n.Right)
		right.types, _ = literalTypes(n.Left)
	case "-", "*", "/", "%", "**", "^", "..":
		left.types, right.types = asNumber, asNumber
	case "matches", "contains", "startsWith", "endsWith":
		left.types, right.types = asString, asString
	case "in", "not in":
		left.types, _ = literalTypes(n.Right)
		right.whole = true
	default: // ??, | and what else passes its operands on
		left, right = a, a
	}
	r.visit(n.Left, left)
	r.visit(n.Right, right)
}

// literalTypes is the type of a literal, or those in a list of literals. What a value is compared with decides of which type
// it should be; beside what is no literal, it may be of any, and all of it counts.
func literalTypes(n ast.Node) (types []string, whole bool) {
	switch n := n.(type) {
	case *ast.IntegerNode, *ast.FloatNode:
		return asNumber, false
	case *ast.UnaryNode:
		return literalTypes(n.Node)
	case *ast.StringNode:
		return asString, false
	case *ast.BoolNode:
		return asBoolean, false
	case *ast.NilNode:
		return nil, false
	case *ast.ArrayNode:
		for _, item := range n.Nodes {
			of, _ := literalTypes(item)
			if of == nil {
				return nil, true
			}
			types = append(types, of...)
		}
		return sortedSet(types), false
	}
	return nil, true
}

// looksOnly are the functions of which a list's items count only for what the predicate sees.
var looksOnly = []string{"all", "any", "none", "one", "count"}

// takesText and takesNumber are functions of a text or a number.
var (
	takesText   = []string{"trim", "trimPrefix", "trimSuffix", "upper", "lower", "split", "splitAfter", "replace", "repeat", "indexOf", "lastIndexOf", "hasPrefix", "hasSuffix", "date", "duration", "fromJSON", "fromBase64", "toBase64"}
	takesNumber = []string{"abs", "ceil", "floor", "round", "bitand", "bitor", "bitxor", "bitnand", "bitnot", "bitshl", "bitshr", "bitushr"}
)

func (r *reading) builtin(n *ast.BuiltinNode) {
	a := asked{whole: n.Name != "len", operator: n.Name}
	switch {
	case slices.Contains(takesText, n.Name):
		a = asked{types: asString, operator: n.Name}
	case slices.Contains(takesNumber, n.Name):
		a = asked{types: asNumber, operator: n.Name}
	}
	for i, arg := range n.Arguments {
		predicate, ok := arg.(*ast.PredicateNode)
		if !ok {
			inside := a
			if i == 0 && slices.Contains(looksOnly, n.Name) {
				inside.whole = false
			}
			r.visit(arg, inside)
			continue
		}
		collection, _ := r.place(n.Arguments[0])
		r.collections = append(r.collections, collection)
		r.visit(predicate, asked{whole: !slices.Contains(looksOnly, n.Name)})
		r.collections = r.collections[:len(r.collections)-1]
	}
}
