package conformance

import (
	"fmt"
	"strings"
	"time"

	"github.com/go-locker/locker"
)

const (
	ruleKeys     = "Any non-empty valid UTF-8 key up to 512 bytes without NUL; exact, case-sensitive; no key can meet another key or an internal name."
	ruleBadKeys  = "Anything else: ErrInvalid before any I/O, the same on every backend."
	ruleBadTTL   = "A TTL under 1 ms or over 20 days is ErrInvalid everywhere."
	ruleRoundTTL = "Anything else is rounded up to what the store counts, its minimum included; Lock.TTL tells."
	ruleExtend   = "Extend sets this and later renewals; it may shorten."
)

var keyCases = []Case{{
	ID: "K1/independent", Rule: ruleKeys, Needs: locker.CapExclusive, Cites: []string{"C75", "C76"},
	run: independentKeys,
}, {
	ID: "K1/exact", Rule: ruleKeys, Cites: []string{"C75"},
	run: exactKeys,
}, {
	ID: "K1/longest", Rule: ruleKeys, Needs: locker.CapExclusive, Cites: []string{"C74"},
	run: longestKeys,
}, {
	ID: "K1/invalid", Rule: ruleBadKeys, Cites: []string{"C73", "C74", "C75", "C133"},
	run: invalidKeys,
}, {
	ID: "K1/invalid-sends-nothing", Rule: ruleBadKeys, Uses: PartRequests, Cites: []string{"C73"},
	run: invalidSendsNothing,
}, {
	ID: "K2/bad-ttl", Rule: ruleBadTTL, Cites: []string{"C66", "C67"},
	run: badTTL,
}, {
	ID: "K2/rounded-up", Rule: ruleRoundTTL, Cites: []string{"C66", "C69"},
	run: roundedUp,
}, {
	ID: "K2/as-long-in-store", Rule: ruleRoundTTL, Needs: locker.CapHolder | locker.CapExpiry, Cites: []string{"C69", "C70"},
	run: asLongInStore,
}, {
	ID: "K2/expires", Rule: ruleRoundTTL, Needs: locker.CapExclusive | locker.CapExpiry, Cites: []string{"C66", "C69", "C72"},
	run: expires,
}, {
	ID: "K2/extend-sets", Rule: ruleExtend, Needs: locker.CapExtend, Cites: []string{"C44"},
	run: extendSets,
}, {
	ID: "K2/extend-lengthens", Rule: ruleExtend, Needs: locker.CapExclusive | locker.CapExtend | locker.CapExpiry,
	run: extendLengthens,
}, {
	ID: "K2/extend-shortens", Rule: ruleExtend, Needs: locker.CapExtend | locker.CapExpiry, Cites: []string{"C44"},
	run: extendShortens,
}, {
	ID: "K2/extend-bad-ttl", Rule: ruleBadTTL, Cites: []string{"C43"},
	run: extendBadTTL,
}, {
	ID: "K2/extend-or-unsupported", Rule: "ErrUnsupported where the backend cannot do it, never a silent downgrade.",
	Cites: []string{"C133"},
	run:   extendOrUnsupported,
}}

// hostileKeys have met each other, or an internal name, in one store or another.
var hostileKeys = []string{
	"a", "A", "a ", " a", "a\n", "a\t", "aa", "á", "a\u0301", // á composed and not
	"a/", "a/b", "/a", "//a", "a//b", "a/../a", "../a", "a/b/c", "path", "path/1",
	"a:b", "a_b", "a-b", "a.b", "a b", "a:", ":a", "a:fence", "a:token", "a:lock", "a:queue", "a:channel", "lock:a", "a\x01",
	"{a}", "{a", "a}", "a}b", "{}a", "{}", "{", "}", "{}k", "a{b}c{d}", "{a}{b}", "{a}:fence", "{{a}}",
	"%", "%s", "a%", "*", "?", "[a]", "\\", "\\a", "'", "''", "\"", "`", ";", "--", "$1", "#", "😀", "\u200b", "\ufeffa",
	"0", "00", "1", "-1", "nil", "null", "NULL", "true",
}

