package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

type bmcStore interface {
	BMCJobs(ctx context.Context, machine string) ([]inventory.BMCJob, error)
	BMCJob(ctx context.Context, machine, name string) (inventory.BMCJob, error)
}

// The words of bmc.tinkerbell.org.
const (
	powerStatus = "status"
	powerWords  = "on off soft cycle reset status"
	deviceWords = "pxe disk cdrom bios none"
)

func (s *Server) powerMachine(c *gin.Context) {
	var in struct {
		Action string `json:"action"`
		Force  bool   `json:"force"`
	}
	if err := body(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	s.begin(c)(s.bmcJob(c.Request.Context(), workflows.BMCJobInput{
		Machine: c.Param("name"), Job: jobName("power-" + in.Action), Tasks: []inventory.BMCTask{{Power: in.Action}}, Force: in.Force,
	}))
}

func (s *Server) bootDeviceMachine(c *gin.Context) {
	var in struct {
		inventory.BootDevice
		Force bool `json:"force"`
	}
	if err := body(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	s.begin(c)(s.bmcJob(c.Request.Context(), workflows.BMCJobInput{
		Machine: c.Param("name"), Job: jobName("boot-" + in.Device), Tasks: []inventory.BMCTask{{BootDevice: &in.BootDevice}}, Force: in.Force,
	}))
}

// jobName makes the name of a job that nobody named.
func jobName(prefix string) string {
	var b [4]byte
	rand.Read(b[:])
	return prefix + "-" + hex.EncodeToString(b[:])
}

func (s *Server) listBMCJobs(c *gin.Context) {
	js, err := s.cfg.Store.BMCJobs(c.Request.Context(), c.Query("machine"))
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, items(js))
}

func (s *Server) getBMCJob(c *gin.Context) {
	machine, name := c.Param("machine"), c.Param("job")
	j, err := s.cfg.Store.BMCJob(c.Request.Context(), machine, name)
	if errors.Is(err, inventory.ErrNotFound) {
		// No worker has taken it up yet.
		if w, ok := s.fresh.withID(workflows.BMCJobID(machine, name)); ok {
			var in workflows.BMCJobInput
			if err = json.Unmarshal(w.Input, &in); err == nil {
				j = inventory.BMCJob{Name: name, Machine: machine, Run: w.Run, State: w.State, Tasks: in.Tasks, Message: w.Message, Started: w.Started}
			}
		}
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, j)
}

func (s *Server) createBMCJob(c *gin.Context) {
	var in workflows.BMCJobInput
	if err := body(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	s.begin(c)(s.bmcJob(c.Request.Context(), in))
}

// maxTasks is how many tasks a job may have.
const maxTasks = 32

// bmcJob checks in and starts it.
func (s *Server) bmcJob(ctx context.Context, in workflows.BMCJobInput) (Started, error) {
	m, err := s.knownMachine(ctx, in.Machine)
	if err != nil {
		return Started{}, err
	}
	if in.Job == "" {
		in.Job = jobName("job")
	}
	var problems inventory.Problems
	if m.BMC.Manual() && !m.BMC.Wakes() {
		problems.Add("machine", "give it a BMC, or press the button yourself", "%q has no BMC", m.Name)
	}
	if !safeName(in.Job) {
		problems.Add("job", "small letters, digits, dots, dashes, underscores; at most 128", "%q is no name of a job", in.Job)
	}
	if len(in.Tasks) == 0 || len(in.Tasks) > maxTasks {
		problems.Add("tasks", "", "a job has 1 to %d tasks, not %d", maxTasks, len(in.Tasks))
	}
	reads := true
	for i, t := range in.Tasks {
		field := fmt.Sprintf("tasks[%d]", i)
		switch {
		case (t.Power == "") == (t.BootDevice == nil):
			problems.Add(field, "", "exactly one of powerAction and bootDevice is needed")
		case t.Power != "" && !word(powerWords, t.Power):
			problems.Add(field+".powerAction", powerWords, "%q is no power action", t.Power)
		case m.BMC.Wakes() && t.Power != "on":
			problems.Add(field, "press the button of the machine", "wake-on-LAN switches %q on and can do nothing else", m.Name)
		case t.BootDevice != nil && !word(deviceWords, t.BootDevice.Device):
			problems.Add(field+".bootDevice.device", deviceWords, "%q is no boot device", t.BootDevice.Device)
		}
		reads = reads && t.Power == powerStatus
	}
	if err := problems.Err(); err != nil {
		return Started{}, err
	}
	if !reads && !in.Force {
		g, err := s.cfg.Store.Grant(ctx, m.Name)
		if err != nil {
			return Started{}, err
		}
		if g.Run != "" && !g.Person() {
			return Started{}, hint{
				fmt.Errorf("machine %q is busy: run %s of %s holds it; with force the job takes it away, and that run then asks a person: %w", m.Name, g.Run, g.Workflow, inventory.ErrConflict),
				"ingot workflow get " + g.Run,
			}
		}
	}
	st, err := s.run(ctx, start{id: workflows.BMCJobID(m.Name, in.Job), kind: workflows.BMCJobType, machine: m.Name, input: in})
	st.Job = in.Job
	return st, err
}

func word(words, w string) bool {
	return slices.Contains(strings.Fields(words), w)
}

func (s *Server) checkBMC(c *gin.Context) {
	var in struct {
		Machine string `json:"machine"`
	}
	if err := body(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	m, err := s.knownMachine(c.Request.Context(), in.Machine)
	switch {
	case err != nil:
	case m.BMC.Wakes():
		err = invalid("machine", "", "%q has no BMC: nothing answers wake-on-LAN", m.Name)
	case m.BMC.Manual():
		err = invalid("machine", "", "%q has no BMC", m.Name)
	case s.cfg.CheckBMC == nil:
		err = fmt.Errorf("this server reaches no BMC: %w", errUnavailable)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), time.Minute)
	defer cancel()
	out := struct {
		OK      bool   `json:"ok"`
		Power   string `json:"power,omitempty"`
		Message string `json:"message,omitempty"`
	}{}
	if out.Power, err = s.cfg.CheckBMC(ctx, m); err != nil {
		out.Message = err.Error() // an answer, not a fault of this server
	} else {
		out.OK = true
	}
	c.JSON(http.StatusOK, out)
}
