// SPDX-License-Identifier: Apache-2.0

package targets_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/targets"
)

// Whatever an event was published with, a loop ends.
func TestNextHop(t *testing.T) {
	for _, c := range []struct {
		value any // nil = there is none
		most  int
		want  int32 // 0 = refused
	}{
		{nil, 0, 1}, {int32(1), 0, 2}, {int32(7), 0, 8}, {int32(8), 0, 0}, {int32(8), 9, 9}, {int32(math.MaxInt32), 0, 0}, {int32(math.MinInt32), 0, 1},
		{"7", 0, 8}, {"8", 0, 0}, {"99999999999999999999999", 0, 0}, {"-1", 0, 1}, {"eight", 0, 1}, {"", 0, 1}, {true, 0, 1}, {int32(0), 1, 1}, {int32(1), 1, 0},
		{int32(63), 64, 64}, {int32(64), 64, 0},
	} {
		ev := &event.Event{}
		if c.value != nil {
			ev.Extensions = []event.Attribute{{Name: targets.HopsExtension, Value: c.value}}
		}
		if got, err := targets.NextHop(ev, c.most); got != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("after %v with at most %d: %d, %v, want %d", c.value, c.most, got, err, c.want)
		}
	}
}

func TestWithExtensions(t *testing.T) {
	given := []event.Attribute{{Name: "a", Value: "1"}, {Name: "n", Value: int32(2)}, {Name: "z", Value: true}}
	got := targets.WithExtensions(given, event.Attribute{Name: "n", Value: int32(3)}, event.Attribute{Name: "b", Value: "x"})
	if fmt.Sprint(got) != "[{a 1} {b x} {n 3} {z true}]" || fmt.Sprint(given) != "[{a 1} {n 2} {z true}]" {
		t.Errorf("%v of %v", got, given)
	}
}
