// SPDX-License-Identifier: Apache-2.0

package app

import (
	"crypto/tls"
	"os"
	"sync"
	"time"
)

// keyPair is a certificate in files. It is loaded again when the files change; if they cannot be read then, the last
// good one stays in use.
type keyPair struct {
	cert, key string

	mu      sync.Mutex // guards all below
	loaded  *tls.Certificate
	stamp   [2]time.Time
	checked time.Time
}

// recheck is how often the files are looked at.
const recheck = time.Second

func (p *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loaded != nil && time.Since(p.checked) < recheck {
		return p.loaded, nil
	}
	p.checked = time.Now()
	var stamp [2]time.Time
	for i, name := range []string{p.cert, p.key} {
		st, err := os.Stat(name)
		if err != nil {
			return p.kept(err)
		}
		stamp[i] = st.ModTime()
	}
	if p.loaded != nil && stamp == p.stamp {
		return p.loaded, nil
	}
	c, err := tls.LoadX509KeyPair(p.cert, p.key)
	if err != nil {
		return p.kept(err)
	}
	p.loaded, p.stamp = &c, stamp
	return p.loaded, nil
}

func (p *keyPair) kept(err error) (*tls.Certificate, error) {
	if p.loaded != nil {
		return p.loaded, nil
	}
	return nil, err
}
