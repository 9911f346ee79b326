// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/egress"
	"github.com/rialto-bridge/rialto/internal/secret"
	"github.com/rialto-bridge/rialto/internal/secret/token"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/bus"
	"github.com/rialto-bridge/rialto/targets/device"
	"github.com/rialto-bridge/rialto/targets/dingtalk"
	"github.com/rialto-bridge/rialto/targets/email"
	"github.com/rialto-bridge/rialto/targets/feishu"
	"github.com/rialto-bridge/rialto/targets/function"
	request "github.com/rialto-bridge/rialto/targets/http"
	"github.com/rialto-bridge/rialto/targets/slack"
	"github.com/rialto-bridge/rialto/targets/webhook"
	"github.com/rialto-bridge/rialto/targets/wecom"
	"github.com/rialto-bridge/rialto/web/api"
)

// builtinBuses always exist.
var builtinBuses = []string{"default", "devices"}

// builtinBus is the definition of a bus that always exists, as nobody has changed it.
func builtinBus(name string) []byte { return fmt.Appendf(nil, `{"kind":"Bus","name":%q}`, name) }

// TargetKinds is the list of kinds of target of a process whose targets reach what a guard allows.
func TargetKinds(guard *egress.Guard, functions *function.Library) *targets.Catalog {
	return targets.NewCatalog(webhook.Kind(guard.CheckURL), request.Kind(guard.CheckURL), device.Kind(), bus.Kind(), function.TargetKind(functions, guard.CheckURL),
		slack.Kind(guard.CheckURL), dingtalk.Kind(guard.CheckURL), feishu.Kind(guard.CheckURL), wecom.Kind(guard.CheckURL), email.Kind(guard.CheckHost))
}

// lintWithin is how long the answer to a write waits for doubts about a rule.
const lintWithin = time.Second

// lintRule returns what is doubtful about a rule, by stored events as well if observed.
func (a *App) lintRule(ctx context.Context, doc []byte, observed bool) []rules.Warning {
	r, err := rules.ParseRule(doc)
	if err != nil {
		return nil // it was checked before
	}
	if !observed {
		return rules.Lint(r)
	}
	ctx, cancel := context.WithTimeout(ctx, lintWithin)
	defer cancel()
	seen, err := a.bridge.Observed(ctx, r)
	if err != nil {
		a.o.Logger.Warn("stored events were not asked about a rule", "bus", r.Bus, "ruleId", r.Name, "err", err)
	}
	return rules.LintObserved(r, seen)
}

