//go:build !linux

package locker

import "time"

// machineSleep is not known here: a suspended machine's sleep is not counted.
func machineSleep() time.Duration { return 0 }
