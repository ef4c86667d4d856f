// Package suspend tells how long the machine has been suspended. A store's leases run on
// meanwhile, and Go's clock does not.
package suspend

import "time"

// Jitter is what two answers of Total may differ by though the machine was never suspended.
const Jitter = time.Millisecond
