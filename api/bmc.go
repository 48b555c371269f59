package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// BMCJobStore reads the records of BMC jobs. For machine "", BMCJobs returns the jobs of all machines.
type BMCJobStore interface {
	BMCJobs(ctx context.Context, machine string) ([]inventory.BMCJob, error)
	BMCJob(ctx context.Context, machine, name string) (inventory.BMCJob, error)
}

// powerStatus is the power action that only reads the power state.
const powerStatus = "status"

type bmcRoutes struct {
	store    BMCJobStore
	runs     *engine.Runs
	machines *machines
	starter  *starter
	bmc      BMC
}

func (b *bmcRoutes) routes() []httpapi.Route {
	const machine = "/v1/machines/:name"

	return []httpapi.Route{
		{Method: "POST", Path: machine + "/power", Needs: inventory.RoleOperate, Handler: accept(b.setPower)},
		{Method: "POST", Path: machine + "/boot-device", Needs: inventory.RoleOperate, Handler: accept(b.setBootDevice)},
		{Method: "GET", Path: "/v1/bmc/jobs", Needs: inventory.RoleRead, Handler: httpapi.Get(b.listJobs)},
		{Method: "POST", Path: "/v1/bmc/jobs", Needs: inventory.RoleOperate, Handler: accept(b.starter.startBMCJob)},
		{Method: "GET", Path: "/v1/bmc/jobs/:machine/:job", Needs: inventory.RoleRead, Handler: httpapi.Get(b.getJob)},
		{Method: "POST", Path: "/v1/bmc/check", Needs: inventory.RoleOperate, Handler: httpapi.Handle(http.StatusOK, httpapi.JSON, b.checkLogin)},
		{
			Method:  "POST",
			Path:    "/v1/bmc/forget-key",
			Needs:   inventory.RoleOperate,
			Handler: httpapi.Handle(http.StatusOK, httpapi.JSON, b.forgetKey),
		},
	}
}

type setPower struct {
	byName
	Action string `json:"action"`
	Job    string `json:"job"` // name of the job; "" = the server chooses one
	Force  bool   `json:"force"`
}

func (b *bmcRoutes) setPower(ctx context.Context, q setPower) (apitypes.Started, error) {
	return b.starter.startBMCJob(ctx, contract.BMCJobInput{
		Machine: q.Name, Job: cmp.Or(q.Job, newJobName(ctx, "power-"+q.Action)), Tasks: []inventory.BMCTask{{Power: q.Action}}, Force: q.Force,
	})
}

type setBootDevice struct {
	byName
	inventory.BootDevice
	Job   string `json:"job"` // name of the job; "" = the server chooses one
	Force bool   `json:"force"`
}

func (b *bmcRoutes) setBootDevice(ctx context.Context, q setBootDevice) (apitypes.Started, error) {
	return b.starter.startBMCJob(ctx, contract.BMCJobInput{
		Machine: q.Name, Job: cmp.Or(q.Job, newJobName(ctx, "boot-"+q.Device)),
		Tasks: []inventory.BMCTask{{BootDevice: &q.BootDevice}}, Force: q.Force,
	})
}

// newJobName returns a name for a job whose request gives none. The name is random. If the request has an
// Idempotency-Key, every repetition of the request gets the same name.
func newJobName(ctx context.Context, prefix string) string {
	if id := inventory.KeyedRequestOf(ctx); id != "" {
		return prefix + "-" + id[:16]
	}
	var b [4]byte
	rand.Read(b[:]) // never returns an error
	return prefix + "-" + hex.EncodeToString(b[:])
}

type listBMCJobs struct {
	Machine string `query:"machine"`
}

func (b *bmcRoutes) listJobs(ctx context.Context, q listBMCJobs) (httpapi.List[inventory.BMCJob], error) {
	jobs, err := b.store.BMCJobs(ctx, q.Machine)
	return httpapi.NewList(jobs), err
}

type getBMCJob struct {
	Machine string `path:"machine" json:"-"`
	Job     string `path:"job" json:"-"`
}

