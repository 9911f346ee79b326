// SPDX-License-Identifier: Apache-2.0

package slack

import (
	"bytes"
	"encoding/json"
	"errors"
	"time"

	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/notice"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

// rest is how long Slack is left alone when it says that it is too much, and not for how long.
const rest = 30 * time.Second

var errURL = errors.New("url: is not a URL")

// refusals are what Slack says when it has not taken a message, and trying again cannot help, unless it is for who we are. All else,
// such as internal_error and what is not known here, may pass.
var refusals = map[string]targets.Reason{
	// Who we are, and what we may do.
	"invalid_auth": targets.ReasonAuth, "not_authed": targets.ReasonAuth, "account_inactive": targets.ReasonAuth, "token_revoked": targets.ReasonAuth,
	"token_expired": targets.ReasonAuth, "no_permission": targets.ReasonAuth, "missing_scope": targets.ReasonAuth, "not_allowed_token_type": targets.ReasonAuth,
	"invalid_token": targets.ReasonAuth, "access_denied": targets.ReasonAuth, "org_login_required": targets.ReasonAuth, "ekm_access_denied": targets.ReasonAuth,
	"two_factor_setup_required": targets.ReasonAuth, "action_prohibited": targets.ReasonAuth, "posting_to_general_channel_denied": targets.ReasonAuth,
	"restricted_action": targets.ReasonAuth, "no_active_hooks": targets.ReasonAuth,
	// Where it was to go.
	"channel_not_found": targets.ReasonStatus, "not_in_channel": targets.ReasonStatus, "is_archived": targets.ReasonStatus, "channel_is_archived": targets.ReasonGone,
	"no_service": targets.ReasonGone, "no_service_id": targets.ReasonGone, "no_team": targets.ReasonGone, "team_disabled": targets.ReasonGone,
	"user_not_found": targets.ReasonStatus, "cannot_reply_to_message": targets.ReasonStatus,
	// What it was.
	"msg_too_long": targets.ReasonTooLarge, "msg_blocks_too_long": targets.ReasonTooLarge, "too_many_attachments": targets.ReasonTooLarge,
	"no_text": targets.ReasonStatus, "invalid_payload": targets.ReasonStatus, "invalid_blocks": targets.ReasonStatus, "invalid_blocks_format": targets.ReasonStatus,
	"invalid_arguments": targets.ReasonStatus, "invalid_json": targets.ReasonStatus, "missing_text_or_fallback_or_attachments": targets.ReasonStatus,
	"invalid_charset": targets.ReasonStatus, "invalid_form_data": targets.ReasonStatus, "missing_post_type": targets.ReasonStatus,
	"duplicate_channel_not_found": targets.ReasonStatus, "duplicate_message_not_found": targets.ReasonStatus, "markdown_text_conflict": targets.ReasonStatus,
	"attachment_payload_limit_exceeded": targets.ReasonTooLarge, "metadata_too_large": targets.ReasonTooLarge,
}

// judge says what became of a message: Slack answers an incoming webhook with a word, and chat.postMessage with 200 and JSON
// whatever has become of it.
func (t *target) judge(a outbound.Answer) *targets.Error {
	code, accepted := said(a.Body, t.hook)
	success := a.Status < 300
	if accepted && success {
		return nil
	}
	e := &targets.Error{Reason: targets.ReasonStatus, Err: errors.New("Slack says " + code)}
	reason, known := refusals[code]
	switch {
	case reason == targets.ReasonAuth:
		e.Reason, e.RetryAfter = reason, notice.AuthRest
	case known:
		e.Reason, e.Permanent = reason, true
	case code == "rate_limited" || code == "ratelimited" || code == "message_limit_exceeded":
		if e.RetryAfter = targets.ParseRetryAfter(a.Header.Get("Retry-After"), t.env.Now()); e.RetryAfter == 0 {
			e.RetryAfter = rest
		}
	case !success:
		return nil // the status says it
	case code == "":
		e.Reason, e.Err = targets.ReasonProtocol, errors.New("the answer is not one of Slack's")
	}
	return e
}

// said reads an answer. code is the error that it names; "" if it is none of Slack's.
func said(body []byte, hook bool) (code string, accepted bool) {
	body = bytes.TrimSpace(body)
	var answer struct {
		OK    *bool  `json:"ok"`
		Error string `json:"error"`
	}
	switch {
	case hook && string(body) == "ok":
		return "", true
	case json.Unmarshal(body, &answer) == nil && answer.OK != nil:
		if isCode(answer.Error) {
			code = answer.Error
		}
		return code, *answer.OK
	case hook && isCode(string(body)):
		return string(body), false
	}
	return "", false
}

// isCode reports whether s is a word such as invalid_auth.
func isCode(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && c != '_' && (c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 64
}
