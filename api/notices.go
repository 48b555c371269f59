package api

import (
	"fmt"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/inventory"
)

// testNotice tries out whether notices arrive.
func (s *Server) testNotice(c *gin.Context) {
	if s.cfg.TestNotice == nil {
		s.fail(c, fmt.Errorf("nobody is told of anything: give notify.url and notify.secret_file in the server's configuration: %w", inventory.ErrUnsupported))
		return
	}
	id, err := s.cfg.TestNotice(c.Request.Context())
	if err != nil {
		// Whatever it was, it is the receiver, or the way to it.
		s.fail(c, fmt.Errorf("%w: %w", err, inventory.ErrUnreachable))
		return
	}
	c.JSON(http.StatusOK, gin.H{"id": id})
}
