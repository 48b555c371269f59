package api

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// Upkeep holds the functions with which the API maintains the server.
type Upkeep struct {
	// Backup copies the server's data into an archive. Backup is nil if this server has nothing to back up.
	Backup func(ctx context.Context, q BackupRequest) (Archive, error)
	// StoreBackup stores a backup on the server, as its configuration says. StoreBackup is nil if this server has nothing to back up.
	StoreBackup func(ctx context.Context) (apitypes.StoredBackup, error)
	// RotateKeys replaces the keys that encrypt the stored secrets, and returns how many secrets it has encrypted with
	// the new key. RotateKeys is nil if this server has no keys.
	RotateKeys func(ctx context.Context) (int, error)
	// TestNotice sends a notice at once and returns its id. by is who asked for it. TestNotice is nil if notices are off.
	TestNotice func(ctx context.Context, by string) (id string, err error)
	// Silent returns the part of this server that does not answer, or "". Silent is nil if that is not checked.
	Silent func() string
}

var errNothingToBackUp = fmt.Errorf("this server has nothing to back up: %w", inventory.ErrUnavailable)

// BackupRequest selects what a backup contains.
type BackupRequest struct {
	// Passphrase encrypts the keys in the backup. Without a passphrase, the backup contains no keys.
	Passphrase inventory.Secret
	Images     bool // include the image files
}

// An Archive is a backup stored on the server. Close removes the backup from the server.
type Archive interface {
	io.WriterTo
	io.Closer
	ID() string
}

type upkeep struct {
	Upkeep
	log *slog.Logger
}

func (u *upkeep) routes() []httpapi.Route {
	return []httpapi.Route{
		{
			Method:  "POST",
			Path:    "/v1/secrets/rotate",
			Needs:   inventory.RoleAdmin,
			Handler: httpapi.Handle(http.StatusOK, httpapi.NoBody, u.rotateKeys),
		},
		{
			Method:  "POST",
			Path:    "/v1/notices/test",
			Needs:   inventory.RoleAdmin,
			Handler: httpapi.Handle(http.StatusOK, httpapi.NoBody, u.sendTestNotice),
		},
		{Method: "POST", Path: "/v1/backup", Needs: inventory.RoleBackup, Handler: u.sendBackup},
		{
			Method:  "POST",
			Path:    "/v1/backups",
			Needs:   inventory.RoleBackup,
			Handler: httpapi.Handle(http.StatusCreated, httpapi.NoBody, u.storeBackup),
		},
	}
}

// rotateKeys replaces the keys that encrypt the stored secrets, while the server goes on working. If a rotation is
// interrupted, the next rotation finishes it.
func (u *upkeep) rotateKeys(ctx context.Context, _ httpapi.Empty) (map[string]int, error) {
	if u.RotateKeys == nil {
		return nil, fmt.Errorf("this server holds no keys: %w", inventory.ErrUnavailable)
	}
	n, err := u.RotateKeys(ctx)
	if err != nil {
		return nil, err
	}
	u.log.Info("the keys of stored secrets were replaced", "secrets", n, "by", httpapi.Actor(ctx))

	return map[string]int{"sealed": n}, nil
}

// sendTestNotice sends a test notice and returns its id, or an error if the receiver does not accept it.
func (u *upkeep) sendTestNotice(ctx context.Context, _ httpapi.Empty) (map[string]string, error) {
	if u.TestNotice == nil {
		return nil, fmt.Errorf("notices are off: set notify.url in the server's configuration: %w",
			inventory.ErrUnsupported)
	}
	id, err := u.TestNotice(ctx, httpapi.Actor(ctx))
	if err != nil {
		// Every error of TestNotice comes from the receiver or from the connection to it.
		return nil, fmt.Errorf("%w: %w", err, inventory.ErrUnreachable)
	}

	return map[string]string{"id": id}, nil
}

type backupBody struct {
	Passphrase inventory.Secret `json:"passphrase"`
	WithoutKey bool             `json:"withoutKey"`
	Images     bool             `json:"images"`
}

// Validate returns an error unless exactly one of two fields is set: Passphrase, which encrypts the keys, or
// WithoutKey.
func (q *backupBody) Validate() error {
	if q.WithoutKey == q.Passphrase.IsZero() {
		return nil
	}
	return inventory.Invalid("passphrase", "encrypt the keys with passphrase, or leave them out of the backup with withoutKey",
		"exactly one of passphrase and withoutKey is needed")
}

// sendBackup sends a backup of both databases as one tar archive, while the server goes on working. The summary of the
// backup is in the archive.
func (u *upkeep) sendBackup(c *gin.Context) {
	ctx := c.Request.Context()
	var q backupBody
	err := httpapi.Decode(c, httpapi.JSON, &q)
	// The keys contain the admin token, and the caller chooses the passphrase that encrypts them.
	if who := callerOf(ctx); err == nil && !q.WithoutKey && !who.Role.Allows(inventory.RoleAdmin) {
		err = httpapi.Refuse(http.StatusForbidden, httpapi.CodeForbidden,
			fmt.Sprintf("token %q has the role %s; a backup with the keys needs the role admin", who.Name, who.Role),
			"use the passphrase of the server (ingot backup run), or leave the keys out (--without-key)")
	}
	if err == nil && u.Backup == nil {
		err = errNothingToBackUp
	}
	var a Archive
	if err == nil {
		a, err = u.Backup(ctx, BackupRequest{Passphrase: q.Passphrase, Images: q.Images})
	}
	if err != nil {
		httpapi.Fail(c, err)
		return
	}
	defer func() {
		if err := a.Close(); err != nil {
			u.log.Error("removing the files of a backup", "backup", a.ID(), "error", err)
		}
	}()

	c.Header("Content-Type", "application/x-tar")
	c.Header("Content-Disposition", "attachment; filename="+strconv.Quote("ingot-"+a.ID()+".tar"))
	c.Status(http.StatusOK)
	n, err := a.WriteTo(c.Writer)
	if err != nil {
		// The client detects that the backup failed, because the archive has no end.
		u.log.Error("sending a backup", "backup", a.ID(), "error", err)
		c.Abort()
		return
	}
	u.log.Info("a backup was made", "backup", a.ID(), "bytes", n, "by", httpapi.Actor(ctx))
}

// storeBackup makes a backup in the server's directory backup.dir. The keys in the backup are encrypted with the passphrase
// in backup.passphrase_file. The client can choose neither the directory nor the passphrase, so a token with the role backup
// does not give it the keys.
func (u *upkeep) storeBackup(ctx context.Context, _ httpapi.Empty) (apitypes.StoredBackup, error) {
	if u.StoreBackup == nil {
		return apitypes.StoredBackup{}, errNothingToBackUp
	}
	s, err := u.StoreBackup(ctx)
	if err == nil {
		u.log.Info("a backup was stored", "backup", s.ID, "file", s.File, "bytes", s.SizeBytes, "deleted", len(s.Deleted),
			"by", httpapi.Actor(ctx))
	}

	return s, err
}
