// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/rialto-bridge/rialto/internal/app"
	"github.com/rialto-bridge/rialto/internal/egress"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/mqttgw"
)

// stopWithin is how long a stop may take: what is under way finishes, everything is written down.
const stopWithin = 10 * time.Second

// settings are the flags of serve as text; each has a RIALTO_* variable and a key of the same name in the config file.
type settings struct {
	config, data, listen, mqtt, durability, egressAllow string
	tlsCert, tlsKey, clientCA                           string
	mqttClientCA, mqttCertName, mqttOrigins             string
	mqttRequireCert, mqttQuiet                          bool
	mqttLimits                                          mqttgw.Limits
	maxData, reserve, maxStore, ring                    string
	downMaxAge                                          time.Duration
	downMaxBytes                                        string
	scheduledMaxDelay, preparedMaxAge                   time.Duration
	asideMaxEvents                                      int
	asideMaxBytes                                       string
	anonymous, mqttAnonymous                            bool
	logLevel, logFormat                                 string
	postgres, secretKey, secretKeyFile                  string
	definitions                                         string
	definitionsPoll                                     time.Duration
	profile                                             string
}

// profiles are the flags that have other defaults in a profile.
var profiles = map[string]map[string]string{
	app.ProfileStandard: {},
	app.ProfileEdge: {"ring": "4MiB", "max-store": "512MiB", "down-max-bytes": "64MiB", "aside-max-bytes": "32MiB", "aside-max-events": "20000",
		"mqtt-connect-rate": "200", "mqtt-connect-rate-per-ip": "100", "mqtt-max-connections": "2000", "mqtt-max-connections-per-ip": "2000", "mqtt-max-sessions": "10000",
		"mqtt-max-outbound": "256KiB", "mqtt-catch-up-rate": "32MiB"},
}

func newServe(c *cli) *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the bridge",
		Long: `Run the bridge until it is interrupted. The first line on stdout is

  ready http=ADDR mqtt=ADDR

and comes when the listeners accept; further MQTT listeners follow as mqtts=ADDR, ws=ADDR or wss=ADDR. The log goes to stderr. A stop (Ctrl-C, SIGTERM) lets what is under way finish and
writes everything down within ten seconds; a second signal ends the process at once, which loses nothing either.

Every flag can also be given as a variable (--tls-cert is RIALTO_TLS_CERT) or as a key of the same name in the YAML file
that --config names. The command line wins over the environment, and that over the file.

The first start writes a key that may do everything to admin.key in the data directory.`,
		Example: `  rialto serve
  rialto serve --data /var/lib/rialto --listen 0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem
  rialto serve --egress-allow 10.20.0.0/16:443,10.30.0.7:8000-8099 --mqtt 0.0.0.0:1883
  rialto serve --mqtt mqtts://0.0.0.0:8883,ws://127.0.0.1:8083 --tls-cert cert.pem --tls-key key.pem --mqtt-client-ca devices.pem`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := s.read(cmd.Flags(), c)
			if err != nil {
				return err
			}
			limitMemory(s.profile, c.getenv)
			return c.serve(cmd.Context(), o)
		},
	}
	s.flags(cmd.Flags())
	return cmd
}