func independentKeys(t *trial) {
	l, other := t.open(), t.open()
	var keys []string
	for _, k := range hostileKeys {
		keys = append(keys, t.named(k))
	}
	// Alone, too, without the trial's name in front: at its start a key meets
	// other internal names than at its end.
	keys = append(keys, "{"+t.name+"}", t.name+"}", t.name, "{}"+t.name, "/"+t.name)

	held := make(map[string]locker.Lock)
	for i, key := range keys {
		k, err := t.try(t.ctx, []locker.Locker{l, other}[i%2], key, locker.WithTTL(long))
		t.must(err == nil, fmt.Sprintf("%q to be free while %d other keys are held", key, len(held)), "TryAcquire: %v", err)
		held[key] = k
	}
	for _, key := range keys {
		t.wantHeldBy(held[key])
	}
	// Each release frees its own key and no other.
	for i, key := range keys {
		t.release(held[key])
		t.wantFree(key)
		if i+1 < len(keys) {
			t.wantHeldBy(held[keys[i+1]])
		}
	}
}

func exactKeys(t *trial) {
	l := t.open()
	for _, text := range hostileKeys {
		k := t.take(l, t.named(text))
		t.want(k.Key() == t.named(text), fmt.Sprintf("the key %q as given", t.named(text)), "Key: %q", k.Key())
		t.release(k)
	}
}

func longestKeys(t *trial) {
	l := t.open()
	base := t.named(strings.Repeat("x", 511-len(t.name)-1))
	keys := []string{base, base + "a", base + "b", base + "A", base[:510] + "\n", base[:509] + "é", base[1:], base[:255], base[:256]}
	var held []locker.Lock
	for _, key := range keys {
		held = append(held, t.take(l, key, locker.WithTTL(long)))
	}
	for _, k := range held {
		t.wantHeldBy(k)
		t.release(k)
		t.wantFree(k.Key())
	}
}

func (t *trial) invalidKeys() []string {
	return []string{"", "\x00", t.named("a\x00b"), t.named("a\x00"), "\xff\xfe", t.named("\xc3"), t.named("\xed\xa0\x80"), strings.Repeat("x", 513), strings.Repeat("é", 257)}
}

func invalidKeys(t *trial) {
	l := t.open()
	for _, key := range t.invalidKeys() {
		_, err := t.acquire(t.ctx, l, key)
		t.wantError(err, locker.ErrInvalid)
		t.wantNoMatch(err, locker.ErrHeld)
		_, err = t.try(t.ctx, l, key)
		t.wantError(err, locker.ErrInvalid)
		t.wantNoMatch(err, locker.ErrHeld)
	}
}

func invalidSendsNothing(t *trial) {
	l := t.open()
	t.release(t.take(l, t.key()))
	before := t.suite.h.Requests()
	for _, key := range t.invalidKeys() {
		_, err := t.try(t.ctx, l, key)
		t.wantError(err, locker.ErrInvalid)
	}
	for _, ttl := range badTTLs {
		_, err := t.try(t.ctx, l, t.key(), locker.WithTTL(ttl))
		t.wantError(err, locker.ErrInvalid)
	}
	sent := t.suite.h.Requests() - before
	t.want(sent == 0, "no request", "%d requests", sent)
}

var badTTLs = []time.Duration{
	0, -1, -time.Second, 1, 999 * time.Microsecond, locker.MinTTL - 1, locker.MaxTTL + 1, 1<<63 - 1, -1 << 63,
}

