// SPDX-License-Identifier: Apache-2.0

package egress_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer answers queries for A and AAAA in the process itself, over pipes.
type nameServer struct {
	// answer returns what a name resolves to, and the name it is an alias of, if any. n counts the queries for IPv4
	// addresses of this name, from 1. It is called under a lock.
	answer func(name string, n int) (addrs []netip.Addr, alias string)

	mu   sync.Mutex // guards asked
	asks map[string]int
	wg   sync.WaitGroup
}

// resolver returns a resolver that asks this server, whatever server the system is configured with.
func (s *nameServer) resolver(t *testing.T) *net.Resolver {
	s.asks = map[string]int{}
	t.Cleanup(s.wg.Wait)
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		s.wg.Go(func() {
			defer ours.Close()
			for s.serveOne(ours) == nil {
			}
		})
		return theirs, nil
	}}
}

// serveOne reads a query as over TCP, with its length in front, and answers it.
func (s *nameServer) serveOne(conn net.Conn) error {
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return err
	}
	query := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(conn, query); err != nil {
		return err
	}
	reply, err := s.reply(query)
	if err != nil {
		return err
	}
	_, err = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
	return err
}

func (s *nameServer) reply(query []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	q := m.Questions[0]
	m = dnsmessage.Message{
		Header:    dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true, RecursionAvailable: true},
		Questions: m.Questions,
	}
	name := strings.TrimSuffix(q.Name.String(), ".")
	s.mu.Lock()
	if q.Type == dnsmessage.TypeA {
		s.asks[name]++
	}
	addrs, alias := s.answer(name, max(s.asks[name], 1))
	s.mu.Unlock()
	owner := q.Name
	if alias != "" {
		owner = dnsmessage.MustNewName(alias + ".")
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET},
			Body:   &dnsmessage.CNAMEResource{CNAME: owner},
		})
	}
	for _, a := range addrs {
		h := dnsmessage.ResourceHeader{Name: owner, Class: dnsmessage.ClassINET}
		if a.Is4() && q.Type == dnsmessage.TypeA {
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
		}
		if a.Is6() && q.Type == dnsmessage.TypeAAAA {
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	return m.Pack()
}

// loosely reads an address as the C library does: one to four parts, decimal, octal or hexadecimal.
func loosely(s string) (netip.Addr, bool) {
	parts := strings.Split(s, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var sum uint64
	for i, p := range parts {
		base := 10
		if hex, ok := strings.CutPrefix(strings.ToLower(p), "0x"); ok {
			base, p = 16, hex
		} else if len(p) > 1 && p[0] == '0' {
			base = 8
		}
		n, err := strconv.ParseUint(p, base, 32)
		if err != nil {
			return netip.Addr{}, false
		}
		if i == len(parts)-1 {
			sum += n
		} else {
			sum += n << (8 * (3 - i))
		}
	}
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(sum)))), true
}