// flags makes the flags.
func (s *settings) flags(f *pflag.FlagSet) {
	f.StringVar(&s.config, "config", "", "YAML file with keys of the same names as these flags")
	f.StringVar(&s.data, "data", "rialto-data", "data directory; made if missing")
	f.StringVar(&s.listen, "listen", "127.0.0.1:8080", "address of the HTTP listener")
	f.StringVar(&s.mqtt, "mqtt", "127.0.0.1:1883", "addresses of MQTT listeners, such as mqtt://HOST:PORT,mqtts://HOST:PORT,ws://HOST:PORT,wss://HOST:PORT; without a scheme mqtt, or mqtts with --tls-cert; off = none")
	f.StringVar(&s.durability, "durability", "fsync", "when an event counts as stored: fsync (survives power loss) or os (survives a crash of the process)")
	f.BoolVar(&s.mqttAnonymous, "mqtt-anonymous", false, "MQTT clients may connect without a user name")
	f.BoolVar(&s.anonymous, "anonymous", false, "HTTP clients need no key; for loopback listeners only")
	f.StringVar(&s.egressAllow, "egress-allow", "", "what targets may reach although it is not public: networks and addresses, for all ports or for some, such as 10.1.0.0/16,10.2.0.7:8443,[fd00::/8]:443")
	f.StringVar(&s.tlsCert, "tls-cert", "", "certificate chain (PEM): HTTP and MQTT speak TLS; several, separated by commas, serve several host names; renewed files are noticed")
	f.StringVar(&s.tlsKey, "tls-key", "", "private key of each certificate (PEM)")
	f.StringVar(&s.clientCA, "client-ca", "", "clients, of HTTP and MQTT, must show a certificate signed by this CA (PEM), but for hooks, whose sources say whom they trust")
	f.StringVar(&s.mqttClientCA, "mqtt-client-ca", "", "instead, MQTT clients may show a certificate signed by this CA (PEM), which is their identity")
	f.BoolVar(&s.mqttRequireCert, "mqtt-require-cert", false, "they must")
	f.StringVar(&s.mqttCertName, "mqtt-cert-name", "uri,dns,cn", "where the identity stands in a certificate: the first of these names that it has")
	f.BoolVar(&s.mqttQuiet, "mqtt-quiet", false, "MQTT clients that connect, leave and subscribe do not become events")
	f.StringVar(&s.mqttOrigins, "mqtt-origins", "", "hosts whose web pages may use MQTT over WebSocket, such as app.example.com,*.example.org")
	mqttLimitFlags(f, &s.mqttLimits)
	f.DurationVar(&s.downMaxAge, "down-max-age", mqttgw.DefaultDownlinkAge, "how long messages to devices, and what became of them, are kept; commands wait no longer")
	f.StringVar(&s.downMaxBytes, "down-max-bytes", "2GiB", "bytes of them; older ones go first, but for commands that wait")
	f.DurationVar(&s.scheduledMaxDelay, "scheduled-max-delay", 365*24*time.Hour, "how long events may be scheduled ahead, up to 87600h")
	f.DurationVar(&s.preparedMaxAge, "prepared-max-age", 24*time.Hour, "how long a prepared event waits for a decision before it is rolled back")
	f.IntVar(&s.asideMaxEvents, "aside-max-events", 1_000_000, "how many events may be scheduled or prepared at a time")
	f.StringVar(&s.asideMaxBytes, "aside-max-bytes", "1GiB", "bytes of them")
	f.StringVar(&s.maxData, "max-data", "1MiB", "largest payload of an event, up to 8MiB")
	f.StringVar(&s.reserve, "reserve", "auto", "disk space that producers may not use")
	f.StringVar(&s.maxStore, "max-store", "auto", "bytes that all streams may use; auto = the disk is the limit")
	f.StringVar(&s.ring, "ring", "64MiB", "memory for the latest events")
	f.StringVar(&s.postgres, "postgres", "", "database that holds the definitions, such as postgres://USER@HOST/DATABASE; better given as RIALTO_POSTGRES, since everybody sees command lines; default: the data directory holds them")
	f.StringVar(&s.secretKey, "secret-key", "", "keys that secrets are sealed with in the store: each the base64 of 32 bytes, the first seals; better given as RIALTO_SECRET_KEY or in a file, since everybody sees command lines; default: secret.key in the data directory, made if missing")
	f.StringVar(&s.secretKeyFile, "secret-key-file", "", "file with these keys")
	f.StringVar(&s.definitions, "definitions", "", "directory that declares the definitions: they become what its files say, now, on SIGHUP and when they change, and are read-only otherwise; keys stay writable, and so do secrets, functions and devices that are not in it")
	f.DurationVar(&s.definitionsPoll, "definitions-poll", 5*time.Second, "how often that directory is looked at; a change takes effect when it looks the same twice")
	f.StringVar(&s.profile, "profile", app.ProfileStandard, "standard, or edge for a small machine: other defaults, which each flag still overrules ("+profileText(app.ProfileEdge)+"), smaller caches and limits of MQTT, a reserve of 128MiB or 5%, and a collector that keeps memory small unless GOGC and GOMEMLIMIT say; see docs/edge.md")
	f.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&s.logFormat, "log-format", "text", "text or json")
}

