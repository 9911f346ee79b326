// SPDX-License-Identifier: Apache-2.0

package eventlog_test

func runChild() bool { return false }
