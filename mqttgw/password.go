// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/crypto/argon2"
	"golang.org/x/crypto/bcrypt"
)

// hash is a salted, slow hash of a password: argon2id in the PHC string format,
// $argon2id$v=19$m=<KiB>,t=<passes>,p=<lanes>$<salt>$<key>, or bcrypt, $2b$<cost>$<salt and key>.
type hash struct {
	text   string
	bcrypt bool

	memory    uint32 // KiB
	passes    uint32
	lanes     uint8
	salt, key []byte
}

// What new hashes cost: about ten milliseconds and 8 MiB. Device passwords are long random texts as a rule, and a fleet
// that comes back after a restart must be let in within minutes, which a person's password would not allow.
const (
	argonMemory = 8 << 10 // KiB
	argonPasses = 2
	argonLanes  = 1
	saltSize    = 16
	keySize     = 32
)

// What a hash that is brought along may cost.
const (
	maxArgonMemory = 64 << 10 // KiB
	maxArgonPasses = 16
	maxArgonLanes  = 4
	maxBcryptCost  = 12
)

func newHash(password []byte) (*hash, error) {
	h := &hash{memory: argonMemory, passes: argonPasses, lanes: argonLanes, salt: make([]byte, saltSize)}
	if _, err := rand.Read(h.salt); err != nil {
		return nil, err
	}
	h.key = h.derive(password, keySize)
	h.text = fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, h.memory, h.passes, h.lanes,
		base64.RawStdEncoding.EncodeToString(h.salt), base64.RawStdEncoding.EncodeToString(h.key))
	return h, nil
}

// derive makes a key of size bytes. The size is an input of argon2: a shorter key is not the beginning of a longer one.
func (h *hash) derive(password []byte, size int) []byte {
	return argon2.IDKey(password, h.salt, h.passes, h.memory, h.lanes, uint32(size))
}

// accepts reports whether the password is the one. It takes as long as the hash is made to take.
func (h *hash) accepts(password []byte) bool {
	if h.bcrypt {
		return bcrypt.CompareHashAndPassword([]byte(h.text), password) == nil
	}
	return subtle.ConstantTimeCompare(h.derive(password, len(h.key)), h.key) == 1
}

// String is the text of the hash.
func (h *hash) String() string { return h.text }

var errHash = fmt.Errorf("must be $argon2id$v=%d$m=<KiB, at most %d>,t=<passes, at most %d>,p=<lanes, at most %d>$<salt, 8 to 64 bytes>$<key, 16 to 64 bytes> or bcrypt of a cost of at most %d",
	argon2.Version, maxArgonMemory, maxArgonPasses, maxArgonLanes, maxBcryptCost)

func parseHash(s string) (*hash, error) {
	if strings.HasPrefix(s, "$2") {
		cost, err := bcrypt.Cost([]byte(s))
		if err != nil || cost > maxBcryptCost || len(s) != 60 {
			return nil, errHash
		}
		return &hash{text: s, bcrypt: true}, nil
	}
	parts := strings.Split(s, "$")
	if len(parts) != 6 || parts[0] != "" || parts[1] != "argon2id" || parts[2] != "v="+strconv.Itoa(argon2.Version) {
		return nil, errHash
	}
	h := &hash{text: s}
	var err error
	if h.memory, h.passes, h.lanes, err = parseCost(parts[3]); err != nil {
		return nil, err
	}
	enc := base64.RawStdEncoding.Strict()
	var err2 error
	h.salt, err = enc.DecodeString(parts[4])
	h.key, err2 = enc.DecodeString(parts[5])
	if errors.Join(err, err2) != nil || len(h.salt) < 8 || len(h.salt) > 64 || len(h.key) < 16 || len(h.key) > 64 {
		return nil, errHash
	}
	return h, nil
}

// parseCost reads m=<KiB>,t=<passes>,p=<lanes>.
func parseCost(s string) (memory, passes uint32, lanes uint8, err error) {
	var values [3]uint64
	parts := strings.Split(s, ",")
	if len(parts) != len(values) {
		return 0, 0, 0, errHash
	}
	for i, name := range []string{"m=", "t=", "p="} {
		digits, ok := strings.CutPrefix(parts[i], name)
		if values[i], err = strconv.ParseUint(digits, 10, 32); !ok || err != nil {
			return 0, 0, 0, errHash
		}
	}
	m, t, p := values[0], values[1], values[2]
	if p < 1 || p > maxArgonLanes || t < 1 || t > maxArgonPasses || m < 8*p || m > maxArgonMemory {
		return 0, 0, 0, errHash
	}
	return uint32(m), uint32(t), uint8(p), nil
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
