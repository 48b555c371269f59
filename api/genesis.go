package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

type genesisStore interface {
	PutGenesis(ctx context.Context, b inventory.GenesisBundle, by string) (inventory.GenesisBundle, error)
	Genesis(ctx context.Context, name string) (inventory.GenesisBundle, error)
	GenesisList(ctx context.Context) ([]inventory.GenesisBundle, error)
	DeleteGenesis(ctx context.Context, name, by string) error
}

// A GenesisPlan is what a lab file would do: the table of steps, what it
// overwrites, and what would keep it from starting now. Nothing in it is secret.
type GenesisPlan struct {
	Name   string         `json:"name"`
	SHA256 string         `json:"sha256"`
	Files  []string       `json:"files"` // their names
	Steps  []genesis.Step `json:"steps"`
	// Destroys are the disks that are overwritten, one line per machine.
	Destroys []string `json:"destroys"`
	// Problems would keep it from starting now; Warnings would not.
	Problems inventory.Problems `json:"problems"`
	Warnings inventory.Problems `json:"warnings"`
}

// lab returns a stored lab file, and the plan of it as look has it.
func (s *Server) lab(ctx context.Context, name string) (inventory.GenesisBundle, GenesisPlan, error) {
	b, err := s.cfg.Store.Genesis(ctx, name)
	if errors.Is(err, inventory.ErrNotFound) {
		return b, GenesisPlan{}, hint{fmt.Errorf("lab file %q: %w", name, inventory.ErrNotFound), "ingot genesis plan FILE"}
	}
	if err != nil {
		return b, GenesisPlan{}, err
	}
	// A newer server may know more to be wrong.
	p, err := s.look(ctx, b)
	return b, p, err
}

// look reads b and plans it. A lab file with mistakes is an inventory.Problems,
// in which stands, too, what the plan finds.
func (s *Server) look(ctx context.Context, b inventory.GenesisBundle) (GenesisPlan, error) {
	l, err := genesis.Load(b.File, b.Read)
	var wrong inventory.Problems
	if err != nil && !errors.As(err, &wrong) {
		return GenesisPlan{}, err
	}
	if l.Name != b.Name && !slices.ContainsFunc(wrong, func(p inventory.Problem) bool { return p.Field == "name" || p.Field == "" && p.File == b.File }) {
		wrong = append(wrong, l.Locate(inventory.Problems{{Field: "name", What: fmt.Sprintf("is %q, but was sent as %q", l.Name, b.Name), Remedy: "send it under its own name"}})...)
	}
	p, err := s.plan(ctx, b, l)
	if err == nil && len(wrong) > 0 {
		err = l.Together(wrong, p.Problems)
	}
	return p, err
}

// plan tells what b would do on this server as it is now. Images that would be
// fetched are asked for where they lie.
func (s *Server) plan(ctx context.Context, b inventory.GenesisBundle, l genesis.Lab) (GenesisPlan, error) {
	p := GenesisPlan{
		Name: b.Name, SHA256: b.SHA256, Files: slices.Sorted(maps.Keys(b.Files)), Steps: l.Steps(), Destroys: l.Destroys(),
		Problems: inventory.Problems{}, Warnings: append(inventory.Problems{}, l.Warnings()...),
	}
	images, err := s.cfg.Store.Images(ctx)
	if err != nil {
		return p, err
	}
	sums := map[string]string{}
	for _, i := range images {
		sums[i.Name] = i.SHA256
	}
	stored := func(name string) string { return sums[name] }
	p.Problems = append(p.Problems, l.CheckImages(stored, nil)...)
	p.Problems = append(p.Problems, l.CheckSources(stored, func(address string) error { return s.ProbeImage(ctx, address) })...)
	var ps inventory.Problems
	for n, m := range l.Machines {
		field := fmt.Sprintf("machines[%d].", n)
		s.checkPower(&ps, field, m.BMC)
		if m.Template != "" {
			if _, err := s.template(ctx, m.Template); errors.Is(err, inventory.ErrNotFound) {
				ps.Add(field+"template", "ingot template list", "there is no template %q", m.Template)
			} else if err != nil {
				return p, err
			}
		}
		stored, err := s.cfg.Store.Machine(ctx, m.Name)
		if errors.Is(err, inventory.ErrNotFound) {
			continue
		}
		if err != nil {
			return p, err
		}
		if d := genesis.Differs(stored, m.Machine); len(d) > 0 && !b.Replace {
			ps.Add(field+"name", "correct one of them, or start with --replace", "the inventory has a machine %q that differs in %s", m.Name, strings.Join(d, ", "))
		}
	}
	p.Problems = append(p.Problems, l.Locate(ps)...)
	return p, nil
}

func (s *Server) listGenesis(c *gin.Context) {
	list, err := s.cfg.Store.GenesisList(c.Request.Context())
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, items(list))
}

// getGenesis answers with the plan: the files are never shown again.
func (s *Server) getGenesis(c *gin.Context) { s.planGenesis(c) }

func (s *Server) planGenesis(c *gin.Context) {
	_, p, err := s.lab(c.Request.Context(), c.Param("name"))
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, p)
}

// putGenesis checks and stores a lab file with the files that it names. It
// changes nothing else: machines come into the inventory when Genesis starts.
func (s *Server) putGenesis(c *gin.Context) {
	var in struct {
		File    string            `json:"file"`
		Files   map[string]string `json:"files"`
		Replace bool              `json:"replace"`
		// Only: nothing is stored, the answer tells what would be.
		Only bool `json:"only"`
	}
	if err := body(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	b := inventory.GenesisBundle{Name: c.Param("name"), File: in.File, Files: map[string]inventory.Secret{}, Replace: in.Replace}
	for name, text := range in.Files {
		b.Files[name] = inventory.NewSecret(text)
	}
	p, err := s.storeGenesis(c, b, in.Only)
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, p)
}