func badTTL(t *trial) {
	l, key := t.open(), t.key()
	for _, ttl := range badTTLs {
		_, err := t.acquire(t.ctx, l, key, locker.WithTTL(ttl))
		t.wantError(err, locker.ErrInvalid)
		_, err = t.try(t.ctx, l, key, locker.WithTTL(ttl))
		t.wantError(err, locker.ErrInvalid)
	}
	t.wantFree(key)
}

// wantTTL checks what Lock.TTL tells about a lease that was asked for.
func (t *trial) wantTTL(k locker.Lock, asked time.Duration) {
	t.want(k.TTL() >= asked, fmt.Sprintf("a TTL of at least %v", asked), "%v", k.TTL())
	if info := t.suite.info; info.Name != "" {
		most := max(asked, info.MinTTL) + max(info.Unit, 1)
		t.want(k.TTL() < most, fmt.Sprintf("a TTL under %v: %v rounded up to the store's unit", most, asked), "%v", k.TTL())
	}
}

func roundedUp(t *trial) {
	for _, ttl := range []time.Duration{
		locker.MinTTL, 1500 * time.Microsecond, time.Second + 1, 2500 * time.Millisecond, 90 * time.Second, locker.MaxTTL,
	} {
		// One Locker each: a backend may limit the number of different TTLs.
		k, err := t.try(t.ctx, t.open(), t.key(), locker.WithTTL(ttl))
		if err != nil && ttl < time.Second {
			t.wantError(err, locker.ErrLost) // on a slow line it is over on arrival
			continue
		}
		t.must(err == nil, "the lock, which is free", "TryAcquire: %v", err)
		t.wantTTL(k, ttl)
		if err := k.Release(t.ctx); ttl < time.Second && err != nil {
			t.wantLostError(err)
		} else {
			t.want(err == nil, "nil: the lock was held until its release", "Release: %v", err)
		}
		t.wantFree(k.Key())
	}
}

// asLongInStore asks the store for the lease it gave.
func asLongInStore(t *trial) {
	for _, ttl := range []time.Duration{2500 * time.Millisecond, 90 * time.Second, locker.MaxTTL} {
		start := time.Now()
		k := t.take(t.open(), t.key(), locker.WithTTL(ttl), locker.WithoutRenewal())
		held := t.wantHeld(k.Key())
		atLeast := ttl - time.Since(start) - t.unit()
		t.want(held.Remaining >= atLeast && held.Remaining <= k.TTL(),
			fmt.Sprintf("between %v and %v left of a TTL of %v", atLeast, k.TTL(), ttl), "%v left", held.Remaining)
		t.release(k)
	}
}

// expires asks again and again for a key that its holder leaves to expire.
func expires(t *trial) {
	l := t.open()
	t.parallel(4, func(i int) {
		k := t.take(l, t.key(), locker.WithoutRenewal(), locker.WithTTL(t.ttl+time.Duration(i)*t.ttl/8))
		latest := time.Now().Add(k.TTL() + prompt)
		for {
			next, err := t.try(t.ctx, t.bystander(), k.Key())
			at := time.Now()
			if err == nil {
				t.want(at.After(k.Deadline()), "the key held until after the Deadline", "free %v before it", k.Deadline().Sub(at))
				t.release(next)
				return
			}
			t.must(t.wantError(err, locker.ErrHeld), "ErrHeld", "TryAcquire: %v", err)
			t.must(at.Before(latest), fmt.Sprintf("the key free after its TTL of %v", k.TTL()), "still held %v later", at.Sub(latest)+prompt)
			t.pass(k.TTL() / 50)
		}
	})
}

