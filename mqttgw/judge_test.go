// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"log/slog"
	"testing"
	"time"
)

// What the directory says last holds, whoever asks it at the same time: a connection that has just come, a change, a client that
// shows another token.
func TestLastJudgementHolds(t *testing.T) {
	policy := func(doc string) *Policy {
		p, err := ParsePolicy([]byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	before := policy(`{"name":"default","access":{"publish":["before","before/${attr.site}"]}}`)
	after := policy(`{"name":"default","access":{"publish":["after","after/${attr.site}"]}}`)
	d := NewDirectory()
	c := &conn{g: &Gateway{log: slog.New(slog.DiscardHandler), now: time.Now, opts: Options{Directory: d}}, key: sessionKey{principal: "p", clientID: "c"}}
	old := &identity{via: viaToken, principal: "p", attributes: map[string]string{"site": "old"}}
	young := &identity{via: viaToken, principal: "p", attributes: map[string]string{"site": "young"}}
	begin, done := make(chan struct{}), make(chan struct{})
	defer close(begin)
	go func() {
		for range begin {
			c.reconsider()
			done <- struct{}{}
		}
	}()
	for range 50_000 {
		d.SetPolicy(before.Name, before)
		if why := c.judge(old, "c"); why != "" {
			t.Fatal(why)
		}
		begin <- struct{}{}
		d.SetPolicy(after.Name, after)
		if why := c.judge(young, "c"); why != "" {
			t.Fatal(why)
		}
		<-done
		if r := c.rights.Load(); !r.mayPublish("after", false) || !r.mayPublish("after/young", false) {
			t.Fatalf("rights are those of before: %+v", r)
		}
	}
}
