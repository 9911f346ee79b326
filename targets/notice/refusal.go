// SPDX-License-Identifier: Apache-2.0

package notice

import (
	"fmt"
	"time"

	"github.com/rialto-bridge/rialto/targets"
)

// Refusal is what a code means by which a platform has not taken a message.
type Refusal struct {
	Reason targets.Reason
	// Passes says that the same message may be taken later.
	Passes bool
	Rest   time.Duration // how long the platform is left alone before
}

// AuthRest is how long a platform is left alone that does not take who we say that we are. That passes when somebody mends the
// secret, the clock or the settings of the robot, as 401 and 403 do, and until then nothing else is taken either.
const AuthRest = time.Minute

// Refused is the error for a code. One that is not known may pass, and so may what is the matter with who we are.
func Refused(platform string, code int, message string, known map[int]Refusal) *targets.Error {
	r, ok := known[code]
	switch {
	case !ok:
		r = Refusal{Reason: targets.ReasonStatus, Passes: true}
	case r.Reason == targets.ReasonAuth:
		r.Passes, r.Rest = true, AuthRest
	}
	return &targets.Error{Reason: r.Reason, Permanent: !r.Passes, RetryAfter: r.Rest, Err: fmt.Errorf("%s says %d: %s", platform, code, message)}
}

// Unreadable is the error for an answer of success that is none of a platform's.
func Unreadable(platform string) *targets.Error {
	return &targets.Error{Reason: targets.ReasonProtocol, Err: fmt.Errorf("the answer is not one of %s", platform)}
}
