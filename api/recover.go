package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

// decommissionMachine ends a machine's service.
func (s *Server) decommissionMachine(c *gin.Context) {
	var in struct {
		Wipe        string `json:"wipe"`
		KeepAddress bool   `json:"keepAddress"`
	}
	if err := body(c, &in, true); err != nil {
		s.fail(c, err)
		return
	}
	s.begin(c)(s.decommission(c.Request.Context(), workflows.DecommissionInput{Machine: c.Param("name"), Wipe: in.Wipe, KeepAddress: in.KeepAddress}))
}

func (s *Server) decommission(ctx context.Context, in workflows.DecommissionInput) (Started, error) {
	if err := s.room(ctx); err != nil {
		return Started{}, err
	}
	m, err := s.knownMachine(ctx, in.Machine)
	if err != nil {
		return Started{}, err
	}
	if err := action.Check(action.Wipe, map[string]string{action.WipeModeVariable: in.Wipe}); err != nil {
		return Started{}, invalid("wipe", "", "%v", err)
	}
	return s.run(ctx, start{id: workflows.MachineID(m.Name), kind: workflows.DecommissionType, machine: m.Name, input: in})
}

// releaseMachine puts a machine back into service: a person says that it is in
// order.
func (s *Server) releaseMachine(c *gin.Context) {
	m, err := s.machine(c)
	if err == nil {
		err = s.cfg.Store.Release(c.Request.Context(), m.Name, by(c))
	}
	if err == nil {
		m, err = s.cfg.Store.Machine(c.Request.Context(), m.Name)
	}
	var v MachineView
	if err == nil {
		v, err = s.view(c.Request.Context(), m)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, v)
}

// released refuses a machine that waits for a person's word.
func released(m inventory.Machine) error {
	if !m.Quarantined() {
		return nil
	}
	return hint{
		fmt.Errorf("machine %q is quarantined: %s: %w", m.Name, m.Standing.Reason, inventory.ErrConflict),
		"ingot machine release " + m.Name + "   # when you have seen to it",
	}
}

// startRecover wipes and installs many machines.
func (s *Server) startRecover(c *gin.Context) {
	var in workflows.RecoverInput
	if err := body(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	s.begin(c)(s.recover(c.Request.Context(), in))
}

func (s *Server) recover(ctx context.Context, in workflows.RecoverInput) (Started, error) {
	var problems inventory.Problems
	if !operationName.MatchString(in.Name) {
		problems.Add("name", "use letters, digits, - and _", "%q is no name of a recovery", in.Name)
	}
	if in.Concurrency < 0 || in.Concurrency > maxConcurrency {
		problems.Add("concurrency", "", "%d is not between 0, which means 2, and %d", in.Concurrency, maxConcurrency)
	}
	if in.AbortAfter < 0 {
		problems.Add("abortAfter", "0 is never", "%d machines cannot fail", in.AbortAfter)
	}
	if in.Template != "" {
		if _, err := s.template(ctx, in.Template); err != nil {
			problems.Add("template", "ingot template list", "there is no template %q", in.Template)
		}
	}
	if in.Continued != nil {
		problems.Add("continued", "leave it out", "a recovery hands it to itself")
	}
	all, err := s.cfg.Store.Machines(ctx)
	if err != nil {
		return Started{}, err
	}
	if _, err := inventory.RecoverOrder(all, in.Machines, in.Selector, in.Order); err != nil {
		var more inventory.Problems
		if !errors.As(err, &more) {
			return Started{}, err
		}
		problems = append(problems, more...)
	}
	if err := problems.Err(); err != nil {
		return Started{}, err
	}
	return s.startOperation(ctx, workflows.RecoverType, workflows.RecoverID(in.Name), in.Name, in)
}

// maxConcurrency bounds what somebody's slip of the finger begins at once.
const maxConcurrency = 200

// operationName is a name that fits into paths and workflow ids.
var operationName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)
