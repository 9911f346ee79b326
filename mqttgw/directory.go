// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/secret/token"
)

// Directory is who may connect and what they may do: devices, policies, issuers of tokens. Changes hold for the next
// CONNECT at once, and for connections that exist when Enforce is called. Safe for concurrent use.
type Directory struct {
	mu       sync.RWMutex
	devices  map[string]*Device   // guarded by mu; by name
	byUser   map[string][]*Device // guarded by mu; by principal, in the order of names; each slice is replaced and never changed
	policies map[string]*Policy   // guarded by mu; by name
	issuers  map[string]*Issuer   // guarded by mu; by name
	byIssuer map[string]*Issuer   // guarded by mu; by the claim iss
	gateways []*Gateway           // guarded by mu; that use it
	changed  map[string]bool      // guarded by mu; principals of devices that were changed since Enforce
	wide     bool                 // guarded by mu; a policy was changed since Enforce
}

// NewDirectory returns an empty Directory.
func NewDirectory() *Directory {
	return &Directory{devices: map[string]*Device{}, byUser: map[string][]*Device{}, policies: map[string]*Policy{},
		issuers: map[string]*Issuer{}, byIssuer: map[string]*Issuer{}, changed: map[string]bool{}}
}

// Enforce applies changes to the connections that exist: those that may not stay are ended, the others get the rights that
// hold now. Changes of devices look at their connections only, those of a policy at all, some milliseconds for each 10,000.
func (d *Directory) Enforce() {
	d.mu.Lock()
	gateways, changed, wide := d.gateways, d.changed, d.wide
	d.changed, d.wide = map[string]bool{}, false
	d.mu.Unlock()
	for _, g := range gateways {
		if wide {
			g.reconsider(nil)
		} else {
			g.reconsider(changed)
		}
	}
}

func (d *Directory) serve(g *Gateway) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gateways = append(slices.Clone(d.gateways), g)
}

// Set adds or replaces the device of a name.
func (d *Directory) Set(name string, dev *Device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(name)
	d.changed[dev.Principal] = true
	d.devices[name] = dev
	all := append(slices.Clone(d.byUser[dev.Principal]), dev)
	slices.SortFunc(all, func(a, b *Device) int { return cmp.Compare(a.Name, b.Name) })
	d.byUser[dev.Principal] = all
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
	d.changed[old.Principal] = true
	rest := slices.DeleteFunc(slices.Clone(d.byUser[old.Principal]), func(dev *Device) bool { return dev == old })
	if len(rest) == 0 {
		delete(d.byUser, old.Principal)
		return
	}
	d.byUser[old.Principal] = rest
}

// SetPolicy adds or replaces the policy of a name.
func (d *Directory) SetPolicy(name string, p *Policy) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.policies[name], d.wide = p, true
}

// RemovePolicy takes a policy out. Clients that it is named for may do nothing then.
func (d *Directory) RemovePolicy(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.policies, name)
	d.wide = true
}

// ClosePolicy puts a policy that allows nothing in the place of one that cannot be read. Without the one with the name DefaultPolicy
// clients that no other is named for could do everything.
func (d *Directory) ClosePolicy(name string) { d.SetPolicy(name, nothing) }

// SetIssuer adds or replaces the issuer of a name. Of two that issue under one name (the claim iss) the later counts.
func (d *Directory) SetIssuer(name string, s *Issuer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.issuers[name] = s
	d.indexIssuers()
}

// RemoveIssuer takes an issuer out. Connections that its tokens let in stay until the tokens end.
func (d *Directory) RemoveIssuer(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.issuers, name)
	d.indexIssuers()
}

// indexIssuers makes byIssuer anew. mu is held.
func (d *Directory) indexIssuers() {
	clear(d.byIssuer)
	names := make([]string, 0, len(d.issuers))
	for name := range d.issuers {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		d.byIssuer[d.issuers[name].tokens.Issuer()] = d.issuers[name]
	}
}

// issuersJudge reports whether an issuer has a policy for those whom it vouches for. mu is held.
func (d *Directory) issuersJudge() bool {
	for _, s := range d.issuers {
		if s.policy != "" {
			return true
		}
	}
	return false
}

func (d *Directory) issuer(iss string) *Issuer {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.byIssuer[iss]
}

// issues reports whether a password is a token of an issuer that is known, going by what it says of itself.
func (d *Directory) issues(password []byte) bool {
	d.mu.RLock()
	none := len(d.issuers) == 0
	d.mu.RUnlock()
	if none {
		return false
	}
	iss, ok := token.IssuerOf(string(password))
	return ok && d.issuer(iss) != nil
}

func (d *Directory) lookup(user string) []*Device {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.byUser[user]
}

// nobody is hashed against when a user name is unknown, so that the time of the answer does not tell.
var nobody = &Device{hash: &hash{memory: argonMemory, passes: argonPasses, lanes: argonLanes, salt: make([]byte, saltSize), key: make([]byte, keySize)}}

// authenticate finds the device of a user name, password and client id. why is "" for success, else a reason of
// authFailures. It may take as long as a password hash and the queue for it; ctx bounds the queue.
func (g *Gateway) authenticate(ctx context.Context, addr netip.Addr, user string, password []byte, clientID string) (dev *Device, why string) {
	if len(user) > maxPrincipal {
		user = "" // no device's, and not to be remembered
	}
	if g.failures.blocked(addr, user, g.now()) {
		return nil, authBlocked
	}
	candidates := slices.DeleteFunc(slices.Clone(g.opts.Directory.lookup(user)), func(dev *Device) bool { return !dev.hasPassword() })
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
			text, err := g.opts.Secrets.Resolve(dev.ref)
			if err == nil && len(text) > maxPassword {
				err = fmt.Errorf("secret %s: is longer than %d bytes", dev.ref, maxPassword)
			}
			if err != nil {
				return false, err
			}
			sum := sha256.Sum256([]byte(text))
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
	if !dev.hash.accepts(password) || dev == nobody {
		return false, nil
	}
	dev.verified.remember(digest)
	return true, nil
}

// authTime bounds the wait for a turn to check a password.
const authTime = 10 * time.Second
