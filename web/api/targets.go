// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
)

const kindTarget = "Target"

// enabledDoc is what is answered for a target that was enabled. Redrive is the call that makes exactly what was missed owed
// again; there is none if nothing was.
type enabledDoc struct {
	bridge.Enabled
	Redrive *call `json:"redrive,omitempty"`
}

// call is a request that a client may make.
type call struct {
	Method string      `json:"method"`
	Path   string      `json:"path"`
	Body   redriveBody `json:"body"`
}

type redriveBody struct {
	Filter missedFilter `json:"filter"`
}

// missedFilter is the filter of a redrive as its body has it.
type missedFilter struct {
	Target string    `json:"target"`
	From   time.Time `json:"from"`
	To     time.Time `json:"to"`
}

func (a *API) addConsentRoutes() {
	for _, method := range []string{"GET", "POST"} {
		a.add(method, "/consents/{target}/{token}", need{self: true}, a.takeConsent)
	}
}

// takeConsent takes the consent of the far side of a target, which knows the token and no key (CloudEvents HTTP webhook
// specification, section 4.1.3).
func (a *API) takeConsent(w *reply, r *http.Request) error {
	err := a.o.Bridge.Consent(r.Context(), pathParam(r, "target"), pathParam(r, "token"), r.Header.Get("WebHook-Allowed-Rate"))
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// enableTarget enables a target that was disabled.
func (a *API) enableTarget(w *reply, r *http.Request) error {
	if _, err := noQuery(r); err != nil {
		return err
	}
	e, err := a.o.Bridge.EnableTarget(r.Context(), pathParam(r, "name"), w.caller())
	if err != nil {
		return err
	}
	doc := enabledDoc{Enabled: e}
	if e.Missed.Total > 0 {
		doc.Redrive = &call{Method: http.MethodPost, Path: "/v1/deadletters:redrive",
			Body: redriveBody{missedFilter{Target: e.Filter.Target, From: e.Filter.From, To: e.Filter.To}}}
	}
	return sendJSON(w, http.StatusOK, doc)
}
