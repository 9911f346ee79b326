// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/url"
)

// TLSConfig is what differs from TLS 1.2 or later with the certificates of the system.
type TLSConfig struct {
	CA                 json.RawMessage `json:"ca"`
	Certificate        json.RawMessage `json:"certificate"`
	Key                json.RawMessage `json:"key"`
	ServerName         string          `json:"serverName"`
	MinVersion         string          `json:"minVersion"`
	InsecureSkipVerify bool            `json:"insecureSkipVerify"`
}

// TLS reads how connections to a URL are made; nil = as they are without.
func (r *Reader) TLS(c *TLSConfig, to string) {
	if c == nil {
		return
	}
	r.tls = c
	if u, err := url.Parse(to); err == nil && u.Scheme == "http" {
		r.Complain("/tls", "is for a URL that begins with https://")
	}
	for name, pem := range map[string]json.RawMessage{"ca": c.CA, "certificate": c.Certificate} {
		if pem != nil {
			r.Secret("/tls/"+name, pem, CheckCertificates)
			if s := r.slotAt("/tls/" + name); s != nil {
				s.shown = true
			}
		}
	}
	if c.Key != nil {
		r.Secret("/tls/key", c.Key, func(string) error { return nil }) // below, with its certificate
	}
	switch {
	case c.Key != nil && c.Certificate == nil:
		r.Complain("/tls/certificate", "is missing: it goes with key")
	case c.Key == nil && c.Certificate != nil:
		r.Complain("/tls/key", "is missing: it goes with certificate")
	case c.Key != nil && r.slotAt("/tls/certificate") != nil && r.slotAt("/tls/key") != nil:
		r.keyPair()
	}
	if c.InsecureSkipVerify && (c.CA != nil || c.ServerName != "") {
		r.Complain("/tls/insecureSkipVerify", "leaves nothing for ca and serverName to check")
	}
}

// keyPair checks a certificate and a key that both stand in the config by value.
func (r *Reader) keyPair() {
	values := map[string]string{}
	for _, pointer := range []string{"/tls/certificate", "/tls/key"} {
		source := r.slotAt(pointer).source
		if source.Ref() != "" {
			return
		}
		v, err := source.Resolve(nil)
		if err != nil {
			return // complained of
		}
		values[pointer] = v.Reveal()
	}
	if _, err := clientCertificate(values); err != nil {
		r.Complain("/tls/key", "%v", err)
	}
}

// CheckCertificates says why a text cannot be certificates; nil if it can.
func CheckCertificates(pem string) error {
	if !x509.NewCertPool().AppendCertsFromPEM([]byte(pem)) {
		return errors.New("holds no certificate in PEM")
	}
	return nil
}

// clientCertificate is the certificate that is shown to the target; nil if there is none.
func clientCertificate(values map[string]string) (*tls.Certificate, error) {
	if values["/tls/key"] == "" {
		return nil, nil
	}
	cert, err := tls.X509KeyPair([]byte(values["/tls/certificate"]), []byte(values["/tls/key"]))
	if err != nil {
		return nil, errors.New("is not the key, in PEM, of the certificate") // other words might repeat something
	}
	return &cert, nil
}

// fillTLS puts what the connections need into c.
func fillTLS(c *shown, values map[string]string) (err error) {
	if c.certificate, err = clientCertificate(values); err != nil {
		return errors.New("tls key " + err.Error())
	}
	if ca := values["/tls/ca"]; ca != "" {
		c.roots = x509.NewCertPool()
		c.roots.AppendCertsFromPEM([]byte(ca)) // checked
	}
	return nil
}

// connections is what connections to the target are made with. What may change with the secrets is looked up in each handshake.
func (s *Sender[T]) connections() *tls.Config {
	cfg := &tls.Config{ServerName: s.tls.ServerName, MinVersion: tls.VersionTLS12}
	if s.tls.MinVersion == "1.3" {
		cfg.MinVersion = tls.VersionTLS13
	}
	if s.tls.Certificate != nil {
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return s.creds.Load().certificate, nil }
	}
	switch {
	case s.tls.InsecureSkipVerify:
		cfg.InsecureSkipVerify = true
	case s.tls.CA != nil:
		cfg.InsecureSkipVerify = true // and verified here, because the roots of a Config cannot change
		cfg.VerifyConnection = s.verify
	}
	return cfg
}

// verify is what crypto/tls does with the roots of a Config. The name is not that of the state, which is empty for an address.
func (s *Sender[T]) verify(state tls.ConnectionState) error {
	o := x509.VerifyOptions{Roots: s.creds.Load().roots, DNSName: cmp.Or(s.tls.ServerName, s.host), CurrentTime: s.env.Now(), Intermediates: x509.NewCertPool()}
	for _, cert := range state.PeerCertificates[1:] {
		o.Intermediates.AddCert(cert)
	}
	if _, err := state.PeerCertificates[0].Verify(o); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
	}
	return nil
}
