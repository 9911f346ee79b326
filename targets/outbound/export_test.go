// SPDX-License-Identifier: Apache-2.0

package outbound

// HeadOf is what an attempt keeps of an answer that says no.
var HeadOf = headOf