// read returns the options that the command line, the environment, the config file and the profile make together.
func (s *settings) read(flags *pflag.FlagSet, c *cli) (app.Options, error) {
	if err := fillFlags(flags, s.config, c.getenv); err != nil {
		return app.Options{}, err
	}
	if err := applyProfile(flags, s.profile); err != nil {
		return app.Options{}, err
	}
	return s.options(c)
}

// fillFlags sets the flags that the command line left out: from the environment, then from the config file.
func fillFlags(flags *pflag.FlagSet, config string, getenv func(string) string) error {
	if config == "" {
		config = getenv("RIALTO_CONFIG")
	}
	file := map[string]any{}
	if config != "" {
		b, err := os.ReadFile(config)
		if err != nil {
			return usagef("--config: %v", errors.Unwrap(err))
		}
		if err := yaml.UnmarshalStrict(b, &file); err != nil {
			return usagef("--config: %s is not a YAML mapping: %v", config, err)
		}
	}
	var unknown []string
	for key := range file {
		if f := flags.Lookup(key); f == nil || key == "config" || key == "help" {
			unknown = append(unknown, key)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return usagef("--config: %s has keys that are no settings: %s", config, strings.Join(unknown, ", "))
	}
	var err error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "config" || f.Name == "help" || err != nil {
			return
		}
		variable := "RIALTO_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, from := getenv(variable), variable
		if v, ok := file[f.Name]; value == "" && ok {
			value, from = text(v), config+": "+f.Name
		}
		if value == "" {
			return
		}
		if serr := flags.Set(f.Name, value); serr != nil {
			err = usagef("%s: %v", from, serr)
		}
	})
	return err
}

// applyProfile sets the flags that nothing has set to the defaults of a profile.
func applyProfile(flags *pflag.FlagSet, name string) error {
	defaults, ok := profiles[name]
	if !ok {
		return usagef("--profile is %s, not %q", strings.Join(app.Profiles(), " or "), name)
	}
	for flag, value := range defaults {
		if flags.Lookup(flag).Changed {
			continue
		}
		if err := flags.Set(flag, value); err != nil {
			return fmt.Errorf("profile %s: --%s: %w", name, flag, err)
		}
	}
	return nil
}

// profileText lists what a profile sets.
func profileText(name string) string {
	var list []string
	for _, flag := range slices.Sorted(maps.Keys(profiles[name])) {
		list = append(list, "--"+flag+" "+profiles[name][flag])
	}
	return strings.Join(list, ", ")
}

// On a small machine the collector runs when half as much was allocated as is in use, and more often as the process comes near a
// size which it should not reach. It is no limit: what is needed is taken.
const (
	edgeGCPercent   = 50
	edgeMemoryLimit = 96 << 20
)

// limitMemory sets the collector for a profile, where the environment does not.
func limitMemory(profile string, getenv func(string) string) {
	if profile != app.ProfileEdge {
		return
	}
	if getenv("GOGC") == "" {
		debug.SetGCPercent(edgeGCPercent)
	}
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(edgeMemoryLimit)
	}
}

