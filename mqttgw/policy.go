// SPDX-License-Identifier: Apache-2.0

package mqttgw

// DefaultPolicy is the name of the DevicePolicy of clients that nothing else is said about.
const DefaultPolicy = "default"

// Policy is a parsed DevicePolicy document: what clients may do. Immutable, safe for concurrent use.
type Policy struct {
	Name   string
	access *access
	rate   *rateDocument
}

type policyDocument struct {
	documentHead
	Access      *accessDocument `json:"access,omitempty"`
	PublishRate *rateDocument   `json:"publishRate,omitempty"`

	parsed *access
}

func (d *policyDocument) check(complain complaint) {
	d.documentHead.check("DevicePolicy", complain)
	if d.Access == nil && d.PublishRate == nil {
		complain("", "must have access or publishRate")
	}
	if d.Access != nil {
		d.parsed = d.Access.parse(complain.under("/access"))
	}
	d.PublishRate.check(complain.under("/publishRate"))
}

// ParsePolicy reads a DevicePolicy document (JSON). Errors are *fault.Error of kind Invalid with JSON pointers.
func ParsePolicy(doc []byte) (*Policy, error) {
	var d policyDocument
	if err := decodeDocument(doc, "DevicePolicy", &d); err != nil {
		return nil, err
	}
	return &Policy{Name: d.Name, access: d.parsed, rate: d.PublishRate}, nil
}