func (b *bmcRoutes) getJob(ctx context.Context, q getBMCJob) (inventory.BMCJob, error) {
	j, err := b.store.BMCJob(ctx, q.Machine, q.Job)
	if !errors.Is(err, inventory.ErrNotFound) {
		return j, err
	}
	w, ok := b.runs.UnrecordedWithID(workflows.BMCJobID(q.Machine, q.Job))
	if !ok {
		return j, err
	}

	// No worker has started the job yet, so the job's tasks are only in the input of the run.
	var in contract.BMCJobInput
	if err := json.Unmarshal(w.Input, &in); err != nil {
		return j, fmt.Errorf("reading the input of run %q: %w", w.Run, err)
	}
	return inventory.BMCJob{
		Name: q.Job, Machine: q.Machine, Run: w.Run, State: w.State, Tasks: in.Tasks, Message: w.Message, Started: w.Started,
	}, nil
}

// startBMCJob validates the input and starts the job. A machine has only one job of each name. If it has a job of this
// name with the same tasks, startBMCJob returns that job, so a client that got no answer can repeat the request. If the
// tasks differ, the error is inventory.ErrConflict.
func (s *starter) startBMCJob(ctx context.Context, in contract.BMCJobInput) (apitypes.Started, error) {
	m, err := s.machines.find(ctx, in.Machine)
	if err != nil {
		return apitypes.Started{}, err
	}
	if in.Job == "" {
		in.Job = newJobName(ctx, "job")
	}
	if err := checkBMCJob(m, in); err != nil {
		return apitypes.Started{}, err
	}
	old, err := s.jobs.BMCJob(ctx, m.Name, in.Job)
	if err == nil {
		found := apitypes.Started{Workflow: workflows.BMCJobID(m.Name, in.Job), Run: old.Run, Job: in.Job, Existing: true}
		return found, sameJob(in, old.Tasks)
	}
	if !errors.Is(err, inventory.ErrNotFound) {
		return apitypes.Started{}, err
	}
	reads := !slices.ContainsFunc(in.Tasks, func(t inventory.BMCTask) bool { return t.Power != powerStatus })
	if !reads && !in.Force {
		if err := s.refuseHeld(ctx, m.Name); err != nil {
			return apitypes.Started{}, err
		}
	}

	in.By = httpapi.Actor(ctx)
	id := workflows.BMCJobID(m.Name, in.Job)
	run, err := s.runs.Start(ctx, engine.Start{ID: id, Type: inventory.TypeBMCJob, Machine: m.Name, Input: in, Once: true})
	started := apitypes.Started{Workflow: id, Run: run, Job: in.Job}
	var busy *engine.BusyError
	switch {
	case errors.As(err, &busy):
		started.Run, started.Existing = busy.Run, true
		return started, s.checkExistingJob(ctx, in, id, busy.Run)
	case errors.Is(err, engine.ErrUncertain):
		return apitypes.Started{}, hint(fmt.Errorf("job %q of machine %q: %w", in.Job, m.Name, err),
			fmt.Sprintf("ingot bmc job get %s %s   # or create the job again under this name: it still runs only once", m.Name, in.Job))
	}
	return started, err
}

// checkExistingJob is called if a run has used the name of the job, but the inventory has no record of a job of this
// name. It returns a conflict if that run has ended (it then ended before its first task), or if the tasks of the new
// job differ.
func (s *starter) checkExistingJob(ctx context.Context, in contract.BMCJobInput, id, run string) error {
	if w, err := s.runs.Find(ctx, run); err == nil && inventory.Final(w.State) {
		return hint(fmt.Errorf("job %q of machine %q was started before, and ended as %s before its first task: %s: give the new job "+
			"another name: %w", in.Job, in.Machine, w.State, w.Message, inventory.ErrConflict), "ingot workflow get "+run)
	}
	var old contract.BMCJobInput
	if err := s.runs.Input(ctx, id, run, &old); err != nil {
		return err
	}
	return sameJob(in, old.Tasks)
}

// sameJob compares the new job with the existing job of the same name, which has the given tasks. If the tasks differ,
// it returns a conflict.
func sameJob(in contract.BMCJobInput, tasks []inventory.BMCTask) error {
	order := func(t inventory.BMCTask) inventory.BMCTask {
		t.State, t.Message, t.Seconds = "", "", 0
		return t
	}
	if slices.EqualFunc(in.Tasks, tasks, func(a, b inventory.BMCTask) bool { return reflect.DeepEqual(order(a), order(b)) }) {
		return nil
	}
	return hint(fmt.Errorf("machine %q already has a job %q with other tasks: give the new job another name: %w", in.Machine, in.Job,
		inventory.ErrConflict), "ingot bmc job get "+in.Machine+" "+in.Job)
}

