// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rialto-bridge/rialto/mqttgw"
)

// commandSchemas describes commands and broadcasts.
func commandSchemas(schemas map[string]*huma.Schema) {
	moment := &huma.Schema{Type: "string", Format: "date-time"}
	status := text("one of " + strings.Join(mqttgw.CommandStatuses(), ", "))
	schemas["Command"] = object([]string{"id", "device", "topic", "qos", "status", "final", "position", "createdAt", "changedAt", "expiresAt"}, map[string]*huma.Schema{
		"id": text("of the device's own"), "device": text("name of a Device, or a client id"), "principal": text("whose client id it is, if that is settled"),
		"topic": text(""), "qos": {Type: "integer"}, "status": status, "final": {Type: "boolean", Description: "nothing more can become of it"},
		"reason": text("why it has the status: a reason code of the device, or the server's word"), "correlation": text(""), "by": text("the key that asked for it"),
		"position": text("DOWN:<sequence>"), "createdAt": moment, "changedAt": moment,
		"expiresAt": {Type: "string", Format: "date-time", Description: "when it is not sent any more"},
		"duplicate": {Type: "boolean", Description: "a command with this id was there already"}})
	schemas["Broadcast"] = object([]string{"id", "state", "select", "rate", "batch", "total", "sent", "createdAt", "changedAt"}, map[string]*huma.Schema{
		"id": text("also the id of its commands"), "state": text("running, paused, done or cancelled"), "waiting": text("why it gets no further at the moment"),
		"select": selectionSchema(), "topic": text(""), "rate": {Type: "number"}, "batch": {Type: "integer"}, "by": text("the key that asked for it"), "why": text(""),
		"total": {Type: "integer", Description: "devices that were selected when it was made"}, "sent": {Type: "integer", Description: "commands stored so far"},
		"skipped": {Type: "integer", Description: "devices that cannot get it"}, "skipReason": text("why the last of them cannot"),
		"statuses":  {Type: "object", Description: "how many of its commands have each status", AdditionalProperties: &huma.Schema{Type: "integer"}},
		"createdAt": moment, "changedAt": moment})
}

func selectionSchema() *huma.Schema {
	return &huma.Schema{Type: "object", Description: "devices, or all conditions that there are must hold",
		Properties: map[string]*huma.Schema{"devices": {Type: "array", Description: "a client id of a Device that is in the list too counts as that Device", Items: text("name of a Device, or a client id")},
			"labels":   {Type: "object", Description: "of Device definitions", AdditionalProperties: text("")},
			"clientId": text("name of a Device, or a client id: one that clients of the Device have connected with or that its definition names, or, without labels, that of a client that is no Device; * stands for any text"), "online": {Type: "boolean", Description: "connected when their turn is planned"},
			"all": {Type: "boolean", Description: "every device, on purpose"}}}
}

// commandProperties are what a command says of itself.
func commandProperties() map[string]*huma.Schema {
	return map[string]*huma.Schema{
		"topic":         text("default: devices/<device>/commands; ${device} stands for the device in a broadcast"),
		"payload":       text("text; or payloadBase64, or data"),
		"payloadBase64": {Type: "string", ContentEncoding: "base64", Description: "bytes"},
		"data":          {Description: "JSON; the content type is application/json then, if none is given"},
		"contentType":   text("for MQTT 5 clients"), "qos": {Type: "integer", Minimum: f64(0), Maximum: f64(2), Default: 1},
		"expiry":        text("after which it is not sent any more, such as 90s or 12h; default and longest: as long as messages to devices are kept"),
		"correlation":   text("correlation data for MQTT 5 clients; stands in the events about the command too"),
		"responseTopic": text("for MQTT 5 clients"), "userProperties": {Type: "object", Description: "for MQTT 5 clients", AdditionalProperties: text("")},
	}
}

