package conformance

import (
	"context"
	"errors"
	"fmt"
)

// The server's state is the trial's to mend: a case can end at any point.

func (t *trial) pauseServer() {
	t.serverPaused = true
	t.mustWork("Server.Pause", t.suite.h.Server.Pause(t.ctx))
}

func (t *trial) resumeServer() {
	t.serverPaused = false
	t.mustWork("Server.Resume", t.suite.h.Server.Resume(t.ctx))
}

func (t *trial) killServer() {
	t.serverDown = true
	t.mustWork("Server.Kill", t.suite.h.Server.Kill(t.ctx))
}

func (t *trial) restartServer() {
	t.serverDown = false
	t.mustWork("Server.Restart", t.suite.h.Server.Restart(t.ctx))
}

func (t *trial) cutServerOff() {
	t.serverCutOff = true
	t.mustWork("Server.CutOff", t.suite.h.Server.CutOff(t.ctx))
}

func (t *trial) reconnectServer() {
	t.serverCutOff = false
	t.mustWork("Server.Reconnect", t.suite.h.Server.Reconnect(t.ctx))
}

// mendServer ends what the case has left broken. The next case needs the server, so
// the end of this one's ctx does not keep it broken.
func (t *trial) mendServer() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), 2*recovery)
	defer cancel()
	var paused, down, cutOff error
	if t.serverPaused {
		paused = t.suite.h.Server.Resume(ctx)
	}
	if t.serverDown {
		down = t.suite.h.Server.Restart(ctx)
	}
	if t.serverCutOff {
		cutOff = t.suite.h.Server.Reconnect(ctx)
	}
	if err := errors.Join(paused, down, cutOff); err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.broken = fmt.Errorf("mending the server: %w", err)
	}
}