// refuseHeld returns a conflict if a run owns the machine.
func (s *starter) refuseHeld(ctx context.Context, machine string) error {
	g, err := s.windows.Grant(ctx, machine)
	if err != nil || g.Run == "" || g.ByOperator() {
		return err
	}
	return hint(fmt.Errorf("machine %q is busy with run %s of %s; with force, the job takes the machine from that run, "+
		"which then asks the operator: %w", machine, g.Run, g.Workflow, inventory.ErrConflict),
		"ingot workflow get "+g.Run)
}

func checkBMCJob(m inventory.Machine, in contract.BMCJobInput) error {
	var problems inventory.Problems
	if m.BMC.Manual() && !m.BMC.Wakes() {
		problems.Add("machine", "give the machine a BMC, or press its power button", "%q has no BMC", m.Name)
	}
	if !inventory.SafeName(in.Job) {
		problems.Add("job", inventory.SafeNameRule, "invalid name of a job %q", in.Job)
	}
	problems = append(problems, in.Validate()...)
	for i, t := range in.Tasks {
		if t.RotatePassword && !m.BMC.Capabilities().RotatesPassword {
			problems.Add(fmt.Sprintf("tasks[%d].rotatePassword", i), "change the password at the BMC, then store it: ingot machine push --replace",
				"the driver %s cannot change the password of %q", m.Controller().Driver, m.Name)
		}
		if m.BMC.Wakes() && t.Power != "on" {
			problems.Add(fmt.Sprintf("tasks[%d]", i), "press the machine's power button",
				"wake-on-LAN can only switch %q on", m.Name)
		}
	}

	return problems.Err()
}

type checkBMC struct {
	Machine string `json:"machine"`
	Retry   bool   `json:"retry"` // log in even with credentials that the BMC has refused recently
}

type forgetKey struct {
	Machine string `json:"machine"`
}

// checkLogin logs in to a machine's BMC. A failed login is part of the result, not an error.
func (b *bmcRoutes) checkLogin(ctx context.Context, q checkBMC) (apitypes.BMCCheck, error) {
	m, err := b.machines.find(ctx, q.Machine)
	switch {
	case err != nil:
		return apitypes.BMCCheck{}, err
	case m.BMC.Wakes():
		return apitypes.BMCCheck{}, inventory.Invalid("machine", "", "%q has no BMC, and wake-on-LAN cannot be checked", m.Name)
	case m.BMC.Manual():
		return apitypes.BMCCheck{}, inventory.Invalid("machine", "", "%q has no BMC", m.Name)
	case b.bmc.Check == nil:
		return apitypes.BMCCheck{}, fmt.Errorf("this server is not set up to reach BMCs: %w", inventory.ErrUnavailable)
	}

	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	report, err := b.bmc.Check(ctx, m, q.Retry)
	if err != nil {
		return apitypes.BMCCheck{Message: err.Error()}, nil // a failed login is a result, not an error of this server
	}
	return apitypes.BMCCheck{OK: true, BMCReport: &report}, nil
}

// forgetKey makes the server forget the certificate key of a machine's BMC. A BMC that was replaced is then trusted at
// the next connection.
func (b *bmcRoutes) forgetKey(ctx context.Context, q forgetKey) (struct{}, error) {
	m, err := b.machines.find(ctx, q.Machine)
	switch {
	case err != nil:
		return struct{}{}, err
	case m.BMC.Manual():
		return struct{}{}, inventory.Invalid("machine", "", "%q has no BMC", m.Name)
	case m.BMC.Fingerprint != "":
		return struct{}{}, inventory.Invalid("machine", "change bmc.fingerprint",
			"no key is stored for the BMC of %q, because its bmc.fingerprint says which key is trusted", m.Name)
	case b.bmc.ForgetKey == nil:
		return struct{}{}, fmt.Errorf("this server is not set up to reach BMCs: %w", inventory.ErrUnavailable)
	}
	return struct{}{}, b.bmc.ForgetKey(ctx, m.BMC.KeyAddress())
}