func (s *Server) storeGenesis(c *gin.Context, b inventory.GenesisBundle, only bool) (GenesisPlan, error) {
	ctx := c.Request.Context()
	if err := b.Check(); err != nil {
		return GenesisPlan{}, err
	}
	b.SHA256 = b.Digest()
	p, err := s.look(ctx, b)
	if err != nil {
		return GenesisPlan{}, err
	}
	if !only {
		// Steps read it while they run: it must not change under them.
		if err := s.notRunning(ctx, b.Name); err != nil {
			return GenesisPlan{}, err
		}
		stored, err := s.cfg.Store.PutGenesis(ctx, b, by(c))
		if err != nil {
			return GenesisPlan{}, err
		}
		s.cfg.Log.Info("lab file stored", "name", b.Name, "sha256", stored.SHA256, "by", by(c))
	}
	return p, nil
}

// notRunning is a conflict while a Genesis of that name is open.
func (s *Server) notRunning(ctx context.Context, name string) error {
	open, err := s.cfg.Store.Operations(ctx, inventory.OperationFilter{ID: workflows.GenesisID(name), Open: true, Limit: 1})
	if err == nil && len(open) > 0 {
		err = busyOperation(open[0].ID, open[0].Run)
	}
	return err
}

func (s *Server) deleteGenesis(c *gin.Context) {
	err := s.notRunning(c.Request.Context(), c.Param("name"))
	if err == nil {
		err = s.cfg.Store.DeleteGenesis(c.Request.Context(), c.Param("name"), by(c))
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	c.Status(http.StatusNoContent)
}

func (s *Server) startGenesis(c *gin.Context) {
	var in struct {
		// Again does again what an earlier run has installed.
		Again bool `json:"again"`
	}
	if err := body(c, &in, true); err != nil {
		s.fail(c, err)
		return
	}
	s.beginGenesis(c, workflows.GenesisInput{Name: c.Param("name"), Again: in.Again})
}

// beginGenesis starts it unless something would keep it from coming far.
func (s *Server) beginGenesis(c *gin.Context, in workflows.GenesisInput) {
	ctx := c.Request.Context()
	b, p, err := s.lab(ctx, in.Name)
	if err == nil {
		err = s.cfg.Store.KeyCheck(ctx)
	}
	if err == nil && !in.Resume {
		// What a run has begun it looks at again itself.
		err = p.Problems.Err()
	}
	var started Started
	if err == nil {
		started, err = s.startOperation(ctx, workflows.GenesisType, workflows.GenesisID(in.Name), in.Name, in)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	s.cfg.Log.Info("genesis begins", "name", in.Name, "run", started.Run, "lab", b.SHA256, "resume", in.Resume, "by", by(c))
	c.JSON(http.StatusAccepted, started)
}

// resumeGenesis goes on with a Genesis that has stopped: the step that failed
// is tried again when a person is asked about it, and a run that is over begins
// again at the first step that is not done.
func (s *Server) resumeGenesis(c *gin.Context) {
	ctx := c.Request.Context()
	name := c.Param("name")
	o, err := s.latestGenesis(ctx, name)
	if err != nil {
		s.fail(c, err)
		return
	}
	switch {
	case inventory.Final(o.State) && o.State != inventory.StateSuccess:
		s.beginGenesis(c, workflows.GenesisInput{Name: name, Resume: true})
	case inventory.Final(o.State):
		s.fail(c, hint{fmt.Errorf("%s is done: %w", o.ID, inventory.ErrConflict), "ingot genesis status " + name})
	case o.Question == nil:
		s.fail(c, hint{fmt.Errorf("%s is under way and asks nothing: %w", o.ID, inventory.ErrConflict), "ingot genesis status " + name + " --wait"})
	default:
		choice := ""
		for _, x := range []string{workflows.Retry, workflows.Continue} {
			if choice == "" && slices.Contains(o.Question.Choices, x) {
				choice = x
			}
		}
		if choice == "" {
			s.fail(c, hint{fmt.Errorf("%s asks a person, and neither to try again nor to go on is a choice: %w", o.ID, inventory.ErrConflict), "ingot operation decide " + o.ID})
			return
		}
		tc, err := s.temporal()
		if err == nil {
			err = s.tell(ctx, tc, o.ID, o.Run, workflows.Decision{Question: o.Question.ID, Choice: choice, By: by(c)}, "ingot genesis status "+name)
		}
		if err != nil {
			s.fail(c, err)
			return
		}
		s.cfg.Log.Info("decided", "operation", o.ID, "question", o.Question.ID, "choice", choice, "by", by(c))
		c.JSON(http.StatusAccepted, Started{Workflow: o.ID, Run: o.Run})
	}
}

func (s *Server) latestGenesis(ctx context.Context, name string) (inventory.Operation, error) {
	o, err := s.operation(ctx, "genesis."+name)
	if errors.Is(err, inventory.ErrNotFound) {
		err = hint{fmt.Errorf("genesis %q was never started: %w", name, inventory.ErrNotFound), "ingot genesis start FILE"}
	}
	return o, err
}

func (s *Server) genesisStatus(c *gin.Context) {
	o, err := s.latestGenesis(c.Request.Context(), c.Param("name"))
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, o)
}

func (s *Server) cancelGenesis(c *gin.Context) {
	o, err := s.latestGenesis(c.Request.Context(), c.Param("name"))
	if err != nil {
		s.fail(c, err)
		return
	}
	s.endOperation(c, o)
}
