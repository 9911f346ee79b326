// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"bytes"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Device is a parsed Device document. Immutable, apart from the memory of the last good password; safe for concurrent
// use.
type Device struct {
	Name      string
	Principal string   // the user name in CONNECT and the identity of what the device publishes
	ClientIDs []string // client ids it may use; * stands for any text; empty = any

	hash     *hash    // exactly one of hash, ref and plain is set
	ref      string   // env:NAME or file:PATH
	plain    []byte   // SHA-256 of a password given as a value
	verified verified // the last password that hash accepted
}

// deviceDocument is the document as written. Pointers tell absent from empty.
type deviceDocument struct {
	Kind        string            `json:"kind"`
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Principal   *string           `json:"principal,omitempty"`
	Password    *passwordDocument `json:"password,omitempty"`
	ClientIDs   []string          `json:"clientIds,omitempty"`
}

type passwordDocument struct {
	Value *string `json:"value,omitempty"`
	Hash  *string `json:"hash,omitempty"`
	Ref   *string `json:"ref,omitempty"`
}

var (
	nameFormat = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	envFormat  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

const (
	maxPrincipal = 256
	maxPassword  = 1024 // bytes; longer ones are refused before they are hashed
	maxClientIDs = 64
	maxLabels    = 64
)

// ParseDevice reads a Device document (JSON). Errors are *fault.Error of kind Invalid with JSON pointers.
func ParseDevice(doc []byte) (*Device, error) {
	d, err := decodeDevice(doc)
	if err != nil {
		return nil, err
	}
	out := &Device{Name: d.Name, Principal: d.Name, ClientIDs: d.ClientIDs}
	if d.Principal != nil {
		out.Principal = *d.Principal
	}
	switch p := d.Password; {
	case p.Hash != nil:
		if out.hash, err = parseHash(*p.Hash); err != nil {
			return nil, fault.Invalidf("/password/hash", "%s", err)
		}
	case p.Ref != nil:
		out.ref = *p.Ref
	default:
		sum := sha256.Sum256([]byte(*p.Value))
		out.plain = sum[:]
	}
	return out, nil
}

// NormalizeDevice checks a Device document and returns it with a password given as a value replaced by a salted hash, so
// that what is stored and shown never holds the password.
func NormalizeDevice(doc []byte) ([]byte, error) {
	d, err := decodeDevice(doc)
	if err != nil {
		return nil, err
	}
	if d.Password.Value != nil {
		h, err := newHash([]byte(*d.Password.Value))
		if err != nil {
			return nil, fmt.Errorf("hash password: %w", err)
		}
		text := h.String()
		d.Password = &passwordDocument{Hash: &text}
	}
	return json.Marshal(d)
}

func decodeDevice(doc []byte) (*deviceDocument, error) {
	var d deviceDocument
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return nil, documentError(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fault.Invalidf("", "more than one JSON value")
	}
	if details := d.check(); len(details) > 0 {
		return nil, fault.Collect(details)
	}
	return &d, nil
}

// documentError turns an error of encoding/json into one with a pointer; it repeats no value.
func documentError(err error) error {
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) {
		pointer := ""
		if wrongType.Field != "" {
			pointer = "/" + strings.ReplaceAll(wrongType.Field, ".", "/")
		}
		return fault.Invalidf(pointer, "must be a %s", wrongType.Type)
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		if name, uerr := strconv.Unquote(field); uerr == nil {
			return fault.Invalidf(fault.Pointer(name), "is not a field of a Device (kind, name, description, labels, principal, password, clientIds)")
		}
	}
	return fault.Invalidf("", "is not a JSON object")
}

