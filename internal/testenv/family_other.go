//go:build !unix

package testenv

import "errors"

func (p *process) pause() error        { return errors.ErrUnsupported }
func (p *process) resume() error       { return errors.ErrUnsupported }
func (p *process) killChildren() error { return nil } // they end when they miss it
