package main

import (
	"context"
	"errors"
)

// mishap is what befalls the first instance of a round, between its work and its mark:
// the worst place.
type mishap string

const (
	none   mishap = ""
	crash  mishap = ", and an instance will crash"
	freeze mishap = ", and an instance will freeze"
)

// mishaps are those of the rounds, over and over.
var mishaps = []mishap{none, crash, freeze}

var errCrashed = errors.New("crashed")

// befall lets the round's mishap happen.
func (in *instance) befall(ctx context.Context, token uint64) error {
	switch in.Mishap {
	case crash:
		in.say(crashed, "crashes before it could set the mark; it does not release its lock, whose lease has to end")
		in.die()
		return errCrashed
	case freeze:
		in.say(said, "freezes before it could set the mark, as in a pause of its machine")
		in.sleepThrough(ctx, token)
		in.say(said, "wakes up, does not know that its lock is gone, and sets the mark")
	}
	return nil
}

// sleepThrough returns when another instance has taken over: the write that follows is
// late for certain, without a guess at how long that takes. Only the job stands still;
// what stops the renewal, as a pause of the whole process would, is WithMaxHold.
func (in *instance) sleepThrough(ctx context.Context, token uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), in.limit()) // who is frozen sees no lock end
	defer cancel()
	for newest := token; newest == token; {
		err := in.marks.update(ctx, in.Day, func(m *mark) error {
			newest = m.Token
			return nil
		})
		if err != nil || pause(ctx, in.TTL/20) != nil {
			return
		}
	}
}
