// The judge of recorded histories (docs/histories.md).
module bkspark/tests/histories/judge

go 1.24

// The linearizability checker. Nothing else is needed.
require github.com/anishathalye/porcupine v1.3.1
