// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/sources"
	"github.com/rialto-bridge/rialto/sources/webhook"
)

// While the log does not answer, a bounded number of requests wait for it; the others are to come again. Once it answers, all goes on.
func TestRequestsThatWaitForTheLogAreBounded(t *testing.T) {
	const most = 1024
	src, err := webhook.Kind().New(json.RawMessage(`{"provider":"generic","bearer":{"value":"token"}}`), sources.Env{Name: "s", MaxData: 1 << 20, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	hook := src.(sources.HookHandler)
	waiting, answer := make(chan struct{}, most), make(chan struct{})
	emit := func(ctx context.Context, _ ...event.Event) error {
		waiting <- struct{}{}
		select {
		case <-answer:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	send := func(i int) error {
		r := httptest.NewRequest(http.MethodPost, "/hooks/s", strings.NewReader(fmt.Sprintf(`{"n":%d}`, i)))
		r.Header.Set("Authorization", "Bearer token")
		r.Header.Set("Content-Type", "application/json")
		return hook.ServeHook(httptest.NewRecorder(), r, emit)
	}
	var all sync.WaitGroup
	for i := range most {
		all.Go(func() {
			if err := send(i); err != nil {
				t.Error(err)
			}
		})
	}
	for range most {
		<-waiting
	}
	if err := send(most); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("one more is answered %v", err)
	}
	close(answer)
	all.Wait()
	if err := send(most); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
