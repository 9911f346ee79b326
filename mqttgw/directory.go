// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Directory is who may connect. Set and Remove take effect for the next CONNECT; connections that exist stay. Safe for
// concurrent use.
type Directory struct {
	mu      sync.RWMutex
	devices map[string]*Device   // guarded by mu; by name
	byUser  map[string][]*Device // guarded by mu; by principal, each slice is replaced and never changed
}

// NewDirectory returns an empty Directory.
func NewDirectory() *Directory {
	return &Directory{devices: map[string]*Device{}, byUser: map[string][]*Device{}}
}

// Set adds or replaces the device of a name.
func (d *Directory) Set(name string, dev *Device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(name)
	d.devices[name] = dev
	d.byUser[dev.Principal] = append(slices.Clone(d.byUser[dev.Principal]), dev)
}

// Remove takes a device out; an unknown name is no error.
func (d *Directory) Remove(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(name)
}

// remove takes a device out. mu is held.
func (d *Directory) remove(name string) {
	old, ok := d.devices[name]
	if !ok {
		return
	}
	delete(d.devices, name)
	rest := slices.DeleteFunc(slices.Clone(d.byUser[old.Principal]), func(dev *Device) bool { return dev == old })
	if len(rest) == 0 {
		delete(d.byUser, old.Principal)
		return
	}
	d.byUser[old.Principal] = rest
}

func (d *Directory) lookup(user string) []*Device {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.byUser[user]
}

// nobody is hashed against when a user name is unknown, so that the time of the answer does not tell.
var nobody = &Device{hash: &hash{iterations: iterations, salt: make([]byte, 16), key: make([]byte, keySize)}}

// authenticate finds the device of a user name, password and client id. why is "" for success, else a reason of
// authFailures. It may take as long as a password hash and the queue for it; ctx bounds the queue.
func (g *Gateway) authenticate(ctx context.Context, addr netip.Addr, user string, password []byte, clientID string) (dev *Device, why string) {
	if len(user) > maxPrincipal {
		user = "" // no device's, and not to be remembered
	}
	if g.failures.blocked(addr, user, g.now()) {
		return nil, authBlocked
	}
	candidates := g.opts.Directory.lookup(user)
	if len(candidates) == 0 {
		candidates = []*Device{nobody}
	}
	why = authPassword
	for _, dev := range candidates {
		ok, err := g.verify(ctx, dev, password)
		switch {
		case ctx.Err() != nil:
			return nil, authBusy // says nothing about the password
		case err != nil:
			g.log.Warn("device password cannot be checked", "device", dev.Name, "err", err)
		}
		if !ok {
			continue
		}
		if dev.allowsClientID(clientID) {
			return dev, ""
		}
		why = authClientID
	}
	g.failures.note(addr, user, g.now())
	return nil, why
}

func (g *Gateway) verify(ctx context.Context, dev *Device, password []byte) (bool, error) {
	if len(password) > maxPassword {
		return false, nil
	}
	if dev.hash == nil {
		want := dev.plain
		if dev.ref != "" {
			secret, err := resolveRef(dev.ref)
			if err != nil {
				return false, err
			}
			sum := sha256.Sum256(secret)
			want = sum[:]
		}
		got := sha256.Sum256(password)
		return subtle.ConstantTimeCompare(got[:], want) == 1, nil
	}
	digest := digestOf(password)
	if dev.verified.knows(digest) {
		return true, nil
	}
	select {
	case g.hashing <- struct{}{}:
	case <-ctx.Done():
		return false, fmt.Errorf("wait for a turn to hash: %w", context.Cause(ctx))
	}
	defer func() { <-g.hashing }()
	key, err := dev.hash.derive(password)
	if err != nil {
		return false, fmt.Errorf("hash password: %w", err)
	}
	if dev == nobody || subtle.ConstantTimeCompare(key, dev.hash.key) != 1 {
		return false, nil
	}
	dev.verified.remember(digest)
	return true, nil
}

// authTime bounds the wait for a turn to check a password.
const authTime = 10 * time.Second
