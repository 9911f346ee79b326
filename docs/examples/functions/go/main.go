// SPDX-License-Identifier: Apache-2.0

// A function in Go. Each event whose data has a temperature is given "warm": true or false; all else is refused.
//
// For the ABI "handle", which starts once and then takes event after event:
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -o warm.wasm .
//
// For the ABI "command", which is a new process for each event:
//
//	GOOS=wasip1 GOARCH=wasm go build -o warm.wasm .
package main

import (
	"encoding/json"
	"io"
	"os"
	"unsafe"
)

// What is done before the first event is done once: each event meets the function as it is after init. So what the first
// use of a package has to find out, it finds out here.
func init() { work([]byte(`{"data":{"temperature":0}}`)) }

// work is what the function does: an event in, a result out.
func work(input []byte) []byte {
	var event struct {
		Data map[string]any `json:"data"`
	}
	if err := json.Unmarshal(input, &event); err != nil {
		return refuse("the data is not an object")
	}
	temperature, ok := event.Data["temperature"].(float64)
	if !ok {
		return refuse("there is no temperature")
	}
	event.Data["warm"] = temperature > 8
	return result(map[string]any{"data": event.Data})
}

func refuse(why string) []byte { return result(map[string]any{"error": why}) }

func result(r map[string]any) []byte {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err) // there is nothing in it that JSON cannot say
	}
	return b
}

// The ABI "command".
func main() {
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	os.Stdout.Write(work(input))
}

// The ABI "handle". What is handed over must stay where it is until the other side has read it.
var input, output []byte

//go:wasmexport alloc
func alloc(size uint32) unsafe.Pointer {
	input = make([]byte, max(size, 1))
	return unsafe.Pointer(&input[0])
}

//go:wasmexport handle
func handle(_ unsafe.Pointer, size uint32) uint64 {
	output = work(input[:size])
	return uint64(uintptr(unsafe.Pointer(&output[0])))<<32 | uint64(len(output))
}