func (d *deviceDocument) check() (details []fault.Detail) {
	complain := func(pointer, format string, args ...any) {
		details = append(details, fault.Detail{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
	if d.Kind != "" && d.Kind != "Device" {
		complain("/kind", "must be Device")
	}
	if !nameFormat.MatchString(d.Name) {
		complain("/name", "must be 1 to 63 of a-z, 0-9 and -, not starting or ending with -")
	}
	if d.Principal != nil && (*d.Principal == "" || len(*d.Principal) > maxPrincipal || strings.ContainsRune(*d.Principal, 0)) {
		complain("/principal", "must be 1 to %d bytes without U+0000", maxPrincipal)
	}
	if len(d.Labels) > maxLabels {
		complain("/labels", "must be at most %d", maxLabels)
	}
	if len(d.ClientIDs) > maxClientIDs {
		complain("/clientIds", "must be at most %d", maxClientIDs)
	}
	for i, id := range d.ClientIDs {
		if id == "" || len(id) > maxPrincipal {
			complain("/clientIds/"+strconv.Itoa(i), "must be 1 to %d bytes", maxPrincipal)
		}
	}
	d.Password.check(complain)
	return details
}

func (p *passwordDocument) check(complain func(pointer, format string, args ...any)) {
	if p == nil {
		complain("/password", "is required: {value: ...}, {hash: ...} or {ref: env:NAME or file:PATH}")
		return
	}
	given := 0
	if p.Value != nil {
		given++
		if *p.Value == "" || len(*p.Value) > maxPassword {
			complain("/password/value", "must be 1 to %d bytes", maxPassword)
		}
	}
	if p.Hash != nil {
		given++
		if _, err := parseHash(*p.Hash); err != nil {
			complain("/password/hash", "%s", err)
		}
	}
	if p.Ref != nil {
		given++
		if err := checkRef(*p.Ref); err != nil {
			complain("/password/ref", "%s", err)
		}
	}
	if given != 1 {
		complain("/password", "must have exactly one of value, hash and ref")
	}
}

func checkRef(ref string) error {
	if name, ok := strings.CutPrefix(ref, "env:"); ok && envFormat.MatchString(name) {
		return nil
	}
	if file, ok := strings.CutPrefix(ref, "file:"); ok && filepath.IsAbs(file) && !strings.ContainsRune(file, 0) {
		return nil
	}
	return errors.New("must be env:NAME or file:/ABSOLUTE/PATH")
}

// resolveRef returns the password behind a reference, now. A file's last line end is not part of it.
func resolveRef(ref string) ([]byte, error) {
	if name, ok := strings.CutPrefix(ref, "env:"); ok {
		v, ok := os.LookupEnv(name)
		if !ok || v == "" {
			return nil, fmt.Errorf("environment variable %s is not set", name)
		}
		return []byte(v), nil
	}
	f, err := os.Open(strings.TrimPrefix(ref, "file:"))
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxPassword+3))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
	if len(b) == 0 || len(b) > maxPassword {
		return nil, fmt.Errorf("%s does not hold 1 to %d bytes", ref, maxPassword)
	}
	return b, nil
}

// allowsClientID reports whether the device may use a client id.
func (d *Device) allowsClientID(id string) bool {
	for _, p := range d.ClientIDs {
		if glob(p, id) {
			return true
		}
	}
	return len(d.ClientIDs) == 0
}

// glob matches text against a pattern in which * stands for any text.
func glob(pattern, text string) bool {
	head, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, head)
	if !ok {
		return false
	}
	for {
		part, next, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(text, part)
		}
		i := strings.Index(text, part)
		if i < 0 {
			return false
		}
		text, rest = text[i+len(part):], next
	}
}

// hash is a salted PBKDF2-HMAC-SHA256 hash of a password, written pbkdf2-sha256$<iterations>$<salt>$<key> (base64).
type hash struct {
	iterations int
	salt, key  []byte
}

// iterations of new hashes. Device passwords are long random texts as a rule; a fleet that comes back after a restart
// must be let in within seconds, which a person's password would not allow.
const (
	iterations    = 20_000
	minIterations = 1_000
	maxIterations = 1_000_000
	keySize       = 32
)

func newHash(password []byte) (*hash, error) {
	h := &hash{iterations: iterations, salt: make([]byte, 16)}
	if _, err := rand.Read(h.salt); err != nil {
		return nil, err
	}
	var err error
	h.key, err = h.derive(password)
	return h, err
}

func (h *hash) derive(password []byte) ([]byte, error) {
	return pbkdf2.Key(sha256.New, string(password), h.salt, h.iterations, keySize)
}

// String writes what parseHash reads.
func (h *hash) String() string {
	enc := base64.StdEncoding
	return "pbkdf2-sha256$" + strconv.Itoa(h.iterations) + "$" + enc.EncodeToString(h.salt) + "$" + enc.EncodeToString(h.key)
}

var errHash = fmt.Errorf("must be pbkdf2-sha256$<iterations, %d to %d>$<salt, 8 to 64 bytes>$<key, %d bytes>, both in base64",
	minIterations, maxIterations, keySize)

func parseHash(s string) (*hash, error) {
	parts := strings.Split(s, "$")
	if len(parts) != 4 || parts[0] != "pbkdf2-sha256" {
		return nil, errHash
	}
	n, err1 := strconv.Atoi(parts[1])
	salt, err2 := base64.StdEncoding.Strict().DecodeString(parts[2])
	key, err3 := base64.StdEncoding.Strict().DecodeString(parts[3])
	if errors.Join(err1, err2, err3) != nil || n < minIterations || n > maxIterations || len(salt) < 8 || len(salt) > 64 || len(key) != keySize {
		return nil, errHash
	}
	return &hash{iterations: n, salt: salt, key: key}, nil
}

// verified remembers the last password that a hash accepted, as a keyed digest that is worthless outside this process,
// so that a device that reconnects costs no hashing.
type verified struct {
	digest atomic.Pointer[[sha256.Size]byte]
}

var digestKey = func() []byte {
	k := make([]byte, 32)
	rand.Read(k) //nolint:errcheck // crypto/rand.Read never fails
	return k
}()

func digestOf(password []byte) (d [sha256.Size]byte) {
	m := hmac.New(sha256.New, digestKey)
	m.Write(password)
	m.Sum(d[:0])
	return d
}

func (v *verified) knows(d [sha256.Size]byte) bool {
	known := v.digest.Load()
	return known != nil && subtle.ConstantTimeCompare(known[:], d[:]) == 1
}

func (v *verified) remember(d [sha256.Size]byte) { v.digest.Store(&d) }

// hashersAtOnce leaves CPU to the devices that are connected already.
func hashersAtOnce() int { return max(1, runtime.GOMAXPROCS(0)/2) }
