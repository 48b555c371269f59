package apitypes

import (
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// Status is the answer to GET /v1/status.
type Status struct {
	Version       string         `json:"version"`
	UptimeSeconds int64          `json:"uptimeSeconds"`
	Temporal      TemporalStatus `json:"temporal"`
	Netboot       NetbootStatus  `json:"netboot"`
	Machines      int            `json:"machines"`
	OpenWorkflows int            `json:"openWorkflows"`
	Secrets       string         `json:"secrets"` // ok | missing | wrong
	// Inventory is the result of the check of the database that the server made when it started.
	Inventory InventoryStatus `json:"inventory"`
	Notify    *NotifyStatus   `json:"notify,omitempty"`
	// Backup is the state of the backups that the server stores in backup.dir.
	Backup    *BackupStatus `json:"backup,omitempty"`
	Reconcile Repairs       `json:"reconcile"`
	// Panics is how often the handling of a packet or a request has panicked since the server started. Each panic is a
	// bug in Ingot.
	Panics int64 `json:"panics,omitempty"`
	// Retrying lists up to ten activities of open runs that have failed and are being retried.
	Retrying []string `json:"retrying,omitempty"`
	// Waiting lists up to ten runs and up to ten operations that wait for the operator. MoreWaiting means that there
	// are more.
	Waiting     []WaitingStatus `json:"waiting,omitempty"`
	MoreWaiting bool            `json:"moreWaiting,omitempty"`
	// Restored describes the backup from which the server was restored, if there was a restore.
	Restored *RestoredStatus `json:"restored,omitempty"`
	// Site is the role of this server among its peers, if it has peers.
	Site *inventory.SiteStatus `json:"site,omitempty"`
	// Space is the free space of the data directory, and of the image directory if it is on another disk.
	Space []SpaceStatus `json:"space"`
	Time  time.Time     `json:"time"`
}

// Repairs counts what the server has repaired since it started.
type Repairs struct {
	GrantsEnded            int64 `json:"grantsEnded"`
	OperatorWindowsExpired int64 `json:"operatorWindowsExpired"`
	RecordsRepaired        int64 `json:"recordsRepaired"`
	AgentsLost             int64 `json:"agentsLost"`
	AgentsIdle             int64 `json:"agentsIdle"`
	// ClockSteps is how often the clock of this server was set.
	ClockSteps int64 `json:"clockSteps"`
	// SignalsRefused is how many events Temporal has refused permanently.
	SignalsRefused int64 `json:"signalsRefused"`
	// RunsFenced is how many runs were told, by a signal, that they no longer own their machine.
	RunsFenced int64 `json:"runsFenced"`
	// Stuck is the number of runs whose workflow code fails now, so that they cannot go on.
	Stuck int64 `json:"stuck"`
}

// WaitingStatus is a run or an operation that waits for an operator.
type WaitingStatus struct {
	Name  string    `json:"name"` // machine, or workflow id of an operation
	Type  string    `json:"type"`
	Run   string    `json:"run"`
	Since time.Time `json:"since"`
	Text  string    `json:"text"`           // question for the operator
	Next  string    `json:"next,omitempty"` // command with which the operator can answer
}

// RestoredStatus describes the backup from which the server was restored.
type RestoredStatus struct {
	Backup string              `json:"backup"`
	Taken  time.Time           `json:"taken"`
	At     time.Time           `json:"at"`
	Held   []inventory.HeldRun `json:"held"` // runs that were held by the restore and are still open; an operator can only abort them
}

// TemporalStatus is the state of the connection to Temporal.
type TemporalStatus struct {
	Ready     bool   `json:"ready"`
	Address   string `json:"address,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	// UI is the URL of the UI of the cluster, or of the embedded server's UI on the server's host, which needs no log-in.
	UI string `json:"ui,omitempty"`
	// UILinks means that POST /v1/temporal-ui-links makes links to the embedded server's UI.
	UILinks bool      `json:"uiLinks,omitempty"`
	Since   time.Time `json:"since,omitzero"`  // when Temporal was last ready or, if it never was, when this server started; zero if Ready
	Error   string    `json:"error,omitempty"` // why Temporal is not ready
}

// NetbootStatus is the state of the boot servers.
type NetbootStatus struct {
	Interfaces []string `json:"interfaces"`
	// Relays and Address are set if the server serves only DHCP relays: they are the addresses of the relays and of
	// the server.
	Relays  []string `json:"relays,omitempty"`
	Address string   `json:"address,omitempty"`
	Off     bool     `json:"off"`
	Message string   `json:"message,omitempty"`
	// Rivals lists the other DHCP servers that were seen in the last hour.
	Rivals []inventory.Rival `json:"rivals,omitempty"`
	// How many syslog messages were dropped since the server started: SyslogDropped from machines that sent too many,
	// SyslogUnknown from hosts that are not in the inventory.
	SyslogDropped int64 `json:"syslogDropped,omitempty"`
	SyslogUnknown int64 `json:"syslogUnknown,omitempty"`
}

// NotifyStatus is the state of the notices, which the server sends to a webhook.
type NotifyStatus struct {
	Receiver string    `json:"receiver"` // URL of the receiver, without the path
	Waiting  int       `json:"waiting"`  // notices to be delivered
	Oldest   time.Time `json:"oldest,omitzero"`
	Sent     time.Time `json:"sent,omitzero"` // when the last notice was delivered
	Dropped  int       `json:"dropped,omitempty"`
	Error    string    `json:"error,omitempty"` // error of the last attempt
}

// BackupStatus is the state of the backups that the server stores.
type BackupStatus struct {
	Dir      string    `json:"dir"`               // directory of the backups
	Verified time.Time `json:"verified,omitzero"` // when the newest backup that was read back and verified was made; zero: there is none
	File     string    `json:"file,omitempty"`    // path of that backup
	Error    string    `json:"error,omitempty"`   // why no backup can be stored now, or why the last attempt failed
}

// StoredBackup is the answer to POST /v1/backups: a backup that was stored on the server, read back and verified.
type StoredBackup struct {
	ID        string    `json:"id"`
	File      string    `json:"file"` // path on the server
	Created   time.Time `json:"created"`
	SizeBytes int64     `json:"sizeBytes"`
	// Deleted lists the paths of older backups that backup.keep_days does not keep.
	Deleted []string `json:"deleted,omitempty"`
}

// InventoryStatus is the result of a check of the whole database.
type InventoryStatus struct {
	Checked time.Time `json:"checked,omitzero"` // zero while the check is running
	Error   string    `json:"error,omitempty"`  // damage and remedy
}

// SecretsStatus shows whether the secret key opens the stored secrets. State is the state of the key: ok, missing or
// wrong. Unreadable names the secrets that cannot be opened.
type SecretsStatus struct {
	State      string   `json:"state"`
	Unreadable []string `json:"unreadable"`
}

// SpaceStatus is the free space of one disk.
type SpaceStatus struct {
	Directory string `json:"directory"`
	// FreeBytes is the free space minus the bytes that are needed to restore the reserve.
	FreeBytes    int64 `json:"freeBytes"`
	MinFreeBytes int64 `json:"minFreeBytes"`
	// Low means that FreeBytes is less than MinFreeBytes: uploads are refused. If the databases are on this disk, new
	// runs are refused, too.
	Low     bool           `json:"low"`
	Reserve *ReserveStatus `json:"reserve,omitempty"`
	Message string         `json:"message,omitempty"` // remedy
}

// ReserveStatus is the state of the file that reserves space for DHCP, for the closing of netboot windows and for open
// runs.
type ReserveStatus struct {
	SizeBytes int64 `json:"sizeBytes"`
	// Held means that the reserve exists. Held is false while the reserve is in use because the disk was full.
	Held bool `json:"held"`
}