// definitionKinds is the list of kinds of definition, as the API serves them.
func definitionKinds(catalog *targets.Catalog, b *bridge.Bridge, g *mqttgw.Gateway, v *vault,
	lintRule func(ctx context.Context, doc []byte, observed bool) []rules.Warning) []api.Kind {
	return []api.Kind{
		{
			Name: kindBus, Plural: "buses", Keep: builtinBuses, Schema: busSchema,
			Doc:       "A bus is a named log with its own retention.",
			Normalize: func(_ context.Context, doc, _ []byte) ([]byte, error) { return checked(doc, bridge.ParseBus) },
			Status:    func(name string, brief bool) any { return busStatus(b, name, brief) },
		},
		v.secretKind(),
		v.keepsSecrets(api.Kind{
			Name: kindTarget, Plural: "targets", Schema: targetSchema(catalog),
			Doc: "A target is a way out: where and how deliveries are made.",
			Normalize: func(_ context.Context, doc, _ []byte) ([]byte, error) {
				return checked(doc, func(doc []byte) (*targets.Definition, error) { return targets.ParseDefinition(doc, catalog) })
			},
			Refs:   targetRefs,
			Status: func(name string, brief bool) any { return targetStatus(b, name, brief) },
		}),
		{
			Name: kindRule, Plural: "rules", Scoped: true, Schema: []byte(ruleSchema),
			Doc:       "A rule picks events of a bus by a pattern and sends them, as they are or transformed, to targets.",
			Normalize: func(_ context.Context, doc, _ []byte) ([]byte, error) { return checked(doc, rules.ParseRule) },
			Lint:      lintRule,
			Refs:      ruleRefs,
		},
		{
			Name: kindDevice, Plural: "devices", Area: "devices", Lasting: true, Schema: []byte(deviceSchema),
			Doc:  "A device is an MQTT client: how it logs in, and what it may do.",
			Refs: policyRef,
			Status: func(name string, brief bool) any {
				if g == nil {
					return nil
				}
				s, ok := g.DeviceStatus(name, brief)
				if !ok {
					return nil
				}
				return s
			},
			Normalize: func(_ context.Context, doc, old []byte) ([]byte, error) {
				doc, err := restoreHash(doc, old)
				if err != nil {
					return nil, err
				}
				return mqttgw.NormalizeDevice(doc, old)
			},
			Redact: redactHash,
		},
		{
			Name: kindPolicy, Plural: "devicepolicies", Area: "devices", Schema: []byte(policySchema),
			Doc:       "A device policy says what MQTT clients may do. The one with the name default is for those that no other is named for.",
			Normalize: func(_ context.Context, doc, _ []byte) ([]byte, error) { return checked(doc, mqttgw.ParsePolicy) },
		},
		{
			Name: kindIssuer, Plural: "tokenissuers", Area: "devices", Schema: []byte(issuerSchema),
			Doc:       "A token issuer vouches for MQTT clients with signed tokens (JWT).",
			Normalize: func(_ context.Context, doc, _ []byte) ([]byte, error) { return checked(doc, parseIssuer) },
			Refs:      policyRef,
		},
		{
			Name: kindMapping, Plural: "topicmappings", Schema: []byte(mappingSchema),
			Doc:       "A topic mapping says which events the publishes to some MQTT topics become, and on which bus.",
			Normalize: func(_ context.Context, doc, _ []byte) ([]byte, error) { return checked(doc, mqttgw.ParseTopicMapping) },
			Refs:      mappingRefs,
		},
	}
}

// kinds is the list of kinds of definition; what their devices are doing is known once the gateway is there.
func (a *App) kinds() []api.Kind {
	kinds := definitionKinds(a.catalog, a.bridge, a.gateway, a.vault, a.lintRule)
	for i, k := range kinds {
		if k.Name == kindRule {
			kinds[i] = pinsKeptCode(k, a.functions)
		}
	}
	return append(kinds, a.vault.keepsSecrets(sourceKind(a.sourceKinds, a.sources)), functionKind(a.functions),
		a.vault.keepsSecrets(regionKind(a.links)), linkKind(a.links))
}

// parseIssuer reads an issuer that asks nobody for keys.
func parseIssuer(doc []byte) (*mqttgw.Issuer, error) { return mqttgw.ParseIssuer(doc, token.Env{}) }

// busStatus is what a bus holds; nil if its definition is not in force.
func busStatus(b *bridge.Bridge, name string, brief bool) any {
	if b == nil {
		return nil
	}
	s, err := b.BusStatus(context.Background(), name, brief)
	if err != nil {
		return nil
	}
	return s
}

// targetStatus is where a target stands; nil if its definition is not in force.
func targetStatus(b *bridge.Bridge, name string, brief bool) any {
	s, err := b.TargetStatus(name, brief)
	if err != nil {
		return nil
	}
	return s
}

// checked returns a document that can be parsed.
func checked[T any](doc []byte, parse func([]byte) (T, error)) ([]byte, error) {
	if _, err := parse(doc); err != nil {
		return nil, err
	}
	return doc, nil
}

