// SPDX-License-Identifier: Apache-2.0

package app

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/rialto-bridge/rialto/mqttgw"
)

// Schemes of MQTT listeners, as clients write them.
const (
	schemeMQTT  = "mqtt"
	schemeMQTTS = "mqtts"
	schemeWS    = "ws"
	schemeWSS   = "wss"
)

// mqttListener is one address of Options.MQTT.
type mqttListener struct{ scheme, addr string }

func (l mqttListener) secure() bool { return l.scheme == schemeMQTTS || l.scheme == schemeWSS }

// mqttListeners reads Options.MQTT: off, or a list of [scheme://]host:port.
func (o *Options) mqttListeners() ([]mqttListener, error) {
	if o.MQTT == "off" {
		return nil, nil
	}
	var all []mqttListener
	var errs []error
	for text := range strings.SplitSeq(o.MQTT, ",") {
		l := mqttListener{scheme: schemeMQTT, addr: strings.TrimSpace(text)}
		if o.TLSCert != "" {
			l.scheme = schemeMQTTS
		}
		if scheme, addr, ok := strings.Cut(l.addr, "://"); ok {
			l = mqttListener{scheme, addr}
		}
		switch l.scheme {
		case schemeMQTT, schemeMQTTS, schemeWS, schemeWSS:
		default:
			errs = append(errs, fmt.Errorf("mqtt address %q begins with none of mqtt://, mqtts://, ws://, wss://", text))
		}
		if _, _, err := net.SplitHostPort(l.addr); err != nil {
			errs = append(errs, fmt.Errorf("mqtt address %q is not host:port", text))
		}
		if l.secure() && o.TLSCert == "" {
			errs = append(errs, fmt.Errorf("mqtt address %q needs tls-cert and tls-key", text))
		}
		all = append(all, l)
	}
	return all, errors.Join(errs...)
}

// list splits a list of files.
func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// tlsConfig returns the configuration of listeners without client certificates; nil without a certificate. Certificates
// are read again when their files have changed, so they can be renewed without a restart.
func (o *Options) tlsConfig() (*tls.Config, error) {
	if o.TLSCert == "" {
		return nil, nil
	}
	pairs := newKeyPairs(list(o.TLSCert), list(o.TLSKey))
	if err := pairs.check(); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pairs.get}, nil
}

// httpTLS is the configuration of the HTTP listener. With ClientCA the API refuses who shows no certificate, and not the handshake: hooks
// come from products that have none.
func (o *Options) httpTLS() (*tls.Config, error) {
	cfg, err := o.tlsConfig()
	if err != nil || o.ClientCA == "" {
		return cfg, err
	}
	cfg.NextProtos = []string{"h2", "http/1.1"} // the server adds them to what it is given, and not to what comes from the file
	return clientCA(cfg, o.ClientCA, tls.VerifyClientCertIfGiven)
}

// mqttTLS is the configuration of an MQTT listener with TLS.
func (o *Options) mqttTLS(scheme string) (*tls.Config, error) {
	cfg, err := o.tlsConfig()
	if err != nil {
		return nil, err
	}
	cfg.NextProtos = []string{"mqtt"}
	if scheme == schemeWSS {
		cfg.NextProtos = []string{"http/1.1"} // a WebSocket is opened by that
	}
	switch {
	case o.MQTTClientCA != "" && o.MQTTRequireCert:
		return clientCA(cfg, o.MQTTClientCA, tls.RequireAndVerifyClientCert)
	case o.MQTTClientCA != "":
		return clientCA(cfg, o.MQTTClientCA, tls.VerifyClientCertIfGiven)
	case o.ClientCA != "":
		return clientCA(cfg, o.ClientCA, tls.RequireAndVerifyClientCert)
	}
	return cfg, nil
}

// listenMQTT opens all MQTT listeners. If one cannot be opened, those before it are closed again.
func (a *App) listenMQTT() (lns []net.Listener, err error) {
	o := &a.o
	wanted, err := o.mqttListeners()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			for _, ln := range lns {
				err = errors.Join(err, ln.Close())
			}
		}
	}()
	for _, l := range wanted {
		ln, err := a.listen("this bridge's MQTT listener", l.addr)
		if err != nil {
			return lns, err
		}
		if l.secure() {
			cfg, err := o.mqttTLS(l.scheme)
			if err != nil {
				return append(lns, ln), err
			}
			ln = tls.NewListener(ln, cfg)
		}
		if l.scheme == schemeWS || l.scheme == schemeWSS {
			ln = &mqttgw.WebSocket{Listener: ln, Origins: list(o.MQTTOrigins)}
		}
		lns = append(lns, ln)
	}
	return lns, nil
}
