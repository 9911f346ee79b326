// SPDX-License-Identifier: Apache-2.0

package app

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"

	"github.com/rialto-bridge/rialto/internal/egress"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/store"
)

// Options are all settings of a process.
type Options struct {
	Data       string // data directory; made if missing
	Listen     string // address of the HTTP listener; "" = 127.0.0.1:8080
	MQTT       string // address of the MQTT listener; "" = 127.0.0.1:1883; "off" = none
	Durability eventlog.Durability

	// Anonymous lets HTTP clients do everything without a key. It is refused unless Listen is a loopback address.
	Anonymous bool
	// MQTTAnonymous lets MQTT clients connect without a user name.
	MQTTAnonymous bool
	// EgressAllow are the addresses, and the ports there, that targets may have although the guard would refuse them.
	EgressAllow []egress.Entry

	TLSCert, TLSKey string // files; both or none: HTTPS, and MQTT over TLS
	ClientCA        string // file; clients must show a certificate that it has signed

	MaxData   int   // largest payload of an event in bytes; 0 = 1 MiB
	Reserve   int64 // bytes of the disk that producers may not use; 0 = chosen from its size
	MaxStore  int64 // bytes that all streams may use; 0 = the disk is the limit
	RingBytes int64 // memory for recent events; 0 = 64 MiB

	Version string
	Logger  *slog.Logger // nil discards

	// Store holds the definitions; nil = the embedded one. It is closed by the App.
	Store store.Store
}

// WithDefaults returns o with its empty fields filled in.
func (o Options) WithDefaults() Options {
	if o.Listen == "" {
		o.Listen = "127.0.0.1:8080"
	}
	if o.MQTT == "" {
		o.MQTT = "127.0.0.1:1883"
	}
	if o.Durability == "" {
		o.Durability = eventlog.Fsync
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Version == "" {
		o.Version = "dev"
	}
	return o
}

// Validate joins all complaints about the options.
func (o Options) Validate() error {
	o = o.WithDefaults()
	var errs []error
	if o.Data == "" {
		errs = append(errs, errors.New("data directory is not set"))
	}
	if o.Durability != eventlog.Fsync && o.Durability != eventlog.OS {
		errs = append(errs, fmt.Errorf("durability %q is neither fsync nor os", o.Durability))
	}
	for _, l := range []struct{ name, addr string }{{"listen", o.Listen}, {"mqtt", o.MQTT}} {
		if l.name == "mqtt" && l.addr == "off" {
			continue
		}
		if _, _, err := net.SplitHostPort(l.addr); err != nil {
			errs = append(errs, fmt.Errorf("%s address %q is not host:port", l.name, l.addr))
		}
	}
	if o.Anonymous && !isLoopback(o.Listen) {
		errs = append(errs, fmt.Errorf("anonymous access is for loopback listeners only, and %q is not one", o.Listen))
	}
	if (o.TLSCert == "") != (o.TLSKey == "") {
		errs = append(errs, errors.New("tls-cert and tls-key go together"))
	}
	if o.ClientCA != "" && o.TLSCert == "" {
		errs = append(errs, errors.New("client-ca needs tls-cert and tls-key"))
	}
	if o.MaxData < 0 || o.MaxData > eventlog.MaxData {
		errs = append(errs, fmt.Errorf("max-data is %d, and must be 1 to %d bytes", o.MaxData, eventlog.MaxData))
	}
	if o.Reserve < 0 || o.MaxStore < 0 || o.RingBytes < 0 {
		errs = append(errs, errors.New("a size is negative"))
	}
	return errors.Join(errs...)
}

// isLoopback reports whether an address can only be reached from this machine.
func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// tlsConfig returns the configuration of the listeners; nil without a certificate. The certificate is read again for
// each handshake in which the files have changed, so it can be renewed without a restart.
func (o Options) tlsConfig() (*tls.Config, error) {
	if o.TLSCert == "" {
		return nil, nil
	}
	pair := &keyPair{cert: o.TLSCert, key: o.TLSKey}
	if _, err := pair.get(nil); err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get}
	if o.ClientCA != "" {
		pem, err := os.ReadFile(o.ClientCA)
		if err != nil {
			return nil, fmt.Errorf("client CA: %w", err)
		}
		cfg.ClientCAs = x509.NewCertPool()
		if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("client CA: %s holds no certificate", o.ClientCA)
		}
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return cfg, nil
}
