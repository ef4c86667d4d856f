//go:build !unix

package testenv

import "errors"

func (p *process) pause() error     { return errors.ErrUnsupported }
func (p *process) resume() error    { return errors.ErrUnsupported }
func (p *process) terminate() error { return errors.ErrUnsupported }
