;; SPDX-License-Identifier: Apache-2.0
;;
;; A function as small as they get: it replies with one event, whatever it is given. It is text, which wat2wasm (of the
;; package wabt) makes a module of:
;;
;;   wat2wasm shout.wat
(module
  (memory (export "memory") 3) ;; pages of 64 KiB; a function that grows its memory is started again for the next event
  (data (i32.const 16) "{\"event\":{\"type\":\"com.example.heard\",\"data\":\"heard you\"}}")

  ;; Room for the event: from the second page on.
  (func (export "alloc") (param $size i32) (result i32)
    (local $missing i32)
    (local.set $missing (i32.sub
      (i32.add (i32.div_u (i32.add (local.get $size) (i32.const 65535)) (i32.const 65536)) (i32.const 1))
      (memory.size)))
    (if (i32.gt_s (local.get $missing) (i32.const 0))
      (then (if (i32.eq (memory.grow (local.get $missing)) (i32.const -1)) (then (unreachable)))))
    (i32.const 65536))

  ;; The result: its address in the upper half, its length in the lower.
  (func (export "handle") (param $at i32) (param $size i32) (result i64)
    (i64.or (i64.shl (i64.const 16) (i64.const 32)) (i64.const 57))))
