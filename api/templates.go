package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

type templateStore interface {
	Template(ctx context.Context, name string) (inventory.Template, error)
	Templates(ctx context.Context) ([]inventory.Template, error)
	PutTemplate(ctx context.Context, t inventory.Template, by string) error
	DeleteTemplate(ctx context.Context, name, by string) error
}

// Rendered is what a template does to a machine.
type Rendered struct {
	Actions       []action.Action `json:"actions"`
	GlobalTimeout action.Seconds  `json:"globalTimeout"`
	DiskAlias     string          `json:"diskAlias,omitempty"`
}

// template returns a stored template, or one that comes with the program.
func (s *Server) template(ctx context.Context, name string) (inventory.Template, error) {
	t, err := s.cfg.Store.Template(ctx, name)
	if !errors.Is(err, inventory.ErrNotFound) {
		return t, err
	}
	if b, ok := builtin(name); ok {
		return b, nil
	}
	return t, hint{fmt.Errorf("template %q: %w", name, inventory.ErrNotFound), "ingot template list"}
}

func builtin(name string) (inventory.Template, bool) {
	for _, b := range template.Builtins() {
		if b.Name == name {
			return b, true
		}
	}
	return inventory.Template{}, false
}

func (s *Server) listTemplates(c *gin.Context) {
	ts, err := s.cfg.Store.Templates(c.Request.Context())
	if err != nil {
		s.fail(c, err)
		return
	}
	have := map[string]bool{}
	for _, t := range ts {
		have[t.Name] = true
	}
	for _, b := range template.Builtins() {
		if !have[b.Name] {
			ts = append(ts, b)
		}
	}
	c.JSON(http.StatusOK, items(ts))
}

func (s *Server) createTemplate(c *gin.Context) {
	var in struct {
		Name   string `json:"name"`
		Source string `json:"source"`
	}
	if err := body(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	parsed, err := template.Parse(in.Name, []byte(in.Source))
	if err != nil {
		s.fail(c, err)
		return
	}
	in.Name = first(in.Name, parsed.Name)
	if !safeName(in.Name) {
		s.fail(c, invalid("name", "small letters, digits, dots, dashes, underscores; at most 128", "%q is no name of a template", in.Name))
		return
	}
	if _, ok := builtin(in.Name); ok {
		s.fail(c, fmt.Errorf("template %q comes with the program, choose another name: %w", in.Name, inventory.ErrConflict))
		return
	}
	if err := s.cfg.Store.PutTemplate(c.Request.Context(), inventory.Template{Name: in.Name, Source: in.Source}, by(c)); err != nil {
		s.fail(c, err)
		return
	}
	t, err := s.cfg.Store.Template(c.Request.Context(), in.Name)
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusCreated, t)
}

func (s *Server) getTemplate(c *gin.Context) {
	t, err := s.template(c.Request.Context(), c.Param("name"))
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, t)
}

func (s *Server) deleteTemplate(c *gin.Context) {
	name := c.Param("name")
	if _, ok := builtin(name); ok {
		s.fail(c, fmt.Errorf("template %q comes with the program: %w", name, inventory.ErrConflict))
		return
	}
	if err := s.cfg.Store.DeleteTemplate(c.Request.Context(), name, by(c)); err != nil {
		s.fail(c, err)
		return
	}
	c.Status(http.StatusNoContent)
}

func (s *Server) renderTemplate(c *gin.Context) {
	var in struct {
		Machine     string            `json:"machine"`
		Image       string            `json:"image"`
		HardwareMap map[string]string `json:"hardwareMap"`
	}
	if err := body(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	t, err := s.template(c.Request.Context(), c.Param("name"))
	if err != nil {
		s.fail(c, err)
		return
	}
	m, err := s.knownMachine(c.Request.Context(), in.Machine)
	if err != nil {
		s.fail(c, err)
		return
	}
	d := template.Data{Machine: m, HardwareMap: in.HardwareMap}
	if name := first(in.Image, m.Image); name != "" {
		i, err := s.image(c.Request.Context(), name)
		if err != nil {
			s.fail(c, err)
			return
		}
		d.Image, d.ImageURL = &i, s.imageURL(i)
	}
	out, err := template.Render(c.Request.Context(), t.Name, t.Source, d)
	if err != nil && d.Image != nil && d.ImageURL == "" {
		err = fmt.Errorf("rendering template %q: image %q has no address, because no interface is configured: run ingot init, then start the server again: %w",
			t.Name, d.Image.Name, inventory.ErrInvalid)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, Rendered{Actions: items(out.Actions).Items, GlobalTimeout: out.GlobalTimeout, DiskAlias: out.DiskAlias})
}
