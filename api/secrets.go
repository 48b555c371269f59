package api

import (
	"fmt"
	"net/http"

	"github.com/gin-gonic/gin"
)

// rotateSecrets replaces the keys of the stored secrets while everything goes
// on. A rotation that broke off is finished by the next one.
func (s *Server) rotateSecrets(c *gin.Context) {
	if s.cfg.RotateKeys == nil {
		s.fail(c, fmt.Errorf("this server holds no keys: %w", errUnavailable))
		return
	}
	n, err := s.cfg.RotateKeys(c.Request.Context())
	if err != nil {
		s.fail(c, err)
		return
	}
	s.cfg.Log.Info("the keys of stored secrets were replaced", "secrets", n, "by", by(c))
	c.JSON(http.StatusOK, gin.H{"sealed": n})
}
