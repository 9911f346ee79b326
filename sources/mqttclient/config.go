// SPDX-License-Identifier: Apache-2.0

package mqttclient

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret"
	"github.com/rialto-bridge/rialto/sources"
)

//go:embed config.schema.json
var configSchema []byte

// config is the config of a source, in the form that config.schema.json describes.
type config struct {
	URL           string        `json:"url"`
	ClientID      string        `json:"clientId"`
	Username      string        `json:"username"`
	Password      secret.Source `json:"password"`
	Topics        []string      `json:"topics"`
	QoS           *byte         `json:"qos"`
	Share         string        `json:"share"`
	SessionExpiry string        `json:"sessionExpiry"`
	CA            secret.Source `json:"ca"`
	Certificate   secret.Source `json:"certificate"`
	Key           secret.Source `json:"key"`
	Type          string        `json:"type"`
	Source        string        `json:"source"`
}

// settings is a config that has been read.
type settings struct {
	config
	expiry time.Duration
}

const (
	schemePlain   = "mqtt"
	schemeTLS     = "mqtts"
	defaultExpiry = 24 * time.Hour
	maxExpiry     = 365 * 24 * time.Hour
)

var defaultPorts = map[string]string{schemePlain: "1883", schemeTLS: "8883"}

// Kind is the kind of source.
func Kind() sources.Kind {
	return sources.Kind{
		Name: "mqtt-client", ConfigSchema: configSchema, New: newSource,
		Doc: "Messages of another MQTT broker: the bridge subscribes there (MQTT 5), and acknowledges a message after its event is committed. " +
			"A message that is a CloudEvent is taken as that event; of any other, the subject is the topic.",
		Example: "kind: Source\nname: plant\ntype: mqtt-client\nbus: devices\nconfig:\n  url: mqtts://broker.example.com:8883\n  username: rialto\n" +
			"  password: {ref: \"env:BROKER_PASSWORD\"}\n  topics: [\"plant/+/telemetry\"]\n  type: com.acme.telemetry\n",
		Check: func(cfg json.RawMessage) error {
			_, err := parse(cfg)
			return err
		},
	}
}

// parse reads a config that the schema has accepted. The error is a *fault.Error with pointers.
func parse(raw json.RawMessage) (settings, error) {
	var s settings
	if err := json.Unmarshal(raw, &s.config); err != nil {
		return s, fault.Invalidf("", `a secret is not one: {"ref": "NAME"}, {"ref": "env:NAME"}, {"ref": "file:/path"} or {"value": "..."}`)
	}
	var details []fault.Detail
	complain := func(pointer, format string, args ...any) {
		details = append(details, fault.Detail{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
	u, err := url.Parse(s.URL)
	switch {
	case err != nil || defaultPorts[u.Scheme] == "" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		complain("/url", "is not mqtt://host:port or mqtts://host:port")
	case u.User != nil:
		complain("/url", "has a user in it: say username and password")
	case u.Scheme != schemeTLS && !(s.CA.IsZero() && s.Certificate.IsZero()):
		complain("/url", "is not mqtts://, and ca and certificate are for TLS")
	}
	if s.Certificate.IsZero() != s.Key.IsZero() {
		complain("/key", "goes with certificate, and certificate with key")
	}
	if s.QoS == nil {
		one := byte(1)
		s.QoS = &one
	}
	for i, filter := range s.Topics {
		if why := filterFault(filter); why != "" {
			complain(fmt.Sprintf("/topics/%d", i), "%s", why)
		}
	}
	if strings.ContainsAny(s.Share, "/+#") {
		complain("/share", "has one of / + #")
	}
	s.expiry = defaultExpiry
	if s.SessionExpiry != "" {
		if s.expiry, err = time.ParseDuration(s.SessionExpiry); err != nil || s.expiry < 0 || s.expiry > maxExpiry {
			complain("/sessionExpiry", "is not a duration from 0s to 8760h, such as 24h")
		}
	}
	probe := event.Event{ID: "1", Source: cmp.Or(s.Source, "/"), Type: cmp.Or(s.Type, event.DefaultMQTTType)}
	if err := probe.Validate(event.Limits{}); err != nil {
		var e *event.Error
		if errors.As(err, &e) {
			complain("/"+e.Attribute, "%s", e.Reason)
		}
	}
	return s, fault.Collect(details)
}

// filterFault says what is wrong with a topic filter (MQTT 5 section 4.7); "" if nothing.
func filterFault(f string) string {
	if strings.HasPrefix(f, "$share/") {
		return "is shared: say share"
	}
	levels := strings.Split(f, "/")
	for i, level := range levels {
		switch {
		case level == "#" && i < len(levels)-1:
			return "has a # that is not the last level"
		case len(level) > 1 && strings.ContainsAny(level, "+#"):
			return "has a + or # that is not a level of its own"
		case strings.ContainsRune(level, 0):
			return "has a null character"
		}
	}
	return ""
}

// source is the source of events that do not say one.
func (s *settings) source() string {
	if s.Source != "" {
		return s.Source
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		return "mqtt:" // it was checked
	}
	return event.MQTTSource(u.Host, s.ClientID)
}

// tls makes the configuration of a connection.
func (s *settings) tls(resolve func(string) (string, error), host string) (*tls.Config, error) {
	cfg := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	if !s.CA.IsZero() {
		v, err := s.CA.Resolve(resolve)
		if err != nil {
			return nil, err
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM([]byte(v.Reveal())) {
			return nil, errors.New("ca holds no certificate in PEM")
		}
	}
	if s.Certificate.IsZero() {
		return cfg, nil
	}
	cert, err := s.Certificate.Resolve(resolve)
	if err != nil {
		return nil, err
	}
	key, err := s.Key.Resolve(resolve)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair([]byte(cert.Reveal()), []byte(key.Reveal()))
	if err != nil {
		return nil, errors.New("certificate and key are not a pair in PEM")
	}
	cfg.Certificates = []tls.Certificate{pair}
	return cfg, nil
}
