package apitypes

import (
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// Status is what GET /v1/status answers.
type Status struct {
	Version       string         `json:"version"`
	UptimeSeconds int64          `json:"uptimeSeconds"`
	Temporal      TemporalStatus `json:"temporal"`
	Netboot       NetbootStatus  `json:"netboot"`
	Machines      int            `json:"machines"`
	OpenWorkflows int            `json:"openWorkflows"`
	Secrets       string         `json:"secrets"` // ok | missing | wrong
	// Inventory is the result of the database check at the start.
	Inventory InventoryStatus `json:"inventory"`
	Notify    *NotifyStatus   `json:"notify,omitempty"`
	Reconcile Repairs         `json:"reconcile"`
	// Panics counts packets and requests since the start whose handling panicked. Each panic
	// is a bug in Ingot.
	Panics int64 `json:"panics,omitempty"`
	// Retrying lists activities of open runs that fail and are retried, at most ten.
	Retrying []string `json:"retrying,omitempty"`
	// Waiting lists runs and operations that wait for an operator, at most ten of each; MoreWaiting: there are more.
	Waiting     []WaitingStatus `json:"waiting,omitempty"`
	MoreWaiting bool            `json:"moreWaiting,omitempty"`
	// Restored is the backup from which the site was restored.
	Restored *RestoredStatus `json:"restored,omitempty"`
	// Site is this server among its peers, if it has any.
	Site *inventory.SiteStatus `json:"site,omitempty"`
	// Space is the space of DataDir, and of ImageDir if it is on another disk.
	Space []SpaceStatus `json:"space"`
	Time  time.Time     `json:"time"`
}

// Repairs is what the reconciler has repaired since the server started.
type Repairs struct {
	GrantsEnded            int64 `json:"grantsEnded"`
	OperatorWindowsExpired int64 `json:"operatorWindowsExpired"`
	RecordsRepaired        int64 `json:"recordsRepaired"`
	AgentsLost             int64 `json:"agentsLost"`
	AgentsIdle             int64 `json:"agentsIdle"`
	// ClockSteps is how often the clock of this server was set.
	ClockSteps int64 `json:"clockSteps"`
	// SignalsRefused is how many events Temporal has refused.
	SignalsRefused int64 `json:"signalsRefused"`
	// RunsFenced is how many runs were told that they have lost their machine.
	RunsFenced int64 `json:"runsFenced"`
	// Stuck is how many runs have workflow code that keeps failing now.
	Stuck int64 `json:"stuck"`
}

// WaitingStatus is a run or an operation that waits for an operator.
type WaitingStatus struct {
	Name  string    `json:"name"` // machine, or the id of an operation
	Type  string    `json:"type"`
	Run   string    `json:"run"`
	Since time.Time `json:"since"`
	Text  string    `json:"text"`           // what is asked
	Next  string    `json:"next,omitempty"` // the command that answers
}

// RestoredStatus says from which backup a site was restored.
type RestoredStatus struct {
	Backup string              `json:"backup"`
	Taken  time.Time           `json:"taken"`
	At     time.Time           `json:"at"`
	Held   []inventory.HeldRun `json:"held"` // those that are still open
}

// TemporalStatus says whether Temporal is ready.
type TemporalStatus struct {
	Ready   bool      `json:"ready"`
	Address string    `json:"address,omitempty"`
	UI      string    `json:"ui,omitempty"`
	Since   time.Time `json:"since,omitzero"`  // when it was ready last, or this server started
	Error   string    `json:"error,omitempty"` // why it is not ready
}

// NetbootStatus says where DHCP answers.
type NetbootStatus struct {
	Interfaces []string `json:"interfaces"`
	// Relays of a server that only answers relays, and its Address.
	Relays  []string `json:"relays,omitempty"`
	Address string   `json:"address,omitempty"`
	Off     bool     `json:"off"`
	Message string   `json:"message,omitempty"`
	// Rivals are other DHCP servers that were seen in the last hour.
	Rivals []inventory.Rival `json:"rivals,omitempty"`
	// Messages by syslog that are not kept since the server started: of machines that sent too many, and
	// of hosts that are not in the inventory.
	SyslogDropped int64 `json:"syslogDropped,omitempty"`
	SyslogUnknown int64 `json:"syslogUnknown,omitempty"`
}

// NotifyStatus is the state of the notices.
type NotifyStatus struct {
	Receiver string    `json:"receiver"` // without path
	Waiting  int       `json:"waiting"`  // to be delivered
	Oldest   time.Time `json:"oldest,omitzero"`
	Sent     time.Time `json:"sent,omitzero"` // the last one
	Dropped  int       `json:"dropped,omitempty"`
	Error    string    `json:"error,omitempty"` // of the last attempt
}

// InventoryStatus is the result of a check of the whole database.
type InventoryStatus struct {
	Checked time.Time `json:"checked,omitzero"` // zero: the check is running
	Error   string    `json:"error,omitempty"`  // damage and remedy
}

// SecretsStatus says whether stored secrets can be opened: State is ok, missing or wrong,
// and Unreadable names those that cannot be opened.
type SecretsStatus struct {
	State      string   `json:"state"`
	Unreadable []string `json:"unreadable"`
}

// SpaceStatus is the room on one disk.
type SpaceStatus struct {
	Directory string `json:"directory"`
	// FreeBytes excludes what the reserve lacks, which others must not use.
	FreeBytes    int64 `json:"freeBytes"`
	MinFreeBytes int64 `json:"minFreeBytes"`
	// Low: new runs and uploads are refused.
	Low     bool           `json:"low"`
	Reserve *ReserveStatus `json:"reserve,omitempty"`
	Message string         `json:"message,omitempty"` // remedy
}

// ReserveStatus is the space reserved for DHCP, disarming and open runs.
type ReserveStatus struct {
	SizeBytes int64 `json:"sizeBytes"`
	// Held: the reserve exists. It does not while it is in use because the disk was full.
	Held bool `json:"held"`
}