func extendSets(t *trial) {
	k := t.take(t.open(), t.key(), locker.WithoutRenewal())
	for range 10 {
		start := time.Now()
		t.extend(k, 2*t.ttl)
		t.wantTTL(k, 2*t.ttl)
		m := margin(k.TTL())
		t.want(!k.Deadline().After(time.Now().Add(k.TTL()-m)), "a Deadline set from now on, not added to", "%v from now", time.Until(k.Deadline()))
		t.want(!k.Deadline().Before(start.Add(k.TTL()-m)), "a Deadline for the new TTL", "%v from now", time.Until(k.Deadline()))
		if t.can(locker.CapHolder | locker.CapExpiry) {
			held := t.wantHeldBy(k)
			t.want(held.Remaining <= k.TTL(), fmt.Sprintf("at most %v left in the store", k.TTL()), "%v left", held.Remaining)
			t.want(held.Remaining > t.ttl, fmt.Sprintf("nearly %v left in the store", k.TTL()), "%v left", held.Remaining)
		}
	}
	t.release(k)
	t.wantFree(k.Key())
}

// extendLengthens outlives the first lease by one call, and the next renewals go
// on with the new one.
func extendLengthens(t *trial) {
	l := t.open()
	t.parallel(2, func(i int) {
		opts := [][]locker.Option{{}, {locker.WithoutRenewal()}}[i]
		k := t.take(l, t.key(), opts...)
		t.pass(k.TTL() / 2)
		t.extend(k, 3*t.ttl)
		t.pass(2 * t.ttl)
		t.wantAlive(k)
		t.wantHeldBy(k)
		t.wantTTL(k, 3*t.ttl)
		t.release(k)
	})
}

func extendShortens(t *trial) {
	l := t.open()
	t.parallel(2, func(i int) {
		opts := [][]locker.Option{{}, {locker.WithoutRenewal()}}[i]
		k := t.take(l, t.key(), append(opts, locker.WithTTL(long))...)
		t.extend(k, t.ttl)
		t.wantTTL(k, t.ttl)
		t.want(!k.Deadline().After(time.Now().Add(k.TTL())), "a Deadline for the shorter TTL", "%v from now", time.Until(k.Deadline()))
		if t.can(locker.CapHolder) {
			held := t.wantHeldBy(k)
			t.want(held.Remaining <= k.TTL(), fmt.Sprintf("at most %v left in the store", k.TTL()), "%v left", held.Remaining)
		}
		if i == 1 {
			t.wantLost(k, k.TTL()+prompt, locker.ReasonExpired)
			t.release(t.wait(t.bystander(), k.Key()).served(prompt))
			return
		}
		t.pass(k.TTL() * 3 / 2) // renewals keep to the shorter one
		t.wantAlive(k)
		if t.can(locker.CapHolder) {
			held := t.wantHeldBy(k)
			t.want(held.Remaining <= k.TTL(), fmt.Sprintf("at most %v left in the store", k.TTL()), "%v left", held.Remaining)
		}
		t.release(k)
	})
}

func extendBadTTL(t *trial) {
	k := t.take(t.open(), t.key(), locker.WithTTL(long), locker.WithoutRenewal())
	ttl, deadline := k.TTL(), k.Deadline()
	for _, bad := range badTTLs {
		t.wantError(k.Extend(t.ctx, bad), locker.ErrInvalid)
	}
	t.wantAlive(k)
	t.want(k.TTL() == ttl && k.Deadline().Equal(deadline), "TTL and Deadline as before",
		"TTL %v instead of %v, Deadline moved by %v", k.TTL(), ttl, k.Deadline().Sub(deadline))
	held := t.wantHeldBy(k)
	if t.can(locker.CapHolder | locker.CapExpiry) {
		t.want(held.Remaining > long-prompt, "the old lease in the store", "%v left of %v", held.Remaining, ttl)
	}
	t.release(k)
}

func extendOrUnsupported(t *trial) {
	k := t.take(t.open(), t.key(), locker.WithTTL(long))
	err := k.Extend(t.ctx, 2*long)
	if t.can(locker.CapExtend) {
		t.want(err == nil, "nil, as the capability extend declares", "Extend: %v", err)
	} else {
		t.wantError(err, locker.ErrUnsupported)
	}
	t.wantAlive(k)
	t.wantHeldBy(k)
	t.release(k)
}