// commandOperations describes the routes.
func commandOperations(limit, cursor *huma.Param) map[string]*huma.Operation {
	device, command, job := pathParamDoc("name", "name of a Device, or a client id"), pathParamDoc("command", "id of the command"), pathParamDoc("id", "of the broadcast")
	example := map[string]any{"id": "defrost-42", "device": "box-17", "topic": "devices/box-17/commands", "qos": 1, "status": "queued", "final": false,
		"position": "DOWN:7", "createdAt": "2027-06-01T12:00:00Z", "changedAt": "2027-06-01T12:00:00Z", "expiresAt": "2027-06-01T12:10:00Z"}
	answer := func(status, description, schema string) map[string]*huma.Response {
		media := jsonContent(ref(schema))
		if schema == "Command" {
			media["application/json"].Example = example
		}
		return map[string]*huma.Response{status: {Description: description, Content: media}}
	}
	send := commandProperties()
	send["id"] = text("makes the request one that can be repeated; default: chosen")
	send["principal"] = text("whose client id it is; default: the Device's, or anybody's if no Device has the name")
	many := commandProperties()
	many["select"], many["why"], many["dryRun"] = selectionSchema(), text("for people"), &huma.Schema{Type: "boolean"}
	many["rate"] = &huma.Schema{Type: "number", Description: "commands a second", Default: 100}
	many["batch"] = &huma.Schema{Type: "integer", Description: "commands on their way at a time", Default: 100}
	body := func(required []string, props map[string]*huma.Schema, sample map[string]any) *huma.RequestBody {
		media := jsonContent(object(required, props))
		media["application/json"].Example = sample
		return &huma.RequestBody{Required: true, Content: media}
	}
	started := answer("202", "It is under way", "Broadcast")
	started["200"] = &huma.Response{Description: "How many devices it would be for", Content: jsonContent(object([]string{"total"}, map[string]*huma.Schema{"total": {Type: "integer"}}))}
	tags := []string{"devices"}
	return map[string]*huma.Operation{
		"POST /v1/devices/{name}/commands": {OperationID: "send-command", Tags: tags, Summary: "Send a command to a device",
			Description: "202 means that it is stored: it waits for the device, until it expires. It is sent when the device is connected and one of its " +
				"subscriptions, not a shared one, matches the topic. 429: too many commands wait.",
			Parameters: []*huma.Param{device}, RequestBody: body(nil, send, map[string]any{"id": "defrost-42", "data": map[string]any{"defrost": true}, "expiry": "10m"}),
			Responses: answer("202", "The command is stored", "Command")},
		"GET /v1/devices/{name}/commands": {OperationID: "list-commands", Tags: tags, Summary: "List the commands of a device, newest first",
			Description: "For as long as messages to devices are kept. A page may be short, or empty, and still have a nextCursor.",
			Parameters:  []*huma.Param{device, queryDoc("status", "one of "+strings.Join(mqttgw.CommandStatuses(), ", "), nil), limit, cursor},
			Responses:   map[string]*huma.Response{"200": {Description: "A page", Content: jsonContent(pageSchema(ref("Command")))}}},
		"GET /v1/devices/{name}/commands/{command}": {OperationID: "get-command", Tags: tags, Summary: "How far a command has come",
			Parameters: []*huma.Param{device, command}, Responses: answer("200", "The command", "Command")},
		"DELETE /v1/devices/{name}/commands/{command}": {OperationID: "cancel-command", Tags: tags, Summary: "Cancel a command that was not sent yet",
			Description: "409: it was sent, or has ended.", Parameters: []*huma.Param{device, command}, Responses: answer("200", "The command, cancelled", "Command")},
		"POST /v1/broadcasts": {OperationID: "start-broadcast", Tags: tags, Summary: "Send a command to many devices",
			Description: "The server sends it, at a rate, to each device that is selected; the id of the broadcast is the id of each command. It goes on after a " +
				"restart and repeats none. With dryRun the answer is 200 and a count, and nothing is done.",
			RequestBody: body([]string{"select"}, many, map[string]any{"select": map[string]any{"labels": map[string]any{"site": "north"}}, "topic": "cmd/${device}/defrost",
				"data": map[string]any{"minutes": 5}, "rate": 50, "dryRun": true}), Responses: started},
		"GET /v1/broadcasts": {OperationID: "list-broadcasts", Tags: tags, Summary: "List broadcasts, newest first",
			Responses: map[string]*huma.Response{"200": {Description: "Broadcasts", Content: jsonContent(object([]string{"items"}, map[string]*huma.Schema{
				"items": {Type: "array", Items: ref("Broadcast")}}))}}},
		"GET /v1/broadcasts/{id}": {OperationID: "get-broadcast", Tags: tags, Summary: "How far a broadcast has come",
			Parameters: []*huma.Param{job}, Responses: answer("200", "The broadcast", "Broadcast")},
		"POST /v1/broadcasts/{id}:pause": {OperationID: "pause-broadcast", Tags: tags, Summary: "Pause a broadcast",
			Parameters: []*huma.Param{job}, Responses: answer("200", "The broadcast", "Broadcast")},
		"POST /v1/broadcasts/{id}:resume": {OperationID: "resume-broadcast", Tags: tags, Summary: "Go on with a broadcast",
			Parameters: []*huma.Param{job}, Responses: answer("200", "The broadcast", "Broadcast")},
		"POST /v1/broadcasts/{id}:cancel": {OperationID: "cancel-broadcast", Tags: tags, Summary: "End a broadcast",
			Description: "What was sent by then stays so; commands are cancelled one by one.", Parameters: []*huma.Param{job}, Responses: answer("200", "The broadcast", "Broadcast")},
	}
}