// text is a value of the config file as it would stand on the command line; a list becomes a,b,c.
func text(v any) string {
	if list, ok := v.([]any); ok {
		var parts []string
		for _, x := range list {
			parts = append(parts, text(x))
		}
		return strings.Join(parts, ",")
	}
	if n, ok := v.(float64); ok { // a number of any kind; 1e+06 is none to a flag
		return strconv.FormatFloat(n, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}

func (s *settings) options(c *cli) (app.Options, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
		return app.Options{}, usagef("--log-level is debug, info, warn or error, not %q", s.logLevel)
	}
	var handler slog.Handler
	switch s.logFormat {
	case "text":
		handler = slog.NewTextHandler(c.err, &slog.HandlerOptions{Level: level})
	case "json":
		handler = slog.NewJSONHandler(c.err, &slog.HandlerOptions{Level: level})
	default:
		return app.Options{}, usagef("--log-format is text or json, not %q", s.logFormat)
	}
	allow, err := egress.ParseAllow(s.egressAllow)
	if err != nil {
		return app.Options{}, usagef("--egress-allow: %v", err)
	}
	if s.mqttLimits.ConnectTimeout == 0 { // to the gateway that is the default
		return app.Options{}, usagef("--mqtt-connect-timeout is 0s, and must be 1s to %s", mqttgw.LongestConnectTimeout)
	}
	o := app.Options{Definitions: s.definitions, DefinitionsPoll: s.definitionsPoll, Data: s.data, Listen: s.listen, MQTT: s.mqtt, Durability: eventlog.Durability(s.durability),
		Anonymous: s.anonymous, MQTTAnonymous: s.mqttAnonymous, EgressAllow: allow, TLSCert: s.tlsCert, TLSKey: s.tlsKey,
		Postgres: s.postgres, SecretKey: s.secretKey, SecretKeyFile: s.secretKeyFile, ClientCA: s.clientCA, MQTTClientCA: s.mqttClientCA, MQTTRequireCert: s.mqttRequireCert, MQTTOrigins: s.mqttOrigins, MQTTQuiet: s.mqttQuiet,
		MQTTLimits: s.mqttLimits, DownMaxAge: s.downMaxAge,
		ScheduledMaxDelay: s.scheduledMaxDelay, PreparedMaxAge: s.preparedMaxAge, AsideMaxEvents: s.asideMaxEvents, Profile: s.profile, Version: version, Logger: slog.New(handler)}
	for name := range strings.SplitSeq(cmp.Or(s.mqttCertName, "uri,dns,cn"), ",") {
		o.MQTTCertNames = append(o.MQTTCertNames, mqttgw.CertificateName(strings.TrimSpace(name)))
	}
	var maxData int64
	for _, size := range []struct {
		flag, text string
		to         *int64
	}{{"max-data", s.maxData, &maxData}, {"reserve", s.reserve, &o.Reserve}, {"max-store", s.maxStore, &o.MaxStore}, {"ring", s.ring, &o.RingBytes}, {"down-max-bytes", s.downMaxBytes, &o.DownMaxBytes}, {"aside-max-bytes", s.asideMaxBytes, &o.AsideMaxBytes}} {
		if size.text == "auto" {
			continue
		}
		if *size.to, err = parseSize(size.text); err != nil {
			return o, usagef("--%s is a size such as 64MiB, not %q", size.flag, size.text)
		}
	}
	o.MaxData = int(maxData)
	if err := o.Validate(); err != nil {
		return o, &usageError{err}
	}
	return o, nil
}

// parseSize reads 4096, 64KiB, 20MiB or 1GiB.
func parseSize(s string) (int64, error) {
	factor := int64(1)
	for i, unit := range []string{"KiB", "MiB", "GiB"} {
		if num, ok := strings.CutSuffix(s, unit); ok {
			s, factor = strings.TrimSpace(num), 1<<(10*(i+1))
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 || n > 1<<62/factor {
		return 0, errors.New("not a size")
	}
	return n * factor, nil
}

// readyLine says what listens where: HTTP, the first MQTT listener, and the others by their schemes.
func readyLine(a *app.App) string {
	line := "ready http=" + a.HTTPAddr() + " mqtt=" + a.MQTTAddr()
	for i, l := range a.MQTTListeners() {
		if scheme, addr, ok := strings.Cut(l, "://"); ok && i > 0 {
			line += " " + scheme + "=" + addr
		}
	}
	return line
}

// serve runs the bridge until ctx is done or a listener fails.
func (c *cli) serve(ctx context.Context, o app.Options) error {
	keyFile := filepath.Join(o.Data, "admin.key")
	_, err := os.Stat(keyFile)
	first := errors.Is(err, fs.ErrNotExist)
	a, err := app.Start(ctx, o)
	if err != nil {
		return err
	}
	fmt.Fprintln(c.out, readyLine(a))
	if first && a.AdminKey() != "" {
		fmt.Fprintf(c.err, "A key that may do everything was written to %s\n", keyFile)
	}
	err = c.untilStopped(ctx, a, o.Definitions != "")
	stop, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), stopWithin, errors.New("the stop took too long"))
	defer cancel()
	return errors.Join(err, a.Close(stop))
}

// untilStopped waits for the end of ctx, or of a listener, which is an error. Where a directory declares the definitions, a
// hangup has it looked at.
func (c *cli) untilStopped(ctx context.Context, a *app.App, declared bool) error {
	var hangups <-chan os.Signal
	if declared && c.hangups != nil {
		signals, stop := c.hangups()
		defer stop()
		hangups = signals
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-a.Failed():
			return err
		case <-hangups:
			a.Reload()
		}
	}
}
