// SPDX-License-Identifier: Apache-2.0

package event

import "time"

// appendTime appends t in RFC 3339, with as many digits of the second as it needs. The offset is kept where RFC 3339
// can say it; an offset with seconds becomes UTC.
func appendTime(dst []byte, t time.Time) []byte {
	if _, off := t.Zone(); off%60 != 0 || off <= -24*3600 || off >= 24*3600 {
		t = t.UTC()
	}
	return t.AppendFormat(dst, time.RFC3339Nano)
}

// parseTime reads an RFC 3339 date-time, and nothing but that: time.Parse also takes a comma, one-digit hours and
// offsets of more than a day. Leap seconds are refused, because time.Time cannot hold them, and so is what is finer
// than a nanosecond. The reason is "" when t is good.
func parseTime(s string) (t time.Time, reason string) {
	const bad = "must be an RFC 3339 time such as 2018-04-05T17:31:00Z"
	if len(s) < len("2006-01-02T15:04:05Z") || s[4] != '-' || s[7] != '-' || s[10]|0x20 != 't' || s[13] != ':' || s[16] != ':' {
		return t, bad
	}
	year := digits(s[0:4])
	month, day := digits(s[5:7]), digits(s[8:10])
	hour, minute, second := digits(s[11:13]), digits(s[14:16]), digits(s[17:19])
	if year < 0 || month < 1 || day < 1 || hour < 0 || minute < 0 || second < 0 ||
		month > 12 || hour > 23 || minute > 59 || second > 60 {
		return t, bad
	}
	if second == 60 {
		return t, "leap seconds cannot be represented"
	}
	rest := s[19:]
	nanos := 0
	if rest[0] == '.' {
		n := 1
		for scale := 100_000_000; n < len(rest) && '0' <= rest[n] && rest[n] <= '9'; n++ {
			if scale == 0 && rest[n] != '0' {
				return t, "must not be finer than a nanosecond"
			}
			nanos += int(rest[n]-'0') * scale
			scale /= 10
		}
		if n == 1 {
			return t, bad
		}
		rest = rest[n:]
	}
	offset, ok := parseOffset(rest)
	if !ok {
		return t, bad
	}
	t = time.Date(year, time.Month(month), day, hour, minute, second, nanos, time.UTC)
	if t.Day() != day {
		return time.Time{}, "must be a day of the calendar"
	}
	if offset != 0 {
		t = t.Add(-time.Duration(offset) * time.Second).In(time.FixedZone("", offset))
	}
	if t.IsZero() {
		return t, "the first instant of year 1 stands for no time; leave the attribute out"
	}
	return t, ""
}

// parseOffset reads Z or +hh:mm and returns seconds east of UTC.
func parseOffset(s string) (int, bool) {
	if len(s) == 1 && s[0]|0x20 == 'z' {
		return 0, true
	}
	if len(s) != 6 || s[0] != '+' && s[0] != '-' || s[3] != ':' {
		return 0, false
	}
	h, m := digits(s[1:3]), digits(s[4:6])
	if h < 0 || h > 23 || m < 0 || m > 59 {
		return 0, false
	}
	if s[0] == '-' {
		return -(h*3600 + m*60), true
	}
	return h*3600 + m*60, true
}

// digits is the value of a string of decimal digits, or -1.
func digits(s string) int {
	n := 0
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return -1
		}
		n = n*10 + int(s[i]-'0')
	}
	return n
}
