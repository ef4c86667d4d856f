package locker_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/memlock"
)

// bare is a backend with nothing but the two methods of locker.Backend.
type bare struct {
	locker.Backend
	info locker.Info
}

func (b bare) Info() locker.Info { return b.info }

// reinformed changes what a backend declares and keeps its interfaces.
type reinformed struct {
	full
	info locker.Info
}

type full interface {
	locker.Backend
	locker.Queuer
	locker.Extender
	locker.LossPusher
	locker.Inspector
}

func (b reinformed) Info() locker.Info { return b.info }

func TestNew_refusesACapabilityWithoutItsInterfaceAndTheOtherWayRound(t *testing.T) {
	mem := memlock.NewBackend(nil)
	for _, c := range []locker.Capability{
		locker.CapWakeUp, locker.CapFIFO, locker.CapExtend, locker.CapInspect, locker.CapPushLoss,
	} {
		info := mem.Info()
		info.Can = locker.CapExclusive | c
		_, err := locker.New(bare{mem, info}, nil)
		require.ErrorIs(t, err, locker.ErrInvalid, "%v declared", c)
		require.ErrorContains(t, err, c.String())

		info = mem.Info()
		info.Can &^= c
		_, err = locker.New(reinformed{mem.(full), info}, nil)
		require.ErrorIs(t, err, locker.ErrInvalid, "%v undeclared", c)
	}
	_, err := locker.New(reinformed{mem.(full), mem.Info()}, nil)
	require.NoError(t, err)
}

func TestNew_refusesBadSettings(t *testing.T) {
	_, err := locker.New(nil, nil)
	require.ErrorIs(t, err, locker.ErrInvalid)
	_, err = locker.New(bare{info: locker.Info{Can: locker.CapExclusive}}, nil)
	require.ErrorIs(t, err, locker.ErrInvalid, "no name")
	for _, ttl := range []time.Duration{-1, time.Microsecond, locker.MaxTTL + 1} {
		_, err = memlock.New(nil, &locker.Config{TTL: ttl})
		require.ErrorIs(t, err, locker.ErrInvalid, "%v", ttl)
	}
}

func TestNew_roundsTTLsUpToWhatTheStoreCounts(t *testing.T) { // K2, C66
	mem := memlock.NewBackend(nil)
	l := newOver(t, bare{mem, locker.Info{
		Name: "seconds", Can: locker.CapExclusive, Unit: time.Second, MinTTL: 2 * time.Second, Local: true,
	}}, nil)
	for asked, got := range map[time.Duration]time.Duration{
		time.Millisecond:        2 * time.Second,
		2 * time.Second:         2 * time.Second,
		2*time.Second + 1:       3 * time.Second,
		2500 * time.Millisecond: 3 * time.Second,
	} {
		k := acquire(t, l, "k", locker.WithTTL(asked))
		require.Equal(t, got, k.TTL(), "%v", asked)
		require.NoError(t, k.Release(t.Context()))
	}
}

func TestLocker_withoutInspectorOrExtenderSaysSo(t *testing.T) {
	mem := memlock.NewBackend(nil)
	l := newOver(t, bare{mem, locker.Info{Name: "plain", Can: locker.CapExclusive, Local: true}}, nil)
	_, err := l.(locker.Inspector).Inspect(t.Context(), "k")
	require.ErrorIs(t, err, locker.ErrUnsupported)
	_, err = l.(locker.Inspector).ForceRelease(t.Context(), "k", "x")
	require.ErrorIs(t, err, locker.ErrUnsupported)
	require.ErrorIs(t, l.(locker.Inspector).List(t.Context(), nil), locker.ErrUnsupported)
	k := acquire(t, l, "k")
	require.ErrorIs(t, k.Extend(t.Context(), time.Hour), locker.ErrUnsupported)
	require.NoError(t, k.Extend(t.Context(), k.TTL()), "its own TTL is a renewal")
	require.NoError(t, k.Release(t.Context()))
}

func TestCapability_listsItsNames(t *testing.T) {
	require.Equal(t, "exclusive, FIFO, inspect", (locker.CapExclusive | locker.CapFIFO | locker.CapInspect).String())
	require.Empty(t, locker.Capability(0).String())
}
