// SPDX-License-Identifier: Apache-2.0

package mqttclient_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/sources"
	"github.com/rialto-bridge/rialto/sources/mqttclient"
)

var kinds = sources.NewCatalog(mqttclient.Kind())

func define(config string) error {
	_, err := sources.ParseDefinition(fmt.Appendf(nil, `{"name":"s","type":"mqtt-client","config":%s}`, config), kinds)
	return err
}

var configs = []struct{ config, want string }{
	{`{"url":"mqtt://b","topics":["a/+/b","#","$SYS/#"],"share":"g","qos":0,"sessionExpiry":"0s"}`, ""},
	{`{"url":"mqtts://b:1","topics":["a"],"username":"u","password":{"ref":"env:P"},"ca":{"ref":"file:/ca"},"certificate":{"value":"c"},"key":{"value":"k"}}`, ""},
	{`{"topics":["a"]}`, "/config/url: is missing"},
	{`{"url":"http://b","topics":["a"]}`, "/config/url: is not mqtt://host:port"},
	{`{"url":"mqtt://b/path","topics":["a"]}`, "/config/url: is not mqtt://host:port"},
	{`{"url":"mqtt://u:p@b","topics":["a"]}`, "/config/url: has a user in it"},
	{`{"url":"mqtt://b","topics":["a"],"ca":{"value":"x"}}`, "/config/url: is not mqtts://"},
	{`{"url":"mqtts://b","topics":["a"],"certificate":{"value":"x"}}`, "/config/key: goes with certificate"},
	{`{"url":"mqtt://b","topics":[]}`, "/config/topics: has fewer than 1 items"},
	{`{"url":"mqtt://b","topics":["a/#/b"]}`, "/config/topics/0: has a # that is not the last level"},
	{`{"url":"mqtt://b","topics":["a","b+"]}`, "/config/topics/1: has a + or # that is not a level of its own"},
	{`{"url":"mqtt://b","topics":["$share/g/a"]}`, "/config/topics/0: is shared: say share"},
	{`{"url":"mqtt://b","topics":["a"],"share":"a/b"}`, "/config/share: has one of"},
	{`{"url":"mqtt://b","topics":["a"],"qos":2}`, "/config/qos: is more than 1"},
	{`{"url":"mqtt://b","topics":["a"],"sessionExpiry":"forever"}`, "/config/sessionExpiry: is not a duration"},
	{`{"url":"mqtt://b","topics":["a"],"source":"not a reference"}`, "/config/source: "},
	{`{"url":"mqtt://b","topics":["a"],"password":{"ref":"vault:p"}}`, "a secret is not one"},
}

func TestConfigs(t *testing.T) {
	for _, c := range configs {
		err := define(c.config)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.config, err)
		case c.want != "" && (fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %s", c.config, err, c.want)
		}
	}
}

// Whatever a config says, it is refused with a complaint, or it is good.
func FuzzConfig(f *testing.F) {
	for _, c := range configs {
		f.Add(c.config)
	}
	f.Fuzz(func(t *testing.T, config string) {
		if err := define(config); err != nil && fault.KindOf(err) != fault.Invalid {
			t.Errorf("%v is not a complaint", err)
		}
	})
}
