// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/reporter"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// protoSchema is a compiled .proto file.
type protoSchema struct{ file protoreflect.FileDescriptor }

// protoFile is how a text is called while it is compiled.
const protoFile = "schema.proto"

func (c *Compiled) compileProto(ctx context.Context, text string, from Source) ([]byte, error) {
	if err := checkBraces(text); err != nil {
		return nil, err
	}
	files := &protoFiles{fetcher: newFetcher(ctx, from, Protobuf), texts: map[string]string{protoFile: text}, refs: map[string]Ref{}}
	if err := files.load(c.References); err != nil {
		return nil, err
	}
	k := protocompile.Compiler{MaxParallelism: 1, Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{Accessor: files.open})}
	out, err := k.Compile(ctx, protoFile)
	if err != nil {
		return nil, protoFault(err)
	}
	c.proto = &protoSchema{out[0]}
	d := protodesc.ToFileDescriptorProto(out[0])
	d.SourceCodeInfo = nil
	return proto.MarshalOptions{Deterministic: true}.Marshal(d)
}

// checkBraces refuses a text that is nested too deep for a parser that recurses.
func checkBraces(text string) error {
	depth := 0
	for _, r := range text {
		switch r {
		case '{', '(', '[', '<':
			depth++
		case '}', ')', ']', '>':
			depth--
		}
		if depth > maxNesting {
			return fault.Invalidf("", "is nested deeper than %d levels", maxNesting)
		}
	}
	return nil
}

func protoFault(err error) error {
	var at reporter.ErrorWithPos
	if errors.As(err, &at) {
		p := at.GetPosition()
		return &fault.Error{Kind: fault.Invalid, Message: "invalid", Err: err, Details: []fault.Detail{{
			Detail: fmt.Sprintf("%s line %d, column %d: %s", strings.TrimPrefix(p.Filename, protoFile), p.Line, p.Col, clip(at.Unwrap().Error()))}}}
	}
	return &fault.Error{Kind: fault.Invalid, Message: "invalid", Err: err,
		Details: []fault.Detail{{Detail: "is no Protobuf schema: " + clip(err.Error())}}}
}

// protoFiles has the texts that may be imported, by the names under which they are.
type protoFiles struct {
	*fetcher
	texts map[string]string
	refs  map[string]Ref
}

func (f *protoFiles) load(refs []Reference) error {
	for _, r := range refs {
		was, known := f.refs[r.Name]
		switch {
		case known && was == r.Ref():
			continue
		case known || r.Name == protoFile:
			return fault.New(fault.Invalid, "import %q means two files", r.Name)
		}
		f.refs[r.Name] = r.Ref()
		v, err := f.fetch(r.Ref())
		if err != nil {
			return err
		}
		f.texts[r.Name] = v.Text
		if err := f.load(v.References); err != nil {
			return err
		}
	}
	return nil
}

// open is what the compiler reads with: no file, no network.
func (f *protoFiles) open(path string) (io.ReadCloser, error) {
	text, ok := f.texts[path]
	if !ok {
		return nil, fmt.Errorf("%s is not among the references; nothing is read from files", clip(path))
	}
	return io.NopCloser(strings.NewReader(text)), nil
}
