// SPDX-License-Identifier: Apache-2.0

package kv

import (
	"fmt"
	"strings"

	"github.com/rialto-bridge/rialto/internal/store"
)

// A key is <kind>.<scope>.<name>. Within a part, every byte but letters, digits, "-" and "_" is written =XX in
// upper-case hexadecimal; an empty part is a lone "=". So each key has one form and comes back as it was.

const hexDigits = "0123456789ABCDEF"

func encodeKey(k store.Key) string {
	return encodePart(k.Kind) + "." + encodePart(k.Scope) + "." + encodePart(k.Name)
}

func encodePart(part string) string {
	if part == "" {
		return "="
	}
	var b strings.Builder
	for i := range len(part) {
		if c := part[i]; plain(c) {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'=', hexDigits[c>>4], hexDigits[c&15]})
		}
	}
	return b.String()
}

func decodeKey(s string) (store.Key, error) {
	parts := strings.Split(s, ".")
	if len(parts) != 3 {
		return store.Key{}, fmt.Errorf("key %q has not three parts", s)
	}
	for i, p := range parts {
		d, err := decodePart(p)
		if err != nil {
			return store.Key{}, fmt.Errorf("key %q: %w", s, err)
		}
		parts[i] = d
	}
	return store.Key{Kind: parts[0], Scope: parts[1], Name: parts[2]}, nil
}

func decodePart(p string) (string, error) {
	switch p {
	case "":
		return "", fmt.Errorf("empty part")
	case "=":
		return "", nil
	}
	var b strings.Builder
	for i := 0; i < len(p); i++ {
		c := p[i]
		if c == '=' {
			if len(p)-i < 3 {
				return "", fmt.Errorf("cut escape")
			}
			hi, lo := strings.IndexByte(hexDigits, p[i+1]), strings.IndexByte(hexDigits, p[i+2])
			if hi < 0 || lo < 0 || plain(byte(hi<<4|lo)) {
				return "", fmt.Errorf("escape that is not ours")
			}
			c, i = byte(hi<<4|lo), i+2
		} else if !plain(c) {
			return "", fmt.Errorf("byte %#x must be escaped", c)
		}
		b.WriteByte(c)
	}
	return b.String(), nil
}

func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}
