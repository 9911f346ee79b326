// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret"
)

// Device is a parsed Device document. Immutable, apart from the memory of the last good password; safe for concurrent
// use.
type Device struct {
	Name      string
	Principal string   // who it is: the user name in CONNECT, or what its certificate or token says
	ClientIDs []string // client ids it may use; * stands for any text; empty = any
	Blocked   bool     // the principal, under these client ids, is refused and cut off

	labels     map[string]string
	attributes map[string]string // for access templates
	access     *access           // nil = the policy's
	rate       *rateDocument     // nil = the policy's
	policy     string            // "" = the default one

	hash     *hash    // at most one of hash, ref and plain is set; without, no password is good
	ref      string   // env:NAME or file:PATH
	plain    []byte   // SHA-256 of a password given as a value
	verified verified // the last password that hash accepted
}

// deviceDocument is the document as written. Pointers tell absent from empty.
type deviceDocument struct {
	documentHead
	Principal   *string           `json:"principal,omitempty"`
	Password    *passwordDocument `json:"password,omitempty"`
	ClientIDs   []string          `json:"clientIds,omitempty"`
	Attributes  map[string]string `json:"attributes,omitempty"`
	Policy      string            `json:"policy,omitempty"`
	Access      *accessDocument   `json:"access,omitempty"`
	PublishRate *rateDocument     `json:"publishRate,omitempty"`
	Blocked     bool              `json:"blocked,omitempty"`

	parsed *access
}

type passwordDocument struct {
	Value *string `json:"value,omitempty"`
	Hash  *string `json:"hash,omitempty"`
	Ref   *string `json:"ref,omitempty"`
}

const (
	maxPrincipal = 256
	maxPassword  = 1024 // bytes; longer ones are refused before they are hashed
	maxClientIDs = 64
)

// ParseDevice reads a Device document (JSON). Errors are *fault.Error of kind Invalid with JSON pointers.
func ParseDevice(doc []byte) (*Device, error) {
	var d deviceDocument
	if err := decodeDocument(doc, "Device", &d); err != nil {
		return nil, err
	}
	out := &Device{Name: d.Name, Principal: d.Name, ClientIDs: d.ClientIDs, Blocked: d.Blocked, labels: d.Labels, attributes: d.Attributes,
		access: d.parsed, rate: d.PublishRate, policy: d.Policy}
	if d.Principal != nil {
		out.Principal = *d.Principal
	}
	switch p := d.Password; {
	case p == nil:
	case p.Hash != nil:
		h, err := parseHash(*p.Hash)
		if err != nil {
			return nil, fault.Invalidf("/password/hash", "%s", err)
		}
		out.hash = h
	case p.Ref != nil:
		out.ref = *p.Ref
	default:
		sum := sha256.Sum256([]byte(*p.Value))
		out.plain = sum[:]
	}
	return out, nil
}

// NormalizeDevice checks a Device document and returns it with a password given as a value replaced by a salted hash, so
// that what is stored and shown never holds the password. old is the document that is stored, nil if there is none: its hash
// stays when it is the password's, so that writing the same again changes nothing.
func NormalizeDevice(doc, old []byte) ([]byte, error) {
	var d deviceDocument
	if err := decodeDocument(doc, "Device", &d); err != nil {
		return nil, err
	}
	if d.Password != nil && d.Password.Value != nil {
		password := []byte(*d.Password.Value)
		h := storedHash(old)
		if h == nil || !h.accepts(password) {
			var err error
			if h, err = newHash(password); err != nil {
				return nil, fmt.Errorf("hash password: %w", err)
			}
		}
		text := h.String()
		d.Password = &passwordDocument{Hash: &text}
	}
	return json.Marshal(&d)
}

// storedHash is the hash in a stored document; nil if there is none.
func storedHash(doc []byte) *hash {
	if doc == nil {
		return nil
	}
	d, err := ParseDevice(doc)
	if err != nil {
		return nil // what cannot be read is replaced
	}
	return d.hash
}

func (d *deviceDocument) check(complain complaint) {
	d.documentHead.check("Device", complain)
	if d.Principal != nil && (*d.Principal == "" || len(*d.Principal) > maxPrincipal || strings.ContainsRune(*d.Principal, 0)) {
		complain("/principal", "must be 1 to %d bytes without U+0000", maxPrincipal)
	}
	if len(d.ClientIDs) > maxClientIDs {
		complain("/clientIds", "must be at most %d", maxClientIDs)
	}
	for i, id := range d.ClientIDs {
		if id == "" || len(id) > maxPrincipal {
			complain("/clientIds/"+strconv.Itoa(i), "must be 1 to %d bytes", maxPrincipal)
		}
	}
	if d.Password != nil {
		d.Password.check(complain.under("/password"))
	}
	checkAttributes(d.Attributes, complain.under("/attributes"))
	if d.Policy != "" && !nameFormat.MatchString(d.Policy) {
		complain("/policy", badName)
	}
	if d.Access != nil {
		d.parsed = d.Access.parse(complain.under("/access"))
	}
	d.PublishRate.check(complain.under("/publishRate"))
}

func (p *passwordDocument) check(complain complaint) {
	given := 0
	if p.Value != nil {
		given++
		if *p.Value == "" || len(*p.Value) > maxPassword {
			complain("/value", "must be 1 to %d bytes", maxPassword)
		}
	}
	if p.Hash != nil {
		given++
		if _, err := parseHash(*p.Hash); err != nil {
			complain("/hash", "%s", err)
		}
	}
	if p.Ref != nil {
		given++
		if err := secret.CheckOutside(*p.Ref); err != nil {
			complain("/ref", "%s", err)
		}
	}
	if given != 1 {
		complain("", "must have exactly one of value, hash and ref")
	}
}

func (d *Device) hasPassword() bool { return d.hash != nil || d.ref != "" || d.plain != nil }

// allowsClientID reports whether the device may use a client id.
func (d *Device) allowsClientID(id string) bool {
	for _, p := range d.ClientIDs {
		if globPieces(strings.Split(p, "*"), id) {
			return true
		}
	}
	return len(d.ClientIDs) == 0
}