// ruleRefs lists the targets that a rule names, and the functions of its transforms.
func ruleRefs(doc []byte) []api.Ref {
	var rule struct {
		Targets []struct {
			Target    string          `json:"target"`
			Transform json.RawMessage `json:"transform"`
		} `json:"targets"`
	}
	if json.Unmarshal(doc, &rule) != nil {
		return nil // it was checked before it was stored
	}
	var refs []api.Ref
	for i, t := range rule.Targets {
		refs = append(refs, api.Ref{Kind: kindTarget, Name: t.Target, Pointer: fmt.Sprintf("/targets/%d/target", i)})
		var transform struct {
			Function string `json:"function"`
		}
		if json.Unmarshal(t.Transform, &transform) == nil && transform.Function != "" { // else it is a word, or names none
			refs = append(refs, api.Ref{Kind: function.Kind, Name: transform.Function, Pointer: fmt.Sprintf("/targets/%d/transform/function", i)})
		}
	}
	return refs
}

// targetRefs lists what a target names: its function and the bus of its replies, or its bus.
func targetRefs(doc []byte) (refs []api.Ref) {
	var target struct {
		Type   string `json:"type"`
		Config struct {
			Bus      string `json:"bus"`
			Runtime  string `json:"runtime"`
			Function string `json:"function"`
			ReplyBus string `json:"replyBus"`
		} `json:"config"`
	}
	if json.Unmarshal(doc, &target) != nil {
		return nil // it was checked before it was stored
	}
	if target.Type == "bus" {
		return []api.Ref{{Kind: kindBus, Name: target.Config.Bus, Pointer: "/config/bus"}}
	}
	if target.Type != "function" {
		return nil
	}
	if target.Config.Runtime != "http" {
		refs = append(refs, api.Ref{Kind: function.Kind, Name: target.Config.Function, Pointer: "/config/function"})
	}
	if target.Config.ReplyBus != "" {
		refs = append(refs, api.Ref{Kind: kindBus, Name: target.Config.ReplyBus, Pointer: "/config/replyBus"})
	}
	return refs
}

// policyRef is the policy that a device or an issuer names.
func policyRef(doc []byte) []api.Ref {
	var d struct {
		Policy string `json:"policy"`
	}
	if json.Unmarshal(doc, &d) != nil || d.Policy == "" {
		return nil
	}
	return []api.Ref{{Kind: kindPolicy, Name: d.Policy, Pointer: "/policy"}}
}

// mappingRefs is the bus that a topic mapping sends to.
func mappingRefs(doc []byte) []api.Ref {
	m, err := mqttgw.ParseTopicMapping(doc)
	if err != nil {
		return nil // it was checked before it was stored
	}
	if m.Down {
		return nil
	}
	return []api.Ref{{Kind: kindBus, Name: m.Bus, Pointer: "/bus"}}
}

// redactHash replaces the hash of a device's password: it is salted and slow, and still not for everyone who may read.
func redactHash(doc []byte) []byte {
	out, err := editHash(doc, func(string) string { return secret.Redacted })
	if err != nil {
		return []byte("null") // what cannot be read is not shown
	}
	return out
}

// restoreHash is the way back: a device that was read can be written again.
func restoreHash(doc, old []byte) ([]byte, error) {
	if old == nil {
		return doc, nil
	}
	return editHash(doc, func(hash string) string {
		if hash != secret.Redacted {
			return hash
		}
		var stored struct {
			Password struct {
				Hash string `json:"hash"`
			} `json:"password"`
		}
		if json.Unmarshal(old, &stored) != nil || stored.Password.Hash == "" {
			return hash // refused as no hash
		}
		return stored.Password.Hash
	})
}

// editHash returns doc with its password's hash replaced; a document without one as it is.
func editHash(doc []byte, edit func(string) string) ([]byte, error) {
	var members, password map[string]json.RawMessage
	if err := json.Unmarshal(doc, &members); err != nil {
		return nil, err
	}
	var hash string
	if json.Unmarshal(members["password"], &password) != nil || json.Unmarshal(password["hash"], &hash) != nil {
		return doc, nil
	}
	var err error
	if password["hash"], err = json.Marshal(edit(hash)); err != nil {
		return nil, err
	}
	if members["password"], err = json.Marshal(password); err != nil {
		return nil, err
	}
	return json.Marshal(members)
}
