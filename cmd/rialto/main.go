// SPDX-License-Identifier: Apache-2.0

// Command rialto is the whole product in one binary: the server (serve, demo) and the commands that talk to it.
//
// A client command finds its server by --url or RIALTO_URL and its key by --key or RIALTO_KEY. What was asked for goes
// to stdout and everything else to stderr, so that output can be piped; nothing ever prompts. The exit code says what
// happened, see exit.go.
package main

import (
	"context"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	code := run(ctx, &cli{
		in:     os.Stdin,
		out:    os.Stdout,
		err:    os.Stderr,
		getenv: os.Getenv,
		http:   &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		now:    time.Now,
		colour: colourWanted(os.Stdout, os.Getenv),
		screen: isTerminal(os.Stdout),
		hangups: func() (<-chan os.Signal, func()) {
			signals := make(chan os.Signal, 1)
			signal.Notify(signals, syscall.SIGHUP)
			return signals, func() { signal.Stop(signals) }
		},
	}, os.Args[1:])
	stop()
	os.Exit(code)
}
