// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/egress"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/postgres"
	"github.com/rialto-bridge/rialto/mqttgw"
)

// Options are all settings of a process.
type Options struct {
	Data       string // data directory; made if missing
	Listen     string // address of the HTTP listener; "" = 127.0.0.1:8080
	MQTT       string // addresses of MQTT listeners, [mqtt://|mqtts://|ws://|wss://]host:port,...; "" = 127.0.0.1:1883; "off" = none
	Durability eventlog.Durability

	// Anonymous lets HTTP clients do everything without a key. It is refused unless Listen is a loopback address.
	Anonymous bool
	// MQTTAnonymous lets MQTT clients connect without a user name.
	MQTTAnonymous bool
	// EgressAllow are the addresses, and the ports there, that targets may have although the guard would refuse them.
	EgressAllow []egress.Entry

	TLSCert, TLSKey string // files, or as many of both separated by commas (SNI); both or none: HTTPS, and MQTT over TLS
	ClientCA        string // file; clients must show a certificate that it has signed

	// SecretKey and SecretKeyFile are the keys that secrets are sealed with in the store, as secret.ParseKeys reads them; at most one of
	// the two. Those in <data>/secret.key, which the first start makes without either, open what they have sealed before.
	SecretKey, SecretKeyFile string

	// MQTTQuiet keeps MQTT clients that connect, leave, subscribe and are refused from becoming events.
	MQTTQuiet bool
	// SchemaQuiet is the least time between two schemas that are made of the events of a type; 0 = 5 minutes.
	SchemaQuiet time.Duration

	MQTTClientCA    string // file; instead of ClientCA, MQTT clients may show a certificate that it has signed
	MQTTRequireCert bool   // they must
	// MQTTCertNames are the places of a certificate where the identity of its device is looked for; nil = uri, dns, cn.
	MQTTCertNames []mqttgw.CertificateName
	MQTTOrigins   string // hosts whose web pages may use MQTT over WebSocket, separated by commas; beside the listener's own

	MQTTLimits mqttgw.Limits // of MQTT clients; zero fields = the defaults

	DownMaxAge   time.Duration // how long messages to devices, and what became of them, are kept; 0 = 7 days
	DownMaxBytes int64         // how many bytes of them; 0 = 2 GiB

	MaxData   int   // largest payload of an event in bytes; 0 = 1 MiB
	Reserve   int64 // bytes of the disk that producers may not use; 0 = chosen from its size
	MaxStore  int64 // bytes that all streams may use; 0 = the disk is the limit
	RingBytes int64 // memory for recent events; 0 = 64 MiB

	// Definitions is a directory that declares the definitions; "" = the store has the last word.
	Definitions string
	// DefinitionsPoll is how often it is looked at; 0 = 5 s.
	DefinitionsPoll time.Duration
	// What is kept until a time or a decision; 0 = the defaults: 365 days, 24 h, 1 000 000 events, 1 GiB.
	ScheduledMaxDelay, PreparedMaxAge time.Duration
	AsideMaxEvents                    int
	AsideMaxBytes                     int64

	// Profile is what the process has for its size where no option says: one of Profiles; "" = ProfileStandard.
	Profile string

	Version string
	Logger  *slog.Logger // nil discards

	// Postgres is the DSN of the database that holds the definitions; "" = the embedded store does.
	Postgres string
	// Store holds the definitions instead of either. It is closed by the App.
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
	if o.DefinitionsPoll == 0 {
		o.DefinitionsPoll = 5 * time.Second
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
	if _, _, err := net.SplitHostPort(o.Listen); err != nil {
		errs = append(errs, fmt.Errorf("listen address %q is not host:port", o.Listen))
	}
	if _, err := o.mqttListeners(); err != nil {
		errs = append(errs, err)
	}
	if o.Anonymous && !isLoopback(o.Listen) {
		errs = append(errs, fmt.Errorf("anonymous access is for loopback listeners only, and %q is not one", o.Listen))
	}
	if (o.TLSCert == "") != (o.TLSKey == "") {
		errs = append(errs, errors.New("tls-cert and tls-key go together"))
	}
	if o.SecretKey != "" && o.SecretKeyFile != "" {
		errs = append(errs, errors.New("secret-key and secret-key-file exclude each other"))
	}
	if o.ClientCA != "" && o.TLSCert == "" {
		errs = append(errs, errors.New("client-ca needs tls-cert and tls-key"))
	}
	if len(list(o.TLSCert)) != len(list(o.TLSKey)) {
		errs = append(errs, errors.New("tls-cert and tls-key must list as many files"))
	}
	if o.MQTTClientCA != "" && o.TLSCert == "" {
		errs = append(errs, errors.New("mqtt-client-ca needs tls-cert and tls-key"))
	}
	if o.MQTTRequireCert && o.MQTTClientCA == "" {
		errs = append(errs, errors.New("mqtt-require-cert needs mqtt-client-ca"))
	}
	for _, name := range o.MQTTCertNames {
		if !slices.Contains(mqttgw.CertificateNames(), name) {
			errs = append(errs, fmt.Errorf("mqtt-cert-name is uri, dns, cn, or some of them in the order in which they are looked for, not %q", name))
		}
	}
	errs = append(errs, o.MQTTLimits.Validate())
	if o.DefinitionsPoll < 0 {
		errs = append(errs, fmt.Errorf("definitions-poll is %s, and must be positive", o.DefinitionsPoll))
	}
	if o.MaxData < 0 || o.MaxData > eventlog.MaxData {
		errs = append(errs, fmt.Errorf("max-data is %d, and must be 1 to %d bytes", o.MaxData, eventlog.MaxData))
	}
	if o.DownMaxAge < 0 || o.DownMaxAge > 0 && o.DownMaxAge < time.Minute {
		errs = append(errs, fmt.Errorf("down-max-age is %s, and must be a minute at least", o.DownMaxAge))
	}
	if o.DownMaxBytes < 0 || o.Reserve < 0 || o.MaxStore < 0 || o.RingBytes < 0 {
		errs = append(errs, errors.New("a size is negative"))
	}
	if o.ScheduledMaxDelay < 0 || o.PreparedMaxAge < 0 || max(o.ScheduledMaxDelay, o.PreparedMaxAge) > longestAside {
		errs = append(errs, fmt.Errorf("scheduled-max-delay is %s and prepared-max-age is %s, and neither may be negative or above %s", o.ScheduledMaxDelay, o.PreparedMaxAge, longestAside))
	}
	if o.AsideMaxEvents < 0 || o.AsideMaxBytes < 0 {
		errs = append(errs, errors.New("aside-max-events and aside-max-bytes must not be negative"))
	}
	if o.Profile != "" && !slices.Contains(Profiles(), o.Profile) {
		errs = append(errs, fmt.Errorf("profile is %s, not %q", strings.Join(Profiles(), " or "), o.Profile))
	}
	if o.Postgres != "" {
		errs = append(errs, postgres.CheckDSN(o.Postgres))
	}
	return errors.Join(errs...)
}

// longestAside is how long events may be kept for later at most.
const longestAside = 10 * 365 * 24 * time.Hour

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
