package conformance

import (
	"context"
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

// mendServer ends what the case has left broken.
func (t *trial) mendServer() {
	ctx := context.WithoutCancel(t.ctx)
	var err error
	if t.serverPaused {
		err = t.suite.h.Server.Resume(ctx)
	}
	if t.serverDown {
		err = t.suite.h.Server.Restart(ctx)
	}
	if err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.broken = fmt.Errorf("mending the server: %w", err)
	}
}
