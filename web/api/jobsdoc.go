// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rialto-bridge/rialto/bridge"
)

func deadFilterSchema() *huma.Schema {
	moment := &huma.Schema{Type: "string", Format: "date-time"}
	return &huma.Schema{Type: "object", Description: "all that is there must hold; {} selects everything",
		Properties: map[string]*huma.Schema{"rule": text(""), "target": text(""), "reason": text(""), "fingerprint": text(""),
			"from": moment, "to": moment, "ids": {Type: "array", Items: text("such as DEAD:7")}}}
}

func endedFilterSchema() *huma.Schema {
	moment := &huma.Schema{Type: "string", Format: "date-time", Description: "of the arrival of events"}
	s := object([]string{"outcome", "target"}, map[string]*huma.Schema{
		"outcome": text("how they ended: " + strings.Join(bridge.EndedOutcomes, ", ")), "target": text(""), "rule": text(""), "reason": text(""),
		"fingerprint": text("as the count says"), "subject": text("of the events"), "from": moment, "to": moment})
	s.Description = "all that is there must hold"
	return s
}

func jobResponses() map[string]*huma.Response {
	return map[string]*huma.Response{
		"200": {Description: "What it would select", Content: jsonContent(ref("DeadCount"))},
		"202": {Description: "The job is under way", Content: jsonContent(object([]string{"job"}, map[string]*huma.Schema{"job": ref("Job")}))},
	}
}
